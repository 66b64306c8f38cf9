//! Convolutions: batch `b`, input channels `c`, output channels `o`; space stays whole.
//!
//! With groups, channels belong together as a split would have to respect: then only the batch is split. If a
//! sum over input channels is split, the first member of the group adds the bias.

use super::family::prelude::*;

/// Runs `kernel(x, weight, bias?, options)`.
macro_rules! forward {
    ($cx:ident, $op:ident, $kernel:path) => {
        $kernel(
            $cx.float(&$op.x),
            $cx.float(&$op.weight),
            $cx.float_if(&$op.bias),
            $op.options.clone().into(),
        )
    };
}

/// Runs `kernel(x, weight, gradient, options)`.
macro_rules! backward {
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
macro_rules! bias_backward {
    ($cx:ident, $op:ident, $kernel:path) => {
        $kernel(
            $cx.float(&$op.x),
            $cx.float(&$op.bias),
            $cx.float(&$op.output_grad),
        )
    };
}

family! {
    Conv |cx, op| {
        Conv1d(Conv1dOpIr) float = forward!(cx, op, B::conv1d),
        Conv1dXBackward(Conv1dXBackwardOpIr) float = backward!(cx, op, B::conv1d_x_backward),
        Conv1dWeightBackward(Conv1dWeightBackwardOpIr) float = backward!(cx, op, B::conv1d_weight_backward),
        Conv1dBiasBackward(Conv1dBiasBackwardOpIr) float = bias_backward!(cx, op, B::conv1d_bias_backward),
        Conv2d(Conv2dOpIr) float = forward!(cx, op, B::conv2d),
        Conv2dXBackward(Conv2dXBackwardOpIr) float = backward!(cx, op, B::conv2d_x_backward),
        Conv2dWeightBackward(Conv2dWeightBackwardOpIr) float = backward!(cx, op, B::conv2d_weight_backward),
        Conv2dBiasBackward(Conv2dBiasBackwardOpIr) float = bias_backward!(cx, op, B::conv2d_bias_backward),
        Conv3d(Conv3dOpIr) float = forward!(cx, op, B::conv3d),
        Conv3dXBackward(Conv3dXBackwardOpIr) float = backward!(cx, op, B::conv3d_x_backward),
        Conv3dWeightBackward(Conv3dWeightBackwardOpIr) float = backward!(cx, op, B::conv3d_weight_backward),
        Conv3dBiasBackward(Conv3dBiasBackwardOpIr) float = bias_backward!(cx, op, B::conv3d_bias_backward),
        ConvTranspose1d(ConvTranspose1dOpIr) float = forward!(cx, op, B::conv_transpose1d),
        ConvTranspose2d(ConvTranspose2dOpIr) float = forward!(cx, op, B::conv_transpose2d),
        ConvTranspose3d(ConvTranspose3dOpIr) float = forward!(cx, op, B::conv_transpose3d),
        DeformableConv2d(DeformConv2dOpIr) float = B::deform_conv2d(
            cx.float(&op.x),
            cx.float(&op.offset),
            cx.float(&op.weight),
            cx.float_if(&op.mask),
            cx.float_if(&op.bias),
            op.options.clone().into(),
        ),
        DeformableConv2dBackward(DeformConv2dBackwardOpIr) _ = {
            let x = cx.float(&op.x);
            let offset = cx.float(&op.offset);
            let weight = cx.float(&op.weight);
            let out_grad = cx.float(&op.out_grad);
            let mask = cx.float_if(&op.mask);
            let bias = cx.float_if(&op.bias);
            let options = op.options.clone().into();
            let grads = B::deform_conv2d_backward(x, offset, weight, mask, bias, out_grad, options);
            cx.put_float(&op.input_grad, grads.x_grad);
            cx.put_float(&op.offset_grad, grads.offset_grad);
            cx.put_float(&op.weight_grad, grads.weight_grad);
            for (out, grad) in [(&op.mask_grad, grads.mask_grad), (&op.bias_grad, grads.bias_grad)] {
                if let (Some(out), Some(grad)) = (out, grad) {
                    cx.put_float(out, grad);
                }
            }
        },
    }
}

/// The computation of a convolution, in any number of dims.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// `(x, weight, bias?)`.
    Forward,
    /// `(x, weight, bias?)`.
    Transpose,
    /// `(x, weight, output_grad)`; only the shape of `x` is read.
    OfX,
    /// `(x, weight, output_grad)`; only the shape of `weight` is read.
    OfWeight,
    /// `(x, bias, output_grad)`; only the shapes of `x` and `bias` are read.
    OfBias,
    /// `(x, offset, weight, mask?, bias?)`.
    Deformable,
    /// `(x, offset, weight, output_grad, mask?, bias?)`.
    OfDeformable,
}

