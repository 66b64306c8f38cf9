//! The kinds of tensors that burn-ir's families share: floats, ints and bools, each with the kernels that it has.
//!
//! burn-backend's own traits ([`BasicOps`], [`Numeric`], [`Ordered`]) name most kernels by kind.

use burn_backend::tensor::{BasicOps, Bool, Float, Int, Numeric, Ordered};
use burn_backend::{DType, TensorPrimitive};
use burn_ir::{BackendIr, TensorHandle, TensorIr};

use super::execute::{Context, Env};
use super::flex;

/// The kind of the tensors of an operation, as its family in burn-ir says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Int,
    Bool,
}

impl Kind {
    /// Returns the kind of tensors of a type that is not quantized.
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::Bool(_) => Self::Bool,
            dtype if dtype.is_float() => Self::Float,
            _ => Self::Int,
        }
    }
}

/// A kind of tensors of a backend.
pub(super) trait Tensors<B: BackendIr>: BasicOps<B> {
    fn of_handle(handle: TensorHandle<B::Handle>) -> Self::Primitive;
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: Self::Primitive);

    /// Prepares a tensor for a reduction as [`flex::reducible`] does, which copies floats only.
    fn reducible(tensor: Self::Primitive, _dim: Option<usize>) -> Self::Primitive {
        tensor
    }
}

/// A kind of tensors that hold numbers.
pub(super) trait Numbers<B: BackendIr>: Tensors<B> + Numeric<B> + Ordered<B> {}

impl<B: BackendIr> Numbers<B> for Float {}
impl<B: BackendIr> Numbers<B> for Int {}

/// Runs code for the kind `$kind`, which it calls `$K`.
macro_rules! by_kind {
    ($kind:expr, $K:ident => $run:expr) => {
        match $kind {
            Kind::Float => {
                type $K = burn_backend::tensor::Float;
                $run
            }
            Kind::Int => {
                type $K = burn_backend::tensor::Int;
                $run
            }
            Kind::Bool => {
                type $K = burn_backend::tensor::Bool;
                $run
            }
        }
    };
}

/// Runs an operation on numbers, as [`by_kind`] does one on any kind.
macro_rules! by_number {
    ($kind:expr, $K:ident => $run:expr) => {
        match $kind {
            Kind::Float => {
                type $K = burn_backend::tensor::Float;
                $run
            }
            Kind::Int => {
                type $K = burn_backend::tensor::Int;
                $run
            }
            Kind::Bool => unreachable!("burn-ir has no arithmetic on bools"),
        }
    };
}

pub(super) use {by_kind, by_number};

impl<B: BackendIr> Tensors<B> for Float {
    #[inline]
    fn of_handle(handle: TensorHandle<B::Handle>) -> Self::Primitive {
        TensorPrimitive::Float(B::float_tensor(handle))
    }

    #[inline]
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: Self::Primitive) {
        match value {
            TensorPrimitive::Float(value) => cx.put_float(out, value),
            TensorPrimitive::QFloat(value) => cx.put_quantized(out, value),
        }
    }

    fn reducible(tensor: Self::Primitive, dim: Option<usize>) -> Self::Primitive {
        TensorPrimitive::Float(flex::reducible(tensor.tensor(), dim))
    }
}

impl<B: BackendIr> Tensors<B> for Int {
    #[inline]
    fn of_handle(handle: TensorHandle<B::Handle>) -> Self::Primitive {
        B::int_tensor(handle)
    }

    #[inline]
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: Self::Primitive) {
        cx.put_int(out, value);
    }
}

impl<B: BackendIr> Tensors<B> for Bool {
    #[inline]
    fn of_handle(handle: TensorHandle<B::Handle>) -> Self::Primitive {
        B::bool_tensor(handle)
    }

    #[inline]
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: Self::Primitive) {
        cx.put_bool(out, value);
    }
}
