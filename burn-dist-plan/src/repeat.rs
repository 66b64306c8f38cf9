//! Repeat: the program of a step of a few microbatches becomes that of a step of many, for the clock.
//!
//! ```text
//! planned    0  1  2  3              update     2 and 3 do the same
//! repeated   0  1  2  3  3' 3'' 3''' update     what 3 takes of 2, 3' takes of 3; the update takes what 3''' leaves
//! ```
//!
//! The last microbatch is repeated, or the one before it, if it does what the one before itself does: the same steps on
//! slots of the same layouts, which are its own where the other has its own, and else those that the other takes, or
//! what the other has made (sums of gradients). That is checked step by step and never assumed. Where every second one
//! does the same, as under checkpointing, two are repeated together.
//!
//! The pass comes before `staging`, so that order, transfers, gathers, reductions, last uses and memory of the longer
//! program are found as those of any other. Law: the result is the plan of a window of as many microbatches, but for
//! the names of slots, if data enters microbatch by microbatch.
//!
//! Not here: running such a plan. Copies have the scalars, random streams and reads of what they repeat.

use std::ops::Range;

use crate::error::PlanError;
use crate::op::Op;
use crate::propagate::{Common, Program};
use crate::staging::{Part, count, has_backward};
use crate::task::Slot;
use crate::units::Visits;

/// Repeats a microbatch of `program` until there are `microbatches`; a program of as many or more, or without a backward,
/// stays as it is.
///
/// # Errors
/// [`PlanError::Repeat`] if neither of the last two microbatches does what the one before it does.
pub(super) fn repeat<O: Op>(
    program: &mut Program<O>,
    parts: &mut Vec<Part>,
    visits: &mut Visits,
    microbatches: u32,
) -> Result<(), PlanError> {
    let planned = count(parts);
    let copies = microbatches.saturating_sub(planned);
    if copies == 0 || !has_backward(parts) {
        return Ok(());
    }
    let groups = Groups::new(program, parts);
    let mut reason = None;
    // The last ones, or those before them where the last one does more, such as to reduce gradients.
    for (size, end) in [
        (1, planned),
        (1, planned - 1),
        (2, planned),
        (2, planned - 1),
    ] {
        if end < 2 * size || !copies.is_multiple_of(size) {
            continue;
        }
        let found = Pattern::find(program, (parts, visits), &groups, end - size..end);
        let repeated = found.and_then(|pattern| {
            let copier = Copier::new(program, parts, &groups, &pattern, copies / size);
            copier.copy(program).map(|steps| (steps, pattern))
        });
        match repeated {
            Ok((steps, pattern)) => {
                pattern.extend(program, parts, visits, copies / size);
                program.steps = steps;
                return Ok(());
            }
            Err(problem) => reason = reason.or(Some(problem)),
        }
    }
    Err(PlanError::Repeat {
        planned,
        microbatches,
        reason: reason.unwrap_or_else(|| "there is no other to compare it with".into()),
    })
}

/// The microbatch that each step, and what makes each slot, belongs to.
struct Groups {
    of_step: Vec<Option<u32>>,
    of_slot: Vec<Option<u32>>,
}

impl Groups {
    fn new<O: Op>(program: &Program<O>, parts: &[Part]) -> Self {
        let of_part = |at: u32| parts[at as usize].used_in;
        let steps = program.steps.iter();
        let mut of_step: Vec<Option<u32>> = steps.map(|step| step.at().and_then(of_part)).collect();
        // What enters, or is drawn, for one microbatch alone belongs to it.
        let mut used: Vec<Option<Option<u32>>> = vec![None; program.slots.len()];
        for (step, group) in program.steps.iter().zip(&of_step) {
            for slot in step.reads() {
                let used = &mut used[slot as usize];
                *used = match used {
                    Some(other) if other != group => Some(None),
                    _ => Some(*group),
                };
            }
        }
        for (step, group) in program.steps.iter().zip(&mut of_step) {
            if let Common::Upload { slot, .. } | Common::Random { slot, .. } = step {
                *group = used[*slot as usize].flatten();
            }
        }
        let mut of_slot = vec![None; program.slots.len()];
        for (step, group) in program.steps.iter().zip(&of_step) {
            for slot in step.writes() {
                of_slot[slot as usize] = *group;
            }
        }
        Self { of_step, of_slot }
    }

    fn of_slot(&self, slot: Slot) -> Option<u32> {
        self.of_slot[slot as usize]
    }
}

