//! Scheduling of collectives: those of a unit start together, gathers ahead of their use, reductions as soon as
//! gradients are complete.
//!
//! The program is in single-assignment form, so a collective may move anywhere between the step that makes its operand
//! and the first that uses its result. Nothing here changes a value: the same collectives run on the same operands.
//!
//! Source: FSDP (arXiv:2304.11277, sections 3.2 and 4.2: units, prefetching); ZeRO (arXiv:1910.02054, section 5).

mod queue;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::ir::{Move, Op, Program, ProgramStep, Role};
use crate::mesh::DType;

use super::{Context, Report, State};
use crate::error::PlanError;
use crate::facts::{Facts, Visits};
use crate::layout::redistribute::StepKind;
use crate::mesh::ReduceOp;
use crate::mesh::{AxisIndex, MeshShape, Rank};
use crate::policy::ShardStrategy;
use queue::{Queue, Reductions};

/// The mark of collectives that may start together: same visit, same ranks, same element type.
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
    /// Reductions: the bucket that leaves its operands, which comes before it.
    parent: Option<usize>,
    /// Reductions: whether each rank is left with a part.
    scatters: bool,
    /// Reductions: whether they are the last ones of gradients.
    is_last: bool,
    /// Gathers: how many units ahead they start.
    prefetch: u32,
}

/// A thing at a place of the new order; at one place, they stand in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stands {
    /// The launch of a bucket of gathers.
    Gather,
    /// The end of one of its members, by its number there.
    Gathered,
    /// The step that was there.
    Step,
    /// The launch of a bucket of reductions.
    Reduce,
}

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    for program in &mut state.programs {
        schedule(program, &state.facts, &state.visits, context.mesh);
    }
    Ok(Report::default())
}

