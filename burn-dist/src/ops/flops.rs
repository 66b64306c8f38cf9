//! What products cost: floating-point operations, counted as the papers do.
//!
//! | operation | flops |
//! | --- | --- |
//! | matrix product `[.., m, k] x [.., k, n]` | `2 m k n` per matrix |
//! | linear layer, the gradients of its input and its weight | `2 i o` per row |
//! | convolution, the gradients of its input and its weight | `2 c/groups` per element of the result and the kernel |
//! | transposed convolution | `2 o/groups k` per element of the input |
//! | attention | `2 (d + e)` per pair of a query and a key |

use burn_ir::{FloatOperationIr, IntOperationIr, ModuleOperationIr, OperationIr};

/// Returns the flops of a product, `None` of any other operation. The product of a column and a row adds nothing up, so
/// it is no product here.
pub(super) fn product(op: &OperationIr) -> Option<f64> {
    let shapes: Vec<&[usize]> = op.inputs().map(|tensor| tensor.shape.as_slice()).collect();
    let out: f64 = op.outputs().map(|t| numel(t.shape.as_slice())).sum();
    let last = |index: usize| shapes[index].last().map_or(1.0, |&size| size as f64);
    let kernel = |index: usize| numel(&shapes[index][1..]);
    use ModuleOperationIr::*;
    let flops = match op {
        OperationIr::Float(_, FloatOperationIr::Matmul(_))
        | OperationIr::Int(IntOperationIr::Matmul(_)) => {
            if last(0) < 2.0 {
                return None;
            }
            2.0 * out * last(0)
        }
        OperationIr::Module(op) => match op {
            Linear(_) => 2.0 * out * last(0),
            // The weight is `[i, o]`.
            LinearXBackward(_) => 2.0 * out * last(0),
            LinearWeightBackward(_) => 2.0 * numel(shapes[0]) * last(1),
            Conv1d(_) | Conv2d(_) | Conv3d(_) => 2.0 * out * kernel(1),
            DeformableConv2d(_) => 2.0 * out * kernel(2),
            Conv1dXBackward(_)
            | Conv2dXBackward(_)
            | Conv3dXBackward(_)
            | Conv1dWeightBackward(_)
            | Conv2dWeightBackward(_)
            | Conv3dWeightBackward(_) => 2.0 * numel(shapes[2]) * kernel(1),
            // The gradients of the input and of the weight.
            DeformableConv2dBackward(_) => 4.0 * numel(shapes[3]) * kernel(2),
            ConvTranspose1d(_) | ConvTranspose2d(_) | ConvTranspose3d(_) => {
                2.0 * numel(shapes[0]) * kernel(1)
            }
            Attention(_) => {
                let (query, key) = (shapes[0], shapes[1]);
                let keys = key[key.len() - 2] as f64;
                2.0 * numel(&query[..query.len() - 1]) * keys * (last(0) + last(2))
            }
            _ => return None,
        },
        _ => return None,
    };
    Some(flops)
}

fn numel(shape: &[usize]) -> f64 {
    shape.iter().map(|&size| size as f64).product()
}

#[cfg(test)]
mod tests {
    use burn_dist_plan::flops::flops;
    use burn_dist_plan::op::Op;
    use burn_dist_plan::rule::OpRule;

    use crate::ops::Recorded;
    use crate::ops::samples::samples;

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
}
