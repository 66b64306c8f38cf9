//! Arithmetic on floats and ints alike.

use burn_backend::DType;

use super::family::prelude::*;
use super::formula::{formula, map, pair, with_scalar};
use super::places::pairwise;
use super::pointwise::{self, in_order, mapped};
use crate::burn::REMAINDER_IS_EXACT;
use burn_dist_mesh as mesh;

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

    fn pointwise(&self) -> Option<Pointwise> {
        use Arithmetic::*;
        match self {
            Add(op) => pair(op, |x, y| x + y),
            AddScalar(op) => with_scalar(op, |x, y| x + y),
            Sub(op) => pair(op, |x, y| x - y),
            SubScalar(op) => with_scalar(op, |x, y| x - y),
            Mul(op) => pair(op, |x, y| x * y),
            MulScalar(op) => with_scalar(op, |x, y| x * y),
            Div(op) => pair(op, |x, y| x / y),
            DivScalar(op) => with_scalar(op, |x, y| x / y),
            Rem(BinaryOpIr { out, .. }) | RemScalar(ScalarOpIr { out, .. })
                if out.dtype.is_float() && !REMAINDER_IS_EXACT =>
            {
                None
            }
            Rem(op) => pair(op, |x, y| x.binary(Binary::Rem, y)),
            RemScalar(op) => with_scalar(op, |x, y| x.binary(Binary::Rem, y)),
            Powi(op) => formula([&op.lhs, &op.rhs], &op.out, |_, [x, y]| {
                match x.is_float() {
                    true => x.binary(Binary::Pow, y.to(x.dtype)),
                    false => x.powi(y),
                }
            }),
            PowiScalar(op) => formula([&op.lhs], &op.out, |sketch, [x]| match x.is_float() {
                true => x.powi(sketch.scalar(&op.rhs, mesh::DType::I64)),
                false => {
                    let x = x.bounded();
                    x.powi(sketch.scalar(&op.rhs, x.dtype))
                }
            }),
            Abs(op) => map(op, |x| x.abs()),
            Clamp(op) => formula([&op.tensor], &op.out, |sketch, [x]| {
                let x = x.bounded();
                let [min, max] = [&op.min, &op.max].map(|bound| sketch.scalar(bound, x.dtype));
                x.at_least(min).at_most(max)
            }),
        }
    }
}
