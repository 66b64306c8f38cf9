//! Padding: a dim that grows stays whole.

use super::family::prelude::*;

family! {
    Pad |cx, op| {
        Pad(PadOpIr) _ = match cx.kind {
            Kind::Int => {
                let padded = B::int_pad(cx.int(&op.input), &op.padding, op.mode.into());
                cx.put_int(&op.out, padded)
            }
            _ => {
                let padded = B::float_pad(cx.float(&op.input), &op.padding, op.mode.into());
                cx.put_float(&op.out, padded)
            }
        },
    }
}

impl Operation for Pad<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let Self::Pad(op) = self;
        let names = dims(&op.input).into_iter().zip(&op.padding);
        let names: Vec<Name> = names
            .map(|(name, padding)| match padding {
                (0, 0) => name,
                _ => Name::Whole,
            })
            .collect();
        let rule = RuleBuilder::named(shapes, vec![names.clone()], vec![names]);
        // Of the terms of a sum, each rank would add a constant of its own.
        let is_linear = match op.mode {
            PadModeIr::Constant(value) => value.elem::<f64>() == 0.0,
            PadModeIr::Reflect | PadModeIr::Edge => true,
        };
        match is_linear {
            true => rule.linear().build(),
            false => rule.build(),
        }
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Move
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        let Self::Pad(op) = self;
        let made = match op.mode {
            PadModeIr::Constant(value) => Nothing::Full(value.elem()),
            // There is no element to repeat.
            PadModeIr::Reflect | PadModeIr::Edge => Nothing::Undefined,
        };
        OfNothing::from(0, made)
    }
}
