//! Random numbers by counter.
//!
//! # Source
//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).

/// Returns the four words of each of N counters: word `w` of counter `n` is at `[w][n]`, there and here.
///
/// ```
/// let words = burn_dist_kernels::philox::philox4x32([[0]; 4], [0; 2]);
/// assert_eq!(words.map(|[word]| word), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
#[inline(always)]
pub fn philox4x32<const N: usize>(counter: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let [mut x0, mut x1, mut x2, mut x3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        // The halves of a product apart: vectors have instructions for each, and none for both.
        for n in 0..N {
            let (a, b) = (x0[n], x2[n]);
            x0[n] = upper(b, MULTIPLIERS[1]) ^ x1[n] ^ k0;
            x1[n] = b.wrapping_mul(MULTIPLIERS[1]);
            x2[n] = upper(a, MULTIPLIERS[0]) ^ x3[n] ^ k1;
            x3[n] = a.wrapping_mul(MULTIPLIERS[0]);
        }
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [x0, x1, x2, x3]
}

/// Returns the upper half of a product.
#[inline(always)]
fn upper(x: u32, y: u32) -> u32 {
    ((u64::from(x) * u64::from(y)) >> 32) as u32
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
            let got = philox4x32(counter.map(|word| [word]), key);
            assert_eq!(got.map(|[word]| word), words);
        }
    }
}
