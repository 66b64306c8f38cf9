//! Every variant of burn-ir, by what becomes of it. A variant that Burn adds does not compile until it stands here.

use burn_ir::*;

use crate::rules::{OpRule, REPLICATED, rule};
use crate::samples::samples;
use crate::{Recorded, check_known, name};

/// The fate of an operation.
#[derive(Debug, PartialEq)]
enum How {
    /// It has a rule: factors, or a reason why it runs whole on every rank.
    Rule,
    /// Nothing records it: the door answers the function that would, or leaves it to the trait's default, whose
    /// operations have rules. If something did record it, the recorder would refuse it by name.
    Default,
    /// The recorder refuses it by name.
    Refused,
}

fn how(op: &OperationIr) -> How {
    use How::*;
    match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            base(op)
        }
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => numeric(op),
        OperationIr::Bool(op) => bool(op),
        OperationIr::Int(op) => int(op),
        OperationIr::Float(_, op) => float(op),
        OperationIr::Module(op) => module(op),
        OperationIr::Activation(op) => activation(op),
        // What it declares or ends is data that was uploaded.
        OperationIr::Init(_) | OperationIr::Drop(_) => Rule,
        // A device is a mesh, which reduces over its own ranks; over several the door says so.
        OperationIr::Distributed(op) => match op {
            DistributedOperationIr::AllReduce(_) | DistributedOperationIr::SyncCollective => {
                Default
            }
        },
        // Flex runs none either: operations of other crates are recorded by `custom::call`.
        OperationIr::Custom(_) => Refused,
    }
}

fn base(op: &BaseOperationIr) -> How {
    use BaseOperationIr::*;
    match op {
        Reshape(_) | SwapDims(_) | Permute(_) | Flip(_) | Expand(_) | Unfold(_) | Slice(_)
        | SliceAssign(_) | Select(_) | SelectAssign(_) | MaskWhere(_) | MaskFill(_) | Gather(_)
        | Scatter(_) | ScatterNd(_) | GatherNd(_) | Equal(_) | EqualElem(_) | RepeatDim(_)
        | Cat(_) | Cast(_) | Empty(_) | Ones(_) | Zeros(_) | NotEqual(_) | NotEqualElem(_)
        | All(_) | Any(_) | AllDim(_) | AnyDim(_) => How::Rule,
    }
}

fn numeric(op: &NumericOperationIr) -> How {
    use NumericOperationIr::*;
    match op {
        Add(_) | AddScalar(_) | Sub(_) | SubScalar(_) | Div(_) | DivScalar(_) | Rem(_)
        | RemScalar(_) | Mul(_) | MulScalar(_) | Abs(_) | Full(_) | MeanDim(_) | Mean(_)
        | Sum(_) | SumDim(_) | SumDims(_) | Prod(_) | ProdDim(_) | Greater(_) | GreaterElem(_)
        | GreaterEqual(_) | GreaterEqualElem(_) | Lower(_) | LowerElem(_) | LowerEqual(_)
        | LowerEqualElem(_) | ArgMax(_) | ArgTopK(_) | TopK(_) | TopKWithIndices(_) | ArgMin(_)
        | Max(_) | MaxDimWithIndices(_) | MinDimWithIndices(_) | Min(_) | MaxDim(_) | MinDim(_)
        | MaxAbs(_) | MaxAbsDim(_) | Clamp(_) | IntRandom(_) | Powi(_) | PowiScalar(_)
        | CumSum(_) | CumProd(_) | CumMin(_) | CumMax(_) | Neg(_) | Sign(_) | ClampMin(_)
        | ClampMax(_) | Sort(_) | SortWithIndices(_) | ArgSort(_) | Pad(_) => How::Rule,
    }
}

fn bool(op: &BoolOperationIr) -> How {
    use BoolOperationIr::*;
    match op {
        IntoFloat(_) | IntoInt(_) | Not(_) | And(_) | Or(_) | Xor(_) => How::Rule,
    }
}

fn int(op: &IntOperationIr) -> How {
    use IntOperationIr::*;
    match op {
        IntoFloat(_)
        | BitwiseAnd(_)
        | BitwiseAndScalar(_)
        | BitwiseOr(_)
        | BitwiseOrScalar(_)
        | BitwiseXor(_)
        | BitwiseXorScalar(_)
        | BitwiseNot(_)
        | BitwiseLeftShift(_)
        | BitwiseLeftShiftScalar(_)
        | BitwiseRightShift(_)
        | BitwiseRightShiftScalar(_)
        | Matmul(_) => How::Rule,
    }
}

