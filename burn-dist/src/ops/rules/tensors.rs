//! The tensors of an operation of Burn's, as rules name them.

use burn_dist_plan::rule::{self, Name};
use burn_ir::{OperationIr, TensorIr};

pub(super) use burn_dist_plan::rule::Shapes as Tensors;

/// Returns the shapes of the operands of `op`.
pub(super) fn of(op: &OperationIr) -> Tensors<'_> {
    Tensors {
        inputs: op.inputs().map(|input| input.shape.as_slice()).collect(),
        outputs: op.outputs().map(|out| out.shape.as_slice()).collect(),
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
