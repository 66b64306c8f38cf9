//! Ops that move elements by their place alone. Reshape is not here: it regroups the factors of a layout instead.

use super::tensors::{Tensors, dims, dims_but};
use super::{Lowering, OpRule};
use burn_dist_plan::rule::{Name, RuleBuilder};
use burn_ir::*;
use burn_std::Slice;

/// `swap_dims`.
pub(super) fn swap_dims(tensors: &Tensors, op: &SwapDimsOpIr) -> OpRule {
    let mut out = dims(&op.input);
    out.swap(op.dim1, op.dim2);
    RuleBuilder::named(tensors, vec![dims(&op.input)], vec![out])
        .moves()
        .build()
}

/// `permute`: dim `i` of the output is dim `axes[i]` of the input.
pub(super) fn permute(tensors: &Tensors, op: &PermuteOpIr) -> OpRule {
    let out = op.axes.iter().map(|&dim| Name::Dim(dim)).collect();
    RuleBuilder::named(tensors, vec![dims(&op.input)], vec![out])
        .moves()
        .build()
}

/// `expand`: an expanded dim is a factor of the output alone.
pub(super) fn expand(tensors: &Tensors) -> OpRule {
    RuleBuilder::notation(tensors, "... -> ...")
        .broadcast()
        .moves()
        .build()
}

/// `flip`: a flipped dim would trade places between ranks, so it stays whole.
pub(super) fn flip(tensors: &Tensors, op: &FlipOpIr) -> OpRule {
    let mut names = dims(&op.input);
    for &dim in &op.axes {
        names[dim] = Name::Whole;
    }
    RuleBuilder::named(tensors, vec![names.clone()], vec![names])
        .moves()
        .build()
}

/// `unfold`: windows over one dim, which stays whole.
pub(super) fn unfold(tensors: &Tensors, op: &UnfoldOpIr) -> OpRule {
    let input = dims_but(&op.input, op.dim, Name::Whole);
    let mut out = input.clone();
    out.push(Name::Whole);
    RuleBuilder::named(tensors, vec![input], vec![out])
        .moves()
        .build()
}

/// Whether a slice of a dim of `size` elements into `sliced` elements takes all of them in order.
pub(crate) fn takes_whole(ranges: &[Slice], dim: usize, size: usize, sliced: usize) -> bool {
    size == sliced && ranges.get(dim).is_none_or(|range| range.step == 1)
}

/// `slice`: dims taken whole may be split.
pub(super) fn slice(tensors: &Tensors, op: &SliceOpIr) -> OpRule {
    let names = sliced(&op.tensor, &op.out, &op.ranges);
    RuleBuilder::named(tensors, vec![names.clone()], vec![names])
        .moves()
        .build()
}

/// `slice_assign(tensor, value)`: each rank assigns what falls into its part; a dim assigned in steps stays whole.
pub(super) fn slice_assign(tensors: &Tensors, op: &SliceAssignOpIr) -> OpRule {
    let value = sliced(&op.tensor, &op.value, &op.ranges);
    let mut names = dims(&op.tensor);
    for (name, range) in names.iter_mut().zip(&op.ranges) {
        if range.step != 1 {
            *name = Name::Whole;
        }
    }
    RuleBuilder::named(tensors, vec![names.clone(), value], vec![names])
        .joint_linear(&[0, 1])
        .lowering(Lowering::Special)
        .build()
}

fn sliced(tensor: &TensorIr, part: &TensorIr, ranges: &[Slice]) -> Vec<Name> {
    let mut names = dims(tensor);
    for (dim, name) in names.iter_mut().enumerate() {
        if !takes_whole(ranges, dim, tensor.shape[dim], part.shape[dim]) {
            *name = Name::Whole;
        }
    }
    names
}

/// `repeat_dim`: the repeated dim stays whole, unless it is a single element, which is expanded.
pub(super) fn repeat_dim(tensors: &Tensors, op: &RepeatDimOpIr) -> OpRule {
    let names = match op.tensor.shape[op.dim] {
        1 => dims(&op.tensor),
        _ => dims_but(&op.tensor, op.dim, Name::Whole),
    };
    RuleBuilder::named(tensors, vec![names.clone()], vec![names])
        .broadcast()
        .moves()
        .build()
}

/// `cat`: the dim stays whole in the inputs; of the output, each rank makes its part from those inputs that fall into
/// it.
pub(super) fn cat(tensors: &Tensors, op: &CatOpIr) -> OpRule {
    let names = |tensor: &TensorIr| dims_but(tensor, op.dim, Name::Whole);
    let inputs: Vec<_> = op.tensors.iter().map(names).collect();
    let all: Vec<usize> = (0..inputs.len()).collect();
    RuleBuilder::named(tensors, inputs, vec![dims(&op.out)])
        .joint_linear(&all)
        .lowering(Lowering::Special)
        .build()
}
