//! A window that has ended.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use burn_ir::TensorIr;

use super::early::EarlyPlans;
use super::log::Taken;
use crate::run::ReadTicket;

/// A window that has ended and is not planned yet.
pub(super) struct Closed {
    pub taken: Taken,
    /// The tensors that the host wants, and who gets the ticket for each.
    pub reads: Vec<TensorIr>,
    pub answers: Vec<Sender<ReadTicket>>,
    pub end: End,
    /// Bytes of data that have entered for it.
    pub bytes: u64,
}

/// Why a window has ended.
pub(super) enum End {
    /// The program waits for its values.
    Awaited,
    /// It is as long as windows may be, or the program repeats.
    Full,
    /// The rank begins with it while the program records.
    Early(Arc<EarlyPlans>),
}

impl End {
    /// Returns whether a thread waits for the values of the window.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, Self::Awaited)
    }
}
