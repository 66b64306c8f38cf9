//! How steps become code: which are joined, what stays in a block, and what leaves.

use burn_dist_plan::region::{Binary, Fold, Unary};

use super::code::{Code, Group, Instruction, Make, Read, Target};
use super::loops;
use crate::region::kind::{Kind, Lane, Stored};
use crate::region::program::{Extent, Leaves, Phase, ResultOf, Step, Value, What, rounds};

fn is_f32(kind: Kind) -> bool {
    kind.lane == Lane::F32
}

/// Returns what a step makes in blocks, if it can.
fn make(step: &Step, values: &[Value]) -> Option<Make> {
    let of_f32 = |value: usize| is_f32(values[value].kind);
    if !of_f32(step.result) || !step.reads().iter().all(|read| of_f32(*read)) {
        return None;
    }
    let folds = matches!(step.what, What::Fold(_));
    if !folds && values[step.result].extent != Extent::Element {
        return None;
    }
    match step.what {
        What::Spread => Some(Make::Copy),
        // Another type that is computed in f32: what it rounds to comes after.
        What::Cast => Some(Make::Copy),
        What::Unary(op) => loops::has_unary(op).then_some(Make::Unary(op)),
        What::Binary(op) => loops::has_binary(op).then_some(Make::Binary(op)),
        What::Fold(fold) => Some(Make::Fold(fold)),
        _ => None,
    }
}

/// Returns the steps of a phase in groups: as many that run together as there are one after the other.
pub(in crate::region) fn groups(
    phase: &mut Phase,
    operands: usize,
    values: &[Value],
    results: &[ResultOf],
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, step) in phase.elements.iter().enumerate() {
        let can = make(step, values).is_some();
        match groups.last_mut() {
            Some(group) if group.code.is_some() == can => group.steps.end = index + 1,
            _ => groups.push(Group {
                steps: index..index + 1,
                code: can.then(Code::empty),
            }),
        }
    }
    // What runs together leaves together, or is stored after.
    for group in groups.iter().filter(|group| group.code.is_some()) {
        for step in &mut phase.elements[group.steps.clone()] {
            if step.output.take().is_some() {
                let stores = phase.stores.iter_mut();
                let own = stores.filter(|store| store.value == step.result);
                own.for_each(|store| store.by_step = false);
            }
        }
    }
    let phase = &*phase;
    let num = groups.len();
    for (index, group) in groups.iter_mut().enumerate() {
        if group.code.is_some() {
            let is_last = index + 1 == num;
            let steps = &phase.elements[group.steps.clone()];
            group.code = Some(code(phase, operands, values, results, is_last, steps));
        }
    }
    groups
}

/// A step, or two that are one loop.
#[derive(Clone, Copy)]
struct Joined {
    make: Make,
    /// True if what it makes is not rounded to 16 bits yet.
    rounds: bool,
    result: usize,
    reads: [usize; 3],
    num_reads: usize,
}

/// Code that is being made.
struct Maker<'a> {
    phase: &'a Phase,
    operands: usize,
    values: &'a [Value],
    results: &'a [ResultOf],
    /// True if stores come next.
    is_last: bool,
    code: Code,
    /// Where values are.
    at: Vec<Read>,
}

/// Returns the code of some steps of a phase, which the phase's stores come after if they are its last.
fn code(
    phase: &Phase,
    operands: usize,
    values: &[Value],
    results: &[ResultOf],
    is_last: bool,
    steps: &[Step],
) -> Code {
    let mut maker = Maker {
        phase,
        operands,
        values,
        results,
        is_last,
        code: Code::empty(),
        at: vec![Read::Nothing; values.len()],
    };
    maker.make(steps);
    maker.code
}