/// Microbatches that do what as many before them do.
struct Pattern {
    again: Range<u32>,
    before: Range<u32>,
    /// Their steps, in order, without reads.
    steps: Vec<usize>,
    /// What they make.
    slots: Vec<Slot>,
    /// By slot of those before them, the slot that they have instead; [`Slot::MAX`] of all others.
    instead: Vec<Slot>,
    /// How many visits of units they are behind those before them.
    visits: u32,
}

impl Pattern {
    fn find<O: Op>(
        program: &Program<O>,
        (parts, visits): (&[Part], &Visits),
        groups: &Groups,
        again: Range<u32>,
    ) -> Result<Self, String> {
        let before = again.start - (again.end - again.start)..again.start;
        let of = |microbatches: &Range<u32>| -> Vec<usize> {
            let steps = groups.of_step.iter().enumerate();
            let steps = steps.filter(|(_, group)| is_in(**group, microbatches));
            steps.map(|(index, _)| index).collect()
        };
        let (others, steps) = (of(&before), of(&again));
        let (one, two) = (again.end - 1, before.end - 1);
        if ops_of(parts, &before).len() != ops_of(parts, &again).len() {
            return Err(format!("microbatch {one} has other operations than {two}"));
        }
        if others.len() != steps.len() {
            return Err(format!(
                "microbatch {one} takes {} steps, and {two} {}",
                steps.len(),
                others.len()
            ));
        }
        let mut pattern = Self {
            again: again.clone(),
            before: before.clone(),
            slots: Vec::new(),
            instead: vec![Slot::MAX; program.slots.len()],
            visits: 0,
            steps,
        };
        let mut apart = None;
        for (other, index) in others.iter().zip(&pattern.steps) {
            let (other, step) = (&program.steps[*other], &program.steps[*index]);
            let unlike = || {
                format!(
                    "microbatch {one} does not do what {two} does, at {}",
                    name(step)
                )
            };
            if !is_alike(other, step) {
                return Err(unlike());
            }
            if let (Some(one), Some(two)) = (other.at(), step.at()) {
                let found = visits.of(two).checked_sub(visits.of(one));
                if found.is_none() || *apart.get_or_insert(found) != found {
                    return Err(unlike());
                }
            }
            let (reads, their_reads) = (step.reads(), other.reads());
            let (made, their_made) = (step.writes(), other.writes());
            let mut taken = reads.iter().zip(&their_reads);
            let takes_its_own = taken.all(|(slot, theirs)| match groups.of_slot(*slot) {
                group if is_in(group, &again) => pattern.instead[*theirs as usize] == *slot,
                // The other has something of an earlier one.
                group if is_in(group, &before) => {
                    let group = groups.of_slot(*theirs);
                    group.is_some_and(|group| group < before.start)
                }
                _ => slot == theirs,
            });
            let slot = |slot: Slot| &program.slots[slot as usize];
            let mut pairs = made.iter().zip(&their_made);
            let makes_alike = pairs.all(|(made, theirs)| {
                let (made, theirs) = (slot(*made), slot(*theirs));
                made.layout == theirs.layout && made.dtype == theirs.dtype
            });
            let has_as_many = reads.len() == their_reads.len() && made.len() == their_made.len();
            if !(has_as_many && takes_its_own && makes_alike) {
                return Err(unlike());
            }
            for (made, theirs) in made.into_iter().zip(their_made) {
                pattern.instead[theirs as usize] = made;
                pattern.slots.push(made);
            }
        }
        pattern.visits = apart.flatten().unwrap_or(0);
        // What others take of the first, and not of the last, no copy would stand for.
        for (step, group) in program.steps.iter().zip(&groups.of_step) {
            let is_one = is_in(*group, &before) || is_in(*group, &again);
            if is_one || matches!(step, Common::Read { .. }) {
                continue;
            }
            let mut reads = step.reads().into_iter();
            if let Some(slot) = reads.find(|slot| is_in(groups.of_slot(*slot), &before)) {
                return Err(format!(
                    "{} takes s{slot} of microbatch {two}, and nothing takes it of {one}",
                    name(step)
                ));
            }
        }
        Ok(pattern)
    }

    /// Adds the slots and the operations of the copies to what is known by number.
    fn extend<O>(
        &self,
        program: &mut Program<O>,
        parts: &mut Vec<Part>,
        visits: &mut Visits,
        copies: u32,
    ) {
        let ops = ops_of(parts, &self.again);
        let end = self.again.end;
        let comes_later = |op: usize| parts[op].used_in.is_none_or(|group| group >= end);
        visits.repeat(&ops, comes_later, copies, self.visits);
        let size = end - self.again.start;
        for part in parts.iter_mut() {
            if let Some(group) = part.used_in.filter(|group| *group >= end) {
                part.used_in = Some(group + copies * size);
                part.microbatch += copies * size;
            }
        }
        for copy in 1..=copies {
            for op in &ops {
                let part = parts[*op as usize];
                let later = copy * size;
                parts.push(Part {
                    microbatch: part.microbatch + later,
                    used_in: part.used_in.map(|group| group + later),
                    ..part
                });
            }
            for slot in &self.slots {
                let info = program.slots[*slot as usize].clone();
                program.slots.push(info);
            }
        }
    }
}

