//! Ops on floats and ints alike: arithmetic, comparisons, reductions, scans.

use super::flex::reducible;
use super::{Context, Env, ExecuteError, binary, compare, compare_scalar, unary, with_scalar};
use burn_backend::{DType, Slice, tensor::IntTensor};
use burn_ir::{BackendIr, NumericOperationIr};

/// Returns the first `k` elements along `axis`.
///
/// Of a descending sort these are the top k: the backends' own kernels for their indices exist on GPUs only.
fn first<B: BackendIr>(sorted: IntTensor<B>, axis: usize, k: usize) -> IntTensor<B> {
    let mut ranges = vec![Slice::full(); axis + 1];
    ranges[axis] = Slice::new(0, Some(k as isize), 1);
    B::int_slice(sorted, &ranges)
}

/// Runs `kernel(input)` of all elements.
macro_rules! of_all {
    ($cx:ident, $op:ident, $take:ident => $put:ident, $kernel:path) => {{
        let input = reducible($cx.$take(&$op.input), None);
        $cx.$put(&$op.out, $kernel(input));
    }};
}

/// Runs `kernel(input, axis)` or `kernel(input, axis, k)`.
macro_rules! along {
    ($cx:ident, $op:ident, $take:ident => $put:ident, $kernel:path) => {{
        let input = $cx.$take(&$op.input);
        $cx.$put(&$op.out, $kernel(input, $op.axis));
    }};
    ($cx:ident, $op:ident, $take:ident => $put:ident, sum $kernel:path) => {{
        let input = reducible($cx.$take(&$op.input), Some($op.axis));
        $cx.$put(&$op.out, $kernel(input, $op.axis));
    }};
    ($cx:ident, $op:ident, $take:ident => $put:ident, top $kernel:path) => {{
        let input = $cx.$take(&$op.input);
        $cx.$put(&$op.out, $kernel(input, $op.axis, $op.accumulator_len));
    }};
}

