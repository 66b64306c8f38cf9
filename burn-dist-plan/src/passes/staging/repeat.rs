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

use std::collections::HashSet;
use std::ops::Range;

use super::parts::{Part, count, has_backward};
use crate::error::PlanError;
use crate::facts::Visits;
use crate::ir::{Op, Program, ProgramStep, Slot};

/// Repeats a microbatch of `program` until there are `microbatches`; `None` of a program of as many or more, or without
/// a backward. `program` then has the slots of all of them, `parts` and `visits` their operations.
///
/// # Errors
/// [`PlanError::Repeat`] if neither of the last two microbatches does what the one before it does.
pub(crate) fn repeat<O: Op>(
    program: &mut Program<O>,
    parts: &mut Vec<Part>,
    visits: &mut Visits,
    microbatches: u32,
) -> Result<Option<Repeated>, PlanError> {
    let planned = count(parts);
    let copies = microbatches.saturating_sub(planned);
    if copies == 0 || !has_backward(parts) {
        return Ok(None);
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
        let copies = copies / size;
        let repeated = found.and_then(|pattern| {
            let repeated = Repeated::new(program, parts, &groups, &pattern, copies)?;
            Ok((repeated, pattern))
        });
        match repeated {
            Ok((repeated, pattern)) => {
                pattern.extend(program, parts, visits, copies);
                return Ok(Some(repeated));
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
        // What is made for an update by an operation of a microbatch belongs to that, as in the order of a stage.
        let of_step = |step: &ProgramStep<O>| {
            let mut ops = [step.at(), step.stage_of()].into_iter().flatten();
            ops.find_map(|op| parts[op as usize].used_in)
        };
        let mut of_step: Vec<Option<u32>> = program.steps.iter().map(of_step).collect();
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
            if let ProgramStep::Upload { slot, .. } | ProgramStep::Random { slot, .. } = step {
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
            if is_one || matches!(step, ProgramStep::Read { .. }) {
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
fn is_alike<O: Op>(one: &ProgramStep<O>, two: &ProgramStep<O>) -> bool {
    match (one, two) {
        (ProgramStep::Local(one), ProgramStep::Local(two)) => {
            one.op.name() == two.op.name()
                && one.path == two.path
                && one.inputs == two.inputs
                && one.outputs == two.outputs
                && one.assignment == two.assignment
        }
        (ProgramStep::Move(one), ProgramStep::Move(two)) => {
            one.step == two.step && one.path == two.path && one.reason == two.reason
        }
        (ProgramStep::Upload { .. }, ProgramStep::Upload { .. })
        | (ProgramStep::Random { .. }, ProgramStep::Random { .. }) => true,
        _ => false,
    }
}

/// Names a step, for people.
fn name<O: Op>(step: &ProgramStep<O>) -> String {
    let what = match step {
        ProgramStep::Local(step) => step.op.name(),
        ProgramStep::Move(_) => "a redistribution",
        ProgramStep::Upload { .. } => "an upload",
        ProgramStep::Random { .. } => "random numbers",
        ProgramStep::Store { .. } => "what outlives the step",
        _ => "a step",
    };
    match step.path() {
        Some(path) => format!("{what} of {path}"),
        None => what.to_owned(),
    }
}

/// What a step of the longer program is made of.
#[derive(Clone, Copy)]
struct Ref {
    /// The step of the recorded program.
    step: u32,
    /// The copy that it belongs to; 0 of what is as recorded.
    copy: u32,
    /// True if it follows the copies: then it takes what the last of them has made.
    follows: bool,
}

/// The step of a program in which microbatches are repeated, by number. They are written down one by one.
pub(crate) struct Repeated {
    steps: Vec<Ref>,
    copies: u32,
    num_slots: u32,
    num_copied: u32,
    /// By slot that the repeated microbatches make, or those before them, its number among what they make.
    slots: Vec<Number>,
    /// By operation, likewise.
    ops: Vec<Number>,
    /// What the repeated microbatches have by number.
    own_slots: Vec<Slot>,
    own_ops: Vec<u32>,
}

/// What something is to copies.
#[derive(Clone, Copy)]
enum Number {
    /// The same in all of them.
    Shared,
    /// They have their own.
    Own(u32),
    /// They have that of the copy before.
    Before(u32),
}

impl Repeated {
    /// Returns the steps, or what a step would use before it is made.
    fn new<O: Op>(
        program: &Program<O>,
        parts: &[Part],
        groups: &Groups,
        pattern: &Pattern,
        copies: u32,
    ) -> Result<Self, String> {
        let (own_ops, own_slots) = (ops_of(parts, &pattern.again), pattern.slots.clone());
        let mut ops = vec![Number::Shared; parts.len()];
        for (number, op) in (0..).zip(ops_of(parts, &pattern.before)) {
            ops[op as usize] = Number::Before(number);
        }
        for (number, op) in (0..).zip(&own_ops) {
            ops[*op as usize] = Number::Own(number);
        }
        let mut slots = vec![Number::Shared; program.slots.len()];
        for (number, slot) in (0..).zip(&own_slots) {
            slots[*slot as usize] = Number::Own(number);
        }
        for (slot, instead) in pattern.instead.iter().enumerate() {
            if *instead != Slot::MAX
                && let Number::Own(number) = slots[*instead as usize]
            {
                slots[slot] = Number::Before(number);
            }
        }
        let mut this = Self {
            steps: Vec::new(),
            copies,
            num_slots: slots.len() as u32,
            num_copied: own_slots.len() as u32,
            slots,
            ops,
            own_slots,
            own_ops,
        };
        this.order(program, groups, pattern);
        this.check(program)?;
        Ok(this)
    }

    /// Puts the steps in order.
    fn order<O: Op>(&mut self, program: &Program<O>, groups: &Groups, pattern: &Pattern) {
        let end = pattern.steps.last().map_or(0, |last| last + 1);
        let (mut first, mut later) = (Vec::new(), Vec::new());
        // What belongs to no microbatch comes after the copies if it takes what they make, or what comes after them.
        let mut made_later = vec![false; program.slots.len()];
        for (index, step) in program.steps[..end].iter().enumerate() {
            let is_later = match groups.of_step[index] {
                Some(group) => group >= pattern.again.end,
                None => step.reads().iter().any(|slot| {
                    made_later[*slot as usize] || is_in(groups.of_slot(*slot), &pattern.again)
                }),
            };
            if is_later {
                for slot in step.writes() {
                    made_later[slot as usize] = true;
                }
                later.push(index);
            } else {
                first.push(index);
            }
        }
        let copied = pattern.steps.len() * self.copies as usize;
        self.steps.reserve(program.steps.len() + copied);
        let mut push = |step: usize, copy: u32, follows: bool| {
            let step = step as u32;
            self.steps.push(Ref {
                step,
                copy,
                follows,
            });
        };
        first.into_iter().for_each(|index| push(index, 0, false));
        for copy in 1..=self.copies {
            pattern
                .steps
                .iter()
                .for_each(|index| push(*index, copy, false));
        }
        let read = program.steps.iter().filter_map(read_slot);
        let read: HashSet<Slot> = read.map(|slot| pattern.instead[slot as usize]).collect();
        for index in later.into_iter().chain(end..program.steps.len()) {
            let copied = read_slot(&program.steps[index])
                .filter(|slot| matches!(self.slots[*slot as usize], Number::Own(_)))
                .filter(|slot| read.contains(slot));
            // What is read of each microbatch is read of each copy.
            match copied {
                Some(_) => (0..=self.copies).for_each(|copy| push(index, copy, false)),
                None => push(index, 0, true),
            }
        }
    }

    /// Checks that nothing is used before it is made.
    fn check<O: Op>(&self, program: &Program<O>) -> Result<(), String> {
        let num_slots = self.num_slots + self.num_copied * self.copies;
        let mut made = vec![false; num_slots as usize];
        for index in 0..self.len() {
            let step = &program.steps[self.recorded(index)];
            let mut reads = step.reads().into_iter();
            if reads.any(|slot| !made[self.slot(index, slot) as usize]) {
                return Err(format!("{} would take what is made later", name(step)));
            }
            for slot in step.writes() {
                made[self.slot(index, slot) as usize] = true;
            }
        }
        Ok(())
    }

    /// Returns the number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns how often each step of the recorded program is run.
    pub(crate) fn times<O>(&self, program: &Program<O>) -> Vec<u32> {
        let mut times = vec![0; program.steps.len()];
        for step in &self.steps {
            times[step.step as usize] += 1;
        }
        times
    }

    /// Returns the number of the step in the recorded program.
    pub(crate) fn recorded(&self, index: usize) -> usize {
        self.steps[index].step as usize
    }

    /// Returns the slot that a step has for one of the recorded step.
    pub(crate) fn slot(&self, index: usize, slot: Slot) -> Slot {
        match self.number(index, self.slots[slot as usize]) {
            None => slot,
            Some((number, 0)) => self.own_slots[number as usize],
            Some((number, copy)) => self.num_slots + (copy - 1) * self.num_copied + number,
        }
    }

    /// Returns the operation that a step has for one of the recorded step.
    pub(crate) fn op(&self, index: usize, op: u32) -> u32 {
        let (num_ops, num_copied) = (self.ops.len() as u32, self.own_ops.len() as u32);
        match self.number(index, self.ops[op as usize]) {
            None => op,
            Some((number, 0)) => self.own_ops[number as usize],
            Some((number, copy)) => num_ops + (copy - 1) * num_copied + number,
        }
    }

    /// Returns the number of what a step has for something, and the copy that it is of; `None` for itself.
    fn number(&self, index: usize, number: Number) -> Option<(u32, u32)> {
        let Ref { copy, follows, .. } = self.steps[index];
        match (number, copy) {
            (Number::Own(number), _) if follows => Some((number, self.copies)),
            (Number::Own(number), 1..) => Some((number, copy)),
            (Number::Before(number), 1..) => Some((number, copy - 1)),
            _ => None,
        }
    }

    /// Writes down a step.
    pub(crate) fn step<O: Op>(&self, program: &Program<O>, index: usize) -> ProgramStep<O> {
        let mut step = program.steps[self.recorded(index)].clone();
        step.each_slot(|_, slot| *slot = self.slot(index, *slot));
        match &mut step {
            ProgramStep::Local(step) => {
                step.at = self.op(index, step.at);
                step.of = self.op(index, step.of);
            }
            ProgramStep::Move(step) => step.at = self.op(index, step.at),
            _ => {}
        }
        step
    }

    /// Writes down all steps.
    pub(crate) fn steps<O: Op>(&self, program: &Program<O>) -> Vec<ProgramStep<O>> {
        let all = 0..self.len();
        all.map(|index| self.step(program, index)).collect()
    }
}

fn read_slot<O>(step: &ProgramStep<O>) -> Option<Slot> {
    match step {
        ProgramStep::Read { slot, .. } => Some(*slot),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ir::{Move, OnNodes, Reason};
    use crate::layout::Layout;
    use crate::layout::redistribute::{Step, StepKind};
    use crate::toy::Toy;

    /// Moves are alike if they move the same, in the same module, for the same reason.
    #[test]
    fn moves_are_alike_whatever_their_slots() {
        let moved = |rows: usize, path: &str, reason: Reason, slot: Slot| {
            let layout = Layout::replicated(&[rows, 4]);
            ProgramStep::<Toy>::Move(Move {
                step: Arc::new(Step {
                    kind: StepKind::Refactor,
                    from: layout.clone(),
                    to: layout,
                }),
                on_nodes: OnNodes::default(),
                from: slot,
                to: slot + 1,
                reason,
                path: Some(path.into()),
                at: slot,
            })
        };
        let one = moved(2, "up", Reason::Read, 0);
        for (what, other, expected) in [
            ("slots", moved(2, "up", Reason::Read, 7), true),
            ("layouts", moved(3, "up", Reason::Read, 0), false),
            ("modules", moved(2, "down", Reason::Read, 0), false),
            ("reasons", moved(2, "up", Reason::Survivor, 0), false),
        ] {
            assert_eq!(is_alike(&one, &other), expected, "other {what}");
        }
    }
}
