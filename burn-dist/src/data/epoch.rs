//! A loader as burn-train takes it: an iterator for each epoch.

use std::sync::Arc;

use burn_core::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn_core::data::dataset::DatasetError;
use burn_core::tensor::Device;

use super::batches::Batches;
use super::loader::Loader;

/// The rest of an epoch.
struct Epoch<I, O> {
    batches: Batches<I, O>,
    /// The epoch.
    number: u64,
    samples: usize,
}

impl<I, O> Iterator for Epoch<I, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next()?;
        Some(batch.map_err(DatasetError::new))
    }
}

impl<I, O> DataLoaderIterator<O> for Epoch<I, O> {
    fn progress(&self) -> Progress {
        let processed = self.batches.items.processed(self.number, self.samples);
        Progress::new(processed, self.samples, None)
    }
}

impl<I: Send + 'static, O: 'static> DataLoader<O> for Loader<I, O> {
    /// The rest of the epoch at the position: all of it, unless the loader was resumed or an iterator was left before
    /// its end.
    ///
    /// # Panics
    /// If no thread can be started.
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let epoch = self.samples.epoch();
        let (items, number) = epoch.unwrap_or_else(|error| panic!("{error}"));
        Box::new(Epoch {
            batches: self.made(items),
            number,
            samples: self.samples.num_samples(),
        })
    }

    fn num_items(&self) -> usize {
        self.samples.num_samples()
    }

    /// The same loader on another device: the position is shared.
    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        let mut loader = self.clone();
        loader.device = device.clone();
        Arc::new(loader)
    }

    /// A loader of these items alone, with a position of its own.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.of(self.samples.slice(start, end)))
    }
}
