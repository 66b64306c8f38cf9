//! Functions of single floats.

use super::family::prelude::*;
use super::formula::{map, pair, with_scalar};
use super::places::pairwise;
use super::pointwise::{self, mapped};

family! {
    Function |cx, op| {
        Exp(UnaryOpIr) float = B::float_exp(cx.float(&op.input)),
        Log(UnaryOpIr) float = B::float_log(cx.float(&op.input)),
        Log1p(UnaryOpIr) float = B::float_log1p(cx.float(&op.input)),
        Erf(UnaryOpIr) float = B::float_erf(cx.float(&op.input)),
        Sqrt(UnaryOpIr) float = B::float_sqrt(cx.float(&op.input)),
        Recip(UnaryOpIr) float = B::float_recip(cx.float(&op.input)),
        Cos(UnaryOpIr) float = B::float_cos(cx.float(&op.input)),
        Cosh(UnaryOpIr) float = B::float_cosh(cx.float(&op.input)),
        Sin(UnaryOpIr) float = B::float_sin(cx.float(&op.input)),
        Sinh(UnaryOpIr) float = B::float_sinh(cx.float(&op.input)),
        Tan(UnaryOpIr) float = B::float_tan(cx.float(&op.input)),
        Tanh(UnaryOpIr) float = B::float_tanh(cx.float(&op.input)),
        ArcCos(UnaryOpIr) float = B::float_acos(cx.float(&op.input)),
        ArcCosh(UnaryOpIr) float = B::float_acosh(cx.float(&op.input)),
        ArcSin(UnaryOpIr) float = B::float_asin(cx.float(&op.input)),
        ArcSinh(UnaryOpIr) float = B::float_asinh(cx.float(&op.input)),
        ArcTan(UnaryOpIr) float = B::float_atan(cx.float(&op.input)),
        ArcTanh(UnaryOpIr) float = B::float_atanh(cx.float(&op.input)),
        Round(UnaryOpIr) float = B::float_round(cx.float(&op.input)),
        Floor(UnaryOpIr) float = B::float_floor(cx.float(&op.input)),
        Ceil(UnaryOpIr) float = B::float_ceil(cx.float(&op.input)),
        Trunc(UnaryOpIr) float = B::float_trunc(cx.float(&op.input)),
        Powf(BinaryOpIr) float = B::float_powf(cx.float(&op.lhs), cx.float(&op.rhs)),
        PowfScalar(ScalarOpIr) float = B::float_powf_scalar(cx.float(&op.lhs), cx.scalar(&op.rhs)),
        ArcTan2(BinaryOpIr) float = B::float_atan2(cx.float(&op.lhs), cx.float(&op.rhs)),
        IsNan(UnaryOpIr) bool = B::float_is_nan(cx.float(&op.input), op.out.dtype.into()),
        IsInf(UnaryOpIr) bool = B::float_is_inf(cx.float(&op.input), op.out.dtype.into()),
    }
}

impl Operation for Function<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        pointwise::any(shapes)
    }

    fn float_class(&self) -> FloatClass {
        use Function::*;
        match self {
            Cos(_) | Sin(_) | Tanh(_) | ArcTan(_) | Round(_) | Floor(_) | Ceil(_) | Trunc(_)
            | IsNan(_) | IsInf(_) => FloatClass::Follow,
            _ => FloatClass::Single,
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match self {
            Self::Powf(_) | Self::ArcTan2(_) => pairwise(inputs, shape, false),
            // A power overwrites its operand or not as its exponent says, which a plan does not know.
            Self::PowfScalar(_) | Self::IsNan(_) | Self::IsInf(_) => {
                Place::New(Strided::contiguous(shape))
            }
            _ => mapped(&inputs[0]),
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        use Function::*;
        let (op, function) = match self {
            Exp(op) => (op, Unary::Exp),
            Log(op) => (op, Unary::Log),
            Log1p(op) => (op, Unary::Log1p),
            Erf(op) => (op, Unary::Erf),
            Sqrt(op) => (op, Unary::Sqrt),
            Recip(op) => (op, Unary::Recip),
            Cos(op) => (op, Unary::Cos),
            Cosh(op) => (op, Unary::Cosh),
            Sin(op) => (op, Unary::Sin),
            Sinh(op) => (op, Unary::Sinh),
            Tan(op) => (op, Unary::Tan),
            Tanh(op) => (op, Unary::Tanh),
            ArcCos(op) => (op, Unary::ArcCos),
            ArcSin(op) => (op, Unary::ArcSin),
            ArcTan(op) => (op, Unary::ArcTan),
            ArcTanh(op) => (op, Unary::ArcTanh),
            Round(op) => (op, Unary::Round),
            Floor(op) => (op, Unary::Floor),
            Ceil(op) => (op, Unary::Ceil),
            Trunc(op) => (op, Unary::Trunc),
            IsNan(op) => return map(op, |x| x.asked(Unary::IsNan)),
            IsInf(op) => return map(op, |x| x.asked(Unary::IsInf)),
            Powf(op) => return pair(op, |x, y| x.binary(Binary::Pow, y)),
            PowfScalar(op) => return with_scalar(op, |x, y| x.binary(Binary::Pow, y)),
            ArcTan2(op) => return pair(op, |x, y| x.binary(Binary::ArcTan2, y)),
            // Flex's overflow before the result does, and the library's are numbers where there is none.
            ArcCosh(_) | ArcSinh(_) => return None,
        };
        map(op, |x| x.unary(function))
    }
}
