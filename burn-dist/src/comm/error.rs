//! What can go wrong in a collective.

use super::group::{Group, fmt_ranks};
use super::info::CallInfo;
use crate::layout::ReduceOp;
use crate::mesh::Rank;
use burn_std::DType;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The error of a collective, equal on every rank that it stops.
///
/// An error of a running communicator poisons it: the first error wins, and every waiting and later call of every rank returns it.
#[derive(Clone, Debug, thiserror::Error)]
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
        /// The list that was given.
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
        /// What is wrong, and what would be right.
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
        "{call} gave up after {:.1} s: ranks {} have not made this call (the last thing each did is in its flight record)",
        elapsed.as_secs_f64(), ranks_text(missing)
    )]
    Timeout {
        /// The call of the rank that gave up first.
        call: Arc<CallInfo>,
        /// Who has not arrived.
        missing: Vec<Rank>,
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
    #[error("{call} cannot finish: rank {} has left (its communicator was dropped)", rank.0)]
    RankLeft {
        /// Who left.
        rank: Rank,
        /// The call that waits for it.
        call: Arc<CallInfo>,
    },
    /// A fault injected by the chaos option.
    #[error("rank {} was killed at its call {at_call} by chaos seed {seed}, before: {call}", rank.0)]
    Killed {
        /// Who was killed.
        rank: Rank,
        /// The number of the call among all calls of that rank.
        at_call: u64,
        /// The seed that repeats it.
        seed: u64,
        /// The call that it was about to make.
        call: Arc<CallInfo>,
    },
    /// A rank stopped the others, because of an error outside of communication.
    #[error("rank {} stopped all ranks: {what} failed ({label}): {reason}", rank.0)]
    Aborted {
        /// Who stopped.
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
        "{call} is one too many: {limit} earlier calls of this group and lane still wait for other members; wait for pending calls sooner"
    )]
    TooManyOpen {
        /// The call.
        call: Arc<CallInfo>,
        /// The bound.
        limit: usize,
    },
    /// Members in different processes made different calls at the same place of their sequences.
    #[error(
        "{}: all members of a group must make the same calls in the same order",
        in_order(call, other)
    )]
    Diverged {
        /// The call made here.
        call: Arc<CallInfo>,
        /// The one made in another process.
        other: String,
    },
    /// Ranks in another process stopped these.
    #[error("{reason}")]
    Stopped {
        /// Which process; `None` if messages between processes have failed.
        process: Option<u32>,
        /// The text of the error there.
        reason: String,
    },
    /// Other processes that cannot be reached.
    #[error(
        "this is one of {processes} processes ({variable}={processes}), and cannot reach the others: {reason}"
    )]
    World {
        /// The variable that says so.
        variable: &'static str,
        /// How many there are.
        processes: usize,
        /// Why not, and the way out.
        reason: String,
    },
    /// Ranks that the processes cannot share out evenly.
    #[error(
        "{num_ranks} ranks cannot be shared out evenly among {num_processes} processes: start a number of processes that divides {num_ranks}, or make the mesh larger"
    )]
    Uneven {
        /// Ranks of the mesh.
        num_ranks: usize,
        /// Processes there are.
        num_processes: usize,
    },
    /// The ranks do not share memory, so that they cannot exchange values of the host language.
    #[error("rank {} cannot exchange values: the ranks of this transport do not share one address space", rank.0)]
    NoSharedMemory {
        /// The caller.
        rank: Rank,
    },
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
