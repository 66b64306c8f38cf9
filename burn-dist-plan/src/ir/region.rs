//! Regions: the elementwise work of a rank as small programs of scalar instructions over rows.
//!
//! An operation says what it computes as a [`Formula`] over its operands; the pass `regions` joins formulas to a
//! [`Region`], and one kernel runs it. Operands broadcast: a dim of size one is read again along the whole dim.

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
#[allow(missing_docs, reason = "they are functions with the names that mathematics gives them")]
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
    /// Of a bool: the other one. Of an integer: every bit the other one.
    Not,
}

/// A function of two elements of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are functions with the names that mathematics gives them")]
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
    /// Of bools and of the bits of integers.
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

/// What makes a value of a [`Formula`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// The same number for every element.
    Constant(Number),
    /// A scalar that may differ from run to run, by its index among those of the formula.
    Scalar(u32),
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
    /// What the elements of each row fold to: one value for the row.
    Fold(Fold, Register),
}

impl Instruction {
    /// Returns the values that it reads, in order.
    pub fn reads(self) -> impl Iterator<Item = Register> {
        let reads = match self {
            Self::Constant(_) | Self::Scalar(_) => [None; 3],
            Self::Cast(of) | Self::Unary(_, of) | Self::Fold(_, of) => [Some(of), None, None],
            Self::Binary(_, left, right) | Self::Powi(left, right) => {
                [Some(left), Some(right), None]
            }
            Self::Select {
                mask,
                on_true,
                on_false,
            } => [Some(mask), Some(on_true), Some(on_false)],
        };
        reads.into_iter().flatten()
    }
}

/// An instruction with the type of what it makes. 16-bit floats are computed in f32 and rounded after every instruction,
/// so that it does not matter which instructions share a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Typed {
    /// What is computed.
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
}

/// What an operation computes, if its elements can be computed one by one, or row by row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pointwise {
    /// A formula over operands that broadcast to the shape of its first result; rows are those of the last dim. The
    /// values of `scalars` are those that [`Op::rebind`](super::Op::rebind) may change, and others.
    Formula {
        /// What is computed.
        formula: Formula,
        /// What each [scalar](Instruction::Scalar) is.
        scalars: Vec<ScalarOf>,
    },
    /// The elements of the operand, in order, in another shape.
    Reshape,
    /// The sums of the elements of the operand along some dims, which stay with size one: all dims but the last, or all.
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

/// How much of a region a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// One value for each element.
    Elements,
    /// One value for each row: the last dim has size one.
    Rows,
}

/// How a result of a region is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// As it is.
    Each(Extent),
    /// What the rows fold to, element by element: all dims but the last have size one. Rows are added up in blocks of
    /// [`ROWS_OF_A_SUM`], and the blocks in order, so that the bits do not depend on who adds them up.
    OverRows(Fold),
    /// What the row's values, or its folded elements, fold to in the same order: every dim has size one.
    OverAll(Fold),
}

/// Rows of a block of a sum over rows.
pub const ROWS_OF_A_SUM: usize = 64;

/// Lanes of a sum along a row: lane i adds up the elements i, i + 16, ... in order; then lanes 8 apart are added, 4, 2
/// and 1.
pub const LANES_OF_A_SUM: usize = 16;

/// A group of operations that one kernel runs: a formula over the elements of a space, in rows along its last dim.
///
/// Equal regions are one kernel, whatever values they compute with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The shape of the space. At least one dim.
    pub space: Vec<usize>,
    /// For each operand, and each dim of the space, whether the operand has it; otherwise it has size one there and is
    /// read again and again.
    pub spans: Vec<Vec<bool>>,
    /// What is computed.
    pub formula: Formula,
    /// The number of its scalars.
    pub scalars: u32,
    /// How each result of the formula is kept.
    pub keeps: Vec<Keep>,
}
