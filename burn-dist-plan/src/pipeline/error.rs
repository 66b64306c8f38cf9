//! Schedules that are not possible.

use crate::bytes::human_bytes;

use super::{Action, ScheduleKind};

/// A schedule that is not possible, or a text that is none.
///
/// Lines count from 1, as in the schedule's text form: the header, then rank 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A text that is no schedule.
    #[error("line {line}: `{token}` {problem}")]
    Text {
        /// The line.
        line: usize,
        /// The part of it that is wrong.
        token: String,
        /// The fault in words.
        problem: String,
    },
    /// Nothing to schedule.
    #[error(
        "a schedule needs at least one rank, one chunk per rank and one microbatch: {what} is 0"
    )]
    Empty {
        /// The name of what is zero.
        what: &'static str,
    },
    /// More stages than can be counted.
    #[error("{ranks} ranks of {chunks} chunks are too many stages")]
    TooMany {
        /// The ranks.
        ranks: u32,
        /// The stages of a rank.
        chunks: u32,
    },
    /// A schedule that does not exist for so many stages per rank.
    #[error(
        "{kind} has {needs} of the model's stages on a rank, not {chunks}: give it chunks={needs}"
    )]
    Chunks {
        /// The schedule.
        kind: ScheduleKind,
        /// The number that was asked for.
        chunks: u32,
        /// The number that it has.
        needs: u32,
    },
    /// Not one line per rank.
    #[error("a schedule of {ranks} ranks has a line for each of them, but here are {lines}")]
    Lines {
        /// The ranks.
        ranks: u32,
        /// The lines for ranks.
        lines: usize,
    },
    /// An action of a stage or microbatch that does not exist.
    #[error(
        "line {line}: there is no {action}: stages are 0 to {stage_last}, microbatches 0 to {microbatch_last}"
    )]
    Unknown {
        /// The action.
        action: Action,
        /// Its line.
        line: usize,
        /// The last stage.
        stage_last: u32,
        /// The last microbatch.
        microbatch_last: u32,
    },
    /// An action on a rank that does not have its stage.
    #[error("line {line}: {action} belongs to rank {owner}, on line {}: stage {} is there", .owner + 2, .action.stage)]
    Elsewhere {
        /// The action.
        action: Action,
        /// Its line.
        line: usize,
        /// The rank of its stage.
        owner: u32,
    },
    /// An action that stands twice.
    #[error("line {line}: {action} is there twice")]
    Doubled {
        /// The action.
        action: Action,
        /// Its line.
        line: usize,
    },
    /// A backward that is whole and split.
    #[error("line {line}: {action} and {other} both compute the same gradient: keep one of them")]
    Both {
        /// The action.
        action: Action,
        /// The action beside it.
        other: Action,
        /// Their line.
        line: usize,
    },
    /// An action that no line has.
    #[error("line {line}: {action} is missing")]
    Missing {
        /// The action.
        action: Action,
        /// The line where it should be.
        line: usize,
    },
    /// An action before another of the same rank that it needs.
    #[error("line {line}: {action} comes before {needs}, which it needs")]
    Before {
        /// The action.
        action: Action,
        /// The action that it needs.
        needs: Action,
        /// Their line.
        line: usize,
    },
    /// Ranks that wait for each other.
    #[error("deadlock{}: {waits}", room(*.buffers))]
    Deadlock {
        /// The step that each of the waiting ranks waits at.
        waits: String,
        /// How many messages may be in flight from one rank to another; `u32::MAX` if there is no bound.
        buffers: u32,
    },
    /// More memory than allowed.
    #[error(
        "line {line}: from {action} on, rank {rank} holds {}, and {} are allowed: raise the bound, use more \
         microbatches of fewer rows, or recompute activations", human_bytes(*.held), human_bytes(*.limit)
    )]
    Memory {
        /// The action.
        action: Action,
        /// Its rank.
        rank: u32,
        /// Its line.
        line: usize,
        /// The bytes that it holds then.
        held: u64,
        /// The bytes that it may hold.
        limit: u64,
    },
    /// No schedule fits into the memory bound.
    #[error(
        "no schedule of {ranks} ranks, {chunks} stages each, fits into {} per rank; the smallest ({name}) needs {}: \
         raise the bound to that, use microbatches of fewer rows, or recompute activations", human_bytes(*.limit),
        human_bytes(*.least)
    )]
    NoneFits {
        /// The ranks.
        ranks: u32,
        /// The stages of a rank.
        chunks: u32,
        /// The bytes that a rank may hold.
        limit: u64,
        /// The bytes that the fullest rank of the smallest schedule holds.
        least: u64,
        /// The name of that schedule.
        name: String,
    },
    /// Times of another number of stages.
    #[error(
        "times of {stages} stages and {transfers} transfers between them do not fit a schedule of {expected} stages: \
         give one of each stage, and one of each stage but the last"
    )]
    Times {
        /// The stages that times are known of.
        stages: usize,
        /// The transfers that times are known of.
        transfers: usize,
        /// The stages of the schedule.
        expected: u32,
    },
}

burn_dist_mesh::debug_by_message!(ScheduleError);

fn room(buffers: u32) -> String {
    match buffers {
        u32::MAX => String::new(),
        buffers => format!(" (buffers: {buffers} from one rank to another)"),
    }
}
