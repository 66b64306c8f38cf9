//! Images of the digits 0 to 9, in the shape of MNIST: 28 x 28 pixels between 0 and 1, ten classes.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

/// Pixels of one side.
pub const SIDE: usize = 28;
/// Number of classes.
pub const NUM_CLASSES: usize = 10;

/// The digits as rows of five pixels, most significant bit on the left.
const GLYPHS: [[u8; 7]; NUM_CLASSES] = [
    [
        0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110,
    ],
    [
        0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110,
    ],
    [
        0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111,
    ],
    [
        0b11110, 0b00001, 0b00001, 0b01110, 0b00001, 0b00001, 0b11110,
    ],
    [
        0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010,
    ],
    [
        0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110,
    ],
    [
        0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110,
    ],
    [
        0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000,
    ],
    [
        0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110,
    ],
    [
        0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100,
    ],
];
/// Every glyph pixel becomes a square of this many pixels.
const SCALE: usize = 3;

/// One image and what it shows.
#[derive(Clone, Debug)]
pub struct Digit {
    /// Pixels between 0 and 1, row by row; `SIDE * SIDE` of them.
    pub pixels: Vec<f32>,
    /// The digit, below [`NUM_CLASSES`].
    pub label: u8,
}

/// Returns `count` images, the same ones for the same `seed`: shifted, of varied brightness, with noise.
pub fn digits(count: usize, seed: u64) -> InMemDataset<Digit> {
    let mut state = seed;
    // SplitMix64 (Steele et al., 2014).
    let mut below = move |bound: usize| -> usize {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    };
    let items = (0..count).map(|_| {
        let label = below(NUM_CLASSES);
        let glyph = &GLYPHS[label];
        // A glyph is 15 x 21 pixels: 13 columns and 7 rows of room.
        let (left, top) = (below(14), below(8));
        let ink = 0.6 + below(41) as f32 / 100.0;
        let pixels = (0..SIDE * SIDE).map(|at| {
            let (row, column) = (at / SIDE, at % SIDE);
            let noise = below(21) as f32 / 100.0;
            let inside =
                (left..left + 5 * SCALE).contains(&column) && (top..top + 7 * SCALE).contains(&row);
            let inked =
                inside && glyph[(row - top) / SCALE] >> (4 - (column - left) / SCALE) & 1 == 1;
            if inked { ink - noise } else { noise }
        });
        Digit {
            pixels: pixels.collect(),
            label: label as u8,
        }
    });
    InMemDataset::new(items.collect())
}

/// Images and labels of one step.
#[derive(Clone, Debug)]
pub struct DigitBatch<B: Backend> {
    /// `[batch, 1, SIDE, SIDE]`.
    pub images: Tensor<B, 4>,
    /// `[batch]`.
    pub labels: Tensor<B, 1, Int>,
}

/// Makes batches on the device that it gets.
#[derive(Clone, Debug)]
pub struct DigitBatcher;

impl<B: Backend> Batcher<B, Digit, DigitBatch<B>> for DigitBatcher {
    fn batch(&self, items: Vec<Digit>, device: &B::Device) -> DigitBatch<B> {
        let labels: Vec<i64> = items.iter().map(|item| item.label.into()).collect();
        let shape = [items.len(), 1, SIDE, SIDE];
        let pixels: Vec<f32> = items.into_iter().flat_map(|item| item.pixels).collect();
        DigitBatch {
            images: Tensor::from_data(TensorData::new(pixels, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [shape[0]]), device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::data::dataset::Dataset;

    #[test]
    fn the_same_seed_gives_the_same_images() {
        let (a, b, c) = (digits(20, 1), digits(20, 1), digits(20, 2));
        let pixels = |set: &InMemDataset<Digit>| -> Vec<f32> {
            set.iter().flat_map(|digit| digit.pixels).collect()
        };
        assert_eq!(pixels(&a), pixels(&b));
        assert_ne!(pixels(&a), pixels(&c));
        assert_eq!(pixels(&a).len(), 20 * SIDE * SIDE);
        assert!(pixels(&a).iter().all(|pixel| (0.0..=1.0).contains(pixel)));
    }

    #[test]
    fn every_digit_appears_and_is_drawn() {
        let set = digits(200, 7);
        for label in 0..NUM_CLASSES as u8 {
            let digit = set
                .iter()
                .find(|digit| digit.label == label)
                .expect("one of 200 shows it");
            let inked = digit.pixels.iter().filter(|&&pixel| pixel > 0.3).count();
            let drawn: u32 = GLYPHS[label as usize]
                .iter()
                .map(|row| row.count_ones())
                .sum();
            assert_eq!(inked, drawn as usize * SCALE * SCALE);
        }
    }
}
