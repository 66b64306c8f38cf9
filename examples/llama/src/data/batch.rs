//! Batches of token ids on the host, and as tensors.

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use thiserror::Error;

use super::rng::Rng;
use super::tokenizer::Encoded;

/// One step's data: `batch` rows of `seq` positions, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of rows.
    pub batch: usize,
    /// Positions of a row.
    pub seq: usize,
    /// The ids given to the model.
    pub tokens: Vec<i32>,
    /// The id that follows each of them.
    pub targets: Vec<i32>,
    /// How much each position counts; sums to 1. `None`: all alike.
    pub weights: Option<Vec<f32>>,
}

impl Batch {
    /// `[batch, seq]`: the ids given to the model.
    pub fn tokens<B: Backend>(&self, device: &B::Device) -> Tensor<B, 2, Int> {
        Tensor::from_data(
            TensorData::new(self.tokens.clone(), [self.batch, self.seq]),
            device,
        )
    }

    /// `[batch, seq]`: the ids to predict.
    pub fn targets<B: Backend>(&self, device: &B::Device) -> Tensor<B, 2, Int> {
        Tensor::from_data(
            TensorData::new(self.targets.clone(), [self.batch, self.seq]),
            device,
        )
    }

    /// `[batch, seq]`: how much each position counts.
    pub fn weights<B: Backend>(&self, device: &B::Device) -> Option<Tensor<B, 2>> {
        let weights = self.weights.clone()?;
        Some(Tensor::from_data(
            TensorData::new(weights, [self.batch, self.seq]),
            device,
        ))
    }
}

impl Batch {
    /// Cuts the rows into `parts` batches of as many rows each. Weights stay as they are, so that those of all parts sum to 1.
    ///
    /// # Panics
    /// If `parts` does not divide the number of rows.
    pub fn split(&self, parts: usize) -> Vec<Batch> {
        assert!(
            self.batch.is_multiple_of(parts),
            "{parts} microbatches do not divide {} rows",
            self.batch
        );
        let batch = self.batch / parts;
        let part = |index: usize| {
            let range = index * batch * self.seq..(index + 1) * batch * self.seq;
            Batch {
                batch,
                seq: self.seq,
                tokens: self.tokens[range.clone()].to_vec(),
                targets: self.targets[range.clone()].to_vec(),
                weights: self.weights.as_ref().map(|all| all[range].to_vec()),
            }
        };
        (0..parts).map(part).collect()
    }
}

/// Where batches come from.
pub trait BatchSource {
    /// The next step's batch.
    fn next_batch(&mut self) -> Batch;
}

/// Uniformly random tokens: the data of measurements.
#[derive(Debug, Clone)]
pub struct RandomTokens {
    /// Number of rows.
    pub batch: usize,
    /// Positions of a row.
    pub seq: usize,
    /// Ids lie below this.
    pub vocab: usize,
    /// Where the ids come from.
    pub rng: Rng,
}

impl BatchSource for RandomTokens {
    fn next_batch(&mut self) -> Batch {
        let mut tokens = Vec::with_capacity(self.batch * self.seq);
        let mut targets = Vec::with_capacity(self.batch * self.seq);
        for _ in 0..self.batch {
            let row: Vec<i32> = (0..=self.seq)
                .map(|_| self.rng.below(self.vocab) as i32)
                .collect();
            tokens.extend(&row[..self.seq]);
            targets.extend(&row[1..]);
        }
        Batch {
            batch: self.batch,
            seq: self.seq,
            tokens,
            targets,
            weights: None,
        }
    }
}

/// Documents of which no batch can be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PackError {
    /// No document fits.
    #[error(
        "none of {count} examples fits into {seq} positions (the shortest has {shortest} tokens): raise --seq"
    )]
    AllTooLong {
        /// How many documents there are.
        count: usize,
        /// Positions of a row.
        seq: usize,
        /// Tokens of the shortest.
        shortest: usize,
    },
}

/// Whole documents packed into rows, in a new random order each time through.
#[derive(Debug, Clone)]
pub struct Packed {
    documents: Vec<Encoded>,
    order: Vec<usize>,
    next: usize,
    batch: usize,
    seq: usize,
    pad: i32,
    rng: Rng,
}

