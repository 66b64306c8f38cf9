//! Samples of what Burn 0.21 does not have as one operation.

use burn_backend::DType;
use burn_ir::*;

use super::{BOOL, INT, Make, scalar};

pub(super) fn base(m: &Make, dtype: DType) -> Vec<BaseOperationIr> {
    use BaseOperationIr::*;
    let t = |dims: &[usize]| m.tensor(dims, dtype);
    let id = || m.id();
    let all = || ReduceOpIr::create_bool(t(&[3, 5]), BOOL, id);
    let along = || ReduceDimOpIr::create_bool(t(&[3, 5, 2]), 1, 1, BOOL, id);
    vec![
        NotEqual(BinaryOpIr::create_comparison(
            t(&[3, 4]),
            t(&[3, 4]),
            BOOL,
            id,
        )),
        NotEqualElem(ScalarOpIr::create_comparison(
            t(&[3, 4]),
            scalar(dtype),
            BOOL,
            id,
        )),
        All(all()),
        Any(all()),
        AllDim(along()),
        AnyDim(along()),
    ]
}

pub(super) fn numeric(m: &Make, dtype: DType) -> Vec<NumericOperationIr> {
    use NumericOperationIr::*;
    let t = |dims: &[usize]| m.tensor(dims, dtype);
    let id = || m.id();
    let with_scalar = || ScalarOpIr::create(t(&[3, 4]), scalar(dtype), id);
    let sort = |descending| SortOpIr::create(t(&[3, 5]), 1, descending, id);
    let pad = |mode| PadOpIr::create(t(&[3, 4, 5]), vec![(0, 0), (1, 2), (0, 0)], mode, id);
    vec![
        SumDims(ReduceDimsOpIr::create(t(&[3, 5, 2]), vec![0, 2], id)),
        TopKWithIndices(TopKWithIndicesOpIr::create(t(&[3, 5]), 1, 2, INT, id)),
        Neg(UnaryOpIr::create(t(&[3, 4]), id)),
        Sign(UnaryOpIr::create(t(&[3, 4]), id)),
        ClampMin(with_scalar()),
        ClampMax(with_scalar()),
        Sort(sort(false)),
        Sort(sort(true)),
        SortWithIndices(SortWithIndicesOpIr::create(t(&[3, 5]), 1, false, INT, id)),
        ArgSort(SortOpIr::create_arg(t(&[3, 5]), 1, true, INT, id)),
        Pad(pad(PadModeIr::Constant(scalar(dtype)))),
        Pad(pad(PadModeIr::Constant(zero(dtype)))),
        Pad(pad(PadModeIr::Reflect)),
        Pad(pad(PadModeIr::Edge)),
    ]
}

fn zero(dtype: DType) -> ScalarIr {
    match dtype.is_float() {
        true => ScalarIr::Float(0.0),
        false => ScalarIr::Int(0),
    }
}

pub(super) fn bools(m: &Make) -> Vec<BoolOperationIr> {
    let t = || m.bool(&[3, 4]);
    vec![BoolOperationIr::Xor(BinaryOpIr::create(t(), t(), || {
        m.id()
    }))]
}

pub(super) fn floats(m: &Make) -> Vec<FloatOperationIr> {
    let t = || m.float(&[3, 4]);
    vec![FloatOperationIr::Hypot(BinaryOpIr::create(
        t(),
        t(),
        || m.id(),
    ))]
}

pub(super) fn modules(m: &Make) -> Vec<ModuleOperationIr> {
    use ModuleOperationIr::*;
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let layer_norm = |beta| {
        LayerNorm(LayerNormOpIr::create(
            t(&[2, 3, 5]),
            t(&[5]),
            beta,
            1e-5,
            id,
        ))
    };
    let mut ops = vec![
        layer_norm(Some(t(&[5]))),
        layer_norm(None),
        BatchNorm(BatchNormOpIr::create(
            t(&[2, 3, 4]),
            t(&[3]),
            t(&[3]),
            t(&[3]),
            t(&[3]),
            ScalarIr::Float(1e-5),
            id,
        )),
        AdaptiveAvgPool3d(AdaptiveAvgPool3dOpIr::create(
            t(&[2, 3, 5, 6, 4]),
            [2, 3, 2],
            id,
        )),
        AdaptiveAvgPool3dBackward(AdaptiveAvgPool3dBackwardOpIr::create(
            t(&[2, 3, 5, 6, 4]),
            t(&[2, 3, 2, 3, 2]),
            id,
        )),
        Unfold4d(Unfold4dOpIr::create(
            t(&[2, 3, 4, 5]),
            [2, 3],
            Unfold4dOptionsIr {
                stride: [1, 2],
                padding: [0, 1],
                dilation: [1, 1],
            },
            id,
        )),
    ];
    ops.extend(transposed(m));
    ops
}

