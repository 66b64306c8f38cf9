//! Regions: the elementwise work of a rank as small programs of scalar instructions over rows.
//!
//! An operation says what it computes as a [`Formula`] over its operands; the pass `regions` joins formulas to a
//! [`Region`], and one kernel runs it. Operands broadcast: a dim of size one is read again along the whole dim.
//!
//! ```text
//! y = x / sqrt(sum(x * x) + eps) * w            space [2, 3], rows of 3
//!
//!   v0 = x    [2, 3]  spans both dims           v2 = mul(v0, v0)       one value for each element
//!   v1 = w    [1, 3]  spans the last dim        v3 = fold sum(v2)      one for each row
//!                                               v4 = scalar 0
//!                                               v5 = add(v3, v4)       ...
//! ```
//!
//! Not here: what an operand's strides are (a kernel finds them when it runs), and what is drawn by a draw.

use std::fmt;

pub use super::numbering::Numbering;
use crate::mesh::DType;

/// Number of a value in a [`Formula`]: its operands first, then what its instructions make, in order.
pub type Register = u32;

/// A number, compared by its bits.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A float.
    Float(f64),
    /// A signed integer, or a bool as 0 or 1.
    Int(i64),
    /// An unsigned integer.
    UInt(u64),
}

impl Number {
    fn bits(self) -> (u8, u64) {
        match self {
            Self::Float(value) => (0, value.to_bits()),
            Self::Int(value) => (1, value as u64),
            Self::UInt(value) => (2, value),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Number {}

impl std::hash::Hash for Number {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "they are functions with the names that mathematics gives them"
)]
pub enum Unary {
    Neg,
    Abs,
    Sign,
    Exp,
    Log,
    Log1p,
    Sqrt,
    Recip,
    Sin,
    Cos,
    Tan,
    Sinh,
    Cosh,
    Tanh,
    ArcSin,
    ArcCos,
    ArcTan,
    ArcSinh,
    ArcCosh,
    ArcTanh,
    Erf,
    Sigmoid,
    /// To the nearest integer; halves to the even one.
    Round,
    Floor,
    Ceil,
    Trunc,
    IsNan,
    IsInf,
    /// The other bool; of an integer, every bit the other one.
    Not,
}

/// A function of two elements of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "they are functions with the names that mathematics gives them"
)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The remainder that has the sign of the divisor.
    Rem,
    Pow,
    ArcTan2,
    /// The smaller one; NaN if either is.
    Min,
    /// The larger one; NaN if either is.
    Max,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Bit by bit, of bools and integers.
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// How the elements of a row, or of a column, become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The largest; NaN if one is.
    Max,
    /// The smallest; NaN if one is.
    Min,
}

/// A step of a [`Formula`], which makes one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// The same number for every element.
    Constant(Number),
    /// A scalar that may differ from run to run, by its index among those of the formula.
    Scalar(u32),
    /// A random number for each element, by the index of its draw among those of the formula: what is drawn depends on
    /// the number of the element in the space alone. Floats of 32 bits, or fewer.
    Draw(u32),
    /// The same value, in the type of the instruction.
    Cast(Register),
    /// A function of one element.
    Unary(Unary, Register),
    /// A function of two.
    Binary(Binary, Register, Register),
    /// An integer power: its base, and an exponent of an integer type.
    Powi(Register, Register),
    /// One of two values.
    Select {
        /// A bool.
        mask: Register,
        /// The value where it is true.
        on_true: Register,
        /// The value where it is false.
        on_false: Register,
    },
    /// The elements of each row, folded: one value for the row. A row of one element folds to that.
    Fold(Fold, Register),
    /// The elements of each row, and one value added to one of them. An index outside of the row is an error of who
    /// runs it.
    AddAt {
        /// The elements.
        to: Register,
        /// The place in the row, an integer: one for the row.
        index: Register,
        /// The number to add, of the type of the elements: one for the row.
        value: Register,
    },
}

impl Instruction {
    /// Returns the values that it reads, in order.
    pub fn reads(self) -> impl Iterator<Item = Register> {
        let reads = match self {
            Self::Constant(_) | Self::Scalar(_) | Self::Draw(_) => [None; 3],
            Self::Cast(of) | Self::Unary(_, of) | Self::Fold(_, of) => [Some(of), None, None],
            Self::Binary(_, left, right) | Self::Powi(left, right) => {
                [Some(left), Some(right), None]
            }
            Self::Select {
                mask,
                on_true,
                on_false,
            } => [Some(mask), Some(on_true), Some(on_false)],
            Self::AddAt { to, index, value } => [Some(to), Some(index), Some(value)],
        };
        reads.into_iter().flatten()
    }

    /// Returns whether it matters to it where rows end.
    pub fn knows_rows(self) -> bool {
        matches!(self, Self::Fold(..) | Self::AddAt { .. })
    }

