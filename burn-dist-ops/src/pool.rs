//! Pools, interpolation and sampling: per sample and channel; space stays whole.

use super::family::prelude::*;
use crate::burn::MaxPool;

/// Runs `kernel(x, gradient?, options of an average)`.
macro_rules! average {
    ($cx:ident, $op:ident, $kernel:path, $($input:ident),+) => {
        $kernel(
            $( $cx.float(&$op.$input), )+
            $op.kernel_size,
            $op.stride,
            $op.padding,
            $op.count_include_pad,
            $op.ceil_mode,
        )
    };
}

/// Runs `kernel(x, options of a maximum)`.
macro_rules! maximum {
    ($cx:ident, $op:ident, $kernel:path) => {
        $kernel(
            $cx.float(&$op.x),
            $op.kernel_size,
            $op.stride,
            $op.padding,
            $op.dilation,
            $op.ceil_mode,
        )
    };
}

/// Runs `kernel(x, options of a maximum)`, which makes indices too.
macro_rules! maximum_with_indices {
    ($cx:ident, $op:ident, $kernel:path) => {{
        let (maxima, places) = $kernel(
            $cx.float(&$op.x),
            $op.kernel_size,
            $op.stride,
            $op.padding,
            $op.dilation,
            $op.ceil_mode,
            $op.out_indices.dtype,
        );
        $cx.put_float(&$op.out, maxima);
        $cx.put_int(&$op.out_indices, places);
    }};
}

/// Runs `kernel(x, options of a maximum, gradient, places(x, indices))`.
macro_rules! maximum_backward {
    ($cx:ident, $op:ident, $kernel:path, $places:path) => {{
        let x = $cx.float(&$op.x);
        let indices = $places(&x, $cx.int(&$op.indices));
        let grad = $cx.float(&$op.grad);
        $kernel(
            x,
            $op.kernel_size,
            $op.stride,
            $op.padding,
            $op.dilation,
            $op.ceil_mode,
            grad,
            indices,
        )
        .x_grad
    }};
}

family! {
    Pool |cx, op| {
        AvgPool1d(AvgPool1dOpIr) float = average!(cx, op, B::avg_pool1d, x),
        AvgPool2d(AvgPool2dOpIr) float = average!(cx, op, B::avg_pool2d, x),
        AvgPool1dBackward(AvgPool1dBackwardOpIr) float = average!(cx, op, B::avg_pool1d_backward, x, grad),
        AvgPool2dBackward(AvgPool2dBackwardOpIr) float = average!(cx, op, B::avg_pool2d_backward, x, grad),
        AdaptiveAvgPool1d(AdaptiveAvgPool1dOpIr) float =
            B::adaptive_avg_pool1d(cx.float(&op.x), op.output_size),
        AdaptiveAvgPool2d(AdaptiveAvgPool2dOpIr) float =
            B::adaptive_avg_pool2d(cx.float(&op.x), op.output_size),
        AdaptiveAvgPool1dBackward(AdaptiveAvgPool1dBackwardOpIr) float =
            B::adaptive_avg_pool1d_backward(cx.float(&op.x), cx.float(&op.grad)),
        AdaptiveAvgPool2dBackward(AdaptiveAvgPool2dBackwardOpIr) float =
            B::adaptive_avg_pool2d_backward(cx.float(&op.x), cx.float(&op.grad)),
        MaxPool1d(MaxPool1dOpIr) float = maximum!(cx, op, B::max_pool1d),
        MaxPool2d(MaxPool2dOpIr) float = maximum!(cx, op, B::max_pool2d),
        MaxPool1dWithIndices(MaxPool1dWithIndicesOpIr) _ =
            maximum_with_indices!(cx, op, B::max_pool1d_places),
        MaxPool2dWithIndices(MaxPool2dWithIndicesOpIr) _ =
            maximum_with_indices!(cx, op, B::max_pool2d_places),
        MaxPool1dWithIndicesBackward(MaxPool1dWithIndicesBackwardOpIr) float =
            maximum_backward!(cx, op, B::max_pool1d_with_indices_backward, B::own_places1d),
        MaxPool2dWithIndicesBackward(MaxPool2dWithIndicesBackwardOpIr) float =
            maximum_backward!(cx, op, B::max_pool2d_with_indices_backward, B::own_places2d),
        Interpolate(InterpolateOpIr) float =
            B::interpolate(cx.float(&op.x), op.output_size, op.options.clone().into()),
        InterpolateBackward(InterpolateBackwardOpIr) float = B::interpolate_backward(
            cx.float(&op.x),
            cx.float(&op.grad),
            op.output_size,
            op.options.clone().into(),
        ),
        GridSample2d(GridSample2dOpIr) float =
            B::float_grid_sample_2d(cx.float(&op.tensor), cx.float(&op.grid), op.options.clone().into()),
    }
}

impl Operation for Pool<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        use Pool::*;
        let per_channel = RuleBuilder::uniform(shapes, "b c *");
        let rule = match self {
            // Elements are weighed by their place alone.
            AvgPool1d(_) | AvgPool2d(_) | AdaptiveAvgPool1d(_) | AdaptiveAvgPool2d(_)
            | Interpolate(_) => per_channel.linear(),
            // Indices are places in one channel.
            MaxPool1d(_) | MaxPool2d(_) | MaxPool1dWithIndices(_) | MaxPool2dWithIndices(_) => {
                per_channel
            }
            // Every point of the grid is sampled alone.
            GridSample2d(_) => RuleBuilder::notation(shapes, "b c *, b y x - -> b c y x").linear(),
            // Of `x`, a gradient reads only the shape.
            _ => per_channel.shape_only(0),
        };
        rule.build()
    }

    fn makes(&self) -> bool {
        !matches!(self, Self::GridSample2d(_))
    }

    /// Gradients are sums over the elements of the result.
    fn of_nothing(&self) -> Option<OfNothing> {
        use Pool::*;
        match self {
            AvgPool1dBackward(_)
            | AvgPool2dBackward(_)
            | AdaptiveAvgPool1dBackward(_)
            | AdaptiveAvgPool2dBackward(_)
            | MaxPool1dWithIndicesBackward(_)
            | MaxPool2dWithIndicesBackward(_)
            | InterpolateBackward(_) => OfNothing::from(1, Nothing::Zeros),
            _ => None,
        }
    }
}
