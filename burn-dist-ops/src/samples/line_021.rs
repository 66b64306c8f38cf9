//! Samples of what Burn 0.21 alone has, or has otherwise.

use burn_backend::DType;
use burn_dist_door::Activation;
use burn_ir::*;

use super::{FLOAT, Make};

pub(super) fn base(_: &Make, _: DType) -> Vec<BaseOperationIr> {
    Vec::new()
}

pub(super) fn numeric(_: &Make, _: DType) -> Vec<NumericOperationIr> {
    Vec::new()
}

pub(super) fn bools(_: &Make) -> Vec<BoolOperationIr> {
    Vec::new()
}

pub(super) fn floats(_: &Make) -> Vec<FloatOperationIr> {
    Vec::new()
}

pub(super) fn modules(m: &Make) -> Vec<ModuleOperationIr> {
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    vec![
        ModuleOperationIr::Rfft(RfftOpIr::create(t(&[3, 8]), 1, None, id)),
        ModuleOperationIr::IRfft(IRfftOpIr::create(t(&[3, 5]), t(&[3, 5]), 1, None, id)),
    ]
}

/// The activations, which travel as custom ops.
pub(super) fn activations(m: &Make) -> Vec<OperationIr> {
    use Activation::*;
    let op = |activation: Activation, shapes: &[&[usize]]| {
        OperationIr::Custom(CustomOpIr {
            id: activation.id(),
            inputs: shapes.iter().map(|shape| m.float(shape)).collect(),
            outputs: vec![m.out(shapes[0], FLOAT)],
        })
    };
    let leaky = LeakyRelu {
        negative_slope: 0.1,
    };
    let hard = HardSigmoid {
        alpha: 0.2,
        beta: 0.5,
    };
    let mut ops = vec![op(Prelu, &[&[3, 4, 2], &[1, 4, 1]])];
    for activation in [Relu, leaky, Gelu, Sigmoid, hard, LogSigmoid] {
        ops.push(op(activation, &[&[3, 4]]));
    }
    for gradient in [
        ReluBackward,
        GeluBackward,
        SigmoidBackward,
        LogSigmoidBackward,
    ] {
        ops.push(op(gradient, &[&[3, 4], &[3, 4]]));
    }
    ops
}
