//! Batches that go on where a run was left: on another mesh, in another number of processes, with another batch size.
//!
//! A [`Loader`] makes batches of the items of a data set, as Burn's own loader does. The order of samples is a function
//! of seed and epoch, and a [`Position`] in it is an epoch and a number of samples. Neither knows of a mesh or of
//! batches, so samples are neither lost nor repeated when a run is resumed with others of these.
//!
//! Every process has the same loader. It loads all items of a batch, or with [`Loader::local`] those of its own rows.
//!
//! Left out on purpose: data without a length and an index (streams), and the state of random augmentation. An item is
//! to follow from its index.

mod batches;
mod epoch;
mod loader;

#[cfg(test)]
mod tests;

pub use batches::Batches;
pub use burn_dist_front::data::{DataError, Position, ResumeError, Stream};
pub use loader::Loader;
