//! Numbers for generated data: the same ones for the same seed, on every machine.

use burn::data::dataset::InMemDataset;

/// SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA'14).
pub(crate) struct Source(pub(crate) u64);

impl Source {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// Returns a number in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Returns a number with mean 0 and variance 1: a sum of twelve uniform ones, less its mean.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// Pixels of one side of an image.
pub(crate) const SIDE: usize = 28;
/// Classes of images.
pub(crate) const NUM_CLASSES: usize = 10;

/// A picture of one of ten things, in the shape of MNIST.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// Brightness from 0 to 255.
    pub(crate) pixels: [[f32; SIDE]; SIDE],
    pub(crate) label: u8,
}

/// Returns pictures of stripes, whose number and direction tell the class, with noise.
pub(crate) fn pictures(count: usize, seed: u64) -> InMemDataset<Picture> {
    let mut source = Source(seed);
    let items = (0..count).map(|_| {
        let label = source.below(NUM_CLASSES);
        let (period, shift) = (3 + 2 * (label / 2), source.below(5));
        let mut pixels = [[0.0; SIDE]; SIDE];
        for (row, line) in pixels.iter_mut().enumerate() {
            for (column, pixel) in line.iter_mut().enumerate() {
                let along = if label.is_multiple_of(2) { row } else { column };
                let bright = (along + shift) % period == 0;
                *pixel = 60.0 * source.unit() + if bright { 190.0 } else { 0.0 };
            }
        }
        Picture {
            pixels,
            label: label as u8,
        }
    });
    InMemDataset::new(items.collect())
}
