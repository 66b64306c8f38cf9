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
