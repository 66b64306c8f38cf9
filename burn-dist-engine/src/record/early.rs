//! Windows that end early, so that a rank computes while the program records.
//!
//! A program records, then waits for what it reads: its rank begins at the read. Where operations are long, little is
//! lost, for a step is recorded in a fraction of the time that it takes to compute. Where they are short, recording
//! takes as long as computing, and a step would take both. So on a mesh of one rank a window of short operations ends
//! after [`OPS`] of them: the rank computes it while the program records the next one.
//!
//! No value depends on where a window ends. What works within one window does: recomputation, accumulated gradients,
//! collectives. So windows of several ranks never end early, nor do those of a program that says how its model is to be
//! trained (a [mark](burn_dist_plan::op::Mark)).
//!
//! The place is counted from where the program waited last, in operations of the thread that waited: a step that does
//! the same as the one before ends its windows at the same operations, and their plans are known. Where several threads
//! wait, that place is a matter of time: there, windows do not end early. Within a step, a loop over layers or time steps
//! ends its windows between the same two of its operations: the next window has a whole number of passes of the loop in
//! which the last one ended.

use std::hash::BuildHasher;

use burn_ir::TensorIr;
use rustc_hash::FxBuildHasher;

use super::repeat::repetition;
use crate::ops::visit::Walk;
use crate::ops::{OpReader, Recorded, visit_ref};

/// Operations after which a window ends early, at most.
const OPS: usize = 512;
/// Bytes that short operations make at most, on average.
const OP_BYTES_MAX: u64 = 64 << 10;
/// Windows that end early without a known plan until the program waits again: a program that does not wait may come
/// back to the same operations at another place in each window.
const UNKNOWN_MAX: u32 = 32;

/// Counts what the program records after it has waited.
pub(super) struct Early {
    /// The thread that waits; until one has, the one that recorded first.
    thread: Option<u64>,
    has_waited: bool,
    /// Operations that it has recorded since.
    since_wait: usize,
    /// Hashes of what the operations do that came since then, or since the last place at which a window might end.
    digests: Vec<u64>,
    /// How many there are at the next such place.
    length: usize,
    /// Bytes that they make.
    bytes: u64,
    /// Windows that ended early since, and whose plans were not known.
    unknown: u32,
}

impl Default for Early {
    fn default() -> Self {
        Self {
            thread: None,
            has_waited: false,
            since_wait: 0,
            digests: Vec::new(),
            length: OPS,
            bytes: 0,
            unknown: 0,
        }
    }
}

impl Early {
    /// Notes an operation that a thread records; returns whether the window ends after it.
    pub(super) fn records(&mut self, op: &Recorded, thread: u64) -> bool {
        if *self.thread.get_or_insert(thread) != thread {
            return false;
        }
        self.since_wait += 1;
        let before = self.bytes;
        visit_ref(op, &mut Made(&mut self.bytes));
        // It is compared within one window, so that the address of a name will do for it.
        let digest = (op.kind().as_ptr().addr(), self.bytes - before);
        self.digests.push(FxBuildHasher.hash_one(digest));
        if self.digests.len() < self.length {
            return false;
        }
        let bytes_max = self.length as u64 * OP_BYTES_MAX;
        let is_short = std::mem::take(&mut self.bytes) <= bytes_max;
        self.length = match repetition(&self.digests) {
            Some(period) => OPS / period * period,
            None => OPS,
        };
        self.digests.clear();
        is_short && self.unknown < UNKNOWN_MAX
    }

    /// Notes that the window ended, without a known plan.
    pub(super) fn was_unknown(&mut self) {
        self.unknown += 1;
    }

    /// Returns how many operations were recorded since the program waited.
    pub(super) fn since_wait(&self) -> usize {
        self.since_wait
    }

