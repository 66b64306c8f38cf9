//! Where burn-flex puts results that may overwrite an operand, or look at one.

use burn_dist_plan::storage::{Operand, Place, Strided};

/// True if an unfolded tensor looks at the memory of its input.
pub(super) const UNFOLD_IS_VIEW: bool = true;

/// True if writes at indices overwrite the tensor that they write to.
pub(super) const WRITES_IN_PLACE: bool = true;

/// A function of pairs of elements, which may overwrite the left operand, or else the right one.
pub(super) fn pairwise(inputs: &[Operand<'_>], shape: &[usize], _: bool) -> Place {
    let new = Place::New(Strided::contiguous(shape));
    let [lhs, rhs, ..] = inputs else { return new };
    let (left, right) = (lhs.at.expanded(shape), rhs.at.expanded(shape));
    let ascends = |at: &Strided| at.strides.iter().all(|stride| *stride >= 0);
    if lhs.alone && left.is_plain() && ascends(&right) {
        return Place::Shares(0, left);
    }
    match rhs.alone && right.is_plain() && ascends(&left) {
        true => Place::Shares(1, right),
        false => new,
    }
}

/// Elements chosen by a mask: they overwrite the tensor, or else the input with other values.
pub(super) fn masked(inputs: &[Operand<'_>], shape: &[usize], others: Option<usize>) -> Place {
    for input in [0].into_iter().chain(others) {
        let at = inputs[input].at.expanded(shape);
        if inputs[input].alone && at.is_contiguous() {
            return Place::Shares(input, at);
        }
    }
    Place::New(Strided::contiguous(shape))
}

/// A write at indices: it overwrites the tensor.
pub(super) fn written(inputs: &[Operand<'_>], shape: &[usize]) -> Place {
    match inputs[0].alone && inputs[0].at.is_contiguous() {
        true => Place::Shares(0, inputs[0].at.clone()),
        false => Place::New(Strided::contiguous(shape)),
    }
}

/// Windows over a dim, each as a new last dim.
pub(super) fn unfolded(at: &Strided, dim: usize, step: usize, shape: &[usize]) -> Option<Strided> {
    let mut strides = at.strides.clone();
    strides.push(at.strides[dim]);
    strides[dim] *= step as isize;
    Some(Strided {
        shape: shape.to_vec(),
        strides,
        offset: at.offset,
    })
}