/// Returns the operations of some microbatches.
fn ops_of(parts: &[Part], microbatches: &Range<u32>) -> Vec<u32> {
    let all = (0..).zip(parts);
    let mine = all.filter(|(_, part)| is_in(part.used_in, microbatches));
    mine.map(|(op, _)| op).collect()
}

fn is_in(group: Option<u32>, microbatches: &Range<u32>) -> bool {
    group.is_some_and(|group| microbatches.contains(&group))
}

/// Returns whether two steps cost the same, whatever their slots are.
fn is_alike<O: Op>(one: &Common<O>, two: &Common<O>) -> bool {
    match (one, two) {
        (Common::Local(one), Common::Local(two)) => {
            one.op.name() == two.op.name()
                && one.path == two.path
                && one.inputs == two.inputs
                && one.outputs == two.outputs
                && one.assignment == two.assignment
        }
        (Common::Move(one), Common::Move(two)) => {
            one.step == two.step && one.path == two.path && one.reason == two.reason
        }
        (Common::Upload { .. }, Common::Upload { .. })
        | (Common::Random { .. }, Common::Random { .. }) => true,
        _ => false,
    }
}

/// Names a step, for people.
fn name<O: Op>(step: &Common<O>) -> String {
    let what = match step {
        Common::Local(step) => step.op.name(),
        Common::Move(_) => "a redistribution",
        Common::Upload { .. } => "an upload",
        Common::Random { .. } => "random numbers",
        Common::Store { .. } => "what outlives the step",
        _ => "a step",
    };
    match step.path() {
        Some(path) => format!("{what} of {path}"),
        None => what.to_owned(),
    }
}

/// Writes the steps of a program with copies of microbatches.
struct Copier<'a> {
    groups: &'a Groups,
    pattern: &'a Pattern,
    copies: u32,
    /// By slot of the microbatches, its number among what they make.
    slots: Vec<u32>,
    /// By operation of theirs, its number among theirs; likewise of those before them.
    ops: Vec<Option<u32>>,
    ops_before: Vec<Option<u32>>,
    /// Theirs.
    mine: Vec<u32>,
    /// The slots that are there.
    made: Vec<bool>,
}

impl<'a> Copier<'a> {
    fn new<O>(
        program: &Program<O>,
        parts: &[Part],
        groups: &'a Groups,
        pattern: &'a Pattern,
        copies: u32,
    ) -> Self {
        let mut slots = vec![u32::MAX; program.slots.len()];
        for (number, slot) in (0..).zip(&pattern.slots) {
            slots[*slot as usize] = number;
        }
        let number = |ops: &[u32]| {
            let mut numbers = vec![None; parts.len()];
            for (number, op) in (0..).zip(ops) {
                numbers[*op as usize] = Some(number);
            }
            numbers
        };
        let mine = ops_of(parts, &pattern.again);
        let num_slots = slots.len() + pattern.slots.len() * copies as usize;
        Self {
            groups,
            pattern,
            copies,
            slots,
            ops: number(&mine),
            ops_before: number(&ops_of(parts, &pattern.before)),
            mine,
            made: vec![false; num_slots],
        }
    }

