//! Elements chosen by a mask of bools.

use super::family::prelude::*;
use super::formula::formula;
use super::places::masked;
use super::pointwise;

family! {
    Mask |cx, op| by_kind(K: Tensors) {
        /// Linear in tensor and value together.
        MaskWhere(MaskWhereOpIr) K =
            K::mask_where(cx.take::<K>(&op.tensor), cx.bool(&op.mask), cx.take::<K>(&op.value)),
        MaskFill(MaskFillOpIr) K =
            K::mask_fill(cx.take::<K>(&op.tensor), cx.bool(&op.mask), cx.scalar(&op.value)),
    }
}

impl Operation for Mask<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::MaskWhere(_) => pointwise::joint_linear(shapes, &[0, 2]),
            Self::MaskFill(_) => pointwise::any(shapes),
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match self {
            Self::MaskWhere(_) => masked(inputs, shape, Some(2)),
            Self::MaskFill(_) => masked(inputs, shape, None),
        }
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Follow
    }

    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::MaskWhere(op) => {
                let operands = [&op.tensor, &op.mask, &op.value];
                formula(operands, &op.out, |_, [x, mask, value]| {
                    mask.select(value, x)
                })
            }
            Self::MaskFill(op) => formula([&op.tensor, &op.mask], &op.out, |sketch, [x, mask]| {
                mask.select(sketch.scalar(&op.value, x.dtype), x)
            }),
        }
    }
}
