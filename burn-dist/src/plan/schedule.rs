//! Scheduling of collectives: those of a unit start together, gathers ahead of their use, reductions as soon as gradients are complete.
//!
//! The program is in single-assignment form, so a collective may move anywhere between the step that makes its operand and the first that uses
//! its result. Nothing here changes a value: the same collectives run on the same operands.
//!
//! Source: FSDP (arXiv:2304.11277, sections 3.2 and 4.2: units, prefetching); ZeRO (arXiv:1910.02054, section 5).

use std::collections::HashMap;

use burn_backend::DType;

use super::options::{ShardStrategy, Sharding};
use super::propagate::{Common, Move, Program};
use super::task::Slot;
use super::units::Visits;
use crate::layout::ReduceOp;
use crate::layout::redistribute::StepKind;
use crate::mesh::{AxisIndex, AxisRole, MeshShape};
use crate::record::visit::{OpReader, visit_ref};
use burn_ir::TensorIr;

/// What may start together: same visit, same ranks, same element type.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    visit: u32,
    /// The bucket that its operands come from (HSDP: scattered over one axis, then reduced over another).
    parent: Option<usize>,
    axes: Vec<AxisIndex>,
    kind: Option<ReduceOp>,
    scatters: bool,
    dtype: DType,
}

#[derive(Default)]
struct Bucket {
    members: Vec<usize>,
    /// Gathers: the step before which the results must be there. Reductions: the step after which the last operand is there.
    place: usize,
    /// Reductions: how many buckets its operands come through.
    depth: u32,
}

/// What stands where in the new order.
enum Item {
    Step(usize),
    Launch(u32),
    Finish(u32),
}

/// Moves the collectives of `program`.
pub(super) fn schedule(
    program: &mut Program,
    visits: &Visits,
    mesh: &MeshShape,
    sharding: &Sharding,
) {
    let producer = producers(program);
    let gathers = gathers(program, &producer, visits);
    let reductions = reductions(program, &producer, visits, mesh, sharding);
    if gathers.is_empty() && reductions.is_empty() {
        return;
    }
    for bucket in &reductions {
        for &member in &bucket.members {
            name_after_producer(program, &producer, member);
        }
    }
    // Position, phase at that position (results of gathers, then what comes next, then the step, then reductions), number.
    let mut order: Vec<(usize, u32, u32, Item)> = Vec::new();
    let mut moved = vec![false; program.steps.len()];
    let mut members: Vec<Vec<usize>> = Vec::new();
    let mut add = |bucket: &Bucket| {
        for &step in &bucket.members {
            moved[step] = true;
        }
        members.push(bucket.members.clone());
        members.len() as u32 - 1
    };
    for (index, bucket) in gathers.iter().enumerate() {
        let group = add(bucket);
        let ahead = sharding.prefetch as usize;
        let operands = bucket.members.iter().map(|&step| {
            let Common::Move(step) = &program.steps[step] else {
                return 0;
            };
            producer[step.from as usize] + 1
        });
        let earliest = operands.max().unwrap_or(0);
        let wanted = match index.checked_sub(ahead) {
            Some(before) => gathers[before].place,
            None => 0,
        };
        // Phase 2 comes after the results of the gather it follows.
        let place = wanted.max(earliest).min(bucket.place);
        let phase = if place == bucket.place { 0 } else { 2 };
        order.push((place, phase, group, Item::Launch(group)));
        order.push((bucket.place, 1, group, Item::Finish(group)));
    }
    for bucket in &reductions {
        let group = add(bucket);
        order.push((bucket.place, 4 + bucket.depth, group, Item::Launch(group)));
    }
    for (index, moved) in moved.iter().enumerate() {
        if !moved {
            order.push((index, 3, 0, Item::Step(index)));
        }
    }
    order.sort_by_key(|(place, phase, number, _)| (*place, *phase, *number));
    let mut old: Vec<Option<Common>> = std::mem::take(&mut program.steps)
        .into_iter()
        .map(Some)
        .collect();
    let mut steps = Vec::with_capacity(old.len() + 2 * members.len());
    // Waited for before the next one, so that at most two units of gradients are whole, or when it is used.
    let mut open: Open = None;
    let mut outputs: Vec<Vec<Slot>> = vec![Vec::new(); members.len()];
    for (_, phase, _, item) in order {
        match item {
            Item::Finish(group) => steps.push(Common::Finish {
                group,
                to: std::mem::take(&mut outputs[group as usize]),
            }),
            Item::Launch(group) => {
                let moves: Vec<Move> = members[group as usize]
                    .iter()
                    .filter_map(|&step| match old[step].take() {
                        Some(Common::Move(step)) => Some(step),
                        _ => None,
                    })
                    .collect();
                let from: Vec<Slot> = moves.iter().map(|step| step.from).collect();
                let to: Vec<Slot> = moves.iter().map(|step| step.to).collect();
                if phase >= 4 || uses(&open, &from) {
                    steps.extend(finish(&mut open));
                }
                match phase {
                    4.. => open = Some((group, to)),
                    _ => outputs[group as usize] = to,
                }
                steps.push(Common::Launch { group, moves });
            }
            Item::Step(index) => {
                let Some(step) = old[index].take() else {
                    continue;
                };
                if open.is_some() && uses(&open, &reads(&step)) {
                    steps.extend(finish(&mut open));
                }
                steps.push(step);
            }
        }
    }
    steps.extend(finish(&mut open));
    program.steps = steps;
}

/// The last launch of reductions, not yet waited for, and its results.
type Open = Option<(u32, Vec<Slot>)>;

fn uses(open: &Open, slots: &[Slot]) -> bool {
    open.as_ref()
        .is_some_and(|(_, to)| to.iter().any(|slot| slots.contains(slot)))
}

