//! The options by which a run was trained so far, and those by which it goes on.

use std::collections::BTreeMap;

use burn_dist::train::config::Resolved;

/// Sections of options by which the values of a run are made.
const OF_TRAINING: [&str; 8] = [
    "model",
    "mesh",
    "policy",
    "pipeline",
    "data",
    "optimizer",
    "schedule",
    "finetune",
];
/// Sections of options about where and what is written, and how often.
#[cfg(test)]
const OF_OUTPUT: [&str; 4] = ["checkpoint", "metrics", "validation", "output"];
/// An option in a section of the other kind.
const SEED: &str = "seed";
/// The opposite: an option in a section of training that says what is written.
const SAVE: &str = "save";

/// Options by which the values of a run are made, each with its value as text.
pub type Options = BTreeMap<String, Option<String>>;

/// Returns those of a command.
pub fn of(resolved: &Resolved) -> Options {
    let all = resolved.options().into_iter();
    let chosen = all.filter(|(section, option, _)| {
        *option == SEED || (OF_TRAINING.contains(section) && *option != SAVE)
    });
    chosen
        .map(|(_, option, value)| (option.to_string(), value))
        .collect()
}

/// Returns a line for each option that has another value than before: `--lr was 0.002, and is 0.001`.
pub fn differences(before: &Options, now: &Options) -> Vec<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not given".to_string());
    let differs = now.iter().filter_map(|(option, now)| {
        // An option that there was not when the checkpoint was saved says nothing.
        let before = before.get(option)?;
        (!are_same(before, now))
            .then(|| format!("--{option} was {}, and is {}", text(before), text(now)))
    });
    differs.collect()
}

/// Returns whether two values are the same: as texts, or as numbers.
fn are_same(one: &Option<String>, other: &Option<String>) -> bool {
    let number = |value: &Option<String>| value.as_ref()?.parse::<f64>().ok();
    one == other || number(one).is_some_and(|found| number(other) == Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;
    use crate::cli::{Cli, Command, SECTIONS};

    #[test]
    fn every_section_is_of_training_or_of_output() {
        for section in SECTIONS.iter().filter(|section| section.command.is_none()) {
            let name = section.name;
            let is_known = OF_TRAINING.contains(&name) != OF_OUTPUT.contains(&name);
            assert!(
                is_known || name == "run",
                "list the section {name} in one of the two"
            );
        }
    }

    #[test]
    fn what_has_changed_is_named() {
        let options = |more: &[&str]| {
            let args = [&["llama", "pretrain", "--run", "r"], more].concat();
            match Cli::try_read(Program::default(), args).unwrap().command {
                Command::Pretrain(args) => of(&args.resolved),
                _ => unreachable!("it is pretrain"),
            }
        };
        let before = options(&["--lr", "0.002", "--beta1", "0.8", "--save", "a"]);
        assert_eq!(differences(&before, &before), Vec::<String>::new());
        let now = options(&[
            "--lr", "1e-3", "--clip", "0.5", "--every", "7", "--seed", "3",
        ]);
        let mut found = differences(&before, &now);
        found.sort();
        let expected = [
            "--beta1 was 0.8, and is 0.9",
            "--clip was not given, and is 0.5",
            "--lr was 0.002, and is 1e-3",
            "--seed was 0, and is 3",
        ];
        assert_eq!(found, expected);
        // Of a checkpoint from before options were kept.
        assert_eq!(differences(&Options::new(), &now), Vec::<String>::new());
    }
}
