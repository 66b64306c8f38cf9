//! The options by which a run was trained so far, and those by which it goes on.

use std::collections::BTreeMap;

use super::sections::OF_OUTPUT;
use crate::train::config::Resolved;

/// Options by which the values of a run are made, each with its value as text.
pub type Options = BTreeMap<String, Option<String>>;

/// An option in a section about what is written that changes the values of a run.
const SEED: &str = "seed";
/// The opposite: an option in another section that says what is written.
const SAVE: &str = "save";

/// Returns those of a command.
pub fn of(resolved: &Resolved) -> Options {
    let all = resolved.options().into_iter();
    let chosen = all.filter(|(section, option, _)| {
        *option == SEED || (!OF_OUTPUT.contains(section) && *option != SAVE)
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
