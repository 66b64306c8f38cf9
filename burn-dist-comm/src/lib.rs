//! Collectives between ranks: the [`Communicator`] trait, its transports, and what is recorded of them.
//!
//! A rank describes a call ([`Call`]) by its group, lane, element type, operation and input; [`Communicator::start`]
//! hands it over and returns a [`Pending`] value, which owns everything the call needs and gives the output when waited
//! for. Sizes are bytes. Inputs are shared immutable [`Block`]s of any [`Buffer`], so that a tensor's buffer takes part
//! without a copy; outputs are [`SharedBuffer`]s, of the kind that [`LocalOptions::share`] makes.
//!
//! ```
//! use burn_dist_comm::{Call, Communicator, Group, LocalHub, LocalOptions, elements};
//! use burn_dist_mesh::{DType, ReduceOp};
//!
//! let world = Group::world(2)?;
//! let ranks = LocalHub::connect(2, LocalOptions::default())?;
//! std::thread::scope(|scope| {
//!     for comm in ranks {
//!         let world = &world;
//!         scope.spawn(move || {
//!             let mine = vec![comm.rank().0 as f32 + 1.0; 3];
//!             let call = Call::all_reduce(world, DType::F32, ReduceOp::Sum, mine);
//!             let sum = comm.run(call).expect("both ranks call it");
//!             assert_eq!(sum[..], elements(vec![3.0_f32; 3])[..]);
//!         });
//!     }
//! });
//! # Ok::<(), burn_dist_comm::CommError>(())
//! ```
//!
//! | | idea |
//! | --- | --- |
//! | [`Call`], [`Collective`], [`Group`], [`Lane`] | what a rank asks for |
//! | [`LocalHub`] | ranks that are threads of one process |
//! | [`World`] | ranks in several processes, over any [`Transport`] of bytes: MPI, TCP, or channels for tests |
//! | [`Chaos`], [`Network`] | faults and links to simulate |
//! | [`CommError`] | what stops all ranks, by name |
//! | [`flight`] | the last calls of all ranks when that happened, as a file of each process |
//!
//! | feature | brings |
//! | --- | --- |
//! | `mpi` | messages between processes over MPI; needs an MPI library and libclang when it is built |
//! | `tcp` | messages between processes over TCP |
//!
//! # Order
//! Each group and lane is a sequence: the n-th call of one member meets the n-th call of the others. Different groups
//! and lanes are independent.
//!
//! # What is not here
//! Compositions (hierarchical all-reduce, bucketing) belong to the planner; device memory of GPU ranks is handed over
//! by [`Communicator::exchange`] where ranks share it, and by NCCL where each rank has a GPU of its own; the
//! communicator counts and records that too.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod block;
mod buffer;
mod call;
mod completion;
mod error;
mod execution;
pub mod flight;
mod geometry;
mod group;
mod info;
mod local;
mod process;
mod processes;
mod record;
mod start;
mod sync;
mod transport;
mod votes;
mod world;

pub use block::{Block, Buffer, SharedBuffer, downcast, elements};
pub use buffer::{Gathered, Pool, PoolBuffer, PoolMemory, Region, Share};
pub use burn_dist_mesh::collective::{
    AllToAll, Collective, Kind, Strided, chunk_sizes, member_after, member_before,
};
pub use call::{Call, Exchange};
pub use error::CommError;
pub use error::EXIT_SOFTWARE;
pub use group::{Group, Lane};
pub use info::{CallInfo, Transfer};
pub use local::{Agreed, Chaos, FlightOptions, LocalComm, LocalHub, LocalOptions, Network};
pub use process::Process;
pub use processes::{KindName, PartPrint, Peer, WindowPrint};
pub use record::{KindStats, Stats};
pub use start::{EXIT_CONFIG, EXIT_TEMPORARY, StartError};
pub use sync::lock;
#[cfg(feature = "mpi")]
pub use transport::Mpi;
pub use transport::{Channels, Destination, Matcher, Message, Transport};
#[cfg(feature = "tcp")]
pub use transport::{Connection, Opening, Sealing, Tcp};
pub use votes::Votes;
pub use world::World;

use burn_dist_mesh::Rank;
use std::any::Any;
use std::sync::Arc;

/// A value that members of one process hand to each other.
pub type Payload = Arc<dyn Any + Send + Sync>;

/// The endpoint of one rank.
///
/// A process holds one per rank that it drives. Every method may be called from several threads, as long as each lane
/// is used by one thread at a time.
pub trait Communicator: Send + Sync {
    /// The rank of this endpoint.
    fn rank(&self) -> Rank;

    /// How many ranks there are in all processes.
    fn num_ranks(&self) -> usize;

    /// Starts `call` without waiting for the other members.
    ///
    /// # Communication
    /// Every member of the group makes a matching call at the same place of its sequence; see the table at
    /// [`Collective`] for the bytes.
    /// # Errors
    /// Whatever is wrong with the call by itself, or the fault that has already stopped this communicator. Either stops
    /// all ranks.
    fn start(&self, call: Call) -> Result<Pending<SharedBuffer>, CommError>;

