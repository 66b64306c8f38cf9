//! Random numbers from a seed, for data: the same on every machine.

/// A small deterministic generator (SplitMix64): the data must not depend on the machine or on a crate's version.
///
/// # Source
/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Rng {
    /// Where the sequence starts.
    origin: u64,
    /// Numbers drawn so far.
    drawn: u64,
}

/// From one state to the next.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Rng {
    /// Starts the sequence of `seed`; `stream` keeps uses of one seed apart.
    pub fn new(seed: u64, stream: u64) -> Self {
        let origin = seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03);
        Self {
            origin: origin.wrapping_add(STEP),
            drawn: 0,
        }
    }

    /// Starts a sequence of its own for each list of keys.
    pub fn of_keys(keys: &[u64]) -> Self {
        let fold = |state: u64, key: &u64| mix(state.wrapping_add(STEP) ^ mix(*key));
        Self {
            origin: keys.iter().fold(0, fold),
            drawn: 0,
        }
    }

    /// Returns a number that distinguishes this sequence from others, however much of it was drawn.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// How many numbers were drawn.
    pub fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Goes to where so many numbers were drawn.
    pub fn seek(&mut self, drawn: u64) {
        self.drawn = drawn;
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.skip(1);
        mix(self.origin.wrapping_add(STEP.wrapping_mul(self.drawn)))
    }

    /// Goes on as if `draws` numbers had been drawn.
    pub fn skip(&mut self, draws: usize) {
        self.drawn = self.drawn.wrapping_add(draws as u64);
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing lies below 0");
        // The high half of the product: uniform to within bound / 2^64.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    /// Puts `items` in random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
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

/// Hashes text, the same on every machine (FNV-1a, mixed).
pub fn hash_text(text: &str, seed: u64) -> u64 {
    let fnv = text
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325 ^ mix(seed), |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_skipped_are_those_not_drawn() {
        let (mut drawn, mut skipped) = (Rng::new(3, 1), Rng::new(3, 1));
        (0..1000).for_each(|_| {
            drawn.below(7);
        });
        skipped.skip(1000);
        assert_eq!(drawn.next_u64(), skipped.next_u64());
    }

    #[test]
    fn orders_that_were_saved_keep_their_meaning() {
        let order = |keys: &[u64]| {
            let mut items: Vec<usize> = (0..8).collect();
            Rng::of_keys(keys).shuffle(&mut items);
            items
        };
        assert_ne!(order(&[1, 2]), order(&[2, 1]));
        assert_ne!(order(&[1]), order(&[1, 0]));
        assert_eq!(order(&[1, 2]), [7, 2, 3, 6, 4, 1, 0, 5]);
    }

    #[test]
    fn a_sequence_goes_on_where_it_is_sought() {
        let mut rng = Rng::new(3, 1);
        let all: Vec<u64> = (0..10).map(|_| rng.next_u64()).collect();
        assert_eq!(all[..2], [0x0884_e843_b3dc_bd76, 0xd05c_459a_a401_a471]);
        rng.seek(4);
        assert_eq!((rng.drawn(), rng.next_u64()), (4, all[4]));
    }
}