fn finish(open: &mut Open) -> Option<Common> {
    let (group, to) = open.take()?;
    Some(Common::Finish { group, to })
}

/// A gradient belongs to the module that made it, not to the optimizer that uses it.
fn name_after_producer(program: &mut Program, producer: &[usize], index: usize) {
    let Common::Move(step) = &program.steps[index] else {
        return;
    };
    let path = match &program.steps[producer[step.from as usize]] {
        Common::Local(made) => made.path.clone(),
        Common::Move(made) => made.path.clone(),
        _ => return,
    };
    if let Common::Move(step) = &mut program.steps[index] {
        step.path = path;
    }
}

/// Gathers of resting tensors by visit, in order of use.
fn gathers(program: &Program, producer: &[usize], visits: &Visits) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: HashMap<Key, usize> = HashMap::new();
    for (index, step) in program.steps.iter().enumerate() {
        let Common::Move(step) = step else { continue };
        let StepKind::AllGather { axes, .. } = &step.step.kind else {
            continue;
        };
        if !axes
            .iter()
            .all(|axis| step.step.from.at_rest.contains(axis))
        {
            continue;
        }
        let key = Key {
            visit: visits.of(step.at),
            parent: None,
            axes: axes.clone(),
            kind: None,
            scatters: false,
            dtype: program.slots[step.to as usize].dtype,
        };
        let bucket = *open.entry(key).or_insert_with(|| {
            buckets.push(Bucket {
                place: index,
                ..Bucket::default()
            });
            buckets.len() - 1
        });
        // What is made during the visit cannot be gathered at its start.
        if producer[step.from as usize] < buckets[bucket].place {
            buckets[bucket].members.push(index);
        }
    }
    buckets
}

/// Reductions over data axes by the visit in which their operand is made.
fn reductions(
    program: &Program,
    producer: &[usize],
    visits: &Visits,
    mesh: &MeshShape,
    sharding: &Sharding,
) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: HashMap<Key, usize> = HashMap::new();
    // The bucket of each reduction.
    let mut of_step: HashMap<usize, usize> = HashMap::new();
    for (index, step) in program.steps.iter().enumerate() {
        let Common::Move(step) = step else { continue };
        let (axes, op, scatters) = match &step.step.kind {
            StepKind::ReduceScatter { axes, op, .. } => (axes, *op, true),
            StepKind::AllReduce { axes, op } => (axes, *op, false),
            _ => continue,
        };
        let own = program.values[program.slots[step.from as usize].value as usize].strategy;
        let waits = |axis: &AxisIndex| {
            mesh.role(*axis) == AxisRole::Model
                || sharding.strategy(*axis, own) == ShardStrategy::Optim
        };
        if axes.iter().any(waits) {
            continue;
        }
        let made = producer[step.from as usize];
        let parent = of_step.get(&made).copied();
        let (visit, place) = match (parent, &program.steps[made]) {
            (Some(_), _) => (0, 0),
            (None, Common::Local(step)) => (visits.of(step.at), made),
            (None, Common::Move(step)) => (visits.of(step.at), made),
            (None, _) => continue,
        };
        let key = Key {
            visit,
            parent,
            axes: axes.clone(),
            kind: Some(op),
            scatters,
            dtype: program.slots[step.to as usize].dtype,
        };
        // A result that is used during the visit cannot wait for operands made later.
        let joins = open.get(&key).copied().filter(|&bucket| {
            let bucket: &Bucket = &buckets[bucket];
            bucket.members.iter().all(|&member| place < member)
        });
        let bucket = joins.unwrap_or_else(|| {
            buckets.push(Bucket {
                depth: parent.map_or(0, |parent| buckets[parent].depth + 1),
                ..Bucket::default()
            });
            buckets.len() - 1
        });
        open.insert(key, bucket);
        of_step.insert(index, bucket);
        buckets[bucket].members.push(index);
        buckets[bucket].place = buckets[bucket].place.max(place);
    }
    for bucket in 0..buckets.len() {
        let Common::Move(step) = &program.steps[buckets[bucket].members[0]] else {
            continue;
        };
        // Parents come first, and their place is known by now.
        if let Some(&parent) = of_step.get(&producer[step.from as usize]) {
            buckets[bucket].place = buckets[parent].place;
        }
    }
    buckets
}

#[derive(Default)]
struct Tensors {
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
}

impl OpReader for Tensors {
    fn input(&mut self, t: &TensorIr) {
        self.inputs.push(t.id.value() as Slot);
    }

    fn output(&mut self, t: &TensorIr) {
        self.outputs.push(t.id.value() as Slot);
    }
}

/// For each slot the step that makes it.
fn producers(program: &Program) -> Vec<usize> {
    let mut producer = vec![0; program.slots.len()];
    for (index, step) in program.steps.iter().enumerate() {
        match step {
            Common::Load { slot, .. }
            | Common::Upload { slot, .. }
            | Common::Random { slot, .. } => producer[*slot as usize] = index,
            Common::Local(step) => {
                let mut tensors = Tensors::default();
                visit_ref(&step.op, &mut tensors);
                for slot in tensors.outputs {
                    producer[slot as usize] = index;
                }
            }
            Common::Move(step) => producer[step.to as usize] = index,
            _ => {}
        }
    }
    producer
}

/// Slots that a step reads.
fn reads(step: &Common) -> Vec<Slot> {
    match step {
        Common::Local(step) => {
            let mut tensors = Tensors::default();
            visit_ref(&step.op, &mut tensors);
            tensors.inputs
        }
        Common::Move(step) => vec![step.from],
        Common::Store { slot, .. } | Common::Read { slot, .. } => vec![*slot],
        _ => Vec::new(),
    }
}
