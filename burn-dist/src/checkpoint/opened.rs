//! A checkpoint of a training run, as far as no tensor is named.

use burn_dist_checkpoint::{Checkpoint, KeyReport, Match, Mismatch};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::StateError;
use super::parameters::Parameter;
use super::state::{MODULES, VALUES};

/// The entry of the metadata that is this crate's.
pub(super) const ENTRY: &str = "burn-dist";
/// The version of that entry.
pub(super) const STATE_VERSION: u64 = 1;

/// How a checkpoint is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Which differences between a module and the checkpoint are errors.
    pub matching: Match,
    /// Converts tensors of another type than the module's; without it they are errors.
    pub convert: bool,
    /// Verifies checksums.
    pub verify: bool,
}

/// Any difference is an error, and checksums are verified.
impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            matching: Match::Exact,
            convert: false,
            verify: true,
        }
    }
}

/// A checkpoint that is open.
pub(super) struct Opened {
    pub(super) step: u64,
    pub(super) checkpoint: Checkpoint,
    pub(super) options: LoadOptions,
}

impl Opened {
    pub(super) fn new(step: u64, checkpoint: Checkpoint) -> Result<Self, StateError> {
        let saved = Self {
            step,
            checkpoint,
            options: LoadOptions::default(),
        };
        match saved.entry().get("version").and_then(Value::as_u64) {
            Some(version) if version <= STATE_VERSION => Ok(saved),
            Some(version) => Err(StateError::Mismatch {
                name: ENTRY.into(),
                reason: format!(
                    "it has version {version}, and this program reads up to {STATE_VERSION}: update burn-dist"
                ),
            }),
            None => Err(StateError::Mismatch {
                name: ENTRY.into(),
                reason: "the metadata have no such entry: it was not saved by a `Checkpointer`"
                    .into(),
            }),
        }
    }

    /// Returns a value of the program.
    pub(super) fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T, StateError> {
        let value = self.named("value", VALUES, name)?.clone();
        serde_json::from_value(value).map_err(|error| StateError::Mismatch {
            name: name.to_string(),
            reason: error.to_string(),
        })
    }

    /// Returns the seed of random numbers, and how many streams were drawn from it.
    pub(super) fn random_state(&self) -> Result<(u64, u64), StateError> {
        let random = self.entry().get("random").cloned().unwrap_or_default();
        let number = |name: &str| random.get(name).and_then(Value::as_u64);
        let (Some(seed), Some(streams)) = (number("seed"), number("streams")) else {
            return Err(StateError::Mismatch {
                name: "random".into(),
                reason: format!("it is {random}, not a seed and a number of streams"),
            });
        };
        Ok((seed, streams))
    }

    /// Returns the paths of the parameters of a module.
    pub(super) fn paths(&self, name: &str) -> Result<Vec<&str>, StateError> {
        let saved = self.named("module", MODULES, name)?;
        let paths = saved.as_array().map_or(&[][..], Vec::as_slice);
        Ok(paths.iter().filter_map(Value::as_str).collect())
    }

    fn entry(&self) -> &Value {
        let metadata = &self.checkpoint.manifest().metadata;
        metadata.get(ENTRY).unwrap_or(&Value::Null)
    }

    /// Returns what is called so, of a kind.
    pub(super) fn named(
        &self,
        kind: &'static str,
        folder: &str,
        name: &str,
    ) -> Result<&Value, StateError> {
        let named = self.entry().get(folder).and_then(Value::as_object);
        named.and_then(|named| named.get(name)).ok_or_else(|| {
            let names: Vec<String> = named
                .into_iter()
                .flat_map(|named| named.keys())
                .map(|name| format!("`{name}`"))
                .collect();
            StateError::NoSuch {
                kind,
                name: name.to_string(),
                found: match names.is_empty() {
                    true => "none".into(),
                    false => names.join(", "),
                },
            }
        })
    }

    /// Returns the differences between a module and what is saved of it.
    pub(super) fn compare(
        &self,
        name: &str,
        parameters: &[Parameter],
        paths: &[&str],
    ) -> KeyReport {
        let manifest = self.checkpoint.manifest();
        let mut report = KeyReport::default();
        for parameter in parameters {
            let key = format!("{name}.{}", parameter.path);
            let Some(found) = manifest.tensor(&key) else {
                report.missing.push(key);
                continue;
            };
            let is_type = found.dtype() == Some(parameter.dtype) || self.options.convert;
            if found.shape != parameter.shape || !is_type {
                report.mismatched.push(Mismatch {
                    key,
                    wanted_shape: parameter.shape.clone(),
                    found_shape: found.shape.clone(),
                    wanted_dtype: parameter.dtype,
                    found_dtype: found.dtype.clone(),
                });
            }
        }
        let is_known = |path: &&&str| parameters.iter().all(|parameter| parameter.path != **path);
        let unexpected = paths.iter().filter(is_known);
        report.unexpected = unexpected.map(|path| format!("{name}.{path}")).collect();
        report
    }
}
