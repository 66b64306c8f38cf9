//! The samples of a data set, batch after batch: a loader, but for what makes a batch of items.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use super::error::{DataError, ItemError};
use super::order::draw;
use super::position::{Position, ResumeError, Stream};
use super::spans::{Spans, StreamPoint};
use super::workers::{ChooseRows, GetItem, Loaded, Source, Workers, item, load_here};
use crate::layout::Rows;

/// Items that are loaded and no batch yet, in order.
type LoadedItems<I> = dyn Iterator<Item = Result<Loaded<I>, DataError>> + Send;

/// The samples of a data set: which of them are a batch, epoch after epoch, and how many were handed out.
pub struct Samples<I> {
    items: Arc<GetItem<I>>,
    /// The item that is sample 0.
    first: usize,
    samples: usize,
    rows: Arc<ChooseRows>,
    /// Samples of a batch, those of all processes.
    pub batch_size: usize,
    /// The seed of the order of samples, if they are shuffled.
    pub seed: Option<u64>,
    /// Leaves out the last batch of an epoch if it would be short.
    pub drop_last: bool,
    /// After how many epochs it ends, counted from the first one.
    pub epochs: Option<u64>,
    /// Threads that load items ahead.
    pub num_workers: usize,
    /// Distinguishes the data from other data.
    pub fingerprint: Option<String>,
    at: Arc<Mutex<StreamPoint>>,
}

// Derived, it would ask for clones of items.
impl<I> Clone for Samples<I> {
    /// Clones share the position.
    fn clone(&self) -> Self {
        Self {
            items: Arc::clone(&self.items),
            rows: Arc::clone(&self.rows),
            fingerprint: self.fingerprint.clone(),
            at: Arc::clone(&self.at),
            ..*self
        }
    }
}

impl<I> Samples<I> {
    /// Creates those of a data set of so many items, in batches of one; of a batch of n rows, the items of `rows(n)`
    /// are loaded.
    pub fn new(
        samples: usize,
        items: impl Fn(usize) -> Result<Option<I>, ItemError> + Send + Sync + 'static,
        rows: impl Fn(usize) -> Rows + Send + Sync + 'static,
    ) -> Self {
        Self {
            items: Arc::new(items),
            first: 0,
            samples,
            rows: Arc::new(rows),
            batch_size: 1,
            seed: None,
            drop_last: false,
            epochs: None,
            num_workers: 0,
            fingerprint: None,
            at: Arc::default(),
        }
    }

    /// Returns the number of samples of an epoch.
    pub fn num_samples(&self) -> usize {
        self.samples
    }

    /// Sets the fingerprint to a hash of the first item, the last one, and some evenly between them: `items` in all,
    /// each read and written as JSON.
    ///
    /// # Errors
    /// [`DataError::MissingItem`], [`DataError::NoFingerprint`].
    pub fn fingerprint_items(&mut self, items: usize) -> Result<(), DataError>
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
            let item = item(self.items.as_ref(), index)?;
            let json = serde_json::to_vec(&item);
            let json = json.map_err(|source| DataError::NoFingerprint { index, source })?;
            hash = json.iter().fold(draw(hash, index as u64), |hash, byte| {
                draw(hash, u64::from(*byte))
            });
        }
        self.fingerprint = Some(format!("{items} items {hash:016x}"));
        Ok(())
    }

    /// Continues at a position of the same stream.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub fn resume(&mut self, position: &Position) -> Result<(), ResumeError> {
        position.check(&self.stream())?;
        self.at = Arc::new(Mutex::new((position.epoch, position.sample)));
        Ok(())
    }

    /// Returns after how many samples it is: those that were handed out.
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

    /// Returns the samples from `start` to `end` alone, with a position of their own at the beginning of this epoch.
    pub fn slice(&self, start: usize, end: usize) -> Self {
        let (start, end) = (start.min(self.samples), end.min(self.samples));
        let (epoch, _) = *self.at.lock();
        let mut slice = self.clone();
        slice.first += start;
        slice.samples = end.saturating_sub(start);
        slice.at = Arc::new(Mutex::new((epoch, 0)));
        slice
    }

    /// The batches from the position on, until the end of epoch `end - 1`.
    fn spans(&self, end: Option<u64>) -> Spans {
        Spans {
            samples: self.samples,
            batch_size: self.batch_size,
            drop_last: self.drop_last,
            end,
            at: *self.at.lock(),
        }
    }
}

impl<I: Send + 'static> Samples<I> {
    /// Returns the batches from the position on, to the end of the last epoch.
    ///
    /// # Errors
    /// [`DataError::NoBatches`], [`DataError::NoThread`].
    pub fn batches(&self) -> Result<Batched<I>, DataError> {
        let spans = self.spans(self.epochs);
        if self.epochs.is_none() && !spans.has_batches() {
            return Err(DataError::NoBatches {
                samples: self.samples,
                batch_size: self.batch_size,
            });
        }
        self.load(spans)
    }

    /// Returns the rest of the epoch at the position, and its number: all of it, unless the position is one within it.
    ///
    /// # Errors
    /// [`DataError::NoThread`].
    pub fn epoch(&self) -> Result<(Batched<I>, u64), DataError> {
        let mut spans = self.spans(self.epochs);
        let number = spans.clone().next().map_or(spans.at.0, |span| span.epoch);
        let end = number.saturating_add(1);
        spans.end = Some(spans.end.map_or(end, |epochs| epochs.min(end)));
        Ok((self.load(spans)?, number))
    }

    fn load(&self, spans: Spans) -> Result<Batched<I>, DataError> {
        let source = Source {
            items: Arc::clone(&self.items),
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
        Ok(Batched {
            loaded: Some(loaded),
            at: Arc::clone(&self.at),
        })
    }
}

/// Batches of [`Samples`], whose position moves as they are made. After an error or a panic it has ended.
pub struct Batched<I> {
    /// `None` once it has ended.
    loaded: Option<Box<LoadedItems<I>>>,
    at: Arc<Mutex<StreamPoint>>,
}

impl<I> fmt::Debug for Batched<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched")
            .field("ended", &self.loaded.is_none())
            .finish_non_exhaustive()
    }
}

impl<I> Batched<I> {
    /// Returns the next batch, made of its items. The position moves once it is made.
    pub fn next_with<O>(
        &mut self,
        make: impl FnOnce(Vec<I>, &Rows) -> O,
    ) -> Option<Result<O, DataError>> {
        // Whatever panics, it has ended.
        let mut loaded = self.loaded.take()?;
        let Loaded { span, rows, items } = match loaded.next()? {
            Ok(next) => next,
            Err(error) => return Some(Err(error)),
        };
        let batch = make(items, &rows);
        *self.at.lock() = span.after;
        self.loaded = Some(loaded);
        Some(Ok(batch))
    }

    /// Returns true once it has ended.
    pub fn has_ended(&self) -> bool {
        self.loaded.is_none()
    }

    /// Returns how many samples of an epoch of so many were handed out.
    pub fn processed(&self, epoch: u64, samples: usize) -> usize {
        let (now, sample) = *self.at.lock();
        match now > epoch {
            true => samples,
            false => sample,
        }
    }
}
