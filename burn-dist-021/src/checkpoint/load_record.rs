//! A record of a checkpoint, put together again.

use burn_core::record::Record;
use burn_dist_checkpoint::Checkpoint;
use serde_json::Value;

use super::StateError;
use super::parameters::Parameter;
use super::read::Reader;
use super::record::join;
use super::wants::wants;
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
    reader: &Reader<'_>,
    device: &B::Device,
) -> Result<R, StateError> {
    let wants = wants(&text, parameters, checkpoint, reader.mesh)?;
    let dims: Vec<usize> = wants.iter().map(|want| want.shape.len()).collect();
    let tensors = reader.read(wants)?.into_iter().zip(dims).collect();
    join::<B, R>(name, text, tensors, parameters, device)
}
