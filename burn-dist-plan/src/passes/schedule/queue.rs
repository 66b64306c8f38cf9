//! The new order, as it is written: when to wait for reductions that are under way.
//!
//! A gradient is whole until its reduction has ended. Reductions are waited for
//!
//! - when something uses the result;
//! - before more gradients would be whole than two units that follow each other have, so that memory does not grow with
//!   what is under way;
//! - and once nothing more is launched, after every step that can do without them: the optimizer updates the parameters
//!   whose gradients are there, while the last ones arrive.
//!
//! Reductions of what others leave (HSDP: scattered over one axis, then reduced over another) are launched as soon as
//! these have been waited for, and never wait for them themselves. So each of the two has the work of a unit to hide
//! behind. They come after all that was launched before, and are waited for before what is launched later: of them,
//! too, no more are under way than of two units. Before the last gradients are launched, those of all others are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ir::{Move, Op, ProgramStep, Slot};

/// Reductions that start together, and those of what they leave.
pub(super) struct Reductions {
    pub group: u32,
    pub moves: Vec<Move>,
    /// True if they are the last ones of gradients.
    pub is_last: bool,
    pub then: Vec<Reductions>,
}

impl Reductions {
    /// Calls `each` with the results of them all.
    fn results(&self, each: &mut impl FnMut(Slot)) {
        self.moves.iter().for_each(|step| each(step.to));
        self.then.iter().for_each(|next| next.results(each));
    }
}

/// Reductions under way.
struct Open {
    group: u32,
    to: Vec<Slot>,
    /// Of gradients that are whole.
    bytes: u64,
    is_last: bool,
    then: Vec<Reductions>,
}

/// Number of a launch of reductions, in order.
type Launch = u64;

pub(super) struct Queue<O> {
    steps: Vec<ProgramStep<O>>,
    /// Results of each gather.
    gathers: FxHashMap<u32, Vec<Slot>>,
    open: BTreeMap<Launch, Open>,
    launches: Launch,
    /// What has to be waited for next until there is a result of a reduction.
    makes: FxHashMap<Slot, Launch>,
    /// Bytes of gradients whose reduction is under way.
    whole: u64,
    /// Bytes of the reductions of gradients that are still to be launched, in order.
    ahead: VecDeque<u64>,
    /// How many bytes of gradients may be whole.
    whole_max: u64,
    deferred: Deferred<O>,
}

/// Once nothing more is launched: steps that wait for reductions, in order.
struct Deferred<O> {
    /// Each with the number of its operands that are still to be made; nothing of those that were added since.
    steps: Vec<Option<(ProgramStep<O>, usize)>>,
    count: usize,
    /// The steps that wait for each slot.
    waiting: FxHashMap<Slot, Vec<usize>>,
    /// What they make.
    blocked: FxHashSet<Slot>,
}

impl<O: Op> Deferred<O> {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a step that waits for `missing`.
    fn push(&mut self, step: ProgramStep<O>, missing: Vec<Slot>) {
        let index = self.steps.len();
        let count = missing.len();
        for slot in missing {
            self.waiting.entry(slot).or_default().push(index);
        }
        self.blocked.extend(step.writes());
        self.steps.push(Some((step, count)));
        self.count += 1;
    }

    /// Takes the steps, in order, that wait for nothing else once `made` are there.
    fn take(&mut self, made: &[Slot], out: &mut Vec<ProgramStep<O>>) {
        let mut ready = BinaryHeap::new();
        for slot in made {
            self.arrive(*slot, &mut ready);
        }
        while let Some(Reverse(index)) = ready.pop() {
            let Some((step, _)) = self.steps[index].take() else {
                continue;
            };
            self.count -= 1;
            for slot in step.writes() {
                self.blocked.remove(&slot);
                self.arrive(slot, &mut ready);
            }
            out.push(step);
        }
    }

    fn arrive(&mut self, slot: Slot, ready: &mut BinaryHeap<Reverse<usize>>) {
        for index in self.waiting.remove(&slot).into_iter().flatten() {
            if let Some((_, missing)) = &mut self.steps[index] {
                *missing -= 1;
                ready.extend((*missing == 0).then_some(Reverse(index)));
            }
        }
    }
}

impl<O: Op> Queue<O> {
    /// `launches` are the bytes of all reductions of gradients, in the order in which they will be launched.
    pub(super) fn new(launches: VecDeque<u64>, num_steps: usize) -> Self {
        let after = launches.iter().skip(1).chain([&0]);
        let whole_max = launches.iter().zip(after).map(|(a, b)| a + b).max();
        Self {
            steps: Vec::with_capacity(num_steps),
            gathers: FxHashMap::default(),
            open: BTreeMap::new(),
            launches: 0,
            makes: FxHashMap::default(),
            whole: 0,
            ahead: launches,
            whole_max: whole_max.unwrap_or(0),
            deferred: Deferred {
                steps: Vec::new(),
                count: 0,
                waiting: FxHashMap::default(),
                blocked: FxHashSet::default(),
            },
        }
    }