/// Defines the numeric ops of one kind of tensor from the names of its kernels; kernels that make indices come as
/// closures, because only those on floats take the dtype of the indices.
macro_rules! numeric_ops {
    (
        $kind:ident, $put:ident:
        $add:ident $add_scalar:ident $sub:ident $sub_scalar:ident $div:ident $div_scalar:ident
        $rem:ident $rem_scalar:ident $mul:ident $mul_scalar:ident $abs:ident $full:ident
        $mean_dim:ident $mean:ident $sum:ident $sum_dim:ident $prod:ident $prod_dim:ident
        $greater:ident $greater_elem:ident $greater_equal:ident $greater_equal_elem:ident
        $lower:ident $lower_elem:ident $lower_equal:ident $lower_equal_elem:ident
        $max:ident $min:ident $max_dim:ident $min_dim:ident $max_abs:ident $max_abs_dim:ident
        $topk:ident $clamp:ident $powi:ident $powi_scalar:ident
        $cumsum:ident $cumprod:ident $cummin:ident $cummax:ident,
        argmax $argmax:expr, argmin $argmin:expr, argtopk $argtopk:expr,
        max_with_indices $max_with_indices:expr, min_with_indices $min_with_indices:expr,
        random |$random_cx:ident, $random_op:ident| $random:expr
    ) => {
        pub(super) fn $kind<B: BackendIr, E: Env<B>>(
            cx: &mut Context<'_, B, E>,
            op: &NumericOperationIr,
        ) -> Result<(), ExecuteError> {
            match op {
                NumericOperationIr::Add(op) => binary!(cx, op, $kind => $put, B::$add),
                NumericOperationIr::AddScalar(op) => {
                    with_scalar!(cx, op, $kind => $put, B::$add_scalar)
                }
                NumericOperationIr::Sub(op) => binary!(cx, op, $kind => $put, B::$sub),
                NumericOperationIr::SubScalar(op) => {
                    with_scalar!(cx, op, $kind => $put, B::$sub_scalar)
                }
                NumericOperationIr::Div(op) => binary!(cx, op, $kind => $put, B::$div),
                NumericOperationIr::DivScalar(op) => {
                    with_scalar!(cx, op, $kind => $put, B::$div_scalar)
                }
                NumericOperationIr::Rem(op) => binary!(cx, op, $kind => $put, B::$rem),
                NumericOperationIr::RemScalar(op) => {
                    with_scalar!(cx, op, $kind => $put, B::$rem_scalar)
                }
                NumericOperationIr::Mul(op) => binary!(cx, op, $kind => $put, B::$mul),
                NumericOperationIr::MulScalar(op) => {
                    with_scalar!(cx, op, $kind => $put, B::$mul_scalar)
                }
                NumericOperationIr::Abs(op) => unary!(cx, op, $kind => $put, B::$abs),
                NumericOperationIr::Full(op) => {
                    let value = cx.scalar(&op.value);
                    let shape = op.out.shape.clone();
                    let out = B::$full(shape, value, cx.env.device(), op.out.dtype.into());
                    cx.$put(&op.out, out);
                }
                NumericOperationIr::MeanDim(op) => along!(cx, op, $kind => $put, sum B::$mean_dim),
                NumericOperationIr::Mean(op) => of_all!(cx, op, $kind => $put, B::$mean),
                NumericOperationIr::Sum(op) => of_all!(cx, op, $kind => $put, B::$sum),
                NumericOperationIr::SumDim(op) => along!(cx, op, $kind => $put, sum B::$sum_dim),
                NumericOperationIr::Prod(op) => unary!(cx, op, $kind => $put, B::$prod),
                NumericOperationIr::ProdDim(op) => along!(cx, op, $kind => $put, B::$prod_dim),
                NumericOperationIr::Greater(op) => compare!(cx, op, $kind, B::$greater),
                NumericOperationIr::GreaterElem(op) => {
                    compare_scalar!(cx, op, $kind, B::$greater_elem)
                }
                NumericOperationIr::GreaterEqual(op) => {
                    compare!(cx, op, $kind, B::$greater_equal)
                }
                NumericOperationIr::GreaterEqualElem(op) => {
                    compare_scalar!(cx, op, $kind, B::$greater_equal_elem)
                }
                NumericOperationIr::Lower(op) => compare!(cx, op, $kind, B::$lower),
                NumericOperationIr::LowerElem(op) => {
                    compare_scalar!(cx, op, $kind, B::$lower_elem)
                }
                NumericOperationIr::LowerEqual(op) => compare!(cx, op, $kind, B::$lower_equal),
                NumericOperationIr::LowerEqualElem(op) => {
                    compare_scalar!(cx, op, $kind, B::$lower_equal_elem)
                }
                NumericOperationIr::ArgMax(op) => {
                    let input = cx.$kind(&op.input);
                    cx.put_int(&op.out, $argmax(input, op.axis, op.out.dtype));
                }
                NumericOperationIr::ArgMin(op) => {
                    let input = cx.$kind(&op.input);
                    cx.put_int(&op.out, $argmin(input, op.axis, op.out.dtype));
                }
                NumericOperationIr::ArgTopK(op) => {
                    let input = cx.$kind(&op.input);
                    let out = $argtopk(input, op.axis, op.accumulator_len, op.out.dtype);
                    cx.put_int(&op.out, out);
                }
                NumericOperationIr::TopK(op) => along!(cx, op, $kind => $put, top B::$topk),
                NumericOperationIr::Max(op) => of_all!(cx, op, $kind => $put, B::$max),
                NumericOperationIr::Min(op) => of_all!(cx, op, $kind => $put, B::$min),
                NumericOperationIr::MaxDim(op) => along!(cx, op, $kind => $put, B::$max_dim),
                NumericOperationIr::MinDim(op) => along!(cx, op, $kind => $put, B::$min_dim),
                NumericOperationIr::MaxDimWithIndices(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let (out, indices) = $max_with_indices(tensor, op.dim, op.out_indices.dtype);
                    cx.$put(&op.out, out);
                    cx.put_int(&op.out_indices, indices);
                }
                NumericOperationIr::MinDimWithIndices(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let (out, indices) = $min_with_indices(tensor, op.dim, op.out_indices.dtype);
                    cx.$put(&op.out, out);
                    cx.put_int(&op.out_indices, indices);
                }
                NumericOperationIr::MaxAbs(op) => of_all!(cx, op, $kind => $put, B::$max_abs),
                NumericOperationIr::MaxAbsDim(op) => {
                    along!(cx, op, $kind => $put, B::$max_abs_dim)
                }
                NumericOperationIr::Clamp(op) => {
                    let tensor = cx.$kind(&op.tensor);
                    let (min, max) = (cx.scalar(&op.min), cx.scalar(&op.max));
                    cx.$put(&op.out, B::$clamp(tensor, min, max));
                }
                NumericOperationIr::IntRandom($random_op) => {
                    let $random_cx = cx;
                    return $random;
                }
                NumericOperationIr::Powi(op) => {
                    let lhs = cx.$kind(&op.lhs);
                    let rhs = cx.int(&op.rhs);
                    cx.$put(&op.out, B::$powi(lhs, rhs));
                }
                NumericOperationIr::PowiScalar(op) => {
                    with_scalar!(cx, op, $kind => $put, B::$powi_scalar)
                }
                NumericOperationIr::CumSum(op) => along!(cx, op, $kind => $put, B::$cumsum),
                NumericOperationIr::CumProd(op) => along!(cx, op, $kind => $put, B::$cumprod),
                NumericOperationIr::CumMin(op) => along!(cx, op, $kind => $put, B::$cummin),
                NumericOperationIr::CumMax(op) => along!(cx, op, $kind => $put, B::$cummax),
            }
            Ok(())
        }
    };
}

