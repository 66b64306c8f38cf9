//! Which rule belongs to which op. No match here has a wildcard but for families that features of burn-ir bring: an op
//! that Burn adds does not compile until it has a rule.

use super::tensors::{self, Tensors};
use super::{
    OpRule, activation, attention, conv, ctc, embedding, index, linear, matmul, pointwise, pool,
    reduce, replicated, sort, spectral, view,
};
use crate::mesh::ReduceOp;
use burn_backend::DType;
use burn_ir::*;

/// Returns the sharding rule of an operation with global shapes.
///
/// # Source
/// Factor notation is that of Shardy's `sdy.op_sharding_rule` (einsum-like, with reduction factors); the split index
/// dims follow Megatron-LM's vocabulary-parallel embedding (arXiv:1909.08053, section 3).
#[allow(
    unreachable_patterns,
    reason = "another crate may turn on families, see `UNKNOWN`"
)]
pub fn rule(op: &OperationIr) -> OpRule {
    let tensors = &tensors::of(op);
    match op {
        OperationIr::BaseFloat(_) | OperationIr::NumericFloat(..) if is_quantized(op) => {
            replicated::rule("quantized")
        }
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            base(tensors, op)
        }
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => numeric(tensors, op),
        OperationIr::Bool(op) => bool(tensors, op),
        OperationIr::Int(op) => int(tensors, op),
        OperationIr::Float(_, op) => float(tensors, op),
        OperationIr::Module(op) => module(tensors, op),
        OperationIr::Init(_) => replicated::rule("init"),
        OperationIr::Custom(op) => activation::custom(tensors, &op.id),
        OperationIr::Drop(_) => replicated::rule("drop"),
        _ => unreachable!("the recorder refuses what it does not know: {op:?}"),
    }
}

/// Returns whether an op reads or makes a quantized tensor.
fn is_quantized(op: &OperationIr) -> bool {
    let mut tensors = op.inputs().chain(op.outputs());
    tensors.any(|tensor| matches!(tensor.dtype, DType::QFloat(_)))
}

fn base(t: &Tensors, op: &BaseOperationIr) -> OpRule {
    use BaseOperationIr::*;
    match op {
        Reshape(_) => OpRule::Reshape,
        SwapDims(op) => view::swap_dims(t, op),
        Permute(op) => view::permute(t, op),
        Flip(op) => view::flip(t, op),
        Expand(_) => view::expand(t),
        Unfold(op) => view::unfold(t, op),
        Slice(op) => view::slice(t, op),
        SliceAssign(op) => view::slice_assign(t, op),
        RepeatDim(op) => view::repeat_dim(t, op),
        Cat(op) => view::cat(t, op),
        Select(op) => index::select(t, op),
        SelectAssign(op) => index::select_assign(t, op),
        Gather(op) => index::gather(t, op),
        Scatter(op) => index::scatter(t, op),
        ScatterNd(op) => index::scatter_nd(t, op),
        GatherNd(op) => index::gather_nd(t, op),
        MaskWhere(_) => pointwise::mask_where(t),
        MaskFill(_) | Equal(_) | EqualElem(_) => pointwise::any(t),
        Cast(op) => pointwise::cast(t, op),
        Empty(_) | Ones(_) | Zeros(_) => OpRule::Create,
    }
}

fn numeric(t: &Tensors, op: &NumericOperationIr) -> OpRule {
    use NumericOperationIr::*;
    match op {
        Add(_) | Sub(_) => pointwise::joint_linear(t),
        Mul(_) | MulScalar(_) => pointwise::linear(t),
        Div(BinaryOpIr { out, .. }) | DivScalar(ScalarOpIr { out, .. }) if out.dtype.is_float() => {
            pointwise::linear(t)
        }
        Div(_) | DivScalar(_) => pointwise::any(t),
        AddScalar(_) | SubScalar(_) | Rem(_) | RemScalar(_) | Abs(_) | Clamp(_) | Powi(_)
        | PowiScalar(_) => pointwise::any(t),
        Greater(_) | GreaterElem(_) | GreaterEqual(_) | GreaterEqualElem(_) => pointwise::any(t),
        Lower(_) | LowerElem(_) | LowerEqual(_) | LowerEqualElem(_) => pointwise::any(t),
        Sum(op) => reduce::sum(t, op),
        SumDim(op) => reduce::sum_dim(t, op),
        Mean(op) => reduce::mean(t, op),
        MeanDim(op) => reduce::mean_dim(t, op),
        Prod(op) => reduce::extremum(t, op, ReduceOp::Prod),
        ProdDim(op) => reduce::extremum_dim(t, op, ReduceOp::Prod),
        Max(op) | MaxAbs(op) => reduce::extremum(t, op, ReduceOp::Max),
        MaxDim(op) | MaxAbsDim(op) => reduce::extremum_dim(t, op, ReduceOp::Max),
        Min(op) => reduce::extremum(t, op, ReduceOp::Min),
        MinDim(op) => reduce::extremum_dim(t, op, ReduceOp::Min),
        ArgMax(op) | ArgMin(op) | ArgTopK(op) | TopK(op) => reduce::along(t, op),
        MaxDimWithIndices(op) | MinDimWithIndices(op) => sort::with_indices(t, op),
        CumSum(op) => sort::cumsum(t, op),
        CumProd(op) | CumMin(op) | CumMax(op) => sort::cumulative(t, op),
        Full(_) | IntRandom(_) => OpRule::Create,
    }
}

