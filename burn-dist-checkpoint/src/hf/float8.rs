//! Tensors of floats of 8 bits, each with a tensor of what its blocks are multiplied with.
//!
//! ```text
//! up_proj.weight             F8_E4M3  [outputs, inputs]
//! up_proj.weight_scale_inv   F32      [outputs / 128, inputs / 128], rounded up
//! ```
//!
//! # Source
//! The files of DeepSeek-V3 (`README_WEIGHTS.md` of the model), which Hugging Face's library reads by
//! `"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}`. The last blocks of sizes that are
//! no multiples of 128 are smaller.

use super::header::FLOAT8;
use super::{Folder, Form, NumBytes};
use crate::error::CheckpointError;
use crate::load::Request;
use burn_dist_mesh::DType;

/// The sides of the blocks of a [`Float8`] tensor.
pub const FLOAT8_BLOCK: usize = 128;

/// A tensor in 8 bits, as a folder has it: a matrix in blocks, counted from its first row and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float8 {
    form: Form,
    outputs: usize,
    stored: [usize; 2],
}

impl Float8 {
    /// Returns the tensor that holds a parameter of this shape in this form, if that is a matrix.
    pub fn of(form: Form, shape: &[usize]) -> Option<Self> {
        let [_, outputs] = *shape else { return None };
        let stored = form.stored_shape(shape).try_into().ok()?;
        form.fits(shape).then_some(Self {
            form,
            outputs,
            stored,
        })
    }

    /// Returns the name of the tensor of factors of another tensor.
    pub fn factors_name(name: &str) -> String {
        format!("{name}_scale_inv")
    }

    /// Returns the shape of the factors: one for each block.
    pub fn factors_shape(&self) -> [usize; 2] {
        self.stored.map(|size| size.div_ceil(FLOAT8_BLOCK))
    }

    /// Returns which factor an element of the parameter has, by its row-major number.
    pub fn factor_of(&self, element: usize) -> usize {
        let (row, column) = match self.form {
            Form::Same => (element / self.outputs, element % self.outputs),
            Form::Transposed | Form::Rotary { .. } | Form::Stacked => {
                let (input, output) = (element / self.outputs, element % self.outputs);
                (self.form.row(output), input)
            }
        };
        row / FLOAT8_BLOCK * self.factors_shape()[1] + column / FLOAT8_BLOCK
    }
}

impl Folder {
    /// Returns whether a tensor has floats of 8 bits (`F8_E4M3`).
    pub fn is_float8(&self, name: &str) -> bool {
        self.dtype_name(name) == FLOAT8
    }

    /// Reads as [`Folder::read`] does, of the bits of floats of 8 bits. The request is for [`DType::U8`].
    ///
    /// # Errors
    /// As [`Folder::read`]; [`CheckpointError::Keys`] if the tensor has elements of another type.
    pub fn read_float8(
        &self,
        form: Form,
        request: &mut Request<'_>,
    ) -> Result<NumBytes, CheckpointError> {
        let found = self.is_float8(&request.key).then_some(DType::U8);
        self.tensors.read_as(form, request, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_of_the_tensor_as_it_is_stored() {
        let of = |form, shape: &[usize]| Float8::of(form, shape);
        assert_eq!(of(Form::Same, &[256]), None);
        assert_eq!(of(Form::Transposed, &[2, 3, 4]), None);
        let shape = [130, 384];
        for (form, factors) in [
            (Form::Same, [2, 3]),
            (Form::Transposed, [3, 2]),
            (Form::Rotary { head_dim: 192 }, [3, 2]),
        ] {
            let float8 = of(form, &shape).expect("a matrix");
            assert_eq!(float8.factors_shape(), factors, "{form}");
            for element in 0..130 * 384 {
                let (input, output) = (element / 384, element % 384);
                let (row, column) = match form {
                    Form::Same => (input, output),
                    _ => (form.row(output), input),
                };
                let expected = row / 128 * factors[1] + column / 128;
                assert_eq!(float8.factor_of(element), expected, "{form}, {element}");
            }
        }
        assert_eq!(Float8::factors_name("a.weight"), "a.weight_scale_inv");
    }
}
