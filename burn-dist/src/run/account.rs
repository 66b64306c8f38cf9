//! The memory that a rank really holds: the buffers behind its tensors, as they are put in slots, kept, sent, received
//! and given up.
//!
//! On Flex a buffer is one shared allocation, known by its address and its true length, however many tensors look at
//! it. Other backends do not show theirs: there a result counts with its shape, and views count with what they look at.

use std::sync::Arc;

use burn_ir::BackendIr;

use super::bridge;
use crate::ops::Recorded;
use crate::ops::storage::{is_view, makes};
use crate::ops::visit::{OpReader, visit_ref};
use crate::plan::account::cause;
use crate::plan::memory::{ClassBytes, Ledger, MemoryClass, MemoryTimeline, PeakCause};
use crate::plan::task::{CollectiveTask, RankPlan, Slot};
use burn_ir::TensorIr;

/// No buffer.
const NONE: u64 = 0;
/// Keys from here on are numbers, no addresses.
const NUMBERED: u64 = 1 << 63;

/// Memory that a rank held, by the buffers themselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountedMemory {
    /// What is held now.
    pub current: ClassBytes,
    /// What was held when it was most.
    pub peak: ClassBytes,
    /// What ran then.
    pub peak_cause: PeakCause,
    /// The most of each class, not all at the same time.
    pub class_peaks: ClassBytes,
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
    /// Slots that the operation at hand consumes.
    taken: Vec<Slot>,
    /// For an operation whose result may share memory without overwriting it, the buffer of its operand.
    view: Option<u64>,
    /// Whether the results of the operation at hand never are where an operand was: one that is has taken the place of
    /// an operand freed before.
    makes: bool,
    /// What collectives under way hold: the slot of the result, what is sent, room for the result.
    flying: Vec<(Slot, u64, u64)>,
    numbers: u64,
    timeline: MemoryTimeline,
    memory: AccountedMemory,
}

struct First(Option<Slot>);

impl OpReader for First {
    fn input(&mut self, t: &TensorIr) {
        self.0.get_or_insert(t.id.value() as Slot);
    }

    fn output(&mut self, _: &TensorIr) {}
}

impl Account {
    /// Starts a window.
    pub fn begin(&mut self, plan: &RankPlan) {
        self.slots.clear();
        self.slots.resize(plan.num_slots as usize, NONE);
        self.classes = plan.classes.clone();
        self.timeline = MemoryTimeline::default();
        self.timeline.tasks.reserve(plan.tasks.len());
    }

    /// Ends a window.
    pub fn end(&mut self, plan: &RankPlan) {
        let timeline = std::mem::take(&mut self.timeline);
        // Of windows that are alike the last one: the first makes parameters and state.
        if timeline.peak_bytes() >= self.memory.peak.total() {
            self.memory.peak = timeline.tasks[timeline.peak];
            self.memory.peak_cause = cause(plan, timeline.peak);
            self.memory.timeline = Arc::new(timeline);
        }
    }

    /// Forgets everything: the rank has stopped.
    pub fn clear(&mut self) {
        self.ledger = Ledger::default();
        self.slots.clear();
        self.flying.clear();
    }

    pub fn peak_bytes(&self) -> u64 {
        self.memory.peak.total()
    }

    pub fn memory(&self) -> AccountedMemory {
        AccountedMemory {
            current: self.ledger.now(),
            class_peaks: self.ledger.peaks(),
            ..self.memory.clone()
        }
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

    /// An operation begins.
    pub fn start_op(&mut self, op: &Recorded) {
        self.makes = op.burn().is_some_and(makes);
        self.view = op.burn().is_some_and(is_view).then(|| {
            let mut first = First(None);
            visit_ref(op, &mut first);
            first.0.map_or(NONE, |slot| self.slots[slot as usize])
        });
    }

    /// The operation consumes a slot.
    pub fn take(&mut self, slot: Slot) {
        self.taken.push(slot);
    }

    /// A tensor is put in a slot.
    pub fn put<B: BackendIr>(&mut self, slot: Slot, handle: &B::Handle, bytes: u64) {
        let (key, bytes) = self.buffer::<B>(handle, bytes);
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
        let overwritten = taken && self.view.is_none() && self.ledger.is_lent(key);
        self.hold(slot, key, bytes);
        if overwritten {
            self.ledger.overwrite(key);
        }
    }

    /// The operation has ended.
    pub fn end_op(&mut self) {
        self.view = None;
        self.makes = false;
        self.settle();
        while let Some(slot) = self.taken.pop() {
            self.release(slot);
        }
    }

    /// Counts what is held.
    pub fn settle(&mut self) {
        let now = self.ledger.settle();
        self.timeline.push(now);
    }

    /// A slot is given up.
    pub fn release(&mut self, slot: Slot) {
        let key = std::mem::replace(&mut self.slots[slot as usize], NONE);
        self.forget(key);
    }

    /// A kept tensor is put in a slot.
    pub fn load(&mut self, slot: Slot, key: u64) {
        self.hold(slot, key, self.ledger.bytes(key));
        self.settle();
    }

    /// A tensor is kept beyond the window; returns its buffer.
    pub fn keep<B: BackendIr>(
        &mut self,
        handle: &B::Handle,
        bytes: u64,
        class: MemoryClass,
        slot: Option<Slot>,
    ) -> u64 {
        self.view = slot.map(|slot| self.slots[slot as usize]);
        let (key, bytes) = self.buffer::<B>(handle, bytes);
        self.view = None;
        if key != NONE {
            self.ledger.hold(key, bytes, class);
        }
        key
    }

    /// A kept tensor is given up.
    pub fn forget(&mut self, key: u64) {
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

    /// A collective starts: it holds what it sends (a copy where the tensor is not contiguous) and room for what it
    /// returns.
    pub fn send(&mut self, task: &CollectiveTask, as_it_is: bool) {
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

    /// A collective has returned.
    pub fn receive<B: BackendIr>(&mut self, task: &CollectiveTask, output: &B::Handle) {
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
}