numeric_ops! {
    float, put_float:
    float_add float_add_scalar float_sub float_sub_scalar float_div float_div_scalar
    float_remainder float_remainder_scalar float_mul float_mul_scalar float_abs float_full
    float_mean_dim float_mean float_sum float_sum_dim float_prod float_prod_dim
    float_greater float_greater_elem float_greater_equal float_greater_equal_elem
    float_lower float_lower_elem float_lower_equal float_lower_equal_elem
    float_max float_min float_max_dim float_min_dim float_max_abs float_max_abs_dim
    float_topk float_clamp float_powi float_powi_scalar
    float_cumsum float_cumprod float_cummin float_cummax,
    argmax |input, axis, out: DType| B::float_argmax(input, axis, out.into()),
    argmin |input, axis, out: DType| B::float_argmin(input, axis, out.into()),
    argtopk |input, axis, k, out: DType| first::<B>(B::float_argsort(input, axis, true, out.into()), axis, k),
    max_with_indices |input, dim, indices: DType| B::float_max_dim_with_indices(input, dim, indices.into()),
    min_with_indices |input, dim, indices: DType| B::float_min_dim_with_indices(input, dim, indices.into()),
    random |_cx, _op| Err(ExecuteError::Unsupported {
        op: "random".into(),
        reason: "random ints are not a float op: record a float random op",
    })
}

numeric_ops! {
    int, put_int:
    int_add int_add_scalar int_sub int_sub_scalar int_div int_div_scalar
    int_remainder int_remainder_scalar int_mul int_mul_scalar int_abs int_full
    int_mean_dim int_mean int_sum int_sum_dim int_prod int_prod_dim
    int_greater int_greater_elem int_greater_equal int_greater_equal_elem
    int_lower int_lower_elem int_lower_equal int_lower_equal_elem
    int_max int_min int_max_dim int_min_dim int_max_abs int_max_abs_dim
    int_topk int_clamp int_powi int_powi_scalar
    int_cumsum int_cumprod int_cummin int_cummax,
    argmax |input, axis, _| B::int_argmax(input, axis),
    argmin |input, axis, _| B::int_argmin(input, axis),
    argtopk |input, axis, k, _| first::<B>(B::int_argsort(input, axis, true), axis, k),
    max_with_indices |input, dim, _| B::int_max_dim_with_indices(input, dim),
    min_with_indices |input, dim, _| B::int_min_dim_with_indices(input, dim),
    random |cx, op| {
        let shape = op.out.shape.clone();
        let out = B::int_random(shape, op.distribution, cx.env.device(), op.out.dtype.into());
        cx.put_int(&op.out, out);
        Ok(())
    }
}