impl Packed {
    /// Takes the documents that fit into a row; the second value is the number of those that do not.
    ///
    /// # Errors
    /// [`PackError::AllTooLong`].
    pub fn new(
        documents: Vec<Encoded>,
        (batch, seq): (usize, usize),
        pad: u32,
        rng: Rng,
    ) -> Result<(Self, usize), PackError> {
        let count = documents.len();
        let shortest = documents
            .iter()
            .map(|document| document.ids.len())
            .min()
            .unwrap_or(0);
        // The last token is only predicted: a row of `seq` positions holds `seq + 1` tokens.
        let documents: Vec<Encoded> = documents
            .into_iter()
            .filter(|document| document.ids.len() <= seq + 1)
            .collect();
        if documents.is_empty() {
            return Err(PackError::AllTooLong {
                count,
                seq,
                shortest,
            });
        }
        let left_out = count - documents.len();
        let order = (0..documents.len()).collect();
        let next = documents.len();
        let mut packed = Self {
            documents,
            order,
            next,
            batch,
            seq,
            pad: pad as i32,
            rng,
        };
        packed.turn_over();
        Ok((packed, left_out))
    }

    fn turn_over(&mut self) {
        if self.next == self.order.len() {
            self.rng.shuffle(&mut self.order);
            self.next = 0;
        }
    }

    /// Fills one row: ids, and for each whether it is to be learnt.
    fn row(&mut self) -> (Vec<i32>, Vec<bool>) {
        let mut ids = Vec::with_capacity(self.seq + 1);
        let mut learn = Vec::with_capacity(self.seq + 1);
        loop {
            let document = &self.documents[self.order[self.next]];
            if ids.len() + document.ids.len() > self.seq + 1 {
                break;
            }
            ids.extend(document.ids.iter().map(|id| *id as i32));
            learn.extend((0..document.ids.len()).map(|position| position >= document.answer_from));
            self.next += 1;
            self.turn_over();
        }
        ids.resize(self.seq + 1, self.pad);
        learn.resize(self.seq + 1, false);
        (ids, learn)
    }
}

impl BatchSource for Packed {
    fn next_batch(&mut self) -> Batch {
        let mut tokens = Vec::with_capacity(self.batch * self.seq);
        let mut targets = Vec::with_capacity(self.batch * self.seq);
        let mut weights = Vec::with_capacity(self.batch * self.seq);
        for _ in 0..self.batch {
            let (ids, learn) = self.row();
            tokens.extend(&ids[..self.seq]);
            targets.extend(&ids[1..]);
            weights.extend(learn[1..].iter().map(|learn| f32::from(u8::from(*learn))));
        }
        let total: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        Batch {
            batch: self.batch,
            seq: self.seq,
            tokens,
            targets,
            weights: Some(weights),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(ids: &[u32], answer_from: usize) -> Encoded {
        Encoded {
            ids: ids.to_vec(),
            answer_from,
        }
    }

    #[test]
    fn rows_hold_whole_documents_and_only_answers_count() {
        let documents = vec![document(&[1, 2, 3], 2), document(&[4, 5, 6, 7], 2)];
        let (mut packed, left_out) = Packed::new(documents, (2, 7), 0, Rng::new(0, 0)).unwrap();
        assert_eq!(left_out, 0);
        let batch = packed.next_batch();
        let weights = batch.weights.as_ref().unwrap();
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        for (target, weight) in batch.targets.iter().zip(weights) {
            assert_eq!([3, 6, 7].contains(target), *weight > 0.0, "target {target}");
        }
        for row in 0..2 {
            assert_eq!(
                batch.tokens[row * 7 + 1..(row + 1) * 7],
                batch.targets[row * 7..(row + 1) * 7 - 1]
            );
        }
    }

    #[test]
    fn documents_that_do_not_fit_are_counted_or_refused() {
        let long = document(&[1; 9], 0);
        let (_, left_out) = Packed::new(
            vec![long.clone(), document(&[1; 8], 0)],
            (1, 7),
            0,
            Rng::new(0, 0),
        )
        .unwrap();
        assert_eq!(left_out, 1);
        let error = Packed::new(vec![long], (1, 7), 0, Rng::new(0, 0)).unwrap_err();
        assert_eq!(
            error,
            PackError::AllTooLong {
                count: 1,
                seq: 7,
                shortest: 9
            }
        );
    }

    #[test]
    fn random_tokens_are_shifted_by_one_and_depend_on_the_seed() {
        let source = |seed| RandomTokens {
            batch: 2,
            seq: 5,
            vocab: 50,
            rng: Rng::new(seed, 0),
        };
        let batch = source(1).next_batch();
        assert_eq!(batch.tokens[1..5], batch.targets[..4]);
        assert_eq!(batch, source(1).next_batch());
        assert_ne!(batch, source(2).next_batch());
    }
}
