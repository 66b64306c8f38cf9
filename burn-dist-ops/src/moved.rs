//! Operations that fill a tensor or move elements, as they lie: for kernels that do it for every type alike.

use burn_ir::TensorIr;
use burn_std::DType;

use super::create::Create;
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
            _ => return None,
        };
        let is_plain = has_elements(out) && !matches!(out.dtype, DType::QFloat(_) | DType::Bool(_));
        is_plain.then_some((moved, out))
    }
}
