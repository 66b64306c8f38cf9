//! Checkpoints of training runs: modules, optimizers, schedulers, random numbers and values of the program, saved from
//! any mesh and loaded onto any mesh.
//!
//! | file | idea |
//! | --- | --- |
//! | `state` | what is saved |
//! | `checkpointer`, `job`, `processes` | saving: who writes what, in all processes |
//! | `saved`, `opened`, `wants` | loading: what goes where |
//! | `parameter`, `parameters`, `restore` | the parameters of any module: listed, taken, replaced |
//! | `loaded` | states of optimizers that the mesh has, as what Burn loads |
//! | `settle` | updates that a module keeps apart |
//! | `record`, `text` | the records of optimizers and schedulers as text and tensors |
//! | `write` | the parts of ranks into the files of a checkpoint |
//! | `hf`, `folder` | folders in the form of Hugging Face |
//! | `place` | where tensors that are loaded go |
//! | `read` | tensors of a checkpoint into the layouts that they shall have |
//!
//! The files themselves, and the tools for them, are those of the crate `burn-dist-checkpoint`.

mod checkpointer;
mod error;
mod folder;
pub mod hf;
mod job;
mod loaded;
mod opened;
mod parameter;
mod parameters;
mod place;
mod processes;
mod read;
mod record;
mod restore;
mod saved;
mod scheduler;
mod settle;
mod state;
mod text;
mod wants;
mod write;

pub use burn_dist_checkpoint::{
    Checkpoint, CheckpointError, Checkpoints, Keep, KeyReport, Match, Mismatch, Newest, NonFinite,
    PassedOver, Progress, Saving, storage, tools,
};
pub use checkpointer::Checkpointer;
pub use error::StateError;
pub use opened::LoadOptions;
pub use saved::Saved;
pub use scheduler::Scheduler;
pub use state::State;
