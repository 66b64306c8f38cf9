//! The clock: how long a plan takes on modelled hardware, and what each rank holds when.
//!
//! ```text
//! hardware.rs   devices, links and hosts as numbers; presets/*.toml
//! kernels.rs    what the operations of a rank cost: flops, bytes, chains that run as one kernel
//! rank.rs       from the tasks of a rank to actions
//! events.rs     the simulation: what ranks do, in order, on lanes
//! symmetry.rs   ranks that do the same are simulated once
//! report.rs     what it found, in numbers and as text
//! error.rs      what cannot be simulated
//! costs.rs      what it found for each module
//! ```
//!
//! Formulas, sources of constants, and what the clock cannot know: `docs/simulator.md`.
//!
//! Nothing is run and no time is measured: two simulations of one plan are equal.

mod costs;
mod error;
mod events;
mod hardware;
mod kernels;
mod rank;
mod report;
mod symmetry;
#[cfg(test)]
mod tests;

pub use costs::{ModuleCosts, is_inside};
pub use error::ClockError;
pub use events::{Action, COMPUTE, Call, Lane, Span, Timeline, run};
pub use hardware::{
    DeviceLink, Hardware, HardwareError, Host, Kernels, Memory, NodeLinks, Operands, Products,
};
pub use report::{Entry, LaneTime, MemoryAt, RankSimulation, Simulation};

use std::sync::Arc;

use crate::account::account;
use crate::ir::{Op, RankPlan};
use crate::mesh::{MeshError, MeshShape, Nodes, Rank, Topology};

/// Simulates the plans of some ranks of a mesh on hardware.
///
/// Collectives wait for the members that are among `ranks`, and take no notice of others: of one rank, each begins when
/// the rank is there. Ranks that do the same as another are simulated once.
///
/// # Errors
/// [`ClockError`].
pub fn simulate<O: Op>(
    ranks: &[(Rank, Arc<RankPlan<O>>)],
    mesh: &MeshShape,
    hardware: &Hardware,
) -> Result<Simulation, ClockError> {
    let topology = topology(mesh, hardware)?;
    let mut lanes = rank::Lanes::new(mesh, topology);
    let found = ranks
        .iter()
        .map(|(rank, plan)| (*rank, rank::actions(*rank, plan, hardware, &mut lanes)));
    let (numbers, mut all): (Vec<Rank>, Vec<_>) = found.unzip();
    let classes = symmetry::classes(&numbers, &all);
    let mut simulated = Vec::new();
    for class in &classes {
        let mut actions = std::mem::take(&mut all[class.first].actions);
        let calls = actions.iter_mut().filter_map(|action| match action {
            Action::Start { call, .. } => Some(call),
            _ => None,
        });
        for (call, members) in calls.zip(&class.calls) {
            call.members.clone_from(members);
        }
        simulated.push(actions);
    }
    let timelines = run(&simulated)?;
    let mut out = Vec::new();
    for (class, timeline) in classes.iter().zip(&timelines) {
        let plan = &ranks[class.first].1;
        let (memory, over_time) = account(plan);
        let of = report::Of {
            ranks: class.ranks.iter().map(|&rank| numbers[rank]).collect(),
            about: &all[class.first],
            timeline,
            lanes: &lanes.names,
            paths: &plan.paths,
            actions: &plan.actions,
            hardware,
        };
        out.push(report::rank(of, memory, &over_time));
    }
    Ok(Simulation::new(hardware, out))
}

/// Returns the nodes of a mesh whose ranks fill them in order.
fn topology(mesh: &MeshShape, hardware: &Hardware) -> Result<Topology, MeshError> {
    let (ranks, each) = (mesh.num_ranks(), hardware.devices_per_node);
    let rest = Some(ranks % each).filter(|rest| *rest > 0);
    let full = std::iter::repeat_n(each, ranks / each);
    Nodes::Sizes(full.chain(rest).collect()).topology(ranks, &[])
}
