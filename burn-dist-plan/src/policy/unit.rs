//! What is said of the policy of a model or a unit.

use super::{Accumulation, Checkpoint, Offload, Policy, Precision, Reshard, ShardStrategy};
use crate::mesh::MeshShape;

/// What is said of the policy of a unit. What it leaves open is as the units around it say, the nearest first, then the
/// model, then the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitPolicy {
    /// What shard axes do, in the order in which it was said: all of them, or the one that is named.
    pub strategies: Vec<(Option<String>, ShardStrategy)>,
    /// When gathered parameters are given up.
    pub reshard: Option<Reshard>,
    /// How many units ahead of their use parameters are gathered.
    pub prefetch: Option<u32>,
    /// When accumulated gradients are reduced.
    pub accumulation: Option<Accumulation>,
    /// Which activations are made again in the backward.
    pub checkpoint: Option<Checkpoint>,
    /// What it computes in.
    pub precision: Option<Precision>,
    /// What lives on the host while it is not needed.
    pub offload: Option<Offload>,
}

impl UnitPolicy {
    /// Says nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what all shard axes do with parameters, gradients and optimizer state: [`ShardStrategy::Full`] (FSDP) by
    /// default. On a mesh without shard axes it changes nothing, and never a value.
    ///
    /// [`ShardStrategy::Replicate`] keeps parameters whole on every rank, with all-reduced gradients (DDP), as suits
    /// small modules; they stay split over tensor-parallel axes.
    pub fn strategy(mut self, strategy: ShardStrategy) -> Self {
        self.strategies.clear();
        self.strategies.push((None, strategy));
        self
    }

    /// Sets what one shard axis does; the mesh has to have it.
    ///
    /// Hybrid sharding (HSDP) needs no strategy: it is two axes, of which `dp=2,fsdp=4` shards over `fsdp` and
    /// replicates over `dp`.
    pub fn strategy_over(mut self, axis: impl Into<String>, strategy: ShardStrategy) -> Self {
        self.strategies.push((Some(axis.into()), strategy));
        self
    }

    /// Sets when gathered parameters are given up.
    pub fn reshard(mut self, reshard: Reshard) -> Self {
        self.reshard = Some(reshard);
        self
    }

    /// Sets how many units ahead of their use parameters are gathered, and what is offloaded is brought back: 1 by
    /// default, so at most two units are gathered at once; 0 gathers them when they are needed.
    ///
    /// Ahead in the order in which the recorded program uses them, which is known before it runs: there is none to
    /// learn, and none to give.
    pub fn prefetch(mut self, units: u32) -> Self {
        self.prefetch = Some(units);
        self
    }

    /// Sets when the gradients of several backward passes of one step are reduced over data axes: as they are recorded
    /// together, once a step, or each pass.
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = Some(accumulation);
        self
    }

    /// Sets which activations are made again in the backward instead of being kept, unit by unit: memory for work, and
    /// never another value.
    pub fn checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.checkpoint = Some(checkpoint);
        self
    }

    /// Sets what is computed in, over parameters that rest in f32: mixed precision, see [`Precision`].
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Sets what lives in host memory while it is not needed: parameters at rest, optimizer state, activations. Brought
    /// back [`prefetch`](Self::prefetch) units ahead of its use; never another value.
    ///
    /// With [`Offload::host_bytes_max`], a window whose ranks need more host memory together, for all units, fails with
    /// what was asked and what is allowed; of several limits the smallest counts.
    pub fn offload(mut self, offload: Offload) -> Self {
        self.offload = Some(offload);
        self
    }

    /// Returns the policy of a unit of which this is said, inside one of policy `around`. Whether the mesh has the axes
    /// is checked by whoever takes what is said; others are left out.
    pub fn over(&self, around: &Policy, mesh: &MeshShape) -> Policy {
        let (mut strategy, mut strategies) = (around.strategy, around.strategies.clone());
        for (axis, said) in &self.strategies {
            match axis {
                None => {
                    strategy = *said;
                    strategies.clear();
                }
                Some(name) => {
                    let Ok(axis) = mesh.axis(name) else { continue };
                    strategies.retain(|(of, _)| *of != axis);
                    strategies.push((axis, *said));
                }
            }
        }
        strategies.retain(|(_, of)| *of != strategy);
        strategies.sort_by_key(|(axis, _)| *axis);
        Policy {
            strategy,
            strategies,
            reshard: self.reshard.unwrap_or(around.reshard),
            prefetch: self.prefetch.unwrap_or(around.prefetch),
            accumulation: self.accumulation.unwrap_or(around.accumulation),
            checkpoint: self.checkpoint.unwrap_or(around.checkpoint),
            precision: self.precision.unwrap_or(around.precision),
            offload: self.offload.unwrap_or(around.offload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_open_is_as_around() {
        let mesh = MeshShape::parse("fsdp=2,shard=2").expect("a mesh");
        let [fsdp, shard] = ["fsdp", "shard"].map(|name| mesh.axis(name).expect("an axis"));
        let model = UnitPolicy::new()
            .strategy(ShardStrategy::GradOptim)
            .strategy_over("shard", ShardStrategy::Replicate)
            .prefetch(0);
        let model = model.over(&Policy::default(), &mesh);
        assert_eq!(model.strategy_over(fsdp), ShardStrategy::GradOptim);
        assert_eq!(model.rest_axes(&mesh), [fsdp]);
        let unit = UnitPolicy::new().checkpoint(Checkpoint::Full);
        let expected = Policy {
            checkpoint: Checkpoint::Full,
            ..model.clone()
        };
        assert_eq!(unit.over(&model, &mesh), expected);
        // All axes are said to do one thing: also those of which something else was said around it.
        let unit = UnitPolicy::new().strategy(ShardStrategy::Full);
        assert_eq!(
            unit.over(&model, &mesh).strategy_over(shard),
            ShardStrategy::Full
        );
        // What is said twice is one policy.
        let same = unit
            .strategy_over("shard", ShardStrategy::Full)
            .strategy_over("zero", ShardStrategy::Optim);
        assert_eq!(same.over(&Policy::default(), &mesh), Policy::default());
    }
}