/// Gradients of the transposed convolutions among the other samples.
fn transposed(m: &Make) -> Vec<ModuleOperationIr> {
    use ModuleOperationIr::*;
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    // (5 - 1) * 2 - 2 + 3 + 1 = 10.
    let (x1, w1, y1) = ([2, 4, 5], [4, 6, 3], [2, 6, 10]);
    // The last dim: (3 - 1) + 2 = 4.
    let (x2, w2, y2) = ([2, 4, 5, 3], [4, 6, 3, 2], [2, 6, 10, 4]);
    // (3 - 1) * 2 - 2 + 3 + 1 = 6, (2 - 1) + 2 = 3, (4 - 1) + 2 = 5.
    let (x3, w3, y3) = ([2, 3, 3, 2, 4], [3, 4, 3, 2, 2], [2, 4, 6, 3, 5]);
    vec![
        ConvTranspose1dWeightBackward(ConvTranspose1dWeightBackwardOpIr::create(
            t(&x1),
            t(&w1),
            t(&y1),
            ConvTranspose1dOptionsIr {
                stride: [2],
                padding: [1],
                padding_out: [1],
                dilation: [1],
                groups: 1,
            },
            id,
        )),
        ConvTranspose1dBiasBackward(ConvTranspose1dBiasBackwardOpIr::create(
            t(&x1),
            t(&[6]),
            t(&y1),
            id,
        )),
        ConvTranspose2dWeightBackward(ConvTranspose2dWeightBackwardOpIr::create(
            t(&x2),
            t(&w2),
            t(&y2),
            ConvTranspose2dOptionsIr {
                stride: [2, 1],
                padding: [1, 0],
                padding_out: [1, 0],
                dilation: [1, 1],
                groups: 1,
            },
            id,
        )),
        ConvTranspose2dBiasBackward(ConvTranspose2dBiasBackwardOpIr::create(
            t(&x2),
            t(&[6]),
            t(&y2),
            id,
        )),
        ConvTranspose3dWeightBackward(ConvTranspose3dWeightBackwardOpIr::create(
            t(&x3),
            t(&w3),
            t(&y3),
            ConvTranspose3dOptionsIr {
                stride: [2, 1, 1],
                padding: [1, 0, 0],
                padding_out: [1, 0, 0],
                dilation: [1, 1, 1],
                groups: 1,
            },
            id,
        )),
        ConvTranspose3dBiasBackward(ConvTranspose3dBiasBackwardOpIr::create(
            t(&x3),
            t(&[4]),
            t(&y3),
            id,
        )),
    ]
}

/// The activations.
pub(super) fn activations(m: &Make) -> Vec<OperationIr> {
    use ActivationOperationIr::*;
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let unary = || UnaryOpIr::create(t(&[3, 4]), id);
    let binary = || BinaryOpIr::create(t(&[3, 4]), t(&[3, 4]), id);
    let along = |dim| DimOpIr::create(t(&[3, 5, 2]), dim, id);
    let ops = vec![
        Relu(unary()),
        ReluBackward(binary()),
        LeakyRelu(ScalarOpIr::create(t(&[3, 4]), ScalarIr::Float(0.1), id)),
        PRelu(BinaryOpIr::create(t(&[3, 4, 2]), t(&[1, 4, 1]), id)),
        Gelu(unary()),
        GeluBackward(binary()),
        Sigmoid(unary()),
        SigmoidBackward(binary()),
        HardSigmoid(HardSigmoidOpIr::create(
            t(&[3, 4]),
            ScalarIr::Float(0.2),
            ScalarIr::Float(0.5),
            id,
        )),
        LogSigmoid(unary()),
        LogSigmoidBackward(binary()),
        Softmax(along(2)),
        Softmax(along(1)),
        LogSoftmax(along(1)),
        Softmin(along(1)),
    ];
    ops.into_iter().map(OperationIr::Activation).collect()
}
