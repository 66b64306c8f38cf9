//! What a plan depends on besides the window.

use std::fmt;
use std::str::FromStr;

use burn_std::BoolStore;

use super::checkpoint::Checkpoint;
use super::offload::Offload;
use super::precision::{Float, Precision};
use super::storage::Storage;
use super::units::Reshard;
use crate::mesh::{AxisIndex, Rank};

/// What a shard axis does with parameters, gradients and optimizer state (ZeRO, arXiv:1910.02054, section 5).
///
/// Optimizer state and, between steps, parameters are sharded under all of them; values are bitwise the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShardStrategy {
    /// FSDP, ZeRO-3: parameters are gathered per unit and given up as [`Reshard`] says, gradients reduce-scattered as soon as they are complete.
    #[default]
    Full,
    /// ZeRO-2: parameters stay gathered from their first use in a step until the optimizer; gradients as under `Full`.
    GradOptim,
    /// ZeRO-1: as ZeRO-2, and gradients stay whole, as each rank's own terms, until the optimizer needs them.
    Optim,
}

impl fmt::Display for ShardStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "fsdp",
            Self::GradOptim => "zero2",
            Self::Optim => "zero1",
        })
    }
}

/// A text that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a sharding strategy: use fsdp, zero2 or zero1")]
pub struct StrategyTextError {
    text: String,
}

impl FromStr for ShardStrategy {
    type Err = StrategyTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "fsdp" => Ok(Self::Full),
            "zero2" => Ok(Self::GradOptim),
            "zero1" => Ok(Self::Optim),
            _ => Err(StrategyTextError { text: text.into() }),
        }
    }
}

/// How sharded parameters and gradients move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Shard axes that are not under [`ShardStrategy::Full`].
    pub strategies: Vec<(AxisIndex, ShardStrategy)>,
    /// When gathered parameters are given up.
    pub reshard: Reshard,
    /// Units whose parameters are gathered ahead of their use.
    pub prefetch: u32,
}

impl Default for Sharding {
    fn default() -> Self {
        Self {
            strategies: Vec::new(),
            reshard: Reshard::default(),
            prefetch: 1,
        }
    }
}

impl Sharding {
    /// Returns the strategy of an axis.
    pub fn strategy(&self, axis: AxisIndex) -> ShardStrategy {
        let found = self.strategies.iter().find(|(a, _)| *a == axis);
        found.map_or(ShardStrategy::Full, |(_, strategy)| *strategy)
    }
}

/// What a plan depends on besides the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Whether values that come from nothing wait for their use.
    pub defer: bool,
    /// Seed of fuzz layouts, if on.
    pub fuzz: Option<u64>,
    /// Partial values smaller than this are all-reduced rather than reduce-scattered: latency outweighs bytes.
    pub scatter_bytes_min: usize,
    /// How sharded parameters and gradients move.
    pub sharding: Sharding,
    /// Which activations are made again in the backward.
    pub checkpoint: Checkpoint,
    /// What units compute in that do not say so themselves.
    pub precision: Option<Precision>,
    /// Float types that the inner backend does not compute in.
    pub floats_missing: Vec<Float>,
    /// Whether other processes have ranks too: what is read is gathered, for each of them to see.
    pub everyone_reads: bool,
    /// The ranks to plan for.
    pub ranks: Vec<Rank>,
    /// How the inner backend stores bools.
    pub bool_store: BoolStore,
    /// How it stores tensors.
    pub storage: Storage,
    /// What lives on the host while it is not needed.
    pub offload: Offload,
}
