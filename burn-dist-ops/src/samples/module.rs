//! Samples of module ops.

use super::{FLOAT, INT, Make, line, plain_attention};
use crate::burn::test::padding;
use burn_ir::{ModuleOperationIr::*, *};

pub(super) fn ops(m: &Make) -> Vec<ModuleOperationIr> {
    let mut ops = linear(m);
    ops.extend(conv1d(m));
    ops.extend(conv2d(m));
    ops.extend(conv3d(m));
    ops.extend(deform_conv(m));
    ops.extend(conv_transpose(m));
    ops.extend(average_pool(m));
    ops.extend(max_pool(m));
    ops.extend(others(m));
    ops.extend(line::modules(m));
    ops
}

fn linear(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    vec![
        Embedding(EmbeddingOpIr {
            weights: t(&[7, 3]),
            indices: m.int(&[2, 4]),
            out: m.out(&[2, 4, 3], FLOAT),
        }),
        EmbeddingBackward(EmbeddingBackwardOpIr {
            weights: t(&[7, 3]),
            out_grad: t(&[2, 4, 3]),
            indices: m.int(&[2, 4]),
            out: m.out(&[7, 3], FLOAT),
        }),
        Linear(LinearOpIr::create(
            t(&[2, 3, 4]),
            t(&[4, 5]),
            Some(t(&[5])),
            id,
        )),
        Linear(LinearOpIr::create(t(&[2, 3, 4]), t(&[4, 5]), None, id)),
        LinearXBackward(LinearXBackwardOpIr::create(t(&[4, 5]), t(&[2, 3, 5]), id)),
        LinearWeightBackward(LinearWeightBackwardOpIr::create(
            t(&[2, 3, 4]),
            t(&[2, 3, 5]),
            id,
        )),
        LinearBiasBackward(LinearBiasBackwardOpIr::create(t(&[2, 3, 5]), id)),
    ]
}

fn conv1d(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let options = || Conv1dOptionsIr {
        stride: [2],
        padding: padding([1]),
        dilation: [1],
        groups: 1,
    };
    // Length 7, padded to 9, kernel 3, stride 2 -> 4.
    let (x, weight, bias, y) = ([2, 4, 7], [6, 4, 3], [6], [2, 6, 4]);
    vec![
        Conv1d(Conv1dOpIr::create(
            t(&x),
            t(&weight),
            Some(t(&bias)),
            options(),
            id,
        )),
        Conv1d(Conv1dOpIr::create(t(&x), t(&weight), None, options(), id)),
        Conv1dXBackward(Conv1dXBackwardOpIr::create(
            t(&x),
            t(&weight),
            t(&y),
            options(),
            id,
        )),
        Conv1dWeightBackward(Conv1dWeightBackwardOpIr::create(
            t(&x),
            t(&weight),
            t(&y),
            options(),
            id,
        )),
        Conv1dBiasBackward(Conv1dBiasBackwardOpIr::create(t(&x), t(&bias), t(&y), id)),
    ]
}

fn conv2d(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let options = || Conv2dOptionsIr {
        stride: [1, 2],
        padding: padding([0, 1]),
        dilation: [1, 1],
        groups: 1,
    };
    // 5 -> 3 (kernel 3), 7 padded to 9 -> 4 (kernel 3, stride 2).
    let (x, weight, bias, y) = ([2, 4, 5, 7], [6, 4, 3, 3], [6], [2, 6, 3, 4]);
    vec![
        Conv2d(Conv2dOpIr::create(
            t(&x),
            t(&weight),
            Some(t(&bias)),
            options(),
            id,
        )),
        Conv2d(Conv2dOpIr::create(t(&x), t(&weight), None, options(), id)),
        Conv2dXBackward(Conv2dXBackwardOpIr::create(
            t(&x),
            t(&weight),
            t(&y),
            options(),
            id,
        )),
        Conv2dWeightBackward(Conv2dWeightBackwardOpIr::create(
            t(&x),
            t(&weight),
            t(&y),
            options(),
            id,
        )),
        Conv2dBiasBackward(Conv2dBiasBackwardOpIr::create(t(&x), t(&bias), t(&y), id)),
    ]
}

