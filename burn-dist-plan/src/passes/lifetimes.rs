//! Last uses: marks where a rank's slots are used for the last time, so that operations may work in place and memory is
//! given back at once.

use std::collections::HashSet;

use super::lower::Lowered;
use super::{Context, Report, State};
use crate::account::account;
use crate::error::PlanError;
use crate::ir::{Op, RankPlan, Side, Slot, Task, uses};

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
        memory.push(account(plan).0);
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

/// Marks the last use of every slot and frees the slots that nothing uses.
pub(super) fn lifetimes<O: Op>(plan: &mut RankPlan<O>) {
    let mut seen = vec![false; plan.num_slots as usize];
    let mut reversed: Vec<Task<O>> = Vec::with_capacity(plan.tasks.len() + 16);
    for mut task in std::mem::take(&mut plan.tasks).into_iter().rev() {
        let (mut inputs, outputs) = uses(&task);
        for &slot in &outputs {
            if !seen[slot as usize] {
                reversed.push(Task::Free(slot));
            }
        }
        let mut last: Vec<Slot> = Vec::new();
        for &slot in &inputs {
            if !std::mem::replace(&mut seen[slot as usize], true) {
                last.push(slot);
            }
        }
        match &mut task {
            Task::Op(op, _) => {
                // An operand used twice is not moved: the order in which operations take theirs is not ours.
                inputs.sort_unstable();
                last.retain(|slot| {
                    let from = inputs.partition_point(|input| input < slot);
                    let once = inputs.get(from + 1) != Some(slot);
                    if !once {
                        reversed.push(Task::Free(*slot));
                    }
                    once
                });
                if !last.is_empty() {
                    last.sort_unstable();
                    mark(op, &last);
                }
            }
            Task::Collective(task) => task.take = !last.is_empty(),
            Task::Send(task) => task.take = !last.is_empty(),
            Task::Launch { tasks, .. } => {
                let mut last: HashSet<Slot> = last.into_iter().collect();
                for task in tasks.iter_mut().rev() {
                    // Of several that send the same slot only the last empties it.
                    task.take = last.remove(&task.from);
                }
            }
            // Outputs that nothing uses.
            Task::Finish { .. } => reversed.extend(last.into_iter().map(Task::Free)),
            Task::Store { take, .. } | Task::Read { take, .. } => *take = !last.is_empty(),
            _ => {}
        }
        reversed.push(task);
    }
    reversed.reverse();
    plan.tasks = reversed;
}

/// Marks the inputs that are among `last`, which rise.
fn mark<O: Op>(op: &mut O, last: &[Slot]) {
    let is_last = |slot: Slot| last.binary_search(&slot).is_ok();
    op.rewire(|side, wire| wire.last_use |= side == Side::Input && is_last(wire.id));
}
