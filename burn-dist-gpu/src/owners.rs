//! The ranks that have a GPU of their own, where several processes share the ranks out.

use burn_dist_comm::{Block, Call, CommError, Communicator, Group, Lane, Strided};
use burn_dist_mesh::DType;
use std::sync::Arc;

/// The lane of the exchange, apart from what plans use.
const LANE: Lane = Lane(u16::MAX);

/// The UUID of a GPU, which distinguishes the GPUs of all machines.
pub type Identity = [u8; 16];

/// Returns for each rank of all processes whether its GPU is nobody else's; `identities` are those of the ranks of this
/// process.
///
/// # Communication
/// An all-gather of 16 bytes per rank: all processes do this when they make the mesh.
/// # Errors
/// The errors of [`Communicator::start`].
pub fn alone(
    comms: &[Arc<dyn Communicator>],
    identities: &[Identity],
) -> Result<Vec<bool>, CommError> {
    let Some(first) = comms.first() else {
        return Ok(Vec::new());
    };
    let num_ranks = first.num_ranks();
    let group = Group::world(num_ranks)?;
    let size = size_of::<Identity>();
    let mut started = Vec::new();
    for (comm, identity) in comms.iter().zip(identities) {
        let mine = Block::from(identity.to_vec());
        let parts = Strided::flat(vec![size; num_ranks]);
        let call = Call::all_gather(&group, DType::U8, parts, mine)
            .on_lane(LANE)
            .labelled("which GPU each rank has")
            .uncounted();
        started.push(comm.start(call)?);
    }
    let mut all = None;
    for pending in started {
        all = Some(pending.wait()?);
    }
    let all = all.map(|bytes| bytes.to_vec()).unwrap_or_default();
    let all: Vec<&[u8]> = all.chunks(size).collect();
    let ranks_at = |gpu: &[u8]| all.iter().filter(|other| **other == gpu).count();
    Ok(all.iter().map(|gpu| ranks_at(gpu) == 1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist_comm::{LocalOptions, World};

    #[test]
    fn a_gpu_that_ranks_of_two_processes_share_is_nobodys_own() {
        // By process and rank: 0 and 3 share one.
        let gpus = [[7, 1], [2, 7]];
        std::thread::scope(|scope| {
            let processes: Vec<_> = World::simulated(2)
                .into_iter()
                .zip(gpus)
                .map(|(world, gpus)| {
                    scope.spawn(move || {
                        let comms = world.connect(4, LocalOptions::default()).expect("a mesh");
                        let comms = comms
                            .into_iter()
                            .map(|comm| Arc::new(comm) as Arc<dyn Communicator>);
                        let comms: Vec<_> = comms.collect();
                        alone(&comms, &gpus.map(|gpu| [gpu; 16])).expect("all are there")
                    })
                })
                .collect();
            for process in processes {
                let found = process.join().expect("no panic");
                assert_eq!(found, [false, true, true, false]);
            }
        });
    }
}