fn float(op: &FloatOperationIr) -> How {
    use FloatOperationIr::*;
    match op {
        Exp(_) | Log(_) | Log1p(_) | Erf(_) | PowfScalar(_) | Sqrt(_) | Cos(_) | Cosh(_)
        | Sin(_) | Sinh(_) | Tan(_) | Tanh(_) | ArcCos(_) | ArcCosh(_) | ArcSin(_) | ArcSinh(_)
        | ArcTan(_) | ArcTanh(_) | ArcTan2(_) | Round(_) | Floor(_) | Ceil(_) | Trunc(_)
        | IntoInt(_) | Matmul(_) | Cross(_) | Random(_) | Recip(_) | IsNan(_) | IsInf(_)
        | Quantize(_) | Dequantize(_) | GridSample2d(_) | Powf(_) | Hypot(_) => How::Rule,
    }
}

fn module(op: &ModuleOperationIr) -> How {
    use ModuleOperationIr::*;
    match op {
        BatchNorm(_)
        | Embedding(_)
        | EmbeddingBackward(_)
        | Linear(_)
        | LinearXBackward(_)
        | LinearWeightBackward(_)
        | LinearBiasBackward(_)
        | Conv1d(_)
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
        | DeformableConv2d(_)
        | DeformableConv2dBackward(_)
        | ConvTranspose1d(_)
        | ConvTranspose2d(_)
        | ConvTranspose3d(_)
        | AvgPool1d(_)
        | AvgPool2d(_)
        | AvgPool1dBackward(_)
        | AvgPool2dBackward(_)
        | AdaptiveAvgPool1d(_)
        | AdaptiveAvgPool2d(_)
        | AdaptiveAvgPool1dBackward(_)
        | AdaptiveAvgPool2dBackward(_)
        | AdaptiveAvgPool3d(_)
        | AdaptiveAvgPool3dBackward(_)
        | MaxPool1d(_)
        | MaxPool1dWithIndices(_)
        | MaxPool1dWithIndicesBackward(_)
        | MaxPool2d(_)
        | MaxPool2dWithIndices(_)
        | MaxPool2dWithIndicesBackward(_)
        | Interpolate(_)
        | InterpolateBackward(_)
        | Attention(_)
        | CtcLoss(_)
        | CtcLossBackward(_)
        | LayerNorm(_)
        | Unfold4d(_)
        | ConvTranspose1dWeightBackward(_)
        | ConvTranspose1dBiasBackward(_)
        | ConvTranspose2dWeightBackward(_)
        | ConvTranspose2dBiasBackward(_)
        | ConvTranspose3dWeightBackward(_)
        | ConvTranspose3dBiasBackward(_) => How::Rule,
    }
}

fn activation(op: &ActivationOperationIr) -> How {
    use ActivationOperationIr::*;
    match op {
        Relu(_)
        | ReluBackward(_)
        | LeakyRelu(_)
        | PRelu(_)
        | Gelu(_)
        | GeluBackward(_)
        | Sigmoid(_)
        | SigmoidBackward(_)
        | HardSigmoid(_)
        | LogSigmoid(_)
        | LogSigmoidBackward(_)
        | Softmax(_)
        | LogSoftmax(_)
        | Softmin(_) => How::Rule,
    }
}

#[test]
fn every_variant_has_a_rule_or_is_refused_by_name() {
    for op in samples() {
        let known = check_known(&[Recorded::from(op.clone())]);
        match how(&op) {
            How::Rule => {
                assert!(known.is_ok(), "{op:?}: {known:?}");
                if let OpRule::Replicated(reason) = rule(&op) {
                    assert!(REPLICATED.iter().any(|(_, why)| *why == reason), "{op:?}");
                }
            }
            How::Default | How::Refused => {
                let text = known.unwrap_err().to_string();
                let OperationIr::Custom(op) = &op else {
                    panic!("no sample of {}", name(&op));
                };
                assert!(text.contains(&op.id), "{text}");
            }
        }
    }
}

#[test]
fn what_nothing_records_would_be_refused_by_name() {
    let op = OperationIr::Distributed(DistributedOperationIr::SyncCollective);
    assert_eq!(how(&op), How::Default);
    let error = check_known(&[Recorded::from(op)]).unwrap_err();
    assert!(error.to_string().contains("SyncCollective"), "{error}");
}
