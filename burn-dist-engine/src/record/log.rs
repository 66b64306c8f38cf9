//! The log: what a mesh has recorded and not yet run.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use burn_ir::{TensorId, TensorIr};
use rustc_hash::FxHashSet;

use super::on_host::OnHost;
use crate::ops::{OpReader, Recorded, visit_ref};

/// Operations in the order in which they were recorded, by whatever thread, and tensors that were dropped meanwhile.
#[derive(Default)]
pub(super) struct Log {
    ops: Vec<Recorded>,
    /// Where each stretch of operations of one thread starts.
    stretches: Vec<(usize, u64)>,
    dropped: Vec<TensorId>,
    /// Data that operations use.
    entered: Vec<(TensorId, OnHost)>,
    /// Stretches that are held together: where each starts, and where it ends if it has.
    holds: Vec<(usize, Option<usize>)>,
}

/// The part of a log that becomes a window.
#[derive(Default)]
pub(super) struct Taken {
    pub ops: Vec<Recorded>,
    /// Tensors that were dropped since the last window, but for those that are `held`.
    pub dropped: Vec<TensorId>,
    /// Data that operations use, here or in the log.
    pub entered: Vec<(TensorId, OnHost)>,
    /// Tensors that operations use or make which stay in the log: they live on, whatever `ops` say.
    pub held: FxHashSet<TensorId>,
}

/// Returns a number of the thread that calls.
pub(super) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The lot of an operation when a thread ends a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    Stays,
    /// Another thread has recorded it, and what is taken is made of it.
    Needed,
    /// The thread has recorded it.
    Own,
}

struct Ids<F: FnMut(TensorId)>(F);

impl<F: FnMut(TensorId)> OpReader<'_> for Ids<F> {
    fn input(&mut self, tensor: &TensorIr) {
        self.0(tensor.id);
    }

    fn output(&mut self, tensor: &TensorIr) {
        self.0(tensor.id);
    }
}

impl Log {
    #[inline]
    pub(super) fn push(&mut self, op: impl Into<Recorded>) {
        let thread = this_thread();
        if self
            .stretches
            .last()
            .is_none_or(|(_, last)| *last != thread)
        {
            self.stretches.push((self.ops.len(), thread));
        }
        self.ops.push(op.into());
    }

    /// Notes that nothing will use a tensor any more but what is recorded.
    pub(super) fn drop_tensor(&mut self, id: TensorId) {
        self.dropped.push(id);
    }

    /// Notes that an operation uses data, or will.
    pub(super) fn enter(&mut self, id: TensorId, on_host: OnHost) {
        self.entered.push((id, on_host));
    }

    /// Returns the tensors that were data on the host before operations of the log.
    pub(super) fn entered(&self) -> FxHashSet<TensorId> {
        self.entered.iter().map(|(id, _)| *id).collect()
    }

    /// Starts a stretch in which no window ends unless it has to.
    pub(super) fn hold(&mut self) {
        self.holds.push((self.ops.len(), None));
    }

    /// Ends that stretch.
    pub(super) fn release(&mut self) {
        if let Some((_, end @ None)) = self.holds.last_mut() {
            *end = Some(self.ops.len());
        }
    }

    /// Returns true if a window may end after `count` operations.
    pub(super) fn may_end(&self, count: usize) -> bool {
        // One is held after the other: the last one that starts before is the one it may be within.
        let before = self.holds.partition_point(|(start, _)| *start < count);
        let last = before.checked_sub(1).map(|at| self.holds[at]);
        last.is_none_or(|(_, end)| end.is_some_and(|end| end <= count))
    }

    pub(super) fn ops(&self) -> &[Recorded] {
        &self.ops
    }

    pub(super) fn dropped(&self) -> &[TensorId] {
        &self.dropped
    }

