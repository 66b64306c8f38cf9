//! Normalisations: every element is divided by what the others along its dims add up to. Those dims stay whole.
//!
//! Where means and variances are inputs, a batch is normalised element by element, so there all dims may be split.

use super::family::prelude::*;
use super::pointwise::in_order;

family! {
    Normal |cx, op| {
        Softmax(DimOpIr) float = B::softmax(cx.float(&op.input), op.axis),
        LogSoftmax(DimOpIr) float = B::log_softmax(cx.float(&op.input), op.axis),
        Softmin(DimOpIr) float = B::softmin(cx.float(&op.input), op.axis),
        /// `(input, gamma, beta?)`, over the last dim.
        LayerNorm(LayerNormOpIr) float = {
            let epsilon = cx.scalar(&op.epsilon).elem();
            B::layer_norm(cx.float(&op.input), cx.float(&op.gamma), cx.float_if(&op.beta), epsilon)
        },
        /// `(x, gamma, beta, mean, variance)`, each but `x` with one number for a channel.
        BatchNorm(BatchNormOpIr) float = {
            let epsilon = cx.scalar(&op.epsilon).elem();
            B::batch_norm(
                cx.float(&op.x),
                cx.float(&op.gamma),
                cx.float(&op.beta),
                cx.float(&op.mean),
                cx.float(&op.variance),
                epsilon,
            )
        },
    }
}

impl Operation for Normal<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Softmax(op) | Self::LogSoftmax(op) | Self::Softmin(op) => {
                let names = dims_but(&op.input, op.axis, Name::Whole);
                RuleBuilder::named(shapes, vec![names.clone()], vec![names])
            }
            Self::LayerNorm(op) if op.beta.is_none() => {
                RuleBuilder::notation(shapes, "... -, - -> ... -")
            }
            Self::LayerNorm(_) => RuleBuilder::notation(shapes, "... -, -, - -> ... -"),
            Self::BatchNorm(op) => {
                let x = dims(&op.x);
                let channel = vec![x[1]];
                let inputs = [vec![x.clone()], vec![channel; 4]].concat();
                RuleBuilder::named(shapes, inputs, vec![x])
            }
        }
        .build()
    }

    /// Sums over a dim lose too much in 16 bits, and exponentials do.
    fn float_class(&self) -> FloatClass {
        FloatClass::Single
    }

    /// The others are composed of differences, which overwrite their left operand.
    fn makes(&self) -> bool {
        matches!(
            self,
            Self::Softmax(_) | Self::Softmin(_) | Self::LayerNorm(_)
        )
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        let last = shape.len().saturating_sub(1);
        match self {
            Self::LogSoftmax(_) | Self::BatchNorm(_) => in_order(&inputs[0]),
            // The dim is made the last one, and its rows stay together.
            Self::Softmax(op) | Self::Softmin(op) => {
                let swapped = |dim| match dim {
                    dim if dim == op.axis => last,
                    dim if dim == last => op.axis,
                    dim => dim,
                };
                let rows: Vec<usize> = (0..shape.len()).map(|dim| shape[swapped(dim)]).collect();
                let dims = (0..shape.len()).map(swapped);
                Place::New(Strided::contiguous(&rows).permuted(dims))
            }
            Self::LayerNorm(_) => Place::New(Strided::contiguous(shape)),
        }
    }
}
