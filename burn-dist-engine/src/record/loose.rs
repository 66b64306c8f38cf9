//! Windows that differ by where they slice: they have one plan.
//!
//! On one rank, starts are slots of every plan ([`starts`]). On several, a dim that is written from a known start on may
//! stay split, so that the first window is planned as it is. When another one comes that differs from it by starts alone,
//! these become slots of its plan, and of those of all that come after.
//!
//! Which windows came decides, and not whose plans are kept: processes keep plans of other sizes, and must decide alike.

use burn_backend::Slice;
use burn_ir::{BaseOperationIr, OperationIr, ScalarIr};
use rustc_hash::FxHashSet;

use crate::ops::{Recorded, starts};
use crate::plan::Window;

/// Windows that are remembered, at most.
const SEEN_MAX: usize = 1 << 16;

/// The windows that are planned as they are, by their hashes as they are and with slots.
#[derive(Default)]
pub(super) struct Loose {
    fixed: FxHashSet<u64>,
    with_slots: FxHashSet<u64>,
}

impl Loose {
    /// Makes slots of the starts in a window if one came before that differs from it by them alone; returns whether it
    /// did.
    pub(super) fn loosen(&mut self, window: &mut Window, scalars: &mut Vec<ScalarIr>) -> bool {
        if self.fixed.contains(&window.hash) {
            return false;
        }
        if self.fixed.len() >= SEEN_MAX {
            *self = Self::default();
        }
        let hash = window.hash;
        let ranges = loosen(&mut window.ops, scalars.len());
        if !ranges.is_empty() {
            window.hash = window.hash_all();
            if self.with_slots.contains(&window.hash) {
                scalars.extend(values(&ranges));
                return true;
            }
            self.with_slots
                .insert(std::mem::replace(&mut window.hash, hash));
            tighten(&mut window.ops, ranges);
        }
        self.fixed.insert(hash);
        false
    }
}

/// Visits the ranges that an operation takes or writes, each with the number of its elements.
fn each_range(op: &mut Recorded, mut visit: impl FnMut(&mut Slice, usize)) {
    use BaseOperationIr::{Slice, SliceAssign};
    use OperationIr::{BaseBool, BaseFloat, BaseInt};
    let (ranges, part) = match op {
        Recorded::Burn(BaseFloat(Slice(op)) | BaseInt(Slice(op)) | BaseBool(Slice(op))) => {
            (&mut op.ranges, &op.out)
        }
        Recorded::Burn(
            BaseFloat(SliceAssign(op)) | BaseInt(SliceAssign(op)) | BaseBool(SliceAssign(op)),
        ) => (&mut op.ranges, &op.value),
        _ => return,
    };
    for (range, &size) in ranges.iter_mut().zip(part.shape.iter()) {
        visit(range, size);
    }
}

/// Makes slots, from number `first` on, of the starts of the ranges of an operation, and adds these ranges as they were.
fn loosen_one(op: &mut Recorded, first: usize, ranges: &mut Vec<Slice>) {
    each_range(op, |range, size| {
        if starts::may_be_slot(range) && size > 0 {
            let slot = starts::from_slot(first + ranges.len(), size);
            ranges.push(std::mem::replace(range, slot));
        }
    });
}

/// Returns what the slots of such ranges are bound to.
fn values(ranges: &[Slice]) -> impl Iterator<Item = ScalarIr> {
    ranges.iter().map(|range| ScalarIr::Int(range.start as i64))
}

/// Makes slots of the starts of the ranges of an operation, after those of `scalars`.
pub(super) fn bind_starts(op: &mut Recorded, scalars: &mut Vec<ScalarIr>) {
    let mut ranges = Vec::new();
    loosen_one(op, scalars.len(), &mut ranges);
    scalars.extend(values(&ranges));
}

/// Makes slots, from number `first` on, of the starts of ranges; returns these ranges as they were, in order.
fn loosen(ops: &mut [Recorded], first: usize) -> Vec<Slice> {
    let mut ranges = Vec::new();
    ops.iter_mut()
        .for_each(|op| loosen_one(op, first, &mut ranges));
    ranges
}