    /// Notes that a thread waits for the rank; returns false if another one did before.
    pub(super) fn waits(&mut self, thread: u64) -> bool {
        let is_alone = !self.has_waited || self.thread == Some(thread);
        let mut digests = std::mem::take(&mut self.digests);
        digests.clear();
        *self = Self {
            thread: Some(thread),
            has_waited: true,
            digests,
            ..Self::default()
        };
        is_alone
    }
}

/// Adds up the bytes that an operation makes.
struct Made<'a>(&'a mut u64);

impl OpReader<'_> for Made<'_> {
    #[inline]
    fn input(&mut self, _: &TensorIr) {}

    #[inline]
    fn output(&mut self, tensor: &TensorIr) {
        *self.0 += (tensor.shape.num_elements() * tensor.dtype.size()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::DType;
    use burn_ir::{BaseOperationIr, CreationOpIr, OperationIr, TensorId, TensorStatus};

    use super::*;

    fn zeros(elements: usize) -> Recorded {
        let out = TensorIr {
            id: TensorId::new(1),
            shape: [elements].into(),
            status: TensorStatus::NotInit,
            dtype: DType::F32,
        };
        OperationIr::BaseFloat(BaseOperationIr::Zeros(CreationOpIr { out })).into()
    }

    /// Returns after which of so many operations of a thread windows end.
    fn ends(early: &mut Early, op: &Recorded, count: usize, thread: u64) -> Vec<usize> {
        let ends = (1..=count).filter(|_| early.records(op, thread));
        ends.collect()
    }

    #[test]
    fn windows_end_at_the_same_operations_after_each_wait() {
        let mut early = Early::default();
        let op = zeros(8);
        assert_eq!(ends(&mut early, &op, 1100, 1), [512, 1024]);
        assert_eq!(early.since_wait(), 1100);
        assert!(early.waits(1));
        assert_eq!(ends(&mut early, &op, 600, 1), [512]);
    }

    /// Passes of 60 operations after some others: from the second one on, windows begin with the same operation of a
    /// pass.
    #[test]
    fn in_a_loop_windows_are_whole_passes() {
        let mut early = Early::default();
        let mut ends = Vec::new();
        for at in 1..=2000 {
            let elements = if at <= 100 { at } else { 1 + at % 60 };
            if early.records(&zeros(elements), 1) {
                ends.push(at);
            }
        }
        assert_eq!(ends, [512, 992, 1472, 1952]);
        assert!(early.waits(1));
        let straight = (1..=1100).filter(|at| early.records(&zeros(*at), 1));
        assert_eq!(straight.collect::<Vec<_>>(), [512, 1024]);
    }

    #[test]
    fn operations_of_threads_that_do_not_wait_are_not_counted() {
        let mut early = Early::default();
        let op = zeros(8);
        assert!(ends(&mut early, &op, 500, 1).is_empty());
        assert!(ends(&mut early, &op, 2000, 2).is_empty());
        assert_eq!(ends(&mut early, &op, 12, 1), [12]);
        assert!(early.waits(2), "the first one that waits");
        assert!(ends(&mut early, &op, 2000, 1).is_empty());
        assert_eq!(ends(&mut early, &op, 512, 2), [512]);
        assert!(!early.waits(1));
    }

    #[test]
    fn windows_of_long_operations_are_left_whole() {
        let mut early = Early::default();
        assert!(ends(&mut early, &zeros(1 << 20), 2048, 1).is_empty());
        assert_eq!(ends(&mut early, &zeros(8), 512, 1), [512]);
    }

    #[test]
    fn a_program_whose_windows_are_all_new_is_left_until_it_waits() {
        let mut early = Early::default();
        let op = zeros(8);
        for _ in 0..UNKNOWN_MAX {
            assert_eq!(ends(&mut early, &op, OPS, 1), [OPS]);
            early.was_unknown();
        }
        assert!(ends(&mut early, &op, 4 * OPS, 1).is_empty());
        early.waits(1);
        assert_eq!(ends(&mut early, &op, OPS, 1), [OPS]);
    }
}
