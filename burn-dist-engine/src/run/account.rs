//! The memory that a rank really holds: the buffers behind its tensors, as they are put in slots, kept, sent, received
//! and released.
//!
//! On Flex a buffer is one shared allocation, known by its address and its true length, however many tensors look at
//! it. Other backends do not show theirs: there a result counts with its shape, and views count with what they look at.

use std::sync::Arc;

use std::time::Instant;

use burn_ir::{BackendIr, TensorId};
use rustc_hash::FxHashMap;

use super::bridge;
use super::observer::{Observer, TaskPart};
use crate::comm::CallInfo;
use crate::ops::Recorded;
use crate::plan::memory::{ClassBytes, Ledger, MemoryClass, MemoryTimeline, PeakCause};
use crate::plan::peak_cause;
use crate::plan::task::{CollectiveTask, RankPlan, Slot, Task, TransferTask};

/// No buffer.
const NONE: u64 = 0;
/// Keys from here on are numbers, no addresses.
const NUMBERED: u64 = 1 << 63;

/// Memory that a rank held, by the buffers themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountedMemory {
    /// Bytes that are held now.
    pub current: ClassBytes,
    /// Bytes that were held when these were most.
    pub peak: ClassBytes,
    /// The task that ran then.
    pub peak_cause: PeakCause,
    /// The most of each class, not all at the same time.
    pub class_peaks: ClassBytes,
    /// The most that was held between two tasks together with memory of freed results, which a rank keeps for the next
    /// ones: no more than the plans say of buffers alone.
    pub with_kept: u64,
    /// The window in which it was most, task by task.
    pub timeline: Arc<MemoryTimeline>,
}

/// The account of one rank.
#[derive(Default)]
pub(super) struct Account {
    ledger: Ledger,
    /// The buffer behind each slot.
    slots: Vec<u64>,
    classes: Arc<[MemoryClass]>,
    /// The buffers of kept tensors.
    kept: FxHashMap<TensorId, u64>,
    /// Slots that the task at hand takes, and buffers of kept tensors that it gives up: held until it holds most.
    taken: Vec<Slot>,
    released: Vec<u64>,
    /// True if the buffers of the current task are counted already.
    is_counted: bool,
    /// For an operation whose result may share memory without overwriting it, the buffer of its operand.
    view: Option<u64>,
    /// True if no result of the current operation is where an operand was: one that is has taken the memory of
    /// an operand freed before.
    makes: bool,
    /// Buffers of collectives that run: the slot of the result, what is sent, room for the result.
    flying: Vec<(Slot, u64, u64)>,
    numbers: u64,
    timeline: MemoryTimeline,
    memory: AccountedMemory,
}

impl Account {
    pub(super) fn peak_bytes(&self) -> u64 {
        self.memory.peak.total()
    }

    pub(super) fn memory(&self) -> AccountedMemory {
        AccountedMemory {
            current: self.ledger.now(),
            class_peaks: self.ledger.peaks(),
            ..self.memory.clone()
        }
    }

    /// Notes, between two tasks, that the rank keeps so much memory of freed results.
    pub(super) fn keeps(&mut self, bytes: u64) {
        let together = self.ledger.now().total() + bytes;
        self.memory.with_kept = self.memory.with_kept.max(together);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        NUMBERED + self.numbers
    }

    /// The buffer of a handle with its length; `bytes` if the backend does not tell.
    fn buffer<B: BackendIr>(&mut self, handle: &B::Handle, bytes: u64) -> (u64, u64) {
        match (bridge::buffer::<B>(handle), self.view) {
            (Some((_, 0)), _) => (NONE, 0),
            (Some(buffer), _) => buffer,
            (None, Some(view)) => (view, self.ledger.bytes(view)),
            (None, None) => (self.number(), bytes),
        }
    }

    fn class(&self, slot: Slot) -> MemoryClass {
        self.classes.get(slot as usize).copied().unwrap_or_default()
    }

    fn hold(&mut self, slot: Slot, key: u64, bytes: u64) {
        if key != NONE {
            self.ledger.hold(key, bytes, self.class(slot));
        }
        self.slots[slot as usize] = key;
    }

    /// Notes that a holder of a buffer is gone.
    fn release(&mut self, key: u64) {
        self.ledger.release(key);
        // What only a collective holds may be freed by the others before this rank has waited for it, and its address
        // used again.
        let sent = self
            .flying
            .iter()
            .filter(|(_, sent, _)| *sent == key)
            .count();
        if sent > 0 && key < NUMBERED && self.ledger.holders(key) as usize == sent {
            let number = self.number();
            self.ledger.rename(key, number);
            for (_, sent, _) in self.flying.iter_mut().filter(|(_, sent, _)| *sent == key) {
                *sent = number;
            }
        }
    }

    /// Notes that the operands which the task releases have gone.
    fn release_taken(&mut self) {
        while let Some(slot) = self.taken.pop() {
            let key = std::mem::replace(&mut self.slots[slot as usize], NONE);
            self.release(key);
        }
        while let Some(key) = self.released.pop() {
            self.release(key);
        }
    }
}

impl Observer for Account {
    fn window_begins(&mut self, plan: &RankPlan) {
        self.release_taken();
        self.slots.clear();
        self.slots.resize(plan.num_slots as usize, NONE);
        self.classes = plan.classes.clone();
        self.timeline = MemoryTimeline::default();
        self.timeline.tasks.reserve(plan.tasks.len());
    }

