//! Regions on the host: formulas over rows, one pass over memory each. See [`burn_dist_plan::region`] for what a region
//! is.
//!
//! [`Kernel::new`] makes a region ready once, [`Kernel::run`] runs it on memory with any strides; [`run`] does both.
//!
//! A run goes through its rows in chunks, several times where rows are folded. Instructions of f32 that follow each
//! other go through a chunk together, block by block, so that values stay in the first cache and the processor computes
//! quotients of one block beside the sums of the next; each other one is a loop over the chunk. What is cheap is made
//! again in a later pass through a row, and quotients by one number are found by its inverse, exactly rounded. All
//! loops are vectors (AVX-512, AVX2, NEON, or what the target has), values of rows and constants are read as they are,
//! and short rows run many at a time. Rows are shared among the threads of rayon's current pool; small regions run on
//! the caller.
//!
//! # Bits
//! A result depends on nothing but its operands: not on chunks, threads, strides, the processor or which instructions
//! share a region. Sums have [one order](burn_dist_plan::region::LANES_OF_A_SUM), instructions are never
//! contracted to fused multiply-add, functions are [our own](functions) or those of the crate `libm`, and floats of 16
//! bits are computed in f32 and rounded after every instruction (a fold: once). What a function of our own rounds once
//! is rounded once on every processor.
//!
//! # Bad input
//! | what | result |
//! | --- | --- |
//! | infinities, NaN, subnormal numbers, -0.0 | as IEEE 754 says; the sign of NaN is 0, as in Flex; the smaller or larger of NaN and a number is NaN; which NaN a result is, its sign and payload, nothing promises |
//! | integers: sums, products, powers, shifts that overflow | wrap; Flex panics for sums of 64 bits in debug builds |
//! | the least integer by -1 | wraps; Flex panics for 64 bits |
//! | an integer by zero | [`RegionError::DivisionByZero`]; Flex panics |
//! | an index outside of its row | [`RegionError::IndexOutside`], the first one of them; Flex panics |
//! | float to integer out of range | saturates, NaN is 0, as in Flex |
//! | rows without elements | the fold's neutral value: 0, 1, the least, the largest |
//!
//! # Source
//! Chunks that stay in the cache and one loop for each instruction are those of vectorised query engines (Boncz,
//! Zukowski and Nes, "MonetDB/X100", CIDR 2005). Differs: blocks are as short as the processor looks ahead, and two
//! instructions of f32 share a loop where only the second reads the first.
//!
//! # Left out
//! Quantized types, and sums and products of bools. An operand whose rows do not run through memory is gathered,
//! element by element: where it is large, it is better [copied](copy) before.

mod again;
mod ahead;
mod blocks;
mod casts;
mod copy;
mod error;
mod folds;
mod functions;
mod geometry;
mod halves;
mod kind;
mod level;
mod loops;
mod memory;
mod operands;
mod program;
#[cfg(any(test, feature = "random-regions"))]
pub mod programs;
mod results;
mod run;
mod schedule;
mod steps;
mod stream;
mod threads;

use burn_dist_plan::region::{Number, Region};

pub use copy::{Array, add_rows, concat, copy, pick_rows, zeros};
pub use error::RegionError;
// What attention computes with, too.
pub(crate) use functions::{Double, Instructions, Portable, Single};
pub use kind::number_bits;
pub(crate) use level::Loop;
pub use level::{Level, Vectorized};
pub use memory::{Draw, Memory, Operand, Output, places_of};
use program::Program;

/// A region made ready to run.
#[derive(Clone, Debug)]
pub struct Kernel {
    program: Program,
}

impl Kernel {
    /// Makes a region ready.
    ///
    /// # Errors
    /// [`RegionError::Unsupported`], [`RegionError::UnsupportedOperand`] and [`RegionError::UnsupportedKeep`] name what
    /// has no kernel; [`RegionError::Malformed`] a region that contradicts itself.
    pub fn new(region: &Region) -> Result<Self, RegionError> {
        Ok(Self {
            program: Program::new(region)?,
        })
    }

    /// Runs it: one operand and one output for each of the region's, in order.
    ///
    /// # Errors
    /// [`RegionError::Memory`] if memory is too small, unaligned, or cannot be taken over;
    /// [`RegionError::DivisionByZero`] if an integer was divided by zero: outputs are written all the same, with zeros
    /// there. [`RegionError::IndexOutside`] of an index that is none of its row, to which nothing is added then.
    pub fn run(
        &self,
        operands: &mut [Operand<'_>],
        scalars: &[Number],
        outputs: &mut [Output<'_>],
    ) -> Result<(), RegionError> {
        self.run_drawing(operands, scalars, &[], outputs)
    }

    /// Runs a region that draws random numbers: one draw for each of the region's, in order.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_drawing(
        &self,
        operands: &mut [Operand<'_>],
        scalars: &[Number],
        draws: &[Draw<'_>],
        outputs: &mut [Output<'_>],
    ) -> Result<(), RegionError> {
        self.run_at(Level::best(), operands, scalars, draws, outputs)
    }

    /// Runs it with the instructions of a level; the bits are the same at each.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_at(
        &self,
        level: Level,
        operands: &mut [Operand<'_>],
        scalars: &[Number],
        draws: &[Draw<'_>],
        outputs: &mut [Output<'_>],
    ) -> Result<(), RegionError> {
        threads::run(&self.program, level, operands, scalars, draws, outputs)
    }
}

/// Returns whether a region has a kernel, and if not, why.
///
/// # Errors
/// As [`Kernel::new`].
pub fn supports(region: &Region) -> Result<(), RegionError> {
    Program::new(region).map(|_| ())
}

/// Makes a region ready and runs it.
///
/// # Errors
/// As [`Kernel::new`] and [`Kernel::run`].
pub fn run(
    region: &Region,
    operands: &mut [Operand<'_>],
    scalars: &[Number],
    outputs: &mut [Output<'_>],
) -> Result<(), RegionError> {
    Kernel::new(region)?.run(operands, scalars, outputs)
}

#[cfg(test)]
mod tests;
