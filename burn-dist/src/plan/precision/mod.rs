//! Mixed precision: a window with 16-bit types where its units ask for them.

mod policy;

pub use policy::{Float, Precision, PrecisionTextError};
