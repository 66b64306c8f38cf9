//! Functions of one and two numbers in plain arithmetic, so that loops of them run in vectors and give the same bits at
//! every [level](super::Level): nothing of the system's library of mathematics, and products and sums
//! [rounded once](Instructions) on every processor, also where it has no instruction for that.
//!
//! | function of f32 | largest error | found |
//! | --- | --- | --- |
//! | `exp` | 2 ulp | 0.91, over all numbers |
//! | `sigmoid` | 2 ulp | 1.97, over all numbers |
//! | `tanh` | 2 ulp | 1.37, over all numbers |
//! | `erf` | 2 ulp | 1.14, over all numbers |
//! | `log`, `log1p` | 1 ulp | 0.51, over all numbers |
//! | `sin`, `cos` | 1 ulp | 0.51, over all numbers |
//! | `tan`, `pow` | 1 ulp | 0.51, over every 397th, or many pairs |
//! | all others | 1 ulp | |
//! | square root, reciprocal, sums, products, quotients, roundings | exactly rounded | |
//!
//! Functions of f64, and of f32 those that are rarely hot, are those of the crate `libm`, one number at a time: with
//! the standard library's they agree to 3 ulp on a dense grid.
//!
//! # Source
//! Polynomial of `tanh`, and how `exp` is reduced: Cephes (Moshier); of `sin` and `cos`, and the reduction of their
//! arguments: FreeBSD's msun; those of `exp` and `erf` are fits of our own. There are crates of such functions, but
//! they use fused multiply-add only where a processor has it (`rten-vecmath`), so that bits would depend on it, or need
//! a nightly compiler (`sleef`).

mod double;
mod instructions;
mod single;

pub(crate) use double::Double;
#[cfg(test)]
pub(super) use instructions::Own;
#[cfg(target_arch = "x86_64")]
pub(super) use instructions::WithAvx;
pub(crate) use instructions::{Instructions, Portable};
pub(crate) use single::Single;

#[cfg(test)]
mod tests;
