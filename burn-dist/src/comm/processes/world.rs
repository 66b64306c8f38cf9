//! The processes, and where ranks live.

use super::carrier::Channels;
use super::engine::Engine;
use super::remote::Remote;
use crate::comm::{Block, Call, CommError, Communicator, Group, LocalComm, LocalHub, LocalOptions};
use crate::layout::ReduceOp;
use burn_std::{Bytes, DType};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Variables in which launchers say how many processes they have started: Open MPI's, MPICH's and its relatives', Slurm's.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// Returns how many processes the launcher has started, if more than one, and which variable says so.
fn launched() -> Option<(&'static str, usize)> {
    let size = |variable: &&'static str| {
        let size = std::env::var(variable).ok()?.trim().parse().ok()?;
        (size > 1).then_some((*variable, size))
    };
    SIZES.iter().find_map(size)
}

/// One of several processes that run the same program: each records it, and runs its own ranks.
///
/// Ranks are divided in order: with 2 processes, a mesh of 4 ranks has ranks 0 and 1 in process 0.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    engine: Engine,
    process: u32,
    num_processes: u32,
    /// Meshes made so far: every process makes the same ones in the same order.
    meshes: AtomicU64,
}

impl World {
    /// Returns the processes of a world that lives in this one, for tests: each is for a thread that runs the program.
    ///
    /// Their messages go through the same engine as those between real processes.
    pub fn simulated(num_processes: usize) -> Vec<Self> {
        let carriers = Channels::connect(num_processes);
        carriers
            .into_iter()
            .enumerate()
            .map(|(process, carrier)| {
                let engine = Engine::start(move || Ok::<_, String>(carrier))
                    .expect("a channel needs no setting up");
                Self::new(engine, process, num_processes)
            })
            .collect()
    }

    /// Returns the processes that this one was started with, by `mpirun` or another launcher; `None` if it was started alone.
    ///
    /// The first call sets MPI up; it is finalised when the program ends.
    ///
    /// # Errors
    /// [`CommError::World`] if there are other processes and this one cannot reach them.
    pub fn of_launcher() -> Result<Option<Self>, CommError> {
        static WORLD: OnceLock<Result<Option<World>, CommError>> = OnceLock::new();
        WORLD
            .get_or_init(|| match launched() {
                None => Ok(None),
                Some((variable, processes)) => match Self::launched_by_mpi() {
                    Ok(world) => Ok(Some(world)),
                    Err(reason) => Err(CommError::World {
                        variable,
                        processes,
                        reason,
                    }),
                },
            })
            .clone()
    }

    #[cfg(not(feature = "mpi"))]
    fn launched_by_mpi() -> Result<Self, String> {
        Err("this program was built without MPI: turn burn-dist's feature `mpi` on, or start it alone".into())
    }

    #[cfg(feature = "mpi")]
    fn launched_by_mpi() -> Result<Self, String> {
        /// How long the end of the program waits for the others to take what was sent to them.
        const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
        static ENDING: OnceLock<World> = OnceLock::new();
        extern "C" fn end() {
            if let Some(world) = ENDING.get() {
                world.0.engine.finish(PATIENCE);
            }
        }
        let (place, placed) = std::sync::mpsc::channel();
        let engine = Engine::start(move || {
            super::mpi::connect().map(|(carrier, process, processes)| {
                let _ = place.send((process, processes));
                carrier
            })
        })?;
        let (process, processes) = placed.recv().map_err(|error| error.to_string())?;
        let world = ENDING.get_or_init(|| Self::new(engine, process, processes));
        // SAFETY: the function touches nothing that ends before it: a static, and a thread that waits for it.
        unsafe { libc::atexit(end) };
        Ok(world.clone())
    }

    fn new(engine: Engine, process: usize, num_processes: usize) -> Self {
        Self(Arc::new(Inner {
            engine,
            process: process as u32,
            num_processes: num_processes as u32,
            meshes: AtomicU64::new(0),
        }))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Returns the number of this process.
    pub fn process(&self) -> usize {
        self.0.process as usize
    }

    /// Returns how many processes there are.
    pub fn num_processes(&self) -> usize {
        self.0.num_processes as usize
    }

    /// Returns those of `num_ranks` ranks that live here.
    ///
    /// # Errors
    /// [`CommError::Uneven`] if the processes cannot have equally many ranks.
    pub fn ranks(&self, num_ranks: usize) -> Result<Range<u32>, CommError> {
        let processes = self.num_processes();
        if num_ranks == 0 || !num_ranks.is_multiple_of(processes) {
            return Err(CommError::Uneven {
                num_ranks,
                num_processes: processes,
            });
        }
        let each = (num_ranks / processes) as u32;
        Ok(self.0.process * each..(self.0.process + 1) * each)
    }

    /// Returns what processes ask each other with; every process makes as many of them, in the same order.
    ///
    /// # Errors
    /// As [`World::connect`].
    pub fn votes(&self) -> Result<Votes, CommError> {
        let here = self.connect(self.num_processes(), LocalOptions::default())?;
        let group = Group::world(self.num_processes())?;
        let here = here.into_iter().next().ok_or(CommError::EmptyGroup)?;
        Ok(Votes { here, group })
    }

    /// Returns the endpoints of the ranks that live here, of `num_ranks` in all processes.
    ///
    /// Every process makes the same calls in the same order.
    ///
    /// # Errors
    /// [`CommError::Uneven`] if the processes cannot have equally many ranks.
    pub fn connect(
        &self,
        num_ranks: usize,
        options: LocalOptions,
    ) -> Result<Vec<LocalComm>, CommError> {
        let each = self.ranks(num_ranks)?.len();
        let remote = Remote::new(
            self,
            self.0.meshes.fetch_add(1, Ordering::Relaxed),
            (0..num_ranks).map(|rank| (rank / each) as u32).collect(),
        );
        LocalHub::connect_part(num_ranks, options, Some(remote))
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for World {}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {}", self.process(), self.num_processes())
    }
}

/// Questions that all processes answer alike, whatever each of them sees: whether to stop, say, on a signal that reaches them at different steps.
///
/// ```
/// use burn_dist::comm::World;
///
/// let worlds = World::simulated(2);
/// std::thread::scope(|scope| {
///     for world in &worlds {
///         scope.spawn(move || {
///             let votes = world.votes()?;
///             assert!(votes.any(world.process() == 1)?);
///             assert!(!votes.any(false)?);
///             Ok::<(), burn_dist::comm::CommError>(())
///         });
///     }
/// });
/// ```
pub struct Votes {
    here: LocalComm,
    group: Group,
}

impl Votes {
    /// Returns whether `here` is true in any process.
    ///
    /// # Communication
    /// Waits for the others; one byte.
    /// # Errors
    /// If one of them is late or has left.
    pub fn any(&self, here: bool) -> Result<bool, CommError> {
        let vote = Block::from(Bytes::from_elems(vec![u8::from(here)]));
        let call = Call::all_reduce(&self.group, DType::U8, ReduceOp::Max, vote);
        Ok(self.here.run(call.labelled("a vote of processes"))?[0] != 0)
    }
}

impl fmt::Debug for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "votes of {} processes", self.group.len())
    }
}
