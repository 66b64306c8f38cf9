//! What an operation reads and makes.

use crate::ir::{Op, Tensor};

/// The tensors of an operation.
pub(super) struct Tensors<'a> {
    pub inputs: Vec<Tensor<'a>>,
    pub outputs: Vec<Tensor<'a>>,
}

pub(super) fn tensors<O: Op>(op: &O) -> Tensors<'_> {
    Tensors {
        inputs: op.inputs().collect(),
        outputs: op.outputs().collect(),
    }
}

/// Returns the path of the module that a parameter is of.
pub(super) fn module_path(param: &str) -> &str {
    param.rsplit_once('.').map_or(param, |(module, _)| module)
}
