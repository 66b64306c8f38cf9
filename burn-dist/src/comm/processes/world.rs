//! The processes, and where ranks live.

use super::carrier::Channels;
use super::engine::{Engine, Remote};
use crate::comm::{CommError, LocalComm, LocalHub, LocalOptions};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
