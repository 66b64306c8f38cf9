//! Scans: each element depends on those before it, so that the dim stays whole.

use super::family::prelude::*;

family! {
    Scan |cx, op| by_number(K: Numbers) {
        CumSum(DimOpIr) K = K::cumsum(cx.take::<K>(&op.input), op.axis),
        CumProd(DimOpIr) K = K::cumprod(cx.take::<K>(&op.input), op.axis),
        CumMin(DimOpIr) K = K::cummin(cx.take::<K>(&op.input), op.axis),
        CumMax(DimOpIr) K = K::cummax(cx.take::<K>(&op.input), op.axis),
    }
}

impl Operation for Scan<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let (Self::CumSum(op) | Self::CumProd(op) | Self::CumMin(op) | Self::CumMax(op)) = self;
        let names = |tensor| dims_but(tensor, op.axis, Name::Whole);
        let rule = RuleBuilder::named(shapes, vec![names(&op.input)], vec![names(&op.out)]);
        match self {
            Self::CumSum(_) => rule.linear().build(),
            _ => rule.build(),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::CumSum(_) | Self::CumProd(_) => FloatClass::Single,
            Self::CumMin(_) | Self::CumMax(_) => FloatClass::Follow,
        }
    }
}
