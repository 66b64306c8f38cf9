//! A record of a checkpoint, put together again.

use burn_core::record::Record;
use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{Checkpoint, CheckpointError, KeyReport};
use burn_dist_plan::Role;
use serde_json::Value;

use super::StateError;
use super::parameters::Parameter;
use super::place::placement;
use super::read::{Reader, Want};
use super::record::{join, tensors_of};
use crate::parallel::MeshBackend;

/// Loads the tensors that a record's text names from the checkpoint that `reader` reads, each to where the parameter of
/// `parameters` lies that it belongs to, and puts the record together.
///
/// # Errors
/// [`StateError`].
pub(super) fn load_record<B: MeshBackend, R: Record<B>>(
    name: &str,
    text: Value,
    parameters: &[Parameter],
    checkpoint: &Checkpoint,
    reader: &Reader<'_, B>,
) -> Result<R, StateError> {
    let mut wants = Vec::new();
    for named in tensors_of(&text) {
        let entry = checkpoint.manifest().tensor(&named.key);
        let entry = entry.ok_or_else(|| {
            CheckpointError::Keys(Box::new(KeyReport {
                missing: vec![named.key.clone()],
                ..KeyReport::default()
            }))
        })?;
        let dtype = entry.dtype().ok_or_else(|| StateError::Mismatch {
            name: named.key.clone(),
            reason: format!("its type {} is unknown", entry.dtype),
        })?;
        let of = |parameter: &&Parameter| named.parameter.as_ref() == Some(&parameter.path);
        let parameter = parameters.iter().find(of);
        wants.push(Want {
            key: named.key,
            dtype,
            shape: entry.shape.clone(),
            placement: placement(&entry.shape, parameter, Role::State, reader.mesh),
            form: Form::Same,
        });
    }
    let dims: Vec<usize> = wants.iter().map(|want| want.shape.len()).collect();
    let tensors = reader.read(wants)?.into_iter().zip(dims).collect();
    join::<B, R>(name, text, tensors, parameters, reader.device)
}
