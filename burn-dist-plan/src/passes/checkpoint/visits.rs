//! Which stretch of a program works on which unit.

use std::collections::HashMap;

use crate::facts::flow::{Flow, Owner, StepIndex};
use crate::ir::{Op, Program, ProgramStep, Slot};
use crate::layout::Policy;
use crate::policy::ActivationCheckpoint;

/// Number of a unit, in order of its first visit.
pub(super) type UnitIndex = usize;

/// The stretch of one visit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Segment {
    /// `None`: parameters that belong to no unit.
    pub unit: Option<UnitIndex>,
    /// First step, and the first step of the next segment.
    pub start: StepIndex,
    pub end: StepIndex,
    /// True if it works forward: it needs nothing that an earlier visit of its unit made.
    pub forward: bool,
    /// Number of times the program went from backward to forward before: the microbatch, in a program that accumulates
    /// gradients.
    pub pass: usize,
}

/// The visits of a program.
#[derive(Clone, Debug, Default)]
pub(super) struct Visits {
    pub segments: Vec<Segment>,
    /// Which activations of each unit are made again.
    pub policies: Vec<ActivationCheckpoint>,
}

impl Visits {
    /// Returns the segment of a step.
    pub(super) fn segment_of(&self, step: StepIndex) -> usize {
        self.segments
            .partition_point(|segment| segment.end <= step)
            .min(self.segments.len().saturating_sub(1))
    }

    /// Returns whether a use in segment `user` keeps what segment `maker` made: the next unit's, or a unit's on the way
    /// forward.
    pub(super) fn near(&self, maker: usize, user: usize) -> bool {
        let other = &self.segments[user];
        user <= maker + 1 || (other.forward && other.unit.is_some())
    }

    /// Returns the number of forward segments of units that make what a segment far away uses.
    pub(super) fn num_needed(&self, flow: &Flow) -> u64 {
        let mut needed = vec![false; self.segments.len()];
        for (slot, uses) in flow.uses.iter().enumerate() {
            let (Some(last), false) = (
                uses.last(),
                flow.owner[slot].is_some() || flow.lasting[slot],
            ) else {
                continue;
            };
            let maker = self.segment_of(flow.maker[slot]);
            needed[maker] |= !self.near(maker, self.segment_of(*last));
        }
        self.segments
            .iter()
            .zip(needed)
            .filter(|(segment, needed)| segment.forward && segment.unit.is_some() && *needed)
            .count() as u64
    }
}

/// A run of uses of one unit's parameters: the first and the last.
struct Visit {
    unit: Option<UnitIndex>,
    first: StepIndex,
    last: StepIndex,
}

pub(super) fn visits<O: Op>(program: &Program<O>, flow: &Flow) -> Visits {
    let (runs, policies) = runs(program, flow);
    let mut segments: Vec<Segment> = Vec::with_capacity(runs.len());
    let mut start = 0;
    for (index, run) in runs.iter().enumerate() {
        let end = match runs.get(index + 1) {
            Some(next) => border(flow, start, run, next),
            None => program.steps.len(),
        };
        segments.push(Segment {
            unit: run.unit,
            start,
            end,
            forward: true,
            pass: 0,
        });
        start = end;
    }
    let mut visits = Visits { segments, policies };
    tell_directions(&mut visits, flow);
    visits
}

/// Finds the visits. A step that makes a parameter, or something of parameters alone, is no visit: it is an update, or
/// a preparation for the step that is.
fn runs<O: Op>(program: &Program<O>, flow: &Flow) -> (Vec<Visit>, Vec<ActivationCheckpoint>) {
    let mut units: HashMap<(&str, &Policy), UnitIndex> = HashMap::new();
    let mut policies: Vec<ActivationCheckpoint> = Vec::new();
    let mut runs: Vec<Visit> = Vec::new();
    for (index, (step, ends)) in program.steps.iter().zip(&flow.ends).enumerate() {
        let prepares = ends
            .writes
            .iter()
            .any(|slot| flow.owner[*slot as usize].is_some());
        if prepares || matches!(step, ProgramStep::Store { .. } | ProgramStep::Read { .. }) {
            continue;
        }
        let tags = ends.reads.iter().filter_map(|slot| {
            let Some(Owner::One(owner)) = flow.owner[*slot as usize] else {
                return None;
            };
            program.values[owner as usize].tag.as_ref()
        });
        for tag in tags {
            let unit = tag.unit.as_deref().map(|path| {
                let unit = *units.entry((path, &tag.policy)).or_insert(policies.len());
                if unit == policies.len() {
                    policies.push(tag.policy.checkpoint);
                }
                unit
            });
            match runs.last_mut() {
                Some(last) if last.unit == unit => last.last = index,
                _ => runs.push(Visit {
                    unit,
                    first: index,
                    last: index,
                }),
            }
        }
    }
    (runs, policies)
}

/// Returns the step at which one visit gives way to the next: where the fewest bytes cross, the earliest such.
///
/// What counts are values that the visit makes or reads and the next one uses. What an earlier unit made for the
/// backward alone crosses everywhere.
fn border(flow: &Flow, start: StepIndex, visit: &Visit, next: &Visit) -> StepIndex {
    let (low, high) = (visit.last + 1, next.first);
    if low >= high {
        return high;
    }
    // Per memory: made where, last used where.
    let mut alive: HashMap<Slot, (StepIndex, StepIndex)> = HashMap::new();
    for step in start..high {
        let ends = &flow.ends[step];
        let through = ends.reads.iter().filter(|_| step < low);
        for &slot in ends.writes.iter().chain(through) {
            if flow.owner[slot as usize].is_some() {
                continue;
            }
            let uses = &flow.uses[slot as usize];
            let until = uses[..uses.partition_point(|use_| *use_ <= next.last)].last();
            let root = flow.root[slot as usize];
            let made = flow.maker[root as usize];
            let entry = alive.entry(root).or_insert((made, made));
            entry.1 = entry.1.max(until.copied().unwrap_or(step));
        }
    }
    // A border at `at` has the steps before `at` on its left.
    let mut change = vec![0i64; high - low + 2];
    for (root, (made, until)) in alive {
        let bytes = flow.bytes[root as usize] as i64;
        let (from, to) = ((made + 1).max(low), until.min(high));
        if from <= to {
            change[from - low] += bytes;
            change[to - low + 1] -= bytes;
        }
    }
    let mut best = (i64::MAX, high);
    let mut crossing = 0;
    for at in low..=high {
        crossing += change[at - low];
        if crossing < best.0 {
            best = (crossing, at);
        }
    }
    best.1
}

/// A visit that needs what an earlier forward visit of its unit made, other than through the next unit, works backward.
fn tell_directions(visits: &mut Visits, flow: &Flow) {
    let mut pass = 0;
    let mut backward = false;
    for index in 0..visits.segments.len() {
        let segment = visits.segments[index].clone();
        let needs_earlier = segment.unit.is_some()
            && (segment.start..segment.end).any(|step| {
                flow.ends[step].reads.iter().any(|&slot| {
                    let slot = slot as usize;
                    let counts = flow.owner[slot].is_none() && !flow.lasting[slot];
                    if !counts || flow.maker[slot] >= segment.start {
                        return false;
                    }
                    let maker = visits.segment_of(flow.maker[slot]);
                    let earlier = &visits.segments[maker];
                    maker + 1 < index && earlier.forward && earlier.unit == segment.unit
                })
            });
        if segment.unit.is_some() {
            pass += usize::from(backward && !needs_earlier);
            backward = needs_earlier;
        }
        visits.segments[index].forward = !needs_earlier;
        visits.segments[index].pass = pass;
    }
}
