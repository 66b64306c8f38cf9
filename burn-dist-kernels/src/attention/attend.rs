//! Entries for callers: compiled here once for each type, as fast as all kernels, and not with whoever calls them.

use super::backward::{Gradients, backward};
use super::forward::{Forward, Made, forward};
use super::{Inputs, Real, View};

/// A number that attention has kernels for.
pub trait Attend: Real {
    /// Attends.
    ///
    /// # Panics
    /// If a shape is not that of the sizes.
    fn forward(inputs: &Inputs<'_, Self>) -> Forward<Self>;

    /// Returns the gradients of the inputs, of that of the result (`[batch, heads, group, queries, value_width]`) and of
    /// what the forward made; that of the bias if `with_bias`.
    ///
    /// # Panics
    /// If a shape is not that of the sizes, or elements of a row of the result do not lie next to each other.
    fn backward(
        inputs: &Inputs<'_, Self>,
        made: Made<'_, Self>,
        gradient: View<'_, Self, 5>,
        with_bias: bool,
    ) -> Gradients<Self>;
}

macro_rules! attend {
    ($($type:ty),*) => {
        $(impl Attend for $type {
            fn forward(inputs: &Inputs<'_, Self>) -> Forward<Self> {
                forward(inputs)
            }

            fn backward(
                inputs: &Inputs<'_, Self>,
                made: Made<'_, Self>,
                gradient: View<'_, Self, 5>,
                with_bias: bool,
            ) -> Gradients<Self> {
                backward(inputs, made, gradient, with_bias)
            }
        })*
    };
}
attend!(f32, f64);
