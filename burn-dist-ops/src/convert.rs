//! Casts between any two element types that are not quantized; to a bool, whatever differs from zero is true.

use burn_backend::tensor::{BoolTensor, IntTensor};
use burn_backend::{DType, Scalar};

use super::family::prelude::*;
use super::formula::formula;
use super::pointwise;
use burn_dist_mesh as mesh;

family! {
    Convert |cx, op| {
        Cast(CastOpIr) _ = cast(cx, op),
        IntoFloat(CastOpIr) _ = cast(cx, op),
        IntoInt(CastOpIr) _ = cast(cx, op),
    }
}

impl Convert<'_> {
    fn types(&self) -> (DType, DType) {
        let (Self::Cast(op) | Self::IntoFloat(op) | Self::IntoInt(op)) = self;
        (op.input.dtype, op.out.dtype)
    }
}

impl Operation for Convert<'_> {
    /// It is linear if it keeps every value: rounding each term of a sum is not rounding the sum.
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let keeps_values = match self.types() {
            (DType::F16 | DType::BF16, DType::F32 | DType::F64) => true,
            (DType::F32, DType::F64) => true,
            (from, to) => from == to,
        };
        match keeps_values {
            true => pointwise::linear(shapes),
            false => pointwise::any(shapes),
        }
    }

    fn float_class(&self) -> FloatClass {
        match self {
            Self::Cast(_) => FloatClass::Recorded,
            Self::IntoFloat(_) | Self::IntoInt(_) => FloatClass::Follow,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            is_cast: matches!(self, Self::Cast(_)),
            ..Traits::default()
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        let (from, to) = self.types();
        match from == to {
            true => Place::Shares(0, inputs[0].at.clone()),
            false => Place::New(Strided::contiguous(shape)),
        }
    }

    /// Ints become f32 before they become 16-bit floats.
    fn pointwise(&self) -> Option<Pointwise> {
        let (Self::Cast(op) | Self::IntoFloat(op) | Self::IntoInt(op)) = self;
        formula([&op.input], &op.out, |_, [x]| match op.out.dtype {
            DType::Bool(_) => x.truth(),
            DType::F16 | DType::BF16 if !x.is_float() => x.to(mesh::DType::F32),
            _ => x,
        })
    }
}

fn cast<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &CastOpIr) {
    let CastOpIr { input, out } = op;
    let to = out.dtype;
    if input.dtype == to {
        let handle = cx.env.take(input);
        return cx.env.put(out, handle);
    }
    match Kind::of(input.dtype) {
        Kind::Float => {
            let input = cx.float(input);
            match Kind::of(to) {
                Kind::Float => cx.put_float(out, B::float_cast(input, to.into())),
                Kind::Int => cx.put_int(out, B::float_into_int(input, to.into())),
                Kind::Bool => cx.put_bool(
                    out,
                    B::float_not_equal_elem(input, Scalar::Int(0), to.into()),
                ),
            }
        }
        Kind::Int => {
            let input = cx.int(input);
            match Kind::of(to) {
                Kind::Float => cx.put_float(out, B::int_into_float(input, to.into())),
                Kind::Int => cx.put_int(out, B::int_cast(input, to.into())),
                Kind::Bool => cx.put_bool(out, bool_of_int::<B>(input, to)),
            }
        }
        Kind::Bool => {
            let input = cx.bool(input);
            match Kind::of(to) {
                Kind::Float => cx.put_float(out, B::bool_into_float(input, to.into())),
                Kind::Int => cx.put_int(out, B::bool_into_int(input, to.into())),
                // Another storage of the same values, which `put_bool` converts to.
                Kind::Bool => cx.put_bool(out, input),
            }
        }
    }
}

/// Bools as 0 and 1 in an int dtype that every backend has.
pub(super) fn int_of_bool<B: BackendIr>(tensor: BoolTensor<B>) -> IntTensor<B> {
    B::bool_into_int(tensor, DType::I32.into())
}

/// Bools from ints: whatever differs from zero is true.
pub(super) fn bool_of_int<B: BackendIr>(tensor: IntTensor<B>, dtype: DType) -> BoolTensor<B> {
    B::int_not_equal_elem(tensor, Scalar::Int(0), dtype.into())
}
