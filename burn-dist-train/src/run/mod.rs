//! The folder of a run: what is where in it, and that one running program has it.
//!
//! ```text
//! RUN/config.toml       the settings of the run, all of them
//!     metrics.jsonl     figures and events, a line each
//!     tensorboard/      the same figures as TensorBoard reads them
//!     checkpoints/      a directory for each
//!     report.json       the record of the run, written at its end
//!     loss.png          the loss curve, drawn at its end
//!     run.lock          who has the folder
//! ```
//!
//! Not here: what the files hold. Each is written by the part of a program that knows it.

mod error;
mod lock;
mod past;

pub use error::RunError;
pub use lock::RunLock;

use std::path::{Path, PathBuf};

/// Where the files of a run are. Of several processes all know it, and one takes its [lock](Self::lock).
///
/// ```
/// use burn_dist_train::run::{Begin, RunFolder};
///
/// # let root = std::env::temp_dir().join(format!("a-run-folder-{}", std::process::id()));
/// let folder = RunFolder::at(&root);
/// let lock = folder.lock(Begin::New)?;
/// assert!(!lock.goes_on());
/// // Whoever comes while the run lasts is told who has it.
/// let refused = folder.lock(Begin::OrGoOn).unwrap_err().to_string();
/// assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
/// drop(lock);
/// # std::fs::remove_dir_all(&root)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    root: PathBuf,
}

/// How a program wants to find the folder of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Without figures and checkpoints of any run; one that ended before its first step left neither.
    New,
    /// A new folder, or one as an earlier program left it, to go on from there.
    OrGoOn,
}

impl RunFolder {
    /// Names a folder, which need not be there yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Returns the file of the run's settings.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// Returns the file of figures and events.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// Returns the directory of TensorBoard's event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.root.join("tensorboard")
    }

    /// Returns the directory of the run's checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Returns the file of the run's record.
    pub fn report(&self) -> PathBuf {
        self.root.join("report.json")
    }

    /// Returns the picture of the loss curve.
    pub fn plot(&self) -> PathBuf {
        self.root.join("loss.png")
    }
}
