//! What an operation reads and makes.

use std::sync::Arc;

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

pub(super) fn module_path(param: &str) -> Arc<str> {
    match param.rsplit_once('.') {
        Some((module, _)) => module.into(),
        None => param.into(),
    }
}
