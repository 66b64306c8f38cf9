//! A checkpoint in other pieces.

use super::stream::Stream;
use crate::error::CheckpointError;
use crate::format::SaveId;
use crate::load::{Checkpoint, KeyReport};
use crate::save::{Checkpoints, SavePlan};
use std::path::PathBuf;

/// Saves all of a checkpoint, its metadata included, in the pieces of `plan`.
///
/// # Errors
/// [`CheckpointError::Keys`] if the plan is not for the tensors of the checkpoint; [`CheckpointError::Taken`] if
/// another program saves to the directory; those of reading and of saving.
pub fn reshard(
    from: &Checkpoint,
    to: &Checkpoints,
    step: u64,
    save_id: SaveId,
    plan: &SavePlan,
) -> Result<PathBuf, CheckpointError> {
    let manifest = from.manifest();
    let wanted = plan.tensors().iter().map(|tensor| {
        let shape = tensor.layout.shape();
        (tensor.key.as_str(), tensor.dtype, shape, false)
    });
    let report = KeyReport::new(manifest, wanted);
    if !report.is_empty() {
        return Err(CheckpointError::Keys(Box::new(report)));
    }
    to.lock()?;
    let save = to.save(step, save_id)?;
    let mut stream = Stream::new(from);
    let mut write = |writer| {
        save.write(
            plan,
            writer,
            |share, file| match manifest.tensor(&share.key) {
                Some(tensor) => stream.read(tensor, &share.region, |bytes| file.write(bytes)),
                None => unreachable!("the report has no missing tensor"),
            },
            |_| {},
        )
    };
    let parts: Result<Vec<_>, _> = (0..plan.num_writers()).map(&mut write).collect();
    let parts = parts.inspect_err(|_| save.abandon())?;
    save.commit(plan, parts, manifest.metadata.clone())
}
