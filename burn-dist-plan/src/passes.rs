//! The passes of the planner, in one table. Each is a file or folder of its name.

pub(crate) mod async_tp;
pub(crate) mod checkpoint;
pub(crate) mod float8;
mod hierarchy;
mod layers;
mod lifetimes;
pub(crate) mod lower;
mod offload;
mod precision;
mod propagate;
pub(crate) mod redundancy;
pub(crate) mod regions;
mod report;
pub(crate) mod rewriting;
mod schedule;
pub(crate) mod staging;
mod state;

use crate::error::PlanError;
use crate::ir::Op;

pub(crate) use report::Report;
pub(crate) use state::{Context, State};

/// The part of a plan that a pass works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// All of the window at once.
    Window,
    /// Where a program is split into stages, that of one coordinate after the other.
    Stage,
}

/// One pass.
pub(crate) struct Pass<O: Clone> {
    pub name: &'static str,
    pub on: On,
    /// Rewrites what is planned.
    pub run: fn(&mut State<'_, O>, &Context<'_>) -> Result<Report, PlanError>,
}

macro_rules! passes {
    ($($name:ident on $on:ident: $what:literal,)+) => {
        /// The names of the passes, in order, with what each does.
        pub const PASSES: [(&str, &str); [$($what),+].len()] = [$((stringify!($name), $what)),+];

        /// Returns the passes, in order.
        pub(crate) fn passes<O: Op>() -> [Pass<O>; PASSES.len()] {
            [$(Pass { name: stringify!($name), on: On::$on, run: $name::pass }),+]
        }
    };
}

passes! {
    layers on Window: "linear layers that were recorded as products of matrices, as layers",
    precision on Window: "16-bit types where units ask for them, and what rests in 8 bits unpacked where it is used",
    float8 on Window: "linear layers in 8 bits where units ask for them",
    propagate on Window: "a layout for every value, redistributions inserted",
    checkpoint on Window: "activations made again in the backward",
    redundancy on Window: "the work that ranks repeat, counted",
    staging on Window: "a program for each stage, in the order of the schedule, with what is sent between them",
    schedule on Stage: "gathers and reductions of a unit together, ahead of their use",
    hierarchy on Stage: "collectives over several nodes, in stages",
    async_tp on Stage: "products in chunks beside the tensor-parallel transfers that they wait for",
    lower on Stage: "tasks of each rank, with local shapes",
    regions on Window: "elementwise work as few kernels",
    offload on Window: "moves to the host and back",
    lifetimes on Window: "last uses, and the bytes that each rank will hold",
}

/// Returns the index in [`PASSES`] of the pass of this name.
///
/// # Errors
/// [`PlanError::UnknownPass`] if there is none.
pub fn pass_index(name: &str) -> Result<usize, PlanError> {
    let at = PASSES.iter().position(|(other, _)| *other == name);
    at.ok_or_else(|| PlanError::UnknownPass {
        name: name.into(),
        passes: PASSES.map(|(name, _)| name).join(", "),
    })
}
