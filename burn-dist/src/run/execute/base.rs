//! Ops that exist for every kind of tensor: views, slices, indexing, masks, creation.

use super::{Context, Env, index};
use burn_backend::{DType, Scalar, Shape};
use burn_ir::{BackendIr, BaseOperationIr, CastOpIr};

/// Returns the shape `[N]` if a reshape between these shapes must pass through it.
///
/// Where the last dim has size 1 and dims are added, `split_strides` of burn-std 0.21 derives all strides from that
/// one. For a tensor that is not contiguous (a dim was repeated or swapped) they are wrong, and backends that reshape
/// by strides read other elements, or beyond the buffer. Splits make such dims on ranks where one device has none. On
/// the way to `[N]` these backends copy such a tensor; for a contiguous one both steps are views.
pub(in crate::run) fn flat_between(from: &Shape, to: &Shape) -> Option<Shape> {
    let ends_in_one = from.iter().next_back() == Some(&1);
    (from.num_dims() > 1 && ends_in_one && to.num_dims() > from.num_dims())
        .then(|| Shape::from([from.num_elements()]))
}

/// Defines the base ops of one kind of tensor from the names of its kernels.
macro_rules! base_ops {
    (
        $kind:ident, $put:ident:
        $reshape:ident $swap_dims:ident $permute:ident $flip:ident $expand:ident $unfold:ident
        $slice:ident $slice_assign:ident $gather:ident $select:ident $mask_where:ident $mask_fill:ident
        $repeat_dim:ident $cat:ident $empty:ident $ones:ident $zeros:ident,
        $equal:expr, $equal_elem:expr
    ) => {
        pub(super) fn $kind<B: BackendIr, E: Env<B>>(
            cx: &mut Context<'_, B, E>,
            op: &BaseOperationIr,
        ) {
            match op {
                BaseOperationIr::Reshape(op) => {
                    let input = cx.$kind(&op.input);
                    let input = match flat_between(&op.input.shape, &op.out.shape) {
                        Some(flat) => B::$reshape(input, flat),
                        None => input,
                    };
                    cx.$put(&op.out, B::$reshape(input, op.out.shape.clone()));
                }
                BaseOperationIr::SwapDims(op) => {
                    let input = cx.$kind(&op.input);
                    cx.$put(&op.out, B::$swap_dims(input, op.dim1, op.dim2));
                }
                BaseOperationIr::Permute(op) => {
                    let input = cx.$kind(&op.input);
                    cx.$put(&op.out, B::$permute(input, &op.axes));
                }
                BaseOperationIr::Flip(op) => {
                    let input = cx.$kind(&op.input);
                    cx.$put(&op.out, B::$flip(input, &op.axes));
                }
                BaseOperationIr::Expand(op) => {
                    let input = cx.$kind(&op.input);
                    cx.$put(&op.out, B::$expand(input, op.out.shape.clone()));
                }
                BaseOperationIr::Unfold(op) => {
                    let input = cx.$kind(&op.input);
                    cx.$put(&op.out, B::$unfold(input, op.dim, op.size, op.step));
                }
                BaseOperationIr::Slice(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    cx.$put(&op.out, B::$slice(tensor, &op.ranges));
                }
                BaseOperationIr::SliceAssign(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let value = cx.$kind(&op.value);
                    cx.$put(&op.out, B::$slice_assign(tensor, &op.ranges, value));
                }
                BaseOperationIr::Gather(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let indices = cx.int(&op.indices);
                    cx.$put(&op.out, B::$gather(op.dim, tensor, indices));
                }
                BaseOperationIr::Scatter(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let indices = cx.int(&op.indices);
                    let value = cx.$kind(&op.value);
                    let out = index::$kind::scatter::<B>(tensor, op.dim, indices, value, op.update);
                    cx.$put(&op.out, out);
                }
                BaseOperationIr::ScatterNd(op) => {
                    let data = cx.$kind(&op.data);
                    let indices = cx.int(&op.indices);
                    let values = cx.$kind(&op.values);
                    let out = index::$kind::scatter_nd::<B>(data, indices, values, op.reduction);
                    cx.$put(&op.out, out);
                }
                BaseOperationIr::GatherNd(op) => {
                    let data = cx.$kind(&op.data);
                    let indices = cx.int(&op.indices);
                    cx.$put(&op.out, index::$kind::gather_nd::<B>(data, indices));
                }
                BaseOperationIr::Select(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let indices = cx.int(&op.indices);
                    cx.$put(&op.out, B::$select(tensor, op.dim, indices));
                }
                BaseOperationIr::SelectAssign(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let indices = cx.int(&op.indices);
                    let value = cx.$kind(&op.value);
                    let out =
                        index::$kind::select_assign::<B>(tensor, op.dim, indices, value, op.update);
                    cx.$put(&op.out, out);
                }
                BaseOperationIr::MaskWhere(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let mask = cx.bool(&op.mask);
                    let value = cx.$kind(&op.value);
                    cx.$put(&op.out, B::$mask_where(tensor, mask, value));
                }
                BaseOperationIr::MaskFill(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let mask = cx.bool(&op.mask);
                    let value = cx.scalar(&op.value);
                    cx.$put(&op.out, B::$mask_fill(tensor, mask, value));
                }
                BaseOperationIr::Equal(op) => {
                    let lhs = cx.$kind(&op.lhs);
                    let rhs = cx.$kind(&op.rhs);
                    cx.put_bool(&op.out, $equal(lhs, rhs, op.out.dtype));
                }
                BaseOperationIr::EqualElem(op) => {
                    let lhs = cx.$kind(&op.lhs);
                    let rhs = cx.scalar(&op.rhs);
                    cx.put_bool(&op.out, $equal_elem(lhs, rhs, op.out.dtype));
                }
                BaseOperationIr::RepeatDim(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    cx.$put(&op.out, B::$repeat_dim(tensor, op.dim, op.times));
                }
                BaseOperationIr::Cat(op) => {
                    let tensors = op.tensors.iter().map(|tensor| cx.$kind(tensor)).collect();
                    cx.$put(&op.out, B::$cat(tensors, op.dim));
                }
                BaseOperationIr::Cast(op) => cast(cx, op),
                BaseOperationIr::Empty(op) => {
                    let out = B::$empty(op.out.shape.clone(), cx.env.device(), op.out.dtype.into());
                    cx.$put(&op.out, out);
                }
                BaseOperationIr::Ones(op) => {
                    let out = B::$ones(op.out.shape.clone(), cx.env.device(), op.out.dtype.into());
                    cx.$put(&op.out, out);
                }
                BaseOperationIr::Zeros(op) => {
                    let out = B::$zeros(op.out.shape.clone(), cx.env.device(), op.out.dtype.into());
                    cx.$put(&op.out, out);
                }
            }
        }
    };
}

