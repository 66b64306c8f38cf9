//! Sharding rules: for every operation of the recorded language, how its result may be computed from shards.
//!
//! What a rule is, [`burn_dist_plan::rule`] says; here is one for each operation of burn-ir.

mod activation;
mod attention;
mod conv;
mod ctc;
mod embedding;
mod index;
mod linear;
mod matmul;
mod pointwise;
mod pool;
mod reduce;
mod replicated;
mod sort;
mod spectral;
mod table;
mod tensors;
#[cfg(test)]
mod tests;
mod view;

pub use activation::Activation;
pub use burn_dist_plan::rule::{
    Assignment, FactorKind, FactorRule, Lowering, OpRule, Operand, PartialRule, Rule, nowhere_empty,
};
pub use replicated::REPLICATED;
pub(crate) use replicated::mark;
pub use table::rule;
pub(crate) use view::takes_whole;