    fn window_ends(&mut self, plan: &Arc<RankPlan>, completed: bool) {
        let timeline = std::mem::take(&mut self.timeline);
        // Of windows that are alike the last one: the first makes parameters and state.
        // A rank of another stage may have nothing to do in one.
        if completed
            && let Some(peak) = timeline.tasks.get(timeline.peak)
            && timeline.peak_bytes() >= self.memory.peak.total()
        {
            self.memory.peak = *peak;
            self.memory.peak_cause = peak_cause(plan, timeline.peak);
            self.memory.timeline = Arc::new(timeline);
        }
    }

    fn stopped(&mut self) {
        *self = Self {
            memory: std::mem::take(&mut self.memory),
            numbers: self.numbers,
            ..Self::default()
        };
    }

    fn op_begins(&mut self, op: &Recorded) {
        self.makes = op.takes_new_memory();
        self.view = op.is_view().then(|| {
            let first = op.reads().next();
            first.map_or(NONE, |first| self.slots[first.id.value() as usize])
        });
    }

    fn holds_most(&mut self) {
        let now = self.ledger.settle();
        self.timeline.push(now);
        self.release_taken();
        self.is_counted = true;
    }

    fn task_ends(&mut self, _: usize, _: &Task) {
        self.view = None;
        self.makes = false;
        if !self.is_counted {
            self.holds_most();
        }
        self.is_counted = false;
    }

    fn taken(&mut self, slot: Slot) {
        self.taken.push(slot);
    }

    fn written<B: BackendIr>(
        &mut self,
        slot: Slot,
        handle: &B::Handle,
        shape: &[usize],
        elem_bytes: usize,
    ) {
        let made = (shape.iter().product::<usize>() * elem_bytes) as u64;
        let (key, bytes) = self.buffer::<B>(handle, made);
        let taken = self
            .taken
            .iter()
            .any(|taken| self.slots[*taken as usize] == key);
        if taken && self.makes {
            // Operands count until the operation ends, whenever its kernel frees them.
            let number = self.number();
            self.ledger.rename(key, number);
            for slot in &self.taken {
                let old = &mut self.slots[*slot as usize];
                if *old == key {
                    *old = number;
                }
            }
        }
        if taken && self.view.is_none() && self.ledger.is_lent(key) {
            self.ledger.overwrite(key, made);
        }
        self.hold(slot, key, bytes);
    }

    fn loaded(&mut self, slot: Slot, id: TensorId) {
        let key = self.kept.get(&id).copied().unwrap_or(NONE);
        self.hold(slot, key, self.ledger.bytes(key));
    }

    fn kept<B: BackendIr>(
        &mut self,
        id: TensorId,
        handle: &B::Handle,
        bytes: u64,
        class: MemoryClass,
        slot: Option<Slot>,
    ) {
        self.view = slot.map(|slot| self.slots[slot as usize]);
        let (key, bytes) = self.buffer::<B>(handle, bytes);
        self.view = None;
        if key != NONE {
            self.ledger.hold(key, bytes, class);
        }
        if let Some(old) = self.kept.insert(id, key) {
            self.release(old);
        }
    }

    fn released(&mut self, id: TensorId) {
        self.released.extend(self.kept.remove(&id));
    }

    /// It holds what it sends (a copy where the tensor is not contiguous) and room for what it returns.
    fn collective_starts<B: BackendIr>(&mut self, task: &CollectiveTask, input: &B::Handle) {
        let as_it_is = bridge::is_sent_as_it_is::<B>(input);
        let elem = task.dtype.size();
        let bytes = |shape: &[usize]| (shape.iter().product::<usize>() * elem) as u64;
        let from = self.slots[task.from as usize];
        let sent = match as_it_is {
            true => from,
            false => self.number(),
        };
        if sent != NONE {
            match as_it_is {
                true => {
                    let (bytes, class) = (self.ledger.bytes(sent), self.ledger.class(sent));
                    self.ledger.hold(sent, bytes, class);
                    self.ledger.lend(sent);
                }
                false => {
                    let class = self.class(task.from);
                    self.ledger.hold(sent, bytes(&task.from_shape), class);
                }
            }
        }
        let room = self.number();
        self.ledger
            .hold(room, bytes(&task.to_shape), self.class(task.to));
        self.flying.push((task.to, sent, room));
    }

    fn collective_finished<B: BackendIr>(
        &mut self,
        _: TaskPart,
        task: &CollectiveTask,
        output: &B::Handle,
        _: &CallInfo,
        _: Instant,
        _: Instant,
    ) {
        if let Some(index) = self.flying.iter().position(|(to, ..)| *to == task.to) {
            let (_, sent, room) = self.flying.swap_remove(index);
            self.ledger.release(sent);
            self.ledger.release(room);
        }
        let bytes = task.to_shape.iter().product::<usize>() * task.dtype.size();
        let (key, bytes) = self.buffer::<B>(output, bytes as u64);
        self.hold(task.to, key, bytes);
        self.ledger.lend(key);
    }

    fn sends(&mut self, task: &TransferTask) {
        self.ledger.lend(self.slots[task.slot as usize]);
    }

    fn received<B: BackendIr>(
        &mut self,
        _: TaskPart,
        task: &TransferTask,
        output: &B::Handle,
        _: &CallInfo,
        _: Instant,
        _: Instant,
    ) {
        let (key, bytes) = self.buffer::<B>(output, task.bytes());
        self.hold(task.slot, key, bytes);
        self.ledger.lend(key);
    }
}
