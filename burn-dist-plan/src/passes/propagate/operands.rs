//! What an operation reads and makes, and what is known about it beyond its rule.

use std::sync::Arc;

use crate::ir::{Op, Tensor, ValueIndex};
use crate::layout::Layout;
use crate::mesh::DType;

/// What is known about an operation beyond its rule and operands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hints {
    /// An input that must have a layout, because the module asks for it.
    pub forced: Option<(usize, Layout)>,
    /// The layout that the result is wanted in.
    pub mirror: Option<Layout>,
    /// Where the result rests: unless it stays partial, it is made there.
    pub home: Option<Arc<Layout>>,
    /// The layout of the result where the operands decide nothing.
    pub batch: Option<Layout>,
    /// Whether the rows of the result are its inputs, whose own layouts then say nothing.
    pub joins_rows: bool,
    /// Floating-point operations of the whole.
    pub flops: f64,
}

/// The tensors of an operation: number, shape and element type of each.
pub(super) struct Tensors {
    pub inputs: Vec<(ValueIndex, Vec<usize>, DType)>,
    pub outputs: Vec<(ValueIndex, Vec<usize>, DType)>,
}

pub(super) fn tensors<O: Op>(op: &O) -> Tensors {
    let own = |tensor: Tensor<'_>| (tensor.id, tensor.shape.to_vec(), tensor.dtype);
    Tensors {
        inputs: op.inputs().map(own).collect(),
        outputs: op.outputs().map(own).collect(),
    }
}

pub(super) fn module_path(param: &str) -> Arc<str> {
    match param.rsplit_once('.') {
        Some((module, _)) => module.into(),
        None => param.into(),
    }
}
