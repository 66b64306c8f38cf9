//! Offload: what a rank does not need for a while goes to the host, and comes back a unit ahead of its next use.
//!
//! ```text
//!            forward                          backward
//! make x - use x - ToHost x  ...units...  FromHost x - ...a unit... - use x
//! Load p (on the host)  ...  FromHost p - ...a unit... - use p -> p' - ToHost p' ... Store p' (stays there)
//! ```
//!
//! The pass works on the tasks of one rank, before last uses are marked. A tensor is moved only if it is alone in its
//! buffer, in order, and if what is made during the gap is worth the way. Moving a tensor changes no bit of it.
//!
//! Sources: ZeRO-Offload (arXiv:2101.06840), for parameters and optimizer state; vDNN (arXiv:1602.08124), for
//! activations. Differs: the optimizer runs on the device, where state is brought back unit by unit.

use std::ops::Range;

use crate::ir::{Access, HostTask, Op, Program, RankPlan, Slot, Task, Tensor};
use crate::mesh::DType;

use super::lifetimes::lifetimes;
use super::{Context, Report, State};
use crate::account::contents;
use crate::error::PlanError;
use crate::layout::Policy;
use crate::memory::MemoryClass;
use crate::policy::Offload;

/// Returns whether memory of a class is moved.
fn wants(policy: &Offload, class: MemoryClass) -> bool {
    match class {
        MemoryClass::AtRest => policy.params,
        MemoryClass::Optimizer => policy.optimizer,
        MemoryClass::Activation => policy.activations,
        _ => false,
    }
}

/// A gap is worth the way to the host and back if this many times the bytes of the tensor are made in it.
const WORTH: u64 = 8;
/// Tensors smaller than this part of the largest one are not moved.
const SMALLEST: u64 = 256;

/// What a slot holds and where it is used.
#[derive(Clone, Default)]
struct Life {
    made: usize,
    uses: Vec<usize>,
    shape: Vec<usize>,
    dtype: Option<DType>,
    /// Kept elsewhere too: moving it frees nothing.
    stays: bool,
}

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(state: &mut State<'_, O>, _: &Context<'_>) -> Result<Report, PlanError> {
    if state.policies.iter().any(|policy| policy.offload.is_on()) {
        // Of a slot its policy is asked for, which is the same in all programs.
        let program = state.programs.first().expect("layouts were propagated");
        for (_, lowered) in &mut state.ranks {
            offload(&mut lowered.plan, &lowered.visits, program);
        }
    }
    Ok(Report::default())
}

/// Adds moves to the host and back, as the policies say that the slots of `program` belong to. `visits` are the numbers
/// of the unit visits that the tasks belong to.
fn offload<O: Op>(plan: &mut RankPlan<O>, visits: &[u32], program: &Program<O>) {
    // What is made between two steps of the program belongs to no one.
    let policy = |slot: Slot| -> Option<&Policy> {
        let value = program.slots.get(slot as usize)?.value;
        Some(&program.values[value as usize].owner.policy)
    };
    let wants = |slot: Slot, class: MemoryClass| {
        policy(slot).is_some_and(|policy| wants(&policy.offload, class))
    };
    let mut marked = plan.clone();
    lifetimes(&mut marked);
    let seen = contents(&marked);
    let lives = lives(plan);
    for task in &mut plan.tasks {
        match task {
            Task::Load { slot, host, .. } | Task::Store { slot, host, .. } => {
                let class = plan.classes[*slot as usize];
                *host = class != MemoryClass::Activation && wants(*slot, class);
            }
            _ => {}
        }
    }
    let mut groups: rustc_hash::FxHashMap<u64, Vec<Slot>> = Default::default();
    for (slot, seen) in seen.iter().enumerate() {
        if let Some(seen) = seen {
            groups.entry(seen.key).or_default().push(slot as Slot);
        }
    }
    let shared: rustc_hash::FxHashMap<u64, Shared> = groups
        .into_iter()
        .filter(|(_, slots)| slots.len() > 1)
        .map(|(key, slots)| (key, Shared::new(&slots, &lives)))
        .collect();
    // Bytes made by the tasks before each.
    let mut made = vec![0u64; plan.tasks.len() + 1];
    for life in lives.iter().filter(|life| life.dtype.is_some()) {
        made[life.made + 1] += life.bytes();
    }
    for at in 1..made.len() {
        made[at] += made[at - 1];
    }
    let largest = lives.iter().map(Life::bytes).max().unwrap_or(0);
    let mut before: Vec<Vec<Slot>> = vec![Vec::new(); plan.tasks.len()];
    let mut after: Vec<Vec<Slot>> = vec![Vec::new(); plan.tasks.len()];
    for (slot, life) in lives.iter().enumerate() {
        let class = plan.classes[slot];
        let (Some(seen), Some(_)) = (&seen[slot], life.dtype) else {
            continue;
        };
        let small = life.bytes() == 0 || life.bytes() * SMALLEST < largest;
        if !wants(slot as Slot, class) {
            continue;
        }
        let loaded = matches!(&plan.tasks[life.made], Task::Load { host: true, .. });
        let movable = !small && !life.stays && seen.contiguous && seen.buffer == life.bytes();
        let mut last = life.made;
        for (index, &next) in life.uses.iter().enumerate() {
            let from = std::mem::replace(&mut last, next);
            let others = shared.get(&seen.key);
            let alone = others.is_none_or(|shared| shared.rests(slot as Slot, from..next));
            let stored = matches!(&plan.tasks[next], Task::Store { host: true, .. });
            // A unit ahead, but not before the gap.
            let ahead = policy(slot as Slot).map_or(0, |policy| policy.prefetch);
            let wanted = visits[next].saturating_sub(ahead);
            let back = visits.partition_point(|visit| *visit < wanted);
            let back = back.clamp(from + 1, next);
            if loaded && index == 0 {
                if !(stored && life.uses.len() == 1) {
                    before[back].push(slot as Slot);
                }
                continue;
            }
            if matches!(plan.tasks[next], Task::Finish { .. }) || !movable || !alone {
                continue;
            }
            if stored {
                if next > from + 1 && index + 1 == life.uses.len() {
                    after[from].push(slot as Slot);
                }
                continue;
            }
            let work = made[back] - made[from + 1];
            if work >= WORTH * life.bytes() {
                after[from].push(slot as Slot);
                before[back].push(slot as Slot);
            }
        }
    }
    let task = |slot: &Slot| {
        let life = &lives[*slot as usize];
        life.dtype.map(|dtype| {
            Box::new(HostTask {
                slot: *slot,
                shape: life.shape.clone(),
                dtype,
            })
        })
    };
    let tasks = std::mem::take(&mut plan.tasks);
    for (index, old) in tasks.into_iter().enumerate() {
        plan.tasks
            .extend(before[index].iter().filter_map(task).map(Task::FromHost));
        plan.tasks.push(old);
        plan.tasks
            .extend(after[index].iter().filter_map(task).map(Task::ToHost));
    }
}

