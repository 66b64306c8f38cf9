//! An operation that Burn does not have, on one device and on a mesh: `gelu(x + bias)` in one kernel, and its backward
//! in another.
//!
//! | file | idea |
//! | --- | --- |
//! | `kernels` | the two kernels, on tensors of Flex |
//! | `mesh` | what they are to a mesh: results, rule, and how a rank runs them |
//! | `gradient` | the backward, as Burn's users write it: the same for one device and for a mesh |
//! | `layer` | a feed-forward block that uses it |

pub mod gradient;
pub mod kernels;
pub mod layer;
pub mod mesh;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, backend_extension};
use burn::tensor::Tensor;

/// A backend with the operation: Flex, and a mesh, which Burn's dispatch knows by the name `NdArray`.
#[backend_extension(Flex, NdArray, Autodiff)]
pub trait Backend: burn::backend::Backend {
    /// Returns `gelu(x + bias)`.
    ///
    /// # Shapes
    /// `x` and the result are `[.., n]`, `bias` is `[n]`.
    fn bias_gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradients of `x` and `bias`, of that of the result.
    fn bias_gelu_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Returns `gelu(x + bias)`.
///
/// # Shapes
/// `x` and the result are `[.., n]`, `bias` is `[n]`.
pub fn bias_gelu<const D: usize>(x: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::bias_gelu(x.into_dispatch(), bias.into_dispatch()))
}