    /// Takes all.
    pub(super) fn take_all(&mut self) -> Taken {
        self.stretches.clear();
        self.move_holds(|_| 0);
        let capacity = self.ops.len();
        Taken {
            ops: std::mem::replace(&mut self.ops, Vec::with_capacity(capacity)),
            dropped: std::mem::take(&mut self.dropped),
            entered: std::mem::take(&mut self.entered),
            held: FxHashSet::default(),
        }
    }

    /// Takes the first `count` operations.
    pub(super) fn take_first(&mut self, count: usize) -> Taken {
        if count >= self.ops.len() {
            return self.take_all();
        }
        self.take_where(|index| match index < count {
            true => Share::Own,
            false => Share::Stays,
        })
    }

    /// Takes what the calling thread has recorded and what that and `reads` are computed from.
    ///
    /// All else of other threads (a loader in the middle of a batch) stays, so that the window of a step holds the same
    /// operations in every step. So does the order: what other threads have recorded comes as they did it, and
    /// operations read only what was recorded before.
    pub(super) fn take_for(&mut self, reads: &[TensorIr]) -> Taken {
        let thread = this_thread();
        if self.stretches.iter().all(|(_, other)| *other == thread) {
            return self.take_all();
        }
        let num = self.ops.len();
        let mut share = vec![Share::Stays; num];
        // Operations read about as many tensors as there are of them.
        let mut needed: FxHashSet<TensorId> =
            FxHashSet::with_capacity_and_hasher(num, Default::default());
        needed.extend(reads.iter().map(|tensor| tensor.id));
        let mut end = num;
        for (start, owner) in self.stretches.iter().rev() {
            let is_own = *owner == thread;
            for index in (*start..end).rev() {
                let op = &self.ops[index];
                if is_own || op.makes().any(|out| needed.contains(&out.id)) {
                    share[index] = if is_own { Share::Own } else { Share::Needed };
                    needed.extend(op.reads().map(|input| input.id));
                }
            }
            end = *start;
        }
        // In whatever order the threads came, those that only made what this one uses come first.
        let is_free = is_free_of(&self.ops, &share);
        self.take_where(|index| match share[index] {
            Share::Needed if is_free => Share::Needed,
            Share::Needed => Share::Own,
            other => other,
        })
    }

    /// Tells the holds where operations are now: `place` says it for each, and for the end of the log.
    fn move_holds(&mut self, place: impl Fn(usize) -> usize) {
        for (start, end) in &mut self.holds {
            *start = place(*start);
            *end = end.map(&place);
        }
        self.holds.retain(|(start, end)| *end != Some(*start));
    }

    /// Takes operations by their numbers: those that are needed, and the thread's own behind them.
    fn take_where(&mut self, share: impl Fn(usize) -> Share) -> Taken {
        let mut ops = std::mem::take(&mut self.ops);
        let num = ops.len();
        let mut held: FxHashSet<TensorId> = FxHashSet::default();
        let mut stretches: Vec<(usize, u64)> = Vec::new();
        let mut places = Vec::with_capacity(num + 1);
        let (mut num_rest, mut num_needed, mut at) = (0, 0, 0);
        let stays = |op: &mut Recorded| {
            let index = places.len();
            places.push(num_rest);
            let next = self.stretches.get(at + 1);
            at += usize::from(next.is_some_and(|next| next.0 <= index));
            match share(index) {
                Share::Stays => {
                    visit_ref(
                        op,
                        &mut Ids(|id| {
                            held.insert(id);
                        }),
                    );
                    let thread = self.stretches[at].1;
                    if stretches.last().is_none_or(|(_, last)| *last != thread) {
                        stretches.push((num_rest, thread));
                    }
                    num_rest += 1;
                    true
                }
                Share::Needed => {
                    num_needed += 1;
                    false
                }
                Share::Own => false,
            }
        };
        // Nearly all are taken, and in their order: so these stay in their place in memory.
        let mut rest = Vec::with_capacity(num);
        rest.extend(ops.extract_if(.., stays));
        if num_needed > 0 && num_needed < ops.len() {
            let mut taken = (0..num).filter(|index| share(*index) != Share::Stays);
            let is_own =
                |_: &mut Recorded| taken.next().is_some_and(|index| share(index) == Share::Own);
            let own: Vec<Recorded> = ops.extract_if(.., is_own).collect();
            ops.extend(own);
        }
        places.push(rest.len());
        self.move_holds(|at| places[at]);
        self.ops = rest;
        self.stretches = stretches;
        let (later, dropped) = std::mem::take(&mut self.dropped)
            .into_iter()
            .partition(|id| held.contains(id));
        self.dropped = later;
        let entered = std::mem::take(&mut self.entered);
        let is_used_later = |(id, _): &&(TensorId, OnHost)| held.contains(id);
        self.entered = entered.iter().filter(is_used_later).cloned().collect();
        Taken {
            ops,
            dropped,
            entered,
            held,
        }
    }
}

