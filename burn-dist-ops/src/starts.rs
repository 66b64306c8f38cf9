//! Ranges of slices whose starts are slots of a plan, as scalars are.
//!
//! A loop over time steps takes and writes other elements in each of its passes: the same operations on the same shapes,
//! but for the starts of their ranges. With these in its operations, no window of such a loop equals another one. Shapes,
//! layouts and memory are the same for any start but 0, which stays: a tensor from the start of its buffer on may be
//! overwritten, or seen in another shape.
//!
//! A range whose start is a slot has a step of 0, which no range of a program has: its start is the number of the slot,
//! its end the number of elements. A dim that is written from such a start on is whole on every rank.

use burn_backend::{Scalar, Slice};
use burn_ir::ScalarIr;
use smallvec::SmallVec;

/// Returns the range of `size` elements whose start is a slot.
pub fn from_slot(slot: usize, size: usize) -> Slice {
    Slice {
        start: slot as isize,
        end: Some(size as isize),
        step: 0,
    }
}

/// Returns whether the start of a range may be a slot: it is known to be another one than 0.
pub fn may_be_slot(range: &Slice) -> bool {
    range.step == 1 && range.start > 0
}

/// Returns whether the start of a range is a slot.
pub fn is_slot(range: &Slice) -> bool {
    range.step == 0
}

/// Returns whether a range takes one element after the other.
pub(super) fn is_dense(range: &Slice) -> bool {
    range.step == 1 || is_slot(range)
}

/// Returns ranges with the values of their slots.
pub fn bound(ranges: &[Slice], value: impl Fn(&ScalarIr) -> Scalar) -> SmallVec<[Slice; 6]> {
    let ranges = ranges.iter().map(|range| match is_slot(range) {
        true => {
            let start: i64 = value(&ScalarIr::UInt(range.start as u64)).elem();
            let start = start as isize;
            Slice::new(start, range.end.map(|size| start + size), 1)
        }
        false => *range,
    });
    ranges.collect()
}