impl Conv<'_> {
    /// Returns what it computes, and in how many groups of channels.
    fn part(&self) -> (Part, usize) {
        use Part::*;
        match self {
            Self::Conv1d(op) => (Forward, op.options.groups),
            Self::Conv2d(op) => (Forward, op.options.groups),
            Self::Conv3d(op) => (Forward, op.options.groups),
            Self::ConvTranspose1d(op) => (Transpose, op.options.groups),
            Self::ConvTranspose2d(op) => (Transpose, op.options.groups),
            Self::ConvTranspose3d(op) => (Transpose, op.options.groups),
            Self::Conv1dXBackward(op) => (OfX, op.options.groups),
            Self::Conv2dXBackward(op) => (OfX, op.options.groups),
            Self::Conv3dXBackward(op) => (OfX, op.options.groups),
            Self::Conv1dWeightBackward(op) => (OfWeight, op.options.groups),
            Self::Conv2dWeightBackward(op) => (OfWeight, op.options.groups),
            Self::Conv3dWeightBackward(op) => (OfWeight, op.options.groups),
            Self::Conv1dBiasBackward(_) => (OfBias, 1),
            Self::Conv2dBiasBackward(_) => (OfBias, 1),
            Self::Conv3dBiasBackward(_) => (OfBias, 1),
            // All input channels share the offsets if there is one offset group.
            Self::DeformableConv2d(op) => {
                let options = &op.options;
                (Deformable, options.weight_groups.max(options.offset_groups))
            }
            Self::DeformableConv2dBackward(op) => {
                let options = &op.options;
                (
                    OfDeformable,
                    options.weight_groups.max(options.offset_groups),
                )
            }
        }
    }

    /// Returns the factors of the operands.
    fn notation(&self, bias: &str) -> String {
        let optional = |mask: &Option<TensorIr>, bias: &Option<TensorIr>| {
            let mask = mask.as_ref().map_or("", |_| ", b *");
            let bias = bias.as_ref().map_or("", |_| ", o");
            format!("{mask}{bias}")
        };
        match (self.part().0, self) {
            (Part::Forward, _) => format!("b c *, o c *{bias} -> b o *"),
            (Part::Transpose, _) => format!("b c *, c o *{bias} -> b o *"),
            (Part::OfX, _) => "b c *, o c *, b o * -> b c *".into(),
            (Part::OfWeight, _) => "b c *, o c *, b o * -> o c *".into(),
            (_, Self::DeformableConv2d(op)) => {
                format!("b c *, b *, o c *{} -> b o *", optional(&op.mask, &op.bias))
            }
            (_, Self::DeformableConv2dBackward(op)) => format!(
                "b c *, b *, o c *, b o *{} -> b c *, b *, o c *{}",
                optional(&op.mask, &op.bias),
                optional(&op.mask_grad, &op.bias_grad)
            ),
            _ => "b *, o, b o ... -> o".into(),
        }
    }
}

