use std::sync::Arc;

use super::Corpus;
use super::counts::Counts;
use super::document::Encode;
use super::error::CorpusError;
use super::lane::Lane;
use super::policy::Policy;
use super::read;
use super::row::Row;
use super::source::Source;

/// Rows of held-out documents: source by source, in order, each document once. The same on any mesh.
///
/// Every process that goes through it reads all of it.
pub struct Once {
    corpus: Arc<Corpus>,
    rows: u64,
    counts: Counts,
}

impl Once {
    /// Goes through all documents, to count their rows. Weights and the seed of the policy play no part.
    ///
    /// # Errors
    /// If documents cannot be read, understood or tokenised, or a source has none that fits.
    pub fn open(
        sources: Vec<Source>,
        policy: Policy,
        encode: impl Encode + 'static,
    ) -> Result<Self, CorpusError> {
        let policy = Policy {
            lanes: Some(1),
            ..policy
        };
        let sources = sources.into_iter().map(|source| source.weight(1.0));
        let mut corpus = Corpus::open(sources.collect(), policy, encode)?;
        corpus.once = true;
        let corpus = Arc::new(corpus);
        let mut pass = Pass::new(Arc::clone(&corpus));
        let mut rows = 0;
        while pass.next_row()?.is_some() {
            rows += 1;
        }
        let counts = pass.counts;
        Ok(Self {
            corpus,
            rows,
            counts,
        })
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> u64 {
        self.rows
    }

    /// How many batches they make. The last may have fewer rows.
    ///
    /// # Errors
    /// [`CorpusError::FewerThanBatch`] if there is not even one.
    pub fn num_batches(&self, batch: usize) -> Result<u64, CorpusError> {
        if self.rows < batch as u64 {
            let names = self.corpus.sources.iter().map(Source::name);
            return Err(CorpusError::FewerThanBatch {
                names: names.collect::<Vec<_>>().join(", "),
                rows: self.rows,
                seq: self.corpus.policy.seq,
                batch,
            });
        }
        Ok(self.rows.div_ceil(batch as u64))
    }

    /// Returns the counts of what was read and made.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Begins to go through the rows.
    pub fn pass(&self) -> Pass {
        Pass::new(Arc::clone(&self.corpus))
    }
}

/// One time through.
pub struct Pass {
    corpus: Arc<Corpus>,
    source: usize,
    row: u64,
    lane: Lane,
    counts: Counts,
    reader: Option<Box<dyn read::Reader>>,
}

impl Pass {
    fn new(corpus: Arc<Corpus>) -> Self {
        Self {
            lane: Lane::new(&corpus, 0, 0),
            corpus,
            source: 0,
            row: 0,
            counts: Counts::default(),
            reader: None,
        }
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// If a file cannot be read any more, or its documents not be tokenised.
    pub fn next_row(&mut self) -> Result<Option<Row>, CorpusError> {
        while let Some(source) = self.corpus.sources.get(self.source) {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                none => none.insert(read::open(source, self.corpus.policy.document_bytes_max)?),
            };
            let row = self
                .lane
                .row(self.row, &self.corpus, reader.as_mut(), &mut self.counts)?;
            if row.is_some() {
                self.row += 1;
                return Ok(row);
            }
            (self.source, self.row, self.reader) = (self.source + 1, 0, None);
            if self.source < self.corpus.sources.len() {
                self.lane = Lane::new(&self.corpus, 0, self.source);
            }
        }
        Ok(None)
    }
}
