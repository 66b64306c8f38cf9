//! Last uses: marks where a rank's slots are used for the last time, so that operations may work in place and memory is
//! given back at once.

use super::lower::Lowered;
use super::{Context, Report, State};
use crate::account::account;
use crate::error::PlanError;
use crate::ir::{Access, Op, RankPlan, Slot, Task, Tensor};
use crate::memory::MemoryTimeline;

#[cfg(test)]
mod tests;

/// The pass: see [`PASSES`](super::PASSES).
///
/// # Errors
/// [`PlanError::HostMemory`] if the ranks need more of the host than a policy allows.
pub(super) fn pass<O: Op>(state: &mut State<'_, O>, _: &Context<'_>) -> Result<Report, PlanError> {
    let mut memory = Vec::with_capacity(state.ranks.len());
    for (_, Lowered { plan, actions, .. }) in &mut state.ranks {
        lifetimes(plan);
        plan.find_actions(actions);
        let (planned, timeline) = account(plan);
        find_room(plan, &timeline);
        memory.push(planned);
    }
    let asked: u64 = memory.iter().map(|rank| rank.host_peak_bytes).sum();
    let limits = state.policies.iter().filter_map(|policy| {
        let offload = policy.offload;
        Some((offload.host_bytes_max?, offload))
    });
    match limits.min_by_key(|(limit, _)| *limit) {
        Some((limit, offload)) if asked > limit => Err(PlanError::HostMemory {
            offload,
            asked,
            limit,
        }),
        _ => Ok(Report {
            memory,
            ..Report::default()
        }),
    }
}

/// Finds how much freed memory a rank may keep between one region and the next.
fn find_room<O: Op>(plan: &mut RankPlan<O>, timeline: &MemoryTimeline) {
    let peak = timeline.peak_bytes();
    let mut most = 0;
    for (task, held) in plan.tasks.iter_mut().zip(&timeline.tasks).rev() {
        most = most.max(held.total());
        if let Task::Region(task) = task {
            task.room = peak - std::mem::take(&mut most);
        }
    }
    plan.room = peak - most;
}

/// Marks the last use of every slot and frees the slots that nothing uses.
pub(super) fn lifetimes<O: Op>(plan: &mut RankPlan<O>) {
    let mut seen = vec![false; plan.num_slots as usize];
    let mut reversed: Vec<Task<O>> = Vec::with_capacity(plan.tasks.len() + 16);
    let mut last: Vec<Slot> = Vec::new();
    for mut task in std::mem::take(&mut plan.tasks).into_iter().rev() {
        task.accesses(|access| match access {
            Access::Makes(made) if !seen[made.id as usize] => reversed.push(Task::Free(made.id)),
            Access::Reads { slot, .. } | Access::Leaves(Tensor { id: slot, .. }) => {
                if !std::mem::replace(&mut seen[slot as usize], true) {
                    last.push(slot);
                }
            }
            Access::Makes(_) | Access::Returns(_) => {}
        });
        task.take(&mut last);
        reversed.extend(last.drain(..).map(Task::Free));
        reversed.push(task);
    }
    reversed.reverse();
    plan.tasks = reversed;
}
