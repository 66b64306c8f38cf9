//! Why a folder cannot be a run's.

use std::io;
use std::path::PathBuf;

/// A folder that a program cannot have for its run.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another program that runs has it.
    #[error(
        "{} belongs to {holder}, which is running: wait for its end, or choose another folder for this run",
        root.display()
    )]
    Taken {
        /// The folder.
        root: PathBuf,
        /// The other program.
        holder: String,
    },
    /// It is to be new, and a run was there.
    #[error(
        "{} is of an earlier run: go on with it (--resume auto, if the program has it), or choose another folder",
        found.display()
    )]
    Begun {
        /// A file of that run.
        found: PathBuf,
    },
    /// It goes on, and what it is to go on from is not there.
    #[error(
        "{} tells of a checkpoint of step {step}, and there is none to go on from: put the checkpoints back where the \
         run looks for them (--checkpoint, if the program has it), or choose another folder for a new run",
        lines.display()
    )]
    Gone {
        /// The file of figures and events.
        lines: PathBuf,
        /// The step of the last checkpoint that was saved.
        step: u64,
    },
    /// It cannot be made, or not be written to.
    #[error("{} cannot be the folder of a run: {source}", path.display())]
    Unusable {
        /// The folder, or a file in it.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

burn_dist_mesh::debug_by_message!(RunError);
