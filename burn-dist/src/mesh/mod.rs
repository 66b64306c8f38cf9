//! Named axes, ranks and their coordinates: the shape of a device mesh, as plain data.
//!
//! Mesh things are *axis*, tensor things are *dim*.

use serde::{Deserialize, Serialize};

/// Index of a mesh axis, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AxisIndex(pub u8);

/// Index of a device (a process or a worker thread) of a mesh, row-major over the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// What an axis is for; decides where batches and resting parameters go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisRole {
    /// Data parallel, parameters replicated (DDP): `dp`, `ddp`, `dp_replicate`, `data`, `batch`, `replicate`.
    Replicate,
    /// Data parallel, parameters at rest in pieces (FSDP / ZeRO): `fsdp`, `dp_shard`, `zero`, `shard`.
    Shard,
    /// Anything that splits the model itself: `tp`, `cp`, `pp`, `ep` and every other name.
    Model,
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

/// The axes of a mesh, outermost first. Ranks are numbered row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeshShape {
    axes: Vec<Axis>,
}
