//! The fields of a flight record. One JSON object; every number is decimal, every time in microseconds since 1970 by
//! the clock of its host.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The knowledge of one process when a mesh stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// [`FlightRecord::FORMAT`].
    pub format: String,
    /// [`FlightRecord::VERSION`].
    pub version: u32,
    /// Version of burn-dist that wrote it.
    pub crate_version: String,
    /// A random number of the run, in hexadecimal digits, which all processes have from their rendezvous; empty if they
    /// have none.
    #[serde(default)]
    pub run: String,
    /// Text form of the mesh.
    pub mesh: String,
    /// Which of the meshes of the program, counted alike by all processes.
    pub mesh_number: u64,
    /// Which process wrote it.
    pub process: u32,
    /// Host and process id of every process, in order.
    pub processes: Vec<PeerRecord>,
    /// The process of every rank.
    pub process_of: Vec<u32>,
    /// When it was written.
    pub written_us: u64,
    /// The fault that stopped the process.
    pub fault: FaultRecord,
    /// The last window that the process handed to its ranks, if it ran one.
    pub window: Option<u64>,
    /// Its ranks.
    pub ranks: Vec<RankRecord>,
}

/// Where a process lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Name of the host.
    pub host: String,
    /// Process id there.
    pub pid: u32,
}

/// A fault that stopped a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The whole text.
    pub text: String,
    /// The rank that it is about: that failed, gave up, or left.
    pub rank: Option<u32>,
    /// The process that it is about: that notified this one, was lost, or left.
    pub process: Option<u32>,
    /// The window that it is about.
    pub window: Option<u64>,
    /// The call that it is about.
    pub call: Option<CallRecord>,
    /// The call that contradicts it, as text.
    pub other_call: Option<String>,
    /// Ranks that were waited for.
    pub missing_ranks: Vec<u32>,
    /// Processes that were waited for.
    pub missing_processes: Vec<u32>,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// An operation failed on a rank, or panicked.
    Operation,
    /// A window could not be planned, or the mesh was used wrongly.
    Program,
    /// A call that contradicts itself, or that the transport does not have.
    Invalid,
    /// Ranks made different calls at the same place.
    Mismatch,
    /// Processes recorded different windows.
    ProgramsDiffer,
    /// Ranks did not make a call in time.
    Timeout,
    /// All made a call, and one of them did not finish its share in time.
    Stalled,
    /// Processes did not run a window in time.
    WindowTimeout,
    /// A rank left while others waited for it.
    Left,
    /// A process ended without a word.
    Lost,
    /// Messages between processes failed.
    Connection,
    /// A rank was killed by an injected fault.
    Injected,
    /// Another process notified this one.
    #[serde(rename = "told")]
    Relayed,
    /// Something else.
    #[serde(other)]
    Other,
}

/// The last deeds of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Which.
    pub rank: u32,
    /// The last window that it began, if it did.
    pub window: Option<u64>,
    /// How many calls it has made.
    pub num_calls: u64,
    /// The last of them, oldest first.
    pub calls: Vec<CallRecord>,
}

/// A call of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The rank that made it.
    pub rank: u32,
    /// `all_gather`, `all_reduce`, ...
    pub kind: String,
    /// All of what it does, in words.
    pub what: String,
    /// Type of its elements; empty for an exchange of values.
    pub dtype: String,
    /// Members of the group, in its order.
    pub group: Vec<u32>,
    /// Lane of the group.
    pub lane: u16,
    /// True if it is half of a transfer between two, which are counted apart from the collectives of the same group.
    pub is_transfer: bool,
    /// Its number on that group and lane, from 0.
    pub sequence: u64,
    /// Module path; empty if none is known.
    pub module: String,
    /// Bytes that the rank receives.
    pub bytes: u64,
    /// When it was made.
    pub started_us: u64,
    /// How long it took; `None` if it was not finished, or never waited for.
    pub elapsed_us: Option<u64>,
    /// True if nobody was missing any more.
    pub arrived: bool,
    /// Ranks whose call was missing.
    pub awaited: Vec<u32>,
}

impl FlightRecord {
    /// The name of the format, at the start of every record.
    pub const FORMAT: &str = "burn-dist flight record";
    /// The version that this crate writes, and the newest that it reads.
    pub const VERSION: u32 = 1;
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            group,
            lane,
            sequence,
            module,
            ..
        } = self;
        write!(f, "{what} (call {sequence} on group {group:?} lane {lane}")?;
        match module.is_empty() {
            true => write!(f, ")"),
            false => write!(f, ", {module})"),
        }
    }
}
