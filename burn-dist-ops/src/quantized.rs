//! Quantized tensors: to and from them, and the operations that keep them quantized. Everything else is recorded on
//! what they dequantize to. All of it runs on whole tensors.

use burn_backend::DType;
use burn_backend::quantization::QuantScheme;

use super::family::prelude::*;
use super::visit::{OpReader, kind_name, visit_ref};
use crate::burn::{block_elements, global_scale, quantization};

family! {
    Quantized |cx, op| {
        Quantize(QuantizeOpIr) quantized = {
            check_blocks(&op.tensor, &op.scheme)?;
            let tensor = cx.float(&op.tensor);
            let scales = cx.float(&op.qparams.scales);
            let global = global_scale(&op.qparams).map(|scale| cx.float(scale));
            B::quantize(tensor, &op.scheme, quantization::<B>(scales, global))
        },
        Dequantize(DequantizeOpIr) float =
            B::dequantize(cx.quantized(&op.input), op.out.dtype.into()),
    }
}

impl Operation for Quantized<'_> {
    fn rule(&self, _: &Shapes<'_>) -> OpRule {
        match self {
            Self::Quantize(_) => replicated("quantize"),
            Self::Dequantize(_) => replicated("dequantize"),
        }
    }
}

/// Refuses a scheme whose blocks do not divide a tensor: in a program without debug assertions Flex would read on.
fn check_blocks(tensor: &TensorIr, scheme: &QuantScheme) -> Result<(), ExecuteError> {
    let elements = tensor.shape.num_elements();
    match block_elements(scheme) {
        Some(block) if !elements.is_multiple_of(block) => {
            Err(ExecuteError::Blocks { elements, block })
        }
        _ => Ok(()),
    }
}

/// Returns whether an operation of another family reads or makes a quantized tensor.
#[inline]
pub(super) fn applies(op: &OperationIr) -> bool {
    struct Any(bool);
    impl OpReader<'_> for Any {
        fn input(&mut self, tensor: &TensorIr) {
            self.0 |= matches!(tensor.dtype, DType::QFloat(_));
        }
        fn output(&mut self, tensor: &TensorIr) {
            self.input(tensor);
        }
    }
    match op {
        OperationIr::BaseFloat(base) => {
            let mut any = Any(false);
            visit_ref(base, &mut any);
            any.0
        }
        OperationIr::NumericFloat(dtype, _) => matches!(dtype, DType::QFloat(_)),
        _ => false,
    }
}

/// Runs an operation that [`applies`].
pub(super) fn run<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    recorded: &OperationIr,
) -> Result<(), ExecuteError> {
    use BaseOperationIr::*;
    let unsupported = || ExecuteError::Unsupported {
        op: format!("{} of a quantized tensor", kind_name(recorded)),
        reason: "Burn has no kernel for it: dequantize first",
    };
    let (out, made) = match recorded {
        OperationIr::BaseFloat(Reshape(op)) => {
            let input = cx.quantized(&op.input);
            (&op.out, B::q_reshape(input, op.out.shape.clone()))
        }
        OperationIr::BaseFloat(Expand(op)) => {
            let input = cx.quantized(&op.input);
            (&op.out, B::q_expand(input, op.out.shape.clone()))
        }
        OperationIr::BaseFloat(SwapDims(op)) => {
            let input = cx.quantized(&op.input);
            (&op.out, B::q_swap_dims(input, op.dim1, op.dim2))
        }
        OperationIr::BaseFloat(Permute(op)) => {
            (&op.out, B::q_permute(cx.quantized(&op.input), &op.axes))
        }
        OperationIr::BaseFloat(Flip(op)) => (&op.out, B::q_flip(cx.quantized(&op.input), &op.axes)),
        OperationIr::BaseFloat(Slice(op)) => {
            let ranges = cx.ranges(&op.ranges);
            (&op.out, B::q_slice(cx.quantized(&op.tensor), &ranges))
        }
        OperationIr::BaseFloat(Select(op)) => {
            let (tensor, indices) = (cx.quantized(&op.tensor), cx.int(&op.indices));
            (&op.out, B::q_select(tensor, op.dim, indices))
        }
        OperationIr::BaseFloat(Gather(op)) => {
            let (tensor, indices) = (cx.quantized(&op.tensor), cx.int(&op.indices));
            (&op.out, B::q_gather(op.dim, tensor, indices))
        }
        // A float made quantized by the range of its values; there is no way from one scheme to another.
        OperationIr::BaseFloat(Cast(op)) => match (op.input.dtype, op.out.dtype) {
            (from, DType::QFloat(scheme)) if from.is_float() => {
                check_blocks(&op.input, &scheme)?;
                (&op.out, B::quantize_dynamic(cx.float(&op.input), &scheme))
            }
            (DType::QFloat(_), to) if to.is_float() => {
                let made = B::dequantize(cx.quantized(&op.input), to.into());
                cx.put_float(&op.out, made);
                return Ok(());
            }
            _ => return Err(unsupported()),
        },
        OperationIr::NumericFloat(_, NumericOperationIr::ArgMax(op)) => {
            let made = B::q_argmax(cx.quantized(&op.input), op.axis, op.out.dtype.into());
            cx.put_int(&op.out, made);
            return Ok(());
        }
        OperationIr::NumericFloat(_, NumericOperationIr::ArgMin(op)) => {
            let made = B::q_argmin(cx.quantized(&op.input), op.axis, op.out.dtype.into());
            cx.put_int(&op.out, made);
            return Ok(());
        }
        _ => return Err(unsupported()),
    };
    cx.put_quantized(out, made);
    Ok(())
}
