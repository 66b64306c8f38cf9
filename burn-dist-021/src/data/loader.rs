use std::fmt;
use std::sync::Arc;

use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::Dataset;
use burn_core::tensor::backend::Backend;
use parking_lot::Mutex;
use serde::Serialize;

use super::batches::{Batches, Batching, LoadedItems};
use super::error::DataError;
use super::order::draw;
use super::position::{Position, ResumeError, Stream};
use super::spans::{Spans, StreamPoint};
use super::workers::{ChooseRows, Source, Workers, load_here};
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
/// use burn_dist::data::{Loader, Position};
/// use burn_flex::{Flex, FlexDevice};
///
/// /// Hands items on as they are.
/// struct Items;
/// impl Batcher<Flex, u32, Vec<u32>> for Items {
///     fn batch(&self, items: Vec<u32>, _: &FlexDevice) -> Vec<u32> {
///         items
///     }
/// }
/// let loader = || {
///     let data = InMemDataset::new((0..100).collect());
///     Loader::new(data, Items, FlexDevice).shuffle(42).fingerprint("the first 100 numbers")
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
pub struct Loader<B: Backend, I, O> {
    dataset: Arc<dyn Dataset<I>>,
    /// The item that is sample 0.
    pub(super) first: usize,
    pub(super) samples: usize,
    rows: Arc<ChooseRows>,
    batching: Arc<Batching<B, I, O>>,
    pub(super) device: B::Device,
    batch_size: usize,
    seed: Option<u64>,
    drop_last: bool,
    pub(super) epochs: Option<u64>,
    num_workers: usize,
    fingerprint: Option<String>,
    pub(super) at: Arc<Mutex<StreamPoint>>,
}

// Derived, it would ask for clones of items.
impl<B: Backend, I, O> Clone for Loader<B, I, O> {
    /// A loader that shares the position.
    fn clone(&self) -> Self {
        Self {
            dataset: Arc::clone(&self.dataset),
            rows: Arc::clone(&self.rows),
            batching: Arc::clone(&self.batching),
            device: self.device.clone(),
            fingerprint: self.fingerprint.clone(),
            at: Arc::clone(&self.at),
            ..*self
        }
    }
}

impl<B: Backend, I, O> fmt::Debug for Loader<B, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("position", &self.position())
            .field("batch_size", &self.batch_size)
            .field("drop_last", &self.drop_last)
            .field("epochs", &self.epochs)
            .field("num_workers", &self.num_workers)
            .finish_non_exhaustive()
    }
}

impl<B: Backend, I, O> Loader<B, I, O> {
    /// A loader of whole batches, as Burn's: batches of one sample, in the order of the data set, epochs without end.
    pub fn new(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<B, I, O> + 'static,
        device: B::Device,
    ) -> Self {
        let batching = move |items, _: &Rows, device: &B::Device| batcher.batch(items, device);
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
        batching: impl Fn(Vec<I>, &Rows, &B::Device) -> O + Send + Sync + 'static,
        device: B::Device,
    ) -> Self {
        Self {
            first: 0,
            samples: dataset.len(),
            dataset: Arc::new(dataset),
            rows: Arc::new(rows),
            batching: Arc::new(batching),
            device,
            batch_size: 1,
            seed: None,
            drop_last: false,
            epochs: None,
            num_workers: 0,
            fingerprint: None,
            at: Arc::default(),
        }
    }

