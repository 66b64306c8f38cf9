use std::sync::Arc;

use super::Corpus;
use super::counts::Counts;
use super::error::CorpusError;
use super::lane::{Lane, Start};
use super::mixture::Mixture;
use super::position::Position;
use super::read::{self, Reader};
use super::row::Row;

/// The rows of a corpus, from the first or a [`Position`] on. Of those that are skipped nothing is read.
pub struct Stream {
    corpus: Arc<Corpus>,
    mixture: Mixture,
    /// One for each source that has been read.
    readers: Vec<Option<Box<dyn Reader>>>,
    /// `[lane * sources + source]`: those that have been read.
    lanes: Vec<Option<Lane>>,
    counts: Counts,
}

/// Where a stream is, cheap to make.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    rows: u64,
    before: Vec<u64>,
    taken: Vec<u64>,
    blocks: Vec<Option<Arc<Start>>>,
}

impl Mark {
    pub(super) fn position(&self, corpus: &Corpus) -> Position {
        let own = |start: &Option<Arc<Start>>| start.as_deref().cloned();
        Position {
            identity: corpus.identity.clone(),
            rows: self.rows,
            before: self.before.clone(),
            taken: self.taken.clone(),
            blocks: self.blocks.iter().map(own).collect(),
        }
    }
}

impl Stream {
    /// Begins with the first row.
    pub fn new(corpus: Arc<Corpus>) -> Self {
        let num_sources = corpus.sources.len();
        let seed = corpus.policy.seed;
        Self {
            mixture: Mixture::new(corpus.shares.clone(), corpus.lanes, seed),
            readers: (0..num_sources).map(|_| None).collect(),
            lanes: (0..corpus.lanes * num_sources).map(|_| None).collect(),
            corpus,
            counts: Counts::default(),
        }
    }

    /// Begins with the row that follows a position.
    ///
    /// # Errors
    /// [`CorpusError::OtherRows`] if it is one of other data, or of a policy by which rows are others;
    /// [`CorpusError::Position`].
    pub fn resume(corpus: Arc<Corpus>, position: &Position) -> Result<Self, CorpusError> {
        let num_sources = corpus.sources.len();
        position.check(&corpus.identity, corpus.lanes, num_sources)?;
        let mut stream = Self::new(corpus);
        let (before, taken) = (&position.before, &position.taken);
        stream.mixture.resume(position.rows, before, taken);
        for (at, start) in position.blocks.iter().enumerate() {
            let (lane, source) = (at / num_sources, at % num_sources);
            let start = start.clone();
            stream.lanes[at] = start.map(|start| Lane::at(lane, source, start));
        }
        Ok(stream)
    }

    /// Makes the next row. `None` at the end of a corpus that is gone through once.
    ///
    /// # Errors
    /// If the documents cannot be read, understood or tokenised. The stream is of no use then.
    pub fn next_row(&mut self) -> Result<Option<Row>, CorpusError> {
        let from = self.mixture.next();
        let at = from.lane * self.corpus.sources.len() + from.source;
        let lane = &mut self.lanes[at];
        let lane = lane.get_or_insert_with(|| Lane::new(&self.corpus, from.lane, from.source));
        let reader = &mut self.readers[from.source];
        let reader = match reader {
            Some(reader) => reader,
            None => reader.insert(read::open(
                &self.corpus.sources[from.source],
                self.corpus.policy.document_bytes_max,
            )?),
        };
        lane.row(from.nth, &self.corpus, reader.as_mut(), &mut self.counts)
    }

    /// Leaves a row to another process.
    pub fn skip_row(&mut self) {
        self.mixture.next();
    }

    /// Where the next row begins, as far as this process knows.
    pub fn position(&self) -> Position {
        self.mark().position(&self.corpus)
    }

    pub(super) fn mark(&self) -> Mark {
        let start = |lane: &Option<Lane>| lane.as_ref().map(|lane| Arc::clone(lane.start()));
        Mark {
            rows: self.mixture.rows(),
            before: self.mixture.before().to_vec(),
            taken: self.mixture.taken().to_vec(),
            blocks: self.lanes.iter().map(start).collect(),
        }
    }

    /// Returns the counts of what was read and made.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
