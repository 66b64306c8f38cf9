//! Writing the parts of ranks to the files of a checkpoint.

use std::collections::HashMap;
use std::ops::Range;

use burn_dist_checkpoint::{
    CheckpointError, Checkpoints, Meter, Part, Save, SaveId, SavePlan, Tensor,
};
use burn_dist_front::checkpoint::threads::in_threads;

use super::StateError;
use crate::mesh::MeshShape;
use crate::record::parts::{PendingPart, Taken};

/// Threads of a process that write: more than one core keeps busy, for they wait for the disk.
const THREADS_MAX: usize = 4;

/// A tensor and its key.
pub(super) type Keyed = (String, Box<dyn Taken>);

/// Returns what is saved, sorted by key. Windows that make it end.
///
/// # Errors
/// What has stopped the mesh.
pub(super) fn describe(tensors: &[Keyed]) -> Result<Vec<Tensor>, StateError> {
    let mut described = Vec::with_capacity(tensors.len());
    for (key, tensor) in tensors {
        let place = tensor.place()?;
        let mut it = Tensor::new(key, tensor.dtype(), place.layout.as_ref().clone());
        let stage = place.stage.as_ref();
        it.stage = stage.map(|stage| stage.pipeline.coord(stage.index) as usize);
        described.push(it);
    }
    described.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(described)
}

/// Plans who writes what: each rank is a writer.
///
/// # Errors
/// Those of [`SavePlan::new`].
pub(super) fn plan(mesh: &MeshShape, tensors: Vec<Tensor>) -> Result<SavePlan, CheckpointError> {
    let writers: Vec<usize> = (0..mesh.num_ranks()).collect();
    SavePlan::new(mesh, tensors, &writers)
}

/// Asks ranks for what they write.
pub(super) fn ask(
    plan: &SavePlan,
    tensors: &[Keyed],
    ranks: Range<u32>,
) -> Vec<(usize, Vec<PendingPart>)> {
    let tensors = tensors.iter();
    let tensors: HashMap<&str, &dyn Taken> = tensors
        .map(|(key, tensor)| (key.as_str(), tensor.as_ref()))
        .collect();
    let of = |rank: u32| {
        let shares = plan.shares(rank as usize).iter();
        let parts = shares.map(|share| {
            let layout = &plan.tensor_of(share).layout;
            tensors[share.key.as_str()].part(share.rank, layout)
        });
        (rank as usize, parts.collect())
    };
    ranks.map(of).collect()
}

/// Returns a name for a save.
///
/// # Errors
/// If the system has no random bytes.
pub(super) fn new_id(checkpoints: &Checkpoints) -> Result<SaveId, CheckpointError> {
    SaveId::random().map_err(|source| CheckpointError::Io {
        action: "find a name for a save in",
        path: checkpoints.root().to_path_buf(),
        source,
    })
}

/// Writes the files of this process, on several threads if it has several.
///
/// # Errors
/// The first of any thread.
pub(super) fn write(
    save: &Save<'_>,
    plan: &SavePlan,
    writers: Vec<(usize, Vec<PendingPart>)>,
    meter: Option<&Meter>,
) -> Result<Vec<Part>, CheckpointError> {
    if let Some(meter) = meter {
        meter.expect(
            writers
                .iter()
                .map(|(writer, _)| plan.num_bytes(*writer))
                .sum(),
        );
    }
    in_threads(THREADS_MAX, writers, |(writer, pending)| {
        write_one(save, plan, writer, pending, meter)
    })
}

fn write_one(
    save: &Save<'_>,
    plan: &SavePlan,
    writer: usize,
    pending: Vec<PendingPart>,
    meter: Option<&Meter>,
) -> Result<Part, CheckpointError> {
    let mut pending = pending.into_iter();
    let mut tell = meter.map(Meter::writer);
    save.write(
        plan,
        writer,
        |share, file| {
            let part = pending.next().map(|part| part());
            let part = part.transpose().map_err(|fault| CheckpointError::Source {
                key: share.key.clone(),
                source: Box::new(fault),
            })?;
            match part {
                Some(block) => file.write(&block.as_slice()[share.bytes.clone()]),
                None => Ok(()),
            }
        },
        |progress| {
            if let Some(tell) = &mut tell {
                tell(progress);
            }
        },
    )
}
