//! The records of Burn's optimizers and schedulers as text and tensors.
//!
//! Burn shows the state of an optimizer as a record in its own file format, with names such as `ID.momentum.moment_1`, and
//! reads every tensor for it; ours are taken off the ranks instead. The text is that of Burn 0.21, so that checkpoints of
//! both lines are alike: `{"parameter PATH": {"V1": {"Rank2": {"momentum": {"moment_1": {"$tensor": KEY}}}}}}`.

use std::collections::{BTreeMap, HashMap};

use burn_backend::ops::FloatTensorOps;
use burn_core::tensor::{Bytes, TensorData};
use burn_dist_door::taking;
use burn_optim::lr_scheduler::LrSchedulerRecord;
use burn_optim::{ModuleOptimizer, OptimizerRecord};
use burn_pack::{Reader, Scalar, Tensor as Packed, Writer};
use serde_json::{Map, Value, json};

use super::StateError;
use super::scheduler::Scheduler;
use super::text::{PARAMETER, TENSOR, is_noise};
use super::write::Keyed;
use crate::record::parts::Parts;
use crate::{Dist, MeshDevice};

/// Burn's name for the number of dims of a parameter.
const RANK: &str = "__rank";
const VERSION: &str = "V1";

/// A record, taken apart.
pub(super) struct Parted {
    pub text: Value,
    /// With their keys.
    pub tensors: Vec<Keyed>,
}

/// Takes the state of an optimizer apart. `name` is what keys start with; `paths` has the paths of parameters, by their
/// ids, and `mesh` is theirs.
///
/// # Errors
/// [`StateError::Unsaved`].
pub(super) fn part_optimizer(
    name: &str,
    optimizer: &ModuleOptimizer,
    paths: &HashMap<u64, String>,
    mesh: Option<&MeshDevice>,
) -> Result<Parted, StateError> {
    let unsaved = |reason: String| StateError::Unsaved {
        name: name.to_string(),
        reason,
    };
    let (bytes, nonce, all) = taking(|| optimizer.to_record().into_bytes());
    let bytes = bytes.map_err(|error| unsaved(error.to_string()))?;
    let reader = Reader::from_bytes(bytes).map_err(|error| unsaved(error.to_string()))?;
    let mut all: Vec<_> = all.into_iter().map(Dist::taken).collect();
    let mut states = BTreeMap::new();
    for (key, scalar) in reader.scalars().clone() {
        let (path, field) = of_parameter(&key, paths, reader.metadata()).map_err(&unsaved)?;
        let state: &mut State = states.entry(path).or_default();
        match field {
            RANK => state.rank = number(scalar).as_u64().unwrap_or(0),
            field => insert(&mut state.fields, field, number(scalar)),
        }
    }
    let metadata = reader.metadata().clone();
    let mut tensors = Vec::new();
    let packed = reader.into_tensors();
    for tensor in packed.map_err(|error| unsaved(error.to_string()))? {
        let parts = tensor.into_parts();
        let (key, dtype, shape, _, bytes) = parts.map_err(|error| unsaved(error.to_string()))?;
        let (path, field) = of_parameter(&key, paths, &metadata).map_err(&unsaved)?;
        let data = TensorData::from_bytes(bytes, shape, dtype);
        let taken = match nonce.index(&data) {
            Some(index) => all.get_mut(index).and_then(Option::take),
            // Burn has the state of an optimizer that was loaded on the host, until a step moves it.
            None => mesh.map(|mesh| Dist::take_float(Dist::float_from_data(data, mesh))),
        };
        let taken =
            taken.ok_or_else(|| unsaved(format!("its state `{field}` of {path} is on no mesh")))?;
        let full = format!("{name}.{path}.{field}");
        let state = states.entry(path).or_default();
        insert(&mut state.fields, field, json!({ TENSOR: full }));
        tensors.push((full, taken));
    }
    let each = states.into_iter().map(|(path, state)| {
        let rank = format!("Rank{}", state.rank);
        let text = json!({ VERSION: { rank: Value::Object(state.fields) } });
        (format!("{PARAMETER}{path}"), text)
    });
    Ok(Parted {
        text: Value::Object(each.collect()),
        tensors,
    })
}

/// The state of a parameter.
#[derive(Default)]
struct State {
    rank: u64,
    fields: Map<String, Value>,
}

