/// A small deterministic generator: rows must depend neither on the machine nor on a crate's version.
///
/// # Source
/// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// From one state to the next.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// Starts a sequence of its own for each list of keys.
    pub(super) fn new(keys: &[u64]) -> Self {
        let fold = |state: u64, key: &u64| mix(state.wrapping_add(STEP) ^ mix(*key));
        Self(keys.iter().fold(0, fold))
    }

    /// A number below `bound`, which is above 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(STEP);
        // The high half of the product: uniform to within bound / 2^64.
        ((u128::from(mix(self.0)) * bound as u128) >> 64) as usize
    }

    /// Puts `items` in random order (Fisher-Yates).
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_were_saved_keep_their_meaning() {
        let order = |keys: &[u64]| {
            let mut items: Vec<usize> = (0..8).collect();
            Random::new(keys).shuffle(&mut items);
            items
        };
        assert_ne!(order(&[1, 2]), order(&[2, 1]));
        assert_ne!(order(&[1]), order(&[1, 0]));
        assert_eq!(order(&[1, 2]), [7, 2, 3, 6, 4, 1, 0, 5]);
    }
}
