//! What a plan depends on besides the window.

use crate::mesh::BoolStore;

use crate::mesh::{AxisIndex, Links, MeshShape, Rank, Topology};
use crate::storage::Storage;
use crate::{Accumulation, Checkpoint, Float, Offload, Precision, Reshard, ShardStrategy};

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
