//! Sums over several dims, each of which stays, with size one.

use super::family::prelude::*;
use super::formula::sums;

family! {
    Sums |cx, op| {
        SumDims(ReduceDimsOpIr) _ = match cx.kind {
            // Ints have no kernel for several dims at once.
            Kind::Int => {
                let input = cx.int(&op.input);
                let sums = op.axes.iter().fold(input, |sums, axis| B::int_sum_dim(sums, *axis));
                cx.put_int(&op.out, sums)
            }
            _ => {
                let sums = B::float_sum_dims(cx.float(&op.input), &op.axes);
                cx.put_float(&op.out, sums)
            }
        },
    }
}

impl Operation for Sums<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let Self::SumDims(op) = self;
        let mut out = dims(&op.input);
        op.axes.iter().for_each(|axis| out[*axis] = Name::Whole);
        RuleBuilder::named(shapes, vec![dims(&op.input)], vec![out])
            .contract(ReduceOp::Sum)
            .linear()
            .build()
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Single
    }

    fn traits(&self) -> Traits {
        Traits {
            adds_up: true,
            ..Traits::default()
        }
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        OfNothing::from(0, Nothing::Zeros)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        let Self::SumDims(op) = self;
        sums(&op.input, &op.out, &op.axes)
    }
}
