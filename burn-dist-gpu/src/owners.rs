//! The ranks that have a GPU of their own, where several processes share the ranks out.

use burn_dist_comm::{
    Block, Call, CommError, Communicator, Group, Lane, Pending, SharedBuffer, Strided,
};
use burn_dist_mesh::DType;

/// The lane of the exchange, apart from what plans use.
const LANE: Lane = Lane(u16::MAX);

/// The UUID of a GPU, which distinguishes the GPUs of all machines.
pub type Identity = [u8; 16];

/// An answer to which all ranks of all processes contribute.
#[must_use]
pub struct Asked(Pending<SharedBuffer>);

/// Asks all ranks which GPU each of them has, as `comm`'s rank, which has the GPU `identity`. Waits for nobody.
///
/// # Communication
/// An all-gather of 16 bytes per rank: all ranks of all processes do this when the mesh is made.
/// # Errors
/// The errors of [`Communicator::start`].
pub fn ask(comm: &dyn Communicator, identity: Identity) -> Result<Asked, CommError> {
    let num_ranks = comm.num_ranks();
    let group = Group::world(num_ranks)?;
    let mine = Block::from(identity.to_vec());
    let parts = Strided::flat(vec![size_of::<Identity>(); num_ranks]);
    let call = Call::all_gather(&group, DType::U8, parts, mine)
        .on_lane(LANE)
        .labelled("which GPU each rank has")
        .uncounted();
    Ok(Asked(comm.start(call)?))
}

impl Asked {
    /// Waits for all ranks, and returns for each whether its GPU is nobody else's.
    ///
    /// # Errors
    /// Those of the all-gather.
    pub fn alone(self) -> Result<Vec<bool>, CommError> {
        let all = self.0.wait()?.to_vec();
        let all: Vec<&[u8]> = all.chunks(size_of::<Identity>()).collect();
        let ranks_at = |gpu: &[u8]| all.iter().filter(|other| **other == gpu).count();
        Ok(all.iter().map(|gpu| ranks_at(gpu) == 1).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist_comm::{LocalOptions, World};

    /// The GPUs of the ranks of two processes: 0 and 3 share one.
    const GPUS: [[u8; 2]; 2] = [[7, 1], [2, 7]];

    fn asked(world: World, gpus: [u8; 2]) -> Vec<Asked> {
        let comms = world.connect(4, LocalOptions::default()).expect("a mesh");
        let ranks = comms.iter().zip(gpus);
        let asked = ranks.map(|(comm, gpu)| ask(comm, [gpu; 16]).expect("a call that fits"));
        asked.collect()
    }

    #[test]
    fn a_gpu_that_ranks_of_two_processes_share_is_nobodys_own() {
        std::thread::scope(|scope| {
            for (world, gpus) in World::simulated(2).into_iter().zip(GPUS) {
                scope.spawn(move || {
                    for asked in asked(world, gpus) {
                        let found = asked.alone().expect("all are there");
                        assert_eq!(found, [false, true, true, false]);
                    }
                });
            }
        });
    }

    /// A mesh is made under a lock of Burn's that all meshes of a program share: who asks there may wait for nobody.
    #[test]
    fn asking_waits_for_no_other_process() {
        let worlds = World::simulated(2).into_iter().zip(GPUS);
        let all: Vec<_> = worlds
            .flat_map(|(world, gpus)| asked(world, gpus))
            .collect();
        for asked in all {
            let found = asked.alone().expect("all are there");
            assert_eq!(found, [false, true, true, false]);
        }
    }
}
