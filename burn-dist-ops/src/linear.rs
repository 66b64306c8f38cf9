//! The linear module and its three backwards. `weight` is `[i, o]`.

use super::family::prelude::*;
use crate::burn::{linear, linear_weight_backward, linear_x_backward};

family! {
    Linear |cx, op| {
        /// `x[..., i] · weight[i, o] (+ bias[o])`. If `i` is split, the first member of the group adds the bias.
        Linear(LinearOpIr) float =
            linear::<B>(cx.float(&op.x), cx.float(&op.weight), cx.float_if(&op.bias)),
        LinearXBackward(LinearXBackwardOpIr) float =
            linear_x_backward::<B>(cx.float(&op.weight), cx.float(&op.output_grad)),
        LinearWeightBackward(LinearWeightBackwardOpIr) float =
            linear_weight_backward::<B>(cx.float(&op.x), cx.float(&op.output_grad)),
        LinearBiasBackward(LinearBiasBackwardOpIr) float =
            B::linear_bias_backward(cx.float(&op.output_grad)),
    }
}

impl Operation for Linear<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let notation = match self {
            Self::Linear(op) if op.bias.is_none() => "... i, i o -> ... o",
            Self::Linear(_) => "... i, i o, o -> ... o",
            Self::LinearXBackward(_) => "i o, ... o -> ... i",
            Self::LinearWeightBackward(_) => "... i, ... o -> i o",
            Self::LinearBiasBackward(_) => "... o -> o",
        };
        let rule = RuleBuilder::notation(shapes, notation).contract(ReduceOp::Sum);
        match self {
            Self::Linear(_) => rule.linear().lowering(Lowering::Special).build(),
            Self::LinearBiasBackward(_) => rule.linear().build(),
            Self::LinearXBackward(_) | Self::LinearWeightBackward(_) => rule.build(),
        }
    }

    fn lower(&self, local: &Local<'_>, _: &Rule, emit: &mut Emit<'_>) {
        local.same_with_one_bias(emit, |op| match op {
            ModuleOperationIr::Linear(op) => Some(&mut op.bias),
            _ => None,
        });
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }

    fn traits(&self) -> Traits {
        let is_forward = matches!(self, Self::Linear(_));
        let (weight, gradient) = (0, 1);
        Traits {
            layer: is_forward.then_some(Layer::Linear),
            work: match is_forward {
                true => Work::Layer,
                false => Work::Other,
            },
            adjoint: match self {
                Self::Linear(_) => Some(Adjoint::Forward { x: 0, weight: 1 }),
                Self::LinearXBackward(_) => Some(Adjoint::Input { weight, gradient }),
                Self::LinearWeightBackward(_) => Some(Adjoint::Weight { x: 0, gradient }),
                Self::LinearBiasBackward(_) => None,
            },
            makes_weight_gradient: matches!(
                self,
                Self::LinearWeightBackward(_) | Self::LinearBiasBackward(_)
            ),
            ..Traits::default()
        }
    }

    /// `2 i o` per row.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let last = |index: usize| *shapes.inputs[index].last().unwrap_or(&1) as f64;
        match self {
            Self::Linear(_) => Some(2.0 * numel(shapes.outputs[0]) * last(0)),
            Self::LinearXBackward(_) => Some(2.0 * numel(shapes.outputs[0]) * last(0)),
            Self::LinearWeightBackward(_) => Some(2.0 * numel(shapes.inputs[0]) * last(1)),
            Self::LinearBiasBackward(_) => None,
        }
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        let made = match self {
            Self::Linear(op) if op.bias.is_some() => Nothing::Bias {
                input: 2,
                dim: op.out.shape.num_dims() - 1,
            },
            _ => Nothing::Zeros,
        };
        OfNothing::from(0, made)
    }
}
