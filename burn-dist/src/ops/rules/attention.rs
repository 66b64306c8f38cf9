//! Scaled dot product attention as one op.

use super::OpRule;
use super::tensors::Tensors;
use burn_dist_plan::rule::RuleBuilder;
use burn_ir::AttentionOpIr;

/// `(query, key, value, mask?, bias?)`: per sample `b` and head `h`; columns `e` of the value are independent, and so
/// are the rows `s` of the query unless the causal mask counts them from the top.
pub(super) fn attention(tensors: &Tensors, op: &AttentionOpIr) -> OpRule {
    let scores = ", b h s -".repeat(tensors.inputs.len() - 3);
    let notation = format!("b h s -, b h - -, b h - e{scores} -> b h s e");
    let notation = match op.options.is_causal {
        true => notation.replace('s', "-"),
        false => notation,
    };
    RuleBuilder::notation(tensors, &notation)
        .broadcast()
        .build()
}