    /// Samples of a batch, those of all processes.
    ///
    /// # Panics
    /// If it is 0.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        self.batch_size = batch_size;
        self
    }

    /// Puts the samples of every epoch in a random order of its own, which follows from `seed`. It takes no memory.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Leaves out the last batch of an epoch if it would be short.
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }

    /// Ends after so many epochs, counted from the first one, also where a run is resumed.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Threads that load items ahead; without any, items are loaded when a batch is asked for. The order of batches is
    /// the same.
    ///
    /// Batches are made of items in the thread that asks for them: what is recorded on a mesh has to come in the same
    /// order in all processes. So what takes long belongs into the data set (Burn's `MapperDataset`).
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.num_workers = num_workers;
        self
    }

    /// Says what the data is, by a version, say, or a hash: positions in other data are then refused. Without it, the
    /// number of samples and the seed are all that is compared.
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Sets the [`fingerprint`](Self::fingerprint) to a hash of the first item, the last one, and some evenly between
    /// them: `items` in all, each read and written as JSON. A change in other items is not noticed, and items that are
    /// written differently each time (hash maps) have no such fingerprint.
    ///
    /// # Errors
    /// [`DataError::MissingItem`], [`DataError::NoFingerprint`].
    pub fn fingerprint_items(self, items: usize) -> Result<Self, DataError>
    where
        I: Serialize,
    {
        let last = self.samples.saturating_sub(1);
        let items = items.min(self.samples);
        let mut hash = 0;
        for number in 0..items {
            // Wide enough for any product of two numbers of items.
            let spread = number as u128 * last as u128 / (items - 1).max(1) as u128;
            let index = self.first + spread as usize;
            let item = self.dataset.get(index);
            let item = item.ok_or(DataError::MissingItem { index })?;
            let json = serde_json::to_vec(&item);
            let json = json.map_err(|source| DataError::NoFingerprint { index, source })?;
            hash = json.iter().fold(draw(hash, index as u64), |hash, byte| {
                draw(hash, u64::from(*byte))
            });
        }
        Ok(self.fingerprint(format!("{items} items {hash:016x}")))
    }

    /// Continues at a position, which may have been saved with another batch size, rows, workers and epochs. To be
    /// called last: seed and fingerprint are compared with those of the position.
    ///
    /// # Errors
    /// [`ResumeError::OtherStream`] says what was expected and found.
    pub fn resume(mut self, position: &Position) -> Result<Self, ResumeError> {
        position.check(&self.stream())?;
        self.at = Arc::new(Mutex::new((position.epoch, position.sample)));
        Ok(self)
    }

    /// After how many samples the loader is: those of the batches that its iterators have handed out.
    pub fn position(&self) -> Position {
        let (epoch, sample) = *self.at.lock();
        Position {
            epoch,
            sample,
            stream: self.stream(),
        }
    }

    fn stream(&self) -> Stream {
        Stream {
            samples: self.samples,
            seed: self.seed,
            fingerprint: self.fingerprint.clone(),
        }
    }

    /// The batches from the position on, until the end of epoch `end - 1`.
    pub(super) fn spans(&self, end: Option<u64>) -> Spans {
        Spans {
            samples: self.samples,
            batch_size: self.batch_size,
            drop_last: self.drop_last,
            end,
            at: *self.at.lock(),
        }
    }
}

impl<B: Backend, I: Send + 'static, O> Loader<B, I, O> {
    /// The batches from the position on, to the end of the last epoch.
    ///
    /// # Errors
    /// [`DataError::NoBatches`], [`DataError::NoThread`].
    pub fn batches(&self) -> Result<Batches<B, I, O>, DataError> {
        let spans = self.spans(self.epochs);
        if self.epochs.is_none() && !spans.has_batches() {
            return Err(DataError::NoBatches {
                samples: self.samples,
                batch_size: self.batch_size,
            });
        }
        self.load(spans)
    }

    pub(super) fn load(&self, spans: Spans) -> Result<Batches<B, I, O>, DataError> {
        let source = Source {
            dataset: Arc::clone(&self.dataset),
            first: self.first,
            samples: self.samples,
            seed: self.seed,
            rows: Arc::clone(&self.rows),
        };
        let loaded: Box<LoadedItems<I>> = match self.num_workers {
            0 => Box::new(load_here(source, spans)),
            num_workers => {
                let workers = Workers::start(source, &spans, num_workers);
                let thread = |source| DataError::NoThread {
                    num_workers,
                    source,
                };
                Box::new(workers.map_err(thread)?)
            }
        };
        Ok(Batches {
            loaded: Some(loaded),
            batching: Arc::clone(&self.batching),
            device: self.device.clone(),
            at: Arc::clone(&self.at),
        })
    }
}
