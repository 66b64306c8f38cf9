//! The task: ciphers. A sequence is the name of a cipher, a letter, and then of each letter what the cipher makes of it.
//!
//! There are as many ciphers as tables of all letters, drawn once. What comes next is known from the second token on, to
//! a model that has learned the tables: experts, with as much to keep as there are of them.

use std::ops::Range;

use burn_dist::train::rng::Rng;
use burn_dist::trainer::batch::Column;

/// Letters of the alphabet.
pub const LETTERS: usize = 56;
/// Ciphers; their names are tokens too.
pub const CIPHERS: usize = 8;
/// Number of token ids.
pub const VOCAB: usize = LETTERS + CIPHERS;

/// Rows without an end.
#[derive(Debug, Clone)]
pub struct Ciphers {
    tables: Vec<Vec<i64>>,
    seed: u64,
}

/// Token ids of a batch, `[b, s]` each: the input of the model, and the token after each.
pub type Batch = (Column<i64, 2>, Column<i64, 2>);

impl Ciphers {
    /// Draws the tables.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 0);
        let table = |_| {
            let mut table: Vec<i64> = (0..LETTERS as i64).collect();
            rng.shuffle(&mut table);
            table
        };
        let tables = (0..CIPHERS).map(table).collect();
        Self { tables, seed }
    }

    /// Makes the rows of these numbers, of `seq` tokens each.
    pub fn rows(&self, numbers: Range<usize>, seq: usize) -> Batch {
        let (mut tokens, mut next) = (Vec::new(), Vec::new());
        let mut rng = Rng::new(self.seed, 1);
        for number in numbers {
            // Two draws for each row.
            rng.seek(2 * number as u64);
            let cipher = rng.below(CIPHERS);
            let mut row = vec![(LETTERS + cipher) as i64];
            let mut letter = rng.below(LETTERS) as i64;
            while row.len() <= seq {
                row.push(letter);
                letter = self.tables[cipher][letter as usize];
            }
            tokens.extend(&row[..seq]);
            next.extend(&row[1..]);
        }
        let column = |ids| Column::new(ids, &[seq]).counting(seq);
        (column(tokens), column(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_cipher_and_what_it_makes_of_each_letter() {
        let ciphers = Ciphers::new(1);
        let batch = ciphers.rows(3..43, 9);
        let rows = batch.0.values.chunks(9);
        for (row, next) in rows.zip(batch.1.values.chunks(9)) {
            let table = &ciphers.tables[row[0] as usize - LETTERS];
            assert_eq!(row[1..], next[..8]);
            for (letter, next) in row[1..].iter().zip(&next[1..]) {
                assert_eq!(table[*letter as usize], *next);
            }
        }
        assert_eq!(Ciphers::new(1).rows(3..43, 9), batch);
        assert_eq!(ciphers.rows(4..6, 9).0.values, batch.0.values[9..27]);
        assert_ne!(Ciphers::new(2).rows(3..43, 9), batch);
    }
}
