//! Saving: who writes what, the files, the commit, which checkpoints are found and kept, and who may save.

mod background;
mod block;
mod checkpoints;
mod commit;
mod find;
mod keep;
mod own;
mod plan;
mod share;
#[cfg(test)]
mod tests;
mod writer;

pub use background::{Busy, Meter, Saver, Saving};
pub use checkpoints::Checkpoints;
pub use commit::Save;
pub use find::{Newest, PassedOver};
pub use keep::Keep;
pub use plan::SavePlan;
pub use share::{Share, Tensor};
pub use writer::{FileWriter, Part, Progress};
