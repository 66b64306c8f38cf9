//! Sharding rules: for every operation of the recorded language, how its result may be computed from shards.
//!
//! The algebra of rules is [`burn_dist_plan::rule`]; each family has those of its operations. Here is what they share,
//! and the one list of operations that run on whole tensors on every rank, on purpose.

use burn_dist_plan::rule;
use burn_ir::{OperationIr, TensorIr};

pub use burn_dist_plan::rule::{
    Assignment, FactorKind, FactorRule, Lowering, Name, OpRule, Operand, PartialRule, Rule, Shapes,
    nowhere_empty,
};

use super::quantized;
use super::table::family_of;

/// The ops by name (see `kind_name`; `quantized` is every op but these two that reads or makes a quantized tensor) with
/// the reason why each is replicated.
pub const REPLICATED: &[(&str, &str)] = &[
    (
        "mean",
        "the mean of ints rounds once, which a sum of shares does not",
    ),
    (
        "quantize",
        "scales belong to the whole tensor or to blocks of its flat order, and values are packed: no part of a \
         quantized tensor stands alone",
    ),
    (
        "dequantize",
        "a quantized tensor is whole on every rank; what it dequantizes to is split for free where it is used",
    ),
    (
        "quantized",
        "a view of a quantized tensor moves values between blocks, which may quantize them anew",
    ),
    (
        "init",
        "declares data that was uploaded: where it goes is decided there",
    ),
    ("drop", "ends a tensor and computes nothing"),
    ("custom", "is not known to burn-dist: no mesh records it"),
];

/// Returns the sharding rule of an operation with global shapes.
///
/// # Source
/// Factor notation is that of Shardy's `sdy.op_sharding_rule` (einsum-like, with reduction factors).
pub fn rule(op: &OperationIr) -> OpRule {
    match quantized::applies(op) {
        true => replicated("quantized"),
        false => {
            let shapes = shapes(op.inputs(), op.outputs());
            family_of(op).1.operation().rule(&shapes)
        }
    }
}

/// Returns the rule of an op in [`REPLICATED`].
pub(super) fn replicated(name: &str) -> OpRule {
    let found = REPLICATED.iter().find(|(listed, _)| *listed == name);
    OpRule::Replicated(found.expect("the op stands in the list").1)
}

/// Returns the shapes of operands.
pub(super) fn shapes<'t>(
    inputs: impl Iterator<Item = &'t TensorIr>,
    outputs: impl Iterator<Item = &'t TensorIr>,
) -> Shapes<'t> {
    Shapes {
        inputs: inputs.map(|input| input.shape.as_slice()).collect(),
        outputs: outputs.map(|out| out.shape.as_slice()).collect(),
    }
}

/// Returns the names of a tensor whose dims are all factors of their own.
pub(super) fn dims(tensor: &TensorIr) -> Vec<Name> {
    rule::dims(tensor.shape.num_dims())
}

/// Returns the names of `tensor` as [`dims`] does, but for dim `dim`.
pub(super) fn dims_but(tensor: &TensorIr, dim: usize, name: impl Into<Name>) -> Vec<Name> {
    rule::dims_but(tensor.shape.num_dims(), dim, name)
}

/// Returns the number of elements, to count flops.
pub(super) fn numel(shape: &[usize]) -> f64 {
    shape.iter().map(|&size| size as f64).product()
}
