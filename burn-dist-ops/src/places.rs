//! Where burn-flex puts results that may overwrite an operand.

use burn_dist_plan::storage::{Operand, Place, Strided};

/// True if an assignment to every second element, or the like, overwrites the tensor.
pub(super) const STEPS_IN_PLACE: bool = true;

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
