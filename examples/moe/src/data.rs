//! The task: ciphers. A sequence is the name of a cipher, a letter, and then of each letter what the cipher makes of it.
//!
//! There are as many ciphers as tables of all letters, drawn once. What comes next is known from the second token on, to
//! a model that has learned the tables: experts, with as much to keep as there are of them.

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::data::Stream;
use burn_dist::parallel::DTensorError;
use burn_dist::trainer::batch::{self, BatchSource, Position, in_samples};

/// Letters of the alphabet.
pub const LETTERS: usize = 56;
/// Ciphers; their names are tokens too.
pub const CIPHERS: usize = 8;
/// Number of token ids.
pub const VOCAB: usize = LETTERS + CIPHERS;

/// Random numbers from a seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 16).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Batches without an end.
#[derive(Debug, Clone)]
pub struct Ciphers {
    tables: Vec<Vec<i64>>,
    random: Random,
}

/// Token ids of a batch, `[b, s]` each, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The input of the model.
    pub tokens: Vec<i64>,
    /// The token after each.
    pub next: Vec<i64>,
    /// Rows.
    pub batch: usize,
    /// Tokens of a row.
    pub seq: usize,
}

impl Ciphers {
    /// Draws the tables.
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let table = |_| {
            let mut table: Vec<i64> = (0..LETTERS as i64).collect();
            // Fisher and Yates.
            for last in (1..LETTERS).rev() {
                table.swap(last, random.below(last + 1));
            }
            table
        };
        Self {
            tables: (0..CIPHERS).map(table).collect(),
            random,
        }
    }

    /// Draws a batch of `batch` rows of `seq` tokens.
    pub fn batch(&mut self, batch: usize, seq: usize) -> Batch {
        let (mut tokens, mut next) = (Vec::new(), Vec::new());
        for _ in 0..batch {
            let cipher = self.random.below(CIPHERS);
            let mut row = vec![(LETTERS + cipher) as i64];
            let mut letter = self.random.below(LETTERS) as i64;
            while row.len() <= seq {
                row.push(letter);
                letter = self.tables[cipher][letter as usize];
            }
            tokens.extend(&row[..seq]);
            next.extend(&row[1..]);
        }
        Batch {
            tokens,
            next,
            batch,
            seq,
        }
    }
}

impl Batch {
    /// Returns the batch on a device: tokens and next ones.
    pub fn on(&self, device: &Device) -> [Tensor<2, Int>; 2] {
        let shape = [self.batch, self.seq];
        [&self.tokens, &self.next]
            .map(|ids| Tensor::from_data(TensorData::new(ids.clone(), shape), device))
    }
}

impl batch::Batch for Batch {
    type Tensors = [Tensor<2, Int>; 2];

    fn split(&self, parts: usize) -> Vec<Self> {
        let rows = self.batch / parts;
        assert_eq!(rows * parts, self.batch, "{parts} do not divide the rows");
        let part = |ids: &[i64], part: usize| {
            let ids = ids.chunks(rows * self.seq).nth(part);
            ids.unwrap_or_default().to_vec()
        };
        let of = |number| Self {
            tokens: part(&self.tokens, number),
            next: part(&self.next, number),
            batch: rows,
            seq: self.seq,
        };
        (0..parts).map(of).collect()
    }

    fn enter(&self, device: &Device, _by_process: bool) -> Result<Self::Tensors, DTensorError> {
        // Every process draws all rows: they need not be joined.
        Ok(self.on(device))
    }

    fn count(&self) -> usize {
        self.tokens.len()
    }
}

/// Batches of one size for the trainer, which may go on anywhere.
#[derive(Debug, Clone)]
pub struct Rows {
    ciphers: Ciphers,
    seed: u64,
    batch: usize,
    seq: usize,
    /// Rows drawn so far.
    drawn: usize,
}

impl Rows {
    /// Begins with the first row.
    pub fn new(seed: u64, batch: usize, seq: usize) -> Self {
        Self {
            ciphers: Ciphers::new(seed),
            seed,
            batch,
            seq,
            drawn: 0,
        }
    }

    fn stream(&self) -> Stream {
        Stream {
            samples: usize::MAX,
            seed: Some(self.seed),
            fingerprint: Some(format!(
                "ciphers of seed {}, rows of {}",
                self.seed, self.seq
            )),
        }
    }
}

impl BatchSource for Rows {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        self.drawn += self.batch;
        Ok(self.ciphers.batch(self.batch, self.seq))
    }

    fn position(&self) -> anyhow::Result<Position> {
        Ok(Position::Samples(burn_dist::data::Position {
            epoch: 0,
            sample: self.drawn,
            stream: self.stream(),
        }))
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        self.drawn = in_samples(position, &self.stream())?.sample;
        self.ciphers = Ciphers::new(self.seed);
        self.ciphers.batch(self.drawn, self.seq);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_cipher_and_what_it_makes_of_each_letter() {
        let mut ciphers = Ciphers::new(1);
        let batch = ciphers.batch(40, 9);
        for (row, next) in batch.tokens.chunks(9).zip(batch.next.chunks(9)) {
            let table = &ciphers.tables[row[0] as usize - LETTERS];
            assert_eq!(row[1..], next[..8]);
            for (letter, next) in row[1..].iter().zip(&next[1..]) {
                assert_eq!(table[*letter as usize], *next);
            }
        }
        assert_eq!(Ciphers::new(1).batch(40, 9), batch);
        assert_ne!(Ciphers::new(2).batch(40, 9), batch);
    }
}
