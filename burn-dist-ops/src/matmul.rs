//! Products of matrices and of vectors.

use super::family::prelude::*;

family! {
    Matmul |cx, op| {
        /// Batched; batch dims broadcast. Operands may be of different float types, which kernels do not take.
        Matmul(MatmulOpIr) _ = match cx.kind {
            Kind::Int => {
                let product = B::int_matmul(cx.int(&op.lhs), cx.int(&op.rhs));
                cx.put_int(&op.out, product)
            }
            _ => {
                let (lhs, rhs) = (cx.float_as(&op.lhs, op.out.dtype), cx.float_as(&op.rhs, op.out.dtype));
                cx.put_float(&op.out, B::float_matmul(lhs, rhs))
            }
        },
        /// The three components stay together.
        Cross(CrossOpIr) float = B::float_cross(cx.float(&op.lhs), cx.float(&op.rhs), op.dim),
    }
}

impl Operation for Matmul<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Matmul(_) => RuleBuilder::notation(shapes, "... i k, ... k j -> ... i j")
                .broadcast()
                .contract(ReduceOp::Sum)
                .linear()
                .build(),
            Self::Cross(op) => {
                let names = |tensor| dims_but(tensor, op.dim, Name::Whole);
                let inputs = vec![names(&op.lhs), names(&op.rhs)];
                let rule = RuleBuilder::named(shapes, inputs, vec![names(&op.out)]);
                rule.broadcast().build()
            }
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Matmul(_) => FloatClass::Compute,
            Self::Cross(_) => FloatClass::Single,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            work: match self {
                Self::Matmul(_) => Work::Product,
                Self::Cross(_) => Work::Other,
            },
            ..Traits::default()
        }
    }

    /// `2 m k n` per matrix. The product of a column and a row adds nothing up, so it is no product here.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let k = *shapes.inputs[0].last()?;
        let is_product = matches!(self, Self::Matmul(_)) && k > 1;
        is_product.then(|| 2.0 * numel(shapes.outputs[0]) * k as f64)
    }

    fn makes(&self) -> bool {
        true
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        match self {
            Self::Matmul(_) => OfNothing::from(0, Nothing::Zeros),
            Self::Cross(_) => None,
        }
    }
}
