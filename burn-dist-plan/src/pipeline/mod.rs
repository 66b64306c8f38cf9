//! Pipeline schedules as data: which rank does which action when, how long that takes, and what it holds.
//!
//! A model is cut into *stages*, a batch into *microbatches*. A [`Schedule`] says in which order each rank does the
//! [`Action`]s of its stages. It is plain data with a text form, and knows nothing of operations or tensors.
//!
//! | file | idea |
//! | --- | --- |
//! | `action.rs` | forward, input gradient, weight gradient: of a stage, for a microbatch |
//! | `table.rs`, `read.rs`, `line.rs` | the order of actions of every rank, and its text form |
//! | `kind.rs`, `literature.rs` | the schedules of the literature: their names, and how each goes |
//! | `greedy.rs` | a list scheduler under a memory bound, for any times |
//! | `search.rs` | the fastest schedule within a memory bound |
//! | `validate.rs` | every action once, dependencies met, no deadlock, memory bound |
//! | `memory.rs` | what is alive on a rank |
//! | `lower.rs` | sends, receives, gathers and reductions |
//! | `clock.rs` | when every action starts and ends |
//! | `chart.rs` | that as a chart, in text and in SVG |
//!
//! A rank is a place along the pipeline axis of a mesh here.
//!
//! Not here: what a stage computes, how ranks exchange tensors, and the optimizer.

mod action;
mod chart;
mod clock;
mod error;
mod greedy;
mod kind;
mod line;
mod literature;
mod lower;
mod memory;
mod read;
mod search;
mod table;
#[cfg(test)]
mod tests;
mod validate;

pub use action::{Action, Kind};
pub use clock::{Span, StageTimes, Timeline, Times, spans_of};
pub use error::ScheduleError;
pub use kind::ScheduleKind;
pub use lower::{Lowered, Step};
pub use memory::Bytes;
pub use search::Choice;
pub(crate) use search::{Costs, choose};
pub use table::{Placement, Schedule};
pub use validate::Limits;
