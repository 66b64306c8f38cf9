//! Planning: from a recorded window to tasks per rank, as pure data.
//!
//! ```text
//! window      recorded operations in canonical form                     window.rs
//!   precision   16-bit types where units ask for them                  precision/
//!   propagate   a layout for every value, redistributions inserted        propagate/
//!   redundancy  counts the work that ranks repeat                      redundancy.rs, flops.rs
//!   checkpoint  activations made again in the backward                 checkpoint/
//!   schedule    gathers and reductions of a unit together, ahead of use schedule.rs, units.rs
//!   hierarchy   stages of collectives over several nodes                  hierarchy.rs
//!   lower       local shapes, local operations, pieces of collectives    lower.rs, localize/, unneeded.rs
//!   offload     moves to the host and back                                offload.rs
//!   lifetimes   last uses                                                 lifetimes.rs
//!   account     bytes of a rank, buffer by buffer                         account.rs, storage.rs, memory.rs
//! plan        tasks per rank, collectives with reasons                  task.rs, explain.rs
//! ```
//!
//! Nothing here knows a backend, a thread, a clock or the environment.

pub(crate) mod account;
pub mod cache;
pub mod checkpoint;
mod custom;
pub mod explain;
mod flops;
pub mod fuzz;
mod hierarchy;
mod lifetimes;
pub mod localize;
mod lower;
pub mod memory;
mod offload;
mod options;
mod precision;
mod propagate;
mod redundancy;
mod rename;
mod schedule;
mod storage;
pub mod task;
mod units;
mod unneeded;
pub mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use explain::human_bytes;
use memory::MemoryPlan;

use burn_ir::OperationIr;

use crate::layout::LayoutError;
use crate::mesh::{MeshShape, Rank};
use crate::record::visit::{UNKNOWN, family_name};

pub use burn_dist_plan::policy::{
    Accumulation, Checkpoint, Float, Offload, Precision, Reshard, ShardStrategy,
};
pub use custom::CustomOp;
pub(crate) use custom::op_name;
pub(crate) use lower::runs;
pub use options::{PlanOptions, Sharding};
pub(crate) use precision::dtype;
pub use redundancy::{AxisRedundancy, Redundancy};
pub use storage::Storage;
pub(crate) use storage::makes;
use task::{Output, Plan, ReadPlan};
use window::Window;

/// A window that cannot be planned.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A layout is not possible.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A module's input or output layout is not possible.
    #[error("{path}: the layout `{text}` asked for its input or output does not fit: {source}")]
    ModuleLayout {
        /// The parameter that asks.
        path: String,
        /// What it asks for.
        text: String,
        /// Why not.
        source: LayoutError,
    },
    /// A custom operation is not one of ours.
    #[error(
        "custom operation `{id}` is not known to burn-dist: express it with Burn's own operations, or run it on \
         tensors of the inner backend (`to_local`)"
    )]
    UnknownCustom {
        /// Its id.
        id: String,
    },
    /// An operation of a family that a feature of burn-ir brings.
    #[error(
        "burn-dist has no rule for {op}, which a feature of burn-ir brings: a mesh reduces gradients over its ranks by \
         itself, so leave `all_reduce` to it"
    )]
    UnknownOperation {
        /// The operation.
        op: String,
    },
    /// The backend lacks a type that a precision asks for.
    #[error(
        "{path} is to be computed in {float}, which the inner backend does not have on this device; it has {others}: \
         choose one of them in `DeviceMeshBuilder::precision` or the unit's own precision"
    )]
    Float {
        /// The parameter that asks.
        path: String,
        /// What it asks for.
        float: Float,
        /// What there is.
        others: String,
    },
    /// Offload needs more host memory than it may take.
    #[error(
        "offload `{offload}` asks for {} of host memory over the ranks of this process, and {} are allowed: raise \
         `host`, or offload less", human_bytes(*.asked), human_bytes(*.limit)
    )]
    HostMemory {
        /// What is offloaded.
        offload: Offload,
        /// Bytes that the ranks need together.
        asked: u64,
        /// Bytes that they may take.
        limit: u64,
    },
    /// A bug in this crate.
    #[error("value {value} of the window has no version to start from; this is a bug in burn-dist")]
    NoVersion {
        /// The value.
        value: u32,
    },
}