/// Moves the collectives of `program`.
fn schedule<O: Op>(program: &mut Program<O>, facts: &Facts, visits: &Visits, mesh: &MeshShape) {
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
    // The place, what stands there, of which bucket, which member.
    let mut order: Vec<(usize, Stands, u32, usize)> = Vec::new();
    let mut moved = vec![false; program.steps.len()];
    let mut members: Vec<&[usize]> = Vec::new();
    for bucket in gathers.iter().chain(&reductions) {
        for &step in &bucket.members {
            moved[step] = true;
        }
        members.push(&bucket.members);
    }
    let places = prefetch_places(program, mesh, &gathers);
    for ((group, bucket), wanted) in (0..).zip(&gathers).zip(places) {
        let operands = bucket.members.iter().map(|&step| {
            let ProgramStep::Move(step) = &program.steps[step] else {
                return 0;
            };
            producer[step.from as usize] + 1
        });
        let earliest = operands.max().unwrap_or(0);
        let place = wanted.max(earliest).min(bucket.place);
        order.push((place, Stands::Gather, group, 0));
        // What a unit needs last may arrive last.
        for (number, &member) in bucket.members.iter().enumerate() {
            order.push((member, Stands::Gathered, group, number));
        }
    }
    let first = gathers.len() as u32;
    for (group, bucket) in (first..).zip(&reductions) {
        if bucket.parent.is_none() {
            order.push((bucket.place, Stands::Reduce, group, 0));
        }
    }
    for (index, moved) in moved.iter().enumerate() {
        if !moved {
            order.push((index, Stands::Step, 0, 0));
        }
    }
    order.sort_unstable();
    let launched = order.iter().filter(|(_, what, ..)| *what == Stands::Reduce);
    let launched = launched.map(|(_, _, group, _)| bytes(program, mesh, members[*group as usize]));
    let mut queue = Queue::new(launched.collect(), moved.len() + 2 * members.len());
    let mut old: Vec<Option<ProgramStep<O>>> = std::mem::take(&mut program.steps)
        .into_iter()
        .map(Some)
        .collect();
    let mut moves = |group: u32| -> Vec<Move> {
        let taken = members[group as usize].iter().map(|&step| old[step].take());
        let moves = taken.filter_map(|step| match step {
            Some(ProgramStep::Move(step)) => Some(step),
            _ => None,
        });
        moves.collect()
    };
    // From the last on, so that each takes with it what comes after it.
    let mut then: Vec<Vec<Reductions>> = Vec::new();
    then.resize_with(reductions.len(), Vec::new);
    let mut starting: HashMap<u32, Reductions> = HashMap::new();
    for (index, bucket) in reductions.iter().enumerate().rev() {
        let group = first + index as u32;
        let mut next = std::mem::take(&mut then[index]);
        next.reverse();
        let reductions = Reductions {
            group,
            moves: moves(group),
            is_last: bucket.is_last,
            then: next,
        };
        match bucket.parent {
            Some(parent) => then[parent].push(reductions),
            None => drop(starting.insert(group, reductions)),
        }
    }
    let mut gathering: Vec<Vec<Move>> = (0..first).map(&mut moves).collect();
    for (place, what, group, member) in order {
        match what {
            Stands::Gather => queue.gather(group, std::mem::take(&mut gathering[group as usize])),
            Stands::Gathered => queue.gathered(group, member),
            Stands::Step => old[place]
                .take()
                .into_iter()
                .for_each(|step| queue.step(step)),
            Stands::Reduce => {
                if let Some(reductions) = starting.remove(&group) {
                    queue.reduce(reductions);
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
    // Places of those before that are counted.
    let mut counted: Vec<usize> = Vec::new();
    let place = |(bucket, size): (&Bucket, u64)| {
        let wanted = match bucket.prefetch {
            0 => bucket.place,
            units => {
                let before = counted.len().checked_sub(units as usize);
                before.map_or(0, |before| counted[before])
            }
        };
        counted.extend((size * TINY >= largest).then_some(bucket.place));
        wanted
    };
    gathers.iter().zip(sizes).map(place).collect()
}

/// Launches the last reductions of each kind in three goes, for little is computed after them that they could hide
/// behind: what is there when four fifths of the bytes are, then the rest but for the last gradient, then that one,
/// which in a language model is the embedding's.
fn launch_last_early(
    mut buckets: Vec<Bucket>,
    made: impl Fn(usize) -> usize,
    size: impl Fn(usize) -> u64,
) -> Vec<Bucket> {
    for scatters in [false, true] {
        let last = (0..buckets.len())
            .filter(|&b| buckets[b].scatters == scatters)
            .max_by_key(|&b| buckets[b].place);
        let Some(last) = last else { continue };
        let mut members = buckets[last].members.clone();
        members.sort_by_key(|&member| made(member));
        let end = members.len() - 1;
        let before: u64 = members[..end].iter().map(|&member| size(member)).sum();
        let mut so_far = 0;
        let enough = (1..=end).find(|&n| {
            so_far += size(members[n - 1]);
            5 * so_far >= 4 * before
        });
        let mut cuts: Vec<usize> = enough.into_iter().chain([end]).collect();
        cuts.dedup();
        for cut in cuts.into_iter().rev() {
            // Gradients that one operation makes stay together.
            if cut > 0 && made(members[cut - 1]) < made(members[cut]) {
                let rest = members.split_off(cut);
                let place = made(rest[rest.len() - 1]);
                buckets.push(Bucket {
                    members: rest,
                    place,
                    scatters,
                    is_last: true,
                    ..Bucket::default()
                });
            }
        }
        buckets[last].place = made(members[members.len() - 1]);
        buckets[last].members = members;
        buckets[last].is_last = true;
    }
    buckets
}

/// Bytes that the operands of a bucket take on a rank.
fn bytes<O: Op>(program: &Program<O>, mesh: &MeshShape, members: &[usize]) -> u64 {
    let of = |&step: &usize| match &program.steps[step] {
        ProgramStep::Move(step) => {
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
    let ProgramStep::Move(step) = &program.steps[index] else {
        return;
    };
    let path = match &program.steps[producer[step.from as usize]] {
        ProgramStep::Local(made) => made.path.clone(),
        ProgramStep::Move(made) => made.path.clone(),
        _ => return,
    };
    if let ProgramStep::Move(step) = &mut program.steps[index] {
        step.path = path;
    }
}

/// Gathers of resting tensors by visit, in order of use.
fn gathers<O: Op>(program: &Program<O>, producer: &[usize], visits: &Visits) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: HashMap<Key, usize> = HashMap::new();
    for (index, step) in program.steps.iter().enumerate() {
        let ProgramStep::Move(step) = step else {
            continue;
        };
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
/// is made. Of activations, sums over model axes are used at once. Those of what others leave come after all of these,
/// by the bucket that leaves it.
fn reductions<O: Op>(
    program: &Program<O>,
    producer: &[usize],
    facts: &Facts,
    visits: &Visits,
    mesh: &MeshShape,
) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: HashMap<Key, usize> = HashMap::new();
    // Which steps are reductions, and those whose operand is what another one leaves.
    let mut reduces = vec![false; program.steps.len()];
    let mut later: Vec<(usize, Key)> = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        let ProgramStep::Move(step) = step else {
            continue;
        };
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
        let place = producer[step.from as usize];
        let visit = match &program.steps[place] {
            _ if reduces[place] => None,
            ProgramStep::Local(step) => Some(visits.of(step.at)),
            ProgramStep::Move(step) => Some(visits.of(step.at)),
            _ => continue,
        };
        reduces[index] = true;
        let key = Key {
            visit: visit.unwrap_or(0),
            parent: None,
            axes: axes.clone(),
            kind: Some(op),
            scatters,
            dtype: program.slots[step.to as usize].dtype,
            prefetch: 0,
        };
        if visit.is_none() {
            later.push((index, key));
            continue;
        }
        // A result that is used during the visit cannot wait for operands made later.
        let joins = open.get(&key).copied();
        let joins = joins.filter(|&bucket| place < buckets[bucket].members[0]);
        let bucket = joins.unwrap_or(buckets.len());
        if bucket == buckets.len() {
            buckets.push(Bucket {
                scatters,
                ..Bucket::default()
            });
        }
        open.insert(key, bucket);
        buckets[bucket].members.push(index);
        buckets[bucket].place = buckets[bucket].place.max(place);
    }
    let made = |step: usize| match &program.steps[step] {
        ProgramStep::Move(step) => producer[step.from as usize],
        _ => 0,
    };
    let mut buckets = launch_last_early(buckets, made, |step| bytes(program, mesh, &[step]));
    // The bucket of each reduction.
    let mut of_step: HashMap<usize, usize> = HashMap::new();
    for (number, bucket) in buckets.iter().enumerate() {
        of_step.extend(bucket.members.iter().map(|&member| (member, number)));
    }
    for (index, key) in later {
        let parent = of_step.get(&made(index)).copied();
        let scatters = key.scatters;
        let bucket = *open.entry(Key { parent, ..key }).or_insert_with(|| {
            buckets.push(Bucket {
                parent,
                scatters,
                ..Bucket::default()
            });
            buckets.len() - 1
        });
        of_step.insert(index, bucket);
        buckets[bucket].members.push(index);
    }
    buckets
}
