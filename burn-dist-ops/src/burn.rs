//! Names of Burn that differ by its line, one name for both.
//!
//! | file | line |
//! | --- | --- |
//! | `v022` | the current one, 0.22 |
//! | `v021` | 0.21 |
//!
//! Which operations a line has is in `table`, and whole families of one line are files of their own; no other file
//! tells lines apart.

use std::any::Any;

use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, Shape, TensorMetadata};

#[cfg(burn_021)]
mod v021;
#[cfg(not(burn_021))]
mod v022;

#[cfg(burn_021)]
pub use v021::*;
#[cfg(not(burn_021))]
pub use v022::*;

/// Moves `value` out as a `T`, if that is what it is.
pub fn downcast<S: 'static, T: 'static>(value: S) -> Result<T, S> {
    let mut value = Some(value);
    match (&mut value as &mut dyn Any).downcast_mut::<Option<T>>() {
        Some(found) => Ok(found.take().expect("put in above")),
        None => Err(value.take().expect("put in above, not taken")),
    }
}

/// Adds a bias to rows, as a linear layer does.
pub fn with_bias<B: Backend>(rows: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
    let (size, ndim) = (bias.shape()[0], rows.shape().num_dims());
    let sizes = std::iter::repeat_n(1, ndim - 1).chain([size]);
    let bias = B::float_reshape(bias, Shape::from(sizes.collect::<Vec<usize>>()));
    B::float_add(rows, bias)
}
