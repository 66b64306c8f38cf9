use std::fmt;
use std::sync::Arc;

use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::Dataset;
use burn_core::tensor::Device;
use burn_dist_front::data::Samples;
use serde::Serialize;

use super::batches::{Batches, Batching};
use super::{DataError, Position, ResumeError};
use crate::layout::Rows;

/// Makes batches of the items of a data set, epoch after epoch, and knows after how many samples it is.
///
/// A batch is consecutive samples of an epoch. The last batch of an epoch is shorter if the batch size does not divide
/// the number of samples, or left out with [`drop_last`](Self::drop_last). No batch spans two epochs.
///
/// [`position`](Self::position) lies after the batches that were handed out, whatever was loaded ahead.
/// [`resume`](Self::resume) continues there: the samples that follow are those that would have followed, also with
/// another batch size, another number of workers or processes, or another mesh. Samples that
/// [`drop_last`](Self::drop_last) left out stay left out: their epoch is over.
///
/// Use one iterator at a time: all of them move the position of their loader. Where it is used as Burn's
/// [`DataLoader`](burn_core::data::dataloader::DataLoader), which burn-train takes, each iterator lasts until the end
/// of an epoch, and the next one goes on from there.
///
/// ```
/// use burn_core::data::dataloader::batcher::Batcher;
/// use burn_core::data::dataset::InMemDataset;
/// use burn_core::tensor::Device;
/// use burn_dist::data::{Loader, Position};
///
/// /// Hands items on as they are.
/// struct Items;
/// impl Batcher<u32, Vec<u32>> for Items {
///     fn batch(&self, items: Vec<u32>, _: &Device) -> Vec<u32> {
///         items
///     }
/// }
/// let loader = || {
///     let data = InMemDataset::new((0..100).collect());
///     Loader::new(data, Items, Device::flex()).shuffle(42).fingerprint("the first 100 numbers")
/// };
///
/// let first = loader().batch_size(8);
/// let mut seen = Vec::new();
/// for batch in first.batches()?.take(3) {
///     seen.extend(batch?);
/// }
/// let saved = serde_json::to_string(&first.position())?;
///
/// let second = loader().batch_size(19).epochs(1).resume(&serde_json::from_str(&saved)?)?;
/// for batch in second.batches()? {
///     seen.extend(batch?);
/// }
/// seen.sort_unstable();
/// assert_eq!(seen, (0..100).collect::<Vec<_>>());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Loader<I, O> {
    pub(super) samples: Samples<I>,
    batching: Arc<Batching<I, O>>,
    pub(super) device: Device,
}

// Derived, it would ask for clones of items.
impl<I, O> Clone for Loader<I, O> {
    /// A loader that shares the position.
    fn clone(&self) -> Self {
        self.of(self.samples.clone())
    }
}

impl<I, O> fmt::Debug for Loader<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("position", &self.position())
            .field("batch_size", &self.samples.batch_size)
            .field("drop_last", &self.samples.drop_last)
            .field("epochs", &self.samples.epochs)
            .field("num_workers", &self.samples.num_workers)
            .finish_non_exhaustive()
    }
}

impl<I, O> Loader<I, O> {
    /// A loader of whole batches, as Burn's: batches of one sample, in the order of the data set, epochs without end.
    pub fn new(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, O> + 'static,
        device: Device,
    ) -> Self {
        let batching = move |items, _: &Rows, device: &Device| batcher.batch(items, device);
        Self::local(dataset, Rows::all, batching, device)
    }

    /// A loader of the rows of this process: of a batch of n rows it loads the items of `rows(n)`, and makes `batching`
    /// of them. All processes make the same batches of as many rows.
    ///
    /// `rows` is usually [`DeviceMesh::local_rows`](crate::DeviceMesh::local_rows). `batching` learns which rows it
    /// gets, and of how many, also in a last batch that is short:
    /// [`from_process_local`](crate::ProcessLocal::from_process_local) wants to know.
    ///
    /// # Panics
    /// The iterators do, if `rows(n)` are not of n rows.
    pub fn local(
        dataset: impl Dataset<I> + 'static,
        rows: impl Fn(usize) -> Rows + Send + Sync + 'static,
        batching: impl Fn(Vec<I>, &Rows, &Device) -> O + Send + Sync + 'static,
        device: Device,
    ) -> Self {
        Self {
            samples: Samples::new(
                dataset.len(),
                move |index| Ok(Some(dataset.get(index)?)),
                rows,
            ),
            batching: Arc::new(batching),
            device,
        }
    }

    /// Samples of a batch, those of all processes.
    ///
    /// # Panics
    /// If it is 0.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        self.samples.batch_size = batch_size;
        self
    }

    /// Puts the samples of every epoch in a random order of its own, which follows from `seed`. It takes no memory.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.samples.seed = Some(seed);
        self
    }

    /// Leaves out the last batch of an epoch if it would be short.
    pub fn drop_last(mut self) -> Self {
        self.samples.drop_last = true;
        self
    }

    /// Ends after so many epochs, counted from the first one, also where a run is resumed.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.samples.epochs = Some(epochs);
        self
    }

    /// Threads that load items ahead; without any, items are loaded when a batch is asked for. The order of batches is
    /// the same.
    ///
    /// Batches are made of items in the thread that asks for them: what is recorded on a mesh has to come in the same
    /// order in all processes. So what takes long belongs into the data set (Burn's `MapperDataset`).
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.samples.num_workers = num_workers;
        self
    }

    /// Says what the data is, by a version, say, or a hash: positions in other data are then refused. Without it, the
    /// number of samples and the seed are all that is compared.
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.samples.fingerprint = Some(fingerprint.into());
        self
    }

    /// Sets the [`fingerprint`](Self::fingerprint) to a hash of the first item, the last one, and some evenly between
    /// them: `items` in all, each read and written as JSON. A change in other items is not noticed, and items that are
    /// written differently each time (hash maps) have no such fingerprint.
    ///
    /// # Errors
    /// [`DataError::MissingItem`], [`DataError::NoFingerprint`].
    pub fn fingerprint_items(mut self, items: usize) -> Result<Self, DataError>
    where
        I: Serialize,
    {
        self.samples.fingerprint_items(items)?;
        Ok(self)
    }

    /// Continues at a position, which may have been saved with another batch size, rows, workers and epochs. To be
    /// called last: seed and fingerprint are compared with those of the position.
    ///
    /// # Errors
    /// [`ResumeError::OtherStream`] says what was expected and found.
    pub fn resume(mut self, position: &Position) -> Result<Self, ResumeError> {
        self.samples.resume(position)?;
        Ok(self)
    }

    /// After how many samples the loader is: those of the batches that its iterators have handed out.
    pub fn position(&self) -> Position {
        self.samples.position()
    }

    /// The same loader of other samples.
    pub(super) fn of(&self, samples: Samples<I>) -> Self {
        Self {
            samples,
            batching: Arc::clone(&self.batching),
            device: self.device.clone(),
        }
    }

    /// Batches made of items that are loaded.
    pub(super) fn made(&self, items: burn_dist_front::data::Batched<I>) -> Batches<I, O> {
        Batches {
            items,
            batching: Arc::clone(&self.batching),
            device: self.device.clone(),
        }
    }
}

impl<I: Send + 'static, O> Loader<I, O> {
    /// The batches from the position on, to the end of the last epoch.
    ///
    /// # Errors
    /// [`DataError::NoBatches`], [`DataError::NoThread`].
    pub fn batches(&self) -> Result<Batches<I, O>, DataError> {
        Ok(self.made(self.samples.batches()?))
    }
}
