//! What has happened before what: a count of operations for each stream.

use std::sync::Arc;

/// For each stream, how many of its operations happened before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

/// An operation: which one of which stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) stream: usize,
    /// From 1 on; 0: none.
    pub(crate) number: u64,
}

impl Clock {
    /// What happened before either.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, other) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*other);
        }
    }

    /// Counts one more operation of a stream, and returns it.
    pub(crate) fn tick(&mut self, stream: usize) -> Epoch {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] += 1;
        Epoch {
            stream,
            number: self.0[stream],
        }
    }

    /// Counts the operations of a stream up to one that has begun.
    pub(crate) fn begins(&mut self, of: Epoch) {
        if self.0.len() <= of.stream {
            self.0.resize(of.stream + 1, 0);
        }
        self.0[of.stream] = self.0[of.stream].max(of.number);
    }

    /// Whether an operation happened before.
    pub(crate) fn has(&self, of: Epoch) -> bool {
        of.number == 0 || self.0.get(of.stream).is_some_and(|seen| *seen >= of.number)
    }
}

/// What an operation is compared by.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) epoch: Epoch,
    pub(crate) clock: Arc<Clock>,
}
