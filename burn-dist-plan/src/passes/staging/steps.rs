//! The steps of a program by number, those of repeated microbatches included: what each reads and makes, at hand
//! without the step itself, which is written down when it is wanted.

use super::repeat::Repeated;
use crate::ir::{Op, Program, ProgramStep, Slot};

/// Slots of each step, one after the other.
#[derive(Default)]
struct Lists {
    slots: Vec<Slot>,
    /// Where the next step's begin.
    ends: Vec<u32>,
}

impl Lists {
    fn push(&mut self, slots: impl Iterator<Item = Slot>) {
        self.slots.extend(slots);
        self.ends.push(self.slots.len() as u32);
    }

    fn get(&self, index: usize) -> &[Slot] {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.slots[start as usize..self.ends[index] as usize]
    }
}

pub(super) struct Steps<'a, O> {
    program: &'a Program<O>,
    repeated: Option<&'a Repeated>,
    reads: Lists,
    writes: Lists,
    /// The operations at which each stands, and which it is; see [`ProgramStep::at`] and [`ProgramStep::stage_of`].
    ops: Vec<[Option<u32>; 2]>,
}

impl<'a, O: Op> Steps<'a, O> {
    pub(super) fn new(program: &'a Program<O>, repeated: Option<&'a Repeated>) -> Self {
        let mut this = Self {
            program,
            repeated,
            reads: Lists::default(),
            writes: Lists::default(),
            ops: Vec::new(),
        };
        let slots = |slots: Vec<Slot>, index| {
            let slots = slots.into_iter();
            slots.map(move |slot| repeated.map_or(slot, |of| of.slot(index, slot)))
        };
        for index in 0..this.len() {
            let step = this.recorded(index);
            let op = |op: Option<u32>| op.map(|op| repeated.map_or(op, |of| of.op(index, op)));
            this.reads.push(slots(step.reads(), index));
            this.writes.push(slots(step.writes(), index));
            this.ops.push([op(step.at()), op(step.stage_of())]);
        }
        this
    }

    pub(super) fn len(&self) -> usize {
        self.repeated
            .map_or(self.program.steps.len(), Repeated::len)
    }

    /// Returns the step of the program that it is, or is a copy of.
    pub(super) fn recorded(&self, index: usize) -> &'a ProgramStep<O> {
        let index = self.repeated.map_or(index, |of| of.recorded(index));
        &self.program.steps[index]
    }

    pub(super) fn reads(&self, index: usize) -> &[Slot] {
        self.reads.get(index)
    }

    pub(super) fn writes(&self, index: usize) -> &[Slot] {
        self.writes.get(index)
    }

    /// Returns the operation at which it stands, and the one that it is.
    pub(super) fn ops(&self, index: usize) -> [Option<u32>; 2] {
        self.ops[index]
    }
}
