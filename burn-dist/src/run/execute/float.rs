//! Ops on floats only.

use super::{Context, Env, binary, unary, with_scalar};
use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_ir::{BackendIr, FloatOperationIr};

pub(super) fn execute<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &FloatOperationIr) {
    match op {
        FloatOperationIr::Exp(op) => unary!(cx, op, float => put_float, B::float_exp),
        FloatOperationIr::Log(op) => unary!(cx, op, float => put_float, B::float_log),
        FloatOperationIr::Log1p(op) => unary!(cx, op, float => put_float, B::float_log1p),
        FloatOperationIr::Erf(op) => unary!(cx, op, float => put_float, B::float_erf),
        FloatOperationIr::Sqrt(op) => unary!(cx, op, float => put_float, B::float_sqrt),
        FloatOperationIr::Cos(op) => unary!(cx, op, float => put_float, B::float_cos),
        FloatOperationIr::Cosh(op) => unary!(cx, op, float => put_float, B::float_cosh),
        FloatOperationIr::Sin(op) => unary!(cx, op, float => put_float, B::float_sin),
        FloatOperationIr::Sinh(op) => unary!(cx, op, float => put_float, B::float_sinh),
        FloatOperationIr::Tan(op) => unary!(cx, op, float => put_float, B::float_tan),
        FloatOperationIr::Tanh(op) => unary!(cx, op, float => put_float, B::float_tanh),
        FloatOperationIr::ArcCos(op) => unary!(cx, op, float => put_float, B::float_acos),
        FloatOperationIr::ArcCosh(op) => unary!(cx, op, float => put_float, B::float_acosh),
        FloatOperationIr::ArcSin(op) => unary!(cx, op, float => put_float, B::float_asin),
        FloatOperationIr::ArcSinh(op) => unary!(cx, op, float => put_float, B::float_asinh),
        FloatOperationIr::ArcTan(op) => unary!(cx, op, float => put_float, B::float_atan),
        FloatOperationIr::ArcTanh(op) => unary!(cx, op, float => put_float, B::float_atanh),
        FloatOperationIr::Round(op) => unary!(cx, op, float => put_float, B::float_round),
        FloatOperationIr::Floor(op) => unary!(cx, op, float => put_float, B::float_floor),
        FloatOperationIr::Ceil(op) => unary!(cx, op, float => put_float, B::float_ceil),
        FloatOperationIr::Trunc(op) => unary!(cx, op, float => put_float, B::float_trunc),
        FloatOperationIr::Recip(op) => unary!(cx, op, float => put_float, B::float_recip),
        FloatOperationIr::ArcTan2(op) => binary!(cx, op, float => put_float, B::float_atan2),
        FloatOperationIr::Powf(op) => binary!(cx, op, float => put_float, B::float_powf),
        FloatOperationIr::PowfScalar(op) => {
            with_scalar!(cx, op, float => put_float, B::float_powf_scalar)
        }
        FloatOperationIr::IsNan(op) => {
            let input = cx.float(&op.input);
            cx.put_bool(&op.out, B::float_is_nan(input, op.out.dtype.into()));
        }
        FloatOperationIr::IsInf(op) => {
            let input = cx.float(&op.input);
            cx.put_bool(&op.out, B::float_is_inf(input, op.out.dtype.into()));
        }
        FloatOperationIr::IntoInt(op) => {
            let input = cx.float(&op.input);
            cx.put_int(&op.out, B::float_into_int(input, op.out.dtype.into()));
        }
        FloatOperationIr::Matmul(op) => {
            // The op allows operands of different dtypes, kernels do not.
            let lhs = cx.float_as(&op.lhs, op.out.dtype);
            let rhs = cx.float_as(&op.rhs, op.out.dtype);
            cx.put_float(&op.out, B::float_matmul(lhs, rhs));
        }
        FloatOperationIr::Cross(op) => {
            let lhs = cx.float(&op.lhs);
            let rhs = cx.float(&op.rhs);
            cx.put_float(&op.out, B::float_cross(lhs, rhs, op.dim));
        }
        FloatOperationIr::Random(op) => {
            let shape = op.out.shape.clone();
            let out = B::float_random(shape, op.distribution, cx.env.device(), op.out.dtype.into());
            cx.put_float(&op.out, out);
        }
        FloatOperationIr::Quantize(op) => {
            let tensor = cx.float(&op.tensor);
            let scales = cx.float(&op.qparams.scales);
            let qparams = QuantizationParametersPrimitive { scales };
            cx.put_quantized(&op.out, B::quantize(tensor, &op.scheme, qparams));
        }
        FloatOperationIr::Dequantize(op) => {
            let input = cx.quantized(&op.input);
            cx.put_float(&op.out, B::dequantize(input, op.out.dtype.into()));
        }
        FloatOperationIr::GridSample2d(op) => {
            let tensor = cx.float(&op.tensor);
            let grid = cx.float(&op.grid);
            let out = B::float_grid_sample_2d(tensor, grid, op.options.clone().into());
            cx.put_float(&op.out, out);
        }
    }
}
