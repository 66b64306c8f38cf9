//! Batches on the host, and where they come from.

use std::ops::Range;

use anyhow::bail;
use burn_core::tensor::{Device, Element, Int, Tensor, TensorData};
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

/// Values that rows of a batch are made of: `f32`, `i64`.
pub trait Value: Element {
    /// A tensor of them.
    type Tensor<const D: usize>;

    /// Returns them on a device.
    fn on<const D: usize>(data: TensorData, device: &Device) -> Self::Tensor<D>;
}

impl Value for f32 {
    type Tensor<const D: usize> = Tensor<D>;

    fn on<const D: usize>(data: TensorData, device: &Device) -> Tensor<D> {
        Tensor::from_data(data, device)
    }
}

impl Value for i64 {
    type Tensor<const D: usize> = Tensor<D, Int>;

    fn on<const D: usize>(data: TensorData, device: &Device) -> Tensor<D, Int> {
        Tensor::from_data(data, device)
    }
}

/// A column of a batch, a tensor of `D` dims whose first are the rows: values of rows, as many of each, one row after
/// the other. Every process has all of them.
///
/// A pair of columns is a batch too, and so are pairs of these.
#[derive(Debug, Clone, PartialEq)]
pub struct Column<E, const D: usize> {
    /// The values.
    pub values: Vec<E>,
    /// Rows, and the shape of each.
    shape: [usize; D],
    /// How much of what a speed counts a row has.
    each: usize,
}

impl<E: Value, const D: usize> Column<E, D> {
    /// A column of rows that have the shape `row`: of `D - 1` dims.
    ///
    /// # Panics
    /// If the values are no whole rows.
    pub fn new(values: Vec<E>, row: &[usize]) -> Self {
        let of_row: usize = row.iter().product();
        assert!(
            row.len() + 1 == D && values.len().is_multiple_of(of_row),
            "{} values are no rows of {row:?} in {D} dims",
            values.len()
        );
        let mut shape = [values.len() / of_row; D];
        shape[1..].copy_from_slice(row);
        let each = 1;
        Self {
            values,
            shape,
            each,
        }
    }

    /// Counts so much of what a speed counts for each row: its tokens. Without, rows are counted.
    pub fn counting(self, each: usize) -> Self {
        Self { each, ..self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Returns it on a device.
    pub fn on(&self, device: &Device) -> E::Tensor<D> {
        E::on(TensorData::new(self.values.clone(), self.shape), device)
    }
}

impl<E: Value, const D: usize> Batch for Column<E, D> {
    type Tensors = E::Tensor<D>;

    fn split(&self, parts: usize) -> Vec<Self> {
        let rows = self.rows();
        assert!(
            rows.is_multiple_of(parts),
            "{parts} microbatches do not divide {rows} rows"
        );
        let mut shape = self.shape;
        shape[0] = rows / parts;
        let of_part = shape.iter().product::<usize>().max(1);
        let part = |values: &[E]| Self {
            values: values.to_vec(),
            shape,
            each: self.each,
        };
        self.values.chunks(of_part).map(part).collect()
    }

    fn enter(&self, device: &Device, _by_process: bool) -> Result<Self::Tensors, DTensorError> {
        // Every process makes all rows: they need not be joined.
        Ok(self.on(device))
    }

    fn count(&self) -> usize {
        self.rows() * self.each
    }
}

/// Two batches of the same rows, side by side; the first one is counted.
impl<A: Batch, B: Batch> Batch for (A, B) {
    type Tensors = (A::Tensors, B::Tensors);

    fn split(&self, parts: usize) -> Vec<Self> {
        let both = self.0.split(parts).into_iter().zip(self.1.split(parts));
        both.collect()
    }

    fn enter(&self, device: &Device, by_process: bool) -> Result<Self::Tensors, DTensorError> {
        Ok((
            self.0.enter(device, by_process)?,
            self.1.enter(device, by_process)?,
        ))
    }

    fn count(&self) -> usize {
        self.0.count()
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

    /// Returns what became of the data in this process so far, for people, if there is something to say.
    fn summary(&self) -> Option<String> {
        None
    }
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
    fn columns_are_cut_and_counted_by_rows() {
        let pixels = Column::<f32, 3>::new((0..24).map(|x| x as f32).collect(), &[2, 3]);
        let labels = Column::<i64, 1>::new(vec![7, 8, 9, 10], &[]);
        let both = (pixels.counting(5), labels);
        assert_eq!(both.count(), 20);
        let parts = both.split(2);
        assert_eq!(parts.len(), 2);
        let (pixels, labels) = parts[1].enter(&Device::flex(), false).unwrap();
        assert_eq!((pixels.dims(), labels.dims()), ([2, 2, 3], [2]));
        let pixels: Vec<f32> = pixels.into_data().iter::<f32>().collect();
        assert_eq!(pixels, (12..24).map(|x| x as f32).collect::<Vec<_>>());
        assert_eq!(
            labels.into_data().iter::<i64>().collect::<Vec<_>>(),
            [9, 10]
        );
    }

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
