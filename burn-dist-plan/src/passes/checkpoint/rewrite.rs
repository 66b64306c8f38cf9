//! The rewrite: clones of a segment's steps before the first use of what they make, and far uses that read the clones.

use std::collections::{BTreeSet, HashMap};

use super::report::Recomputed;
use super::visits::Visits;
use crate::facts::flow::{Flow, StepIndex, is_collective};
use crate::ir::{Op, OpIndex, Program, ProgramStep, Side, Slot};
use crate::layout::Layout;
use crate::policy::ActivationCheckpoint;

/// A forward segment whose values are made again.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    pub segment: usize,
    /// What is made again of it.
    pub policy: ActivationCheckpoint,
    pub pass: usize,
    /// What the segment makes and the backward uses.
    pub far: Vec<Slot>,
    /// The step before which it is made again.
    pub before: StepIndex,
    /// What the segment makes and nothing makes again.
    pub kept: BTreeSet<Slot>,
    pub start: StepIndex,
    pub end: StepIndex,
}

impl Section {
    /// Finds what the segment makes for the backward, and what stays for the next segment.
    pub(super) fn find<O: Op>(&mut self, program: &Program<O>, flow: &Flow, visits: &Visits) {
        let segment = &visits.segments[self.segment];
        (self.start, self.end, self.pass) = (segment.start, segment.end, segment.pass);
        let mut far: Vec<(Slot, StepIndex)> = Vec::new();
        for step in segment.start..segment.end {
            let outside = enters(&program.steps[step]);
            for &slot in &flow.ends[step].writes {
                let uses = &flow.uses[slot as usize];
                let segments = uses.iter().map(|use_| visits.segment_of(*use_));
                let border = segments
                    .filter(|user| *user != self.segment)
                    .any(|user| visits.near(self.segment, user));
                let param = flow.param[slot as usize];
                // What the backward makes is never made again, however far off it is used.
                let stays = flow.lasting[slot as usize] || flow.backward[slot as usize];
                if !param && (outside || border || stays) {
                    self.keep(slot, flow);
                }
                let first = uses
                    .iter()
                    .find(|use_| !visits.near(self.segment, visits.segment_of(**use_)));
                if let (Some(&first), false) = (first, param) {
                    far.push((slot, first));
                }
            }
        }
        far.retain(|(slot, _)| !self.kept.contains(slot));
        self.before = far.iter().map(|(_, first)| *first).min().unwrap_or(0);
        self.far = far.into_iter().map(|(slot, _)| slot).collect();
    }

    /// Keeps a slot, and what it is a view of if that is no more.
    fn keep(&mut self, slot: Slot, flow: &Flow) {
        let mut slot = slot;
        loop {
            self.kept.insert(slot);
            if flow.root[slot as usize] == slot {
                return;
            }
            let maker = flow.maker[slot as usize];
            let Some(&behind) = flow.ends[maker].reads.first() else {
                return;
            };
            let inside = (self.start..self.end).contains(&flow.maker[behind as usize]);
            let no_more = flow.bytes[behind as usize] <= flow.bytes[slot as usize];
            if !inside || !no_more || flow.param[behind as usize] {
                return;
            }
            slot = behind;
        }
    }

    /// Returns whether the backward can read a slot that a clone needs where it is.
    pub(super) fn stays<O: Op>(&self, slot: Slot, program: &Program<O>, flow: &Flow) -> bool {
        let maker = flow.maker[slot as usize];
        if flow.param[slot as usize] && flow.moves_param(maker, program) {
            // A gathered parameter: gathered again, unless the backward uses this very copy anyway.
            return flow.uses[slot as usize]
                .last()
                .is_some_and(|last| *last >= self.before);
        }
        !(self.start..self.end).contains(&maker)
            || self.kept.contains(&slot)
            || enters(&program.steps[maker])
    }

    /// Returns the steps to run again, in order.
    pub(super) fn closure<O: Op>(&self, program: &Program<O>, flow: &Flow) -> Vec<StepIndex> {
        let mut steps: BTreeSet<StepIndex> = BTreeSet::new();
        let mut wanted: Vec<Slot> = self
            .far
            .iter()
            .copied()
            .filter(|slot| !self.kept.contains(slot))
            .collect();
        while let Some(slot) = wanted.pop() {
            let maker = flow.maker[slot as usize];
            if steps.insert(maker) {
                let reads = flow.ends[maker].reads.iter().copied();
                wanted.extend(reads.filter(|read| !self.stays(*read, program, flow)));
            }
        }
        steps.into_iter().collect()
    }
}

