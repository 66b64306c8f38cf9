//! Tensors made of nothing: filled, or random; those that a program brings, and their end.

use burn_backend::Distribution;

use super::dtype::of_burn;
use super::family::prelude::*;
use super::formula::formula;
use super::kinds::{Arithmetics, Held};

/// Runs `kernel(shape, device, type)` of the kind of the tensor.
macro_rules! create {
    ($by:ident, $cx:ident, $op:ident, $of:ident::$kernel:ident $(, $option:expr)?) => {
        $by!($cx.kind, K => {
            let (shape, dtype) = ($op.out.shape.clone(), $op.out.dtype);
            let made = <K as $of<B>>::$kernel(shape, $($option,)? $cx.env.device(), dtype);
            <K as Held<B>>::put($cx, &$op.out, made)
        })
    };
}

/// Runs the kernel of random numbers.
macro_rules! random {
    ($cx:ident, $op:ident) => {
        by_number!($cx.kind, K => {
            let (shape, dtype) = ($op.out.shape.clone(), $op.out.dtype);
            let made = <K as Arithmetics<B>>::random(shape, $op.distribution, $cx.env.device(), dtype);
            <K as Held<B>>::put($cx, &$op.out, made)
        })
    };
}

family! {
    Create |cx, op| {
        Empty(CreationOpIr) _ = create!(by_kind, cx, op, Tensors::empty),
        Ones(CreationOpIr) _ = create!(by_kind, cx, op, Tensors::ones),
        Zeros(CreationOpIr) _ = create!(by_kind, cx, op, Tensors::zeros),
        Full(FullOpIr) _ = {
            let value = cx.scalar(&op.value);
            create!(by_number, cx, op, Arithmetics::full, value)
        },
        /// Random floats.
        Random(RandomOpIr) _ = random!(cx, op),
        IntRandom(RandomOpIr) _ = {
            if cx.kind == Kind::Float {
                return Err(ExecuteError::Unsupported {
                    op: "random".into(),
                    reason: "random ints are not a float op: record a float random op",
                });
            }
            random!(cx, op)
        },
        /// Its tensor is put into the environment by whoever has the data.
        Init(InitOperationIr) _ = {},
        Drop(TensorIr) _ = {
            let status = TensorStatus::ReadWrite;
            drop(cx.env.take(&TensorIr { status, ..(*op).clone() }));
        },
    }
}

impl Operation for Create<'_> {
    fn rule(&self, _: &Shapes<'_>) -> OpRule {
        match self {
            Self::Init(_) => replicated("init"),
            Self::Drop(_) => replicated("drop"),
            _ => OpRule::Create,
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Init(_) | Self::Drop(_) => FloatClass::Recorded,
            _ => FloatClass::Create,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            makes_ones: matches!(self, Self::Ones(_)),
            is_random: matches!(self, Self::Random(_) | Self::IntRandom(_)),
            ..Traits::default()
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        let number = |out: &TensorIr, number| {
            formula([], out, |sketch, []| {
                sketch.number(number, of_burn(out.dtype))
            })
        };
        match self {
            Self::Zeros(op) => number(&op.out, 0.0),
            Self::Ones(op) => number(&op.out, 1.0),
            Self::Full(op) => formula([], &op.out, |sketch, []| {
                sketch.scalar(&op.value, of_burn(op.out.dtype))
            }),
            // Whatever is in memory, draws by index, and what no kernel makes.
            Self::Empty(_) | Self::Random(_) | Self::IntRandom(_) => None,
            Self::Init(_) | Self::Drop(_) => None,
        }
    }
}

impl Create<'_> {
    /// Returns what a random operation draws.
    pub(super) fn distribution(&self) -> Option<Distribution> {
        match self {
            Self::Random(op) | Self::IntRandom(op) => Some(op.distribution),
            _ => None,
        }
    }
}
