//! Gradients of transposed convolutions: batch `b`, input channels `c`, output channels `o`; space stays whole.
//!
//! With groups, channels belong together as a split would have to respect: then only the batch is split.

use super::family::prelude::*;

/// Runs `kernel(x, weight, gradient, options)`.
macro_rules! of_weight {
    ($cx:ident, $op:ident, $kernel:path) => {
        $kernel(
            $cx.float(&$op.x),
            $cx.float(&$op.weight),
            $cx.float(&$op.output_grad),
            $op.options.clone().into(),
        )
    };
}

/// Runs `kernel(x, bias, gradient)`.
macro_rules! of_bias {
    ($cx:ident, $op:ident, $kernel:path) => {
        $kernel(
            $cx.float(&$op.x),
            $cx.float(&$op.bias),
            $cx.float(&$op.output_grad),
        )
    };
}

family! {
    Transposed |cx, op| {
        ConvTranspose1dWeightBackward(ConvTranspose1dWeightBackwardOpIr) float =
            of_weight!(cx, op, B::conv_transpose1d_weight_backward),
        ConvTranspose1dBiasBackward(ConvTranspose1dBiasBackwardOpIr) float =
            of_bias!(cx, op, B::conv_transpose1d_bias_backward),
        ConvTranspose2dWeightBackward(ConvTranspose2dWeightBackwardOpIr) float =
            of_weight!(cx, op, B::conv_transpose2d_weight_backward),
        ConvTranspose2dBiasBackward(ConvTranspose2dBiasBackwardOpIr) float =
            of_bias!(cx, op, B::conv_transpose2d_bias_backward),
        ConvTranspose3dWeightBackward(ConvTranspose3dWeightBackwardOpIr) float =
            of_weight!(cx, op, B::conv_transpose3d_weight_backward),
        ConvTranspose3dBiasBackward(ConvTranspose3dBiasBackwardOpIr) float =
            of_bias!(cx, op, B::conv_transpose3d_bias_backward),
    }
}

impl Transposed<'_> {
    /// Returns in how many groups of channels the weight is; `None` of a bias.
    fn groups(&self) -> Option<usize> {
        match self {
            Self::ConvTranspose1dWeightBackward(op) => Some(op.options.groups),
            Self::ConvTranspose2dWeightBackward(op) => Some(op.options.groups),
            Self::ConvTranspose3dWeightBackward(op) => Some(op.options.groups),
            Self::ConvTranspose1dBiasBackward(_)
            | Self::ConvTranspose2dBiasBackward(_)
            | Self::ConvTranspose3dBiasBackward(_) => None,
        }
    }
}

impl Operation for Transposed<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let Some(groups) = self.groups() else {
            let rule = RuleBuilder::notation(shapes, "b *, o, b o ... -> o");
            let rule = rule.contract(ReduceOp::Sum).shape_only(0).shape_only(1);
            return rule.build();
        };
        let rule = RuleBuilder::notation(shapes, "b c *, c o *, b o * -> c o *");
        let rule = rule.contract(ReduceOp::Sum).shape_only(1);
        match groups {
            1 => rule.build(),
            _ => rule
                .kind('c', FactorKind::Whole)
                .kind('o', FactorKind::Whole)
                .build(),
        }
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }

    fn traits(&self) -> Traits {
        Traits {
            // The weight and the bias are there for their shapes.
            adjoint: Some(Adjoint::Named { weight: 1 }),
            makes_weight_gradient: true,
            ..Traits::default()
        }
    }

    /// `2 o/groups k` per element of the input, as the transposed convolution itself.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        self.groups()?;
        Some(2.0 * numel(shapes.inputs[0]) * numel(&shapes.inputs[1][1..]))
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        let first = match self.groups() {
            Some(_) => 0,
            // The gradient of the result is the only factor.
            None => 2,
        };
        OfNothing::from(first, Nothing::Zeros)
    }
}
