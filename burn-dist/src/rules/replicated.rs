//! The one list of ops that run on whole tensors on every rank, on purpose.

use super::OpRule;

/// The ops by name (see `kind_name`) with the reason why each is replicated.
pub const REPLICATED: &[(&str, &str)] = &[
    (
        "mean",
        "the mean of ints rounds once, which a sum of shares does not",
    ),
    (
        "quantize",
        "the scales and the packing of values belong to the tensor as a whole",
    ),
    (
        "dequantize",
        "the scales and the packing of values belong to the tensor as a whole",
    ),
    (
        "init",
        "declares data that was uploaded: where it goes is decided there",
    ),
    ("drop", "ends a tensor and computes nothing"),
];

/// Returns the rule of an op in [`REPLICATED`].
pub(super) fn rule(name: &str) -> OpRule {
    let found = REPLICATED.iter().find(|(listed, _)| *listed == name);
    OpRule::Replicated(found.expect("the op stands in the list").1)
}
