//! Ops that read or write at places given by indices.
//!
//! `v` is the dim that the indices point into. Reads from a split `v` mask what lies on other ranks and give a partial
//! sum; writes into a split `v` mask likewise and leave the result split. `n` is the dim of the indices. Writes that
//! add may split `n`: then the first member of the group adds its terms to the tensor, the others to zeros. Bools have
//! no sum, so they take neither way.

use super::tensors::{Tensors, dims, dims_but};
use super::{FactorKind, Lowering, OpRule};
use crate::mesh::ReduceOp;
use burn_backend::tensor::IndexingUpdateOp;
use burn_dist_plan::rule::{Name, RuleBuilder};
use burn_ir::*;

/// Whether the update is a sum of terms, such that terms may be added on different ranks.
fn sums(tensor: &TensorIr, update: &IndexingUpdateOp) -> bool {
    matches!(update, IndexingUpdateOp::Add) && !tensor.dtype.is_bool()
}

/// The kind of `v` in a read.
fn read_kind(tensor: &TensorIr) -> FactorKind {
    match tensor.dtype.is_bool() {
        true => FactorKind::Whole,
        false => FactorKind::Index,
    }
}

/// The kinds of `v` and `n` in a write.
fn write_kinds(tensor: &TensorIr, update: &IndexingUpdateOp) -> (FactorKind, FactorKind) {
    match sums(tensor, update) {
        true => (FactorKind::Index, FactorKind::Reduce(ReduceOp::Sum)),
        false => (FactorKind::Whole, FactorKind::Whole),
    }
}

/// `gather(tensor, indices)`: `out[i, n] = tensor[i, indices[i, n]]`. The other dims line up only if the indices cover
/// them.
pub(super) fn gather(tensors: &Tensors, op: &GatherOpIr) -> OpRule {
    let indices = dims_but(&op.indices, op.dim, 'n');
    RuleBuilder::named(
        tensors,
        vec![dims_but(&op.tensor, op.dim, 'v'), indices.clone()],
        vec![indices],
    )
    .kind('v', read_kind(&op.tensor))
    .linear()
    .lowering(Lowering::Special)
    .build()
}

/// `scatter(tensor, indices, value)`: `out[i, indices[i, n]] += value[i, n]`.
pub(super) fn scatter(tensors: &Tensors, op: &ScatterOpIr) -> OpRule {
    let (v, n) = write_kinds(&op.tensor, &op.update);
    let tensor = dims_but(&op.tensor, op.dim, 'v');
    let indices = dims_but(&op.indices, op.dim, 'n');
    RuleBuilder::named(
        tensors,
        vec![tensor.clone(), indices.clone(), indices],
        vec![tensor],
    )
    .kind('v', v)
    .kind('n', n)
    .joint_linear(if sums(&op.tensor, &op.update) {
        &[0, 2]
    } else {
        &[]
    })
    .lowering(Lowering::Special)
    .build()
}

/// `select(tensor, indices)`: `out[i, n] = tensor[i, indices[n]]`.
pub(super) fn select(tensors: &Tensors, op: &SelectOpIr) -> OpRule {
    RuleBuilder::named(
        tensors,
        vec![dims_but(&op.tensor, op.dim, 'v'), vec!['n'.into()]],
        vec![dims_but(&op.out, op.dim, 'n')],
    )
    .kind('v', read_kind(&op.tensor))
    .linear()
    .lowering(Lowering::Special)
    .build()
}

/// `select_assign(tensor, indices, value)`: `out[i, indices[n]] += value[i, n]`.
pub(super) fn select_assign(tensors: &Tensors, op: &SelectAssignOpIr) -> OpRule {
    let (v, n) = write_kinds(&op.tensor, &op.update);
    let tensor = dims_but(&op.tensor, op.dim, 'v');
    let value = dims_but(&op.value, op.dim, 'n');
    RuleBuilder::named(
        tensors,
        vec![tensor.clone(), vec!['n'.into()], value],
        vec![tensor],
    )
    .kind('v', v)
    .kind('n', n)
    .joint_linear(if sums(&op.tensor, &op.update) {
        &[0, 2]
    } else {
        &[]
    })
    .lowering(Lowering::Special)
    .build()
}

/// The names of `data`, `indices` and `values` of the n-dimensional ops: the last dim of the indices is a place in the
/// first dims of the data, the others number the places; the remaining dims of the data come along.
fn places(data: &TensorIr, indices: &TensorIr) -> [Vec<Name>; 3] {
    let lead = indices.shape.num_dims() - 1;
    let depth = indices.shape[lead];
    let rest = (depth..data.shape.num_dims()).map(|dim| Name::Dim(lead + dim));
    let numbered: Vec<Name> = (0..lead).map(Name::Dim).collect();
    let data = vec![Name::Whole; depth].into_iter().chain(rest.clone());
    [
        data.collect(),
        numbered.iter().copied().chain([Name::Whole]).collect(),
        numbered.iter().copied().chain(rest).collect(),
    ]
}

/// `gather_nd(data, indices)`.
pub(super) fn gather_nd(tensors: &Tensors, op: &GatherNdOpIr) -> OpRule {
    let [data, indices, values] = places(&op.data, &op.indices);
    RuleBuilder::named(tensors, vec![data, indices], vec![values])
        .linear()
        .build()
}

/// `scatter_nd(data, indices, values)`.
pub(super) fn scatter_nd(tensors: &Tensors, op: &ScatterNdOpIr) -> OpRule {
    let [data, indices, values] = places(&op.data, &op.indices);
    let sums = sums(&op.data, &op.reduction);
    let mut rule = RuleBuilder::named(tensors, vec![data.clone(), indices, values], vec![data]);
    for dim in dims(&op.indices).into_iter().rev().skip(1) {
        let (_, n) = write_kinds(&op.data, &op.reduction);
        rule = rule.kind(dim, n);
    }
    rule.joint_linear(if sums { &[0, 2] } else { &[] })
        .lowering(Lowering::Special)
        .build()
}
