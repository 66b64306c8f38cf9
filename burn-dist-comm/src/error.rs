//! Errors of collectives.

use super::group::{Group, fmt_ranks};
use super::info::CallInfo;
use super::process::{Process, processes_text};
use super::start::{EXIT_CONFIG, EXIT_TEMPORARY, StartError};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The error of a collective, equal on every rank that it stops.
///
/// An error of a running communicator poisons it: the first error wins, and every waiting and later call of every rank
/// returns it.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A group without members.
    #[error("a group needs at least one rank")]
    EmptyGroup,
    /// A rank that stands twice in a group.
    #[error("rank {} stands twice in group {}: list every rank once", rank.0, ranks_text(ranks))]
    DuplicateRank {
        /// The rank.
        rank: Rank,
        /// The list with the duplicate.
        ranks: Vec<Rank>,
    },
    /// A block outside its buffer.
    #[error("bytes {}..{} do not lie in a buffer of {len} bytes", range.start, range.end)]
    OutOfBounds {
        /// The range asked for, in bytes.
        range: Range<usize>,
        /// Length of the buffer in bytes.
        len: usize,
    },
    /// A rank that the transport does not have.
    #[error("rank {} is not one of the {num_ranks} ranks of this communicator", rank.0)]
    NoSuchRank {
        /// The rank asked for.
        rank: Rank,
        /// Number of ranks there are.
        num_ranks: usize,
    },
    /// A call on a group by a rank outside it.
    #[error("rank {} called {what} on group {group}, of which it is no member", rank.0)]
    NotAMember {
        /// The caller.
        rank: Rank,
        /// The group of the call.
        group: Group,
        /// The call, without its number.
        what: String,
    },
    /// A call that contradicts itself: sizes, roots or dtype.
    #[error("{call} is not possible: {reason}")]
    Invalid {
        /// The call.
        call: Arc<CallInfo>,
        /// The mistake, and what would be right.
        reason: String,
    },
    /// A reduction that the dtype does not have.
    #[error("{call} is not possible: {op:?} is not defined for {}; {}", dtype.name(), unsupported_hint(*dtype))]
    UnsupportedReduce {
        /// The call.
        call: Arc<CallInfo>,
        /// The reduction asked for.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// Members of one group made different calls at the same place of their sequences.
    #[error(
        "{first}, but {second}: all members of a group must make the same calls in the same order"
    )]
    Mismatch {
        /// The call that came first.
        first: Arc<CallInfo>,
        /// A later one that does not match it.
        second: Arc<CallInfo>,
    },
    /// Some members did not arrive in time.
    #[error(
        "{call} gave up after {:.1} s: ranks {} have not made this call{}",
        elapsed.as_secs_f64(), ranks_text(missing), of_processes(processes)
    )]
    Timeout {
        /// The call of the rank that gave up first.
        call: Arc<CallInfo>,
        /// The ranks that have not arrived.
        missing: Vec<Rank>,
        /// Where those of them live that are in other processes.
        processes: Vec<Process>,
        /// How long that rank waited.
        elapsed: Duration,
    },
    /// All members arrived, but a part of the work was not finished in time.
    #[error("{call} gave up after {:.1} s: every member arrived, but one of them stopped in the middle of its share", elapsed.as_secs_f64())]
    Stalled {
        /// The call of the rank that gave up first.
        call: Arc<CallInfo>,
        /// How long that rank waited.
        elapsed: Duration,
    },
    /// A rank dropped its communicator while others wait for it.
    #[error(
        "{call} cannot finish: rank {} has left{}: its mesh was dropped, or its program has ended (its own output says \
         why)",
        rank.0, with_process(process)
    )]
    RankLeft {
        /// The rank that left.
        rank: Rank,
        /// The call that waits for it.
        call: Arc<CallInfo>,
        /// Where it lived, if in another process.
        process: Option<Process>,
    },
    /// A process dropped a mesh, or ended, while others wait for it.
    #[error(
        "window {window} cannot finish: {process} has left: its mesh was dropped, or its program has ended (its own \
         output says why)"
    )]
    ProcessLeft {
        /// Which.
        process: Process,
        /// The window that it has not run.
        window: u64,
    },
    /// A process ended without a word while others wait for it.
    #[error("{} cannot finish: {}", waits(call, *window), loss(process, connection))]
    ProcessLost {
        /// Which.
        process: Process,
        /// The call that waits for it, if it is one.
        call: Option<Arc<CallInfo>>,
        /// The window that waits for it, if it is one.
        window: Option<u64>,
        /// The words of the system about the connection with it, if its end was seen by that alone.
        connection: Option<Arc<str>>,
    },
    /// Some processes did not run a window in time.
    #[error(
        "window {window} gave up after {:.1} s: {} not run it: do they run the same program, are they busy elsewhere, \
         stopped, or cut off?",
        elapsed.as_secs_f64(), have_processes(missing)
    )]
    WindowTimeout {
        /// Its number.
        window: u64,
        /// The processes that have not run it.
        missing: Vec<Process>,
        /// How long this process waited.
        elapsed: Duration,
    },
    /// Processes do not run the same program.
    #[error("{reason}")]
    ProgramsDiffer {
        /// The window in which they do not.
        window: u64,
        /// How they differ, and in which processes.
        reason: String,
    },
    /// Messages between processes do not arrive any more.
    #[error("messages between processes have failed: {reason}")]
    Connection {
        /// Why.
        reason: String,
    },
    /// A fault injected by the chaos option.
    #[error("rank {} was killed at its call {at_call} by chaos seed {seed}, before: {call}", rank.0)]
    Killed {
        /// The rank that was killed.
        rank: Rank,
        /// The number of the call among all calls of that rank.
        at_call: u64,
        /// The seed that repeats it.
        seed: u64,
        /// The call that it was about to make.
        call: Arc<CallInfo>,
    },
    /// A rank stopped the others, because of an error outside of communication.
    #[error("rank {} stopped all ranks: {what} failed{}: {reason}", rank.0, in_brackets(label))]
    Aborted {
        /// The rank that stopped the others.
        rank: Rank,
        /// The operation that failed.
        what: String,
        /// Where in the model: its module path.
        label: Arc<str>,
        /// The text of the error.
        reason: String,
    },
    /// More unfinished calls than the transport keeps.
    #[error(
        "{call} is one too many: {limit} earlier calls of this group and lane still wait for other members; wait for \
         pending calls sooner"
    )]
    TooManyOpen {
        /// The call.
        call: Arc<CallInfo>,
        /// The bound.
        limit: usize,
    },
    /// A process does so much before another one follows that no more is kept.
    #[error(
        "{process} is too far ahead of others: {ahead}; do all processes make the same calls, and is one much slower?"
    )]
    TooFarAhead {
        /// Which.
        process: Process,
        /// The deed of the other process.
        ahead: String,
    },
    /// Some processes did not finish work of their own that others wait for, though they answer.
    #[error(
        "{} after {:.1} s not finished what the others wait for: does its disk answer, and is its host alive?",
        have_processes(processes), elapsed.as_secs_f64()
    )]
    Unfinished {
        /// Which.
        processes: Vec<Process>,
        /// How long this process waited.
        elapsed: Duration,
    },
    /// Bytes for other processes do not leave this one.
    #[error(
        "{call} gave up after {:.1} s: {bytes} bytes for other processes have not left this one; are they stopped, or \
         cut off?",
        elapsed.as_secs_f64()
    )]
    NotSent {
        /// The call that had to wait for that.
        call: String,
        /// How many they are.
        bytes: usize,
        /// How long it waited.
        elapsed: Duration,
    },
    /// Members in different processes made different calls at the same place of their sequences.
    #[error(
        "{}: all members of a group must make the same calls in the same order{}",
        in_order(call, other),
        of_processes(processes)
    )]
    Diverged {
        /// The call made here.
        call: Arc<CallInfo>,
        /// The one made in another process.
        other: String,
        /// The two processes, in order.
        processes: Vec<Process>,
    },
    /// Another process stopped this one.
    #[error("{process} stopped all others: {reason}")]
    Stopped {
        /// Which.
        process: Process,
        /// The text of the error there.
        reason: String,
        /// The exit code of the error there: see [`CommError::exit_code`].
        exit_code: u8,
    },
    /// Launchers that contradict each other or themselves.
    #[error(transparent)]
    ClusterEnv(Arc<dyn std::error::Error + Send + Sync>),
    /// Other processes that cannot be reached.
    #[error(
        "this is one of {processes} processes ({variable}={processes}), and cannot reach the others: {reason}"
    )]
    World {
        /// The variable that says so.
        variable: &'static str,
        /// How many there are.
        processes: usize,
        /// The reason, and a remedy.
        reason: StartError,
    },
    /// Ranks that the processes cannot share out evenly.
    #[error(
        "{num_ranks} ranks cannot be shared out evenly among {num_processes} processes: start a number of processes \
         that divides {num_ranks}, or make the mesh larger"
    )]
    Uneven {
        /// Ranks of the mesh.
        num_ranks: usize,
        /// Processes there are.
        num_processes: usize,
    },
    /// A device could not hand over, make or combine a tensor.
    #[error("{reason}")]
    Device {
        /// The words of the backend.
        reason: String,
    },
    /// A library or a driver of devices that is missing or of no use.
    #[error(transparent)]
    Library(Arc<dyn std::error::Error + Send + Sync>),
    /// A call of NCCL or of CUDA's driver failed.
    #[error("{call} failed in {function}: {reason}{}", says_more(function))]
    Gpu {
        /// The call.
        call: Arc<CallInfo>,
        /// The function of the library.
        function: &'static str,
        /// The words of the library.
        reason: String,
    },
    /// A collective between GPUs was not finished in time, though every member in this process had made the call.
    #[error(
        "{call} gave up after {:.1} s: every member in this process made the call, and their GPUs did not finish \
         it; a member in another process has not made it, or a link between GPUs is stuck",
        elapsed.as_secs_f64()
    )]
    GpuStalled {
        /// The call of the rank that gave up first.
        call: Arc<CallInfo>,
        /// How long that rank waited.
        elapsed: Duration,
    },
    /// An element type that the transport does not move.
    #[error(
        "{call} is not possible: NCCL has no elements of {}; cast to f32, f64, f16, bf16, i32, i64, u8 or bool first, \
         or let the GPUs communicate through the host (`DeviceMeshBuilder::gpu_transport(GpuTransport::Host)`)",
        dtype.name()
    )]
    UnsupportedDtype {
        /// The call.
        call: Arc<CallInfo>,
        /// The element type.
        dtype: DType,
    },
    /// The ranks do not share memory, so that they cannot exchange values of the host language.
    #[error("rank {} cannot exchange values: the ranks of this transport do not share one address space", rank.0)]
    NoSharedMemory {
        /// The caller.
        rank: Rank,
    },
}

