//! Where burn-flex 0.21 puts results that may overwrite an operand.

use burn_dist_plan::storage::{Operand, Place, Strided};

/// True if an assignment to every second element, or the like, overwrites the tensor.
pub(super) const STEPS_IN_PLACE: bool = false;

/// True if writes at indices overwrite the tensor that they write to.
pub(super) const WRITES_IN_PLACE: bool = false;

/// A function of pairs of elements that may overwrite the left operand.
pub(super) fn pairwise(inputs: &[Operand<'_>], shape: &[usize], broadcasts: bool) -> Place {
    let new = Place::New(Strided::contiguous(shape));
    let [lhs, rhs, ..] = inputs else { return new };
    if !(lhs.alone && lhs.at.shape == shape && lhs.at.is_plain()) {
        return new;
    }
    let right = rhs.at.expanded(shape);
    if right.is_contiguous() || broadcasts && is_broadcast(&right) {
        return Place::Shares(0, lhs.at.clone());
    }
    new
}

/// Elements chosen by a mask.
pub(super) fn masked(_: &[Operand<'_>], shape: &[usize], _: Option<usize>) -> Place {
    Place::New(Strided::contiguous(shape))
}

/// A write at indices.
pub(super) fn written(_: &[Operand<'_>], shape: &[usize]) -> Place {
    Place::New(Strided::contiguous(shape))
}

/// Returns whether an operand is one row for all, or one number for each row.
fn is_broadcast(at: &Strided) -> bool {
    let Some((&last, outer)) = at.strides.split_last() else {
        return false;
    };
    if at.shape.contains(&0) {
        return false;
    }
    if last == 1 {
        let sizes = at.shape.iter();
        if outer
            .iter()
            .zip(sizes)
            .all(|(stride, size)| *stride == 0 || *size == 1)
        {
            return true;
        }
    }
    if last != 0 {
        return false;
    }
    let rows = at.strides.iter().rposition(|stride| *stride != 0);
    let rows = rows.map_or(0, |dim| dim + 1);
    at.strides[..rows] == Strided::contiguous(&at.shape[..rows]).strides
}
