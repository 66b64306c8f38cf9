//! Errors of files of figures.

use std::io;
use std::path::PathBuf;

/// Figures that cannot be written, or go on in a file.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// A file cannot be opened, made or read.
    #[error("cannot write figures to {}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file with a line that is none of figures.
    #[error(
        "cannot go on with {}: line {line} is not of a run ({reason}): move the file away, or take the line out",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The fault in words.
        reason: String,
    },
    /// A file that did not take everything.
    #[error("{} lacks {lost} records of this run: the first could not be written: {first}", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// How many records.
        lost: u64,
        /// Why the first could not be written.
        first: String,
    },
    /// No thread.
    #[error("there is no thread to write figures: {0}")]
    NoThread(io::Error),
}

burn_dist_mesh::debug_by_message!(MetricsError);
