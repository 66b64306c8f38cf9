//! Scheduling of collectives: those of a unit start together, gathers ahead of their use, reductions as soon as
//! gradients are complete.
//!
//! The program is in single-assignment form, so a collective may move anywhere between the step that makes its operand
//! and the first that uses its result. Nothing here changes a value: the same collectives run on the same operands.
//!
//! Source: FSDP (arXiv:2304.11277, sections 3.2 and 4.2: units, prefetching); ZeRO (arXiv:1910.02054, section 5).

mod queue;

use std::collections::HashMap;

use crate::mesh::DType;
use crate::op::Op;

use crate::facts::{Facts, Role};
use crate::layout::redistribute::StepKind;
use crate::mesh::ReduceOp;
use crate::mesh::{AxisIndex, MeshShape, Rank};
use crate::policy::ShardStrategy;
use crate::propagate::{Common, Move, Program};
use crate::units::Visits;
use queue::Queue;

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
    /// Gathers: how many units ahead.
    prefetch: u32,
}

#[derive(Default)]
struct Bucket {
    members: Vec<usize>,
    /// Gathers: the step before which the results must be there. Reductions: the step after which the last operand is
    /// there.
    place: usize,
    /// Reductions: how many buckets its operands come through.
    depth: u32,
    /// Reductions: whether each rank is left with a part.
    scatters: bool,
    /// Gathers: how many units ahead they start.
    prefetch: u32,
}

/// What stands where in the new order.
enum Item {
    Step(usize),
    /// All members of a bucket.
    Launch(u32),
    /// The member of a bucket that stood at this step.
    Finish(u32, usize),
}

/// Moves the collectives of `program`.
pub(super) fn schedule<O: Op>(
    program: &mut Program<O>,
    facts: &Facts,
    visits: &Visits,
    mesh: &MeshShape,
) {
    let producer = program.producers();
    let gathers = gathers(program, &producer, visits);
    let reductions = reductions(program, &producer, facts, visits, mesh);
    if gathers.is_empty() && reductions.is_empty() {
        return;
    }
    for bucket in &reductions {
        for &member in &bucket.members {
            name_after_producer(program, &producer, member);
        }
    }
    // Position, phase at that position (launches of gathers, results of gathers, then the step, then reductions),
    // number.
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
    let places = prefetch_places(program, mesh, &gathers);
    for (bucket, wanted) in gathers.iter().zip(places) {
        let group = add(bucket);
        let operands = bucket.members.iter().map(|&step| {
            let Common::Move(step) = &program.steps[step] else {
                return 0;
            };
            producer[step.from as usize] + 1
        });
        let earliest = operands.max().unwrap_or(0);
        let place = wanted.max(earliest).min(bucket.place);
        order.push((place, 0, group, Item::Launch(group)));
        // What a unit needs last may arrive last.
        for &member in &bucket.members {
            order.push((member, 1, group, Item::Finish(group, member)));
        }
    }
    let made = |step: usize| match &program.steps[step] {
        Common::Move(step) => producer[step.from as usize],
        _ => 0,
    };
    let size = |members: &[usize]| bytes(program, mesh, members);
    for bucket in launch_last_early(reductions, made, size) {
        let group = add(&bucket);
        order.push((bucket.place, 4 + bucket.depth, group, Item::Launch(group)));
    }
    for (index, moved) in moved.iter().enumerate() {
        if !moved {
            order.push((index, 3, 0, Item::Step(index)));
        }
    }
    order.sort_by_key(|(place, phase, number, _)| (*place, *phase, *number));
    let sizes: Vec<u64> = members
        .iter()
        .map(|members| bytes(program, mesh, members))
        .collect();
    let mut old: Vec<Option<Common<O>>> = std::mem::take(&mut program.steps)
        .into_iter()
        .map(Some)
        .collect();
    let launched = order
        .iter()
        .filter(|(_, phase, ..)| *phase >= 4)
        .map(|(_, _, group, _)| sizes[*group as usize])
        .collect();
    let mut queue = Queue::new(launched, old.len() + 2 * members.len());
    for (_, phase, _, item) in order {
        match item {
            Item::Finish(group, member) => {
                // Launched before it is finished: `old` has it no more, its bucket knows where it stood.
                let index = members[group as usize].iter().position(|&m| m == member);
                queue.gathered(group, index.unwrap_or_default());
            }
            Item::Launch(group) => {
                let moves: Vec<Move> = members[group as usize]
                    .iter()
                    .filter_map(|&step| match old[step].take() {
                        Some(Common::Move(step)) => Some(step),
                        _ => None,
                    })
                    .collect();
                match phase {
                    4.. => queue.reduce(group, moves),
                    _ => queue.gather(group, moves),
                }
            }
            Item::Step(index) => {
                if let Some(step) = old[index].take() {
                    queue.step(step);
                }
            }
        }
    }
    program.steps = queue.end();
}

