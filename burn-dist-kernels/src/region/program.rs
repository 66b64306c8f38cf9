//! A region made ready: what is computed once, once for each row and once for each element, in which phase, and where
//! values are kept meanwhile.
//!
//! A fold makes a value of a row only after all of its elements were seen, so that what depends on it is of the next
//! phase. A row that is longer than a chunk goes through a phase chunk by chunk; what a later phase reads again is kept
//! for the whole row, all else for a chunk.

use burn_dist_plan::region::{
    Binary, Extent as Kept, Fold, Instruction, Keep, Number, Region, Unary,
};

use super::blocks::code::Group;
use super::error::RegionError;
use super::kind::{Kind, Lane};
use super::memory::Operand;

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
    /// True if no element of it is above zero: what is left of elements without the largest of their row. They may be
    /// NaN.
    pub is_never_positive: bool,
    /// Its buffer.
    pub slot: usize,
    /// True if its buffer has the whole row.
    pub is_kept: bool,
    /// How often it is read.
    pub reads: usize,
    /// The last phase that reads it.
    pub last: usize,
}

/// Parts that what comes next is asked for in.
pub(super) const WHOLE: usize = 256;

/// The work of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// Finds the elements of an operand, and asks for a share of those that come next: from one part of [`WHOLE`] to
    /// another.
    Load {
        from: usize,
        to: usize,
        /// True if it asks and no more: this phase does not read the operand.
        asks: bool,
    },
    Constant(Number),
    Scalar(usize),
    Draw(usize),
    Cast,
    Unary(Unary),
    Binary(Binary),
    Powi,
    Select,
    Fold(Fold),
    AddAt,
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

/// How long a function takes that is a polynomial.
pub(super) const LONG: usize = 8;

/// Returns whether a function is more than one instruction of the processor.
pub(super) fn is_long(op: Unary) -> bool {
    !matches!(
        op,
        Unary::Neg
            | Unary::Abs
            | Unary::Sign
            | Unary::Sqrt
            | Unary::Recip
            | Unary::Round
            | Unary::Floor
            | Unary::Ceil
            | Unary::Trunc
            | Unary::IsNan
            | Unary::IsInf
            | Unary::Not
    )
}

impl Step {
    pub(super) fn reads(&self) -> &[usize] {
        &self.reads[..self.num_reads]
    }

    /// Returns how long it takes, in loops of sums and products.
    pub(super) fn weight(&self) -> usize {
        match self.what {
            What::Load { .. } => 0,
            What::Draw(_) => LONG,
            What::Unary(op) if is_long(op) => LONG,
            What::Powi | What::Binary(Binary::Pow | Binary::Rem | Binary::ArcTan2) => LONG,
            What::Unary(Unary::Sqrt | Unary::Recip) | What::Binary(Binary::Div) => 4,
            _ => 1,
        }
    }

    pub(super) fn is_load(&self) -> bool {
        matches!(self.what, What::Load { .. })
    }
}

/// Returns the phase of a step: of a fold that before its result's.
pub(super) fn phase_of(values: &[Value], step: &Step) -> usize {
    values[step.result].phase - usize::from(matches!(step.what, What::Fold(_)))
}

/// Returns whether a step makes what is not rounded to 16 bits yet.
pub(super) fn rounds(what: What) -> bool {
    !matches!(
        what,
        What::Spread | What::Select | What::Constant(_) | What::Scalar(_) | What::Draw(_)
    )
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
    /// True if the step that makes the value writes the output, if that has memory of its own.
    pub by_step: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Steps of rows, before those of elements.
    pub rows: Vec<Step>,
    pub elements: Vec<Step>,
    /// The same in groups, of which some run together.
    pub groups: Vec<Group>,
    /// Values that leave after the elements of a chunk.
    pub stores: Vec<Store>,
    /// Values that leave after all elements of a row.
    pub row_stores: Vec<Store>,
    /// How long the steps of elements take.
    pub weight: usize,
}

