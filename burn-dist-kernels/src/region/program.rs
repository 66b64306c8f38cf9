//! A region made ready: what is computed once, once for each row and once for each element, in which phase, and where
//! values are kept meanwhile.
//!
//! A fold makes a value of a row only after all of its elements were seen, so that what depends on it is of the next
//! phase. A row that is longer than a chunk goes through a phase chunk by chunk; what a later phase reads again is kept for
//! the whole row, all else for a chunk.

use burn_dist_plan::region::{
    Binary, Extent as Kept, Fold, Instruction, Keep, Number, Region, Unary,
};

use super::error::RegionError;
use super::kind::{Kind, Lane, Stored};

/// How many values there are of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    /// One.
    Once,
    /// One for each row.
    Row,
    /// One for each element.
    Element,
}

/// A value: an operand's first, then those that steps make.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub kind: Kind,
    pub extent: Extent,
    /// The first phase that can read it.
    pub phase: usize,
    /// Its buffer.
    pub slot: usize,
    /// Whether its buffer has the whole row.
    pub is_kept: bool,
    /// How often it is read.
    reads: usize,
    /// The last phase that reads it.
    last: usize,
}

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// Finds the elements of an operand.
    Load,
    Constant(Number),
    Scalar(usize),
    Cast,
    Unary(Unary),
    Binary(Binary),
    Powi,
    Select,
    Fold(Fold),
    /// The same value for every element of a row, or for every row.
    Spread,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub what: What,
    pub result: usize,
    pub reads: [usize; 3],
    pub num_reads: usize,
    /// The output that it may write itself, if that has memory of its own.
    pub output: Option<usize>,
}

impl Step {
    pub(super) fn reads(&self) -> &[usize] {
        &self.reads[..self.num_reads]
    }
}

/// How a value leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Every element of it, or every row.
    Each,
    /// Folded over rows.
    Over(Fold),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub value: usize,
    pub output: usize,
    pub leaves: Leaves,
    /// Whether the step that makes the value writes the output, if that has memory of its own.
    pub by_step: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Steps of rows, before those of elements.
    pub rows: Vec<Step>,
    pub elements: Vec<Step>,
    /// What leaves after the elements of a chunk.
    pub stores: Vec<Store>,
    /// What leaves after all elements of a row.
    pub row_stores: Vec<Store>,
}

/// A region made ready.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub space: Vec<usize>,
    pub spans: Vec<Vec<bool>>,
    pub operands: usize,
    pub scalars: usize,
    pub values: Vec<Value>,
    pub once: Vec<Step>,
    pub phases: Vec<Phase>,
    pub slots: usize,
    /// Whether every row is computed by one thread as a whole, because something is one for the row.
    pub needs_rows: bool,
    /// Whether there are values of rows, so that the last dim stays one of its own.
    pub has_rows: bool,
    /// Results: their elements in memory, and what is folded over rows.
    pub results: Vec<ResultOf>,
    /// Elements of a chunk.
    pub chunk: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ResultOf {
    pub value: usize,
    pub kind: Kind,
    pub extent: Extent,
    pub leaves: Leaves,
}

/// Bytes that chunks of values may take: they pass from the first cache to the second and back as fast as they are
/// computed with.
const CACHE: usize = 48 << 10;

struct Builder<'a> {
    region: &'a Region,
    values: Vec<Value>,
    steps: Vec<Step>,
    /// The value of each register: steps that spread come between.
    at: Vec<usize>,
}

fn malformed(what: impl Into<String>) -> RegionError {
    RegionError::Malformed { what: what.into() }
}

impl Program {
    pub(super) fn new(region: &Region) -> Result<Self, RegionError> {
        let mut builder = Builder {
            region,
            values: Vec::new(),
            steps: Vec::new(),
            at: Vec::new(),
        };
        builder.operands()?;
        builder.instructions()?;
        let results = builder.results()?;
        Ok(builder.schedule(results))
    }
}