/// Returns the path of the parameter that an entry of a record belongs to, and the field that it is.
fn of_parameter<'a>(
    key: &'a str,
    paths: &HashMap<u64, String>,
    others: &BTreeMap<String, String>,
) -> Result<(String, &'a str), String> {
    let (id, field) = key.split_once('.').unwrap_or((key, ""));
    let known = id.parse().ok().and_then(|id| paths.get(&id));
    // Of a parameter that the model does not have, Burn knows where it was.
    match known.or_else(|| others.get(id)) {
        Some(path) => Ok((path.clone(), field)),
        None => Err(format!(
            "its state `{key}` belongs to no parameter of the model"
        )),
    }
}

fn insert(fields: &mut Map<String, Value>, field: &str, value: Value) {
    match field.split_once('.') {
        None => {
            fields.insert(field.to_string(), value);
        }
        Some((first, rest)) => {
            let inner = fields.entry(first).or_insert_with(|| Map::new().into());
            if let Some(inner) = inner.as_object_mut() {
                insert(inner, rest, value);
            }
        }
    }
}

fn number(scalar: Scalar) -> Value {
    match scalar {
        Scalar::Int(int) => int.into(),
        Scalar::UInt(int) => int.into(),
        Scalar::Float(float) => float.into(),
        Scalar::Bool(bool) => bool.into(),
    }
}

fn scalar(value: &Value) -> Option<Scalar> {
    match value {
        Value::Bool(bool) => Some(Scalar::Bool(*bool)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(int), _) => Some(Scalar::UInt(int)),
            (_, Some(int)) => Some(Scalar::Int(int)),
            _ => number.as_f64().map(Scalar::Float),
        },
        _ => None,
    }
}

/// Puts the state of an optimizer together again. `tensors` are those of [`tensors_of`](super::text::tensors_of); `ids`
/// has the ids of parameters, by their paths.
///
/// # Errors
/// [`StateError::Mismatch`] and [`StateError::Parameters`].
pub(super) fn join_optimizer(
    name: &str,
    text: &Value,
    tensors: Vec<TensorData>,
    ids: &HashMap<&str, u64>,
) -> Result<OptimizerRecord, StateError> {
    let mismatch = |reason: String| StateError::Mismatch {
        name: name.to_string(),
        reason,
    };
    let states = text
        .as_object()
        .ok_or_else(|| mismatch("it is not the state of an optimizer".into()))?;
    let mut joined = Joined {
        tensors: tensors.into_iter(),
        packed: Vec::new(),
        scalars: Vec::new(),
    };
    let (mut strangers, mut paths) = (Vec::new(), Vec::new());
    for (key, state) in states {
        let path = key.strip_prefix(PARAMETER).unwrap_or(key);
        let Some(id) = ids.get(path) else {
            strangers.push(path.to_string());
            continue;
        };
        let (rank, fields) = rank_of(state)
            .ok_or_else(|| mismatch(format!("the state of {path} is not as Burn writes it")))?;
        joined
            .scalars
            .push((format!("{id}.{RANK}"), Scalar::UInt(rank)));
        joined.add(*id, &id.to_string(), fields);
        paths.push((id.to_string(), path));
    }
    if !strangers.is_empty() {
        return Err(StateError::Parameters {
            name: name.to_string(),
            paths: strangers,
        });
    }
    let mut writer = Writer::new(joined.packed);
    for (key, scalar) in joined.scalars {
        writer = writer.with_scalar(&key, scalar);
    }
    for (id, path) in paths {
        writer = writer.with_metadata(&id, path);
    }
    let bytes = writer.into_bytes();
    let bytes = bytes.map_err(|error| mismatch(error.to_string()))?;
    OptimizerRecord::from_bytes(bytes).map_err(|error| mismatch(error.to_string()))
}

/// The entries of a record.
struct Joined {
    tensors: std::vec::IntoIter<TensorData>,
    packed: Vec<Packed>,
    scalars: Vec<(String, Scalar)>,
}

impl Joined {
    /// Adds the state of a parameter, in the order in which its tensors are named.
    fn add(&mut self, id: u64, name: &str, value: &Value) {
        match value {
            Value::Object(map) if map.contains_key(TENSOR) => {
                if let Some(data) = self.tensors.next() {
                    let (bytes, shape, dtype) = data.into_parts();
                    let packed = Packed::new(name.to_string(), dtype, shape, Some(id), bytes);
                    self.packed.push(packed);
                }
            }
            Value::Object(map) => {
                for (key, value) in map {
                    self.add(id, &format!("{name}.{key}"), value);
                }
            }
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    self.add(id, &format!("{name}.{index}"), value);
                }
            }
            value => {
                if let Some(scalar) = scalar(value) {
                    self.scalars.push((name.to_string(), scalar));
                }
            }
        }
    }
}

