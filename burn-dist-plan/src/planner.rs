//! From a window to a plan: the passes, in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::PlanError;
use crate::facts::Facts;
use crate::layout::Layout;
use crate::memory::MemoryPlan;
use crate::mesh::{MeshShape, Rank};
use crate::op::Op;
use crate::options::PlanOptions;
use crate::task::{Output, Plan, ReadPlan};
use crate::window::Window;
use crate::{
    account, checkpoint, hierarchy, lifetimes, lower, offload, precision, propagate, redundancy,
    schedule, units,
};

/// Plans a window for the ranks named in `options`.
///
/// # Errors
/// [`PlanError`] if a layout that the user asked for is not possible, or an operation is not known.
pub fn plan<O: Op>(
    window: &Window<O>,
    mesh: &MeshShape,
    options: &PlanOptions,
) -> Result<Plan<O>, PlanError> {
    let recorded = window;
    let mut facts = Facts::new(recorded);
    let mut visits = units::Visits::new(recorded, &facts);
    let precise = precision::precise(recorded, &facts, &visits, options)?;
    let (window, reduces_first) = match &precise {
        None => (recorded, &[][..]),
        Some(precise) => {
            facts = Facts::new(&precise.window);
            visits = units::Visits::new(&precise.window, &facts);
            (&precise.window, &precise.reduces_first[..])
        }
    };
    let mut program = propagate::propagate(window, mesh, options, &facts, &visits, reduces_first)?;
    let redundancy = redundancy::redundancy(&program, &facts, mesh);
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
        plan.classes = account::classes(window, &program, &facts, &flow.lasting, &plan).into();
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
            role: output.role.clone(),
            origin: output.origin,
        })
        .collect();
    let mut operations = BTreeMap::new();
    for op in &recorded.ops {
        *operations.entry((op.family(), op.name())).or_default() += 1;
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
fn senders(layout: &Layout, mesh: &MeshShape) -> Vec<Rank> {
    let used = layout.axes_used();
    (0..mesh.num_ranks() as u32)
        .map(Rank)
        .filter(|&rank| {
            mesh.axis_indices()
                .all(|axis| used.contains(&axis) || mesh.coord(rank, axis) == 0)
        })
        .collect()
}
