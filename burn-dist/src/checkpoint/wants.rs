//! The tensors that a record takes from a checkpoint.

use std::sync::Arc;

use burn_dist_checkpoint::hf::Form;
use burn_dist_checkpoint::{Checkpoint, CheckpointError, KeyReport};
use burn_dist_plan::Role;
use serde_json::Value;

use super::StateError;
use super::parameters::Parameter;
use super::place::placement;
use super::read::Want;
use super::text::tensors_of;
use crate::layout::Layout;
use crate::mesh::MeshShape;

/// Returns the tensors that a record's text names, each to go where the parameter of `parameters` lies that it belongs
/// to. One of another shape than that goes to where it lay, if it was saved from such a mesh.
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
        let mut placement = placement(&entry.shape, parameter, Role::State, mesh);
        if placement.role == Role::Unknown && checkpoint.manifest().mesh == *mesh {
            // Its parameter does not say how it is cut; the run that goes on here does.
            let name = named.key.clone();
            let mismatch = |reason| StateError::Mismatch { name, reason };
            let layout = match Layout::parse(&entry.layout, mesh, Some(&entry.shape)) {
                Ok(layout) if layout.has_partial() => {
                    let reason = format!("{} are terms to be summed, and no values", entry.layout);
                    return Err(mismatch(reason));
                }
                Ok(layout) => layout,
                Err(error) => return Err(mismatch(error.to_string())),
            };
            placement.layout = Arc::new(layout);
        }
        wants.push(Want {
            key: named.key,
            dtype,
            shape: entry.shape.clone(),
            placement,
            form: Form::Same,
        });
    }
    Ok(wants)
}
