//! What is known of an operation beyond its rule.

use burn_dist_plan::op::{Adjoint, FloatClass, Indexing, Layer, Traits, Work};
use burn_ir::{
    BaseOperationIr, FloatOperationIr, IntOperationIr, ModuleOperationIr, NumericOperationIr,
    OperationIr,
};

use super::rules::Activation;
use super::storage::is_view;

/// Returns what is known of an operation.
pub(super) fn traits(op: &OperationIr) -> Traits {
    let traits = match op {
        OperationIr::BaseFloat(op) => Traits {
            float_class: base_class(op),
            ..base(op)
        },
        OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => base(op),
        OperationIr::NumericFloat(_, op) => Traits {
            float_class: numeric_class(op),
            ..numeric(op)
        },
        OperationIr::NumericInt(_, op) => numeric(op),
        OperationIr::Float(_, op) => Traits {
            is_random: matches!(op, FloatOperationIr::Random(_)),
            float_class: float_class(op),
            work: match op {
                FloatOperationIr::Matmul(_) => Work::Product,
                _ => Work::Other,
            },
            ..Traits::default()
        },
        OperationIr::Int(IntOperationIr::Matmul(_)) => Traits {
            work: Work::Product,
            ..Traits::default()
        },
        OperationIr::Module(op) => module(op),
        OperationIr::Custom(_) if Activation::of(op).is_some() => Traits {
            float_class: FloatClass::Follow,
            ..Traits::default()
        },
        _ => Traits::default(),
    };
    Traits {
        is_view: is_view(op),
        ..traits
    }
}

fn base(op: &BaseOperationIr) -> Traits {
    use BaseOperationIr::*;
    Traits {
        indexing: match op {
            Gather(desc) => Some((Indexing::Read, desc.dim)),
            Select(desc) => Some((Indexing::Read, desc.dim)),
            Scatter(desc) => Some((Indexing::Write, desc.dim)),
            SelectAssign(desc) => Some((Indexing::Write, desc.dim)),
            _ => None,
        },
        joins: match op {
            Cat(desc) => Some(desc.dim),
            _ => None,
        },
        // burn-router records an embedding as a select on its weights.
        layer: matches!(op, Select(_)).then_some(Layer::Lookup),
        adjoint: match op {
            Select(_) | Gather(_) => Some(Adjoint::Read {
                table: 0,
                indices: 1,
            }),
            SelectAssign(_) | Scatter(_) => Some(Adjoint::Written { indices: 1 }),
            _ => None,
        },
        makes_ones: matches!(op, Ones(_)),
        is_cast: matches!(op, Cast(_)),
        assigns: matches!(op, SliceAssign(_)),
        ..Traits::default()
    }
}

fn base_class(op: &BaseOperationIr) -> FloatClass {
    use BaseOperationIr::*;
    match op {
        Cast(_) => FloatClass::Recorded,
        Empty(_) | Ones(_) | Zeros(_) => FloatClass::Create,
        MaskWhere(_) | MaskFill(_) | Equal(_) | EqualElem(_) => FloatClass::Follow,
        _ => FloatClass::Move,
    }
}

fn numeric(op: &NumericOperationIr) -> Traits {
    use NumericOperationIr::*;
    Traits {
        is_random: matches!(op, IntRandom(_)),
        is_maximum: matches!(op, MaxDim(_) | MaxDimWithIndices(_)),
        is_difference: matches!(op, Sub(_)),
        ..Traits::default()
    }
}

fn numeric_class(op: &NumericOperationIr) -> FloatClass {
    use NumericOperationIr::*;
    match op {
        Sum(_) | SumDim(_) | Mean(_) | MeanDim(_) | Prod(_) | ProdDim(_) | CumSum(_)
        | CumProd(_) | Powi(_) | PowiScalar(_) => FloatClass::Single,
        Full(_) | IntRandom(_) => FloatClass::Create,
        _ => FloatClass::Follow,
    }
}

