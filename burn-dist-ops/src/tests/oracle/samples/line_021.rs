//! Burn 0.21 has no more.

use burn_ir::OperationIr;

pub(super) fn all() -> Vec<OperationIr> {
    Vec::new()
}
