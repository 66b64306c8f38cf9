//! The kinds of tensors that burn-ir's families share: floats, ints and bools, each with the kernels that it has.

use burn_backend::tensor::{BoolTensor, FloatTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{DType, Distribution, Scalar, Shape, Slice};
use burn_ir::{BackendIr, TensorHandle, TensorIr};

use super::execute::{Context, Env};
use crate::burn::{Write, reducible};

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

/// Floats that are not quantized.
pub(super) struct Float;
/// Ints.
pub(super) struct Int;
/// Bools.
pub(super) struct Bool;

/// How tensors of a kind are held.
pub(super) trait Held<B: BackendIr> {
    /// A tensor of the backend.
    type Tensor;

    fn of_handle(handle: TensorHandle<B::Handle>) -> Self::Tensor;
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: Self::Tensor);

    /// Prepares a tensor for a reduction as [`reducible`] does, which copies floats only.
    fn reducible(tensor: Self::Tensor, _dim: Option<usize>) -> Self::Tensor {
        tensor
    }
}

impl<B: BackendIr> Held<B> for Float {
    type Tensor = FloatTensor<B>;

    #[inline]
    fn of_handle(handle: TensorHandle<B::Handle>) -> FloatTensor<B> {
        B::float_tensor(handle)
    }

    #[inline]
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: FloatTensor<B>) {
        cx.put_float(out, value);
    }

    fn reducible(tensor: FloatTensor<B>, dim: Option<usize>) -> FloatTensor<B> {
        reducible(tensor, dim)
    }
}

impl<B: BackendIr> Held<B> for Int {
    type Tensor = IntTensor<B>;

    #[inline]
    fn of_handle(handle: TensorHandle<B::Handle>) -> IntTensor<B> {
        B::int_tensor(handle)
    }

    #[inline]
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: IntTensor<B>) {
        cx.put_int(out, value);
    }
}

impl<B: BackendIr> Held<B> for Bool {
    type Tensor = BoolTensor<B>;

    #[inline]
    fn of_handle(handle: TensorHandle<B::Handle>) -> BoolTensor<B> {
        B::bool_tensor(handle)
    }

    #[inline]
    fn put<E: Env<B>>(cx: &mut Context<'_, B, E>, out: &TensorIr, value: BoolTensor<B>) {
        cx.put_bool(out, value);
    }
}

