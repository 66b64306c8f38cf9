//! The new order, as it is written: when to wait for reductions that are under way.
//!
//! A gradient is whole until its reduction has ended. Reductions are waited for
//!
//! - when something uses the result;
//! - before more gradients would be whole than two units that follow each other have, so that memory does not grow with
//!   what is under way;
//! - and once nothing more is launched, after every step that can do without them: the optimizer updates the parameters
//!   whose gradients are there, while the last ones arrive.

use std::collections::{HashSet, VecDeque};

use crate::op::Op;
use crate::propagate::{Common, Move};
use crate::task::Slot;

/// Reductions under way.
struct Open {
    group: u32,
    to: Vec<Slot>,
    bytes: u64,
}

pub(super) struct Queue<O> {
    steps: Vec<Common<O>>,
    /// Results of each gather, by group.
    gathers: Vec<(u32, Vec<Slot>)>,
    open: VecDeque<Open>,
    /// Bytes of the reductions that are still to be launched, in order.
    ahead: VecDeque<u64>,
    /// How many bytes of gradients may be whole.
    whole_max: u64,
    /// Once nothing more is launched: steps that wait for reductions, and what they make.
    deferred: Vec<Common<O>>,
    blocked: HashSet<Slot>,
}

impl<O: Op> Queue<O> {
    /// `launches` are the bytes of all reductions, in the order in which they will be launched.
    pub(super) fn new(launches: VecDeque<u64>, num_steps: usize) -> Self {
        let after = launches.iter().skip(1).chain([&0]);
        let whole_max = launches.iter().zip(after).map(|(a, b)| a + b).max();
        Self {
            steps: Vec::with_capacity(num_steps),
            gathers: Vec::new(),
            open: VecDeque::new(),
            ahead: launches,
            whole_max: whole_max.unwrap_or(0),
            deferred: Vec::new(),
            blocked: HashSet::new(),
        }
    }

    /// Launches gathers.
    pub(super) fn gather(&mut self, group: u32, moves: Vec<Move>) {
        self.settle(&moves.iter().map(|step| step.from).collect::<Vec<_>>());
        let to = moves.iter().map(|step| step.to).collect();
        self.gathers.push((group, to));
        self.steps.push(Common::Launch { group, moves });
    }

    /// Waits for one member of a gather.
    pub(super) fn gathered(&mut self, group: u32, member: usize) {
        let found = self.gathers.iter().rfind(|(known, _)| *known == group);
        if let Some(slot) = found.and_then(|(_, to)| to.get(member)) {
            self.steps.push(Common::Finish {
                group,
                to: vec![*slot],
            });
        }
    }

    /// Launches reductions.
    pub(super) fn reduce(&mut self, group: u32, moves: Vec<Move>) {
        self.settle(&moves.iter().map(|step| step.from).collect::<Vec<_>>());
        let bytes = self.ahead.pop_front().unwrap_or(0);
        let next = self.ahead.front().copied().unwrap_or(0);
        let whole = |open: &VecDeque<Open>| open.iter().map(|open| open.bytes).sum::<u64>();
        while whole(&self.open) + bytes + next > self.whole_max
            && let Some(oldest) = self.open.pop_front()
        {
            self.finish(oldest);
        }
        let to = moves.iter().map(|step| step.to).collect();
        self.steps.push(Common::Launch { group, moves });
        self.open.push_back(Open { group, to, bytes });
    }

    /// Adds a step that stays where it was, relative to what it depends on.
    pub(super) fn step(&mut self, step: Common<O>) {
        let used = step.reads();
        if matches!(step, Common::Send(_) | Common::Receive(_)) {
            // Another stage may wait for what is sent before: messages keep their places.
            if !self.deferred.is_empty() {
                self.catch_up();
            }
            self.settle(&used);
            self.steps.push(step);
            return;
        }
        if !self.ahead.is_empty() {
            self.settle(&used);
            self.steps.push(step);
            return;
        }
        match self.waits(&used) {
            true => self.defer(step),
            false => self.steps.push(step),
        }
    }

    /// The new order.
    pub(super) fn end(mut self) -> Vec<Common<O>> {
        self.catch_up();
        self.steps
    }

    /// Waits for what makes `slots`.
    fn settle(&mut self, slots: &[Slot]) {
        if slots.iter().any(|slot| self.blocked.contains(slot)) {
            self.catch_up();
        }
        let makes = |open: &Open| open.to.iter().any(|slot| slots.contains(slot));
        while let Some(index) = self.open.iter().position(makes)
            && let Some(open) = self.open.remove(index)
        {
            self.finish(open);
        }
    }

    /// Waits for reductions, and adds the deferred steps that waited for nothing else.
    fn finish(&mut self, open: Open) {
        let Open { group, to, .. } = open;
        self.steps.push(Common::Finish { group, to });
        self.blocked.clear();
        for step in std::mem::take(&mut self.deferred) {
            match self.waits(&step.reads()) {
                true => self.defer(step),
                false => self.steps.push(step),
            }
        }
    }

    /// Whether one of `slots` is still to be made: by a reduction under way, or by a step that waits for one.
    fn waits(&self, slots: &[Slot]) -> bool {
        let under_way = |slot| self.open.iter().any(|open| open.to.contains(slot));
        slots
            .iter()
            .any(|slot| self.blocked.contains(slot) || under_way(slot))
    }

    fn defer(&mut self, step: Common<O>) {
        self.blocked.extend(step.writes());
        self.deferred.push(step);
    }

    /// Waits for all reductions, oldest first.
    fn catch_up(&mut self) {
        while let Some(oldest) = self.open.pop_front() {
            self.finish(oldest);
        }
    }
}
