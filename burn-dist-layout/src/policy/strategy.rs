//! The parts of a model that rest in pieces.

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

burn_dist_mesh::texts!(
    ShardStrategy,
    "is not a sharding strategy: use fsdp, zero2, zero1 or ddp",
    Full = "fsdp",
    GradOptim = "zero2",
    Optim = "zero1",
    Replicate = "ddp",
);
