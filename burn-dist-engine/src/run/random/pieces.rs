//! Random tensors that are never in memory as a whole: regions draw their elements as they come to them.

use std::mem::MaybeUninit;
use std::ops::Range;

use burn_backend::{DType, Distribution};
use burn_std::{Shape, bf16, f16};

use super::draw::Samples;
use super::error::RandomError;
use super::philox::Philox;
use super::{Part, SAMPLES_OF_A_BLOCK, in_blocks};

/// A part of a random tensor of floats, whose elements are those that [`fill_runs`](super::fill_runs) makes.
pub(in crate::run) struct Pieces {
    part: Part,
    samples: Samples,
    dtype: DType,
}

impl Pieces {
    /// Returns the part that `runs` name. Of floats with more than 32 bits there is none.
    ///
    /// # Errors
    /// As [`fill_runs`](super::fill_runs).
    pub(in crate::run) fn new(
        seed: u64,
        stream: u64,
        distribution: Distribution,
        dtype: DType,
        local_shape: impl Into<Shape>,
        runs: impl Iterator<Item = Range<usize>>,
    ) -> Result<Self, RandomError> {
        let samples = match dtype {
            DType::F32 => Samples::of_floats::<f32>(distribution),
            DType::F16 => Samples::of_floats::<f16>(distribution),
            DType::BF16 => Samples::of_floats::<bf16>(distribution),
            dtype => Err(RandomError::UnsupportedDtype { dtype }),
        };
        Ok(Self {
            part: Part::new(Philox::new(seed, stream), local_shape.into(), runs)?,
            samples: samples?,
            dtype,
        })
    }

    /// Draws the elements from one on, by its number in the part, rounded to the type of the tensor.
    pub(in crate::run) fn draw(&self, first: usize, to: &mut [MaybeUninit<f32>]) {
        match self.dtype {
            DType::F16 => self.draw_as(first, to, |sample| f16::from_f32(sample).to_f32()),
            DType::BF16 => self.draw_as(first, to, |sample| bf16::from_f32(sample).to_f32()),
            _ => self.draw_as(first, to, |sample| sample),
        }
    }

    fn draw_as(&self, first: usize, to: &mut [MaybeUninit<f32>], of: impl Fn(f32) -> f32) {
        self.part.each_stretch(first, 1, to, |index, to| {
            in_blocks(index, to, |index, to| {
                let mut samples = [0.0; SAMPLES_OF_A_BLOCK];
                let philox = &self.part.philox;
                self.samples.fill(philox, index, &mut samples[..to.len()]);
                for (to, sample) in to.iter_mut().zip(samples) {
                    to.write(of(sample));
                }
            });
        });
    }
}