fn float_class(op: &FloatOperationIr) -> FloatClass {
    use FloatOperationIr::*;
    match op {
        Matmul(_) => FloatClass::Compute,
        Exp(_) | Log(_) | Log1p(_) | Erf(_) | Powf(_) | PowfScalar(_) | Sqrt(_) | Recip(_)
        | Cosh(_) | Sinh(_) | Tan(_) | ArcCos(_) | ArcCosh(_) | ArcSin(_) | ArcSinh(_)
        | ArcTanh(_) | ArcTan2(_) | Cross(_) => FloatClass::Single,
        Random(_) => FloatClass::Create,
        Quantize(_) | Dequantize(_) | GridSample2d(_) => FloatClass::Recorded,
        Cos(_) | Sin(_) | Tanh(_) | ArcTan(_) | Round(_) | Floor(_) | Ceil(_) | Trunc(_)
        | IntoInt(_) | IsNan(_) | IsInf(_) => FloatClass::Follow,
    }
}

fn module(op: &ModuleOperationIr) -> Traits {
    use ModuleOperationIr::*;
    let makes_weight_gradient = matches!(
        op,
        EmbeddingBackward(_)
            | LinearWeightBackward(_)
            | LinearBiasBackward(_)
            | Conv1dWeightBackward(_)
            | Conv1dBiasBackward(_)
            | Conv2dWeightBackward(_)
            | Conv2dBiasBackward(_)
            | Conv3dWeightBackward(_)
            | Conv3dBiasBackward(_)
    );
    let is_layer = matches!(
        op,
        Linear(_)
            | Attention(_)
            | Conv1d(_)
            | Conv2d(_)
            | Conv3d(_)
            | ConvTranspose1d(_)
            | ConvTranspose2d(_)
            | ConvTranspose3d(_)
            | DeformableConv2d(_)
    );
    Traits {
        indexing: match op {
            Embedding(_) => Some((Indexing::Read, 0)),
            EmbeddingBackward(_) => Some((Indexing::Write, 0)),
            _ => None,
        },
        layer: match op {
            Linear(_) => Some(Layer::Linear),
            Embedding(_) => Some(Layer::Lookup),
            _ => None,
        },
        adjoint: adjoint(op),
        makes_weight_gradient,
        float_class: module_class(op),
        work: match is_layer {
            true => Work::Layer,
            false => Work::Other,
        },
        ..Traits::default()
    }
}

fn adjoint(op: &ModuleOperationIr) -> Option<Adjoint> {
    use ModuleOperationIr::*;
    Some(match op {
        Linear(_) | Conv1d(_) | Conv2d(_) | Conv3d(_) => Adjoint::Forward { x: 0, weight: 1 },
        LinearXBackward(_) => Adjoint::Input {
            weight: 0,
            gradient: 1,
        },
        LinearWeightBackward(_) => Adjoint::Weight { x: 0, gradient: 1 },
        // The weight and the bias are there for their shapes.
        Conv1dWeightBackward(_)
        | Conv2dWeightBackward(_)
        | Conv3dWeightBackward(_)
        | Conv1dBiasBackward(_)
        | Conv2dBiasBackward(_)
        | Conv3dBiasBackward(_) => Adjoint::Named { weight: 1 },
        Embedding(_) => Adjoint::Read {
            table: 0,
            indices: 1,
        },
        EmbeddingBackward(_) => Adjoint::Named { weight: 0 },
        _ => return None,
    })
}

fn module_class(op: &ModuleOperationIr) -> FloatClass {
    use ModuleOperationIr::*;
    match op {
        Embedding(_)
        | EmbeddingBackward(_)
        | Linear(_)
        | LinearXBackward(_)
        | LinearWeightBackward(_)
        | LinearBiasBackward(_)
        | Attention(_) => FloatClass::Compute,
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
        | ConvTranspose3d(_) => FloatClass::Compute,
        // Pooling, interpolation, spectra, losses and deformable convolutions: kernels in 16 bits are rare.
        _ => FloatClass::Recorded,
    }
}