impl Builder<'_> {
    fn operands(&mut self) -> Result<(), RegionError> {
        let Region {
            space,
            spans,
            formula,
            ..
        } = self.region;
        if space.is_empty() || spans.len() != formula.operands.len() {
            let found = (space.len(), spans.len(), formula.operands.len());
            return Err(malformed(format!("dims, spans and operands {found:?}")));
        }
        for (operand, (dtype, spans)) in formula.operands.iter().zip(spans).enumerate() {
            if spans.len() != space.len() {
                return Err(malformed(format!(
                    "spans of operand {operand} in {} dims",
                    spans.len()
                )));
            }
            let kind = Kind::of(*dtype).ok_or(RegionError::UnsupportedOperand {
                operand,
                dtype: *dtype,
            })?;
            let (last, others) = spans.split_last().expect("there is a dim");
            let extent = match (last, others.contains(&true)) {
                (true, _) => Extent::Element,
                (false, true) => Extent::Row,
                (false, false) => Extent::Once,
            };
            self.values.push(Value::new(kind, extent, 0));
        }
        Ok(())
    }

    /// Adds a step, and returns the value that it makes.
    fn step(&mut self, what: What, reads: &[usize], kind: Kind, extent: Extent) -> usize {
        let phases = reads.iter().map(|read| {
            let value = &self.values[*read];
            value.phase + usize::from(matches!(what, What::Fold(_)))
        });
        let phase = phases.max().unwrap_or(0);
        let result = self.values.len();
        self.values.push(Value::new(kind, extent, phase));
        let mut all = [0; 3];
        all[..reads.len()].copy_from_slice(reads);
        self.steps.push(Step {
            what,
            result,
            reads: all,
            num_reads: reads.len(),
            output: None,
        });
        result
    }

    /// Returns a value with as many values as an extent has.
    fn spread(&mut self, value: usize, extent: Extent) -> usize {
        let Value {
            kind,
            extent: found,
            ..
        } = self.values[value];
        match found < extent {
            true => self.step(What::Spread, &[value], kind, extent),
            false => value,
        }
    }

    fn instructions(&mut self) -> Result<(), RegionError> {
        let formula = &self.region.formula;
        let first = formula.operands.len();
        let mut at: Vec<usize> = (0..first).collect();
        for typed in &formula.instructions {
            let reads: Vec<usize> = typed
                .instruction
                .reads()
                .map(|read| read as usize)
                .collect();
            if reads.iter().any(|read| *read >= at.len()) {
                return Err(malformed(format!(
                    "{typed:?}, which reads what comes later"
                )));
            }
            let unsupported = || RegionError::Unsupported {
                instruction: typed.instruction,
                operands: reads
                    .iter()
                    .map(|read| formula.dtype(*read as u32))
                    .collect(),
                result: typed.dtype,
            };
            let kind = Kind::of(typed.dtype).ok_or_else(unsupported)?;
            let mut from: Vec<usize> = reads.iter().map(|read| at[*read]).collect();
            // A value may be that of another type, cast as it is.
            let kind_of = |read: &usize| Kind::of(formula.dtype(*read as u32));
            let kinds: Vec<Kind> = reads.iter().filter_map(kind_of).collect();
            if !supported(typed.instruction, &kinds, kind) {
                return Err(unsupported());
            }
            let what = match typed.instruction {
                Instruction::Constant(number) => What::Constant(number),
                Instruction::Scalar(scalar) if scalar < self.region.scalars => {
                    What::Scalar(scalar as usize)
                }
                Instruction::Scalar(_) => {
                    return Err(malformed(format!("{typed:?}, which is none")));
                }
                // The value as it is: what it was rounded to stays.
                Instruction::Cast(_) if keeps_values(kinds[0], kind) => {
                    at.push(from[0]);
                    continue;
                }
                Instruction::Cast(_) => What::Cast,
                Instruction::Unary(op, _) => What::Unary(op),
                Instruction::Binary(op, ..) => What::Binary(op),
                Instruction::Powi(..) => What::Powi,
                Instruction::Select { .. } => What::Select,
                Instruction::Fold(fold, _) => {
                    from[0] = self.spread(from[0], Extent::Element);
                    What::Fold(fold)
                }
            };
            let extents = from.iter().map(|read| self.values[*read].extent);
            let extent = match what {
                What::Fold(_) => Extent::Row,
                _ => extents.max().unwrap_or(Extent::Once),
            };
            let result = self.step(what, &from, kind, extent);
            at.push(result);
        }
        self.at = at;
        Ok(())
    }

    fn results(&mut self) -> Result<Vec<ResultOf>, RegionError> {
        let region = self.region;
        let results = &region.formula.results;
        if results.len() != region.keeps.len() {
            let found = (results.len(), region.keeps.len());
            return Err(malformed(format!("results and keeps {found:?}")));
        }
        let mut made = Vec::new();
        for (result, (register, keep)) in results.iter().zip(&region.keeps).enumerate() {
            let Some(at) = self.at.get(*register as usize) else {
                return Err(malformed(format!("result {result}, which is no value")));
            };
            let dtype = region.formula.dtype(*register);
            let unsupported = || RegionError::UnsupportedKeep {
                result,
                dtype,
                keep: format!("{keep:?}"),
            };
            let kind = Kind::of(dtype).ok_or_else(unsupported)?;
            let (extent, leaves) = match keep {
                Keep::Each(Kept::Elements) => (Extent::Element, Leaves::Each),
                Keep::Each(Kept::Rows) => (Extent::Row, Leaves::Each),
                Keep::OverRows(fold) => (Extent::Element, Leaves::Over(*fold)),
                Keep::OverAll(fold, _) => (Extent::Row, Leaves::Over(*fold)),
            };
            if let Leaves::Over(fold) = leaves
                && !folds(fold, kind)
            {
                return Err(unsupported());
            }
            let mut value = match keep {
                Keep::OverAll(_, Kept::Elements) => self.spread(*at, Extent::Element),
                _ => *at,
            };
            let found = self.values[value].extent;
            if found > extent {
                match leaves {
                    // All: first the elements of each row, then rows.
                    Leaves::Over(fold) => {
                        value = self.step(What::Fold(fold), &[value], kind, Extent::Row);
                    }
                    Leaves::Each => return Err(unsupported()),
                }
            }
            let value = match value < region.formula.operands.len() && leaves == Leaves::Each {
                // What leaves is never read from an operand, whose place another result may have taken by then.
                true => self.step(What::Spread, &[value], self.values[value].kind, extent),
                false => self.spread(value, extent),
            };
            made.push(ResultOf {
                value,
                kind,
                extent,
                leaves,
            });
        }
        Ok(made)
    }

    /// Returns which steps something needs that leaves.
    fn needed(&self, results: &[ResultOf]) -> Vec<bool> {
        let mut needed = vec![false; self.values.len()];
        for result in results {
            needed[result.value] = true;
        }
        for step in self.steps.iter().rev() {
            if needed[step.result] {
                for read in step.reads() {
                    needed[*read] = true;
                }
            }
        }
        needed
    }

    fn schedule(mut self, results: Vec<ResultOf>) -> Program {
        let operands = self.region.formula.operands.len();
        let needed = self.needed(&results);
        let steps: Vec<Step> = std::mem::take(&mut self.steps);
        let steps: Vec<Step> = steps
            .into_iter()
            .filter(|step| needed[step.result])
            .collect();
        let num_phases = 1
            + (0..needed.len())
                .filter(|value| needed[*value])
                .map(|value| self.values[value].phase)
                .max()
                .unwrap_or(0);
        let mut phases = vec![Phase::default(); num_phases];
        let mut once = Vec::new();
        // A fold is computed in the phase before that of its result.
        let phase_of = |values: &[Value], step: &Step| {
            values[step.result].phase - usize::from(matches!(step.what, What::Fold(_)))
        };
        for step in &steps {
            let phase = phase_of(&self.values, step);
            for read in step.reads() {
                let value = &mut self.values[*read];
                value.reads += 1;
                value.last = value.last.max(phase);
            }
        }
        // What takes the place of an operand leaves after that was last read. Which operand that is, a run says: so
        // elements leave when the elements of all operands were read.
        let is_element = |values: &[Value], value: &usize| values[*value].extent == Extent::Element;
        let read = (0..operands).filter(|operand| is_element(&self.values, operand));
        let all_read = read
            .map(|operand| self.values[operand].last)
            .max()
            .unwrap_or(0);
        let mut stores = Vec::new();
        for (output, result) in results.iter().enumerate() {
            let value = &mut self.values[result.value];
            value.reads += 1;
            let phase = match (result.extent, result.leaves) {
                (Extent::Element, Leaves::Each) => value.phase.max(all_read),
                (Extent::Element, Leaves::Over(_)) => value.phase,
                _ => num_phases - 1,
            };
            value.last = value.last.max(phase);
            stores.push((
                phase,
                Store {
                    value: result.value,
                    output,
                    leaves: result.leaves,
                    by_step: false,
                },
            ));
        }
        let mut loads = Loads {
            others: vec![false; operands],
        };
        for step in steps {
            let phase = phase_of(&self.values, &step);
            for read in step.reads().iter().filter(|read| **read < operands) {
                loads.add(*read, phase, &self.values, &mut once, &mut phases);
            }
            let of_elements = matches!(step.what, What::Fold(_));
            match self.values[step.result].extent {
                Extent::Once => once.push(step),
                Extent::Row if !of_elements => phases[phase].rows.push(step),
                _ => phases[phase].elements.push(step),
            }
        }
        // Sums read operands, whose places others take.
        stores.sort_by_key(|(_, store)| store.leaves == Leaves::Each);
        for (phase, store) in stores {
            if store.value < operands {
                loads.add(store.value, phase, &self.values, &mut once, &mut phases);
            }
            match self.values[store.value].extent {
                Extent::Element => phases[phase].stores.push(store),
                _ => phases[phase].row_stores.push(store),
            }
        }
        self.finish(results, once, phases)
    }

    /// Gives every value its buffer, and has steps write outputs themselves where they may.
    fn finish(
        mut self,
        results: Vec<ResultOf>,
        once: Vec<Step>,
        mut phases: Vec<Phase>,
    ) -> Program {
        let operands = self.region.formula.operands.len();
        let mut slots = 0;
        let mut widest = 1;
        let mut live_most = 1;
        for (number, value) in self.values.iter_mut().enumerate() {
            value.is_kept =
                number >= operands && value.extent == Extent::Element && value.last > value.phase;
            if number < operands || value.extent != Extent::Element || value.is_kept {
                value.slot = slots;
                slots += 1;
            }
        }
        let mut free: Vec<usize> = Vec::new();
        for phase in &mut phases {
            let mut ends: Vec<Vec<usize>> = vec![Vec::new(); phase.elements.len() + 1];
            let mut seen = vec![false; self.values.len()];
            let stored = phase.stores.iter().map(|store| store.value);
            let at_end: Vec<usize> = stored.collect();
            let mut reads = vec![at_end];
            reads.extend(
                phase
                    .elements
                    .iter()
                    .rev()
                    .map(|step| step.reads().to_vec()),
            );
            for (back, reads) in reads.into_iter().enumerate() {
                for read in reads {
                    if !std::mem::replace(&mut seen[read], true) {
                        ends[phase.elements.len() - back].push(read);
                    }
                }
            }
            let mut live = 0;
            for (index, step) in phase.elements.iter_mut().enumerate() {
                let is_chunk = |values: &[Value], number: usize| {
                    let value = &values[number];
                    number >= operands && value.extent == Extent::Element && !value.is_kept
                };
                if step.what != What::Load && is_chunk(&self.values, step.result) {
                    let value = &mut self.values[step.result];
                    value.slot = free.pop().unwrap_or_else(|| {
                        slots += 1;
                        slots - 1
                    });
                    live += 1;
                    live_most = live_most.max(live);
                    widest = widest.max(value.kind.lane.size());
                    let mut leaves = phase
                        .stores
                        .iter_mut()
                        .filter(|store| store.value == step.result);
                    if let (1, Some(store)) = (value.reads, leaves.next())
                        && store.leaves == Leaves::Each
                        && results[store.output].kind.stored == Stored::Plain
                        && value.kind.half().is_none()
                    {
                        step.output = Some(store.output);
                        store.by_step = true;
                    }
                }
                for read in &ends[index] {
                    if is_chunk(&self.values, *read) {
                        free.push(self.values[*read].slot);
                        live -= 1;
                    }
                }
            }
            for read in &ends[phase.elements.len()] {
                let value = &self.values[*read];
                if *read >= operands && value.extent == Extent::Element && !value.is_kept {
                    free.push(value.slot);
                }
            }
        }
        let has_rows = self.values.iter().any(|value| value.extent == Extent::Row);
        let each_element =
            |result: &ResultOf| (result.extent, result.leaves) == (Extent::Element, Leaves::Each);
        let region = self.region;
        Program {
            space: region.space.clone(),
            spans: region.spans.clone(),
            operands,
            scalars: region.scalars as usize,
            needs_rows: phases.len() > 1 || !results.iter().all(each_element),
            has_rows,
            chunk: chunk(live_most, widest),
            values: self.values,
            once,
            phases,
            slots,
            results,
        }
    }
}