/// Returns the number of dims of a parameter, and the state of an optimizer for it: `{"V1": {"Rank2": ..}}`.
fn rank_of(state: &Value) -> Option<(u64, &Value)> {
    let (rank, fields) = state
        .as_object()?
        .get(VERSION)?
        .as_object()?
        .iter()
        .next()?;
    let number = rank.strip_prefix("Rank").filter(|_| is_noise(rank))?;
    Some((number.parse().ok()?, fields))
}

/// Returns the state of a scheduler as text. One number is that number: so Burn 0.21 writes it.
///
/// # Errors
/// [`StateError::Unsaved`].
pub(super) fn part_scheduler(name: &str, record: LrSchedulerRecord) -> Result<Value, StateError> {
    let scalars = scalars_of(record).map_err(|reason| StateError::Unsaved {
        name: name.to_string(),
        reason,
    })?;
    let scalars = unwrapped(scalars);
    let mut each = scalars.iter();
    if let (Some((_, only)), None) = (each.next(), each.next()) {
        return Ok(number(*only));
    }
    let mut text = Map::new();
    for (key, scalar) in scalars {
        insert(&mut text, &key, number(scalar));
    }
    match text.is_empty() {
        true => Ok(Value::Null),
        false => Ok(text.into()),
    }
}

/// Returns a scheduler with the state of a text.
///
/// # Errors
/// [`StateError::Mismatch`].
pub(super) fn join_scheduler<S: Scheduler>(
    name: &str,
    text: &Value,
    scheduler: S,
) -> Result<S, StateError> {
    let mismatch = |reason: String| StateError::Mismatch {
        name: name.to_string(),
        reason,
    };
    let own = scalars_of(scheduler.record()).map_err(mismatch)?;
    let mut found = BTreeMap::new();
    flatten("", text, &mut found);
    let plain = unwrapped(own.clone());
    if found.len() != plain.len() {
        let reason = format!(
            "it has {} number(s), and the scheduler has {}",
            found.len(),
            plain.len()
        );
        return Err(mismatch(reason));
    }
    let mut record = LrSchedulerRecord::new();
    for (key, in_own) in plain.keys().zip(own.keys()) {
        // A number alone has no name.
        let value = found.get(key).or_else(|| found.get(""));
        let value = value.ok_or_else(|| mismatch(format!("it has no `{key}`")))?;
        // Of its own type: a whole number may be one of either.
        record = match (own[in_own], *value) {
            (Scalar::Float(_), Scalar::UInt(int)) => record.with_scalar(in_own, int as f64),
            (Scalar::Float(_), Scalar::Int(int)) => record.with_scalar(in_own, int as f64),
            (_, value) => record.with_scalar(in_own, value),
        };
    }
    Ok(scheduler.with_record(record))
}

fn scalars_of(record: LrSchedulerRecord) -> Result<BTreeMap<String, Scalar>, String> {
    let bytes: Bytes = record.into_bytes().map_err(|error| error.to_string())?;
    let reader = Reader::from_bytes(bytes).map_err(|error| error.to_string())?;
    Ok(reader.scalars().clone())
}

/// Returns the state of the only scheduler of a model as that of a scheduler.
fn unwrapped(scalars: BTreeMap<String, Scalar>) -> BTreeMap<String, Scalar> {
    if !scalars.keys().all(|key| key.starts_with("0.")) {
        return scalars;
    }
    let each = scalars.into_iter();
    each.map(|(key, scalar)| (key["0.".len()..].to_string(), scalar))
        .collect()
}

fn flatten(name: &str, value: &Value, found: &mut BTreeMap<String, Scalar>) {
    let at = |key: &str| match name {
        "" => key.to_string(),
        name => format!("{name}.{key}"),
    };
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| flatten(&at(key), value, found)),
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                flatten(&at(&index.to_string()), value, found);
            }
        }
        value => {
            if let Some(scalar) = scalar(value) {
                found.insert(name.to_string(), scalar);
            }
        }
    }
}
