//! Items of batches: loaded where they are asked for, or ahead by threads.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::error::{DataError, ItemError};
use super::order::Order;
use super::spans::{Span, Spans};
use crate::layout::Rows;

/// The item of a data set at an index; `None` if it has none there.
pub(super) type GetItem<I> = dyn Fn(usize) -> Result<Option<I>, ItemError> + Send + Sync;

/// Which rows of a batch of so many are loaded.
pub(super) type ChooseRows = dyn Fn(usize) -> Rows + Send + Sync;

/// Batches that a worker has loaded and nobody has asked for; it loads one more meanwhile.
const WAITING_MAX: usize = 1;

/// The data set that items come from.
pub(super) struct Source<I> {
    pub(super) items: Arc<GetItem<I>>,
    /// The item that is sample 0.
    pub(super) first: usize,
    pub(super) samples: usize,
    pub(super) seed: Option<u64>,
    pub(super) rows: Arc<ChooseRows>,
}

/// A batch before it is made.
pub(super) struct Loaded<I> {
    pub(super) span: Span,
    /// The rows of the batch that the items are.
    pub(super) rows: Rows,
    /// The items that the batch is made of.
    pub(super) items: Vec<I>,
}

impl<I> Source<I> {
    /// Loads the items of a batch; fewer once `stop` is set.
    fn load(&self, span: Span, stop: &AtomicBool) -> Result<Loaded<I>, DataError> {
        let rows = (self.rows)(span.len);
        assert_eq!(
            rows.total(),
            span.len,
            "rows are chosen of those that there are"
        );
        let order = self
            .seed
            .map(|seed| Order::new(self.samples, seed, span.epoch));
        let sample = |place| order.as_ref().map_or(place, |order| order.at(place));
        let running = rows.iter().take_while(|_| !stop.load(Ordering::Relaxed));
        let items = running.map(|row| self.item(sample(span.start + row)));
        let items = items.collect::<Result<_, _>>()?;
        Ok(Loaded { span, rows, items })
    }

    /// Loads a sample by its index before shuffling.
    fn item(&self, sample: usize) -> Result<I, DataError> {
        item(self.items.as_ref(), self.first + sample)
    }
}

/// Reads the item of a data set at an index below its length.
pub(super) fn item<I>(items: &GetItem<I>, index: usize) -> Result<I, DataError> {
    match items(index) {
        Ok(Some(item)) => Ok(item),
        Ok(None) => Err(DataError::MissingItem { index }),
        Err(source) => Err(DataError::Item { index, source }),
    }
}

/// Batches in order, each loaded when it is asked for.
pub(super) fn load_here<I>(
    source: Source<I>,
    spans: Spans,
) -> impl Iterator<Item = Result<Loaded<I>, DataError>> {
    let stop = AtomicBool::new(false);
    spans.map(move |span| source.load(span, &stop))
}

/// Batches in order, loaded ahead by threads: of n workers, worker k loads batches k, k + n, k + 2n and so on.
pub(super) struct Workers<I> {
    /// One queue per worker.
    queues: Vec<Receiver<Result<Loaded<I>, DataError>>>,
    threads: Vec<JoinHandle<()>>,
    /// Whose batch is next.
    turn: usize,
    stop: Arc<AtomicBool>,
}

impl<I: Send + 'static> Workers<I> {
    /// Starts so many threads, at least one.
    pub(super) fn start(source: Source<I>, spans: &Spans, num_workers: usize) -> io::Result<Self> {
        let mut workers = Self {
            queues: Vec::new(),
            threads: Vec::new(),
            turn: 0,
            stop: Arc::default(),
        };
        let source = Arc::new(source);
        for worker in 0..num_workers {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            let (source, stop) = (Arc::clone(&source), Arc::clone(&workers.stop));
            let spans = spans.clone().skip(worker).step_by(num_workers);
            let thread = Builder::new().name(format!("data-{worker}"));
            workers.queues.push(receiver);
            workers.threads.push(thread.spawn(move || {
                work(&source, spans, &stop, &sender);
            })?);
        }
        Ok(workers)
    }
}

/// Loads batches until there are no more, one fails, or nobody wants them.
fn work<I>(
    source: &Source<I>,
    spans: impl Iterator<Item = Span>,
    stop: &AtomicBool,
    sender: &SyncSender<Result<Loaded<I>, DataError>>,
) {
    for span in spans {
        let loaded = source.load(span, stop);
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
    }
}

impl<I> Iterator for Workers<I> {
    type Item = Result<Loaded<I>, DataError>;

    /// Waits for the next batch. Not to be called again after `None` or a panic.
    ///
    /// # Panics
    /// If the worker has, with what it panicked with.
    fn next(&mut self) -> Option<Self::Item> {
        match self.queues[self.turn].recv() {
            Ok(loaded) => {
                self.turn = (self.turn + 1) % self.queues.len();
                Some(loaded)
            }
            // The worker has ended: there are no more batches, or it has panicked.
            Err(_) => {
                let ended = self.threads.swap_remove(self.turn).join();
                ended.err().map(|panic| resume_unwind(panic))
            }
        }
    }
}

impl<I> Drop for Workers<I> {
    /// Ends the threads: waits for the items that are being loaded, one in each.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // Nobody asked for the batch of a worker that has panicked here.
            thread.join().ok();
        }
    }
}
