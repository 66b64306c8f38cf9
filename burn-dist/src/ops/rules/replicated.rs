//! The one list of ops that run on whole tensors on every rank, on purpose.

use super::OpRule;

/// The ops by name (see `kind_name`; `quantized` is every op but these two that reads or makes a quantized tensor) with
/// the reason why each is replicated.
pub const REPLICATED: &[(&str, &str)] = &[
    (
        "mean",
        "the mean of ints rounds once, which a sum of shares does not",
    ),
    (
        "quantize",
        "scales belong to the whole tensor or to blocks of its flat order, and values are packed: no part of a \
         quantized tensor stands alone",
    ),
    (
        "dequantize",
        "a quantized tensor is whole on every rank; what it dequantizes to is split for free where it is used",
    ),
    (
        "quantized",
        "a view of a quantized tensor moves values between blocks, which may quantize them anew",
    ),
    (
        "init",
        "declares data that was uploaded: where it goes is decided there",
    ),
    ("drop", "ends a tensor and computes nothing"),
    ("custom", "is not known to burn-dist: no mesh records it"),
];

/// Returns the rule of an op in [`REPLICATED`].
pub(super) fn rule(name: &str) -> OpRule {
    let found = REPLICATED.iter().find(|(listed, _)| *listed == name);
    OpRule::Replicated(found.expect("the op stands in the list").1)
}

/// Returns the rule of what a program says of a value; the planner takes it in before it asks for rules.
pub(crate) fn mark() -> OpRule {
    OpRule::Replicated("says where a value is and computes nothing")
}
