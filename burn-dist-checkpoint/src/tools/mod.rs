//! Tools for people: they look at a checkpoint, verify it, compare two, make one file or other pieces of it.
//!
//! Memory stays bounded, whatever the size of a tensor.

mod consolidate;
mod diff;
mod inspect;
mod reshard;
mod stream;
#[cfg(test)]
mod tests;
mod verify;

pub use consolidate::consolidate;
pub use diff::{Changed, Difference, diff};
pub use inspect::inspect;
pub use reshard::reshard;
pub use verify::{Verified, verify};
