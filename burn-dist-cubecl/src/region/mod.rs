//! Regions: formulas over rows, as kernels for whatever runtime CubeCL has. See [`burn_dist_plan::region`] for what a
//! region is.
//!
//! [`run`] launches as few kernels as there are kinds of results: one for elements that depend on no other, one for
//! what rows are folded for, and two for each sum over rows. A kernel unrolls the instructions of the formula that its
//! results need; sizes, strides, constants and scalars are numbers that it is launched with, so that regions that
//! differ in nothing else share a kernel.
//!
//! # Bits
//! The order of sums is the [host's](burn_dist_plan::region::LANES_OF_A_SUM): 16 lanes along a row, rows in blocks of
//! 64. Sums, products, roundings, comparisons and everything of integers are the host's bit by bit, and so are
//! quotients and square roots where the device rounds them exactly. Functions differ by a few units in the last place
//! (see `functions`); devices may take subnormal numbers as zero.
//!
//! A value has the same bits in any region as alone, on one device: every float that an instruction makes is kept from
//! the compiler, which would join products and sums, or leave out what is nothing in exact arithmetic.
//!
//! # Left out
//! Types of 8, 16 and 64 bits, numbers that are added at an index, quotients, remainders and powers of integers (nothing can say on a device that one was
//! divided by zero), remainders of floats, and functions that are rarely hot: [`supports`] says so. Folds of one phase
//! go through the row one by one.

mod code;
mod draws;
mod functions;
mod kernels;
mod run;
mod steps;

pub use code::{Draw, Unsupported, supports};
pub use run::{Operand, run};