/// A region made ready.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub space: Vec<usize>,
    pub spans: Vec<Vec<bool>>,
    pub operands: usize,
    pub scalars: usize,
    pub draws: usize,
    pub values: Vec<Value>,
    pub once: Vec<Step>,
    pub phases: Vec<Phase>,
    pub slots: usize,
    /// True if every row is computed by one thread as a whole, because something is one for the row.
    pub needs_rows: bool,
    /// True if it matters where rows end, so that the last dim stays one of its own.
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

/// A region that becomes a program.
pub(super) struct Builder<'a> {
    pub region: &'a Region,
    pub values: Vec<Value>,
    pub steps: Vec<Step>,
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

impl Program {
    /// Returns how many elements of an operand lie between two along a dim: none where one serves for all.
    pub(super) fn stride(&self, index: usize, operand: &Operand<'_>, dim: usize) -> isize {
        match self.spans[index][dim] {
            true => operand.strides[dim],
            false => 0,
        }
    }

    /// Returns whether it moves the elements of one operand as they are.
    pub(super) fn is_copy(&self) -> bool {
        let [result] = &self.results[..] else {
            return false;
        };
        let makes = |step: &Step| step.result == result.value && step.what == What::Spread;
        let mut steps = self.phases[0].elements.iter().chain(&self.phases[0].rows);
        self.operands == 1
            && self.phases.len() == 1
            && self.once.iter().all(Step::is_load)
            && steps.all(|step| step.is_load() || (makes(step) && step.reads == [0; 3]))
            && (result.extent, result.leaves) == (Extent::Element, Leaves::Each)
            && self.values[0].kind == result.kind
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
        self.values.push(Value {
            is_never_positive: self.is_never_positive(what, reads),
            ..Value::new(kind, extent, phase)
        });
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

    /// Returns whether what a step makes is a difference of elements and the largest of their row.
    fn is_never_positive(&self, what: What, reads: &[usize]) -> bool {
        let (What::Binary(Binary::Sub), [elements, largest]) = (what, reads) else {
            return false;
        };
        let folds = |step: &Step| step.what == What::Fold(Fold::Max) && step.reads[0] == *elements;
        self.makes(*largest).is_some_and(folds) && self.values[*elements].kind.lane.is_float()
    }

    /// Returns the step that makes a value.
    fn makes(&self, value: usize) -> Option<&Step> {
        // Each step has made one value, after those of the operands.
        self.steps
            .get(value.checked_sub(self.region.formula.operands.len())?)
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
                Instruction::Draw(draw) => What::Draw(draw as usize),
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
                Instruction::AddAt { .. } => {
                    if let [index, value] = from[1..]
                        && [index, value].map(|of| self.values[of].extent == Extent::Element)
                            != [false; 2]
                    {
                        return Err(malformed(format!(
                            "{typed:?}, whose index and value are not one for each row"
                        )));
                    }
                    What::AddAt
                }
            };
            let extents = from.iter().map(|read| self.values[*read].extent);
            let extent = match what {
                What::Fold(_) => Extent::Row,
                What::AddAt | What::Draw(_) => Extent::Element,
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
            let mut value = *at;
            if let Keep::OverAll(fold, Kept::Elements) = keep {
                // First the elements of each row, then rows.
                let elements = self.spread(value, Extent::Element);
                value = self.step(What::Fold(*fold), &[elements], kind, Extent::Row);
            }
            if self.values[value].extent > extent {
                return Err(unsupported());
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
        Instruction::Draw(_) => result.lane == Lane::F32,
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
        Instruction::AddAt { .. } => {
            let is_whole = !reads[1].lane.is_float() && reads[1].lane != Lane::Bool;
            reads[0] == result && reads[2] == result && !is_bool && is_whole
        }
    }
}

impl Value {
    fn new(kind: Kind, extent: Extent, phase: usize) -> Self {
        Self {
            kind,
            extent,
            phase,
            is_never_positive: false,
            slot: usize::MAX,
            is_kept: false,
            reads: 0,
            last: 0,
        }
    }
}
