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
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use burn_ir::TensorIr;
use rustc_hash::FxBuildHasher;

use super::repeat::repetition;
use crate::ops::visit::Walk;
use crate::ops::{OpReader, Recorded, visit_ref};

/// Operations after which a window ends early, at most.
const OPS: usize = 512;
/// Operations after which the first window of a loop may end, so that less of it is planned.
const LOOK_OPS: usize = 256;
/// Operations of later windows in a loop, at most: they share a plan, and the first and last ones, which do not, are as
/// short. A pass is no longer: a loop is seen where it repeats three times in [`OPS`].
const LOOP_OPS: usize = 192;
const _: () = assert!(LOOP_OPS >= OPS / 3);
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
    /// Hashes of what the last operations do: of [`OPS`] at least, if there are as many since then.
    digests: Vec<u64>,
    /// Operations since the last place at which a window might end.
    since_end: usize,
    /// How many there are at the next such place.
    length: usize,
    /// Bytes that they make.
    bytes: u64,
    /// Windows that ended early since.
    ended: u32,
    plans: Arc<EarlyPlans>,
}

/// Counts windows that ended early, by whether their plans were known. They are planned while the program records.
#[derive(Default)]
pub(super) struct EarlyPlans {
    known: AtomicU32,
    unknown: AtomicU32,
}