/// Where operands are found: those of elements once for each phase, others once.
struct Loads {
    others: Vec<bool>,
}

impl Loads {
    fn add(
        &mut self,
        operand: usize,
        phase: usize,
        values: &[Value],
        once: &mut Vec<Step>,
        phases: &mut [Phase],
    ) {
        let load = Step {
            what: What::Load,
            result: operand,
            reads: [0; 3],
            num_reads: 0,
            output: None,
        };
        match values[operand].extent {
            Extent::Element => {
                // Steps come in any order of phases, stores last.
                let is_there = phases[phase]
                    .elements
                    .iter()
                    .any(|step| step.what == What::Load && step.result == operand);
                if !is_there {
                    phases[phase].elements.push(load);
                }
            }
            Extent::Row if !self.others[operand] => phases[0].rows.push(load),
            Extent::Once if !self.others[operand] => once.push(load),
            _ => {}
        }
        self.others[operand] = true;
    }
}

/// Elements of a chunk: a power of two, so that values of all of them stay in the first cache.
fn chunk(live: usize, size: usize) -> usize {
    let most = CACHE / (live * size);
    let power = usize::BITS - 1 - most.max(1).leading_zeros();
    (1 << power).clamp(256, 2048)
}

/// Returns whether values of one kind are values of another as they are.
fn keeps_values(from: Kind, to: Kind) -> bool {
    from.lane == to.lane && (to.half().is_none() || to.half() == from.half())
}