    /// Launches gathers.
    pub(super) fn gather(&mut self, group: u32, moves: Vec<Move>) {
        self.settle(&moves.iter().map(|step| step.from).collect::<Vec<_>>());
        let to = moves.iter().map(|step| step.to).collect();
        self.gathers.insert(group, to);
        self.steps.push(ProgramStep::Launch { group, moves });
    }

    /// Waits for one member of a gather.
    pub(super) fn gathered(&mut self, group: u32, member: usize) {
        let found = self.gathers.get(&group);
        if let Some(slot) = found.and_then(|to| to.get(member)) {
            self.steps.push(ProgramStep::Finish {
                group,
                to: vec![*slot],
            });
        }
    }

    /// Launches reductions of gradients.
    pub(super) fn reduce(&mut self, reductions: Reductions) {
        let operands = reductions.moves.iter().map(|step| step.from);
        self.settle(&operands.collect::<Vec<_>>());
        let bytes = self.ahead.pop_front().unwrap_or(0);
        let next = self.ahead.front().copied().unwrap_or(0);
        while self.whole + bytes + next > self.whole_max
            && let Some(oldest) = self.open.keys().next()
        {
            self.finish(*oldest);
        }
        if reductions.is_last {
            let waits = |(launch, open): (&Launch, &Open)| {
                (!open.is_last && !open.then.is_empty()).then_some(*launch)
            };
            let waiting: Vec<Launch> = self.open.iter().filter_map(waits).collect();
            waiting.into_iter().for_each(|launch| self.finish(launch));
        }
        self.launch(reductions, bytes);
    }

    fn launch(&mut self, reductions: Reductions, bytes: u64) {
        let (launch, makes) = (self.launches, &mut self.makes);
        reductions.results(&mut |slot| {
            makes.insert(slot, launch);
        });
        let Reductions {
            group,
            moves,
            is_last,
            then,
        } = reductions;
        let to = moves.iter().map(|step| step.to).collect();
        self.steps.push(ProgramStep::Launch { group, moves });
        let open = Open {
            group,
            to,
            bytes,
            is_last,
            then,
        };
        self.open.insert(launch, open);
        self.launches += 1;
        self.whole += bytes;
    }

    /// Adds a step that stays where it was, relative to what it depends on.
    pub(super) fn step(&mut self, step: ProgramStep<O>) {
        let used = step.reads();
        if matches!(step, ProgramStep::Send(_) | ProgramStep::Receive(_)) {
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
        let mut missing = used;
        missing
            .retain(|slot| self.makes.contains_key(slot) || self.deferred.blocked.contains(slot));
        match missing.is_empty() {
            true => self.steps.push(step),
            false => self.deferred.push(step, missing),
        }
    }

    /// The new order.
    pub(super) fn end(mut self) -> Vec<ProgramStep<O>> {
        self.catch_up();
        self.steps
    }

    /// Waits for what makes `slots`.
    fn settle(&mut self, slots: &[Slot]) {
        if slots
            .iter()
            .any(|slot| self.deferred.blocked.contains(slot))
        {
            self.catch_up();
        }
        loop {
            let makers = slots.iter().filter_map(|slot| self.makes.get(slot));
            let mut makers: Vec<Launch> = makers.copied().collect();
            if makers.is_empty() {
                return;
            }
            makers.sort_unstable();
            makers.dedup();
            makers.into_iter().for_each(|launch| self.finish(launch));
        }
    }

    /// Waits for reductions, launches those of what they leave, and adds the deferred steps that waited for nothing
    /// else.
    fn finish(&mut self, launch: Launch) {
        let Some(open) = self.open.remove(&launch) else {
            return;
        };
        self.whole -= open.bytes;
        for slot in &open.to {
            self.makes.remove(slot);
        }
        let (group, to) = (open.group, open.to);
        self.steps.push(ProgramStep::Finish {
            group,
            to: to.clone(),
        });
        // What is left is pieces.
        open.then.into_iter().for_each(|next| self.launch(next, 0));
        self.deferred.take(&to, &mut self.steps);
    }

    /// Waits for all reductions, oldest first.
    fn catch_up(&mut self) {
        while let Some(oldest) = self.open.keys().next() {
            self.finish(*oldest);
        }
    }
}
