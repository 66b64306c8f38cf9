//! Batches of held-out documents: the same rows each time, in order.

use crate::data::Stream;
use crate::train::corpus::{CorpusError, Once, Pass, Row};
use crate::trainer::batch::{BatchSource, Position, in_samples};
use crate::trainer::processes::Processes;
use crate::trainer::report::count_text;
use crate::trainer::voice::say;

use super::batch::Batch;
use super::texts::{Shape, batch};

/// Rows of held-out documents, batch by batch, and over again. What the last batch lacks are rows of which nothing is
/// learnt. Every process reads all documents.
pub struct HeldOut<'a> {
    once: Once,
    batches: usize,
    pass: Pass,
    /// Times through before this one.
    epoch: u64,
    /// Rows of this one that have been handed out.
    row: usize,
    pad: u32,
    shape: Shape,
    processes: &'a Processes,
}

impl<'a> HeldOut<'a> {
    /// Begins with the first row; positions without a document have the id `pad`.
    ///
    /// # Errors
    /// If there are fewer rows than in a batch.
    pub fn new(
        once: Once,
        pad: u32,
        shape: Shape,
        processes: &'a Processes,
    ) -> Result<Self, CorpusError> {
        Ok(Self {
            batches: once.num_batches(shape.held.total())? as usize,
            pass: once.pass(),
            once,
            epoch: 0,
            row: 0,
            pad,
            shape,
            processes,
        })
    }

    /// Says how much there is.
    pub fn tell(&self) {
        say!(
            "held out: {} documents in {} batches",
            count_text(self.once.counts().documents),
            self.batches
        );
    }

    /// How many batches go through all rows.
    pub fn num_batches(&self) -> usize {
        self.batches
    }

    fn stream(&self) -> Stream {
        Stream {
            samples: self.once.num_rows() as usize,
            seed: None,
            fingerprint: Some(format!("held-out rows of {}", self.shape.seq)),
        }
    }

    /// The rows of the next batch that are here.
    fn rows(&mut self) -> Result<Vec<Row>, CorpusError> {
        let mut rows = Vec::with_capacity(self.shape.held.len());
        for number in 0..self.shape.held.total() {
            let row = self.pass.next_row()?;
            if self.shape.held.contains(number) {
                rows.push(row.unwrap_or_else(|| Row::empty(self.shape.seq, self.pad)));
            }
        }
        self.row += self.shape.held.total();
        if self.row >= self.once.num_rows() as usize {
            (self.pass, self.epoch, self.row) = (self.once.pass(), self.epoch + 1, 0);
        }
        Ok(rows)
    }
}

impl BatchSource for HeldOut<'_> {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        let rows = self.rows();
        batch(rows, &self.shape, self.processes)
    }

    fn position(&self) -> anyhow::Result<Position> {
        Ok(Position::Samples(crate::data::Position {
            epoch: self.epoch,
            sample: self.row,
            stream: self.stream(),
        }))
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        let position = in_samples(position, &self.stream())?;
        self.pass = self.once.pass();
        (self.epoch, self.row) = (position.epoch, position.sample);
        for _ in 0..self.row {
            self.pass.next_row()?;
        }
        Ok(())
    }
}
