//! Operations that are products of f32 matrices, as their batches lie: for kernels that make them all alike.

use burn_ir::TensorIr;
use burn_std::DType;

use super::family::Family;
use super::kinds::Kind;
use super::linear::Linear;
use super::matmul::Matmul;
use super::recorded::Recorded;
use crate::burn::SUMS_OF_ONE;

/// A batch of products of f32 matrices.
pub struct Product<'a> {
    /// The matrices of the left side.
    pub left: Factor<'a>,
    /// The matrices of the right side.
    pub right: Factor<'a>,
    /// The result.
    pub out: &'a TensorIr,
    /// The sizes of the batch.
    pub batch: Vec<usize>,
    /// True if the result is the sum of all products.
    pub is_sum: bool,
    /// A row that is added to each.
    pub bias: Option<&'a TensorIr>,
}

/// The matrices of one side.
pub struct Factor<'a> {
    /// The tensor that has them.
    pub tensor: &'a TensorIr,
    /// True if the product is one of the transposed matrices.
    pub is_turned: bool,
    /// True if Burn gives it dims of a batch first, for which Flex copies what is not in order.
    pub is_reshaped: bool,
}

impl<'a> Factor<'a> {
    fn plain(tensor: &'a TensorIr) -> Self {
        Self {
            tensor,
            is_turned: false,
            is_reshaped: false,
        }
    }

    fn turned(tensor: &'a TensorIr) -> Self {
        Self {
            is_turned: true,
            ..Self::plain(tensor)
        }
    }

    /// The weight of a layer, for matrices like those of another tensor.
    fn weight(tensor: &'a TensorIr, is_turned: bool, like: &TensorIr) -> Self {
        Self {
            is_turned,
            is_reshaped: like.shape.num_dims() > 2,
            ..Self::plain(tensor)
        }
    }

    /// Returns rows and columns, as the product has them.
    pub fn sizes(&self) -> [usize; 2] {
        let shape = self.tensor.shape.as_slice();
        match (shape, self.is_turned) {
            ([.., rows, columns], false) | ([.., columns, rows], true) => [*rows, *columns],
            _ => unreachable!("matrices have two dims"),
        }
    }

    /// Returns elements from one row to the next, and from one column to the next.
    pub fn own_strides(&self, strides: &[isize]) -> [isize; 2] {
        match (strides, self.is_turned) {
            ([.., rows, columns], false) | ([.., columns, rows], true) => [*rows, *columns],
            _ => unreachable!("matrices have two dims"),
        }
    }

    /// Returns elements from one index to the next along each dim of a batch of so many; zero where it repeats.
    pub fn batch_strides(&self, strides: &[isize], dims: usize) -> Vec<isize> {
        let shape = self.tensor.shape.as_slice();
        let own = shape.len() - 2;
        let strides = shape[..own].iter().zip(&strides[..own]);
        let strides = strides.map(|(size, stride)| if *size == 1 { 0 } else { *stride });
        std::iter::repeat_n(0, dims - own).chain(strides).collect()
    }
}

impl Recorded {
    /// Returns the operation as products of f32 matrices with elements, if it is that and no more than a bias.
    pub fn product(&self) -> Option<Product<'_>> {
        let (left, right, out, is_weight, bias) = match self.family_of() {
            (Kind::Float, Family::Matmul(Matmul::Matmul(op))) => (
                Factor::plain(&op.lhs),
                Factor::plain(&op.rhs),
                &op.out,
                false,
                None,
            ),
            (_, Family::Linear(Linear::Linear(op))) => {
                let bias = op.bias.as_ref();
                let right = Factor::weight(&op.weight, false, &op.x);
                (Factor::plain(&op.x), right, &op.out, false, bias)
            }
            (_, Family::Linear(Linear::LinearXBackward(op))) => {
                let right = Factor::weight(&op.weight, true, &op.output_grad);
                (Factor::plain(&op.output_grad), right, &op.out, false, None)
            }
            (_, Family::Linear(Linear::LinearWeightBackward(op))) => {
                let (x, gradient) = (Factor::turned(&op.x), Factor::plain(&op.output_grad));
                (x, gradient, &op.out, true, None)
            }
            _ => return None,
        };
        let tensors = [left.tensor, right.tensor, out].into_iter().chain(bias);
        let mut others = tensors
            .filter(|tensor| tensor.dtype != DType::F32 || tensor.shape.as_slice().contains(&0));
        let dims = |factor: &Factor<'_>| factor.tensor.shape.num_dims();
        if others.next().is_some() || dims(&left) < 2 || dims(&right) < 2 {
            return None;
        }
        let mut batch = match is_weight {
            true => left.tensor.shape.as_slice(),
            false => out.shape.as_slice(),
        }
        .to_vec();
        batch.truncate(batch.len() - 2);
        let count: usize = batch.iter().product();
        // Burn adds up dim by dim, and where a sum is one number, in parts.
        let is_one_by_one =
            batch.iter().filter(|size| **size != 1).count() <= 1 && out.shape.num_elements() > 1;
        if is_weight && !is_one_by_one {
            return None;
        }
        let sums = count > 1 || (SUMS_OF_ONE && !batch.is_empty());
        Some(Product {
            left,
            right,
            out,
            batch,
            is_sum: is_weight && sums,
            bias,
        })
    }
}
