//! Which option is which key of a file.

use std::collections::BTreeMap;

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Command, Id};

use super::value::Kind;

/// The long name of the option that names the file.
pub(super) const CONFIG: &str = "config";
/// The long name of the option that takes back what the file says.
pub(super) const UNSET: &str = "unset";
/// How alike two names are at least (Jaro-Winkler, from 0 to 1) if one may stand for the other: clap's figure.
const ALIKE: f64 = 0.7;

/// A key of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// The long name of its option.
    pub option: &'static str,
}

impl Key {
    /// A key with the name of its option.
    pub const fn of(option: &'static str) -> Self {
        Self::named(option, option)
    }

    /// A key with another, shorter name than its option.
    pub const fn named(name: &'static str, option: &'static str) -> Self {
        Self { name, option }
    }
}

/// A section of a file: keys that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Its name in the file.
    pub name: &'static str,
    /// Its subject: its heading in `--help`.
    pub title: &'static str,
    /// The only subcommand whose options these are; `None` if all may have them.
    pub command: Option<&'static str>,
    /// Its keys, in the order in which they are written.
    pub keys: &'static [Key],
}

impl Section {
    /// A section for options of all commands.
    pub const fn new(name: &'static str, title: &'static str, keys: &'static [Key]) -> Self {
        Self {
            name,
            title,
            command: None,
            keys,
        }
    }

    /// A section for options of one subcommand. Options of this name that other commands have are others.
    pub const fn of_command(self, command: &'static str) -> Self {
        Self {
            command: Some(command),
            ..self
        }
    }
}

/// The options of a program, and where each of them stands in a file.
#[derive(Debug, Clone)]
pub struct Config {
    command: Command,
    pub(super) sections: &'static [Section],
}

impl Config {
    /// Options by the subcommands of `command`, or its own if it has none; each command that has options in `sections`
    /// gets `--config` and `--unset`, and their titles as headings of its help.
    ///
    /// Options that have no long name, and flags that are no switches, have no place in a file.
    pub fn new(command: Command, sections: &'static [Section]) -> Self {
        let placed = |command: Command| place(command, sections);
        let command = match command.has_subcommands() {
            true => command.mut_subcommands(placed),
            false => placed(command),
        };
        Self { command, sections }
    }

    /// The command, as it reads a command line.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// The commands that have options: the subcommands, or the only command.
    pub(super) fn commands(&self) -> impl Iterator<Item = &Command> {
        let alone = (!self.command.has_subcommands()).then_some(&self.command);
        self.command.get_subcommands().chain(alone)
    }

