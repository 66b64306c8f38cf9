//! The policy of a model or a unit: as far as it is set, and with nothing left open. A choice stands in both, with what
//! sets it, what it is by default, and its part of the text.

use std::fmt::Display;

use burn_dist_mesh::{AxisIndex, MeshShape, TextError};

use super::{
    Accumulation, ActivationCheckpoint, AsyncTp, ContextParallel, Float, Float8, Offload,
    Precision, Reshard, Scaling, ShardStrategy,
};

/// The policy of a unit, as far as it is set. The rest is as the units around it say, the nearest first, then the
/// model, then the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitPolicy {
    /// The effect of shard axes, in the order in which it was set: of all of them, or the one that is named.
    pub strategies: Vec<(Option<String>, ShardStrategy)>,
    /// When gathered parameters are freed.
    pub reshard: Option<Reshard>,
    /// How many units ahead of their use parameters are gathered.
    pub prefetch: Option<u32>,
    /// When accumulated gradients are reduced.
    pub accumulation: Option<Accumulation>,
    /// Which activations are made again in the backward.
    pub checkpoint: Option<ActivationCheckpoint>,
    /// The types that it computes in.
    pub precision: Option<Precision>,
    /// How its linear layers compute in float8; `Some(None)`: they do not.
    pub float8: Option<Option<Float8>>,
    /// The tensors that live on the host while they are not needed.
    pub offload: Option<Offload>,
    /// How its attention gets keys that other ranks have.
    pub context: Option<ContextParallel>,
    /// Overlap of products with the tensor-parallel transfers that they wait for.
    pub async_tp: Option<AsyncTp>,
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

    /// Sets when gathered parameters are freed.
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
    pub fn checkpoint(mut self, checkpoint: ActivationCheckpoint) -> Self {
        self.checkpoint = Some(checkpoint);
        self
    }

    /// Sets what is computed in, over parameters that rest in f32: mixed precision, see [`Precision`].
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Sets that linear layers compute in float8, or with `None` that they do not, see [`Float8`].
    pub fn float8(mut self, float8: impl Into<Option<Float8>>) -> Self {
        self.float8 = Some(float8.into());
        self
    }

    /// Reads what a unit computes in, in the text form of attributes: that of [`Precision`], where one of the items may
    /// be `float8`, `float8=rowwise` or `float8=off`. Without others, `float8` is over bf16.
    ///
    /// # Errors
    /// What cannot be read, and what can.
    ///
    /// ```
    /// use burn_dist_layout::policy::{Float, Float8, Precision, Scaling, UnitPolicy};
    ///
    /// let said = UnitPolicy::new().precision(Precision::new(Float::BF16)).float8(Float8::new(Scaling::Tensorwise));
    /// assert_eq!(UnitPolicy::computing_in("float8"), Ok(said));
    /// ```
    pub fn computing_in(text: &str) -> Result<Self, TextError> {
        let mut policy = Self::new();
        let mut others = Vec::new();
        for item in text.split(',') {
            let float8 = match item.trim() {
                "float8" => Some(Float8::new(Scaling::default())),
                "float8=off" => None,
                item => match item.strip_prefix("float8=") {
                    Some(scaling) => Some(scaling.parse()?),
                    None => {
                        others.push(item);
                        continue;
                    }
                },
            };
            if policy.float8.is_some() {
                return Err(TextError::new(
                    text,
                    "says twice what float8 is: keep one of them",
                ));
            }
            policy = policy.float8(float8);
        }
        match (&policy.float8, others.is_empty()) {
            (Some(None), true) => Ok(policy),
            (Some(_), true) => Ok(policy.precision(Precision::new(Float::BF16))),
            (None, _) => Ok(policy.precision(text.parse()?)),
            (Some(_), false) => Ok(policy.precision(others.join(",").parse()?)),
        }
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

    /// Sets how attention gets the keys and values that other ranks have of a sequence, see [`ContextParallel`].
    pub fn context(mut self, context: ContextParallel) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets whether products run beside the tensor-parallel transfers that they wait for, see [`AsyncTp`].
    pub fn async_tp(mut self, async_tp: AsyncTp) -> Self {
        self.async_tp = Some(async_tp);
        self
    }

    /// Returns the policy of a unit with this one set, inside one of policy `around`. Axes that the mesh does not have
    /// are left out; whoever takes the policy checks them.
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
            float8: self.float8.clone().unwrap_or_else(|| around.float8.clone()),
            offload: self.offload.unwrap_or(around.offload),
            context: self.context.unwrap_or(around.context),
            async_tp: self.async_tp.unwrap_or(around.async_tp),
        }
    }
}

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
        let Self {
            strategy,
            strategies,
            reshard,
            prefetch,
            accumulation,
            checkpoint,
            precision,
            float8,
            offload,
            context,
            async_tp,
        } = self;
        let of_all = (*strategy != default.strategy).then(|| strategy.to_string());
        let of_one = strategies.iter();
        let of_one = of_one.map(|(axis, strategy)| format!("{}:{strategy}", mesh.name(*axis)));
        let strategies: Vec<String> = of_all.into_iter().chain(of_one).collect();
        let strategies = strategies.join(",");
        let parts = [
            differing("checkpoint", checkpoint, &default.checkpoint),
            differing("precision", precision, &default.precision),
            float8.as_ref().map(|float8| format!("float8={float8}")),
            differing("strategy", &strategies, &String::new()),
            differing("reshard", reshard, &default.reshard),
            differing("prefetch", prefetch, &default.prefetch),
            differing("accumulation", accumulation, &default.accumulation),
            differing("offload", offload, &default.offload),
            differing("context", context, &default.context),
            differing("async_tp", async_tp, &default.async_tp),
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

    #[test]
    fn what_a_unit_computes_in_is_read() {
        let said = |text| UnitPolicy::computing_in(text).expect(text);
        let (bf16, new) = (Precision::new(Float::BF16), UnitPolicy::new);
        let (tensorwise, rowwise) = (
            Float8::new(Scaling::Tensorwise),
            Float8::new(Scaling::Rowwise),
        );
        assert_eq!(said("bf16"), new().precision(bf16));
        assert_eq!(
            said("float8"),
            new().precision(bf16).float8(tensorwise.clone())
        );
        assert_eq!(
            said("float8=rowwise"),
            new().precision(bf16).float8(rowwise.clone())
        );
        assert_eq!(said("float8=off"), new().float8(None));
        assert_eq!(said("bf16, float8=off"), new().precision(bf16).float8(None));
        let f32 = new().precision(Precision::new(Float::F32));
        assert_eq!(said("param=f32,float8=rowwise"), f32.float8(rowwise));
        for (text, reason) in [
            ("bf8", "`bf8` is not a precision"),
            (
                "float8=delayed",
                "`delayed` is no way to compute in float8: use tensorwise",
            ),
            ("float8,float8=rowwise", "says twice"),
            ("float8,speed=f16", "`speed=f16` is not a precision"),
        ] {
            let error = UnitPolicy::computing_in(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
        }
        // A unit takes what is around it, unless it says otherwise.
        let mesh = MeshShape::parse("").expect("a mesh");
        let model = said("float8").over(&Policy::default(), &mesh);
        let of = |policy: UnitPolicy| policy.over(&model, &mesh).float8;
        assert_eq!(of(new()), Some(tensorwise.clone()));
        assert_eq!(of(said("f32")), Some(tensorwise));
        assert_eq!(of(said("float8=off")), None);
    }

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
        let unit = UnitPolicy::new().checkpoint(ActivationCheckpoint::Full);
        let expected = Policy {
            checkpoint: ActivationCheckpoint::Full,
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
