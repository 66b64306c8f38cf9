//! Windows and averages over space that Burn 0.21 does not have as one operation: space stays whole.

use burn_backend::ops::UnfoldOptions;

use super::family::prelude::*;

family! {
    Space |cx, op| {
        AdaptiveAvgPool3d(AdaptiveAvgPool3dOpIr) float =
            B::adaptive_avg_pool3d(cx.float(&op.x), op.output_size),
        AdaptiveAvgPool3dBackward(AdaptiveAvgPool3dBackwardOpIr) float =
            B::adaptive_avg_pool3d_backward(cx.float(&op.x), cx.float(&op.grad)),
        /// Each window as a column; the elements of a window lie channel by channel.
        Unfold4d(Unfold4dOpIr) float = {
            let Unfold4dOptionsIr { stride, padding, dilation } = op.options;
            let options = UnfoldOptions::new(stride, padding, dilation);
            B::unfold4d(cx.float(&op.x), op.kernel_size, options)
        },
    }
}

impl Operation for Space<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::AdaptiveAvgPool3d(_) => RuleBuilder::uniform(shapes, "b c *").linear(),
            // Of `x`, a gradient reads only the shape.
            Self::AdaptiveAvgPool3dBackward(_) => {
                RuleBuilder::uniform(shapes, "b c *").shape_only(0)
            }
            Self::Unfold4d(_) => RuleBuilder::notation(shapes, "b - * -> b - *").linear(),
        }
        .build()
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        match self {
            Self::AdaptiveAvgPool3d(_) => None,
            // A sum over the elements of the result.
            Self::AdaptiveAvgPool3dBackward(_) => OfNothing::from(1, Nothing::Zeros),
            // Windows of nothing but padding.
            Self::Unfold4d(_) => OfNothing::from(0, Nothing::Zeros),
        }
    }
}
