//! Element by element.

use burn::tensor::{DType, Tensor, activation as act};

use super::harness::{Case1, cases};

/// Applies `f` to tensors of odd, prime and unit sizes.
fn each(c: &mut Case1, low: f32, high: f32, f: impl Fn(Tensor<3>) -> Tensor<3>) {
    for shape in [[2, 3, 5], [4, 1, 6], [1, 7, 1]] {
        let x = c.between(low, high, shape);
        c.out(f(x));
    }
}

cases! {
    fn exp(c) { each(c, -2.0, 2.0, |x| x.exp()); }
    fn log(c) { each(c, 0.5, 3.0, |x| x.log()); }
    fn log1p(c) { each(c, -0.5, 3.0, |x| x.log1p()); }
    fn erf(c) { each(c, -2.0, 2.0, |x| x.erf()); }
    fn sqrt(c) { each(c, 0.5, 3.0, |x| x.sqrt()); }
    fn square(c) { each(c, -2.0, 2.0, |x| x.square()); }
    fn recip(c) { each(c, 0.5, 3.0, |x| x.recip()); }
    fn trigonometry(c) {
        each(c, -2.0, 2.0, |x| x.cos());
        each(c, -2.0, 2.0, |x| x.sin());
        each(c, -1.0, 1.0, |x| x.tan());
    }
    fn hyperbolic(c) {
        each(c, -2.0, 2.0, |x| x.cosh());
        each(c, -2.0, 2.0, |x| x.sinh());
        each(c, -2.0, 2.0, |x| x.tanh());
    }
    fn inverse_trigonometry(c) {
        each(c, -0.8, 0.8, |x| x.acos());
        each(c, -0.8, 0.8, |x| x.asin());
    }
    fn inverse_tangent(c) {
        each(c, -2.0, 2.0, |x| x.atan());
    }
    fn inverse_hyperbolic(c) {
        each(c, 1.5, 3.0, |x| x.acosh());
        each(c, -2.0, 2.0, |x| x.asinh());
        each(c, -0.8, 0.8, |x| x.atanh());
    }
    fn atan2(c) {
        let (x, y) = (c.between(0.5, 2.0, [3, 5]), c.float([3, 5]));
        c.out(y.atan2(x));
    }
    fn rounding(c) {
        let x = c.float([5, 7]);
        c.out(x.clone().round());
        c.out(x.clone().floor());
        c.out(x.clone().ceil());
        c.out(x.clone().trunc());
        c.out(x.sign());
    }
    fn abs_neg(c) {
        c.exact();
        each(c, -2.0, 2.0, |x| x.abs());
        each(c, -2.0, 2.0, |x| x.neg());
    }
    fn degrees(c) {
        each(c, -2.0, 2.0, |x| x.deg2rad());
        each(c, -2.0, 2.0, |x| x.rad2deg());
    }
    fn powers(c) {
        each(c, -2.0, 2.0, |x| x.powi_scalar(2));
        each(c, -2.0, 2.0, |x| x.powi_scalar(3));
        each(c, 0.5, 2.0, |x| x.powf_scalar(2.5));
        let (x, y) = (c.between(0.5, 2.0, [3, 5]), c.float([3, 5]));
        c.out(x.powf(y));
        let (x, y) = (c.between(0.5, 2.0, [4, 1, 3]), c.constant([4, 1, 3]).round());
        c.out(x.powi(y));
    }
    fn powf_broadcast(c) {
        let (x, y) = (c.between(0.5, 2.0, [3, 5]), c.float([1, 5]));
        c.out(x.powf(y));
    }
    fn scalars(c) {
        each(c, -2.0, 2.0, |x| x + 1.5);
        each(c, -2.0, 2.0, |x| x - 0.25);
        each(c, -2.0, 2.0, |x| x * 3.0);
        each(c, -2.0, 2.0, |x| x / 4.0);
        let x = c.constant([5, 3]);
        c.value(x.clone().remainder_scalar(0.75));
        c.value(x.fmod_scalar(0.75));
    }
    fn scalar_on_the_left(c) {
        each(c, 0.5, 2.0, |x| 1.0 - x);
        each(c, 0.5, 2.0, |x| 2.0 / x);
    }
    fn add(c) {
        c.exact();
        for (a, b) in [([3, 5], [3, 5]), ([3, 5], [1, 5]), ([7, 1], [1, 3]), ([1, 1], [4, 6]), ([2, 3], [2, 1])] {
            let (x, y) = (c.float(a), c.float(b));
            c.out(x + y);
        }
    }
    fn sub(c) {
        c.exact();
        for (a, b) in [([3, 5], [3, 5]), ([3, 5], [1, 5]), ([7, 1], [1, 3]), ([1, 1], [4, 6]), ([2, 3], [2, 1])] {
            let (x, y) = (c.float(a), c.float(b));
            c.out(x - y);
        }
    }
    fn mul(c) {
        for (a, b) in [([3, 5], [3, 5]), ([3, 5], [1, 5]), ([7, 1], [1, 3]), ([1, 1], [4, 6]), ([2, 3], [2, 1])] {
            let (x, y) = (c.float(a), c.float(b));
            c.out(x * y);
        }
    }
    fn div(c) {
        for (a, b) in [([3, 5], [3, 5]), ([3, 5], [1, 5]), ([7, 1], [1, 3]), ([1, 1], [4, 6]), ([2, 3], [2, 1])] {
            let (x, y) = (c.float(a), c.between(0.5, 2.0, b));
            c.out(x / y);
        }
    }
    fn same_operand_twice(c) {
        let x = c.float([5, 3]);
        c.out(x.clone() + x.clone());
        c.out(x.clone() * x.clone());
        c.out(x.clone() - x);
    }
    fn broadcast_4d(c) {
        let (x, y) = (c.float([2, 1, 3, 1]), c.float([1, 5, 1, 2]));
        c.out(x.clone() * y.clone());
        c.out(x + y);
    }
    fn remainders(c) {
        let (x, y) = (c.constant([3, 5]), c.between(0.5, 2.0, [3, 5]).detach());
        c.value(x.clone().remainder(y.clone()));
        c.value(x.fmod(y));
    }
    fn clamp(c) {
        c.exact();
        each(c, -2.0, 2.0, |x| x.clamp(-0.7, 0.9));
        each(c, -2.0, 2.0, |x| x.clamp_min(-0.7));
        each(c, -2.0, 2.0, |x| x.clamp_max(0.9));
    }
    fn pairs(c) {
        c.exact();
        let (x, y) = (c.float([3, 5]), c.float([3, 5]));
        c.out(x.clone().max_pair(y.clone()));
        c.out(x.min_pair(y));
    }
    fn comparisons(c) {
        let (x, y) = (c.constant([3, 5]), c.constant([3, 5]));
        c.out_bool(x.clone().equal(x.clone()));
        c.out_bool(x.clone().not_equal(y.clone()));
        c.out_bool(x.clone().greater(y.clone()));
        c.out_bool(x.clone().greater_equal(y.clone()));
        c.out_bool(x.clone().lower(y.clone()));
        c.out_bool(x.clone().lower_equal(y.clone()));
        c.out_bool(x.clone().is_close(y, None, None));
        c.out_bool(x.clone().equal_elem(0.5));
        c.out_bool(x.clone().not_equal_elem(0.5));
        c.out_bool(x.clone().greater_elem(0.25));
        c.out_bool(x.clone().greater_equal_elem(0.25));
        c.out_bool(x.clone().lower_elem(0.25));
        c.out_bool(x.clone().lower_equal_elem(0.25));
        let row = c.constant([1, 5]);
        c.out_bool(x.clone().greater(row.clone()));
        c.out_bool(x.equal(row));
    }
    fn not_numbers(c) {
        let x = c.constant([3, 5]);
        let y = x.clone().log() / x.clone().round();
        c.out_bool(y.clone().is_nan());
        c.out_bool(y.clone().is_inf());
        c.out_bool(y.clone().is_finite());
        c.out_bool(y.contains_nan());
    }
    fn ints(c) {
        let (x, y) = (c.int(-9, 10, [3, 5]), c.int(1, 5, [3, 5]));
        c.out_int(x.clone() + y.clone());
        c.out_int(x.clone() - y.clone());
        c.out_int(x.clone() * y.clone());
        c.out_int(x.clone() / y.clone());
        c.out_int(x.clone().remainder(y.clone()));
        c.out_int(x.clone().neg());
        c.out_int(x.clone().abs());
        c.out_int(x.clone().sign());
        c.out_int(x.clone() + 3);
        c.out_int(x.clone() - 3);
        c.out_int(x.clone() * 3);
        c.out_int(x.clone() / 3);
        c.out_int(x.clone() % 3);
        c.out_int(x.clone().clamp(-2, 4));
        c.out_int(x.clone().max_pair(y.clone()));
        c.out_bool(x.clone().greater(y.clone()));
        c.out_bool(x.clone().lower_equal_elem(2));
        c.out_bool(x.clone().equal(y.clone()));
        c.out_bool(x.equal_elem(2));
    }
    fn ints_broadcast(c) {
        let (x, y) = (c.int(-9, 10, [7, 1]), c.int(1, 5, [1, 3]));
        c.out_int(x.clone() + y.clone());
        c.out_int(x.clone() * y.clone());
        c.out_int(x - y);
    }
    fn bits(c) {
        let (x, y) = (c.int(0, 60, [3, 5]), c.int(0, 5, [3, 5]));
        c.out_int(x.clone().bitwise_and(y.clone()));
        c.out_int(x.clone().bitwise_or(y.clone()));
        c.out_int(x.clone().bitwise_xor(y.clone()));
        c.out_int(x.clone().bitwise_not());
        c.out_int(x.clone().bitwise_left_shift(y.clone()));
        c.out_int(x.clone().bitwise_right_shift(y));
        c.out_int(x.clone().bitwise_and_scalar(3));
        c.out_int(x.clone().bitwise_or_scalar(3));
        c.out_int(x.clone().bitwise_xor_scalar(3));
        c.out_int(x.clone().bitwise_left_shift_scalar(3));
        c.out_int(x.bitwise_right_shift_scalar(3));
    }
    fn bools(c) {
        let (x, y) = (c.bool([3, 5]), c.bool([3, 5]));
        c.out_bool(x.clone().bool_not());
        c.out_bool(x.clone().bool_and(y.clone()));
        c.out_bool(x.clone().bool_or(y.clone()));
        c.out_bool(x.clone().bool_xor(y.clone()));
        c.out_bool(x.clone().equal(y.clone()));
        c.out_bool(x.clone().not_equal(y));
        c.out_int(x.clone().int());
        c.value(x.float());
    }
    fn casts(c) {
        let x = c.float([3, 5]);
        c.out_int(x.clone().int());
        c.out_bool(x.clone().bool());
        c.value(x.clone().cast(DType::F64));
        c.value(x.clone().cast(DType::F16));
        c.out(x.cast(DType::F64).mul_scalar(1.5).cast(DType::F32));
        let y = c.int(-4, 5, [7, 1]);
        c.value(y.clone().float());
        c.out_bool(y.clone().bool());
        c.out_int(y.cast(DType::I64));
    }
    fn exponentials_of_doubles(c) {
        let x = c.float([3, 5]);
        c.out(x.cast(DType::F64).exp().cast(DType::F32));
    }
    fn masks(c) {
        c.exact();
        let (x, y, mask) = (c.float([3, 5]), c.float([3, 5]), c.bool([3, 5]));
        c.out(x.clone().mask_where(mask.clone(), y));
        c.out(x.clone().mask_fill(mask, 7.5));
        let mask = x.clone().lower_elem(0.0);
        c.out(x.mask_fill(mask, 0.0));
    }
    fn masks_broadcast(c) {
        c.exact();
        let (x, y, mask) = (c.float([4, 3, 5]), c.float([1, 3, 5]), c.bool([4, 1, 5]));
        c.out(x.clone().mask_fill(mask.clone(), -1.0));
        c.out(x.mask_where(mask, y));
    }
    fn int_masks(c) {
        let (x, y, mask) = (c.int(-9, 10, [3, 5]), c.int(-9, 10, [3, 5]), c.bool([3, 5]));
        c.out_int(x.clone().mask_where(mask.clone(), y));
        c.out_int(x.mask_fill(mask, 77));
    }
    fn relus(c) {
        each(c, -2.0, 2.0, act::relu);
        each(c, -2.0, 2.0, |x| act::leaky_relu(x, 0.1));
        each(c, -2.0, 2.0, |x| act::elu(x, 1.5));
        each(c, -2.0, 2.0, |x| act::celu(x, 1.5));
        each(c, -2.0, 2.0, act::selu);
        each(c, -2.0, 2.0, |x| act::thresholded_relu(x, 0.5));
    }
    fn prelu(c) {
        for alphas in [1, 3] {
            let (x, alpha) = (c.float([4, 3, 5]), c.float([alphas]));
            c.out(act::prelu(x, alpha));
        }
    }
    fn gelus(c) {
        each(c, -2.0, 2.0, act::gelu_approximate);
        each(c, -2.0, 2.0, act::silu);
        each(c, -2.0, 2.0, act::mish);
        each(c, -2.0, 2.0, act::hard_swish);
    }
    fn gelu(c) {
        each(c, -2.0, 2.0, act::gelu);
    }
    fn sigmoids(c) {
        each(c, -2.0, 2.0, act::sigmoid);
        each(c, -2.0, 2.0, act::log_sigmoid);
        each(c, -2.0, 2.0, |x| act::hard_sigmoid(x, 0.2, 0.5));
        each(c, -2.0, 2.0, |x| act::softplus(x, 1.5));
        each(c, -2.0, 2.0, act::softsign);
    }
    fn shrinks(c) {
        each(c, -2.0, 2.0, |x| act::hard_shrink(x, 0.5));
        each(c, -2.0, 2.0, |x| act::soft_shrink(x, 0.5));
        each(c, -2.0, 2.0, |x| act::shrink(x, 0.5, 0.1));
    }
    fn bool_masks(c) {
        let (x, y, mask) = (c.bool([3, 5]), c.bool([3, 5]), c.bool([3, 5]));
        c.out_bool(x.clone().mask_where(mask.clone(), y));
        c.out_bool(x.clone().mask_fill(mask, true));
        c.out_bool(x.clone().equal_elem(true));
        c.out_bool(x.not_equal_elem(true));
    }
    fn int_comparisons(c) {
        let (x, y) = (c.int(-9, 10, [3, 5]), c.int(-9, 10, [3, 5]));
        c.out_bool(x.clone().greater_equal(y.clone()));
        c.out_bool(x.clone().lower(y.clone()));
        c.out_bool(x.clone().lower_equal(y.clone()));
        c.out_bool(x.clone().not_equal(y.clone()));
        c.out_bool(x.clone().greater_elem(2));
        c.out_bool(x.clone().greater_equal_elem(2));
        c.out_bool(x.clone().lower_elem(2));
        c.out_int(x.min_pair(y));
    }
    fn int_powers(c) {
        let (x, y) = (c.int(-9, 10, [3, 5]), c.int(1, 5, [3, 5]));
        c.out_int(x.clone().powi(y));
        c.out_int(x.powi_scalar(3));
    }
    fn wide_numbers(c) {
        // Beyond what the default float and int hold: a read must not go through them.
        let x = c.int(-9, 10, [3, 5]).cast(DType::I64);
        c.out_int(x * 1_000_000_007i64 * 1000);
        let x = c.constant([3, 5]).cast(DType::F64);
        c.exact();
        c.value(x + 1e-12);
    }
    fn without_autodiff(c) {
        // As one operation of the backend, which `Autodiff` takes apart.
        let x = c.constant([4, 3, 5]).inner();
        let alpha = c.constant([3]).inner();
        c.value(Tensor::from_inner(act::prelu(x.clone(), alpha)));
        c.value(Tensor::from_inner(act::leaky_relu(x.clone(), 0.1)));
        c.value(Tensor::from_inner(act::hard_sigmoid(x.clone(), 0.2, 0.5)));
        c.value(Tensor::from_inner(x.clone().clamp(-0.7, 0.9)));
        c.value(Tensor::from_inner(x.full_like(0.3) * x.clone()));
        c.value(Tensor::from_inner(x.clone().clamp_min(-0.7)));
        c.value(Tensor::from_inner(x.clone().clamp_max(0.9)));
        let other = c.constant([4, 3, 5]).inner();
        c.value(Tensor::from_inner(x.clone().hypot(other.clone())));
        c.out_bool(Tensor::from_inner(x.clone().not_equal(other)));
        c.out_bool(Tensor::from_inner(x.not_equal_elem(0.5)));
        let (x, y) = (c.int(-3, 4, [3, 5]).inner(), c.int(1, 5, [3, 5]).inner());
        c.out_int(Tensor::from_inner(x.clone().powi(y)));
        c.out_int(Tensor::from_inner(x.clone().clamp_max(2)));
        c.out_int(Tensor::from_inner(x.powi_scalar(3)));
    }
}