/// Returns whether values of a kind fold.
fn folds(fold: Fold, kind: Kind) -> bool {
    kind.lane != Lane::Bool || matches!(fold, Fold::Max | Fold::Min)
}

/// Returns whether there is a kernel.
fn supported(instruction: Instruction, reads: &[Kind], result: Kind) -> bool {
    let same = reads.iter().all(|read| *read == result);
    let is_bool = result.lane == Lane::Bool;
    let is_float = result.lane.is_float();
    match instruction {
        Instruction::Constant(_) | Instruction::Scalar(_) | Instruction::Cast(_) => true,
        Instruction::Unary(Unary::IsNan | Unary::IsInf, _) => reads[0].lane.is_float() && is_bool,
        Instruction::Unary(Unary::Not, _) => same && !is_float,
        Instruction::Unary(Unary::Neg | Unary::Abs | Unary::Sign, _) => same && !is_bool,
        Instruction::Unary(..) => same && is_float,
        Instruction::Binary(op, ..) => match op {
            Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual => reads[0].lane == reads[1].lane && is_bool,
            Binary::And | Binary::Or | Binary::Xor => same && !is_float,
            Binary::ShiftLeft | Binary::ShiftRight => same && !is_float && !is_bool,
            Binary::ArcTan2 => same && is_float,
            Binary::Min | Binary::Max => same,
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Rem | Binary::Pow => {
                same && !is_bool
            }
        },
        Instruction::Powi(..) => {
            let exponent = reads[1].lane;
            let is_whole = !exponent.is_float() && exponent != Lane::Bool;
            reads[0] == result && !is_bool && is_whole && (is_float || exponent == result.lane)
        }
        Instruction::Select { .. } => {
            reads[0].lane == Lane::Bool && reads[1] == result && reads[2] == result
        }
        Instruction::Fold(fold, _) => same && folds(fold, result),
    }
}

impl Value {
    fn new(kind: Kind, extent: Extent, phase: usize) -> Self {
        Self {
            kind,
            extent,
            phase,
            slot: usize::MAX,
            is_kept: false,
            reads: 0,
            last: 0,
        }
    }
}
