//! The processes, and where ranks live.

#[cfg(test)]
mod tests;

use crate::processes::{Engine, LIMITS, Limits, Peer, Placement, Remote};
use crate::transport::{Channels, Transport};
use crate::{Chaos, CommError, Group, LocalComm, LocalHub, LocalOptions, StartError, Votes};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a process waits for the first word of the others.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// One of several processes that run the same program: each records it, and runs its own ranks.
///
/// Ranks are divided in order: with 2 processes, a mesh of 4 ranks has ranks 0 and 1 in process 0.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    engine: Arc<Engine>,
    peers: Arc<[Arc<Peer>]>,
    /// True if all processes are threads of this one.
    is_simulated: bool,
    /// Meshes made so far: every process makes the same ones in the same order.
    meshes: AtomicU64,
}

impl World {
    /// Returns the processes of a world that lives in this one, for tests: each is for a thread that runs the program.
    ///
    /// Their messages go through the same engine as those between real processes.
    pub fn simulated(num_processes: usize) -> Vec<Self> {
        Self::simulated_over(Channels::connect(num_processes, None))
    }

    /// Like [`World::simulated`], with messages that are delayed as the seed of `chaos` says: those of one process to
    /// another stay in order, those of several come in any.
    pub fn simulated_with(num_processes: usize, chaos: &Chaos) -> Vec<Self> {
        Self::simulated_over(Channels::connect(num_processes, Some(chaos)))
    }

    /// Returns processes that any transports connect; each is for a thread of this process.
    ///
    /// # Panics
    /// If one of them does not say who it is.
    pub fn simulated_over<T: Transport + 'static>(transports: Vec<T>) -> Vec<Self> {
        Self::simulated_within(transports, LIMITS)
    }

    fn simulated_within<T: Transport + 'static>(transports: Vec<T>, limits: Limits) -> Vec<Self> {
        let engines: Vec<_> = transports
            .into_iter()
            .map(|transport| {
                Engine::start(move || Ok(transport), limits).expect("a channel needs no setting up")
            })
            .collect();
        let worlds = engines.into_iter().map(|engine| Self::new(engine, true));
        worlds
            .map(|world| world.expect("all engines have started"))
            .collect()
    }

    /// Returns this process, connected to the others by what `start` sets up, in the thread that may go on using it.
    ///
    /// Returns when all processes have introduced themselves.
    ///
    /// # Errors
    /// What `start` says; who does not say who it is.
    pub fn over<T: Transport + 'static>(
        start: impl FnOnce() -> Result<T, StartError> + Send + 'static,
    ) -> Result<Self, StartError> {
        Self::new(Engine::start(start, LIMITS)?, false)
    }

    /// Ends the engine once everything is sent and the programs of the others end too: for the end of a program. One
    /// that still works is waited for, however long that takes. Nothing can be sent afterwards.
    ///
    /// # Errors
    /// [`CommError::Connection`] if this program ends alone, and no fault says why: another process has not
    /// answered for `patience`, or messages have failed.
    pub fn finish(&self, patience: Duration) -> Result<(), CommError> {
        self.0.engine.finish(patience)
    }

    /// Waits for the other processes to say who they are.
    fn new(engine: Engine, is_simulated: bool) -> Result<Self, StartError> {
        let peers = engine.peers(HELLO_TIMEOUT)?;
        Ok(Self(Arc::new(Inner {
            engine: Arc::new(engine),
            peers,
            is_simulated,
            meshes: AtomicU64::new(0),
        })))
    }

    /// Returns the number of this process.
    pub fn process(&self) -> usize {
        self.0.engine.process() as usize
    }

    /// Returns whether the processes are threads of this one.
    pub fn is_simulated(&self) -> bool {
        self.0.is_simulated
    }

    /// Returns how many processes there are.
    pub fn num_processes(&self) -> usize {
        self.0.peers.len()
    }

    /// Returns who the processes are, in order.
    pub fn peers(&self) -> &[Arc<Peer>] {
        &self.0.peers
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
        let process = self.0.engine.process();
        Ok(process * each..(process + 1) * each)
    }

    /// Returns what processes ask each other with; every process makes as many of them, in the same order.
    ///
    /// # Errors
    /// As [`World::connect`].
    pub fn votes(&self) -> Result<Votes, CommError> {
        self.votes_within(LocalOptions::default().timeout)
    }

    /// Like [`World::votes`], where a process waits so long for one that is alive before it calls it late.
    ///
    /// # Errors
    /// As [`World::connect`].
    pub fn votes_within(&self, timeout: Duration) -> Result<Votes, CommError> {
        let options = LocalOptions {
            timeout,
            ..LocalOptions::default()
        };
        let here = self.connect(self.num_processes(), options)?;
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
        self.connect_as(options, (0..num_ranks).map(|rank| rank / each))
    }

    /// Like [`Self::connect`], for any number of ranks: the first processes may have one more than the last, or these
    /// none.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_spread(
        &self,
        num_ranks: usize,
        options: LocalOptions,
    ) -> Result<Vec<LocalComm>, CommError> {
        let processes = self.num_processes().min(num_ranks);
        self.connect_as(
            options,
            (0..num_ranks).map(|rank| rank * processes / num_ranks),
        )
    }

    /// Returns the endpoints of the ranks that live here; `process_of` says which that are.
    fn connect_as(
        &self,
        options: LocalOptions,
        process_of: impl Iterator<Item = usize>,
    ) -> Result<Vec<LocalComm>, CommError> {
        let mesh = self.0.meshes.fetch_add(1, Ordering::Relaxed);
        let process_of: Arc<[u32]> = process_of.map(|process| process as u32).collect();
        let num_ranks = process_of.len();
        let peers = Arc::clone(&self.0.peers);
        let placement = Placement::new(mesh, self.0.engine.process(), process_of, peers);
        let remote = Remote::new(Arc::clone(&self.0.engine), placement);
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
