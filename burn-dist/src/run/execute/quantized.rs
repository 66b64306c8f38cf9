//! Quantized tensors: the operations that keep them quantized. Everything else is recorded on what they dequantize to.

use super::{Context, Env, ExecuteError};
use burn_backend::DType;
use burn_ir::{BackendIr, BaseOperationIr, NumericOperationIr, TensorIr};

fn is_quantized(tensor: &TensorIr) -> bool {
    matches!(tensor.dtype, DType::QFloat(_))
}

/// Returns whether a base op of floats reads or makes a quantized tensor.
#[inline]
pub(super) fn applies(op: &BaseOperationIr) -> bool {
    match op {
        BaseOperationIr::Reshape(op) | BaseOperationIr::Expand(op) => is_quantized(&op.input),
        BaseOperationIr::SwapDims(op) => is_quantized(&op.input),
        BaseOperationIr::Permute(op) => is_quantized(&op.input),
        BaseOperationIr::Flip(op) => is_quantized(&op.input),
        BaseOperationIr::Slice(op) => is_quantized(&op.tensor),
        BaseOperationIr::Select(op) => is_quantized(&op.tensor),
        BaseOperationIr::Gather(op) => is_quantized(&op.tensor),
        BaseOperationIr::Cast(op) => is_quantized(&op.input) || is_quantized(&op.out),
        // Burn has no such op for quantized tensors: it dequantizes first.
        BaseOperationIr::Unfold(_)
        | BaseOperationIr::SliceAssign(_)
        | BaseOperationIr::Scatter(_)
        | BaseOperationIr::ScatterNd(_)
        | BaseOperationIr::GatherNd(_)
        | BaseOperationIr::SelectAssign(_)
        | BaseOperationIr::MaskWhere(_)
        | BaseOperationIr::MaskFill(_)
        | BaseOperationIr::Equal(_)
        | BaseOperationIr::EqualElem(_)
        | BaseOperationIr::RepeatDim(_)
        | BaseOperationIr::Cat(_)
        | BaseOperationIr::Empty(_)
        | BaseOperationIr::Ones(_)
        | BaseOperationIr::Zeros(_) => false,
    }
}

/// Runs a base op that [`applies`].
pub(super) fn base<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    op: &BaseOperationIr,
) -> Result<(), ExecuteError> {
    match op {
        BaseOperationIr::Reshape(op) => {
            let input = cx.quantized(&op.input);
            cx.put_quantized(&op.out, B::q_reshape(input, op.out.shape.clone()));
        }
        BaseOperationIr::Expand(op) => {
            let input = cx.quantized(&op.input);
            cx.put_quantized(&op.out, B::q_expand(input, op.out.shape.clone()));
        }
        BaseOperationIr::SwapDims(op) => {
            let input = cx.quantized(&op.input);
            cx.put_quantized(&op.out, B::q_swap_dims(input, op.dim1, op.dim2));
        }
        BaseOperationIr::Permute(op) => {
            let input = cx.quantized(&op.input);
            cx.put_quantized(&op.out, B::q_permute(input, &op.axes));
        }
        BaseOperationIr::Flip(op) => {
            let input = cx.quantized(&op.input);
            cx.put_quantized(&op.out, B::q_flip(input, &op.axes));
        }
        BaseOperationIr::Slice(op) => {
            let tensor = cx.quantized(&op.tensor);
            cx.put_quantized(&op.out, B::q_slice(tensor, &op.ranges));
        }
        BaseOperationIr::Select(op) => {
            let tensor = cx.quantized(&op.tensor);
            let indices = cx.int(&op.indices);
            cx.put_quantized(&op.out, B::q_select(tensor, op.dim, indices));
        }
        BaseOperationIr::Gather(op) => {
            let tensor = cx.quantized(&op.tensor);
            let indices = cx.int(&op.indices);
            cx.put_quantized(&op.out, B::q_gather(op.dim, tensor, indices));
        }
        // A float made quantized by the range of its values; there is no way from one scheme to another.
        BaseOperationIr::Cast(op) => match (op.input.dtype, op.out.dtype) {
            (from, DType::QFloat(scheme)) if from.is_float() => {
                let input = cx.float(&op.input);
                cx.put_quantized(&op.out, B::quantize_dynamic(input, &scheme));
            }
            (DType::QFloat(_), to) if to.is_float() => {
                let input = cx.quantized(&op.input);
                cx.put_float(&op.out, B::dequantize(input, to.into()));
            }
            _ => return Err(unsupported("cast")),
        },
        _ => return Err(unsupported("a base op")),
    }
    Ok(())
}

/// Runs a numeric op on a quantized tensor.
pub(super) fn numeric<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    op: &NumericOperationIr,
) -> Result<(), ExecuteError> {
    match op {
        NumericOperationIr::ArgMax(op) => {
            let input = cx.quantized(&op.input);
            cx.put_int(&op.out, B::q_argmax(input, op.axis, op.out.dtype.into()));
        }
        NumericOperationIr::ArgMin(op) => {
            let input = cx.quantized(&op.input);
            cx.put_int(&op.out, B::q_argmin(input, op.axis, op.out.dtype.into()));
        }
        _ => return Err(unsupported("a numeric op")),
    }
    Ok(())
}

fn unsupported(op: &str) -> ExecuteError {
    ExecuteError::Unsupported {
        op: format!("{op} of a quantized tensor"),
        reason: "Burn has no kernel for it: dequantize first",
    }
}
