//! Random numbers by counter: which ones a tensor's elements are, wherever they are drawn.
//!
//! Element `i` is a function of the seed, the stream and `i` alone. The arithmetic is IEEE addition, multiplication and
//! square root, so that it does not depend on the platform's libm either, and devices can repeat it.
//!
//! # Source
//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). The seed is the key, the stream
//! the upper half of the counter, the index the lower half; a counter gives four words.

mod samples;

pub use samples::{Bernoulli, Normal, Samples, Uniform};

use crate::philox::philox4x32;
use crate::region::{Level, Vectorized};

/// Counters per batch: enough independent ones to fill vector registers.
const BATCH: usize = 16;

/// Samples of a distribution, `PER` of them from the four words of one counter.
pub trait Draw<S, const PER: usize> {
    /// Returns the samples of N counters: sample `s` of counter `n` is at `[s][n]`, from the words at `[w][n]`.
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[S; N]; PER];
}

/// Philox4x32-10 with its key, and the upper half of its counter.
#[derive(Clone, Copy, Debug)]
pub struct Philox {
    key: [u32; 2],
    stream: [u32; 2],
    level: Level,
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Philox {
    /// Returns the numbers of a seed and a stream.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self {
            key: halves(seed),
            stream: halves(stream),
            level: Level::best(),
        }
    }

    /// Returns the halves of the seed, the lower one first.
    pub fn key(&self) -> [u32; 2] {
        self.key
    }

    /// Returns the halves of the stream, the lower one first.
    pub fn stream(&self) -> [u32; 2] {
        self.stream
    }

    /// Returns the words of counters `first..first + N`: word `w` of counter `first + n` is at `[w][n]`.
    #[inline(always)]
    pub fn words<const N: usize>(&self, first: u64) -> [[u32; N]; 4] {
        let index: [[u32; 2]; N] = core::array::from_fn(|n| halves(first.wrapping_add(n as u64)));
        let counter = [
            index.map(|[low, _]| low),
            index.map(|[_, high]| high),
            [self.stream[0]; N],
            [self.stream[1]; N],
        ];
        philox4x32(counter, self.key)
    }

    /// Makes the samples from a flat index on; sample `i` comes from counter `i / PER`.
    pub fn fill<S: Copy + Default, D: Draw<S, PER>, const PER: usize>(
        &self,
        draw: &D,
        index: usize,
        samples: &mut [S],
    ) {
        let philox = self;
        self.level.vectorize(Fill {
            philox,
            draw,
            index,
            samples,
        });
    }
}

/// The loop over batches, compiled for a level.
struct Fill<'a, S, D, const PER: usize> {
    philox: &'a Philox,
    draw: &'a D,
    index: usize,
    samples: &'a mut [S],
}

impl<S: Copy + Default, D: Draw<S, PER>, const PER: usize> Vectorized for Fill<'_, S, D, PER> {
    #[inline(always)]
    fn call(self) {
        let (mut index, mut samples) = (self.index, self.samples);
        while !samples.is_empty() {
            let lanes = self
                .draw
                .draw(&self.philox.words::<BATCH>((index / PER) as u64));
            let mut batch = [[S::default(); PER]; BATCH];
            for (n, of_counter) in batch.iter_mut().enumerate() {
                for (sample, lane) in of_counter.iter_mut().zip(&lanes) {
                    *sample = lane[n];
                }
            }
            let made = &batch.as_flattened()[index % PER..];
            let count = made.len().min(samples.len());
            let (now, rest) = samples.split_at_mut(count);
            now.copy_from_slice(&made[..count]);
            (index, samples) = (index + count, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_its_counters() {
        let philox = Philox::new(0x0123_4567_89ab_cdef, 7);
        // Across the carry from the lower to the upper word of the index.
        let first = u64::from(u32::MAX) - 3;
        let batch = philox.words::<BATCH>(first);
        for n in 0..BATCH {
            let single = philox.words::<1>(first + n as u64);
            assert_eq!(batch.map(|word| word[n]), single.map(|[word]| word));
        }
    }

    #[test]
    fn samples_are_the_same_at_every_level_from_wherever_they_begin() {
        /// The words themselves.
        struct Words;
        impl Draw<u32, 4> for Words {
            #[inline(always)]
            fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[u32; N]; 4] {
                *words
            }
        }
        for level in Level::all() {
            let philox = Philox {
                level,
                ..Philox::new(42, 7)
            };
            for (first, count) in [(0, 200), (1, 5), (63, 2), (66, 130), (4, 64), (7, 0)] {
                let mut found = vec![0; count];
                philox.fill(&Words, first, &mut found);
                let of = |index: usize| philox.words::<1>((index / 4) as u64)[index % 4][0];
                let expected: Vec<u32> = (first..first + count).map(of).collect();
                assert_eq!(found, expected, "{level:?} from {first}");
            }
        }
    }

    #[test]
    fn seed_stream_and_index_are_the_key_and_the_counter() {
        let seed = 0x299f_31d0_a409_3822;
        let stream = 0x0370_7344_1319_8a2e;
        let index = 0x85a3_08d3_243f_6a88;
        let words = Philox::new(seed, stream).words::<1>(index);
        assert_eq!(
            words.map(|[word]| word),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }
}
