//! Tensors of batches that are known without running anything.

use burn_ir::{BaseOperationIr, OperationIr, TensorId, TensorIr};
use rustc_hash::{FxHashMap, FxHashSet};

/// Operations that were asked for and not yet recorded.
#[derive(Default)]
pub(super) struct Items {
    pub waiting: FxHashMap<TensorId, Waiting>,
    /// Data that no recorded operation uses.
    pub unused: FxHashSet<TensorId>,
}

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unused.is_empty()
    }
}

/// A tensor that is known without running anything, and the operations that would make it.
pub(super) enum Waiting {
    /// Data in another shape: `input` as `out`, at the last use of `input`.
    Reshaped {
        input: TensorIr,
        out: TensorIr,
        kind: fn(BaseOperationIr) -> OperationIr,
    },
    /// One number everywhere.
    Full { value: i64, ops: Vec<OperationIr> },
}
