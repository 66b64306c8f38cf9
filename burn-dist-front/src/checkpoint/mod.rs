//! Saving and loading, as far as no tensor is named.

pub mod float8;
pub mod threads;
