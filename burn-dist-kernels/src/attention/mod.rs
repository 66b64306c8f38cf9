//! Scaled dot-product attention on the host, in memory linear in the sequence: blocks of queries meet blocks of keys
//! with a running maximum and sum, and the backward makes the weights again from the saved log-sum-exp.
//!
//! ```text
//! scores[i, j] = scale * q[i] . k[j] + bias[i, j]        hidden ones: -infinity
//! weights      = softmax over j of scores                a query that sees no key: zeros
//! out[i]       = sum over j of weights[i, j] * v[j]    dropped weights: zeros, the others larger
//! ```
//!
//! A result depends on its own batch element and group of heads alone, and on sizes: not on threads, nor on how batches
//! and heads are split over ranks. Exponentials and logarithms are those of [regions](crate::region).
//!
//! # Source
//! Dao, "FlashAttention-2" (arXiv:2307.08691), sections 3.1 and 3.2; Ainslie et al., "GQA" (arXiv:2305.13245) for groups
//! of query heads that share a head of keys and values.

mod attend;
mod backward;
mod block;
mod dropout;
mod forward;
mod inputs;
mod rows;
mod view;

pub use attend::Attend;
pub use backward::Gradients;
pub use block::Real;
pub use dropout::{Dropout, Origin, Places};
pub use forward::{Forward, Made};
pub use inputs::{Inputs, Sizes, Visible};
pub use rows::Rows;
pub use view::{Array, View};

#[cfg(test)]
mod tests;
