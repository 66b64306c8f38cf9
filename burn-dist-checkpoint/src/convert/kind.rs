//! Kinds of what a path holds, and of what is to be written to one.

use std::fmt;

/// A form in which parameters are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Kind {
    /// A checkpoint: a directory with a manifest.
    Checkpoint,
    /// A folder in the form of Hugging Face.
    Hf,
    /// A record of a module, as named MessagePack.
    Mpk,
    /// A burnpack.
    Bpk,
}

/// Text form: `a checkpoint`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checkpoint => "a checkpoint",
            Self::Hf => "a model in the form of Hugging Face",
            Self::Mpk => "a record",
            Self::Bpk => "a burnpack",
        })
    }
}