    /// Returns it with other values in their place.
    pub fn reading(self, mut to: impl FnMut(Register) -> Register) -> Self {
        match self {
            Self::Constant(_) | Self::Scalar(_) | Self::Draw(_) => self,
            Self::Cast(of) => Self::Cast(to(of)),
            Self::Unary(unary, of) => Self::Unary(unary, to(of)),
            Self::Binary(binary, left, right) => Self::Binary(binary, to(left), to(right)),
            Self::Powi(base, exponent) => Self::Powi(to(base), to(exponent)),
            Self::Select {
                mask,
                on_true,
                on_false,
            } => Self::Select {
                mask: to(mask),
                on_true: to(on_true),
                on_false: to(on_false),
            },
            Self::Fold(fold, of) => Self::Fold(fold, to(of)),
            Self::AddAt {
                to: elements,
                index,
                value,
            } => Self::AddAt {
                to: to(elements),
                index: to(index),
                value: to(value),
            },
        }
    }
}

/// An instruction with the type of what it makes. 16-bit floats are computed in f32 and rounded after every
/// instruction, so that it does not matter which instructions share a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Typed {
    /// The step.
    pub instruction: Instruction,
    /// The type of the result.
    pub dtype: DType,
}

/// A program of scalar instructions, in single assignment: what an operation computes of the elements of its operands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Formula {
    /// The types of its operands.
    pub operands: Vec<DType>,
    /// The instructions, each of operands and of instructions before it.
    pub instructions: Vec<Typed>,
    /// The values that it makes, in order.
    pub results: Vec<Register>,
}

impl Formula {
    /// Returns the type of a value.
    pub fn dtype(&self, register: Register) -> DType {
        let index = register as usize;
        match self.operands.get(index) {
            Some(dtype) => *dtype,
            None => self.instructions[index - self.operands.len()].dtype,
        }
    }

    /// Returns the number of its draws.
    pub fn draws(&self) -> usize {
        let draws = self
            .instructions
            .iter()
            .map(|typed| match typed.instruction {
                Instruction::Draw(draw) => draw as usize + 1,
                _ => 0,
            });
        draws.max().unwrap_or(0)
    }
}

/// The work of an operation, if its elements can be computed one by one, or row by row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pointwise {
    /// A formula over the operands of the operation, all of them in order, whose results are those of the operation.
    /// Operands and results broadcast to one shape, dims aligned at the last; rows are those of its last dim. Without
    /// operands, and without instructions, it is nothing that takes a kernel of its own: a constant, or a look at
    /// operands.
    Formula {
        /// The work.
        formula: Formula,
        /// Its [scalars](Instruction::Scalar), in order.
        scalars: Vec<ScalarOf>,
    },
    /// The elements of the operand, in order, in another shape.
    Reshape,
    /// The sums of the elements of the operand along some dims, which stay with size one. Of all dims but the last, or
    /// of all, rows are added up as [`Keep`] says; of the last one, as a fold does. Others are none of a region.
    Sum {
        /// The dims, ascending.
        dims: Vec<usize>,
    },
}

/// A scalar of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarOf {
    /// A number that the operation holds.
    Number(Number),
    /// The number of a slot, whose value a run knows.
    Slot(u64),
}

/// How much of a region a value is: what is made of rows alone is one value for each row, and is read again along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// One value for each element.
    Elements,
    /// One value for each row: the last dim has size one.
    Rows,
}

/// How a result of a region is kept. A value of rows that is kept, or folded, as elements is there for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Kept as it is.
    Each(Extent),
    /// The rows, folded element by element: all dims but the last have size one. Rows are added up in blocks of
    /// [`ROWS_OF_A_SUM`], in order, and the blocks in order, so that the bits do not depend on who adds them up.
    OverRows(Fold),
    /// The elements of each row folded as [`Instruction::Fold`] does, or the values of rows, and these folded in the
    /// same order: every dim has size one.
    OverAll(Fold, Extent),
}

/// Rows of a block of a sum over rows.
pub const ROWS_OF_A_SUM: usize = 64;

/// Lanes of a sum along a row: lane i adds up the elements i, i + 16, ... in order; then lanes 8 apart are added, 4, 2
/// and 1.
pub const LANES_OF_A_SUM: usize = 16;

/// A group of operations that one kernel runs: a formula over the elements of a space, in rows along its last dim.
///
/// Equal regions are one kernel, whatever values they compute with. Every result depends on its operands alone, never
/// on what else is in the region: an operation has the same bits in any region as alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The shape of the space: at least one dim, and none of size one beside the last.
    pub space: Vec<usize>,
    /// For each operand, and each dim of the space, whether the operand has it; otherwise it has size one there and is
    /// read again and again.
    pub spans: Vec<Vec<bool>>,
    /// The work.
    pub formula: Formula,
    /// The number of its scalars.
    pub scalars: u32,
    /// How each result of the formula is kept.
    pub keeps: Vec<Keep>,
}

