//! Costs of products.

use burn_dist_plan::flops::flops;
use burn_dist_plan::op::Op;
use burn_dist_plan::rule::OpRule;

use crate::Recorded;
use crate::samples::samples;

/// The flops of the first sample of a kind.
fn of(kind: &str) -> f64 {
    let op = samples()
        .into_iter()
        .map(Recorded::from)
        .find(|op| op.name() == kind);
    let op = op.expect("a sample");
    flops(&op, &op.rule())
}

#[test]
fn flops_written_out() {
    for (kind, expected) in [
        // [2, 3, 4] x [2, 4, 5] and the like.
        ("matmul", 2 * 2 * 3 * 4 * 5),
        ("linear", 2 * 2 * 3 * 4 * 5),
        ("linear_x_backward", 2 * 2 * 3 * 4 * 5),
        ("linear_weight_backward", 2 * 2 * 3 * 4 * 5),
        ("linear_bias_backward", 5),
        // [2, 4, 7] with [6, 4, 3] to [2, 6, 4].
        ("conv1d", 2 * (2 * 6 * 4) * (4 * 3)),
        ("conv1d_x_backward", 2 * (2 * 6 * 4) * (4 * 3)),
        ("conv1d_weight_backward", 2 * (2 * 6 * 4) * (4 * 3)),
        ("conv1d_bias_backward", 6),
        ("conv2d", 2 * (2 * 6 * 3 * 4) * (4 * 3 * 3)),
        ("conv3d", 2 * (2 * 4 * 3 * 4 * 2) * (3 * 2 * 2 * 2)),
        // [2, 4, 5] with [4, 6, 3].
        ("conv_transpose1d", 2 * (2 * 4 * 5) * (6 * 3)),
        // Four queries, five keys of size 8, values of size 6.
        ("attention", 2 * (2 * 3) * (4 * 5) * (8 + 6)),
        ("cat", 2 * 8),
        // What is assigned.
        ("slice_assign", 3 * 3 * 3),
        ("exp", 3 * 4),
        ("sum", 1),
    ] {
        assert_eq!(of(kind), expected as f64, "{kind}");
    }
}

#[test]
fn what_computes_nothing_costs_nothing() {
    for op in samples().into_iter().map(Recorded::from) {
        let free = [
            "reshape",
            "permute",
            "expand",
            "slice",
            "zeros",
            "swap_dims",
        ];
        if free.contains(&op.name()) && !matches!(op.rule(), OpRule::Replicated(_)) {
            assert_eq!(flops(&op, &op.rule()), 0.0, "{op:?}");
        }
    }
}
