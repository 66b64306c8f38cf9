//! Burn's records as text and tensors.
//!
//! The text is JSON; where the record has a tensor, it has `{"$tensor": KEY}`. What an optimizer keeps for a parameter
//! it keeps under the parameter's id, which is random: the text has `parameter PATH` there.

use std::collections::{BTreeMap, HashMap};

use burn_core::record::{FullPrecisionSettings, Record};
use burn_dist_door::{AnyTensor, Nonce, giving, taking};
use serde_json::{Map, Value};

use super::StateError;
use super::parameters::Parameter;
use super::text::{PARAMETER, TENSOR, is_noise};
use super::token::index_in;
use crate::parallel::MeshBackend;
use crate::record::parts::Taken;

/// A record, taken apart.
pub(super) struct Parted {
    pub text: Value,
    /// With their keys.
    pub tensors: Vec<(String, Box<dyn Taken>)>,
}

/// Takes a record apart. `name` is what keys start with; `ids` has the paths of parameters, by their ids.
///
/// # Errors
/// [`StateError::Unsaved`].
pub(super) fn part<B: MeshBackend, R: Record<B>>(
    name: &str,
    record: R,
    ids: &HashMap<String, String>,
) -> Result<Parted, StateError> {
    let unsaved = |reason: String| StateError::Unsaved {
        name: name.to_string(),
        reason,
    };
    let write = || serde_json::to_value(record.into_item::<FullPrecisionSettings>());
    let (text, nonce, taken) = taking(write);
    let text = text.map_err(|error| unsaved(error.to_string()))?;
    let taken: Option<Vec<_>> = taken.into_iter().map(B::taken).collect();
    let taken = taken.ok_or_else(|| unsaved("it has tensors of another backend".into()))?;
    let mut writer = Writer {
        nonce,
        ids,
        taken: &taken,
        keys: BTreeMap::new(),
        error: None,
    };
    let text = writer.value(text, &mut vec![name.to_string()]);
    let (mut keys, error) = (writer.keys, writer.error);
    if let Some(reason) = error {
        return Err(unsaved(reason));
    }
    let mut tensors = Vec::new();
    for (index, tensor) in taken.into_iter().enumerate() {
        let key = keys.remove(&index);
        let key = key.ok_or_else(|| unsaved("it reads a tensor that it does not hold".into()))?;
        tensors.push((key, tensor));
    }
    Ok(Parted { text, tensors })
}

struct Writer<'a> {
    nonce: Nonce,
    ids: &'a HashMap<String, String>,
    taken: &'a [Box<dyn Taken>],
    /// Keys by the index of the tensor.
    keys: BTreeMap<usize, String>,
    error: Option<String>,
}

impl Writer<'_> {
    fn value(&mut self, value: Value, path: &mut Vec<String>) -> Value {
        match value {
            Value::Object(map) => match self.token(&map) {
                Some(index) => {
                    let key = path.join(".");
                    if self.keys.values().any(|other| *other == key) {
                        self.error = Some(format!("two of its tensors are called {key}"));
                    }
                    self.keys.insert(index, key.clone());
                    Value::Object(Map::from_iter([(TENSOR.to_string(), key.into())]))
                }
                None => Value::Object(self.map(map, path)),
            },
            Value::Array(values) => {
                let each = values.into_iter().enumerate();
                let each = each.map(|(index, value)| self.at(index.to_string(), value, path));
                Value::Array(each.collect())
            }
            other => other,
        }
    }

    fn map(&mut self, map: Map<String, Value>, path: &mut Vec<String>) -> Map<String, Value> {
        let mut written = Map::new();
        let is_param = map.len() == 2 && map.contains_key("id");
        for (key, value) in map {
            if key == TENSOR || key.starts_with(PARAMETER) {
                self.error = Some(format!("it has a field called `{key}`"));
            }
            let (key, segment) = match self.ids.get(&key) {
                Some(parameter) => (format!("{PARAMETER}{parameter}"), parameter.clone()),
                None => {
                    let parameter = is_adapted(&value).then(|| self.parameter_of(&value));
                    let segment = parameter.flatten().unwrap_or_else(|| key.clone());
                    (key, segment)
                }
            };
            let value = match is_noise(&segment) || (segment == "param" && is_param) {
                true => self.value(value, path),
                false => self.at(segment, value, path),
            };
            written.insert(key, value);
        }
        written
    }

    fn at(&mut self, segment: String, value: Value, path: &mut Vec<String>) -> Value {
        path.push(segment);
        let value = self.value(value, path);
        path.pop();
        value
    }

    /// Returns the path of the parameter that an optimizer's state is for, if its mesh knows.
    fn parameter_of(&self, value: &Value) -> Option<String> {
        match value {
            Value::Object(map) => match self.token(map) {
                Some(index) => {
                    let place = self.taken.get(index)?.place().ok()?;
                    place.role.belongs_to().map(|spec| spec.path.clone())
                }
                None => map.values().find_map(|value| self.parameter_of(value)),
            },
            Value::Array(values) => values.iter().find_map(|value| self.parameter_of(value)),
            _ => None,
        }
    }

    fn token(&self, map: &Map<String, Value>) -> Option<usize> {
        index_in(self.nonce, map)
    }
}

