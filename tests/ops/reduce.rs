//! Reductions, orders, and sums along a dim.

use burn::tensor::{Tensor, activation as act, linalg};

use super::harness::{Case1, cases};

/// Applies `f` to tensors of odd, prime and unit sizes, along each dim.
fn along(c: &mut Case1, f: impl Fn(&mut Case1, Tensor<3>, usize)) {
    for shape in [[3, 5, 2], [4, 1, 7]] {
        for dim in 0..3 {
            let x = c.float(shape);
            f(c, x, dim);
        }
    }
}

cases! {
    fn sum(c) {
        for shape in [[3, 5, 2], [4, 1, 7], [1, 1, 1]] {
            let x = c.float(shape);
            c.out(x.sum());
        }
    }
    fn mean(c) {
        for shape in [[3, 5, 2], [4, 1, 7], [1, 1, 1]] {
            let x = c.float(shape);
            c.out(x.mean());
        }
    }
    fn prod(c) {
        for shape in [[3, 5], [4, 1]] {
            let x = c.between(0.7, 1.4, shape);
            c.out(x.prod());
        }
        for dim in 0..2 {
            let x = c.between(-1.4, 1.4, [3, 5]);
            c.out(x.prod_dim(dim));
        }
    }
    fn sum_dim(c) { along(c, |c, x, dim| c.out(x.sum_dim(dim))); }
    fn mean_dim(c) { along(c, |c, x, dim| c.out(x.mean_dim(dim))); }
    fn several_dims(c) {
        let x = c.float([3, 5, 2]);
        c.out(x.clone().sum_dims(&[0, 2]));
        c.out(x.clone().mean_dims(&[1, 2]));
        c.out(x.clone().sum_dims_squeeze::<1, _>(&[0, 2]));
        c.out(x.clone().max_dims(&[0, 1]));
        c.out(x.min_dims(&[0, 2]));
    }
    fn max_min(c) {
        c.exact();
        for shape in [[3, 5, 2], [4, 1, 7]] {
            let x = c.float(shape);
            c.out(x.clone().max());
            c.out(x.clone().min());
            c.value(x.detach().max_abs());
        }
    }
    fn max_dim(c) { c.exact(); along(c, |c, x, dim| c.out(x.max_dim(dim))); }
    fn min_dim(c) { c.exact(); along(c, |c, x, dim| c.out(x.min_dim(dim))); }
    fn max_abs_dim(c) { along(c, |c, x, dim| c.value(x.detach().max_abs_dim(dim))); }
    fn max_dim_with_indices(c) {
        along(c, |c, x, dim| {
            let (values, indices) = x.clone().max_dim_with_indices(dim);
            c.out(values);
            c.out_int(indices);
            let (values, indices) = x.min_dim_with_indices(dim);
            c.out(values);
            c.out_int(indices);
        });
    }
    fn argmax(c) {
        along(c, |c, x, dim| {
            c.out_int(x.clone().argmax(dim));
            c.out_int(x.argmin(dim));
        });
    }
    fn argmax_of_ties(c) {
        let x = c.constant([5, 7]).round();
        c.out_int(x.clone().argmax(0));
        c.out_int(x.clone().argmax(1));
        c.out_int(x.clone().argmin(1));
        let (values, indices) = x.max_dim_with_indices(0);
        c.value(values);
        c.out_int(indices);
    }
    fn any_all(c) {
        let x = c.bool([3, 5]);
        c.out_bool(x.clone().any());
        c.out_bool(x.clone().all());
        for dim in 0..2 {
            c.out_bool(x.clone().any_dim(dim));
            c.out_bool(x.clone().all_dim(dim));
        }
        let y = c.int(0, 2, [1, 7]);
        c.out_bool(y.clone().any());
        c.out_bool(y.all_dim(1));
        let z = c.constant([4, 1]);
        c.out_bool(z.clone().any());
        c.out_bool(z.all());
    }
    fn int_reductions(c) {
        // Seven over axes of 2 and 3 is 4 and 3, of which only the 4 leaves a rank without elements.
        for shape in [[3, 5], [1, 7]] {
            let x = c.int(-9, 10, shape);
            c.out_int(x.clone().sum());
            c.out_int(x.clone().mean());
            c.out_int(x.clone().max());
            c.out_int(x.clone().min());
            c.out_int(x.clone().max_abs());
            for dim in 0..2 {
                c.out_int(x.clone().sum_dim(dim));
                c.out_int(x.clone().mean_dim(dim));
                c.out_int(x.clone().max_dim(dim));
                c.out_int(x.clone().min_dim(dim));
                c.out_int(x.clone().argmax(dim));
                c.out_int(x.clone().cumsum(dim));
            }
            let y = c.int(1, 4, shape);
            c.out_int(y.clone().prod());
            c.out_int(y.prod_dim(1));
        }
    }
    fn cumsum(c) { along(c, |c, x, dim| c.out(x.cumsum(dim))); }
    fn cumprod(c) {
        for dim in 0..2 {
            let x = c.between(0.7, 1.4, [5, 3]);
            c.out(x.cumprod(dim));
        }
    }
    fn cummin_cummax(c) {
        along(c, |c, x, dim| {
            c.value(x.clone().detach().cummin(dim));
            c.value(x.detach().cummax(dim));
        });
    }
    fn sort(c) {
        c.exact();
        along(c, |c, x, dim| {
            c.out(x.clone().sort(dim));
            let (values, indices) = x.sort_descending_with_indices(dim);
            c.out(values);
            c.out_int(indices);
        });
    }
    fn argsort(c) {
        along(c, |c, x, dim| {
            c.out_int(x.clone().argsort(dim));
            c.out_int(x.argsort_descending(dim));
        });
        let x = c.int(-90, 90, [3, 5]);
        c.out_int(x.clone().sort(0));
        c.out_int(x.sort_descending(1));
    }
    fn topk(c) {
        c.exact();
        // Burn has no gradient of `topk`.
        let x = c.float([3, 5]);
        c.value(Tensor::from_inner(x.clone().inner().topk(2, 1)));
        let (values, indices) = x.topk_with_indices(2, 0);
        c.out(values);
        c.out_int(indices);
    }
    fn median(c) {
        let x = c.constant([3, 5]);
        c.value(x.clone().median(0));
        let (values, indices) = x.clone().median_with_indices(1);
        c.value(values);
        c.out_int(indices);
    }
    fn variance(c) {
        along(c, |c, x, dim| {
            if x.dims()[dim] > 1 {
                c.out(x.clone().var(dim));
            }
            let (var, mean) = x.var_mean_bias(dim);
            c.out(var);
            c.out(mean);
        });
    }
    fn cov(c) {
        let x = c.float([3, 5]);
        c.out(x.clone().cov(0, 1));
        c.out(x.cov(1, 0));
    }
    fn softmax(c) { along(c, |c, x, dim| c.out(act::softmax(x, dim))); }
    fn log_softmax(c) { along(c, |c, x, dim| c.out(act::log_softmax(x, dim))); }
    fn other_softmaxes(c) {
        along(c, |c, x, dim| {
            c.out(act::softmin(x.clone(), dim));
            c.out(act::quiet_softmax(x, dim));
        });
    }
    fn norms(c) {
        for dim in 0..2 {
            let x = c.float([5, 3]);
            c.out(linalg::l2_norm(x.clone(), dim));
            c.out(linalg::l1_norm(x.clone(), dim));
            c.value(linalg::l0_norm(x.clone().detach(), dim));
            c.out(linalg::lp_norm(x.clone(), 3.0, dim));
            c.out(linalg::max_abs_norm(x.clone(), dim));
            c.out(linalg::vector_normalize(x, 2.0, dim, 1e-6));
        }
    }
    fn cosine_similarity(c) {
        let (x, y) = (c.float([5, 3]), c.float([5, 3]));
        c.out(linalg::cosine_similarity(x.clone(), y.clone(), 1, None));
        c.out(linalg::cosine_similarity(x, y, 0, None));
    }
    fn int_orders(c) {
        for dim in 0..2 {
            let x = c.int(-90, 90, [5, 3]);
            c.out_int(x.clone().argmin(dim));
            c.out_int(x.clone().max_abs_dim(dim));
            c.out_int(x.clone().cummin(dim));
            c.out_int(x.clone().cummax(dim));
            c.out_int(x.clone().topk(2, dim));
            let (values, indices) = x.clone().max_dim_with_indices(dim);
            c.out_int(values);
            c.out_int(indices);
            let (values, indices) = x.min_dim_with_indices(dim);
            c.out_int(values);
            c.out_int(indices);
            let x = c.int(-3, 4, [5, 3]);
            c.out_int(x.cumprod(dim));
        }
    }
    fn without_autodiff(c) {
        // As one operation of the backend, which `Autodiff` takes apart.
        c.exact();
        for shape in [[3, 5, 2], [4, 1, 7]] {
            let x = c.constant(shape).inner();
            c.value(Tensor::from_inner(x.clone().max_abs()));
            for dim in 0..3 {
                c.value(Tensor::from_inner(x.clone().max_abs_dim(dim)));
            }
            c.value(Tensor::from_inner(x.max_abs_dims(&[0, 2])));
        }
        let x = c.int(-9, 10, [3, 7]).inner();
        c.out_int(Tensor::from_inner(x.clone().max_abs()));
        c.out_int(Tensor::from_inner(x.max_abs_dim(1)));
    }
    fn as_one_operation(c) {
        // Of the backend, which `Autodiff` takes apart.
        for dim in 0..2 {
            let x = c.constant([4, 6]).inner();
            c.value(Tensor::from_inner(act::softmax(x.clone(), dim)));
            c.value(Tensor::from_inner(act::log_softmax(x.clone(), dim)));
            c.value(Tensor::from_inner(act::softmin(x.clone(), dim)));
            c.out_bool(Tensor::from_inner(x.clone().any_dim(dim)));
            c.out_bool(Tensor::from_inner(x.clone().all_dim(dim)));
            c.out_bool(Tensor::from_inner(x.clone().any()));
            c.out_bool(Tensor::from_inner(x.all()));
            let y = c.int(0, 2, [4, 6]).inner();
            c.out_bool(Tensor::from_inner(y.clone().any_dim(dim)));
            c.out_bool(Tensor::from_inner(y.all()));
            let x = c.constant([5, 6]).inner();
            let (values, indices) = x.topk_with_indices(2, dim);
            c.value(Tensor::from_inner(values));
            c.out_int(Tensor::from_inner(indices));
            // No two are equal.
            let x = c.int(0, 257, [5, 6]).inner();
            c.out_int(Tensor::from_inner(x.clone().argsort(dim)));
            for (values, indices) in [
                x.clone().sort_with_indices(dim),
                x.clone().topk_with_indices(3, dim),
            ] {
                c.out_int(Tensor::from_inner(values));
                c.out_int(Tensor::from_inner(indices));
            }
            let x = c.int(-9, 10, [3, 5, 2]).inner();
            c.out_int(Tensor::from_inner(x.sum_dims(&[dim, 2])));
        }
    }
    fn products_without_autodiff(c) {
        let x = c.between(0.7, 1.4, [3, 7]).inner();
        c.value(Tensor::from_inner(x.clone().prod()));
        c.value(Tensor::from_inner(x.prod_dim(1)));
    }
    fn products_of_several_dims(c) {
        let x = c.between(0.7, 1.4, [3, 5, 2]);
        c.out(x.prod_dims(&[0, 2]));
    }
}
