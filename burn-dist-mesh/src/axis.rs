//! The small values: axis and rank numbers, axis roles.

use serde::{Deserialize, Serialize};

/// Index of a mesh axis, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AxisIndex(pub u8);

/// Index of a device (a process or a worker thread) of a mesh, row-major over the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What an axis is for; decides where batches and resting parameters go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisRole {
    /// Data parallel, parameters replicated (DDP): `dp`, `ddp`, `dp_replicate`, `data`, `batch`, `replicate`.
    Replicate,
    /// Data parallel, parameters at rest in pieces (FSDP / ZeRO): `fsdp`, `dp_shard`, `zero`, `shard`.
    Shard,
    /// Context parallel: splits the sequences of a batch, parameters at rest in pieces as over a shard axis: `cp`,
    /// `context`.
    Context,
    /// Expert parallel: data parallel as over a shard axis, but that stacked experts are split over it and stay so:
    /// `ep`.
    Expert,
    /// Anything that splits tensors of the model: `tp` and every other name.
    Model,
    /// Splits the model into stages, one after the other: `pp`, `pipeline`. No tensor is split over it.
    Pipeline,
}

impl AxisRole {
    /// Returns the role that an axis of this name has unless told otherwise.
    ///
    /// ```
    /// use burn_dist_mesh::AxisRole;
    /// assert_eq!(AxisRole::of_name("fsdp"), AxisRole::Shard);
    /// assert_eq!(AxisRole::of_name("heads"), AxisRole::Model);
    /// ```
    pub fn of_name(name: &str) -> Self {
        match name {
            "dp" | "ddp" | "dp_replicate" | "data" | "batch" | "replicate" => AxisRole::Replicate,
            "fsdp" | "dp_shard" | "zero" | "shard" => AxisRole::Shard,
            "cp" | "context" => AxisRole::Context,
            "ep" => AxisRole::Expert,
            "pp" | "pipeline" => AxisRole::Pipeline,
            _ => AxisRole::Model,
        }
    }

    /// Whether parameters rest in pieces over such an axis: [`AxisRole::Shard`], [`AxisRole::Context`] and
    /// [`AxisRole::Expert`].
    pub fn shards(self) -> bool {
        matches!(self, Self::Shard | Self::Context | Self::Expert)
    }
}

/// One named axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis {
    /// The name, unique in its mesh.
    pub name: String,
    /// Number of devices along the axis, at least 1.
    pub size: usize,
    /// What the axis is for.
    pub role: AxisRole,
}

impl Axis {
    /// Creates an axis whose role follows from its name, see [`AxisRole::of_name`].
    pub fn new(name: impl Into<String>, size: usize) -> Self {
        let name = name.into();
        let role = AxisRole::of_name(&name);
        Self { name, size, role }
    }
}