impl EarlyPlans {
    /// Counts one whose plan was known, or not.
    pub(super) fn count(&self, is_known: bool) {
        let counter = if is_known { &self.known } else { &self.unknown };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for Early {
    fn default() -> Self {
        Self {
            thread: None,
            has_waited: false,
            since_wait: 0,
            digests: Vec::new(),
            since_end: 0,
            length: OPS,
            bytes: 0,
            ended: 0,
            plans: Arc::default(),
        }
    }
}

impl Early {
    /// Notes an operation that a thread records; returns whether the window may end after it.
    pub(super) fn records(&mut self, op: &Recorded, thread: u64) -> bool {
        if *self.thread.get_or_insert(thread) != thread {
            return false;
        }
        self.since_wait += 1;
        let before = self.bytes;
        visit_ref(op, &mut Made(&mut self.bytes));
        // They are compared in this process alone, so that the address of a name will do for it.
        let digest = (op.kind().as_ptr().addr(), self.bytes - before);
        self.digests.push(FxBuildHasher.hash_one(digest));
        self.since_end += 1;
        let is_place = self.since_end == self.length;
        if !is_place && self.since_end != LOOK_OPS {
            return false;
        }
        self.digests.drain(..self.digests.len().saturating_sub(OPS));
        let period = repetition(&self.digests);
        if !is_place && period.is_none() {
            return false;
        }
        self.length = period.map_or(OPS, |period| LOOP_OPS / period * period);
        let bytes_max = std::mem::take(&mut self.since_end) as u64 * OP_BYTES_MAX;
        std::mem::take(&mut self.bytes) <= bytes_max
    }

    /// Notes that the window ends here; returns where its plan is to be counted, or `None` if it is not to end: too many
    /// have without a known plan. Where that depends on windows that are not planned yet, `plan_all` plans them: the
    /// answer is no matter of time.
    pub(super) fn ends(&mut self, plan_all: impl FnOnce()) -> Option<Arc<EarlyPlans>> {
        let unknown = || self.plans.unknown.load(Ordering::Relaxed);
        let may_be_unknown = self.ended - self.plans.known.load(Ordering::Relaxed);
        if unknown() < UNKNOWN_MAX && may_be_unknown >= UNKNOWN_MAX {
            plan_all();
        }
        (unknown() < UNKNOWN_MAX).then(|| {
            self.ended += 1;
            self.plans.clone()
        })
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

    /// Returns after which of these operations of a thread, which make so many elements each, windows end.
    fn ends(early: &mut Early, elements: impl Iterator<Item = usize>, thread: u64) -> Vec<usize> {
        let ops = elements.map(zeros).zip(1..);
        let ends = ops.filter_map(|(op, at)| early.records(&op, thread).then_some(at));
        ends.collect()
    }

    #[test]
    fn windows_end_at_the_same_operations_after_each_wait() {
        let mut early = Early::default();
        assert_eq!(ends(&mut early, 1..=1100, 1), [512, 1024]);
        assert_eq!(early.since_wait(), 1100);
        assert!(early.waits(1));
        assert_eq!(ends(&mut early, 1..=600, 1), [512]);
    }

    /// Passes of 60 operations after some others: from the second one on, windows begin with the same operation of a
    /// pass.
    #[test]
    fn in_a_loop_windows_are_whole_passes() {
        let mut early = Early::default();
        let elements = |at: usize| if at <= 100 { at } else { 1 + at % 60 };
        let found = ends(&mut early, (1..=1200).map(elements), 1);
        assert_eq!(found, [512, 692, 872, 1052]);
        assert!(early.waits(1));
        assert_eq!(ends(&mut early, 1..=1100, 1), [512, 1024]);
    }

    /// A loop from the first operation on, of passes that are short, as long as a window may be in a loop, and longer.
    #[test]
    fn where_a_loop_is_seen_early_its_first_window_is_shorter() {
        for (pass, expected) in [
            (7, [256, 445, 634]),
            (85, [256, 426, 596]),
            (170, [512, 682, 852]),
        ] {
            let mut early = Early::default();
            let found = ends(&mut early, (0..1000).map(|at| 1 + at % pass), 1);
            assert_eq!(found[..3], expected, "passes of {pass}");
        }
    }

    /// The window after a loop ends where one of the loop would have, and what follows is as long as without a loop.
    #[test]
    fn after_a_loop_windows_are_as_long_as_before() {
        let mut early = Early::default();
        let elements = |at: usize| if at <= 500 { 1 + at % 10 } else { at };
        let found = ends(&mut early, (1..=1700).map(elements), 1);
        assert_eq!(found, [256, 446, 636, 1148, 1660]);
    }

    #[test]
    fn operations_of_threads_that_do_not_wait_are_not_counted() {
        let mut early = Early::default();
        assert!(ends(&mut early, 1..=500, 1).is_empty());
        assert!(ends(&mut early, 1..=2000, 2).is_empty());
        assert_eq!(ends(&mut early, 501..=512, 1), [12]);
        assert!(early.waits(2), "the first one that waits");
        assert!(ends(&mut early, 1..=2000, 1).is_empty());
        assert_eq!(ends(&mut early, 1..=512, 2), [512]);
        assert!(!early.waits(1));
    }

    #[test]
    fn windows_of_long_operations_are_left_whole() {
        let mut early = Early::default();
        let long = (1 << 20)..(1 << 20) + 2048;
        assert!(ends(&mut early, long, 1).is_empty());
        assert_eq!(ends(&mut early, 1..=512, 1), [512]);
    }

    #[test]
    fn a_program_whose_windows_are_all_new_is_left_until_it_waits() {
        let mut early = Early::default();
        for _ in 0..UNKNOWN_MAX {
            assert_eq!(ends(&mut early, 1..=OPS, 1), [OPS]);
            let plans = early.ends(|| {}).expect("few are unknown");
            plans.count(false);
        }
        assert!(early.ends(|| panic!("all are planned")).is_none());
        early.waits(1);
        assert!(early.ends(|| {}).is_some());
    }

    /// Windows end at the same operations however fast they are planned.
    #[test]
    fn what_is_not_planned_yet_is_planned_where_it_decides() {
        for is_known in [false, true] {
            let mut early = Early::default();
            let few = || panic!("too few to decide anything");
            let plans: Vec<_> = (0..UNKNOWN_MAX).map(|_| early.ends(few)).collect();
            let plan_all = || {
                for plans in plans.iter().flatten() {
                    plans.count(is_known);
                }
            };
            assert_eq!(early.ends(plan_all).is_some(), is_known);
        }
    }
}
