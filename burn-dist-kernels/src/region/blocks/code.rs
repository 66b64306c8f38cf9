//! Code: the instructions over a block that some steps are.

use std::ops::Range;

use burn_dist_plan::region::{Binary, Fold, Unary};

use crate::region::halves::Half;

/// Elements of a block.
pub(super) const BLOCK: usize = 128;

/// Elements of a row that is worth to be gone through in blocks.
pub(super) const ROW_MIN: usize = 64;

/// Steps of a phase that run together.
#[derive(Clone, Debug)]
pub(in crate::region) struct Code {
    pub instructions: Vec<Instruction>,
    /// Blocks for values that nothing else reads.
    pub registers: usize,
    /// Values of rows, and of all elements, that instructions read.
    pub same: Vec<usize>,
    /// Indices of the ones whose inverses instructions read.
    pub inverses: Vec<usize>,
    /// Folds: their values, and how they fold.
    pub folds: Vec<(usize, Fold)>,
    /// Values that others read: their slots are filled.
    pub dense: Vec<usize>,
    /// For each store of the phase, whether it is one of the instructions.
    pub stores: Vec<bool>,
    /// True if elements do not depend on the row that they are in.
    pub is_flat: bool,
}

/// An instruction over a block.
#[derive(Clone, Copy, Debug)]
pub(in crate::region) struct Instruction {
    pub make: Make,
    pub reads: [Read; 3],
    pub to: Target,
    /// The instruction that has this one's value leave, if nothing else reads it.
    pub leave: Option<usize>,
}

/// The work of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) enum Make {
    Copy,
    Unary(Unary),
    Binary(Binary),
    /// The second function of the first and a third value, which may be on the left.
    Pair {
        first: Binary,
        second: Binary,
        is_left: bool,
    },
    /// The quotient of a value and one that is the same for all of a row, of which it reads the inverse too.
    Quotient,
    /// The exponential of what is never positive.
    ExpOfNegative,
    /// The exponential of the difference of two values.
    ExpOfDifference,
    /// The same where that is never positive.
    ExpOfNegativeDifference,
    Round(Half),
    Fold(Fold),
    /// The sum of the products of two values.
    Products,
    /// Each element folded into the one that is there.
    Each(Fold),
    /// Products of two values, added to what is there.
    EachProduct,
    /// A copy past the cache.
    Stream,
}

/// Where an instruction reads a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) enum Read {
    Nothing,
    Register(usize),
    /// The elements of a value, in memory or in its slot.
    Dense(usize),
    /// The same value for all of a row, by its index.
    Same(usize),
    /// The inverse of such a value, by its index among those that are read.
    Inverse(usize),
}

/// Where it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::region) enum Target {
    Register(usize),
    /// The slot of a value.
    Dense(usize),
    /// The lanes of a fold, by its index.
    Lanes(usize),
    /// A store of the phase.
    Store(usize),
}

/// Consecutive steps of a phase.
#[derive(Clone, Debug)]
pub(in crate::region) struct Group {
    pub steps: Range<usize>,
    /// How they run together, if they can.
    pub code: Option<Code>,
}

impl Code {
    pub(super) fn empty() -> Self {
        Self {
            instructions: Vec::new(),
            registers: 0,
            same: Vec::new(),
            inverses: Vec::new(),
            folds: Vec::new(),
            dense: Vec::new(),
            stores: Vec::new(),
            is_flat: true,
        }
    }
}
