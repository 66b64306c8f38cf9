//! A parameter of a module, as saving and loading know it.

use burn_core::module::ParamId;
use burn_dist_plan::ParamSpec;

use crate::mesh::DType;

/// The elements of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Int,
    Bool,
}

/// A parameter as records hold it: after its save mapper, before its load mapper.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// Dotted path from the root of the module.
    pub path: String,
    /// Random, and different in every process.
    pub id: ParamId,
    pub kind: Kind,
    pub shape: Vec<usize>,
    pub dtype: DType,
    /// True if it rests in 8 bits: records hold what that comes to, in a type that has it exactly.
    pub is_packed: bool,
    /// The spec that `parallelize` has installed on it.
    pub spec: Option<ParamSpec>,
}

/// A parameter that cannot be saved: where it is, and why.
pub(super) struct Unsaved {
    pub path: String,
    pub reason: String,
}
