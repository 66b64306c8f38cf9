//! Why a run does not begin, or ends.

use std::path::PathBuf;

use thiserror::Error;

use super::report::bytes_text;
use crate::checkpoint::StateError;

/// More than fits.
#[derive(Error)]
#[error(
    "this run needs about {} on {machine}, and {} {left_of}: {count} rank{} there hold{} up to {} of tensors{}{}, and \
     {} \
     themselves; use {remedies}; --force runs it all the same",
    bytes_text(*needed), bytes_text(*left), if *count == 1 { "" } else { "s" },
    if *count == 1 { "s" } else { "" }, bytes_text(*each), if *count == 1 { "" } else { " each" }, at(cause),
    bytes_text(*overhead)
)]
pub struct TooLarge {
    pub(super) machine: Box<str>,
    pub(super) needed: u64,
    pub(super) left: u64,
    pub(super) left_of: Box<str>,
    pub(super) count: usize,
    pub(super) each: u64,
    pub(super) cause: String,
    pub(super) overhead: u64,
    pub(super) remedies: &'static str,
}

burn_dist_mesh::debug_by_message!(TooLarge);

fn at(cause: &str) -> String {
    match cause {
        "" => String::new(),
        cause => format!(" (at {cause})"),
    }
}

/// Fewer rows than ranks that take rows of their own.
#[derive(Error)]
#[error(
    "a microbatch has {rows} row(s), too few to split over the {ranks} ranks of {mesh} that take rows of their own: each \
     would compute all of them, {:.1} % of the work more than once; give --batch {} at least, or dp and fsdp {rows} ranks \
     together at most; --repeat-rows runs it all the same",
    100.0 * (1.0 - 1.0 / *ranks as f64), ranks * accumulate
)]
pub struct TooFewRows {
    /// Rows of the microbatch.
    pub rows: usize,
    /// Along the axes that split rows, together.
    pub ranks: usize,
    /// Text form of the mesh.
    pub mesh: String,
    /// Microbatches of a step.
    pub accumulate: usize,
}

burn_dist_mesh::debug_by_message!(TooFewRows);

/// A step that a device has too little memory for.
#[derive(Error)]
#[error(
    "this does not run on {device}: the fullest rank holds {} (at {cause}), of the {} that a device has {} is reserved; \
     use more ranks along fsdp or tp, a smaller --batch or --seq, --accumulate, or --activation-checkpoint full",
    bytes_text(*held), bytes_text(*has), bytes_text(*reserved)
)]
pub struct Unfit {
    pub(super) device: String,
    pub(super) held: u64,
    pub(super) cause: String,
    pub(super) has: u64,
    pub(super) reserved: u64,
}

burn_dist_mesh::debug_by_message!(Unfit);

/// An error of another process.
#[derive(Error)]
#[error("process {process} could not {what}: {reason}")]
pub struct Elsewhere {
    pub(super) process: usize,
    pub(super) what: String,
    pub(super) reason: String,
    /// The code that it exits with.
    pub exit_code: u8,
}

burn_dist_mesh::debug_by_message!(Elsewhere);

/// A checkpoint that was not saved; those before it are whole.
#[derive(Error)]
#[error("cannot save the checkpoint of step {step} in {}: {source}", root.display())]
pub struct SaveFailed {
    pub(super) root: PathBuf,
    pub(super) step: u64,
    pub(super) source: StateError,
}

burn_dist_mesh::debug_by_message!(SaveFailed);
