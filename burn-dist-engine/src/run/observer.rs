//! Events of a worker, one by one, for its observers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_ir::{BackendIr, TensorId};

use crate::comm::CallInfo;
use crate::ops::Recorded;
use crate::plan::memory::MemoryClass;
use crate::plan::task::{CollectiveTask, RankPlan, Slot, Task, TransferTask};

/// Which task of a plan, and for launches of several collectives, which of them; of a window, its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskPart {
    pub task: u32,
    pub part: u32,
}

/// Lists the events for the macro `$with`.
macro_rules! events {
    ($with:ident) => {
        $with! {
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
            /// The task has what it needs and what it makes: what it takes may go from here on. A task that does not
            /// say so holds both until it ends.
            fn holds_most();
            /// Task number `index` has ended.
            fn task_ends(index: usize, task: &Task);

            /// The task takes a slot, which it leaves empty.
            fn taken(slot: Slot);
            /// A tensor is put in a slot.
            fn written<B>(slot: Slot, handle: &B::Handle, shape: &[usize], elem_bytes: usize);
            /// A kept tensor is put in a slot.
            fn loaded(slot: Slot, id: TensorId);
            /// A tensor, of a slot if this is part of a window, is kept on the device, instead of what had the id
            /// before.
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
            /// A tensor of the rank of another stage was waited for between `began` and `ended`, and is put in its
            /// slot.
            fn received<B>(
                part: TaskPart,
                task: &TransferTask,
                output: &B::Handle,
                info: &CallInfo,
                began: Instant,
                ended: Instant
            );
        }
    };
}

/// Declares [`Observer`]: for each event a method that does nothing.
macro_rules! observer {
    ($( $(#[$doc:meta])* fn $name:ident $(<$B:ident>)? ($($arg:ident: $type:ty),*); )*) => {
        /// Sees what a worker does. Kept tensors are known by their ids, those of a window by their slots.
        #[allow(unused_variables, reason = "an event that an observer does not want")]
        pub(super) trait Observer {
            $( $(#[$doc])* #[inline] fn $name $(<$B: BackendIr>)? (&mut self, $($arg: $type),*) {} )*
        }
    };
}

events!(observer);

pub(super) use events;
