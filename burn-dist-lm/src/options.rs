//! The options by which a run is trained.

use burn_dist::train::config::Resolved;
use burn_dist::trainer::options::Options;

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

#[cfg(test)]
mod tests {
    use burn_dist::trainer::options::differences;

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