/// Declares kernels that several kinds have: what each is called, what it takes, and the backend's function of each
/// kind with what that takes. All make a tensor of the kind.
macro_rules! kernels {
    (
        $(#[$doc:meta])*
        trait $kernels:ident for ($( $K:ident ),+);
        $( fn $name:ident($( $arg:ident: $type:ty ),*) = $of:tt $given:tt; )*
    ) => {
        $(#[$doc])*
        pub(super) trait $kernels<B: BackendIr>: Held<B> {
            $( fn $name($( $arg: $type ),*) -> Self::Tensor; )*
        }

        kernels! { @each ($( $K ),+) $kernels $( [$name ($( $arg: $type ),*) $of $given] )* }
    };
    (@each ($K:ident $(, $rest:ident)*) $kernels:ident
        $( [$name:ident $args:tt ($of:ident $(, $others:ident)*) $given:tt] )*
    ) => {
        impl<B: BackendIr> $kernels<B> for $K {
            $( kernels! { @one $name $args $of $given } )*
        }

        kernels! { @each ($( $rest ),*) $kernels $( [$name $args ($( $others ),*) $given] )* }
    };
    (@each () $kernels:ident $( $row:tt )*) => {};
    (@one $name:ident ($( $arg:ident: $type:ty ),*) $of:ident ($( $given:expr ),*)) => {
        #[inline]
        fn $name($( $arg: $type ),*) -> Self::Tensor {
            B::$of($( $given ),*)
        }
    };
}

kernels! {
    /// Kernels of every kind of tensors.
    trait Tensors for (Float, Int, Bool);

    fn empty(shape: Shape, device: &B::Device, dtype: DType) =
        (float_empty, int_empty, bool_empty) (shape, device, dtype.into());
    fn zeros(shape: Shape, device: &B::Device, dtype: DType) =
        (float_zeros, int_zeros, bool_zeros) (shape, device, dtype.into());
    fn ones(shape: Shape, device: &B::Device, dtype: DType) =
        (float_ones, int_ones, bool_ones) (shape, device, dtype.into());
    fn reshape(tensor: Self::Tensor, shape: Shape) =
        (float_reshape, int_reshape, bool_reshape) (tensor, shape);
    fn expand(tensor: Self::Tensor, shape: Shape) = (float_expand, int_expand, bool_expand) (tensor, shape);
    fn swap_dims(tensor: Self::Tensor, dim1: usize, dim2: usize) =
        (float_swap_dims, int_swap_dims, bool_swap_dims) (tensor, dim1, dim2);
    fn permute(tensor: Self::Tensor, axes: &[usize]) =
        (float_permute, int_permute, bool_permute) (tensor, axes);
    fn flip(tensor: Self::Tensor, axes: &[usize]) = (float_flip, int_flip, bool_flip) (tensor, axes);
    fn unfold(tensor: Self::Tensor, dim: usize, size: usize, step: usize) =
        (float_unfold, int_unfold, bool_unfold) (tensor, dim, size, step);
    fn slice(tensor: Self::Tensor, slices: &[Slice]) = (float_slice, int_slice, bool_slice) (tensor, slices);
    fn slice_assign(tensor: Self::Tensor, slices: &[Slice], value: Self::Tensor) =
        (float_slice_assign, int_slice_assign, bool_slice_assign) (tensor, slices, value);
    fn repeat_dim(tensor: Self::Tensor, dim: usize, times: usize) =
        (float_repeat_dim, int_repeat_dim, bool_repeat_dim) (tensor, dim, times);
    fn cat(tensors: Vec<Self::Tensor>, dim: usize) = (float_cat, int_cat, bool_cat) (tensors, dim);
    fn gather(dim: usize, tensor: Self::Tensor, indices: IntTensor<B>) =
        (float_gather, int_gather, bool_gather) (dim, tensor, indices);
    fn select(tensor: Self::Tensor, dim: usize, indices: IntTensor<B>) =
        (float_select, int_select, bool_select) (tensor, dim, indices);
    fn mask_where(tensor: Self::Tensor, mask: BoolTensor<B>, value: Self::Tensor) =
        (float_mask_where, int_mask_where, bool_mask_where) (tensor, mask, value);
    fn mask_fill(tensor: Self::Tensor, mask: BoolTensor<B>, value: Scalar) =
        (float_mask_fill, int_mask_fill, bool_mask_fill) (tensor, mask, value);
}

kernels! {
    /// Kernels of tensors that hold numbers.
    trait Arithmetics for (Float, Int);

    fn full(shape: Shape, value: Scalar, device: &B::Device, dtype: DType) =
        (float_full, int_full) (shape, value, device, dtype.into());
    fn random(shape: Shape, distribution: Distribution, device: &B::Device, dtype: DType) =
        (float_random, int_random) (shape, distribution, device, dtype.into());
    fn add(lhs: Self::Tensor, rhs: Self::Tensor) = (float_add, int_add) (lhs, rhs);
    fn add_scalar(lhs: Self::Tensor, rhs: Scalar) = (float_add_scalar, int_add_scalar) (lhs, rhs);
    fn sub(lhs: Self::Tensor, rhs: Self::Tensor) = (float_sub, int_sub) (lhs, rhs);
    fn sub_scalar(lhs: Self::Tensor, rhs: Scalar) = (float_sub_scalar, int_sub_scalar) (lhs, rhs);
    fn mul(lhs: Self::Tensor, rhs: Self::Tensor) = (float_mul, int_mul) (lhs, rhs);
    fn mul_scalar(lhs: Self::Tensor, rhs: Scalar) = (float_mul_scalar, int_mul_scalar) (lhs, rhs);
    fn div(lhs: Self::Tensor, rhs: Self::Tensor) = (float_div, int_div) (lhs, rhs);
    fn div_scalar(lhs: Self::Tensor, rhs: Scalar) = (float_div_scalar, int_div_scalar) (lhs, rhs);
    fn remainder(lhs: Self::Tensor, rhs: Self::Tensor) = (float_remainder, int_remainder) (lhs, rhs);
    fn remainder_scalar(lhs: Self::Tensor, rhs: Scalar) =
        (float_remainder_scalar, int_remainder_scalar) (lhs, rhs);
    fn powi_scalar(lhs: Self::Tensor, rhs: Scalar) = (float_powi_scalar, int_powi_scalar) (lhs, rhs);
    fn abs(tensor: Self::Tensor) = (float_abs, int_abs) (tensor);
    fn clamp(tensor: Self::Tensor, min: Scalar, max: Scalar) = (float_clamp, int_clamp) (tensor, min, max);
    fn sum(tensor: Self::Tensor) = (float_sum, int_sum) (tensor);
    fn sum_dim(tensor: Self::Tensor, dim: usize) = (float_sum_dim, int_sum_dim) (tensor, dim);
    fn mean(tensor: Self::Tensor) = (float_mean, int_mean) (tensor);
    fn mean_dim(tensor: Self::Tensor, dim: usize) = (float_mean_dim, int_mean_dim) (tensor, dim);
    fn prod(tensor: Self::Tensor) = (float_prod, int_prod) (tensor);
    fn prod_dim(tensor: Self::Tensor, dim: usize) = (float_prod_dim, int_prod_dim) (tensor, dim);
    fn max(tensor: Self::Tensor) = (float_max, int_max) (tensor);
    fn max_dim(tensor: Self::Tensor, dim: usize) = (float_max_dim, int_max_dim) (tensor, dim);
    fn max_abs(tensor: Self::Tensor) = (float_max_abs, int_max_abs) (tensor);
    fn max_abs_dim(tensor: Self::Tensor, dim: usize) = (float_max_abs_dim, int_max_abs_dim) (tensor, dim);
    fn min(tensor: Self::Tensor) = (float_min, int_min) (tensor);
    fn min_dim(tensor: Self::Tensor, dim: usize) = (float_min_dim, int_min_dim) (tensor, dim);
    fn topk(tensor: Self::Tensor, dim: usize, k: usize) = (float_topk, int_topk) (tensor, dim, k);
    fn cumsum(tensor: Self::Tensor, dim: usize) = (float_cumsum, int_cumsum) (tensor, dim);
    fn cumprod(tensor: Self::Tensor, dim: usize) = (float_cumprod, int_cumprod) (tensor, dim);
    fn cummin(tensor: Self::Tensor, dim: usize) = (float_cummin, int_cummin) (tensor, dim);
    fn cummax(tensor: Self::Tensor, dim: usize) = (float_cummax, int_cummax) (tensor, dim);
    fn gather_nd(data: Self::Tensor, indices: IntTensor<B>) =
        (float_gather_nd, int_gather_nd) (data, indices);
    fn scatter_nd(data: Self::Tensor, indices: IntTensor<B>, values: Self::Tensor, update: IndexingUpdateOp) =
        (float_scatter_nd, int_scatter_nd) (data, indices, values, update);
    fn write(dim: usize, data: Self::Tensor, indices: IntTensor<B>, values: Self::Tensor, update: IndexingUpdateOp) =
        (float_write, int_write) (dim, data, indices, values, update);
    fn write_rows(data: Self::Tensor, dim: usize, indices: IntTensor<B>, values: Self::Tensor, update: IndexingUpdateOp) =
        (float_write_rows, int_write_rows) (data, dim, indices, values, update);
}

/// A kind of tensors that hold numbers.
pub(super) trait Numbers<B: BackendIr>: Tensors<B> + Arithmetics<B> {}

impl<B: BackendIr> Numbers<B> for Float {}
impl<B: BackendIr> Numbers<B> for Int {}

/// Runs code for the kind `$kind`, which it calls `$K`.
macro_rules! by_kind {
    ($kind:expr, $K:ident => $run:expr) => {
        match $kind {
            Kind::Float => {
                type $K = crate::kinds::Float;
                $run
            }
            Kind::Int => {
                type $K = crate::kinds::Int;
                $run
            }
            Kind::Bool => {
                type $K = crate::kinds::Bool;
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
                type $K = crate::kinds::Float;
                $run
            }
            Kind::Int => {
                type $K = crate::kinds::Int;
                $run
            }
            Kind::Bool => unreachable!("burn-ir has no arithmetic on bools"),
        }
    };
}

pub(super) use {by_kind, by_number};
