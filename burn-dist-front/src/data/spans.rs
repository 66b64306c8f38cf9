//! Which samples are a batch: the stream of epochs, cut from a point on.

/// A point of the stream: an epoch, and how many of its samples lie before.
pub(super) type StreamPoint = (u64, usize);

/// The samples of a batch: consecutive ones of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) epoch: u64,
    pub(super) start: usize,
    pub(super) len: usize,
    /// Where the next batch begins at the earliest.
    pub(super) after: StreamPoint,
}

/// The batches of a stream of epochs from a point on.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    pub(super) samples: usize,
    pub(super) batch_size: usize,
    /// Leaves out the batch at the end of an epoch that has fewer samples.
    pub(super) drop_last: bool,
    /// The first epoch that is not there.
    pub(super) end: Option<u64>,
    pub(super) at: StreamPoint,
}

impl Spans {
    /// How many samples the batch at `start` of an epoch has; 0 if the epoch has no more.
    fn len(&self, start: usize) -> usize {
        let left = self.samples - start;
        match left < self.batch_size && self.drop_last {
            true => 0,
            false => left.min(self.batch_size),
        }
    }

    /// Returns whether a whole epoch has a batch.
    pub(super) fn has_batches(&self) -> bool {
        self.len(0) > 0
    }
}

impl Iterator for Spans {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let (mut epoch, mut start) = self.at;
        if self.len(start) == 0 {
            (epoch, start) = (epoch.saturating_add(1), 0);
        }
        let len = self.len(start);
        if len == 0 || self.end.is_some_and(|end| epoch >= end) {
            return None;
        }
        let after = match self.len(start + len) {
            0 => (epoch.saturating_add(1), 0),
            _ => (epoch, start + len),
        };
        self.at = after;
        Some(Span {
            epoch,
            start,
            len,
            after,
        })
    }
}