impl Region {
    /// Returns the length of a row.
    pub fn row_len(&self) -> usize {
        self.space.last().copied().unwrap_or(1)
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        let outer = self.space.split_last().map_or(&[][..], |(_, outer)| outer);
        outer.iter().product()
    }

    /// Returns how much of the region each value of the formula is.
    pub fn extents(&self) -> Vec<Extent> {
        let of_operand = |spans: &Vec<bool>| match spans.last() {
            Some(true) => Extent::Elements,
            _ => Extent::Rows,
        };
        let mut extents: Vec<Extent> = self.spans.iter().map(of_operand).collect();
        for Typed { instruction, .. } in &self.formula.instructions {
            let is_of_elements = |read: Register| extents[read as usize] == Extent::Elements;
            extents.push(match instruction {
                Instruction::Fold(..) => Extent::Rows,
                Instruction::AddAt { .. } | Instruction::Draw(_) => Extent::Elements,
                _ if instruction.reads().any(is_of_elements) => Extent::Elements,
                _ => Extent::Rows,
            });
        }
        extents
    }

    /// Returns the shape of an operand as the space sees it: dims that it does not span have size one.
    pub fn operand_shape(&self, index: usize) -> Vec<usize> {
        let dims = self.space.iter().zip(&self.spans[index]);
        dims.map(|(&size, &spans)| if spans { size } else { 1 })
            .collect()
    }

    /// Returns the shape of a result as the space sees it.
    pub fn result_shape(&self, index: usize) -> Vec<usize> {
        let last = self.space.len() - 1;
        let keep = self.keeps[index];
        let dims = self.space.iter().enumerate();
        let is_kept = |dim: usize| match keep {
            Keep::Each(Extent::Elements) => true,
            Keep::Each(Extent::Rows) => dim != last,
            Keep::OverRows(_) => dim == last,
            Keep::OverAll(..) => false,
        };
        dims.map(|(dim, &size)| if is_kept(dim) { size } else { 1 })
            .collect()
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &dyn fmt::Debug| format!("{name:?}").to_lowercase();
        match self {
            Self::Constant(Number::Float(value)) => write!(f, "{value:?}"),
            Self::Constant(Number::Int(value)) => write!(f, "{value}"),
            Self::Constant(Number::UInt(value)) => write!(f, "{value}"),
            Self::Scalar(index) => write!(f, "scalar {index}"),
            Self::Draw(index) => write!(f, "draw {index}"),
            Self::Cast(of) => write!(f, "cast(v{of})"),
            Self::Unary(unary, of) => write!(f, "{}(v{of})", name(unary)),
            Self::Binary(binary, left, right) => write!(f, "{}(v{left}, v{right})", name(binary)),
            Self::Powi(base, exponent) => write!(f, "powi(v{base}, v{exponent})"),
            Self::Select {
                mask,
                on_true,
                on_false,
            } => write!(f, "select(v{mask}, v{on_true}, v{on_false})"),
            Self::Fold(fold, of) => write!(f, "fold {}(v{of})", name(fold)),
            Self::AddAt { to, index, value } => write!(f, "add_at(v{to}, v{index}, v{value})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::DType::{BF16, F16, F32, I32};

    #[test]
    fn a_value_is_of_an_operand_or_of_an_instruction() {
        let typed = |dtype| Typed {
            instruction: Instruction::Cast(0),
            dtype,
        };
        let formula = Formula {
            operands: vec![F32, BF16],
            instructions: vec![typed(I32), typed(F16)],
            results: Vec::new(),
        };
        let dtypes = (0..4).map(|register| formula.dtype(register));
        assert_eq!(dtypes.collect::<Vec<_>>(), [F32, BF16, I32, F16]);
    }

    #[test]
    fn a_result_has_the_dims_that_are_kept() {
        let cases = [
            (Keep::Each(Extent::Elements), [2, 3, 4]),
            (Keep::Each(Extent::Rows), [2, 3, 1]),
            (Keep::OverRows(Fold::Sum), [1, 1, 4]),
            (Keep::OverAll(Fold::Sum, Extent::Elements), [1, 1, 1]),
        ];
        let region = Region {
            space: vec![2, 3, 4],
            spans: Vec::new(),
            formula: Formula::default(),
            scalars: 0,
            keeps: cases.map(|(keep, _)| keep).to_vec(),
        };
        for (index, (keep, shape)) in cases.into_iter().enumerate() {
            assert_eq!(region.result_shape(index), shape, "{keep:?}");
        }
    }
}
