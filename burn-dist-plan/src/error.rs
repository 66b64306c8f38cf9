//! Windows that cannot be planned.

use crate::bytes::human_bytes;
use crate::layout::LayoutError;
use crate::policy::{Float, Offload};

/// A window that cannot be planned.
#[derive(Clone, thiserror::Error)]
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
        /// The text of what it asks for.
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
        /// The text of what it asks for.
        float: Float,
        /// The types that there are.
        others: String,
    },
    /// Offload needs more host memory than it may take.
    #[error(
        "offload `{offload}` asks for {} of host memory over the ranks of this process, and {} are allowed: raise \
         `host`, or offload less", human_bytes(*.asked), human_bytes(*.limit)
    )]
    HostMemory {
        /// The policy that asks for it.
        offload: Offload,
        /// Bytes that the ranks need together.
        asked: u64,
        /// Bytes that they may take.
        limit: u64,
    },
    /// Parameters of one window belong to two pipelines.
    #[error(
        "one window uses parameters of two pipelines, {first} and {second}: read what one model has made before the \
         other uses it, or parallelize both with one plan"
    )]
    TwoPipelines {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// A stage uses what a later one has made.
    #[error(
        "{path} is on stage {stage}, but stage {by} has made what it is applied to: the stages of a model follow one \
         another, so put its module on stage {by} or later, or what comes before it on stage {stage} or earlier"
    )]
    Backwards {
        /// The parameter.
        path: String,
        /// Its stage.
        stage: u32,
        /// The later stage.
        by: u32,
    },
    /// The schedule cannot be.
    #[error("{pipeline}: {reason}")]
    Schedule {
        /// The pipeline.
        pipeline: String,
        /// Why not.
        reason: String,
    },
    /// A microbatch cannot stand for those that were not recorded.
    #[error(
        "a step of {planned} microbatches cannot stand for one of {microbatches}: {reason}; record more of them, or all"
    )]
    Repeat {
        /// Microbatches of the window.
        planned: u32,
        /// How many the step is to have.
        microbatches: u32,
        /// Why not.
        reason: String,
    },
    /// An operation shifts blocks between ranks as ranks could not do together.
    #[error(
        "{op}: {problem}; an operation that shifts blocks adds the same shifts on all ranks, and finishes each"
    )]
    Shifts {
        /// The operation.
        op: String,
        /// The text of what it asks for.
        problem: String,
    },
    /// An operation on a tensor that rests in 8 bits.
    #[error("{op} of a tensor that rests in 8 bits with its scales: dequantize it first")]
    RestsInBytes {
        /// The operation.
        op: String,
    },
    /// A tensor shall rest in 8 bits, and the backend has none of bytes.
    #[error(
        "a tensor is to rest in 8 bits, and the inner backend has no tensors of bytes (u8) on this device: let it rest \
         in bf16 or f32"
    )]
    NoBytes,
    /// There is no pass of that name.
    #[error("there is no pass `{name}`; the passes are {passes}")]
    UnknownPass {
        /// The name.
        name: String,
        /// The passes that there are.
        passes: String,
    },
    /// A text that names no value.
    #[error(
        "`{text}` names no value: give its number in a window, as in `%12`, or a slot of a program, as in `s34`"
    )]
    NoValue {
        /// The text.
        text: String,
    },
    /// There is no value of that name.
    #[error(
        "there is no value `{name}`: the window has %0 to %{}, and its program s0 to s{} after the pass propagate",
        .values.saturating_sub(1), .slots.saturating_sub(1)
    )]
    UnknownValue {
        /// The name.
        name: String,
        /// How many values the window has.
        values: usize,
        /// How many slots the program has.
        slots: usize,
    },
    /// A bug in this crate.
    #[error("the ranks of stages wait for each other, at {at}; this is a bug in burn-dist")]
    Deadlock {
        /// The step that each waits for.
        at: String,
    },
    /// A bug in this crate.
    #[error("value {value} of the window has no version to start from; this is a bug in burn-dist")]
    NoVersion {
        /// The value.
        value: u32,
    },
}

burn_dist_mesh::debug_by_message!(PlanError);