/// Returns whether no operation that is needed reads what an own one makes.
fn is_free_of(ops: &[Recorded], share: &[Share]) -> bool {
    let mut made: FxHashSet<TensorId> = FxHashSet::default();
    ops.iter().zip(share).all(|(op, share)| match share {
        Share::Own => {
            made.extend(op.makes().map(|out| out.id));
            true
        }
        Share::Needed => !op.reads().any(|input| made.contains(&input.id)),
        Share::Stays => true,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn_backend::DType;
    use burn_ir::{BinaryOpIr, NumericOperationIr, OperationIr, TensorStatus};

    use super::*;
    use crate::burn::data::*;
    use crate::plan::Origin;

    fn tensor(id: u64, status: TensorStatus) -> TensorIr {
        TensorIr {
            id: TensorId::new(id),
            shape: [2].into(),
            status,
            dtype: DType::F32,
        }
    }

    fn add(lhs: u64, rhs: u64, out: u64) -> OperationIr {
        let desc = BinaryOpIr {
            lhs: tensor(lhs, TensorStatus::ReadOnly),
            rhs: tensor(rhs, TensorStatus::ReadOnly),
            out: tensor(out, TensorStatus::NotInit),
        };
        OperationIr::NumericFloat(DType::F32, NumericOperationIr::Add(desc))
    }

    fn outs(ops: &[Recorded]) -> Vec<u64> {
        ops.iter()
            .flat_map(|op| op.makes().map(|out| out.id.value()).collect::<Vec<_>>())
            .collect()
    }

    /// Records on a thread of its own.
    fn elsewhere(log: &mut Log, op: OperationIr) {
        std::thread::scope(|scope| {
            scope.spawn(|| log.push(op));
        });
    }

    #[test]
    fn a_read_takes_what_its_thread_recorded_and_what_that_needs() {
        let mut log = Log::default();
        elsewhere(&mut log, add(1, 1, 10)); // used below
        log.push(add(2, 2, 20));
        elsewhere(&mut log, add(1, 2, 11)); // used by nobody yet
        log.push(add(20, 10, 21));
        elsewhere(&mut log, add(11, 10, 12));
        log.drop_tensor(TensorId::new(10));
        let taken = log.take_for(&[tensor(21, TensorStatus::ReadOnly)]);
        assert_eq!(outs(&taken.ops), [10, 20, 21]);
        assert_eq!(outs(log.ops()), [11, 12]);
        assert!(
            taken.held.contains(&TensorId::new(10)),
            "operation 12 still uses it"
        );
    }

    #[test]
    fn what_other_threads_made_comes_first_however_they_interleave() {
        let interleave = |order: [bool; 4]| {
            let mut log = Log::default();
            let (mut mine, mut theirs) = (
                vec![add(1, 1, 20), add(20, 11, 21)].into_iter(),
                vec![add(2, 2, 10), add(10, 2, 11)].into_iter(),
            );
            for own in order {
                match own {
                    true => log.push(mine.next().expect("two")),
                    false => elsewhere(&mut log, theirs.next().expect("two")),
                }
            }
            outs(&log.take_for(&[tensor(21, TensorStatus::ReadOnly)]).ops)
        };
        assert_eq!(interleave([true, false, false, true]), [10, 11, 20, 21]);
        assert_eq!(interleave([false, true, false, true]), [10, 11, 20, 21]);
        assert_eq!(interleave([false, false, true, true]), [10, 11, 20, 21]);
    }

    #[test]
    fn order_is_kept_where_threads_use_each_other() {
        let mut log = Log::default();
        log.push(add(1, 1, 20));
        elsewhere(&mut log, add(20, 2, 10));
        log.push(add(10, 20, 21));
        let taken = log.take_for(&[tensor(21, TensorStatus::ReadOnly)]);
        assert_eq!(outs(&taken.ops), [20, 10, 21]);
    }

    #[test]
    fn no_window_ends_within_a_hold() {
        let mut log = Log::default();
        let record = |log: &mut Log, count: u64| {
            (0..count).for_each(|n| log.push(add(n, n, n + 1)));
        };
        record(&mut log, 2);
        log.hold();
        assert!(log.may_end(2));
        record(&mut log, 2);
        let ends = |log: &Log| -> Vec<bool> { (0..7).map(|count| log.may_end(count)).collect() };
        assert_eq!(ends(&log), [true, true, true, false, false, false, false]);
        log.release();
        record(&mut log, 1);
        assert_eq!(ends(&log), [true, true, true, false, true, true, true]);
        log.take_first(1);
        assert_eq!(ends(&log), [true, true, false, true, true, true, true]);
        // What is taken all the same ends what was held so far.
        log.hold();
        record(&mut log, 1);
        log.take_all();
        assert_eq!(ends(&log), [true, false, false, false, false, false, false]);
        record(&mut log, 2);
        log.release();
        assert_eq!(ends(&log), [true, false, true, true, true, true, true]);
    }

    #[test]
    fn the_first_ones_leave_what_the_others_use() {
        let mut log = Log::default();
        for n in 0..4 {
            log.push(add(n, n, n + 1));
        }
        let taken = log.take_first(2);
        assert_eq!(outs(&taken.ops), [1, 2]);
        assert_eq!(outs(log.ops()), [3, 4]);
        assert!(taken.held.contains(&TensorId::new(2)));
        assert!(!taken.held.contains(&TensorId::new(1)));
    }

    /// Windows and the log both know of data that operations of both use.
    #[test]
    fn data_goes_with_the_window_and_stays_for_others() {
        let mut log = Log::default();
        let on_host = || OnHost {
            data: Arc::new(TensorData::from([1.0_f32, 2.0])),
            origin: Origin::Data,
            part: None,
        };
        for id in 1..=3 {
            log.enter(TensorId::new(id), on_host());
        }
        log.push(add(1, 2, 10));
        elsewhere(&mut log, add(2, 3, 11));
        let ids = |log: &Log| {
            let mut ids: Vec<u64> = log.entered().iter().map(TensorId::value).collect();
            ids.sort();
            ids
        };
        assert_eq!(ids(&log), [1, 2, 3]);
        let taken = log.take_for(&[tensor(10, TensorStatus::ReadOnly)]);
        assert_eq!(taken.entered.len(), 3);
        assert_eq!(ids(&log), [2, 3]);
        assert_eq!(log.take_all().entered.len(), 2);
        assert!(log.entered().is_empty());
    }

    #[test]
    fn what_stays_is_dropped_with_what_stays() {
        let mut log = Log::default();
        log.push(add(1, 2, 10));
        elsewhere(&mut log, add(2, 3, 11));
        for id in [1, 2, 3] {
            log.drop_tensor(TensorId::new(id));
        }
        let taken = log.take_for(&[tensor(10, TensorStatus::ReadOnly)]);
        assert_eq!(taken.dropped, [TensorId::new(1)]);
        assert_eq!(log.dropped(), [TensorId::new(2), TensorId::new(3)]);
    }
}
