use std::fmt;
use std::sync::Arc;

use burn_core::tensor::Device;
use burn_core::tensor::backend::Backend;
use parking_lot::Mutex;

use super::error::DataError;
use super::spans::StreamPoint;
use super::workers::Loaded;
use crate::layout::Rows;

/// Makes a batch of items, which are these rows of it.
pub(super) type Batching<B, I, O> = dyn Fn(Vec<I>, &Rows, &Device<B>) -> O + Send + Sync;

/// Batches that are loaded and not made, in order.
pub(super) type LoadedItems<I> = dyn Iterator<Item = Result<Loaded<I>, DataError>> + Send;

/// Batches of a [`Loader`](super::Loader), whose position moves as they are handed out.
///
/// After an error it ends, with the position before the batch that failed. If a worker panics, so does the iterator
/// when the batch is asked for that the worker was loading. Dropped, it ends its threads, which takes as long as they
/// need for the items that they are loading.
pub struct Batches<B: Backend, I, O> {
    /// `None` once it has ended.
    pub(super) loaded: Option<Box<LoadedItems<I>>>,
    pub(super) batching: Arc<Batching<B, I, O>>,
    pub(super) device: B::Device,
    pub(super) at: Arc<Mutex<StreamPoint>>,
}

impl<B: Backend, I, O> fmt::Debug for Batches<B, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("ended", &self.loaded.is_none())
            .finish_non_exhaustive()
    }
}

impl<B: Backend, I, O> Iterator for Batches<B, I, O> {
    type Item = Result<O, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Whatever panics, the iterator has ended.
        let mut loaded = self.loaded.take()?;
        let Loaded { span, rows, items } = match loaded.next()? {
            Ok(next) => next,
            Err(error) => return Some(Err(error)),
        };
        let batch = (self.batching)(items, &rows, &self.device);
        *self.at.lock() = span.after;
        self.loaded = Some(loaded);
        Some(Ok(batch))
    }
}
