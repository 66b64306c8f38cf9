//! A window that a pass writes anew, operation by operation.

use crate::facts::Edit;
use crate::ir::{Op, Window};

/// A window as a pass has written it anew.
pub(crate) struct Rewritten<O> {
    pub window: Window<O>,
    /// The origins of its operations.
    pub edits: Vec<Edit>,
    /// For each operation whether it is a cast before which terms of a sum are added up: they travel in the type they
    /// have.
    pub reduces_first: Vec<bool>,
}

/// Writes a window anew.
pub(crate) struct Rewriting<'a, O> {
    window: &'a Window<O>,
    ops: Vec<O>,
    edits: Vec<Edit>,
    reduces_first: Vec<bool>,
}

impl<'a, O: Op> Rewriting<'a, O> {
    pub(crate) fn new(window: &'a Window<O>) -> Self {
        let count = window.ops.len();
        Self {
            window,
            ops: Vec::with_capacity(count),
            edits: Vec::with_capacity(count),
            reduces_first: Vec::with_capacity(count),
        }
    }

    /// Writes an operation that stands for one that was there, or for none.
    pub(crate) fn write(&mut self, op: O, edit: Edit, reduces_first: bool) {
        self.ops.push(op);
        self.edits.push(edit);
        self.reduces_first.push(reduces_first);
    }

    /// Drops casts and views that an operation read and nothing reads any more: they would be made for nothing, and
    /// keep what they are made of. The window has `num_values` values now.
    pub(crate) fn drop_unread(&mut self, num_values: usize) {
        let mut was_read = vec![false; num_values];
        for input in self.window.ops.iter().flat_map(Op::inputs) {
            was_read[input.id as usize] = true;
        }
        let mut is_read: Vec<bool> = self.window.dies.iter().map(|dies| !dies).collect();
        is_read.resize(num_values, false);
        for read in &self.window.reads {
            is_read[*read as usize] = true;
        }
        let mut keep = vec![true; self.ops.len()];
        for (op, keep) in self.ops.iter().zip(&mut keep).rev() {
            let traits = op.traits();
            let only_shows = (traits.is_cast || traits.is_view) && op.mark().is_none();
            let mut outputs = op.outputs().map(|out| out.id as usize);
            *keep = !only_shows || outputs.any(|out| is_read[out] || !was_read[out]);
            if *keep {
                for input in op.inputs() {
                    is_read[input.id as usize] = true;
                }
            }
        }
        fn retain<T>(all: &mut Vec<T>, keep: &[bool]) {
            let mut keep = keep.iter();
            all.retain(|_| keep.next() == Some(&true));
        }
        retain(&mut self.ops, &keep);
        retain(&mut self.edits, &keep);
        retain(&mut self.reduces_first, &keep);
    }

    /// Returns the window, which has `num_values` values: those that were added end with it.
    pub(crate) fn finish(self, num_values: usize) -> Rewritten<O> {
        let mut dies = self.window.dies.clone();
        dies.resize(num_values, true);
        Rewritten {
            window: Window {
                ops: self.ops,
                inputs: self.window.inputs.clone(),
                dies,
                reads: self.window.reads.clone(),
                hash: self.window.hash,
            },
            edits: self.edits,
            reduces_first: self.reduces_first,
        }
    }
}