fn conv3d(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let options = || Conv3dOptionsIr {
        stride: [1, 1, 2],
        padding: [0, 1, 0],
        dilation: [1, 1, 1],
        groups: 1,
    };
    // 4 -> 3, 3 padded to 5 -> 4, 4 -> 2 (kernel 2, stride 2).
    let (x, weight, bias, y) = ([2, 3, 4, 3, 4], [4, 3, 2, 2, 2], [4], [2, 4, 3, 4, 2]);
    vec![
        Conv3d(Conv3dOpIr::create(
            t(&x),
            t(&weight),
            Some(t(&bias)),
            options(),
            id,
        )),
        Conv3d(Conv3dOpIr::create(t(&x), t(&weight), None, options(), id)),
        Conv3dXBackward(Conv3dXBackwardOpIr::create(
            t(&x),
            t(&weight),
            t(&y),
            options(),
            id,
        )),
        Conv3dWeightBackward(Conv3dWeightBackwardOpIr::create(
            t(&x),
            t(&weight),
            t(&y),
            options(),
            id,
        )),
        Conv3dBiasBackward(Conv3dBiasBackwardOpIr::create(t(&x), t(&bias), t(&y), id)),
    ]
}

fn deform_conv(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let options = || DeformableConv2dOptionsIr {
        stride: [1, 1],
        padding: [0, 0],
        dilation: [1, 1],
        weight_groups: 1,
        offset_groups: 1,
    };
    // One offset (y, x) and one mask value per kernel element and output position: 2 * 9 and 9 channels.
    let (x, offset, weight) = ([2, 4, 5, 6], [2, 18, 3, 4], [6, 4, 3, 3]);
    let (mask, bias, y) = ([2, 9, 3, 4], [6], [2, 6, 3, 4]);
    let forward = |mask: Option<TensorIr>, bias: Option<TensorIr>| {
        let op = DeformConv2dOpIr::create(t(&x), t(&offset), t(&weight), mask, bias, options(), id);
        DeformableConv2d(Box::new(op))
    };
    let backward = |mask: Option<TensorIr>, bias: Option<TensorIr>| {
        let op = DeformConv2dBackwardOpIr::create(
            t(&x),
            t(&offset),
            t(&weight),
            mask,
            bias,
            t(&y),
            options(),
            id,
        );
        DeformableConv2dBackward(Box::new(op))
    };
    vec![
        forward(Some(t(&mask)), Some(t(&bias))),
        forward(Some(t(&mask)), None),
        forward(None, Some(t(&bias))),
        forward(None, None),
        backward(Some(t(&mask)), Some(t(&bias))),
        backward(Some(t(&mask)), None),
        backward(None, Some(t(&bias))),
        backward(None, None),
    ]
}

fn conv_transpose(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let one = || ConvTranspose1dOptionsIr {
        stride: [2],
        padding: [1],
        padding_out: [1],
        dilation: [1],
        groups: 1,
    };
    let two = || ConvTranspose2dOptionsIr {
        stride: [2, 1],
        padding: [1, 0],
        padding_out: [1, 0],
        dilation: [1, 1],
        groups: 1,
    };
    let three = || ConvTranspose3dOptionsIr {
        stride: [2, 1, 1],
        padding: [1, 0, 0],
        padding_out: [1, 0, 0],
        dilation: [1, 1, 1],
        groups: 1,
    };
    vec![
        ConvTranspose1d(ConvTranspose1dOpIr::create(
            t(&[2, 4, 5]),
            t(&[4, 6, 3]),
            Some(t(&[6])),
            one(),
            id,
        )),
        ConvTranspose1d(ConvTranspose1dOpIr::create(
            t(&[2, 4, 5]),
            t(&[4, 6, 3]),
            None,
            one(),
            id,
        )),
        ConvTranspose2d(ConvTranspose2dOpIr::create(
            t(&[2, 4, 5, 3]),
            t(&[4, 6, 3, 2]),
            Some(t(&[6])),
            two(),
            id,
        )),
        ConvTranspose3d(ConvTranspose3dOpIr::create(
            t(&[2, 3, 3, 2, 4]),
            t(&[3, 4, 3, 2, 2]),
            Some(t(&[4])),
            three(),
            id,
        )),
    ]
}

