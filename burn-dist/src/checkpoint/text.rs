//! The text of a record: the tensors that it has, and the parameters that they belong to.
//!
//! The text is JSON; where the record has a tensor, it has `{"$tensor": KEY}`. What an optimizer keeps for a parameter is
//! under `parameter PATH`, as Burn 0.21 writes it: `{"V1": {"Rank2": ..}}`.

use serde_json::Value;

/// The key of a tensor's name.
pub(super) const TENSOR: &str = "$tensor";
/// The words before the path of a parameter.
pub(super) const PARAMETER: &str = "parameter ";

/// Returns whether a segment of a path means nothing to people: it is how Burn wraps an optimizer's state.
pub(super) fn is_noise(segment: &str) -> bool {
    let rank = segment.strip_prefix("Rank");
    segment == "V1"
        || rank.is_some_and(|rank| rank.len() == 1 && rank.as_bytes()[0].is_ascii_digit())
}

/// A tensor that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub key: String,
    /// The path of the parameter that it belongs to.
    pub parameter: Option<String>,
}

/// Returns the tensors that a text names, in the order in which [`join`] takes them.
pub(super) fn tensors_of(text: &Value) -> Vec<Named> {
    let mut found = Vec::new();
    find(text, None, &mut found);
    found
}

fn find(value: &Value, parameter: Option<&str>, found: &mut Vec<Named>) {
    match value {
        Value::Object(map) => match map.get(TENSOR) {
            Some(Value::String(key)) => found.push(Named {
                key: key.clone(),
                parameter: parameter.map(str::to_string),
            }),
            _ => {
                for (key, value) in map {
                    find(value, key.strip_prefix(PARAMETER).or(parameter), found);
                }
            }
        },
        Value::Array(values) => values
            .iter()
            .for_each(|value| find(value, parameter, found)),
        _ => {}
    }
}
