//! The operations of a recorded program: Burn's, and what a program says of its values.
//!
//! | file | idea |
//! | --- | --- |
//! | [`recorded`] | one recorded operation, as the planner sees it |
//! | [`visit`] | where every operation keeps its tensors and scalars |
//! | [`rules`] | what of an operation may be split, one file per family |
//! | [`lower`] | from a global operation to the local ones of a rank |
//! | [`traits`] | what is known of an operation besides |
//! | [`flops`] | what products cost |
//! | [`storage`] | which memory results take, as burn-flex does it |
//! | [`custom`] | operations that burn-ir does not have |
//! | [`dtype`] | element types in Burn's terms and in ours |

pub mod custom;
pub(crate) mod dtype;
mod flops;
pub(crate) mod lower;
mod recorded;
pub mod rules;
#[cfg(test)]
pub(crate) mod samples;
pub(crate) mod storage;
mod traits;
pub mod visit;

pub(crate) use recorded::{Marked, Recorded, check_known, name};
pub(crate) use visit::{OpReader, OpVisitor, visit_mut, visit_ref};
