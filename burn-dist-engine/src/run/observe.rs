//! Observers of a worker: the account of its memory, the clock, the tracer.
//!
//! The worker says what happens, once; each observer takes what it wants of it. Without an account and a tracer an
//! event costs two branches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_ir::{BackendIr, TensorId};

use super::account::Account;
use super::observer::{Observer, TaskPart, events};
use super::times::Clock;
use super::trace::Tracer;
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

/// Declares for each event a method of [`Observers`] that calls each of them.
macro_rules! each {
    ($( $(#[$doc:meta])* fn $name:ident $(<$B:ident>)? ($($arg:ident: $type:ty),*); )*) => {
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

events!(each);
