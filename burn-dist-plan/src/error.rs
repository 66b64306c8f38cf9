//! Windows that cannot be planned.

use crate::explain::human_bytes;
use crate::layout::LayoutError;
use crate::policy::{Float, Offload};

/// A window that cannot be planned.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A layout is not possible.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A module's input or output layout is not possible.
    #[error("{path}: the layout `{text}` asked for its input or output does not fit: {source}")]
    ModuleLayout {
        /// The parameter that asks.
        path: String,
        /// What it asks for.
        text: String,
        /// Why not.
        source: LayoutError,
    },
    /// A custom operation is not one of ours.
    #[error(
        "custom operation `{id}` is not known to burn-dist: express it with Burn's own operations, or run it on \
         tensors of the inner backend (`to_local`)"
    )]
    UnknownCustom {
        /// Its id.
        id: String,
    },
    /// An operation of a family that a feature of burn-ir brings.
    #[error(
        "burn-dist has no rule for {op}, which a feature of burn-ir brings: a mesh reduces gradients over its ranks by \
         itself, so leave `all_reduce` to it"
    )]
    UnknownOperation {
        /// The operation.
        op: String,
    },
    /// The backend lacks a type that a precision asks for.
    #[error(
        "{path} is to be computed in {float}, which the inner backend does not have on this device; it has {others}: \
         choose one of them in `DeviceMeshBuilder::precision` or the unit's own precision"
    )]
    Float {
        /// The parameter that asks.
        path: String,
        /// What it asks for.
        float: Float,
        /// What there is.
        others: String,
    },
    /// Offload needs more host memory than it may take.
    #[error(
        "offload `{offload}` asks for {} of host memory over the ranks of this process, and {} are allowed: raise \
         `host`, or offload less", human_bytes(*.asked), human_bytes(*.limit)
    )]
    HostMemory {
        /// What is offloaded.
        offload: Offload,
        /// Bytes that the ranks need together.
        asked: u64,
        /// Bytes that they may take.
        limit: u64,
    },
    /// A bug in this crate.
    #[error("value {value} of the window has no version to start from; this is a bug in burn-dist")]
    NoVersion {
        /// The value.
        value: u32,
    },
}
