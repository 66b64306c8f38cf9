//! Fourier transforms: the transformed dim stays whole.

use burn_dist_plan::rule;

use super::family::prelude::*;

family! {
    Spectral |cx, op| {
        /// Real and imaginary parts of a signal.
        Rfft(RfftOpIr) _ = {
            let (re, im) = B::rfft(cx.float(&op.signal), op.dim, op.n);
            cx.put_float(&op.out_re, re);
            cx.put_float(&op.out_im, im);
        },
        /// The signal of real and imaginary parts.
        IRfft(IRfftOpIr) _ = {
            let signal = B::irfft(cx.float(&op.input_re), cx.float(&op.input_im), op.dim, op.n);
            cx.put_float(&op.out_signal, signal);
        },
    }
}

impl Operation for Spectral<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let dim = match self {
            Self::Rfft(op) => op.dim,
            Self::IRfft(op) => op.dim,
        };
        let names = |side: &[&[usize]]| {
            let names = |shape: &&[usize]| rule::dims_but(shape.len(), dim, Name::Whole);
            side.iter().map(names).collect()
        };
        let rule = RuleBuilder::named(shapes, names(&shapes.inputs), names(&shapes.outputs));
        match self {
            Self::Rfft(_) => rule.linear().build(),
            Self::IRfft(_) => rule.joint_linear(&[0, 1]).build(),
        }
    }

    fn makes(&self) -> bool {
        true
    }

    /// A signal is padded with zeros.
    fn of_nothing(&self) -> Option<OfNothing> {
        OfNothing::from(0, Nothing::Zeros)
    }
}