/// Gives operations the ranges again that [`loosen`] has returned.
fn tighten(ops: &mut [Recorded], ranges: Vec<Slice>) {
    let mut ranges = ranges.into_iter();
    for op in ops {
        each_range(op, |range, _| {
            if starts::is_slot(range) {
                *range = ranges.next().expect("as many as were loosened");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn_backend::{DType, Scalar};
    use burn_ir::{SliceAssignOpIr, SliceOpIr, TensorId, TensorIr};

    use super::*;
    use crate::layout::Layout;
    use crate::plan::{Entry, InputState};
    use crate::record::canonical::canonicalize;

    fn tensor(shape: [usize; 2]) -> TensorIr {
        TensorIr::uninit(TensorId::new(0), shape.into(), DType::F32)
    }

    fn slice(ranges: [Slice; 2], part: [usize; 2]) -> OperationIr {
        let op = SliceOpIr {
            tensor: tensor([8, 6]),
            ranges: ranges.to_vec(),
            out: tensor(part),
        };
        OperationIr::BaseFloat(BaseOperationIr::Slice(op))
    }

    fn assign(ranges: [Slice; 2], part: [usize; 2]) -> OperationIr {
        let op = SliceAssignOpIr {
            tensor: tensor([8, 6]),
            ranges: ranges.to_vec(),
            value: tensor(part),
            out: tensor([8, 6]),
        };
        OperationIr::BaseFloat(BaseOperationIr::SliceAssign(op))
    }

    /// Slices at one place and another of the same dims.
    fn program(at: isize) -> Vec<Recorded> {
        let (all, stepped) = (Slice::full(), Slice::new(1, Some(6), 2));
        let ops = [
            slice([Slice::new(at, Some(at + 2), 1), all], [2, 6]),
            slice([Slice::new(at, None, 1), stepped], [8 - at as usize, 3]),
            slice([Slice::new(-2, None, 1), all], [2, 6]),
            assign(
                [Slice::new(0, Some(3), 1), Slice::new(at, Some(at + 1), 1)],
                [3, 1],
            ),
        ];
        ops.map(Recorded::from).to_vec()
    }

    #[test]
    fn programs_that_differ_by_starts_are_one() {
        let (mut one, mut other) = (program(3), program(3));
        assert_eq!(loosen(&mut one, 5).len(), 3);
        each_range(&mut other[0], |range, size| {
            if size == 2 {
                *range = Slice::new(5, Some(7), 1);
            }
        });
        assert_eq!(loosen(&mut other, 5)[0].start, 5);
        assert_eq!(one, other);
    }

    #[test]
    fn what_was_loosened_is_bound_or_tightened_to_what_it_was() {
        let mut ops = program(3);
        let ranges = loosen(&mut ops, 5);
        let value = |slot: &ScalarIr| match slot {
            ScalarIr::UInt(slot) => Scalar::from(ranges[*slot as usize - 5].start as i64),
            _ => unreachable!(),
        };
        for (op, was) in ops.iter_mut().zip(&mut program(3)) {
            let (mut now, mut before) = (Vec::new(), Vec::new());
            each_range(op, |range, _| now.extend(starts::bound(&[*range], value)));
            each_range(was, |range, _| before.push(*range));
            let places = |ranges: &[Slice]| {
                let places = ranges.iter().map(|range| (range.to_range(8), range.step));
                places.collect::<Vec<_>>()
            };
            assert_eq!(places(&now), places(&before));
        }
        tighten(&mut ops, ranges);
        assert_eq!(ops, program(3));
    }

    #[test]
    fn a_start_of_zero_stays() {
        let mut ops: Vec<Recorded> =
            vec![slice([Slice::new(0, Some(2), 1), Slice::full()], [2, 6]).into()];
        assert!(loosen(&mut ops, 0).is_empty());
    }

    /// The window of a program.
    fn window(ops: Vec<Recorded>) -> (Window, Vec<ScalarIr>) {
        let lookup = |tensor: &TensorIr| {
            Ok::<_, ()>(InputState::Host {
                preferred: Arc::new(Layout::replicated(tensor.shape.as_slice())),
                entry: Entry::Rows,
            })
        };
        let canonical = canonicalize(ops, &[], &FxHashSet::default(), &[], false, lookup);
        let (window, bindings) = canonical.expect("its inputs are known");
        (window, bindings.scalars)
    }

    #[test]
    fn the_first_window_stays_as_it_is_and_those_that_differ_by_starts_are_equal() {
        let mut loose = Loose::default();
        let (mut first, mut scalars) = window(program(3));
        let hash = first.hash;
        assert!(!loose.loosen(&mut first, &mut scalars));
        assert_eq!((first.hash, first.hash_all()), (hash, hash));
        assert!(scalars.is_empty());
        let mut others = [5, 4].map(|start| {
            let mut ops = program(3);
            each_range(&mut ops[0], |range, size| {
                if size == 2 {
                    *range = Slice::new(start, Some(start + 2), 1);
                }
            });
            let (mut window, mut scalars) = window(ops);
            assert!(loose.loosen(&mut window, &mut scalars));
            assert_eq!(scalars[0], ScalarIr::Int(start as i64));
            window
        });
        assert!(others[0] == others[1] && others[0] != first);
        let (mut again, mut scalars) = window(program(3));
        assert!(!loose.loosen(&mut again, &mut scalars));
        assert!(again == first);
        others[0].ops.pop();
        assert_ne!(others[0].hash_all(), others[1].hash);
    }
}