/// A unit that is smaller than the largest by this factor is not counted among those gathered ahead: there is no time
/// to hide behind its work, and its memory does not matter.
const TINY: u64 = 16;

/// For each gather the step before which it is to be launched: that of the gather so many units before it, before
/// anyone waits for that one, so that the link is not idle in between.
fn prefetch_places<O: Op>(
    program: &Program<O>,
    mesh: &MeshShape,
    gathers: &[Bucket],
) -> Vec<usize> {
    let sizes: Vec<u64> = gathers
        .iter()
        .map(|bucket| bytes(program, mesh, &bucket.members))
        .collect();
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let place = |index: usize| {
        let Some(units) = gathers[index].prefetch.checked_sub(1) else {
            return gathers[index].place;
        };
        let mut counted = (0..index).rev().filter(|&i| sizes[i] * TINY >= largest);
        let before = counted.nth(units as usize);
        before.map_or(0, |before| gathers[before].place)
    };
    (0..gathers.len()).map(place).collect()
}

/// Launches the last reductions of each kind in three goes, for little is computed after them that they could hide
/// behind: what is there when four fifths of the bytes are, then the rest but for the last gradient, then that one,
/// which in a language model is the embedding's.
fn launch_last_early(
    mut buckets: Vec<Bucket>,
    made: impl Fn(usize) -> usize,
    size: impl Fn(&[usize]) -> u64,
) -> Vec<Bucket> {
    for scatters in [false, true] {
        let last = (0..buckets.len())
            .filter(|&b| buckets[b].depth == 0 && buckets[b].scatters == scatters)
            .max_by_key(|&b| buckets[b].place);
        let Some(last) = last else { continue };
        let mut members = buckets[last].members.clone();
        members.sort_by_key(|&member| made(member));
        let end = members.len() - 1;
        let before = size(&members[..end]);
        let enough = (1..=end).find(|&n| 5 * size(&members[..n]) >= 4 * before);
        let mut cuts: Vec<usize> = enough.into_iter().chain([end]).collect();
        cuts.dedup();
        for cut in cuts.into_iter().rev() {
            // Gradients that one operation makes stay together.
            if cut > 0 && made(members[cut - 1]) < made(members[cut]) {
                let rest = members.split_off(cut);
                let depth = 0;
                let place = made(rest[rest.len() - 1]);
                buckets.push(Bucket {
                    members: rest,
                    place,
                    depth,
                    scatters,
                    ..Bucket::default()
                });
            }
        }
        buckets[last].place = made(members[members.len() - 1]);
        buckets[last].members = members;
    }
    buckets
}

/// Bytes that the operands of a bucket take on a rank.
fn bytes<O: Op>(program: &Program<O>, mesh: &MeshShape, members: &[usize]) -> u64 {
    let of = |&step: &usize| match &program.steps[step] {
        Common::Move(step) => {
            let slot = &program.slots[step.from as usize];
            let elements: usize = slot.layout.local_shape(mesh, Rank(0)).iter().product();
            (elements * slot.dtype.size()) as u64
        }
        _ => 0,
    };
    members.iter().map(of).sum()
}

/// A gradient belongs to the module that made it, not to the optimizer that uses it.
fn name_after_producer<O: Op>(program: &mut Program<O>, producer: &[usize], index: usize) {
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
fn gathers<O: Op>(program: &Program<O>, producer: &[usize], visits: &Visits) -> Vec<Bucket> {
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
        let slot = &program.slots[step.to as usize];
        let prefetch = program.values[slot.value as usize].owner.policy.prefetch;
        let key = Key {
            visit: visits.of(step.at),
            parent: None,
            axes: axes.clone(),
            kind: None,
            scatters: false,
            dtype: slot.dtype,
            prefetch,
        };
        let bucket = *open.entry(key).or_insert_with(|| {
            buckets.push(Bucket {
                place: index,
                prefetch,
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

/// Reductions over data axes, and over model axes those of gradients of parameters, by the visit in which their operand
/// is made. Of activations, sums over model axes are used at once.
fn reductions<O: Op>(
    program: &Program<O>,
    producer: &[usize],
    facts: &Facts,
    visits: &Visits,
    mesh: &MeshShape,
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
        let value = program.slots[step.from as usize].value as usize;
        let owner = &program.values[value].owner;
        let is_gradient = matches!(facts.roles.get(value), Some(Role::Gradient(Some(_))));
        let waits = |axis: &AxisIndex| {
            (mesh.role(*axis).splits_model() && !is_gradient)
                || owner.strategy_over(*axis) == ShardStrategy::Optim
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
            prefetch: 0,
        };
        // A result that is used during the visit cannot wait for operands made later.
        let joins = open.get(&key).copied().filter(|&bucket| {
            let bucket: &Bucket = &buckets[bucket];
            bucket.members.iter().all(|&member| place < member)
        });
        let bucket = joins.unwrap_or_else(|| {
            buckets.push(Bucket {
                depth: parent.map_or(0, |parent| buckets[parent].depth + 1),
                scatters,
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
