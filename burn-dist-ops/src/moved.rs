//! Operations that fill a tensor or move elements, as they lie, and the gradient of an embedding, which adds rows up: for
//! kernels that run on tensors in memory.

use burn_ir::TensorIr;
use burn_std::DType;

use super::create::Create;
use super::embedding::Embedding;
use super::family::Family;
use super::join::Join;
use super::nothing::has_elements;
use super::recorded::Recorded;
use super::view::View;

/// Elements that come from elsewhere as they are.
pub enum Moved<'a> {
    /// Every element is zero.
    Zeros,
    /// The elements of a tensor, in order.
    Reshape(&'a TensorIr),
    /// Tensors one behind the other along a dim.
    Cat(&'a [TensorIr], usize),
    /// The rows of a matrix that indices name.
    Rows {
        /// The matrix.
        of: &'a TensorIr,
        /// The indices.
        indices: &'a TensorIr,
    },
    /// Zeros, and rows added to those of them that indices name, in order.
    SumOfRows {
        /// The rows, one for each index.
        added: &'a TensorIr,
        /// The indices.
        indices: &'a TensorIr,
        /// A tensor of which nothing but the shape is read.
        like: &'a TensorIr,
    },
}

impl Recorded {
    /// Returns what the operation moves, and the tensor that it makes, if that has elements and moving is all it does.
    pub fn moved(&self) -> Option<(Moved<'_>, &TensorIr)> {
        let (moved, out) = match self.family_of().1 {
            Family::Create(Create::Zeros(op)) => (Moved::Zeros, &op.out),
            Family::View(View::Reshape(op)) => (Moved::Reshape(&op.input), &op.out),
            Family::Join(Join::Cat(op))
                if op.tensors.len() > 1 && op.tensors.iter().all(has_elements) =>
            {
                (Moved::Cat(&op.tensors, op.dim), &op.out)
            }
            Family::Embedding(Embedding::Embedding(op)) if is_index(&op.indices) => {
                let (of, indices) = (&op.weights, &op.indices);
                (Moved::Rows { of, indices }, &op.out)
            }
            Family::Embedding(Embedding::EmbeddingBackward(op))
                if is_index(&op.indices) && op.out.dtype == DType::F32 =>
            {
                let sum = Moved::SumOfRows {
                    added: &op.out_grad,
                    indices: &op.indices,
                    like: &op.weights,
                };
                (sum, &op.out)
            }
            _ => return None,
        };
        let is_plain = has_elements(out) && !matches!(out.dtype, DType::QFloat(_) | DType::Bool(_));
        is_plain.then_some((moved, out))
    }
}

/// Returns whether a tensor has indices as kernels read them.
fn is_index(tensor: &TensorIr) -> bool {
    matches!(tensor.dtype, DType::I64 | DType::I32) && has_elements(tensor)
}
