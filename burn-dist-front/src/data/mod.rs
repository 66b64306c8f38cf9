//! Which samples are a batch, in an order that no mesh changes; positions in it; and items that are loaded ahead.

mod error;
mod order;
mod position;
mod samples;
mod spans;
mod workers;

pub use error::{DataError, ItemError};
pub use position::{Position, ResumeError, Stream};
pub use samples::{Batched, Samples};
