//! A loader as burn-train takes it: an iterator for each epoch.

use std::sync::Arc;

use burn_core::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn_core::tensor::backend::Backend;
use parking_lot::Mutex;

use super::batches::Batches;
use super::loader::Loader;

/// The rest of an epoch.
struct Epoch<B: Backend, I, O> {
    batches: Batches<B, I, O>,
    /// The epoch.
    number: u64,
    samples: usize,
}

impl<B: Backend, I, O> Iterator for Epoch<B, I, O> {
    type Item = O;

    /// # Panics
    /// With the text of the error, if there is one.
    fn next(&mut self) -> Option<O> {
        let batch = self.batches.next()?;
        Some(batch.unwrap_or_else(|error| panic!("{error}")))
    }
}

impl<B: Backend, I, O> DataLoaderIterator<O> for Epoch<B, I, O> {
    fn progress(&self) -> Progress {
        let (epoch, sample) = *self.batches.at.lock();
        let processed = match epoch > self.number {
            true => self.samples,
            false => sample,
        };
        Progress::new(processed, self.samples)
    }
}

impl<B: Backend, I: Send + 'static, O: 'static> DataLoader<B, O> for Loader<B, I, O> {
    /// The rest of the epoch at the position: all of it, unless the loader was resumed or an iterator was left before
    /// its end.
    ///
    /// # Panics
    /// If no thread can be started.
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let mut spans = self.spans(self.epochs);
        let number = spans.clone().next().map_or(spans.at.0, |span| span.epoch);
        let end = number.saturating_add(1);
        spans.end = Some(spans.end.map_or(end, |epochs| epochs.min(end)));
        Box::new(Epoch {
            batches: self.load(spans).unwrap_or_else(|error| panic!("{error}")),
            number,
            samples: self.samples,
        })
    }

    fn num_items(&self) -> usize {
        self.samples
    }

    /// The same loader on another device: the position is shared.
    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, O>> {
        let mut loader = self.clone();
        loader.device = device.clone();
        Arc::new(loader)
    }

    /// A loader of these items alone, with a position of its own.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, O>> {
        let (start, end) = (start.min(self.samples), end.min(self.samples));
        let (epoch, _) = *self.at.lock();
        let mut loader = self.clone();
        loader.first += start;
        loader.samples = end.saturating_sub(start);
        loader.at = Arc::new(Mutex::new((epoch, 0)));
        Arc::new(loader)
    }
}
