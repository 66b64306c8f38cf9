//! Observers of a worker: the account of its memory, the clock, the tracer.
//!
//! The worker says what happens, once; each observer takes what it wants of it. Without an account and a tracer an
//! event costs two branches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_ir::{BackendIr, TensorId};

use super::account::Account;
use super::times::Clock;
use super::trace::{TaskPart, Tracer};
use crate::comm::CallInfo;
use crate::ops::Recorded;
use crate::plan::memory::MemoryClass;
use crate::plan::task::{CollectiveTask, RankPlan, Slot, Task, TransferTask};

/// Observers of a worker.
pub(super) struct Observers {
    pub account: Option<Box<Account>>,
    pub clock: Clock,
    pub tracer: Option<Tracer>,
}

/// Declares the events: a method of [`Observer`] that does nothing, and one of [`Observers`] that calls each.
macro_rules! events {
    ($( $(#[$doc:meta])* fn $name:ident $(<$B:ident>)? ($($arg:ident: $type:ty),*); )*) => {
        /// Sees what a worker does. Kept tensors are known by their ids, those of a window by their slots.
        #[allow(unused_variables, reason = "an event that an observer does not want")]
        pub(super) trait Observer {
            $( $(#[$doc])* #[inline] fn $name $(<$B: BackendIr>)? (&mut self, $($arg: $type),*) {} )*
        }

        impl Observers {
            $( $(#[$doc])* #[inline] pub(super) fn $name $(<$B: BackendIr>)? (&mut self, $($arg: $type),*) {
                if let Some(account) = &mut self.account {
                    account.$name $(::<$B>)? ($($arg),*);
                }
                self.clock.$name $(::<$B>)? ($($arg),*);
                if let Some(tracer) = &mut self.tracer {
                    tracer.$name $(::<$B>)? ($($arg),*);
                }
            } )*
        }
    };
}

events! {
    /// A window begins.
    fn window_begins(plan: &RankPlan);
    /// A window has ended, by a fault unless `completed`.
    fn window_ends(plan: &Arc<RankPlan>, completed: bool);
    /// The rank has been `busy` with a window.
    fn worked(busy: Duration);
    /// A fault has stopped the rank: everything is released.
    fn stopped();

    /// An operation begins.
    fn op_begins(op: &Recorded);
    /// The task has what it needs and what it makes: what it takes may go from here on. A task that does not say so
    /// holds both until it ends.
    fn holds_most();
    /// Task number `index` has ended.
    fn task_ends(index: usize, task: &Task);

    /// The task takes a slot, which it leaves empty.
    fn taken(slot: Slot);
    /// A tensor is put in a slot.
    fn written<B>(slot: Slot, handle: &B::Handle, shape: &[usize], elem_bytes: usize);
    /// A kept tensor is put in a slot.
    fn loaded(slot: Slot, id: TensorId);
    /// A tensor, of a slot if this is part of a window, is kept on the device, instead of what had the id before.
    fn kept<B>(id: TensorId, handle: &B::Handle, bytes: u64, class: MemoryClass, slot: Option<Slot>);
    /// A tensor that was kept on the device is released.
    fn released(id: TensorId);

    /// A collective is about to start.
    fn collective_starts<B>(task: &CollectiveTask, input: &B::Handle);
    /// A collective was started between `began` and `ended`.
    fn collective_started(part: TaskPart, began: Instant, ended: Instant);
    /// A collective was waited for between `began` and `ended`, and its result is put in its slot.
    fn collective_finished<B>(
        part: TaskPart,
        task: &CollectiveTask,
        output: &B::Handle,
        info: &CallInfo,
        began: Instant,
        ended: Instant
    );
    /// A slot is about to be sent to the rank of another stage.
    fn sends(task: &TransferTask);
    /// A tensor of the rank of another stage was waited for between `began` and `ended`, and is put in its slot.
    fn received<B>(
        part: TaskPart,
        task: &TransferTask,
        output: &B::Handle,
        info: &CallInfo,
        began: Instant,
        ended: Instant
    );
}