/// Returns whether a step takes in a value from outside, which happens once.
fn enters<O: Op>(step: &ProgramStep<O>) -> bool {
    matches!(step, ProgramStep::Load { .. } | ProgramStep::Upload { .. })
}

/// A parameter gathered for a clone: it serves the backward of the same unit too.
struct Gathered {
    to: Slot,
    layout: Layout,
    /// The last segment in which it may serve.
    until: usize,
}

pub(super) fn rewrite<O: Op>(
    program: &mut Program<O>,
    flow: &Flow,
    visits: &Visits,
    sections: Vec<Section>,
) -> Recomputed {
    let mut done = Recomputed::default();
    let mut alias: Vec<Slot> = (0..program.slots.len() as Slot).collect();
    let mut at: HashMap<StepIndex, Vec<&Section>> = HashMap::new();
    for section in &sections {
        at.entry(section.before).or_default().push(section);
    }
    // By what they are gathered from.
    let mut gathered: HashMap<Slot, Vec<Gathered>> = HashMap::new();
    let mut steps: Vec<ProgramStep<O>> = Vec::with_capacity(program.steps.len());
    let originals = std::mem::take(&mut program.steps);
    // The closures look at the program as it was.
    program.steps = originals.clone();
    for (index, mut step) in originals.into_iter().enumerate() {
        for section in at.get(&index).into_iter().flatten() {
            let closure = section.closure(program, flow);
            done.visits += u64::from(!closure.is_empty());
            let here = visits.segment_of(index);
            let mut clones: HashMap<Slot, Slot> = HashMap::new();
            for source in closure {
                let mut again = clone(program, flow, source, &alias, &mut clones);
                stand_at(&mut again, step.at());
                if let ProgramStep::Move(moved) = &again
                    && flow.moves_param(source, program)
                {
                    let of = gathered.entry(moved.from).or_default();
                    // Segments rise: what served until then serves no more.
                    of.retain(|known| here <= known.until);
                    of.push(Gathered {
                        to: moved.to,
                        layout: moved.step.to.clone(),
                        until: here + 1,
                    });
                }
                done.ops += 1;
                done.collectives += u64::from(is_collective(&again));
                steps.push(again);
            }
            for slot in &section.far {
                if let Some(clone) = clones.get(slot) {
                    alias[*slot as usize] = *clone;
                }
            }
        }
        if let ProgramStep::Move(moved) = &step
            && flow.moves_param(index, program)
        {
            let here = visits.segment_of(index);
            let source = alias[moved.from as usize];
            let same = gathered
                .get(&source)
                .into_iter()
                .flatten()
                .find(|g| g.layout == moved.step.to && here <= g.until);
            if let Some(same) = same {
                alias[moved.to as usize] = same.to;
                continue;
            }
        }
        // It reads what stands for its operands by now.
        step.each_slot(|side, slot| {
            if side == Side::Input {
                *slot = alias[*slot as usize];
            }
        });
        steps.push(step);
    }
    program.steps = steps;
    done
}

/// Returns a copy of a step that makes new slots, from clones where there are any.
fn clone<O: Op>(
    program: &mut Program<O>,
    flow: &Flow,
    source: StepIndex,
    alias: &[Slot],
    clones: &mut HashMap<Slot, Slot>,
) -> ProgramStep<O> {
    for &slot in &flow.ends[source].writes {
        let info = program.slots[slot as usize].clone();
        clones.insert(slot, program.slots.len() as Slot);
        program.slots.push(info);
    }
    let current = |slot: Slot| -> Slot {
        let known = clones.get(&slot).or_else(|| alias.get(slot as usize));
        known.copied().unwrap_or(slot)
    };
    let mut step = program.steps[source].clone();
    step.each_slot(|_, slot| *slot = current(*slot));
    step
}

/// A clone belongs to where it stands, not to where its original stood.
fn stand_at<O: Op>(step: &mut ProgramStep<O>, place: Option<OpIndex>) {
    match (step, place) {
        (ProgramStep::Local(step), Some(place)) => step.at = place,
        (ProgramStep::Move(step), Some(place)) => step.at = place,
        _ => {}
    }
}
