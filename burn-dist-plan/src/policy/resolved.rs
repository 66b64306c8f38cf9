//! The policy of one unit.

use std::fmt::Display;

use super::{
    Accumulation, ActivationCheckpoint, AsyncTp, ContextParallel, Float8, Offload, Precision,
    Reshard, ShardStrategy,
};
use crate::mesh::{AxisIndex, MeshShape};

/// How one unit is trained, nothing left open. Every parameter carries that of its unit, and what belongs to none has
/// the default: nothing is cast, recomputed or offloaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The effect of shard axes on parameters, gradients and optimizer state.
    pub strategy: ShardStrategy,
    /// Shard axes that do something else, in order.
    pub strategies: Vec<(AxisIndex, ShardStrategy)>,
    /// When gathered parameters are freed.
    pub reshard: Reshard,
    /// How many units ahead of their use parameters are gathered, and what is offloaded is brought back.
    pub prefetch: u32,
    /// When accumulated gradients are reduced.
    pub accumulation: Accumulation,
    /// Which activations are made again in the backward.
    pub checkpoint: ActivationCheckpoint,
    /// The types that it computes in; in f32, it computes as it was recorded.
    pub precision: Precision,
    /// How its linear layers compute in float8, if they do.
    pub float8: Option<Float8>,
    /// The tensors that live on the host while they are not needed.
    pub offload: Offload,
    /// How its attention gets keys that other ranks have.
    pub context: ContextParallel,
    /// Overlap of products with the tensor-parallel transfers that they wait for.
    pub async_tp: AsyncTp,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            strategy: ShardStrategy::default(),
            strategies: Vec::new(),
            reshard: Reshard::default(),
            prefetch: 1,
            accumulation: Accumulation::default(),
            checkpoint: ActivationCheckpoint::default(),
            precision: Precision::default(),
            float8: None,
            offload: Offload::default(),
            context: ContextParallel::default(),
            async_tp: AsyncTp::default(),
        }
    }
}

impl Policy {
    /// Returns what the shard axis `axis` does.
    pub fn strategy_over(&self, axis: AxisIndex) -> ShardStrategy {
        let found = self.strategies.iter().find(|(of, _)| *of == axis);
        found.map_or(self.strategy, |(_, strategy)| *strategy)
    }

    /// Returns the axes over which tensors rest.
    pub fn rest_axes(&self, mesh: &MeshShape) -> Vec<AxisIndex> {
        let mut axes = mesh.shard_axes();
        axes.retain(|axis| self.strategy_over(*axis) != ShardStrategy::Replicate);
        axes
    }

    /// Returns whether it keeps tensors whole on every rank, on a mesh with shard axes or without.
    pub fn replicates(&self, mesh: &MeshShape) -> bool {
        match mesh.shard_axes().is_empty() {
            true => self.strategy == ShardStrategy::Replicate,
            false => self.rest_axes(mesh).is_empty(),
        }
    }

    /// Returns what differs from the default, for people: `checkpoint=full;precision=param=bf16,reduce=f32`.
    pub fn to_text(&self, mesh: &MeshShape) -> String {
        let default = Self::default();
        let of_all = (self.strategy != default.strategy).then(|| self.strategy.to_string());
        let of_one = self.strategies.iter();
        let of_one = of_one.map(|(axis, strategy)| format!("{}:{strategy}", mesh.name(*axis)));
        let strategies: Vec<String> = of_all.into_iter().chain(of_one).collect();
        let strategies = strategies.join(",");
        let parts = [
            differing("checkpoint", &self.checkpoint, &default.checkpoint),
            differing("precision", &self.precision, &default.precision),
            self.float8
                .as_ref()
                .map(|float8| format!("float8={float8}")),
            differing("strategy", &strategies, &String::new()),
            differing("reshard", &self.reshard, &default.reshard),
            differing("prefetch", &self.prefetch, &default.prefetch),
            differing("accumulation", &self.accumulation, &default.accumulation),
            differing("offload", &self.offload, &default.offload),
            differing("context", &self.context, &default.context),
            differing("async_tp", &self.async_tp, &default.async_tp),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(";")
    }
}

/// Returns the text of a choice, if it is not the default.
fn differing<T: Display + PartialEq>(key: &str, value: &T, default: &T) -> Option<String> {
    (value != default).then(|| format!("{key}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Float, UnitPolicy};

    #[test]
    fn the_text_names_what_differs() {
        let mesh = MeshShape::parse("dp=2,fsdp=2").expect("a mesh");
        assert_eq!(Policy::default().to_text(&mesh), "");
        let said = UnitPolicy::new()
            .precision(Precision::new(Float::BF16))
            .checkpoint(ActivationCheckpoint::Full)
            .strategy_over("fsdp", ShardStrategy::Optim)
            .prefetch(2);
        assert_eq!(
            said.over(&Policy::default(), &mesh).to_text(&mesh),
            "checkpoint=full;precision=param=bf16,reduce=f32;strategy=fsdp:zero1;prefetch=2"
        );
    }
}
