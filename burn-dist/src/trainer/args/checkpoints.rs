//! The checkpoints of a run.

use std::fmt;
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
    /// Go on from the folder's checkpoints: never, from the newest one (auto), or from that of a step; those of later
    /// steps are then set aside. What `burn-dist run --max-restarts` has started anew takes the newest one.
    #[arg(long, value_name = "never|auto|STEP", default_value_t, value_parser = resume, requires = "kept")]
    pub resume: Resume,
}

impl CheckpointArgs {
    /// Returns the checkpoint that the run goes on from. After a failure, the launcher starts the program with the
    /// arguments of its first start, which has saved checkpoints since.
    ///
    /// # Errors
    /// If the launcher's variables cannot be read.
    pub fn resumes(&self) -> anyhow::Result<Resume> {
        Ok(match crate::launch::restarts()? {
            0 => self.resume,
            _ => Resume::Auto,
        })
    }
}

/// The checkpoint that a run goes on from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Resume {
    /// Nothing: a folder with checkpoints is refused.
    #[default]
    Never,
    /// The newest checkpoint; a folder without any is begun.
    Auto,
    /// The checkpoint of a step.
    At(u64),
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Auto => f.write_str("auto"),
            Self::At(step) => write!(f, "{step}"),
        }
    }
}

fn resume(text: &str) -> Result<Resume, String> {
    match (text, text.parse()) {
        ("never", _) => Ok(Resume::Never),
        ("auto", _) => Ok(Resume::Auto),
        (_, Ok(step)) if step > 0 => Ok(Resume::At(step)),
        _ => Err("it is never, auto, or the step of a checkpoint, such as 60".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_go_on_from_is_read_as_it_is_written() {
        for known in [Resume::Never, Resume::Auto, Resume::At(60)] {
            assert_eq!(resume(&known.to_string()), Ok(known));
        }
        for wrong in ["0", "-1", "last", "", "6.5"] {
            assert!(resume(wrong).unwrap_err().contains("such as 60"), "{wrong}");
        }
    }
}
