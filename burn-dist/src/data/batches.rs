use std::fmt;
use std::sync::Arc;

use burn_core::tensor::Device;
use burn_dist_front::data::Batched;

use super::DataError;
use crate::layout::Rows;

/// Makes a batch of items, which are these rows of it.
pub(super) type Batching<I, O> = dyn Fn(Vec<I>, &Rows, &Device) -> O + Send + Sync;

/// Batches of a [`Loader`](super::Loader), whose position moves as they are handed out.
///
/// After an error it ends, with the position before the batch that failed. If a worker panics, so does the iterator
/// when the batch is asked for that the worker was loading. Dropped, it ends its threads, which takes as long as they
/// need for the items that they are loading.
pub struct Batches<I, O> {
    pub(super) items: Batched<I>,
    pub(super) batching: Arc<Batching<I, O>>,
    pub(super) device: Device,
}

impl<I, O> fmt::Debug for Batches<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("ended", &self.items.has_ended())
            .finish_non_exhaustive()
    }
}

impl<I, O> Iterator for Batches<I, O> {
    type Item = Result<O, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (batching, device) = (&self.batching, &self.device);
        self.items
            .next_with(|items, rows| batching(items, rows, device))
    }
}
