//! Odder ones of what Burn 0.21 does not have as one operation.

use burn_ir::*;

use super::{INT, float, id, int, numeric, tensor};
use crate::samples::BOOL;

pub(super) fn all() -> Vec<OperationIr> {
    let mut ops = activations();
    ops.extend(numbers());
    ops.extend(questions());
    ops.extend(modules().into_iter().map(OperationIr::Module));
    ops
}

fn activations() -> Vec<OperationIr> {
    use ActivationOperationIr::*;
    let ops = [
        Softmax(DimOpIr::create(float(&[5, 7]), 0, id)),
        LogSoftmax(DimOpIr::create(float(&[5, 7, 3]), 2, id)),
        // One slope for all channels.
        PRelu(BinaryOpIr::create(float(&[5, 7]), float(&[1, 1]), id)),
        ReluBackward(BinaryOpIr::create(float(&[7, 5]), float(&[7, 5]), id)),
    ];
    ops.into_iter().map(OperationIr::Activation).collect()
}

fn numbers() -> Vec<OperationIr> {
    use NumericOperationIr::*;
    let pad = |mode| PadOpIr::create(float(&[5, 7]), vec![(1, 0), (2, 3)], mode, id);
    let floats = vec![
        SumDims(ReduceDimsOpIr::create(float(&[5, 7, 3]), vec![0, 1, 2], id)),
        SumDims(ReduceDimsOpIr::create(float(&[5, 7, 3]), vec![1], id)),
        SumDims(ReduceDimsOpIr::create(float(&[5, 0]), vec![1], id)),
        TopKWithIndices(TopKWithIndicesOpIr::create(float(&[7, 5]), 0, 3, INT, id)),
        Sort(SortOpIr::create(float(&[7, 5]), 0, true, id)),
        Pad(pad(PadModeIr::Edge)),
        Pad(pad(PadModeIr::Constant(ScalarIr::Float(0.0)))),
        Neg(UnaryOpIr::create(float(&[11]), id)),
    ];
    let sums = ReduceDimsOpIr::create(int(&[5, 7]), vec![0], id);
    let mut ops: Vec<_> = floats.into_iter().map(numeric).collect();
    ops.push(OperationIr::NumericInt(INT, SumDims(sums)));
    ops
}

fn questions() -> Vec<OperationIr> {
    use BaseOperationIr::*;
    let bools = |dims: &[usize]| tensor(dims, BOOL);
    let all = |dims: &[usize]| ReduceOpIr::create_bool(bools(dims), BOOL, id);
    let along = |dims: &[usize], dim| ReduceDimOpIr::create_bool(bools(dims), dim, 1, BOOL, id);
    let ops = vec![
        All(all(&[7, 5])),
        Any(all(&[7])),
        AllDim(along(&[7, 5], 0)),
        AnyDim(along(&[5, 7], 1)),
        // Broadcast.
        NotEqual(BinaryOpIr::create_comparison(
            bools(&[5, 7]),
            bools(&[1, 7]),
            BOOL,
            id,
        )),
    ];
    ops.into_iter().map(OperationIr::BaseBool).collect()
}

fn modules() -> Vec<ModuleOperationIr> {
    use ModuleOperationIr::*;
    let options = |groups| ConvTranspose1dOptionsIr {
        stride: [1],
        padding: [0],
        padding_out: [0],
        dilation: [1],
        groups,
    };
    vec![
        LayerNorm(LayerNormOpIr::create(
            float(&[5, 7]),
            float(&[7]),
            Some(float(&[7])),
            1e-5,
            id,
        )),
        // Pictures.
        BatchNorm(BatchNormOpIr::create(
            float(&[5, 3, 2, 4]),
            float(&[3]),
            float(&[3]),
            float(&[3]),
            float(&[3]),
            ScalarIr::Float(1e-3),
            id,
        )),
        // (4 - 1) + 2 = 5; two groups of two and three channels.
        ConvTranspose1dWeightBackward(ConvTranspose1dWeightBackwardOpIr::create(
            float(&[3, 4, 4]),
            float(&[4, 3, 2]),
            float(&[3, 6, 5]),
            options(2),
            id,
        )),
        ConvTranspose1dBiasBackward(ConvTranspose1dBiasBackwardOpIr::create(
            float(&[5, 4, 4]),
            float(&[7]),
            float(&[5, 7, 5]),
            id,
        )),
    ]
}