base_ops! {
    float, put_float:
    float_reshape float_swap_dims float_permute float_flip float_expand float_unfold
    float_slice float_slice_assign float_gather float_select float_mask_where float_mask_fill
    float_repeat_dim float_cat float_empty float_ones float_zeros,
    |lhs, rhs, out: DType| B::float_equal(lhs, rhs, out.into()),
    |lhs, rhs: Scalar, out: DType| B::float_equal_elem(lhs, rhs, out.into())
}

base_ops! {
    int, put_int:
    int_reshape int_swap_dims int_permute int_flip int_expand int_unfold
    int_slice int_slice_assign int_gather int_select int_mask_where int_mask_fill
    int_repeat_dim int_cat int_empty int_ones int_zeros,
    |lhs, rhs, out: DType| B::int_equal(lhs, rhs, out.into()),
    |lhs, rhs: Scalar, out: DType| B::int_equal_elem(lhs, rhs, out.into())
}

base_ops! {
    bool, put_bool:
    bool_reshape bool_swap_dims bool_permute bool_flip bool_expand bool_unfold
    bool_slice bool_slice_assign bool_gather bool_select bool_mask_where bool_mask_fill
    bool_repeat_dim bool_cat bool_empty bool_ones bool_zeros,
    |lhs, rhs, _| B::bool_equal(lhs, rhs),
    |lhs, rhs: Scalar, _| B::bool_equal_elem(lhs, rhs)
}

/// The three kinds of tensor between which casts convert.
#[derive(Clone, Copy)]
enum Kind {
    Float,
    Int,
    Bool,
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool(_) => Kind::Bool,
        dtype if dtype.is_float() => Kind::Float,
        _ => Kind::Int,
    }
}

/// Casts between any two dtypes that are not quantized; to a bool, whatever differs from zero is true.
fn cast<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, op: &CastOpIr) {
    let (input, out) = (&op.input, &op.out);
    let to = out.dtype;
    if input.dtype == to {
        let handle = cx.env.take(input);
        return cx.env.put(out, handle);
    }
    match (kind(input.dtype), kind(to)) {
        (Kind::Float, Kind::Float) => {
            let input = cx.float(input);
            cx.put_float(out, B::float_cast(input, to.into()));
        }
        (Kind::Float, Kind::Int) => {
            let input = cx.float(input);
            cx.put_int(out, B::float_into_int(input, to.into()));
        }
        (Kind::Float, Kind::Bool) => {
            let input = cx.float(input);
            cx.put_bool(
                out,
                B::float_not_equal_elem(input, Scalar::Int(0), to.into()),
            );
        }
        (Kind::Int, Kind::Float) => {
            let input = cx.int(input);
            cx.put_float(out, B::int_into_float(input, to.into()));
        }
        (Kind::Int, Kind::Int) => {
            let input = cx.int(input);
            cx.put_int(out, B::int_cast(input, to.into()));
        }
        (Kind::Int, Kind::Bool) => {
            let input = cx.int(input);
            cx.put_bool(out, index::bool::to_bool::<B>(input, to));
        }
        (Kind::Bool, Kind::Float) => {
            let input = cx.bool(input);
            cx.put_float(out, B::bool_into_float(input, to.into()));
        }
        (Kind::Bool, Kind::Int) => {
            let input = cx.bool(input);
            cx.put_int(out, B::bool_into_int(input, to.into()));
        }
        (Kind::Bool, Kind::Bool) => {
            // Another storage of the same values, which `put_bool` converts to.
            let input = cx.bool(input);
            cx.put_bool(out, input);
        }
    }
}
