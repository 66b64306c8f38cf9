//! The processes, and where ranks live.

use super::carrier::{Carrier, Channels};
use super::engine::Engine;
use super::peers::Peer;
use super::remote::Remote;
use crate::{
    Block, Call, Chaos, CommError, Communicator, Group, LocalComm, LocalHub, LocalOptions, Strided,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a process waits for the first word of the others.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// The most that a process hands in at once: TCP carries bodies of at most a MiB.
const GATHERED_BYTES_MAX: usize = 512 << 10;

/// One of several processes that run the same program: each records it, and runs its own ranks.
///
/// Ranks are divided in order: with 2 processes, a mesh of 4 ranks has ranks 0 and 1 in process 0.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    engine: Engine,
    peers: Arc<[Arc<Peer>]>,
    /// Whether all processes are threads of this one.
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

    /// As [`World::simulated`], with messages that are delayed as the seed of `chaos` says: those of one process to
    /// another stay in order, those of several come in any.
    pub fn simulated_with(num_processes: usize, chaos: &Chaos) -> Vec<Self> {
        Self::simulated_over(Channels::connect(num_processes, Some(chaos)))
    }

    /// Returns the processes of any carriers; each is for a thread of this process.
    ///
    /// # Panics
    /// If one of them does not say who it is.
    pub fn simulated_over<C: Carrier + 'static>(carriers: Vec<C>) -> Vec<Self> {
        let engines: Vec<_> = carriers
            .into_iter()
            .map(|carrier| {
                Engine::start(move || Ok::<_, String>(carrier))
                    .expect("a channel needs no setting up")
            })
            .collect();
        let worlds = engines.into_iter().map(|engine| Self::new(engine, true));
        worlds
            .map(|world| world.expect("all engines have started"))
            .collect()
    }

    /// Returns this process, connected to the others by what `start` sets up, in the thread that may go on using it.
    ///
    /// Returns when all processes have said who they are.
    ///
    /// # Errors
    /// What `start` says; who does not say who it is.
    pub fn over<C: Carrier + 'static>(
        start: impl FnOnce() -> Result<C, String> + Send + 'static,
    ) -> Result<Self, String> {
        Self::new(Engine::start(start)?, false)
    }

    /// Ends the traffic once everything is sent and the programs of the others end too, or after `patience`: for the
    /// end of a program. Nothing can be sent afterwards.
    pub fn finish(&self, patience: Duration) {
        self.0.engine.finish(patience);
    }

    /// Waits for the other processes to say who they are.
    pub(super) fn new(engine: Engine, is_simulated: bool) -> Result<Self, String> {
        let peers = engine.peers().wait(HELLO_TIMEOUT)?;
        Ok(Self(Arc::new(Inner {
            engine,
            peers,
            is_simulated,
            meshes: AtomicU64::new(0),
        })))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Returns the number of this process.
    pub fn process(&self) -> usize {
        self.0.engine.process() as usize
    }

    /// Whether the processes are threads of this one.
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
        self.connect_as(options, (0..num_ranks).map(|rank| rank / each))
    }

    /// As [`Self::connect`], for any number of ranks: the first processes may have one more than the last, or these
    /// none.
    #[cfg(all(test, feature = "mpi"))]
    pub(crate) fn connect_spread(
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
        let remote = Remote::new(self, mesh, process_of);
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

/// What all processes decide or know alike, whatever each of them sees: whether to stop, say, on a signal that reaches
/// them at different steps.
///
/// ```
/// use burn_dist_comm::World;
///
/// let worlds = World::simulated(2);
/// std::thread::scope(|scope| {
///     for world in &worlds {
///         scope.spawn(move || {
///             let votes = world.votes()?;
///             assert!(votes.any(world.process() == 1)?);
///             assert!(!votes.any(false)?);
///             let all = votes.gather(format!("process {}", world.process()).as_bytes())?;
///             assert_eq!(all, [b"process 0", b"process 1"]);
///             Ok::<(), burn_dist_comm::CommError>(())
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
        let vote = Block::from(vec![u8::from(here)]);
        let call = Call::all_reduce(&self.group, DType::U8, ReduceOp::Max, vote);
        Ok(self.here.run(call.labelled("a vote of processes"))?[0] != 0)
    }

    /// Returns what every process says, in order: reports of their ranks, say. The texts may differ in length, and be
    /// of any.
    ///
    /// # Communication
    /// Waits for the others; eight bytes of each, and then what they say, at most 512 KiB of each at a time.
    /// # Errors
    /// If one of them is late or has left.
    pub fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let gather = |sizes: Vec<usize>, mine: &[u8], what: &'static str| {
            let mine = Block::from(mine.to_vec());
            let call = Call::all_gather(&self.group, DType::U8, Strided::flat(sizes), mine);
            self.here.run(call.labelled(what))
        };
        let len = (mine.len() as u64).to_le_bytes();
        let lens = gather(
            vec![8; self.group.len()],
            &len,
            "the lengths of what processes say",
        )?;
        let lens: Vec<usize> = lens
            .chunks_exact(8)
            .map(|len| u64::from_le_bytes(len.try_into().expect("8 bytes")) as usize)
            .collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let mut texts: Vec<_> = lens.iter().map(|len| Vec::with_capacity(*len)).collect();
        for start in (0..longest).step_by(GATHERED_BYTES_MAX) {
            let part = |len: usize| start.min(len)..len.min(start + GATHERED_BYTES_MAX);
            let sizes: Vec<usize> = lens.iter().map(|len| part(*len).len()).collect();
            let joined = gather(sizes.clone(), &mine[part(mine.len())], "what processes say")?;
            let mut rest = &joined[..];
            for (text, size) in texts.iter_mut().zip(sizes) {
                let (part, after) = rest.split_at(size);
                text.extend_from_slice(part);
                rest = after;
            }
        }
        Ok(texts)
    }
}