impl Maker<'_> {
    fn make(&mut self, steps: &[Step]) {
        self.code.stores = self.stores();
        let stored = |value: usize, stores: &[bool]| {
            let all = self.phase.stores.iter().zip(stores);
            all.filter(|(store, is_own)| **is_own && store.value == value)
                .count()
        };
        // How often each value is read here.
        let mut own = vec![0; self.values.len()];
        for read in steps.iter().flat_map(Step::reads) {
            own[*read] += 1;
        }
        for step in steps {
            own[step.result] += stored(step.result, &self.code.stores);
        }
        let joined = self.join(steps);
        let mut next = 0;
        for step in &joined {
            let value = &self.values[step.result];
            let mut reads = self.places(&step.reads[..step.num_reads]);
            if let Make::Quotient = step.make {
                reads[2] = self.inverse(reads[1]);
            }
            let is_own = own[step.result] == value.reads && !value.is_kept;
            let mut place = || {
                next += 1;
                Read::Register(next - 1)
            };
            let rounds_to = match step.make {
                Make::Fold(_) | Make::Products => None,
                _ => value.kind.half().filter(|_| step.rounds),
            };
            let (target, at) = match step.make {
                Make::Fold(fold) => (self.fold(step.result, fold), Read::Nothing),
                Make::Products => (self.fold(step.result, Fold::Sum), Read::Nothing),
                _ if is_own => {
                    let at = place();
                    (target_of(at), at)
                }
                _ => (Target::Dense(step.result), Read::Dense(step.result)),
            };
            if target == Target::Dense(step.result) {
                self.code.dense.push(step.result);
            }
            self.at[step.result] = at;
            match rounds_to {
                Some(half) => {
                    let unrounded = place();
                    self.push(step.make, reads, target_of(unrounded));
                    self.push(
                        Make::Round(half),
                        [unrounded, Read::Nothing, Read::Nothing],
                        target,
                    );
                }
                None => self.push(step.make, reads, target),
            }
        }
        self.leave();
        self.allocate(next);
        let values = self.values;
        let mut stores = self.phase.stores.iter().zip(&self.code.stores);
        let of_rows = |value: &usize| values[*value].extent == Extent::Row;
        self.code.is_flat = self.code.folds.is_empty()
            && !self.code.same.iter().any(of_rows)
            && stores.all(|(store, is_own)| !is_own || store.leaves == Leaves::Each);
    }

    /// Returns which stores are instructions: those of f32 that come right after.
    fn stores(&self) -> Vec<bool> {
        let stores = self.phase.stores.iter();
        let can = stores.map(|store| {
            let kind = self.results[store.output].kind;
            let is_plain = kind.stored == Stored::Plain || store.leaves != Leaves::Each;
            self.is_last
                && !store.by_step
                && is_f32(kind)
                && is_plain
                && self.values[store.value].extent == Extent::Element
        });
        can.collect()
    }

    fn push(&mut self, make: Make, reads: [Read; 3], to: Target) {
        self.code.instructions.push(Instruction {
            make,
            reads,
            to,
            leave: None,
        });
    }

    fn fold(&mut self, value: usize, fold: Fold) -> Target {
        self.code.folds.push((value, fold));
        Target::Lanes(self.code.folds.len() - 1)
    }

    /// Returns where values are read.
    fn places(&mut self, reads: &[usize]) -> [Read; 3] {
        let mut places = [Read::Nothing; 3];
        for (place, read) in places.iter_mut().zip(reads) {
            *place = match (self.at[*read], self.values[*read].extent) {
                (Read::Nothing, Extent::Element) => Read::Dense(*read),
                (Read::Nothing, _) => {
                    let same = &mut self.code.same;
                    let found = same.iter().position(|value| value == read);
                    Read::Same(found.unwrap_or_else(|| {
                        same.push(*read);
                        same.len() - 1
                    }))
                }
                (found, _) => found,
            };
        }
        places
    }

    /// Returns where the inverse of a value is that is the same for all of a row.
    fn inverse(&mut self, place: Read) -> Read {
        let Read::Same(same) = place else {
            unreachable!("{place:?} is not the same for a row")
        };
        let inverses = &mut self.code.inverses;
        let found = inverses.iter().position(|inverse| *inverse == same);
        Read::Inverse(found.unwrap_or_else(|| {
            inverses.push(same);
            inverses.len() - 1
        }))
    }

    /// Joins steps to the one that alone reads them: two functions, or a product and the sum of it.
    fn join(&self, steps: &[Step]) -> Vec<Joined> {
        let plain = Kind {
            lane: Lane::F32,
            stored: Stored::Plain,
        };
        let arithmetic =
            |op: Binary| matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div);
        let mut joined: Vec<Option<Joined>> = Vec::new();
        let mut made: Vec<Option<usize>> = vec![None; self.values.len()];
        let values = self.values;
        // What has a slot for a while only is read where it stands.
        let stays = |read: &usize, made: &[Option<usize>]| {
            let value = &values[*read];
            *read < self.operands
                || value.is_kept
                || value.extent != Extent::Element
                || made[*read].is_some()
        };
        for step in steps {
            let is_plain = values[step.result].kind == plain;
            let inner = |read: usize, made: &[Option<usize>], joined: &[Option<Joined>]| {
                let value = &values[read];
                let first = joined[made[read]?]?;
                let is_own = value.reads == 1
                    && value.kind == plain
                    && value.extent == Extent::Element
                    && first.reads[..first.num_reads]
                        .iter()
                        .all(|read| stays(read, made));
                match first.make {
                    Make::Binary(op) if is_own && arithmetic(op) => Some((made[read]?, op, first)),
                    _ => None,
                }
            };
            let mut now = Joined {
                make: make(step, values).expect("steps of a group have loops"),
                rounds: rounds(step.what),
                result: step.result,
                reads: step.reads,
                num_reads: step.num_reads,
            };
            match now.make {
                // Short without what comes before, which would be one with a quotient that is not.
                Make::Binary(Binary::Div) if values[step.reads[1]].extent != Extent::Element => {
                    now.make = Make::Quotient;
                }
                Make::Binary(second) if arithmetic(second) && is_plain => {
                    let [left, right, _] = step.reads;
                    let sides = [(left, right, false), (right, left, true)];
                    let found = sides.into_iter().find_map(|(read, other, is_left)| {
                        Some((inner(read, &made, &joined)?, other, is_left))
                    });
                    if let Some(((before, first_op, first), other, is_left)) = found {
                        joined[before] = None;
                        now.make = Make::Pair {
                            first: first_op,
                            second,
                            is_left,
                        };
                        now.reads = [first.reads[0], first.reads[1], other];
                        now.num_reads = 3;
                    }
                }
                Make::Unary(Unary::Exp) => {
                    let is_negative = values[step.reads[0]].is_never_positive;
                    let found = inner(step.reads[0], &made, &joined);
                    match found.filter(|_| is_plain) {
                        Some((before, Binary::Sub, first)) => {
                            joined[before] = None;
                            now.make = match is_negative {
                                true => Make::ExpOfNegativeDifference,
                                false => Make::ExpOfDifference,
                            };
                            now.reads = first.reads;
                            now.num_reads = 2;
                        }
                        _ if is_negative => now.make = Make::ExpOfNegative,
                        _ => {}
                    }
                }
                Make::Fold(Fold::Sum) if is_plain => {
                    let found = inner(step.reads[0], &made, &joined);
                    if let Some((before, Binary::Mul, first)) = found {
                        joined[before] = None;
                        now.make = Make::Products;
                        now.reads = first.reads;
                        now.num_reads = 2;
                    }
                }
                _ => {}
            }
            made[step.result] = Some(joined.len());
            joined.push(Some(now));
        }
        joined.into_iter().flatten().collect()
    }

    /// Adds the instructions that have values leave.
    fn leave(&mut self) {
        for (index, store) in self.phase.stores.iter().enumerate() {
            if !self.code.stores[index] {
                continue;
            }
            let reads = self.places(&[store.value]);
            if store.leaves == Leaves::Over(Fold::Sum)
                && self.values[store.value].reads == 1
                && let Some(product) = self.product(reads[0])
            {
                self.push(Make::EachProduct, product, Target::Store(index));
                continue;
            }
            let make = match store.leaves {
                Leaves::Each => Make::Copy,
                Leaves::Over(fold) => Make::Each(fold),
            };
            let number = self.code.instructions.len();
            if store.leaves == Leaves::Each
                && self.values[store.value].reads == 1
                && let Read::Register(register) = reads[0]
            {
                let makes = |of: &&mut Instruction| of.to == Target::Register(register);
                if let Some(of) = self.code.instructions.iter_mut().find(makes) {
                    of.leave = Some(number);
                }
            }
            self.push(make, reads, Target::Store(index));
        }
    }

    /// Takes out the last instruction, if it makes a product and nothing else, and returns what that reads.
    fn product(&mut self, place: Read) -> Option<[Read; 3]> {
        let Read::Register(register) = place else {
            return None;
        };
        let last = self
            .code
            .instructions
            .iter()
            .rposition(|of| of.to == Target::Register(register))?;
        let Instruction { make, reads, .. } = self.code.instructions[last];
        let has_left = self.code.instructions.iter().any(|of| of.leave.is_some());
        // What has a slot for a while only is read where it stands.
        let stays = |place: &Read| match place {
            Read::Dense(value) => {
                *value < self.operands
                    || self.values[*value].is_kept
                    || self.code.dense.contains(value)
            }
            _ => true,
        };
        if make != Make::Binary(Binary::Mul) || has_left || !reads.iter().all(stays) {
            return None;
        }
        self.code.instructions.remove(last);
        Some(reads)
    }

    /// Gives values blocks, the same to those that are not there at the same time.
    fn allocate(&mut self, num: usize) {
        let mut last = vec![0; num];
        for (index, instruction) in self.code.instructions.iter().enumerate() {
            for place in instruction.reads {
                if let Read::Register(register) = place {
                    last[register] = index;
                }
            }
        }
        let mut at = vec![0; num];
        let mut free = Vec::new();
        for (index, instruction) in self.code.instructions.iter_mut().enumerate() {
            // What is written is never what is read.
            if let Target::Register(register) = &mut instruction.to {
                at[*register] = free.pop().unwrap_or_else(|| {
                    self.code.registers += 1;
                    self.code.registers - 1
                });
                *register = at[*register];
            }
            let mut ended = Vec::new();
            for place in &mut instruction.reads {
                if let Read::Register(register) = place {
                    if last[*register] == index && !ended.contains(register) {
                        ended.push(*register);
                        free.push(at[*register]);
                    }
                    *register = at[*register];
                }
            }
        }
    }
}

fn target_of(place: Read) -> Target {
    match place {
        Read::Register(register) => Target::Register(register),
        other => unreachable!("{other:?} is no register"),
    }
}
