//! Tensors that lie whole in files of others: how they hold a parameter, and reading any region of it.

mod form;
mod pieces;
mod read;
mod tensors;

pub use form::Form;
pub use tensors::NumBytes;

#[cfg(test)]
pub(crate) use pieces::COLUMNS;
pub(crate) use tensors::{Stored, Tensors};