/// Checks that `ops` are of the families that burn-ir has without features.
///
/// # Errors
/// [`PlanError::UnknownOperation`] for the first one that is not.
pub fn check_known(ops: &[OperationIr]) -> Result<(), PlanError> {
    match ops.iter().find(|op| family_name(op) == UNKNOWN) {
        Some(op) => Err(PlanError::UnknownOperation {
            op: format!("{op:?}"),
        }),
        None => Ok(()),
    }
}

/// Plans a window for the ranks named in `options`.
///
/// # Errors
/// [`PlanError`] if a layout that the user asked for is not possible, or an operation is not known.
pub fn plan(window: &Window, mesh: &MeshShape, options: &PlanOptions) -> Result<Plan, PlanError> {
    let recorded = window;
    let tags = units::Tags::new(recorded, mesh);
    let mut visits = units::Visits::new(recorded, &tags);
    let precise = precision::precise(recorded, &tags, &visits, options)?;
    let (window, reduces_first) = match &precise {
        None => (recorded, &[][..]),
        Some(precise) => {
            let tags = units::Tags::new(&precise.window, mesh);
            visits = units::Visits::new(&precise.window, &tags);
            (&precise.window, &precise.reduces_first[..])
        }
    };
    let mut program = propagate::propagate(window, mesh, options, &visits, reduces_first)?;
    let redundancy = redundancy::redundancy(&program, mesh);
    let recomputed = checkpoint::checkpoint(&mut program, mesh, options.checkpoint);
    let flow = checkpoint::Flow::new(&program, mesh);
    schedule::schedule(&mut program, &visits, mesh, &options.sharding);
    let hierarchy = hierarchy::Hierarchy::new(mesh, options);
    hierarchy.relay(&mut program);
    let lowering = lower::Lowering::new(window, &program, mesh, options, &hierarchy);
    let mut ranks = Vec::with_capacity(options.ranks.len());
    let mut memory = Vec::with_capacity(options.ranks.len());
    for &rank in &options.ranks {
        let (mut plan, visit_of) = lowering.rank(rank, &visits);
        plan.classes = account::classes(window, &program, &flow.lasting, &plan).into();
        if options.offload.is_on() {
            let ahead = options.sharding.prefetch;
            offload::offload(&mut plan, &visit_of, &options.offload, ahead);
        }
        lifetimes::lifetimes(&mut plan);
        memory.push(account::account(&plan).0);
        ranks.push(Arc::new(plan));
    }
    let asked: u64 = memory
        .iter()
        .map(|rank: &MemoryPlan| rank.host_peak_bytes)
        .sum();
    if let Some(limit) = options
        .offload
        .host_bytes_max
        .filter(|limit| asked > *limit)
    {
        return Err(PlanError::HostMemory {
            offload: options.offload,
            asked,
            limit,
        });
    }
    let reads = program
        .reads
        .iter()
        .map(|(slot, value)| {
            let layout = program.slots[*slot as usize].layout.clone();
            let info = &program.values[*value as usize];
            ReadPlan {
                senders: match options.everyone_reads {
                    true => options.ranks.iter().take(1).copied().collect(),
                    false => senders(&layout, mesh),
                },
                layout,
                shape: info.shape.clone(),
                dtype: info.dtype,
            }
        })
        .collect();
    let collectives = lowering.records();
    let outputs = program
        .outputs
        .iter()
        .map(|output| Output {
            value: output.value,
            layout: output.layout.clone(),
            tag: output.tag.clone(),
            origin: output.origin,
        })
        .collect();
    let mut operations = BTreeMap::new();
    for op in &recorded.ops {
        *operations
            .entry((family_name(op), op_name(op)))
            .or_default() += 1;
    }
    let accumulated = program.accumulated;
    Ok(Plan {
        ranks,
        accumulated,
        operations,
        outputs,
        reads,
        num_streams: program.num_streams,
        collectives,
        memory,
        recomputed,
        redundancy,
    })
}

/// Returns the ranks that together hold every element once: those at coordinate 0 of the axes that do not split the
/// tensor.
fn senders(layout: &crate::layout::Layout, mesh: &MeshShape) -> Vec<Rank> {
    let used = layout.axes_used();
    (0..mesh.num_ranks() as u32)
        .map(Rank)
        .filter(|&rank| {
            mesh.axis_indices()
                .all(|axis| used.contains(&axis) || mesh.coord(rank, axis) == 0)
        })
        .collect()
}
