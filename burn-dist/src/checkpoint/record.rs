//! The records of Burn's optimizers and schedulers as text and tensors.
//!
//! Burn shows the state of an optimizer as a record in its own file format, with names such as `ID.momentum.moment_1`, and
//! reads every tensor for it; ours are taken off the ranks instead. The text is that of Burn 0.21, so that checkpoints of
//! both lines are alike: `{"parameter PATH": {"V1": {"Rank2": {"momentum": {"moment_1": {"$tensor": KEY}}}}}}`.

use std::collections::{BTreeMap, HashMap};

use burn_backend::ops::FloatTensorOps;
use burn_core::module::Module;
use burn_core::tensor::{Bytes, TensorData};
use burn_dist_door::{taking, taking_residents};
use burn_optim::ModuleOptimizer;
use burn_optim::lr_scheduler::LrSchedulerRecord;
use burn_pack::{Reader, Scalar};
use serde_json::{Map, Value, json};

use super::StateError;
use super::loaded::{State, record_of};
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

/// Takes the state of an optimizer apart. `name` is what keys start with; `paths` has the paths of parameters, by
/// their ids, and `mesh` is theirs.
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
    let (taken, residents) = taking_residents(|| taking(|| optimizer.to_record().into_bytes()));
    let (bytes, nonce, all) = taken;
    let bytes = bytes.map_err(|error| unsaved(error.to_string()))?;
    let reader = Reader::from_bytes(bytes).map_err(|error| unsaved(error.to_string()))?;
    let mut all: Vec<_> = all.into_iter().map(Dist::taken).collect();
    let mut states = BTreeMap::new();
    for (key, scalar) in reader.scalars().clone() {
        let (path, field) = of_parameter(&key, paths, reader.metadata()).map_err(&unsaved)?;
        let state: &mut Text = states.entry(path).or_default();
        match field {
            RANK => state.rank = number(scalar).as_u64().unwrap_or(0),
            field => insert(&mut state.fields, field, number(scalar)),
        }
    }
    let metadata = reader.metadata().clone();
    let mut found = Vec::new();
    let packed = reader.into_tensors();
    for tensor in packed.map_err(|error| unsaved(error.to_string()))? {
        let parts = tensor.into_parts();
        let (key, dtype, shape, _, bytes) = parts.map_err(|error| unsaved(error.to_string()))?;
        let (path, field) = of_parameter(&key, paths, &metadata).map_err(&unsaved)?;
        let data = TensorData::from_bytes(bytes, shape, dtype);
        found.push((path, field.to_string(), data));
    }
    // Burn has them by ids, which each process draws; what follows is recorded, and so has one order in all of them.
    found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    let mut tensors = Vec::new();
    for (path, field, data) in found {
        let taken = match nonce.index(&data) {
            Some(index) => all.get_mut(index).and_then(Option::take),
            None => match residents.tensor(&data) {
                Some(tensor) => Dist::taken(tensor),
                // Burn has a state that it has loaded on its default device, until a step moves it.
                None => mesh.map(|mesh| Dist::take_float(Dist::float_from_data(data, mesh))),
            },
        };
        let taken =
            taken.ok_or_else(|| unsaved(format!("its state `{field}` of {path} is on no mesh")))?;
        let full = format!("{name}.{path}.{field}");
        let state = states.entry(path).or_default();
        insert(&mut state.fields, &field, json!({ TENSOR: full }));
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

/// The state of a parameter, as text.
#[derive(Default)]
struct Text {
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
    let known = id.parse().ok().and_then(|id: u64| paths.get(&id));
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

/// Puts the state of an optimizer of `model` together again, and returns that with it. `tensors` are those of
/// [`tensors_of`](super::text::tensors_of); `ids` has the ids of parameters, by their paths.
///
/// # Errors
/// [`StateError::Mismatch`] and [`StateError::Parameters`].
pub(super) fn join_optimizer<M: Module>(
    name: &str,
    text: &Value,
    tensors: Vec<TensorData>,
    ids: &HashMap<&str, u64>,
    (optimizer, model): (ModuleOptimizer, &M),
) -> Result<ModuleOptimizer, StateError> {
    let mismatch = |reason: String| StateError::Mismatch {
        name: name.to_string(),
        reason,
    };
    let texts = text
        .as_object()
        .ok_or_else(|| mismatch("it is not the state of an optimizer".into()))?;
    let mut tensors = tensors.into_iter();
    let (mut strangers, mut paths) = (Vec::new(), HashMap::new());
    let mut states = BTreeMap::new();
    for (key, text) in texts {
        let path = key.strip_prefix(PARAMETER).unwrap_or(key);
        let Some(id) = ids.get(path) else {
            strangers.push(path.to_string());
            continue;
        };
        let (rank, fields) = rank_of(text)
            .ok_or_else(|| mismatch(format!("the state of {path} is not as Burn writes it")))?;
        let mut state = State {
            rank,
            ..State::default()
        };
        join("", fields, &mut tensors, &mut state);
        states.insert(*id, state);
        paths.insert(*id, path);
    }
    if !strangers.is_empty() {
        return Err(StateError::Parameters {
            name: name.to_string(),
            paths: strangers,
        });
    }
    let record = |states| {
        record_of(states, model).map_err(|(id, rank)| {
            let path = paths.get(&id).copied().unwrap_or_default();
            mismatch(match rank {
                Some(rank) => {
                    format!("the state of {path} is of another shape: it has {rank} dims")
                }
                None => format!("it has a state of {path}, which is no float"),
            })
        })
    };
    // What an optimizer does not know, Burn leaves out and says nothing.
    let small = record(states.iter().map(|(id, of)| (*id, of.small())).collect())?;
    let saved = small.len();
    match optimizer.clone().load_record(small).to_record().len() {
        taken if taken == saved => Ok(optimizer.load_record(record(states)?)),
        taken => Err(mismatch(format!(
            "this optimizer takes {taken} of its {saved} tensors: load it into one of the kind that it was saved of"
        ))),
    }
}

/// Adds what a text names to the state of a parameter, in the order in which its tensors are named.
fn join(
    name: &str,
    value: &Value,
    tensors: &mut std::vec::IntoIter<TensorData>,
    state: &mut State,
) {
    let at = |key: &str| match name {
        "" => key.to_string(),
        name => format!("{name}.{key}"),
    };
    match value {
        Value::Object(map) if map.contains_key(TENSOR) => {
            let data = tensors.next();
            state
                .tensors
                .extend(data.map(|data| (name.to_string(), data)));
        }
        Value::Object(map) => {
            for (key, value) in map {
                join(&at(key), value, tensors, state);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                join(&at(&index.to_string()), value, tensors, state);
            }
        }
        value => {
            let scalar = scalar(value);
            state
                .scalars
                .extend(scalar.map(|scalar| (name.to_string(), scalar)));
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