/// Returns whether a value is the state of an optimizer for one parameter as Burn writes it: `{"V1": {"Rank2": ..}}`.
fn is_adapted(value: &Value) -> bool {
    let versions = value.as_object().filter(|versions| versions.len() == 1);
    let state = versions.and_then(|versions| versions.get("V1")?.as_object());
    state.is_some_and(|state| state.len() == 1 && state.keys().all(|rank| is_noise(rank)))
}

/// Puts a record together again. `tensors` are those of [`tensors_of`](super::text::tensors_of), each with its number of dims.
///
/// # Errors
/// [`StateError::Mismatch`] and [`StateError::Parameters`].
pub(super) fn join<B: MeshBackend, R: Record<B>>(
    name: &str,
    text: Value,
    tensors: Vec<(AnyTensor, usize)>,
    parameters: &[Parameter],
    device: &B::Device,
) -> Result<R, StateError> {
    let ids = parameters
        .iter()
        .map(|p| (p.path.as_str(), p.id.serialize()));
    let (tensors, dims): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
    giving(tensors, |nonce| {
        let mut reader = Reader {
            nonce,
            ids: ids.collect(),
            dims,
            next: 0,
            strangers: Vec::new(),
        };
        let text = reader.value(text);
        if !reader.strangers.is_empty() {
            return Err(StateError::Parameters {
                name: name.to_string(),
                paths: reader.strangers,
            });
        }
        let item = serde_json::from_value(text).map_err(|error| StateError::Mismatch {
            name: name.to_string(),
            reason: error.to_string(),
        })?;
        Ok(R::from_item::<FullPrecisionSettings>(item, device))
    })
}

struct Reader<'a> {
    nonce: Nonce,
    ids: HashMap<&'a str, String>,
    dims: Vec<usize>,
    next: usize,
    strangers: Vec<String>,
}

impl Reader<'_> {
    fn value(&mut self, value: Value) -> Value {
        match value {
            Value::Object(map) if map.contains_key(TENSOR) => {
                let index = self.next;
                self.next += 1;
                let dims = self.dims.get(index).copied().unwrap_or(1);
                let token = self.nonce.token(index, dims);
                serde_json::to_value(token).unwrap_or(Value::Null)
            }
            Value::Object(map) => {
                let each = map.into_iter().map(|(key, value)| {
                    let key = match key.strip_prefix(PARAMETER) {
                        Some(path) => match self.ids.get(path) {
                            Some(id) => id.clone(),
                            None => {
                                self.strangers.push(path.to_string());
                                key
                            }
                        },
                        None => key,
                    };
                    (key, self.value(value))
                });
                Value::Object(each.collect())
            }
            Value::Array(values) => {
                Value::Array(values.into_iter().map(|value| self.value(value)).collect())
            }
            other => other,
        }
    }
}
