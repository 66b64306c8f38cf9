//! The tensors that a record takes from a checkpoint.

use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{Checkpoint, CheckpointError, KeyReport};
use burn_dist_plan::Role;
use serde_json::Value;

use super::StateError;
use super::parameters::Parameter;
use super::place::placement;
use super::read::Want;
use super::text::tensors_of;
use crate::mesh::MeshShape;

/// Returns the tensors that a record's text names, each to go where the parameter of `parameters` lies that it belongs
/// to.
///
/// # Errors
/// [`StateError`], if the checkpoint does not have one.
pub(super) fn wants(
    text: &Value,
    parameters: &[Parameter],
    checkpoint: &Checkpoint,
    mesh: &MeshShape,
) -> Result<Vec<Want>, StateError> {
    let mut wants = Vec::new();
    for named in tensors_of(text) {
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
            placement: placement(&entry.shape, parameter, Role::State, mesh),
            form: Form::Same,
        });
    }
    Ok(wants)
}
