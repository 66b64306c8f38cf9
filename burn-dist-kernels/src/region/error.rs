//! Why a region does not run.

use burn_dist_mesh::DType;
use burn_dist_plan::region::Instruction;

/// Why a region does not run.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// An instruction that has no kernel for its types.
    #[error(
        "a region computes {instruction:?} of {operands:?} as {result}, which has no kernel on the host: keep the \
         operation out of regions"
    )]
    Unsupported {
        /// The instruction.
        instruction: Instruction,
        /// The types of what it reads.
        operands: Vec<DType>,
        /// The type of what it makes.
        result: DType,
    },
    /// An operand of a type that has no kernel.
    #[error(
        "operand {operand} of a region is {dtype}, which has no kernel on the host: keep it out of regions"
    )]
    UnsupportedOperand {
        /// The operand.
        operand: usize,
        /// Its type.
        dtype: DType,
    },
    /// A result that cannot be kept so.
    #[error(
        "result {result} of a region is {dtype} and kept as {keep}, which has no kernel on the host"
    )]
    UnsupportedKeep {
        /// The result.
        result: usize,
        /// Its type.
        dtype: DType,
        /// How it is to be kept.
        keep: String,
    },
    /// A region that contradicts itself.
    #[error("a region has {what}: this is a bug of who made it")]
    Malformed {
        /// The contradiction.
        what: String,
    },
    /// Memory that is not what the region reads or writes.
    #[error("{what}: this is a bug of who runs the region or the copy")]
    Memory {
        /// The expected memory, and the one that was found.
        what: String,
    },
    /// An integer was divided by zero.
    #[error(
        "an integer was divided by zero in a region: floats would give infinity, integers have none"
    )]
    DivisionByZero,
    /// An index is none of a row.
    #[error("index {index} is outside of rows of {len} elements, to one of which a region adds")]
    IndexOutside {
        /// The index.
        index: i64,
        /// Elements of a row.
        len: usize,
    },
}
burn_dist_mesh::debug_by_message!(RegionError);