/// The lives of slots that share a buffer.
struct Shared {
    /// When each is made, in order.
    made: Vec<usize>,
    /// Of those made so far, the two that are used for longest, and until when.
    longest: Vec<[(usize, Option<Slot>); 2]>,
}

impl Shared {
    fn new(slots: &[Slot], lives: &[Life]) -> Self {
        let mut slots = slots.to_vec();
        slots.sort_by_key(|slot| lives[*slot as usize].made);
        let mut longest = Vec::with_capacity(slots.len());
        let mut now = [(0, None); 2];
        for &slot in &slots {
            let last = lives[slot as usize].uses.last().copied().unwrap_or(0);
            if last > now[0].0 {
                now = [(last, Some(slot)), now[0]];
            } else if last > now[1].0 {
                now[1] = (last, Some(slot));
            }
            longest.push(now);
        }
        Self {
            made: slots
                .iter()
                .map(|slot| lives[*slot as usize].made)
                .collect(),
            longest,
        }
    }

    /// Returns whether no other slot than this one is used between two tasks.
    fn rests(&self, slot: Slot, between: Range<usize>) -> bool {
        let before = self.made.partition_point(|made| *made < between.end);
        let Some(longest) = before.checked_sub(1).map(|at| &self.longest[at]) else {
            return true;
        };
        let mut others = longest.iter().filter(|(_, of)| *of != Some(slot));
        others.all(|(last, _)| *last <= between.start)
    }
}

impl Life {
    fn bytes(&self) -> u64 {
        let elem = self.dtype.map_or(0, |dtype| dtype.size());
        (self.shape.iter().product::<usize>() * elem) as u64
    }

    fn make(&mut self, at: usize, made: Tensor<'_>) {
        self.made = at;
        self.shape = made.shape.to_vec();
        // Blocks of quantized numbers have no plain size.
        self.dtype = (!made.dtype.is_quantized()).then_some(made.dtype);
    }
}

fn lives<O: Op>(plan: &RankPlan<O>) -> Vec<Life> {
    let mut lives = vec![Life::default(); plan.num_slots as usize];
    for (at, task) in plan.tasks.iter().enumerate() {
        task.accesses(|access| match access {
            Access::Reads { slot, .. } | Access::Leaves(Tensor { id: slot, .. }) => {
                let uses = &mut lives[slot as usize].uses;
                if uses.last() != Some(&at) {
                    uses.push(at);
                }
            }
            Access::Makes(made) => lives[made.id as usize].make(at, made),
            Access::Returns(_) => {}
        });
        if let Task::Load { slot, take, .. } = task {
            lives[*slot as usize].stays = !take;
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in [
            "none",
            "params",
            "params,optimizer,activations",
            "optimizer,host=4096",
        ] {
            let offload: Offload = text.parse().expect("a text");
            assert_eq!(offload.to_string(), text);
        }
        for text in ["", "gradients", "params,", "host=many"] {
            let error = text.parse::<Offload>().expect_err("no text").to_string();
            assert!(
                error.contains("params, optimizer and activations"),
                "{error}"
            );
        }
    }
}
