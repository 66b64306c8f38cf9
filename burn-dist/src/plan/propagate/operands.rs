//! What an operation reads and makes, and what is known about it beyond its rule.

use std::sync::Arc;

use burn_backend::{DType, Distribution};
use burn_ir::{BaseOperationIr, FloatOperationIr, NumericOperationIr, OperationIr, TensorIr};

use crate::layout::Layout;
use crate::plan::window::ValueIndex;
use crate::record::visit::{OpReader, visit_ref};

/// What is known about an operation beyond its rule and operands.
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
}

/// How an operation uses indices.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Indexing {
    Read,
    Write,
}

/// Returns the dim of its first input that an operation reads or writes by index.
pub(super) fn indexed_dim(op: &OperationIr) -> Option<(Indexing, usize)> {
    let (OperationIr::BaseFloat(op) | OperationIr::BaseInt(op)) = op else {
        return None;
    };
    match op {
        BaseOperationIr::Gather(desc) => Some((Indexing::Read, desc.dim)),
        BaseOperationIr::Select(desc) => Some((Indexing::Read, desc.dim)),
        BaseOperationIr::Scatter(desc) => Some((Indexing::Write, desc.dim)),
        BaseOperationIr::SelectAssign(desc) => Some((Indexing::Write, desc.dim)),
        _ => None,
    }
}

/// Returns the dim along which an operation joins its inputs.
pub(super) fn joined_dim(op: &OperationIr) -> Option<usize> {
    match op {
        OperationIr::BaseFloat(BaseOperationIr::Cat(desc))
        | OperationIr::BaseInt(BaseOperationIr::Cat(desc))
        | OperationIr::BaseBool(BaseOperationIr::Cat(desc)) => Some(desc.dim),
        _ => None,
    }
}

/// Collects the tensors of an operation.
#[derive(Default)]
pub(super) struct Tensors {
    pub inputs: Vec<(ValueIndex, Vec<usize>, DType)>,
    pub outputs: Vec<(ValueIndex, Vec<usize>, DType)>,
}

impl OpReader for Tensors {
    fn input(&mut self, t: &TensorIr) {
        self.inputs
            .push((t.id.value() as ValueIndex, t.shape.to_vec(), t.dtype));
    }

    fn output(&mut self, t: &TensorIr) {
        self.outputs
            .push((t.id.value() as ValueIndex, t.shape.to_vec(), t.dtype));
    }
}

pub(super) fn tensors(op: &OperationIr) -> Tensors {
    let mut tensors = Tensors::default();
    visit_ref(op, &mut tensors);
    tensors
}

pub(super) fn module_path(param: &str) -> Arc<str> {
    match param.rsplit_once('.') {
        Some((module, _)) => module.into(),
        None => param.into(),
    }
}

/// Returns the tensor and distribution of a random operation.
pub(in crate::plan) fn random_parts(op: &OperationIr) -> Option<(&TensorIr, Distribution)> {
    match op {
        OperationIr::Float(_, FloatOperationIr::Random(desc))
        | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(desc))
        | OperationIr::NumericFloat(_, NumericOperationIr::IntRandom(desc)) => {
            Some((&desc.out, desc.distribution))
        }
        _ => None,
    }
}
