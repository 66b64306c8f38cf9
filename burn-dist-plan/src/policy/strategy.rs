//! The parts of a model that rest in pieces.

use std::fmt;
use std::str::FromStr;

use burn_dist_mesh::TextError;

/// The effect of a shard axis on parameters, gradients and optimizer state (ZeRO, arXiv:1910.02054, section 5).
///
/// Optimizer state and, between steps, parameters are sharded under all of them but `Replicate`; values are bitwise the
/// same under all.
///
/// Text form: `fsdp`, `zero2`, `zero1`, `ddp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShardStrategy {
    /// FSDP, ZeRO-3: parameters are gathered per unit and freed as [`Reshard`](super::Reshard) says, gradients
    /// reduce-scattered as soon as they are complete.
    #[default]
    Full,
    /// ZeRO-2: parameters stay gathered from their first use in a step until the optimizer; gradients as under `Full`.
    GradOptim,
    /// ZeRO-1: as ZeRO-2, and gradients stay whole, as each rank's own terms, until the optimizer needs them.
    Optim,
    /// DDP: parameters, gradients and optimizer state are whole on every rank, gradients all-reduced as soon as they
    /// are complete.
    Replicate,
}

impl ShardStrategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Full, Self::GradOptim, Self::Optim, Self::Replicate];
}

impl fmt::Display for ShardStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "fsdp",
            Self::GradOptim => "zero2",
            Self::Optim => "zero1",
            Self::Replicate => "ddp",
        })
    }
}

impl FromStr for ShardStrategy {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fsdp" => Ok(Self::Full),
            "zero2" => Ok(Self::GradOptim),
            "zero1" => Ok(Self::Optim),
            "ddp" => Ok(Self::Replicate),
            _ => Err(TextError::new(
                text,
                "is not a sharding strategy: use fsdp, zero2, zero1 or ddp",
            )),
        }
    }
}
