//! Batches on the host, and where they come from.

use std::ops::Range;

use anyhow::bail;
use burn_core::tensor::{Device, Element, TensorData};
use serde::{Deserialize, Serialize};

use crate::data::Stream;
use crate::parallel::DTensorError;
use crate::train::corpus;

/// The rows of a step on the host, of which this process has some.
pub trait Batch: Sized {
    /// The rows on a device.
    type Tensors;

    /// Cuts the rows into `parts` batches of as many rows each.
    ///
    /// # Panics
    /// If `parts` does not divide the number of rows.
    fn split(&self, parts: usize) -> Vec<Self>;

    /// Returns the rows on a mesh; `by_process` if every process gives its rows, which all of them know, whichever
    /// these are.
    ///
    /// # Errors
    /// If the rows here are not those that the mesh expects.
    fn enter(&self, device: &Device, by_process: bool) -> Result<Self::Tensors, DTensorError>;

    /// Returns how much there is in all rows, here and in other processes, of what a speed counts: tokens, or images.
    fn count(&self) -> usize;
}

/// A column of a batch: values of rows, as many of each row, one row after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Column<E> {
    /// The values.
    pub values: Vec<E>,
    each: usize,
}

impl<E: Element> Column<E> {
    /// A column of `each` values a row.
    ///
    /// # Panics
    /// If that does not divide the number of values.
    pub fn new(values: Vec<E>, each: usize) -> Self {
        assert!(
            values.len().is_multiple_of(each),
            "{} values are no rows of {each}",
            values.len()
        );
        Self { values, each }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.each
    }

    /// Cuts it into columns of as many rows each.
    ///
    /// # Panics
    /// If there are no `parts` of as many rows.
    pub fn split(&self, parts: usize) -> Vec<Self> {
        let rows = self.rows();
        assert!(
            rows.is_multiple_of(parts),
            "{parts} microbatches do not divide {rows} rows"
        );
        let each = self.each;
        let parts = self.values.chunks((rows / parts * each).max(1));
        let part = |values: &[E]| Self::new(values.to_vec(), each);
        parts.map(part).collect()
    }

    /// Returns it as data in which each row has the shape `row`.
    pub fn data(&self, row: &[usize]) -> TensorData {
        let shape: Vec<usize> = [self.rows()].iter().chain(row).copied().collect();
        TensorData::new(self.values.clone(), shape)
    }
}

/// How far a source of batches is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Position {
    /// In samples that each have a number.
    Samples(crate::data::Position),
    /// In rows made of documents.
    Rows(corpus::Position),
}

/// Where batches come from.
pub trait BatchSource {
    /// The rows of a step.
    type Batch;

    /// The next step's batch.
    ///
    /// # Communication
    /// Processes may tell each other what is in their rows: all of them ask.
    /// # Errors
    /// If documents can no longer be read or encoded.
    fn next_batch(&mut self) -> anyhow::Result<Self::Batch>;

    /// Where the next batch begins. It does not depend on how many rows a batch has, nor on which of them are here.
    ///
    /// # Communication
    /// Processes may have to tell each other where they are: all of them ask.
    /// # Errors
    /// If another process is late or has ended.
    fn position(&self) -> anyhow::Result<Position>;

    /// Goes on at a position, which may be one of another run.
    ///
    /// # Errors
    /// If that read other data, in another order, or in rows of other lengths.
    fn resume(&mut self, position: &Position) -> anyhow::Result<()>;
}

/// The position in samples of a source that has these.
///
/// # Errors
/// If it is one in documents, or in other samples.
pub fn in_samples<'a>(
    position: &'a Position,
    stream: &Stream,
) -> anyhow::Result<&'a crate::data::Position> {
    match position {
        Position::Samples(position) => {
            if position.stream != *stream {
                bail!(
                    "it was begun with {}, and goes on with {}",
                    stream_text(&position.stream),
                    stream_text(stream)
                );
            }
            position.check(stream)?;
            Ok(position)
        }
        Position::Rows(_) => bail!(
            "it was begun with texts (--data), and goes on with {}",
            stream_text(stream)
        ),
    }
}

/// Returns the name of samples, for people.
pub fn stream_text(stream: &Stream) -> String {
    let fingerprint = stream.fingerprint.clone();
    fingerprint.unwrap_or_else(|| stream.to_string())
}

/// Batches of samples that are made from their numbers, one after the other and without end.
pub struct Numbered<F> {
    make: F,
    rows: usize,
    next: usize,
    name: String,
}

impl<B, F: FnMut(Range<usize>) -> B> Numbered<F> {
    /// Begins with the batch of samples `0..rows`. A run that goes on has data of the same name.
    pub fn new(name: &str, rows: usize, make: F) -> Self {
        Self {
            make,
            rows,
            next: 0,
            name: name.to_string(),
        }
    }

    /// Begins with the sample of this number.
    pub fn starting_at(self, first: usize) -> Self {
        Self {
            next: first,
            ..self
        }
    }

    fn stream(&self) -> Stream {
        Stream {
            samples: usize::MAX,
            seed: None,
            fingerprint: Some(self.name.clone()),
        }
    }
}

impl<B, F: FnMut(Range<usize>) -> B> BatchSource for Numbered<F> {
    type Batch = B;

    fn next_batch(&mut self) -> anyhow::Result<B> {
        let first = self.next;
        self.next += self.rows;
        Ok((self.make)(first..self.next))
    }

    fn position(&self) -> anyhow::Result<Position> {
        Ok(Position::Samples(crate::data::Position {
            epoch: 0,
            sample: self.next,
            stream: self.stream(),
        }))
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        self.next = in_samples(position, &self.stream())?.sample;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_samples_go_on_where_another_run_was_left() {
        let mut before = Numbered::new("a", 3, |numbers| numbers);
        assert_eq!(before.next_batch().unwrap(), 0..3);
        let position = before.position().unwrap();
        let mut after = Numbered::new("a", 2, |numbers| numbers);
        after.next_batch().unwrap();
        after.resume(&position).unwrap();
        assert_eq!(after.next_batch().unwrap(), 3..5);
        let mut other = Numbered::new("b", 2, |numbers| numbers);
        let error = other.resume(&position).unwrap_err().to_string();
        assert_eq!(error, "it was begun with a, and goes on with b");
    }
}
