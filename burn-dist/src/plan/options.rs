//! What a plan depends on besides the window.

use std::fmt;
use std::str::FromStr;

use burn_std::BoolStore;

use super::checkpoint::Checkpoint;
use super::offload::Offload;
use super::precision::{Float, Precision};
use super::storage::Storage;
use super::units::Reshard;
use crate::mesh::{AxisIndex, Links, MeshShape, Rank, TextError, Topology};

/// What a shard axis does with parameters, gradients and optimizer state (ZeRO, arXiv:1910.02054, section 5).
///
/// Optimizer state and, between steps, parameters are sharded under all of them but `Replicate`; values are bitwise the
/// same under all. It is said of an axis ([`DeviceMeshBuilder::strategy`](crate::DeviceMeshBuilder::strategy)) or of a
/// unit ([`Plan::strategy`](crate::Plan::strategy)), which then wins.
///
/// As text: `fsdp`, `zero2`, `zero1`, `ddp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShardStrategy {
    /// FSDP, ZeRO-3: parameters are gathered per unit and given up as [`Reshard`] says, gradients reduce-scattered as
    /// soon as they are complete.
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

/// When the gradients of several backward passes that one step of the optimizer uses are reduced over data axes.
///
/// Gradients are added by whatever adds them, such as Burn's `GradientsAccumulator`; this says whether before or after
/// they are reduced. Results differ by rounding alone. As text: `window`, `step`, `microbatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// Gradients that are recorded between two reads are added and then reduced, once; those that live on beyond a read
    /// are reduced at it. So a step that reads nothing but its last loss reduces once, and one that reads every loss
    /// once for each. Gradients are reduced during the backward pass.
    #[default]
    PerWindow,
    /// Once a step (`no_sync` of PyTorch): gradients stay terms of their sum, whole on every rank, until the optimizer
    /// needs them. Least traffic, most memory.
    PerStep,
    /// Each backward pass, before anything is added: between passes every rank keeps its pieces alone (under FSDP).
    /// Most traffic, least memory. A parameter that two modules share is reduced once for each.
    PerMicrobatch,
}

impl fmt::Display for Accumulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PerWindow => "window",
            Self::PerStep => "step",
            Self::PerMicrobatch => "microbatch",
        })
    }
}

impl FromStr for Accumulation {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "window" => Ok(Self::PerWindow),
            "step" => Ok(Self::PerStep),
            "microbatch" => Ok(Self::PerMicrobatch),
            _ => Err(TextError::new(
                text,
                "does not say when accumulated gradients are reduced: use window, step or microbatch",
            )),
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
    /// When accumulated gradients are reduced.
    pub accumulation: Accumulation,
}

impl Default for Sharding {
    fn default() -> Self {
        Self {
            strategies: Vec::new(),
            reshard: Reshard::default(),
            prefetch: 1,
            accumulation: Accumulation::default(),
        }
    }
}

impl Sharding {
    /// Returns the strategy of an axis for tensors whose unit has its own, or none.
    pub fn strategy(&self, axis: AxisIndex, own: Option<ShardStrategy>) -> ShardStrategy {
        let found = self.strategies.iter().find(|(a, _)| *a == axis);
        let of_axis = found.map_or(ShardStrategy::Full, |(_, strategy)| *strategy);
        own.unwrap_or(of_axis)
    }

    /// Returns the axes over which tensors rest whose unit has a strategy of its own, or none.
    pub fn rest_axes(&self, mesh: &MeshShape, own: Option<ShardStrategy>) -> Vec<AxisIndex> {
        let mut axes = mesh.shard_axes();
        axes.retain(|axis| self.strategy(*axis, own) != ShardStrategy::Replicate);
        axes
    }
}

/// What a plan depends on besides the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Whether values that come from nothing wait for their use.
    pub defer: bool,
    /// Whether dim 0 of data, and of what is made of it, is split over the data axes where nothing decides.
    pub split_batches: bool,
    /// Seed of fuzz layouts, if on.
    pub fuzz: Option<u64>,
    /// Partial values smaller than this are all-reduced rather than reduce-scattered: latency outweighs bytes. Not
    /// gradients that the window's optimizer uses.
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
    /// Which ranks are on one node.
    pub topology: Topology,
    /// Links inside and between nodes, if known: where they say that it takes less time, collectives over several nodes
    /// are composed.
    pub links: Links,
    /// Collectives over several nodes are composed from this many bytes on, whatever the links.
    pub hierarchy_bytes_min: Option<u64>,
    /// The ranks to plan for.
    pub ranks: Vec<Rank>,
    /// How the inner backend stores bools.
    pub bool_store: BoolStore,
    /// How it stores tensors.
    pub storage: Storage,
    /// What lives on the host while it is not needed.
    pub offload: Offload,
}