    /// Returns the steps, or what a step would use before it is made.
    fn copy<O: Op>(mut self, program: &Program<O>) -> Result<Vec<Common<O>>, String> {
        let pattern = self.pattern;
        let Some(&end) = pattern.steps.last() else {
            return Err(format!("microbatch {} takes no steps", pattern.again.start));
        };
        let num_copied = pattern.steps.len() * self.copies as usize;
        let mut out = Vec::with_capacity(program.steps.len() + num_copied);
        let is_later = |index: usize| {
            let group = self.groups.of_step[index];
            group.is_some_and(|group| group >= pattern.again.end)
        };
        let (later, first): (Vec<usize>, Vec<usize>) =
            (0..=end).partition(|index| is_later(*index));
        let read: Vec<Slot> = program.steps.iter().filter_map(read_slot).collect();
        for index in first {
            self.push(&mut out, program.steps[index].clone())?;
        }
        for copy in 1..=self.copies {
            for index in &pattern.steps {
                let mut step = program.steps[*index].clone();
                self.rename(&mut step, copy);
                self.push(&mut out, step)?;
            }
        }
        for index in later.into_iter().chain(end + 1..program.steps.len()) {
            let step = &program.steps[index];
            let of_copied = |slot: &Slot| is_in(self.groups.of_slot(*slot), &pattern.again);
            if let Some(slot) = read_slot(step).filter(of_copied)
                && read
                    .iter()
                    .any(|read| pattern.instead[*read as usize] == slot)
            {
                // Read of each microbatch.
                self.push(&mut out, step.clone())?;
                for copy in 1..=self.copies {
                    let mut step = step.clone();
                    self.rename(&mut step, copy);
                    self.push(&mut out, step)?;
                }
                continue;
            }
            let mut step = step.clone();
            if !is_in(self.groups.of_step[index], &pattern.again) {
                let last = |slot: Slot| match of_copied(&slot) {
                    true => self.slot(slot, self.copies),
                    false => slot,
                };
                each_slot(&mut step, |slot| *slot = last(*slot));
                each_op(&mut step, |op| {
                    if let Some(number) = self.ops[*op as usize] {
                        *op = self.op(number, self.copies);
                    }
                });
            }
            self.push(&mut out, step)?;
        }
        Ok(out)
    }

    fn push<O: Op>(&mut self, out: &mut Vec<Common<O>>, step: Common<O>) -> Result<(), String> {
        if step.reads().iter().any(|slot| !self.made[*slot as usize]) {
            return Err(format!(
                "{} would take what microbatch {} makes later",
                name(&step),
                self.pattern.again.start
            ));
        }
        for slot in step.writes() {
            self.made[slot as usize] = true;
        }
        out.push(step);
        Ok(())
    }

    /// Returns what a copy has for a slot that the microbatches make.
    fn slot(&self, slot: Slot, copy: u32) -> Slot {
        match copy {
            0 => slot,
            _ => {
                let first = self.slots.len() as u32 + (copy - 1) * self.pattern.slots.len() as u32;
                first + self.slots[slot as usize]
            }
        }
    }

    /// Makes a step of the microbatches that of a copy.
    fn rename<O: Op>(&self, step: &mut Common<O>, copy: u32) {
        let pattern = self.pattern;
        each_slot(step, |slot| match self.groups.of_slot(*slot) {
            group if is_in(group, &pattern.again) => *slot = self.slot(*slot, copy),
            // What they take of those before them, a copy takes of those before the copy.
            group if is_in(group, &pattern.before) => {
                *slot = self.slot(pattern.instead[*slot as usize], copy - 1);
            }
            _ => {}
        });
        each_op(step, |op| {
            let (own, before) = (self.ops[*op as usize], self.ops_before[*op as usize]);
            match (own, before) {
                (Some(number), _) => *op = self.op(number, copy),
                (None, Some(number)) => *op = self.op(number, copy - 1),
                (None, None) => {}
            }
        });
    }

    /// Returns the operation that a copy has for one of the microbatches.
    fn op(&self, number: u32, copy: u32) -> u32 {
        let num_mine = self.mine.len() as u32;
        match copy {
            0 => self.mine[number as usize],
            _ => self.ops.len() as u32 + (copy - 1) * num_mine + number,
        }
    }
}

fn read_slot<O>(step: &Common<O>) -> Option<Slot> {
    match step {
        Common::Read { slot, .. } => Some(*slot),
        _ => None,
    }
}

/// Lets `edit` change the slots of a step.
fn each_slot<O: Op>(step: &mut Common<O>, edit: impl Fn(&mut Slot)) {
    match step {
        Common::Local(step) => step.op.rewire(|_, wire| {
            if wire.id != Slot::MAX {
                edit(&mut wire.id);
            }
        }),
        Common::Move(step) => {
            edit(&mut step.from);
            edit(&mut step.to);
        }
        Common::Load { slot, .. }
        | Common::Upload { slot, .. }
        | Common::Random { slot, .. }
        | Common::Store { slot, .. }
        | Common::Read { slot, .. } => edit(slot),
        // Made by later passes.
        Common::Launch { .. } | Common::Finish { .. } | Common::Send(_) | Common::Receive(_) => {}
    }
}

/// Lets `edit` change the operations that a step stands at, and is.
fn each_op<O>(step: &mut Common<O>, edit: impl Fn(&mut u32)) {
    match step {
        Common::Local(step) => {
            edit(&mut step.at);
            edit(&mut step.of);
        }
        Common::Move(step) => edit(&mut step.at),
        _ => {}
    }
}