burn_dist_mesh::debug_by_message!(CommError);

impl CommError {
    /// Returns the exit code for a program that this ends, with a meaning for schedulers (the numbers are those of
    /// BSD's `sysexits.h`):
    ///
    /// | code | meaning | a restart |
    /// | --- | --- | --- |
    /// | 65 | ranks or processes do not do the same | ends alike |
    /// | 70 | an operation failed on a rank, a call that cannot be | ends alike, unless the data are others |
    /// | 75 | a process or rank is gone, late, missing at the start, or cannot be reached | may help |
    /// | 78 | processes that cannot be set up as asked | ends alike |
    ///
    /// A process that another one stopped has the code of that one.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Mismatch { .. } | Self::Diverged { .. } | Self::ProgramsDiffer { .. } => {
                EXIT_DIFFERS
            }
            Self::Timeout { .. }
            | Self::Stalled { .. }
            | Self::GpuStalled { .. }
            | Self::RankLeft { .. }
            | Self::ProcessLeft { .. }
            | Self::ProcessLost { .. }
            | Self::WindowTimeout { .. }
            | Self::TooFarAhead { .. }
            | Self::Unfinished { .. }
            | Self::NotSent { .. }
            | Self::Connection { .. } => EXIT_TEMPORARY,
            Self::Stopped { exit_code, .. } => *exit_code,
            Self::World { reason, .. } => reason.exit_code(),
            Self::ClusterEnv(_) | Self::Uneven { .. } | Self::Library(_) => EXIT_CONFIG,
            _ => EXIT_SOFTWARE,
        }
    }
}