    /// Gives `payload` to all members and returns theirs, in the order of the group.
    ///
    /// # Errors
    /// As [`Communicator::start`], and [`CommError::NoSharedMemory`] if the ranks live in several processes.
    fn exchange(
        &self,
        exchange: Exchange,
        payload: Payload,
    ) -> Result<Pending<Arc<[Payload]>>, CommError>;

    /// Stops all ranks: every waiting and later call returns `error`, or an earlier one if there is one.
    fn abort(&self, error: CommError);

    /// The fault that has stopped the communicator, if anything has.
    fn fault(&self) -> Option<CommError>;

    /// The counters of this rank.
    fn stats(&self) -> Stats;

    /// The last calls of this rank, oldest first, finished or not.
    fn recent_calls(&self) -> Vec<Arc<CallInfo>>;

    /// Counts and records a call that another library carries out, the `sequence`-th of this rank on its group and
    /// lane; its input is not looked at. Whoever carries it out [ends](CallInfo::end) the record.
    ///
    /// # Communication
    /// None.
    /// # Errors
    /// [`CommError::NotAMember`], [`CommError::Invalid`] if the collective contradicts itself, and what has stopped
    /// this communicator.
    fn record(&self, call: Call, sequence: u64) -> Result<Arc<CallInfo>, CommError>;

    /// Returns those other members of a [recorded](Self::record) call's group that are in this process and have not
    /// recorded theirs.
    fn behind(&self, call: &CallInfo) -> Vec<Rank>;

    /// Returns what a [recorded](Self::record) call waits for in vain: a process of one of its members that has ended
    /// without a word.
    fn lost(&self, call: &Arc<CallInfo>) -> Option<CommError>;

    /// Returns whether calls of a kind on `group` take and give tensors where they lie, by [`Self::start_on_device`].
    fn is_on_device(&self, _group: &Group, _kind: Kind) -> bool {
        false
    }

    /// Starts a call whose input and output are tensors on the devices of its members; `call` itself has no input.
    ///
    /// # Communication
    /// The same as that of [`Self::start`].
    /// # Errors
    /// The errors of [`Self::start`], and [`CommError::Device`], always where calls are not
    /// [on devices](Self::is_on_device).
    fn start_on_device(
        &self,
        _call: Call,
        _tensor: Payload,
    ) -> Result<Pending<Payload>, CommError> {
        let reason =
            "this communicator takes memory of the host; this is a bug in burn-dist".into();
        Err(CommError::Device { reason })
    }

    /// Waits until devices are done with all calls that have been waited for: until the host may read outputs.
    ///
    /// # Errors
    /// The fault that stopped the communicator.
    fn land(&self) -> Result<(), CommError> {
        Ok(())
    }

    /// Ends calls on devices after a fault, which all ranks have to know of: this waits for others.
    fn end_on_device(&self) {}

    /// Leaves the groups of devices at the end of a program.
    fn close(&self) {}

    /// Starts `call` and waits for its output.
    ///
    /// # Errors
    /// As [`Communicator::start`] and [`Pending::wait`].
    fn run(&self, call: Call) -> Result<SharedBuffer, CommError> {
        self.start(call)?.wait()
    }
}

/// A started call: owns its buffers until it is waited for.
///
/// Dropping it gives up the output, but the call still takes place.
#[must_use = "the output of a call, and its errors, come from waiting for it"]
pub struct Pending<T> {
    call: Box<dyn PendingCall<T>>,
}

/// A started call, as a transport implements it.
pub trait PendingCall<T>: Send {
    /// The record of the call.
    fn info(&self) -> &Arc<CallInfo>;

    /// Returns whether waiting would return at once.
    fn is_ready(&self) -> bool;

    /// Returns whether the call goes on beside operations that this rank only queues.
    fn overlaps(&self) -> bool {
        false
    }

    /// Waits for the output.
    ///
    /// # Errors
    /// The fault that stopped the communicator.
    fn wait(self: Box<Self>) -> Result<T, CommError>;
}

impl<T> Pending<T> {
    /// Returns the handle of a transport's `call`.
    pub fn new(call: impl PendingCall<T> + 'static) -> Self {
        Self {
            call: Box::new(call),
        }
    }

    /// The record of the call: who, what and where, and after waiting, when.
    pub fn info(&self) -> &Arc<CallInfo> {
        self.call.info()
    }

    /// Returns whether waiting would return at once.
    pub fn is_ready(&self) -> bool {
        self.call.is_ready()
    }

    /// Returns whether the call goes on beside operations that this rank only queues.
    pub fn overlaps(&self) -> bool {
        self.call.overlaps()
    }

    /// Waits for the output. Members of one process may get the same [`Arc`] where their outputs are equal.
    ///
    /// # Errors
    /// The fault that stopped the communicator: a mismatch, a rank that is late, has left or has failed.
    pub fn wait(self) -> Result<T, CommError> {
        self.call.wait()
    }
}