fn average_pool(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let (kernel, stride, padding) = ([2, 3], [2, 1], [0, 1]);
    vec![
        AvgPool1d(AvgPool1dOpIr::create(
            t(&[2, 3, 7]),
            3,
            2,
            1,
            true,
            false,
            id,
        )),
        AvgPool2d(AvgPool2dOpIr::create(
            t(&[2, 3, 4, 5]),
            kernel,
            stride,
            padding,
            false,
            false,
            id,
        )),
        AvgPool1dBackward(AvgPool1dBackwardOpIr::create(
            t(&[2, 3, 7]),
            t(&[2, 3, 4]),
            3,
            2,
            1,
            true,
            false,
            id,
        )),
        AvgPool2dBackward(AvgPool2dBackwardOpIr::create(
            t(&[2, 3, 4, 5]),
            t(&[2, 3, 2, 5]),
            kernel,
            stride,
            padding,
            false,
            false,
            id,
        )),
        AdaptiveAvgPool1d(AdaptiveAvgPool1dOpIr::create(t(&[2, 3, 7]), 3, id)),
        AdaptiveAvgPool2d(AdaptiveAvgPool2dOpIr::create(t(&[2, 3, 5, 6]), [2, 3], id)),
        AdaptiveAvgPool1dBackward(AdaptiveAvgPool1dBackwardOpIr::create(
            t(&[2, 3, 7]),
            t(&[2, 3, 3]),
            id,
        )),
        AdaptiveAvgPool2dBackward(AdaptiveAvgPool2dBackwardOpIr::create(
            t(&[2, 3, 5, 6]),
            t(&[2, 3, 2, 3]),
            id,
        )),
    ]
}

fn max_pool(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let (x1, y1) = ([2, 3, 8], [2, 3, 4]);
    let (x2, y2) = ([2, 3, 4, 6], [2, 3, 2, 3]);
    let (two, zero, one) = ([2, 2], [0, 0], [1, 1]);
    vec![
        MaxPool1d(MaxPool1dOpIr::create(t(&x1), 2, 2, 0, 1, false, id)),
        MaxPool1dWithIndices(MaxPool1dWithIndicesOpIr::create(
            t(&x1),
            2,
            2,
            0,
            1,
            false,
            INT,
            id,
        )),
        MaxPool1dWithIndicesBackward(MaxPool1dWithIndicesBackwardOpIr::create(
            t(&x1),
            t(&y1),
            m.int(&y1),
            2,
            2,
            0,
            1,
            false,
            id,
        )),
        MaxPool2d(MaxPool2dOpIr::create(
            t(&x2),
            two,
            two,
            zero,
            one,
            false,
            id,
        )),
        MaxPool2dWithIndices(MaxPool2dWithIndicesOpIr::create(
            t(&x2),
            two,
            two,
            zero,
            one,
            false,
            INT,
            id,
        )),
        MaxPool2dWithIndicesBackward(MaxPool2dWithIndicesBackwardOpIr::create(
            t(&x2),
            t(&y2),
            m.int(&y2),
            two,
            two,
            zero,
            one,
            false,
            id,
        )),
    ]
}

fn others(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let bilinear = || InterpolateOptionsIr {
        mode: InterpolateModeIr::Bilinear,
        align_corners: true,
    };
    let attention = |mask: Option<TensorIr>, bias: Option<TensorIr>| {
        let (query, key, value) = (t(&[2, 3, 4, 8]), t(&[2, 3, 5, 8]), t(&[2, 3, 5, 6]));
        let options = plain_attention();
        Attention(AttentionOpIr::create(
            query, key, value, mask, bias, options, id,
        ))
    };
    let scores = [2, 3, 4, 5];
    // Seven time steps, two sequences, four classes; targets of at most two classes.
    let lengths = || (m.int(&[2, 2]), m.int(&[2]), m.int(&[2]));
    let (targets, input_lengths, target_lengths) = lengths();
    let ctc = CtcLossOpIr::create(t(&[7, 2, 4]), targets, input_lengths, target_lengths, 0, id);
    let (targets, input_lengths, target_lengths) = lengths();
    let ctc_backward = CtcLossBackwardOpIr::create(
        t(&[7, 2, 4]),
        targets,
        input_lengths,
        target_lengths,
        t(&[2]),
        0,
        id,
    );
    vec![
        Interpolate(InterpolateOpIr::create(
            t(&[2, 3, 4, 5]),
            [6, 3],
            bilinear(),
            id,
        )),
        InterpolateBackward(InterpolateBackwardOpIr::create(
            t(&[2, 3, 4, 5]),
            t(&[2, 3, 6, 3]),
            [6, 3],
            InterpolateOptionsIr {
                mode: InterpolateModeIr::Nearest,
                align_corners: false,
            },
            id,
        )),
        attention(None, None),
        attention(Some(m.bool(&scores)), None),
        attention(None, Some(t(&scores))),
        attention(Some(m.bool(&scores)), Some(t(&scores))),
        CtcLoss(ctc),
        CtcLossBackward(ctc_backward),
    ]
}
