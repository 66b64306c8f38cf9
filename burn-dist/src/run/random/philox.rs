//! The counter-based generator, and the loop over whole counters.

use super::draw::Draw;
use core::ops::Range;

/// Counters per batch: enough independent ones to fill vector registers.
const BATCH: usize = 8;

/// Philox4x32-10 with its key, and the upper half of its counter.
#[derive(Clone, Copy)]
pub(super) struct Philox {
    key: [u32; 2],
    stream: [u32; 2],
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Philox {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self {
            key: halves(seed),
            stream: halves(stream),
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
        rounds(counter, self.key)
    }

    /// Appends the elements of a run of flat indices; element `i` comes from counter `i / PER`.
    pub(super) fn append<T: Copy, D: Draw<T, PER>, const PER: usize>(
        &self,
        draw: &D,
        run: Range<usize>,
        values: &mut Vec<T>,
    ) {
        let end = run.end;
        let mut index = run.start;
        while index < end {
            let counter = index / PER;
            let lane = index % PER;
            if lane == 0 && end - index >= BATCH * PER {
                let lanes = draw.draw(&self.words::<BATCH>(counter as u64));
                values.extend((0..BATCH * PER).map(|i| lanes[i % PER][i / PER]));
                index += BATCH * PER;
            } else {
                // The head or the tail of the run: part of a counter, or of a batch.
                let lanes = draw.draw(&self.words::<1>(counter as u64));
                let count = (PER - lane).min(end - index);
                values.extend(lanes[lane..lane + count].iter().map(|[value]| *value));
                index += count;
            }
        }
    }
}

/// The ten rounds on N independent counters.
#[inline]
fn rounds<const N: usize>(counter: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let [mut x0, mut x1, mut x2, mut x3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for n in 0..N {
            let a = u64::from(MULTIPLIERS[0]) * u64::from(x0[n]);
            let b = u64::from(MULTIPLIERS[1]) * u64::from(x2[n]);
            x0[n] = (b >> 32) as u32 ^ x1[n] ^ k0;
            x1[n] = b as u32;
            x2[n] = (a >> 32) as u32 ^ x3[n] ^ k1;
            x3[n] = a as u32;
        }
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [x0, x1, x2, x3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that accompany the paper's implementation (Random123, `kat_vectors`).
    #[test]
    fn known_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
            ),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, words) in cases {
            let got = rounds(counter.map(|word| [word]), key);
            assert_eq!(got.map(|[word]| word), words);
        }
    }

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