fn bool(t: &Tensors, op: &BoolOperationIr) -> OpRule {
    use BoolOperationIr::*;
    match op {
        IntoFloat(_) | IntoInt(_) | Not(_) | And(_) | Or(_) => pointwise::any(t),
    }
}

fn int(t: &Tensors, op: &IntOperationIr) -> OpRule {
    use IntOperationIr::*;
    match op {
        IntoFloat(_) | BitwiseNot(_) => pointwise::any(t),
        BitwiseAnd(_) | BitwiseOr(_) | BitwiseXor(_) | BitwiseLeftShift(_)
        | BitwiseRightShift(_) => pointwise::any(t),
        BitwiseAndScalar(_)
        | BitwiseOrScalar(_)
        | BitwiseXorScalar(_)
        | BitwiseLeftShiftScalar(_)
        | BitwiseRightShiftScalar(_) => pointwise::any(t),
        Matmul(_) => matmul::matmul(t),
    }
}

fn float(t: &Tensors, op: &FloatOperationIr) -> OpRule {
    use FloatOperationIr::*;
    match op {
        Exp(_) | Log(_) | Log1p(_) | Erf(_) | Sqrt(_) | Recip(_) | PowfScalar(_) | Powf(_) => {
            pointwise::any(t)
        }
        Cos(_) | Cosh(_) | Sin(_) | Sinh(_) | Tan(_) | Tanh(_) => pointwise::any(t),
        ArcCos(_) | ArcCosh(_) | ArcSin(_) | ArcSinh(_) | ArcTan(_) | ArcTanh(_) | ArcTan2(_) => {
            pointwise::any(t)
        }
        Round(_) | Floor(_) | Ceil(_) | Trunc(_) | IntoInt(_) | IsNan(_) | IsInf(_) => {
            pointwise::any(t)
        }
        Matmul(_) => matmul::matmul(t),
        Cross(op) => matmul::cross(t, op),
        Random(_) => OpRule::Create,
        Quantize(_) => replicated::rule("quantize"),
        Dequantize(_) => replicated::rule("dequantize"),
        GridSample2d(_) => pool::grid_sample(t),
    }
}

fn module(t: &Tensors, op: &ModuleOperationIr) -> OpRule {
    use ModuleOperationIr::*;
    match op {
        Embedding(_) => embedding::embedding(t),
        EmbeddingBackward(_) => embedding::backward(t),
        Linear(_) => linear::linear(t),
        LinearXBackward(_) => linear::x_backward(t),
        LinearWeightBackward(_) => linear::weight_backward(t),
        LinearBiasBackward(_) => linear::bias_backward(t),
        Conv1d(op) => conv::conv(t, op.options.groups),
        Conv2d(op) => conv::conv(t, op.options.groups),
        Conv3d(op) => conv::conv(t, op.options.groups),
        Conv1dXBackward(op) => conv::x_backward(t, op.options.groups),
        Conv2dXBackward(op) => conv::x_backward(t, op.options.groups),
        Conv3dXBackward(op) => conv::x_backward(t, op.options.groups),
        Conv1dWeightBackward(op) => conv::weight_backward(t, op.options.groups),
        Conv2dWeightBackward(op) => conv::weight_backward(t, op.options.groups),
        Conv3dWeightBackward(op) => conv::weight_backward(t, op.options.groups),
        Conv1dBiasBackward(_) | Conv2dBiasBackward(_) | Conv3dBiasBackward(_) => {
            conv::bias_backward(t)
        }
        DeformableConv2d(op) => conv::deform(t, op),
        DeformableConv2dBackward(op) => conv::deform_backward(t, op),
        ConvTranspose1d(op) => conv::transpose(t, op.options.groups),
        ConvTranspose2d(op) => conv::transpose(t, op.options.groups),
        ConvTranspose3d(op) => conv::transpose(t, op.options.groups),
        AvgPool1d(_) | AvgPool2d(_) | AdaptiveAvgPool1d(_) | AdaptiveAvgPool2d(_)
        | Interpolate(_) => pool::linear(t),
        MaxPool1d(_) | MaxPool2d(_) | MaxPool1dWithIndices(_) | MaxPool2dWithIndices(_) => {
            pool::max(t)
        }
        AvgPool1dBackward(_)
        | AvgPool2dBackward(_)
        | AdaptiveAvgPool1dBackward(_)
        | AdaptiveAvgPool2dBackward(_)
        | MaxPool1dWithIndicesBackward(_)
        | MaxPool2dWithIndicesBackward(_)
        | InterpolateBackward(_) => pool::backward(t),
        Rfft(op) => spectral::rfft(t, op.dim),
        IRfft(op) => spectral::irfft(t, op.dim),
        Attention(op) => attention::attention(t, op),
        CtcLoss(_) => ctc::loss(t),
        CtcLossBackward(_) => ctc::backward(t),
    }
}
