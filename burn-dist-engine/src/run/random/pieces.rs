//! Random tensors that are never in memory as a whole: regions draw their elements as they come to them.

use std::mem::MaybeUninit;

use burn_backend::DType;
use burn_std::{Shape, bf16, f16};

use burn_dist_kernels::random::{Philox, Samples};

use super::error::RandomError;
use super::{Drawing, Part, SAMPLES_OF_A_BLOCK, draw, in_blocks};

/// A part of a random tensor of floats, whose elements are those that [`fill_runs`](super::fill_runs) makes.
pub(in crate::run) struct Pieces {
    pub(in crate::run) part: Part,
    pub(in crate::run) samples: Samples,
    dtype: DType,
}

impl Drawing<'_> {
    /// Makes no element yet.
    ///
    /// # Errors
    /// As [`fill_runs`](super::fill_runs). Of other types than floats of up to 32 bits there are no pieces.
    pub(in crate::run) fn pieces(self) -> Result<Pieces, RandomError> {
        let samples = match self.dtype {
            DType::F32 => draw::of_floats::<f32>(self.distribution),
            DType::F16 => draw::of_floats::<f16>(self.distribution),
            DType::BF16 => draw::of_floats::<bf16>(self.distribution),
            dtype => Err(RandomError::UnsupportedDtype { dtype }),
        };
        let philox = Philox::new(self.seed, self.stream);
        let shape = Shape::from(self.shape.to_vec());
        Ok(Pieces {
            part: Part::new(philox, shape, self.runs.iter().cloned())?,
            samples: samples?,
            dtype: self.dtype,
        })
    }
}

impl Pieces {
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