impl fmt::Debug for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "votes of {} processes", self.group.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::carrier::{Parcel, Placing};
    use std::sync::atomic::AtomicUsize;

    /// Channels that note the longest body.
    struct Measured {
        channels: Channels,
        longest: Arc<AtomicUsize>,
    }

    impl Carrier for Measured {
        fn is_for_all_threads(&self) -> bool {
            self.channels.is_for_all_threads()
        }

        fn send(&mut self, parcel: Parcel) {
            self.longest.fetch_max(parcel.body.len(), Ordering::Relaxed);
            self.channels.send(parcel);
        }

        fn receive(&mut self, placing: Placing) -> Result<Option<Parcel>, String> {
            self.channels.receive(placing)
        }

        fn is_sending(&mut self) -> bool {
            self.channels.is_sending()
        }

        fn is_receiving(&self) -> bool {
            self.channels.is_receiving()
        }

        fn process(&self) -> u32 {
            self.channels.process()
        }

        fn num_processes(&self) -> usize {
            self.channels.num_processes()
        }
    }

    #[test]
    fn texts_of_any_length_are_gathered_in_parts() {
        let longest = Arc::<AtomicUsize>::default();
        let carriers = Channels::connect(3, None).into_iter().map(|channels| {
            let longest = Arc::clone(&longest);
            Measured { channels, longest }
        });
        let worlds = World::simulated_over(carriers.collect());
        let lens = [3 * GATHERED_BYTES_MAX + 5, 0, GATHERED_BYTES_MAX];
        let text = |process: usize| -> Vec<u8> {
            let byte = |at: usize| (at * 7 + (at >> 16) + process) as u8;
            (0..lens[process]).map(byte).collect()
        };
        let expected: Vec<Vec<u8>> = (0..3).map(text).collect();
        std::thread::scope(|scope| {
            for world in &worlds {
                let expected = &expected;
                scope.spawn(move || {
                    let votes = world.votes().unwrap();
                    let all = votes.gather(&expected[world.process()]).unwrap();
                    assert!(all == *expected, "process {}", world.process());
                    let nothing = votes.gather(&[]).unwrap();
                    assert!(nothing.len() == 3 && nothing.iter().all(Vec::is_empty));
                });
            }
        });
        let longest = longest.load(Ordering::Relaxed);
        assert!(
            (1..=GATHERED_BYTES_MAX).contains(&longest),
            "{longest} bytes"
        );
    }
}
