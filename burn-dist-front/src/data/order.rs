//! The order of samples in an epoch: a permutation of which any element is computed from its place alone.

/// Steps of the generator's state (2^64 over the golden ratio).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// An even number. With fewer, some orders of 5 to 7 samples came up more often than others.
const ROUNDS: usize = 24;

/// The random order of the samples of an epoch.
///
/// # Source
/// The generalised Feistel method and cycle walking of Black and Rogaway, "Ciphers with arbitrary finite domains"
/// (CT-RSA 2002). The functions of the rounds are SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) at any index of its
/// sequence. Differs: this is no cipher, and the lower part has an even number of values, since rotations of an odd
/// number of them are all even permutations.
#[derive(Clone, Debug)]
pub(super) struct Order {
    samples: u64,
    /// Numbers below `low * high`, which is at least `samples`, are pairs of one below each.
    low: u64,
    high: u64,
    keys: [u64; ROUNDS],
}

impl Order {
    /// The order of an epoch of so many samples.
    pub(super) fn new(samples: usize, seed: u64, epoch: u64) -> Self {
        let samples = samples as u64;
        let root = samples.isqrt();
        let low = (root + u64::from(root * root < samples)).next_multiple_of(2);
        let key = draw(draw(seed, 0), epoch);
        Self {
            samples,
            low,
            high: samples.div_ceil(low.max(1)),
            keys: std::array::from_fn(|round| draw(key, round as u64)),
        }
    }

    /// The index of the sample that comes at `place`, which lies below the number of samples.
    pub(super) fn at(&self, place: usize) -> usize {
        let mut at = place as u64;
        assert!(at < self.samples, "place {at} of {} samples", self.samples);
        // A permutation of the numbers below `low * high` leads back to one below `samples`: to `place` at the latest.
        loop {
            let (mut low, mut high) = (at % self.low, at / self.low);
            for keys in self.keys.chunks_exact(2) {
                low = (low + draw(keys[0], high) % self.low) % self.low;
                high = (high + draw(keys[1], low) % self.high) % self.high;
            }
            at = high * self.low + low;
            if at < self.samples {
                return at as usize;
            }
        }
    }
}

/// Number `index` of the sequence of SplitMix64 that starts at `key`.
pub(super) fn draw(key: u64, index: u64) -> u64 {
    let z = key.wrapping_add(STEP.wrapping_mul(index.wrapping_add(1)));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    fn order(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let order = Order::new(samples, seed, epoch);
        (0..samples).map(|place| order.at(place)).collect()
    }

    fn is_permutation(order: &[usize]) -> bool {
        let distinct: HashSet<_> = order.iter().collect();
        distinct.len() == order.len() && order.iter().all(|at| *at < order.len())
    }

    #[test]
    fn small_orders_are_permutations() {
        for samples in 0..130 {
            for epoch in 0..20 {
                assert!(is_permutation(&order(samples, 1, epoch)), "{samples}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_order_is_a_permutation(samples in 0usize..20_000, seed: u64, epoch: u64) {
            prop_assert!(is_permutation(&order(samples, seed, epoch)));
        }

        #[test]
        fn places_of_large_orders_are_distinct(
            samples in (1usize << 40)..(1 << 62),
            seed: u64,
            epoch: u64,
        ) {
            let order = Order::new(samples, seed, epoch);
            let ends = (0..500).chain(samples - 500..samples);
            let found: HashSet<_> = ends.map(|place| order.at(place)).collect();
            prop_assert_eq!(found.len(), 1000);
            prop_assert!(found.into_iter().all(|at| at < samples));
        }
    }

    #[test]
    fn positions_that_were_saved_keep_their_meaning() {
        assert_eq!(order(10, 42, 0), [0, 7, 6, 9, 3, 1, 4, 2, 5, 8]);
        assert_eq!(order(10, 42, 1), [2, 9, 6, 4, 1, 7, 0, 5, 3, 8]);
        let large = Order::new(1 << 40, 42, 7);
        assert_eq!(
            [large.at(0), large.at(1), large.at((1 << 40) - 1)],
            [685_171_491_901, 703_901_189_122, 332_991_673_355]
        );
    }

    #[test]
    fn all_orders_come_up_equally_often() {
        for (samples, orders) in [(2, 2.0), (3, 6.0), (4, 24.0), (5, 120.0), (6, 720.0)] {
            let expected = 100.0;
            let mut found: HashMap<Vec<usize>, f64> = HashMap::new();
            for epoch in 0..(orders * expected) as u64 {
                *found.entry(order(samples, 3, epoch)).or_default() += 1.0;
            }
            let missing = (orders - found.len() as f64) * expected;
            let off = found.values().map(|n| (n - expected).powi(2) / expected);
            let chi_square = off.sum::<f64>() + missing;
            // Four standard deviations beyond the mean.
            let free = orders - 1.0;
            let limit = free + 4.0 * (2.0 * free).sqrt();
            assert!(
                chi_square < limit,
                "{samples}: {chi_square} of at most {limit}"
            );
        }
    }

    #[test]
    fn every_sample_is_everywhere_equally_often() {
        let (samples, epochs) = (50, 5000);
        let mut found = vec![0.0; samples * samples];
        for epoch in 0..epochs {
            for (place, at) in order(samples, 9, epoch).into_iter().enumerate() {
                found[place * samples + at] += 1.0;
            }
        }
        let expected = epochs as f64 / samples as f64;
        let off = found
            .iter()
            .map(|n: &f64| (n - expected).powi(2) / expected);
        // Rows and columns sum to the number of epochs.
        let free = ((samples - 1) * (samples - 1)) as f64;
        let chi_square = off.sum::<f64>() * (samples - 1) as f64 / samples as f64;
        assert!(
            (chi_square - free).abs() < 4.0 * (2.0 * free).sqrt(),
            "{chi_square}"
        );
    }
}
