//! The end of a window: what was recorded goes to the [windows](super::super::windows) that are planned.

use std::sync::mpsc::channel;

use burn_ir::{BackendIr, TensorIr};

use super::Recorder;
use crate::record::closed::{Closed, End};
use crate::record::hold_note::HoldNote;
use crate::record::log::Taken;
use crate::run::ReadTicket;

impl<B: BackendIr> Recorder<B> {
    /// Runs all that is recorded, because the program asks for it.
    pub(super) fn flush_all(&mut self) {
        if !self.log.ops().is_empty()
            && let Some(note) = self.holds.first().cloned()
        {
            self.warn_of_hold(&note, "a sync, a report or a seed");
        }
        let taken = self.log.take_all();
        self.program_waits(taken.ops.len());
        self.flush(taken, Vec::new(), End::Awaited);
    }

    /// Runs what `tensor` needs, and all that the calling thread has recorded.
    pub(super) fn flush_needed(&mut self, tensor: &TensorIr) {
        let taken = self.log.take_for(std::slice::from_ref(tensor));
        self.program_waits(taken.ops.len());
        self.flush(taken, Vec::new(), End::Awaited);
    }

    /// Runs what `reads` need, and all that the calling thread has recorded.
    pub(super) fn flush_for(&mut self, reads: Vec<TensorIr>) -> Vec<ReadTicket> {
        let taken = self.log.take_for(&reads);
        let mine = self.holds.iter().find(|note| note.is_mine()).cloned();
        if let (Some(note), false) = (mine, taken.ops.is_empty()) {
            let shapes = reads
                .iter()
                .map(|tensor| format!("{:?}", tensor.shape.to_vec()));
            let shapes: Vec<String> = shapes.collect();
            self.warn_of_hold(
                &note,
                &format!("the read of a tensor of shape {}", shapes.join(", ")),
            );
        }
        self.program_waits(taken.ops.len());
        self.flush(taken, reads, End::Awaited)
    }

    /// Ends a window; returns a ticket for each read. What fails ends the mesh: later reads return it.
    pub(super) fn flush(
        &mut self,
        taken: Taken,
        reads: Vec<TensorIr>,
        end: End,
    ) -> Vec<ReadTicket> {
        let is_empty = taken.ops.is_empty() && taken.dropped.is_empty() && taken.entered.is_empty();
        if self.is_over() || is_empty && reads.is_empty() {
            return Vec::new();
        }
        for (id, _) in &taken.entered {
            if !taken.held.contains(id) {
                self.items.forget(*id);
            }
        }
        let (answers, tickets) = reads
            .iter()
            .map(|_| {
                let (answer, ticket) = channel();
                (answer, ReadTicket::to_come(ticket))
            })
            .unzip();
        self.windows.push(Closed {
            taken,
            reads,
            answers,
            end,
            bytes: std::mem::take(&mut self.entered),
        });
        tickets
    }

    /// Says once that a window ended which was held open.
    fn warn_of_hold(&mut self, note: &HoldNote, what: &str) {
        if !std::mem::replace(&mut self.warned_of_hold, true) {
            tracing::warn!(
                mesh = %self.mesh,
                "{what} {note} ends the window there: what was recorded so far runs alone, and the ranks of a \
                 pipeline wait for each other. Read after the step"
            );
        }
    }
}