const EXIT_DIFFERS: u8 = 65;
/// An operation failed on a rank, or a call cannot be: see [`CommError::exit_code`].
pub const EXIT_SOFTWARE: u8 = 70;

fn in_brackets(label: &str) -> String {
    match label.is_empty() {
        true => String::new(),
        false => format!(" ({label})"),
    }
}

/// Returns the setting with which the library of a function says more, if it has one.
fn says_more(function: &str) -> &'static str {
    match function.starts_with("nccl") {
        true => " (NCCL_DEBUG=INFO makes NCCL say more)",
        false => "",
    }
}

/// `: process 1 (...)`, if there are some.
fn of_processes(processes: &[Process]) -> String {
    match processes {
        [] => String::new(),
        some => format!(": {}", processes_text(some)),
    }
}

/// ` with process 1 (...)`, if it is known.
fn with_process(process: &Option<Process>) -> String {
    process
        .as_ref()
        .map_or_else(String::new, |process| format!(" with {process}"))
}

/// `process 1 (...) has`.
fn have_processes(processes: &[Process]) -> String {
    match processes {
        [] => "other processes have".into(),
        [one] => format!("{one} has"),
        several => format!("{} have", processes_text(several)),
    }
}

/// How the end of a process was seen, in words.
fn loss(process: &Process, connection: &Option<Arc<str>>) -> String {
    const LOOK: &str = "(look at its host's kernel log, or its scheduler's)";
    match connection {
        None => format!("{process} has ended without a word: it was killed, or crashed {LOOK}"),
        Some(how) => format!(
            "the connection with {process} has ended without a word: {how}; it was killed, or crashed {LOOK}, or a \
             link between the machines was cut"
        ),
    }
}

/// The call or window that waits for a process, in words.
fn waits(call: &Option<Arc<CallInfo>>, window: Option<u64>) -> String {
    match (call, window) {
        (Some(call), _) => call.to_string(),
        (None, Some(window)) => format!("window {window}"),
        (None, None) => "the program".into(),
    }
}

/// Two calls, in an order that both processes agree on.
fn in_order(call: &CallInfo, other: &str) -> String {
    let call = call.to_string();
    let (first, second) = match call.as_str() <= other {
        true => (call.as_str(), other),
        false => (other, call.as_str()),
    };
    format!("{first}, but {second}")
}

fn ranks_text(ranks: &[Rank]) -> String {
    let mut text = String::new();
    fmt_ranks(ranks, &mut text).expect("writing to a string cannot fail");
    text
}

fn unsupported_hint(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool(_) => "booleans have Min (and) and Max (or)",
        _ => "cast to a float or integer type of at most 64 bits first",
    }
}

#[cfg(test)]
mod tests {
    use super::says_more;

    #[test]
    fn no_variable_makes_the_driver_say_more() {
        assert!(says_more("ncclAllGather").contains("NCCL_DEBUG"));
        assert_eq!(says_more("cuMemHostRegister"), "");
    }
}