impl Operation for Conv<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let bias = match shapes.inputs.len() {
            2 => "",
            _ => ", o",
        };
        let (part, groups) = self.part();
        let rule = RuleBuilder::notation(shapes, &self.notation(bias));
        if part == Part::OfDeformable {
            // Some gradients have a factor, others are sums over it. The gradient of the bias does not depend on the
            // input channels at all, so they stay whole.
            let o = match groups {
                1 => FactorKind::Reduce(ReduceOp::Sum),
                _ => FactorKind::Whole,
            };
            let rule = rule.kind('b', FactorKind::Reduce(ReduceOp::Sum));
            return rule.kind('o', o).kind('c', FactorKind::Whole).build();
        }
        let rule = rule.contract(ReduceOp::Sum);
        let rule = match groups {
            1 => rule,
            _ => rule
                .kind('c', FactorKind::Whole)
                .kind('o', FactorKind::Whole),
        };
        match part {
            Part::Forward | Part::Transpose => rule.linear().lowering(Lowering::Special),
            Part::Deformable => rule.lowering(Lowering::Special),
            Part::OfX => rule.shape_only(0),
            Part::OfWeight => rule.shape_only(1),
            Part::OfBias => rule.shape_only(0).shape_only(1),
            Part::OfDeformable => rule,
        }
        .build()
    }

    fn lower(&self, local: &Local<'_>, _: &Rule, emit: &mut Emit<'_>) {
        use ModuleOperationIr::*;
        local.same_with_one_bias(emit, |op| match op {
            Conv1d(op) => Some(&mut op.bias),
            Conv2d(op) => Some(&mut op.bias),
            Conv3d(op) => Some(&mut op.bias),
            ConvTranspose1d(op) => Some(&mut op.bias),
            ConvTranspose2d(op) => Some(&mut op.bias),
            ConvTranspose3d(op) => Some(&mut op.bias),
            DeformableConv2d(op) => Some(&mut op.bias),
            _ => None,
        });
    }

    fn float_class(&self) -> FloatClass {
        match self.part().0 {
            // Kernels in 16 bits are rare.
            Part::Deformable | Part::OfDeformable => FloatClass::Recorded,
            _ => FloatClass::Compute,
        }
    }

    fn traits(&self) -> Traits {
        let part = self.part().0;
        Traits {
            adjoint: match part {
                Part::Forward => Some(Adjoint::Forward { x: 0, weight: 1 }),
                // The weight and the bias are there for their shapes.
                Part::OfWeight | Part::OfBias => Some(Adjoint::Named { weight: 1 }),
                _ => None,
            },
            makes_weight_gradient: matches!(part, Part::OfWeight | Part::OfBias),
            work: match part {
                Part::Forward | Part::Transpose | Part::Deformable => Work::Layer,
                _ => Work::Other,
            },
            ..Traits::default()
        }
    }

    /// `2 c/groups` per element of the result and the kernel, of the gradients of input and weight too; of a transposed
    /// convolution, `2 o/groups k` per element of the input.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let kernel = |index: usize| numel(&shapes.inputs[index][1..]);
        match self.part().0 {
            Part::Forward => Some(2.0 * numel(shapes.outputs[0]) * kernel(1)),
            Part::Transpose => Some(2.0 * numel(shapes.inputs[0]) * kernel(1)),
            Part::OfX | Part::OfWeight => Some(2.0 * numel(shapes.inputs[2]) * kernel(1)),
            Part::OfBias => None,
            Part::Deformable => Some(2.0 * numel(shapes.outputs[0]) * kernel(2)),
            // The gradients of the input and of the weight.
            Part::OfDeformable => Some(4.0 * numel(shapes.inputs[3]) * kernel(2)),
        }
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        let sum = |bias: &Option<TensorIr>, input| {
            let made = match bias {
                Some(_) => Nothing::Bias { input, dim: 1 },
                None => Nothing::Zeros,
            };
            OfNothing::from(0, made)
        };
        match self {
            Self::Conv1d(op) => sum(&op.bias, 2),
            Self::Conv2d(op) => sum(&op.bias, 2),
            Self::Conv3d(op) => sum(&op.bias, 2),
            Self::ConvTranspose1d(op) => sum(&op.bias, 2),
            Self::ConvTranspose2d(op) => sum(&op.bias, 2),
            Self::ConvTranspose3d(op) => sum(&op.bias, 2),
            Self::DeformableConv2d(op) => sum(&op.bias, 3 + usize::from(op.mask.is_some())),
            // All gradients have a factor of the gradient of the result; that of the bias has no other.
            Self::DeformableConv2dBackward(_) => OfNothing::from(3, Nothing::Zeros),
            _ if self.part().0 == Part::OfBias => OfNothing::from(2, Nothing::Zeros),
            _ => OfNothing::from(0, Nothing::Zeros),
        }
    }
}
