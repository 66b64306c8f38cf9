//! Arithmetic on floats and ints alike.

use burn_backend::DType;

use super::family::prelude::*;
use super::places::pairwise;
use super::pointwise::{self, in_order, mapped};

family! {
    Arithmetic |cx, op| by_number(K: Numbers) {
        Add(BinaryOpIr) K = K::add(cx.take::<K>(&op.lhs), cx.take::<K>(&op.rhs)),
        AddScalar(ScalarOpIr) K = K::add_scalar(cx.take::<K>(&op.lhs), cx.scalar(&op.rhs)),
        Sub(BinaryOpIr) K = K::sub(cx.take::<K>(&op.lhs), cx.take::<K>(&op.rhs)),
        SubScalar(ScalarOpIr) K = K::sub_scalar(cx.take::<K>(&op.lhs), cx.scalar(&op.rhs)),
        Mul(BinaryOpIr) K = K::mul(cx.take::<K>(&op.lhs), cx.take::<K>(&op.rhs)),
        MulScalar(ScalarOpIr) K = K::mul_scalar(cx.take::<K>(&op.lhs), cx.scalar(&op.rhs)),
        Div(BinaryOpIr) K = K::div(cx.take::<K>(&op.lhs), cx.take::<K>(&op.rhs)),
        DivScalar(ScalarOpIr) K = K::div_scalar(cx.take::<K>(&op.lhs), cx.scalar(&op.rhs)),
        Rem(BinaryOpIr) K = K::remainder(cx.take::<K>(&op.lhs), cx.take::<K>(&op.rhs)),
        RemScalar(ScalarOpIr) K = K::remainder_scalar(cx.take::<K>(&op.lhs), cx.scalar(&op.rhs)),
        Powi(BinaryOpIr) _ = match cx.kind {
            Kind::Int => {
                let power = B::int_powi(cx.int(&op.lhs), cx.int(&op.rhs));
                cx.put_int(&op.out, power)
            }
            _ => {
                let power = B::float_powi(cx.float(&op.lhs), cx.int(&op.rhs));
                cx.put_float(&op.out, power)
            }
        },
        PowiScalar(ScalarOpIr) K = K::powi_scalar(cx.take::<K>(&op.lhs), cx.scalar(&op.rhs)),
        Abs(UnaryOpIr) K = K::abs(cx.take::<K>(&op.input)),
        Clamp(ClampOpIr) K = K::clamp(cx.take::<K>(&op.tensor), cx.scalar(&op.min), cx.scalar(&op.max)),
    }
}

impl Operation for Arithmetic<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Add(_) | Self::Sub(_) => pointwise::joint_linear(shapes, &[0, 1]),
            Self::Mul(_) | Self::MulScalar(_) => pointwise::linear(shapes),
            Self::Div(BinaryOpIr { out, .. }) | Self::DivScalar(ScalarOpIr { out, .. })
                if out.dtype.is_float() =>
            {
                pointwise::linear(shapes)
            }
            _ => pointwise::any(shapes),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Powi(_) | Self::PowiScalar(_) => FloatClass::Single,
            _ => FloatClass::Follow,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            is_difference: matches!(self, Self::Sub(_)),
            ..Traits::default()
        }
    }

    fn place(&self, kind: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        use Arithmetic::*;
        match (self, kind) {
            (Add(op) | Sub(op) | Mul(op), _) | (Div(op), Kind::Float) => {
                pairwise(inputs, shape, op.lhs.dtype == DType::F32)
            }
            (Rem(_), Kind::Float) => pairwise(inputs, shape, false),
            (Abs(_) | Clamp(_), Kind::Float) => mapped(&inputs[0]),
            (AddScalar(_) | SubScalar(_) | MulScalar(_) | DivScalar(_) | RemScalar(_), _) => {
                in_order(&inputs[0])
            }
            _ => Place::New(Strided::contiguous(shape)),
        }
    }
}
