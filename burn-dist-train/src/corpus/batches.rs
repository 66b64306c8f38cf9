use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Corpus;
use super::counts::Counts;
use super::error::CorpusError;
use super::position::Position;
use super::row::Row;
use super::stream::{Mark, Stream};

/// Which rows of a run a process makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Rows of a batch, in all processes.
    pub batch: usize,
    /// The batches that are made here, in order.
    pub held: Vec<Range<usize>>,
}

impl Part {
    /// All rows of a batch.
    pub fn all(batch: usize) -> Self {
        Self {
            batch,
            held: std::iter::once(0..batch).collect(),
        }
    }

    fn holds(&self, row: usize) -> bool {
        self.held.iter().any(|rows| rows.contains(&row))
    }
}

/// Batches of a corpus, made on a thread of its own, so many ahead.
///
/// Its position lies after the batches that were handed out, not after those that are made.
pub struct Batches {
    corpus: Arc<Corpus>,
    part: Part,
    ahead: usize,
    making: Making,
    mark: Mark,
    counts: Counts,
    waited: Duration,
}

/// The thread, and what it has made.
struct Making {
    /// The next batch, if it was looked at.
    next: Option<Made>,
    made: Option<Receiver<Result<Made, CorpusError>>>,
    thread: Option<JoinHandle<()>>,
}

struct Made {
    rows: Vec<Row>,
    mark: Mark,
    counts: Counts,
}

impl Batches {
    /// Begins with the first row; `ahead` batches are made before they are asked for.
    pub fn new(corpus: Arc<Corpus>, part: Part, ahead: usize) -> Self {
        let stream = Stream::new(Arc::clone(&corpus));
        let mark = stream.mark();
        Self {
            making: Making::start(stream, part.clone(), ahead),
            corpus,
            part,
            ahead,
            mark,
            counts: Counts::default(),
            waited: Duration::ZERO,
        }
    }

    /// Begins with the row that follows a position, whichever batches were before it.
    ///
    /// # Errors
    /// As [`Stream::resume`].
    pub fn resume(&mut self, position: &Position) -> Result<(), CorpusError> {
        let stream = Stream::resume(Arc::clone(&self.corpus), position)?;
        self.mark = stream.mark();
        self.counts = Counts::default();
        self.making = Making::start(stream, self.part.clone(), self.ahead);
        Ok(())
    }

    /// Waits at most so long for the next batch, which is not handed out; returns whether it is there. What keeps the
    /// first batch from being made is known so before work is spent.
    ///
    /// # Errors
    /// As [`Stream::next_row`].
    pub fn ready_within(&mut self, timeout: Duration) -> Result<bool, CorpusError> {
        self.making.wait(timeout)
    }

    /// The rows of the next batch that are made here.
    ///
    /// # Errors
    /// As [`Stream::next_row`].
    pub fn next_batch(&mut self) -> Result<Vec<Row>, CorpusError> {
        let start = Instant::now();
        let made = self.making.next();
        self.waited += start.elapsed();
        let made = made?;
        (self.mark, self.counts) = (made.mark, made.counts);
        Ok(made.rows)
    }

    /// Where the next batch begins, as far as this process knows.
    pub fn position(&self) -> Position {
        self.mark.position(&self.corpus)
    }

    /// How long [`next_batch`](Self::next_batch) has waited, over all calls.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the counts of what was read and made for the batches that were handed out.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the corpus that the rows are made of.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }
}

impl Making {
    fn start(stream: Stream, part: Part, ahead: usize) -> Self {
        let (to, made) = sync_channel(ahead.max(1));
        let here = to.clone();
        let work = move || make(stream, &part, &to);
        let thread = std::thread::Builder::new().name("batches".into());
        let thread = thread.spawn(work).inspect_err(|error| {
            let error = CorpusError::Thread {
                reason: error.to_string(),
            };
            // There is room for one.
            let _ = here.try_send(Err(error));
        });
        Self {
            next: None,
            made: Some(made),
            thread: thread.ok(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, CorpusError> {
        let received = match (&self.next, &self.made) {
            (Some(_), _) => return Ok(true),
            (None, Some(made)) => made.recv_timeout(timeout),
            _ => Err(RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Ok(made)) => {
                self.next = Some(made);
                Ok(true)
            }
            Ok(Err(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn next(&mut self) -> Result<Made, CorpusError> {
        if let Some(next) = self.next.take() {
            return Ok(next);
        }
        match self.made.as_ref().map(Receiver::recv) {
            Some(Ok(made)) => made,
            _ => Err(self.ended()),
        }
    }

    /// Nothing is sent after an error, or if the tokenizer panicked.
    fn ended(&mut self) -> CorpusError {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        CorpusError::Ended
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // The thread ends when it has something to hand over.
        self.made = None;
        if let Some(thread) = self.thread.take() {
            // Whoever drops this asks for no batch: a panic of the thread is of no interest.
            let _ = thread.join();
        }
    }
}

/// Makes batches until nobody wants them, or one cannot be made.
fn make(mut stream: Stream, part: &Part, to: &SyncSender<Result<Made, CorpusError>>) {
    loop {
        let made = batch(&mut stream, part);
        let is_last = made.is_err();
        if to.send(made).is_err() || is_last {
            return;
        }
    }
}

fn batch(stream: &mut Stream, part: &Part) -> Result<Made, CorpusError> {
    let mut rows = Vec::new();
    for row in 0..part.batch {
        if part.holds(row) {
            rows.push(stream.next_row()?.ok_or(CorpusError::Ended)?);
        } else {
            stream.skip_row();
        }
    }
    Ok(Made {
        rows,
        mark: stream.mark(),
        counts: stream.counts(),
    })
}
