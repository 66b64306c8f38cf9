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

/// Counters per batch: several vectors of each word, which do not wait for each other.
const BATCH: usize = 64;

/// Counters of a batch where there is little to draw: one vector.
const SMALL_BATCH: usize = 16;

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
        // By a loop: the standard library's `map` is not compiled for the vectors of its caller.
        let (mut low, mut high) = ([0; N], [0; N]);
        for n in 0..N {
            [low[n], high[n]] = halves(first.wrapping_add(n as u64));
        }
        let [below, above] = self.stream;
        philox4x32([low, high, [below; N], [above; N]], self.key)
    }

    /// Makes the samples from a flat index on; sample `i` comes from counter `i / PER`.
    pub fn fill<S: Sample, D: Draw<S, PER>, const PER: usize>(
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

impl<S: Sample, D: Draw<S, PER>, const PER: usize> Vectorized for Fill<'_, S, D, PER> {
    #[inline(always)]
    fn call(self) {
        let (mut index, mut samples) = (self.index, self.samples);
        while !samples.is_empty() {
            let counters = (index % PER + samples.len()).div_ceil(PER);
            let count = match counters > SMALL_BATCH {
                true => batch::<BATCH, _, _, PER>(self.philox, self.draw, index, samples),
                false => batch::<SMALL_BATCH, _, _, PER>(self.philox, self.draw, index, samples),
            };
            (index, samples) = (index + count, &mut samples[count..]);
        }
    }
}

/// Makes as many of the samples, from a flat index on, as a batch of counters has. Returns their number.
#[inline(always)]
fn batch<const N: usize, S: Sample, D: Draw<S, PER>, const PER: usize>(
    philox: &Philox,
    draw: &D,
    index: usize,
    samples: &mut [S],
) -> usize {
    let lanes = draw.draw(&philox.words::<N>((index / PER) as u64));
    if index.is_multiple_of(PER) && samples.len() >= N * PER {
        interleave(&lanes, &mut samples.as_chunks_mut().0[..N]);
        return N * PER;
    }
    let mut all = [[S::default(); PER]; N];
    interleave(&lanes, &mut all);
    let made = &all.as_flattened()[index % PER..];
    let count = made.len().min(samples.len());
    samples[..count].copy_from_slice(&made[..count]);
    count
}

/// Writes the samples of each counter, one after the other.
#[inline(always)]
fn interleave<S: Sample, const N: usize, const PER: usize>(
    lanes: &[[S; N]; PER],
    to: &mut [[S; PER]],
) {
    const {
        assert!(
            PER <= 4 && N.is_multiple_of(4),
            "counters are turned four at a time"
        )
    };
    for (part, to) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut square = [[S::default(); 4]; 4];
        for (row, lane) in square.iter_mut().zip(lanes) {
            row.copy_from_slice(&lane[4 * part..4 * part + 4]);
        }
        for (of_counter, turned) in to.iter_mut().zip(S::turned(square)) {
            of_counter.copy_from_slice(&turned[..PER]);
        }
    }
}

/// A sample.
pub trait Sample: Copy + Default {
    /// Returns the columns of a square.
    #[inline(always)]
    fn turned(square: [[Self; 4]; 4]) -> [[Self; 4]; 4] {
        let mut turned = square;
        for row in 0..4 {
            for column in 0..4 {
                turned[column][row] = square[row][column];
            }
        }
        turned
    }
}

impl Sample for u32 {}
impl Sample for u64 {}

impl Sample for f32 {
    /// By shuffles that every x86-64 has: of loops, compilers make moves of single numbers.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn turned(square: [[Self; 4]; 4]) -> [[Self; 4]; 4] {
        use std::arch::x86_64::{
            __m128, _mm_movehl_ps, _mm_movelh_ps, _mm_unpackhi_ps, _mm_unpacklo_ps,
        };
        let [a, b, c, d]: [__m128; 4] = bytemuck::cast(square);
        // SAFETY: every x86-64 has SSE.
        unsafe {
            let (low, high) = (_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let (low_after, high_after) = (_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            bytemuck::cast([
                _mm_movelh_ps(low, low_after),
                _mm_movehl_ps(low_after, low),
                _mm_movelh_ps(high, high_after),
                _mm_movehl_ps(high_after, high),
            ])
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
            for (first, count) in [
                (0, 900),
                (1, 5),
                (63, 2),
                (66, 130),
                (4, 256),
                (7, 0),
                (9, 257),
            ] {
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
