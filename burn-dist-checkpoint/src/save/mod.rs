//! Saving: who writes what, the files, the commit, and which checkpoints are kept.

mod background;
mod block;
mod commit;
mod keep;
mod plan;
#[cfg(test)]
mod tests;
mod writer;

pub use background::{Busy, Meter, Saver, Saving};
pub use commit::Save;
pub use keep::{Checkpoints, Keep};
pub use plan::{SavePlan, Share, Tensor};
pub use writer::{FileWriter, Part, Progress};