    /// Says what is wrong with the sections: options without a place, keys without an option, a name that stands twice.
    /// A test asserts that it is nothing.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut found: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for section in self.sections {
            for key in section.keys {
                *found.entry((section.name, key.name)).or_default() += 1;
                let mut commands = self.commands();
                if !commands.any(|command| self.of_key(command, section, key).is_some()) {
                    let key = key_name(section, key);
                    faults.push(format!("no command has an option for {key}"));
                }
            }
        }
        let twice = found.iter().filter(|(_, count)| **count > 1);
        faults.extend(twice.map(|((section, key), _)| format!("{section}.{key} stands twice")));
        for command in self.commands() {
            for arg in command.get_arguments() {
                if let Some(option) = arg.get_long().filter(|long| !is_own(long))
                    && place_of(self.sections, command.get_name(), option).is_none()
                {
                    let command = command.get_name();
                    faults.push(format!("{command} --{option} stands in no section"));
                }
            }
        }
        faults
    }

    /// The section with this name and the key in it, if there are.
    pub(super) fn find(
        &self,
        section: &str,
        key: &str,
    ) -> Option<(&'static Section, &'static Key)> {
        let mut sections = self.sections.iter().filter(|found| found.name == section);
        sections.find_map(|section| {
            let key = section.keys.iter().find(|found| found.name == key)?;
            Some((section, key))
        })
    }

    /// The option of a key in the command that reads it, or in the first that has it.
    pub(super) fn option(&self, command: &str, section: &Section, key: &Key) -> Option<&Arg> {
        let own = self.commands().filter(|found| found.get_name() == command);
        let mut all = own.chain(self.commands());
        all.find_map(|command| self.of_key(command, section, key))
    }

    /// The option of a command that is this key, if it has one.
    pub(super) fn of_key<'a>(
        &self,
        command: &'a Command,
        section: &Section,
        key: &Key,
    ) -> Option<&'a Arg> {
        let (found, _) = place_of(self.sections, command.get_name(), key.option)?;
        let mut args = command.get_arguments().filter(|_| found == section);
        let arg = args.find(|arg| arg.get_long() == Some(key.option))?;
        Kind::of(arg).map(|_| arg)
    }

    /// The names of all sections.
    pub(super) fn section_names(&self) -> Vec<String> {
        self.sections
            .iter()
            .map(|section| section.name.to_string())
            .collect()
    }

    /// The section that is most alike to a name.
    pub(super) fn nearest_section(&self, name: &str) -> Option<String> {
        let names = self.sections.iter().map(|section| section.name);
        nearest(name, names).map(str::to_string)
    }

    /// The key that was meant by a name which its section does not have: that of the option with this name, or one of
    /// this name in another section, or the one that is most alike. With its section, if that is another one.
    pub(super) fn nearest_key(&self, section: Option<&str>, name: &str) -> Option<String> {
        let all = || {
            let keys =
                |section: &'static Section| section.keys.iter().map(move |key| (section, key));
            self.sections.iter().flat_map(keys)
        };
        let is_here = |(found, _): &(&Section, &Key)| section == Some(found.name);
        let same = |(_, key): &(&Section, &Key)| key.option == name || key.name == name;
        let most_alike = |here: bool| {
            let candidates = all().filter(|key| is_here(key) == here);
            candidates
                .map(|(section, key)| (strsim::jaro_winkler(key.name, name), section, key))
                .filter(|(alike, ..)| *alike > ALIKE)
                .max_by(|(one, ..), (other, ..)| one.total_cmp(other))
                .map(|(_, section, key)| (section, key))
        };
        let here = all().filter(is_here).find(same);
        let found = here
            .or_else(|| all().find(same))
            .or_else(|| most_alike(true))
            .or_else(|| most_alike(false))?;
        Some(match is_here(&found) {
            true => found.1.name.to_string(),
            false => key_name(found.0, found.1),
        })
    }
}

/// A key with its section: `optimizer.lr`.
pub(super) fn key_name(section: &Section, key: &Key) -> String {
    format!("{}.{}", section.name, key.name)
}

/// Where an option of a command stands: in a section for this command alone, or in one for all.
pub(super) fn place_of(
    sections: &'static [Section],
    command: &str,
    option: &str,
) -> Option<(&'static Section, &'static Key)> {
    let place = |section: &'static Section| {
        let key = section.keys.iter().find(|key| key.option == option)?;
        Some((section, key))
    };
    let own = sections
        .iter()
        .filter(|section| section.command == Some(command));
    let common = sections.iter().filter(|section| section.command.is_none());
    own.chain(common).find_map(place)
}

/// Returns whether it is an option of every command, about the file itself or about the command line.
fn is_own(option: &str) -> bool {
    [CONFIG, UNSET, "help", "version"].contains(&option)
}

/// Adds the options that name a file, and headings.
fn place(command: Command, sections: &'static [Section]) -> Command {
    let name = command.get_name().to_string();
    let place_of = |arg: &Arg| place_of(sections, &name, arg.get_long()?);
    if !command.get_arguments().any(|arg| place_of(arg).is_some()) {
        return command;
    }
    let headed = command.mut_args(|arg| match place_of(&arg) {
        Some((section, _)) => arg.help_heading(section.title),
        None => arg,
    });
    headed.arg(
        Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE.toml")
            .value_parser(clap::value_parser!(std::path::PathBuf))
            .help("Read options from this file; those of the command line go over it")
            .display_order(0),
    )
    .arg(
        Arg::new(UNSET)
            .long(UNSET)
            .value_name("SECTION.KEY")
            .action(ArgAction::Append)
            .requires(CONFIG)
            .help("Leave out what the file says of a key, such as optimizer.clip; may be given several times")
            .display_order(0),
    )
}

/// The command, in which options may stand alone: to read a part of what a whole command line has.
pub(super) fn relaxed(command: &Command) -> Command {
    let alone = |arg: Arg| arg.required(false).requires(Resettable::<Id>::Reset);
    let command = command.clone().mut_args(alone);
    command.mut_subcommands(|command| command.mut_args(alone))
}

fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.map(|found| (strsim::jaro_winkler(found, name), found));
    let alike = alike.filter(|(alike, _)| *alike > ALIKE);
    let nearest = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    nearest.map(|(_, found)| found)
}
