//! The options by which a run was trained so far, and those by which it goes on.

use std::collections::BTreeMap;

/// Options by which the values of a run are made, each with its value as text.
pub type Options = BTreeMap<String, Option<String>>;

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
