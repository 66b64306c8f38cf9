//! The counter-based generator, and the loop over whole counters.

use burn_dist_kernels::philox::philox4x32_at;
use burn_dist_kernels::region::Level;

/// Counters per batch: enough independent ones to fill vector registers.
const BATCH: usize = 16;

/// Samples of a distribution, `PER` of them from the four words of one counter.
pub(super) trait Draw<S, const PER: usize> {
    /// Returns the samples of N counters: sample `s` of counter `n` is at `[s][n]`, from the words at `[w][n]`.
    fn draw<const N: usize>(&self, words: &[[u32; N]; 4]) -> [[S; N]; PER];
}

/// Philox4x32-10 with its key, and the upper half of its counter.
#[derive(Clone, Copy)]
pub(super) struct Philox {
    key: [u32; 2],
    stream: [u32; 2],
    level: Level,
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Philox {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self {
            key: halves(seed),
            stream: halves(stream),
            level: Level::best(),
        }
    }

    /// Returns the words of counters `first..first + N`: word `w` of counter `first + n` is at `[w][n]`.
    #[inline]
    pub(super) fn words<const N: usize>(&self, first: u64) -> [[u32; N]; 4] {
        let index: [[u32; 2]; N] = core::array::from_fn(|n| halves(first.wrapping_add(n as u64)));
        let counter = [
            index.map(|[low, _]| low),
            index.map(|[_, high]| high),
            [self.stream[0]; N],
            [self.stream[1]; N],
        ];
        philox4x32_at(self.level, counter, self.key)
    }

    /// Makes the samples from a flat index on; sample `i` comes from counter `i / PER`.
    pub(super) fn fill<S: Copy, D: Draw<S, PER>, const PER: usize>(
        &self,
        draw: &D,
        mut index: usize,
        mut samples: &mut [S],
    ) {
        while !samples.is_empty() {
            let counter = (index / PER) as u64;
            let lane = index % PER;
            let count = match samples.split_at_mut_checked(BATCH * PER) {
                Some((batch, _)) if lane == 0 => {
                    let lanes = draw.draw(&self.words::<BATCH>(counter));
                    for (i, sample) in batch.iter_mut().enumerate() {
                        *sample = lanes[i % PER][i / PER];
                    }
                    BATCH * PER
                }
                // The head or the tail: part of a counter, or of a batch.
                _ => {
                    let lanes = draw.draw(&self.words::<1>(counter));
                    let count = (PER - lane).min(samples.len());
                    for (sample, [made]) in samples.iter_mut().zip(&lanes[lane..lane + count]) {
                        *sample = *made;
                    }
                    count
                }
            };
            index += count;
            samples = &mut samples[count..];
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
