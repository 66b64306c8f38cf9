//! Embedding lookup and its backward, split over the vocabulary `v`: each rank looks up the indices in its range.
//!
//! # Source
//! The vocabulary-parallel embedding of Megatron-LM (arXiv:1909.08053, section 3).

use burn_dist_plan::op;

use super::family::prelude::*;
use super::index::{Indexing, along, here, read_here};

family! {
    Embedding |cx, op| {
        /// `(weights, indices)`.
        Embedding(EmbeddingOpIr) float = B::embedding(cx.float(&op.weights), cx.int(&op.indices)),
        /// `(weights, output_grad, indices)`: only the shape of the weights is read.
        EmbeddingBackward(EmbeddingBackwardOpIr) float =
            B::embedding_backward(cx.float(&op.weights), cx.float(&op.out_grad), cx.int(&op.indices)),
    }
}

impl Operation for Embedding<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let rule = match self {
            Self::Embedding(_) => RuleBuilder::notation(shapes, "v d, ... -> ... d")
                .kind('v', FactorKind::Index)
                .linear(),
            Self::EmbeddingBackward(_) => RuleBuilder::notation(shapes, "v d, ... d, ... -> v d")
                .kind('v', FactorKind::Index)
                .contract(ReduceOp::Sum)
                .shape_only(0),
        };
        rule.lowering(Lowering::Special).build()
    }

    fn lower(&self, local: &Local<'_>, rule: &Rule, emit: &mut Emit<'_>) {
        match self {
            Self::Embedding(_) => embedding(local, rule, emit),
            Self::EmbeddingBackward(_) => embedding_backward(local, rule, emit),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Embedding(_) => FloatClass::Move,
            // It adds up a row for each time that a token occurs.
            Self::EmbeddingBackward(_) => FloatClass::Single,
        }
    }

    fn traits(&self) -> Traits {
        let (table, indices) = (0, 1);
        match self {
            Self::Embedding(_) => Traits {
                indexing: Some((op::Indexing::Read, 0)),
                layer: Some(Layer::Lookup),
                adjoint: Some(Adjoint::Read { table, indices }),
                ..Traits::default()
            },
            Self::EmbeddingBackward(_) => Traits {
                indexing: Some((op::Indexing::Write, 0)),
                adjoint: Some(Adjoint::Named { weight: 0 }),
                makes_weight_gradient: true,
                ..Traits::default()
            },
        }
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        match self {
            Self::Embedding(_) => None,
            Self::EmbeddingBackward(_) => OfNothing::from(1, Nothing::Zeros),
        }
    }
}

impl<'a> Embedding<'a> {
    /// Returns what it reads or writes.
    pub(super) fn indexing(&self) -> Indexing<'a> {
        match self {
            Self::Embedding(op) => Indexing::new(&op.weights, 0, &op.indices, &op.out),
            Self::EmbeddingBackward(op) => Indexing::new(&op.weights, 0, &op.indices, &op.out),
        }
    }
}

/// `embedding(weights, indices)`: rows on other ranks read as zero.
fn embedding(local: &Local, rule: &Rule, emit: &mut Emit) {
    fn rows(mask: &TensorIr, out: &TensorIr, emit: &mut Emit) -> TensorIr {
        let mut column = mask.shape.to_vec();
        column.push(1);
        let mask = emit.reshape(mask, column);
        emit.expand(&mask, out.shape.to_vec())
    }
    read_here(local, rule, 0, emit, rows, |weights, indices, out| {
        let embedding = EmbeddingOpIr {
            weights,
            indices,
            out,
        };
        OperationIr::Module(ModuleOperationIr::Embedding(embedding))
    });
}

/// `embedding_backward(weights, output_grad, indices)`: adds up the rows of the rank's range.
fn embedding_backward(local: &Local, rule: &Rule, emit: &mut Emit) {
    let Some(split) = local.split(&rule.outputs[0].dims, 0) else {
        return local.same(emit);
    };
    let grad = local.local_input(1);
    let indices = local.local_input(2);
    let out = local.local_outputs().remove(0);
    let count = indices.shape.num_elements();
    let grad = emit.reshape(&grad, vec![count, out.shape[1]]);
    let indices = emit.reshape(&indices, vec![count]);
    let here = here(local, split, indices, emit);
    let elsewhere = along(&here.elsewhere, 0, &grad, emit);
    let grad = emit.masked(&grad, &elsewhere);
    let zeros = emit.temp(&out, out.shape.to_vec());
    emit.zeros(zeros.clone());
    emit.select_add(read(&zeros), 0, here.indices, grad, out);
}
