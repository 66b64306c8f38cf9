//! The checkpoints of a run.

use std::path::PathBuf;

use clap::Args;

use super::numbers::positive;

/// How a run is kept, and gone on with.
#[derive(Debug, Clone, Args)]
pub struct CheckpointArgs {
    /// Keep checkpoints of the run in this folder (by default, with --run, in its checkpoints/): weights, optimizer and
    /// position in the data, at the end and when it is stopped too. Any --mesh, number of processes and --batch goes on
    /// from there.
    #[arg(long, value_name = "DIR", group = "kept")]
    pub checkpoint: Option<PathBuf>,
    /// Steps from one checkpoint to the next; training goes on while one is written.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive, requires = "kept")]
    pub every: usize,
    /// How many of the last checkpoints stay.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive, requires = "kept")]
    pub keep: usize,
    /// Whether to go on from the folder's last checkpoint. What `burn-dist run --max-restarts` has started anew does.
    #[arg(long, value_enum, default_value_t, requires = "kept")]
    pub resume: Resume,
}

impl CheckpointArgs {
    /// Whether the run goes on from what is there. After a failure, the launcher starts the program with the arguments
    /// of its first start.
    ///
    /// # Errors
    /// If the launcher's variables cannot be read.
    pub fn resumes(&self) -> anyhow::Result<bool> {
        Ok(self.resume == Resume::Auto || burn_dist::launch::restarts()? > 0)
    }
}

/// Whether a run goes on from a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Resume {
    /// A folder with checkpoints is refused.
    #[default]
    Never,
    /// From the last one; a folder without any is begun.
    Auto,
}
