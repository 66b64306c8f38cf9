//! What each operation is computed in.

use burn_ir::{
    BaseOperationIr, FloatOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
};

use crate::rules::Activation;

/// How an operation picks its float type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Products: in 16 bits if any operand is.
    Compute,
    /// Moves elements: in the type of what it moves; a parameter moves in the type of its unit.
    Move,
    /// Combines elements: in 16 bits if all operands are.
    Follow,
    /// Loses too much in 16 bits: in f32.
    Single,
    /// Makes values from nothing, which take the type of their use.
    Create,
    /// As recorded.
    Recorded,
}

impl Class {
    /// `is_maximum` tells whether a value is a maximum over a dim: what it is subtracted from is about to be
    /// exponentiated.
    pub(super) fn of(op: &OperationIr, is_maximum: impl Fn(u64) -> bool) -> Self {
        match op {
            OperationIr::Module(op) => module(op),
            OperationIr::Float(_, op) => float(op),
            OperationIr::NumericFloat(_, NumericOperationIr::Sub(desc))
                if is_maximum(desc.rhs.id.value()) =>
            {
                Self::Single
            }
            OperationIr::NumericFloat(_, op) => numeric(op),
            OperationIr::BaseFloat(op) => base(op),
            OperationIr::Custom(_) if Activation::of(op).is_some() => Self::Follow,
            _ => Self::Recorded,
        }
    }
}

fn module(op: &ModuleOperationIr) -> Class {
    use ModuleOperationIr::*;
    match op {
        Embedding(_)
        | EmbeddingBackward(_)
        | Linear(_)
        | LinearXBackward(_)
        | LinearWeightBackward(_)
        | LinearBiasBackward(_)
        | Attention(_) => Class::Compute,
        Conv1d(_)
        | Conv1dXBackward(_)
        | Conv1dWeightBackward(_)
        | Conv1dBiasBackward(_)
        | Conv2d(_)
        | Conv2dXBackward(_)
        | Conv2dWeightBackward(_)
        | Conv2dBiasBackward(_)
        | Conv3d(_)
        | Conv3dXBackward(_)
        | Conv3dWeightBackward(_)
        | Conv3dBiasBackward(_)
        | ConvTranspose1d(_)
        | ConvTranspose2d(_)
        | ConvTranspose3d(_) => Class::Compute,
        // Pooling, interpolation, spectra, losses and deformable convolutions: kernels in 16 bits are rare.
        _ => Class::Recorded,
    }
}

fn float(op: &FloatOperationIr) -> Class {
    use FloatOperationIr::*;
    match op {
        Matmul(_) => Class::Compute,
        Exp(_) | Log(_) | Log1p(_) | Erf(_) | Powf(_) | PowfScalar(_) | Sqrt(_) | Recip(_)
        | Cosh(_) | Sinh(_) | Tan(_) | ArcCos(_) | ArcCosh(_) | ArcSin(_) | ArcSinh(_)
        | ArcTanh(_) | ArcTan2(_) | Cross(_) => Class::Single,
        Random(_) => Class::Create,
        Quantize(_) | Dequantize(_) | GridSample2d(_) => Class::Recorded,
        Cos(_) | Sin(_) | Tanh(_) | ArcTan(_) | Round(_) | Floor(_) | Ceil(_) | Trunc(_)
        | IntoInt(_) | IsNan(_) | IsInf(_) => Class::Follow,
    }
}

fn numeric(op: &NumericOperationIr) -> Class {
    use NumericOperationIr::*;
    match op {
        Sum(_) | SumDim(_) | Mean(_) | MeanDim(_) | Prod(_) | ProdDim(_) | CumSum(_)
        | CumProd(_) | Powi(_) | PowiScalar(_) => Class::Single,
        Full(_) | IntRandom(_) => Class::Create,
        _ => Class::Follow,
    }
}

fn base(op: &BaseOperationIr) -> Class {
    use BaseOperationIr::*;
    match op {
        Cast(_) => Class::Recorded,
        Empty(_) | Ones(_) | Zeros(_) => Class::Create,
        MaskWhere(_) | MaskFill(_) | Equal(_) | EqualElem(_) => Class::Follow,
        _ => Class::Move,
    }
}
