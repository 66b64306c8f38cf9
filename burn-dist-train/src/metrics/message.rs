//! Messages to the thread that writes.

use std::sync::mpsc::SyncSender;

use super::Record;

/// Something that the writer is to do.
pub(super) enum Message {
    Record(Record),
    /// Answers when all before it is written.
    Settle(SyncSender<()>),
    End,
}
