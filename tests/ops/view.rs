//! Moving data: views, parts, joins.

use burn::tensor::{Bool, Distribution, Int, Tensor, Transaction, grid, linalg, ops::PadMode, s};

use super::harness::cases;

cases! {
    fn pad_as_one_operation(c) {
        c.exact();
        // Of the backend, which `Autodiff` takes apart.
        let x = c.constant([3, 4]).inner();
        c.value(Tensor::from_inner(x.clone().pad((1, 0, 2, 1), PadMode::Constant(0.5))));
        c.value(Tensor::from_inner(x.clone().pad((1, 1, 0, 2), PadMode::Reflect)));
        c.value(Tensor::from_inner(x.pad((2, 1, 1, 0), PadMode::Edge)));
    }
    fn reshape(c) {
        c.exact();
        let x = c.float([4, 6]);
        c.out(x.clone().reshape([24]));
        c.out(x.clone().reshape([2, 2, 6]));
        c.out(x.clone().reshape([8, 3]));
        c.out(x.clone().reshape([6, 4]));
        c.out(x.clone().reshape([-1, 12]));
        c.out(x.reshape([1, 4, 1, 6]));
    }
    fn reshape_odd(c) {
        c.exact();
        let x = c.float([3, 5, 2]);
        c.out(x.clone().reshape([15, 2]));
        c.out(x.clone().reshape([5, 6]));
        c.out(x.clone().reshape([2, 15]));
        c.out(x.clone().reshape([30]));
        c.out(x.clone().reshape([3, 10]).reshape([3, 2, 5]));
        let y = c.float([7, 1]);
        c.out(y.clone().reshape([7]));
        c.out(y.reshape([1, 7, 1]));
    }
    fn reshape_heads(c) {
        c.exact();
        let x = c.float([2, 3, 8]);
        let heads = x.reshape([2, 3, 4, 2]).swap_dims(1, 2);
        c.out(heads.clone());
        c.out(heads.clone().reshape([8, 3, 2]));
        c.out(heads.swap_dims(1, 2).reshape([2, 3, 8]));
    }
    fn flatten(c) {
        c.exact();
        let x = c.float([2, 3, 5]);
        c.out(x.clone().flatten::<2>(0, 1));
        c.out(x.clone().flatten::<2>(1, 2));
        c.out(x.flatten::<1>(0, 2));
    }
    fn transpose(c) {
        c.exact();
        let x = c.float([3, 5]);
        c.out(x.clone().transpose());
        c.out(x.t());
        let y = c.float([2, 3, 5]);
        c.out(y.clone().transpose());
        c.out(y.clone().swap_dims(0, 2));
        c.out(y.clone().permute([2, 0, 1]));
        c.out(y.clone().movedim(0, 2));
        c.out(y.swap_dims(0, 1).swap_dims(1, 2));
    }
    fn flip(c) {
        c.exact();
        let x = c.float([3, 5, 2]);
        c.out(x.clone().flip([0]));
        c.out(x.clone().flip([1, 2]));
        c.out(x.flip([0, 1, 2]));
    }
    fn roll(c) {
        c.exact();
        let x = c.float([3, 5]);
        c.out(x.clone().roll_dim(2, 1));
        c.out(x.clone().roll_dim(-1, 0));
        c.out(x.roll(&[1, 3], &[0, 1]));
    }
    fn squeeze(c) {
        c.exact();
        let x = c.float([3, 1, 5]);
        c.out(x.clone().squeeze::<2>());
        c.out(x.clone().squeeze_dim::<2>(1));
        c.out(x.clone().unsqueeze::<4>());
        c.out(x.clone().unsqueeze_dim::<4>(2));
        c.out(x.clone().unsqueeze_dims::<5>(&[0, -1]));
        let y = c.float([1, 3, 1, 5]);
        c.out(y.squeeze_dims::<2>(&[0, 2]));
    }
    fn expand(c) {
        c.exact();
        let x = c.float([3, 1]);
        c.out(x.clone().expand([3, 5]));
        c.out(x.clone().expand([2, 3, 5]));
        c.out(x.expand([-1, 4]));
        let row = c.float([5]);
        c.out(row.expand([4, 5]));
        let one = c.float([1, 1]);
        c.out(one.expand([3, 4]));
    }
    fn repeat(c) {
        c.exact();
        let x = c.float([3, 5]);
        c.out(x.clone().repeat_dim(0, 2));
        c.out(x.clone().repeat_dim(1, 3));
        c.out(x.repeat(&[2, 3]));
        let y = c.float([1, 4]);
        c.out(y.clone().repeat_dim(0, 3));
        c.out(y.repeat_dim(1, 2));
    }
    fn slice(c) {
        c.exact();
        let x = c.float([5, 7]);
        c.out(x.clone().slice(1..4));
        c.out(x.clone().slice([0..5, 2..3]));
        c.out(x.clone().slice([4..5, 0..7]));
        c.out(x.clone().slice(s![-3..-1, ..]));
        c.out(x.clone().slice(s![.., 3..]));
        c.out(x.clone().slice_dim(1, 2..6));
        c.out(x.slice(s![2, 1..=3]));
    }
    fn slice_steps(c) {
        c.exact();
        let x = c.float([5, 7]);
        c.out(x.clone().slice(s![..;2, ..]));
        c.out(x.clone().slice(s![1..;3, ..;2]));
        c.out(x.clone().slice(s![..;-1, ..]));
        c.out(x.slice(s![.., 1..6;-2]));
    }
    fn slice_assign(c) {
        c.exact();
        let (x, y) = (c.float([5, 7]), c.float([2, 3]));
        c.out(x.clone().slice_assign([1..3, 4..7], y.clone()));
        let (row, column) = (c.float([1, 7]), c.float([5, 1]));
        c.out(x.clone().slice_assign([4..5, 0..7], row));
        c.out(x.clone().slice_assign([0..5, 3..4], column));
        let rows = c.float([3, 7]);
        c.out(x.clone().slice_assign(s![..;2, ..], rows.clone()));
        c.out(x.slice_assign(s![0..3, ..], rows));
    }
    fn slice_fill(c) {
        c.exact();
        let x = c.float([5, 7]);
        c.out(x.clone().slice_fill([1..3, 4..7], 2.5));
        c.out(x.slice_fill(s![..;2], -1.0));
    }
    fn narrow(c) {
        c.exact();
        let x = c.float([5, 7]);
        c.out(x.clone().narrow(0, 1, 3));
        c.out(x.clone().narrow(1, 0, 1));
        c.out(x.narrow(1, 4, 3));
    }
    fn chunk(c) {
        c.exact();
        let x = c.float([5, 7]);
        for part in x.clone().chunk(3, 1) {
            c.out(part);
        }
        for part in x.clone().split(2, 0) {
            c.out(part);
        }
        for part in x.split_with_sizes(vec![1, 4, 2], 1) {
            c.out(part);
        }
    }
    fn iter_dim(c) {
        c.exact();
        let x = c.float([3, 2]);
        for part in x.iter_dim(0) {
            c.out(part);
        }
    }
    fn cat(c) {
        c.exact();
        let (x, y, z) = (c.float([3, 5]), c.float([3, 5]), c.float([3, 5]));
        c.out(Tensor::cat(vec![x.clone(), y.clone()], 0));
        c.out(Tensor::cat(vec![x.clone(), y.clone(), z.clone()], 1));
        c.out(Tensor::cat(vec![x.clone(), x.clone()], 0));
        c.out(Tensor::stack::<3>(vec![x.clone(), y.clone()], 0));
        c.out(Tensor::stack::<3>(vec![x, y, z], 2));
    }
    fn cat_uneven(c) {
        c.exact();
        let (x, y, z) = (c.float([1, 3]), c.float([4, 3]), c.float([2, 3]));
        c.out(Tensor::cat(vec![x, y, z], 0));
    }
    fn pad(c) {
        c.exact();
        let x = c.float([3, 5]);
        c.out(x.clone().pad((1, 2, 0, 1), 1.5));
        c.out(x.clone().pad((1, 2, 2, 1), PadMode::Reflect));
        c.out(x.clone().pad((1, 2, 2, 1), PadMode::Edge));
        c.out(x.pad([(1, 0), (0, 2)], PadMode::Constant(0.0)));
    }
    fn unfold(c) {
        c.exact();
        let x = c.constant([3, 7]);
        c.value(x.clone().unfold::<3, _>(1, 3, 2));
        c.value(x.unfold::<3, _>(0, 2, 1));
    }
    fn triangles(c) {
        let x = c.float([5, 7]);
        c.out(x.clone().triu(0));
        c.out(x.clone().tril(1));
        c.out(x.triu(-2));
        c.out_bool(Tensor::<2, Bool>::triu_mask([3, 5], 1, &c.device));
        c.out_bool(Tensor::<2, Bool>::tril_mask([5, 3], 0, &c.device));
        c.out_bool(Tensor::<2, Bool>::diag_mask([4, 4], 0, &c.device));
        let y = c.int(-9, 10, [3, 3]);
        c.out_int(y.triu(0));
    }
    fn diag(c) {
        let x = c.float([5, 5]);
        c.out(linalg::diag::<2, 1, _>(x.clone()));
        c.out(linalg::trace::<2, 1>(x));
    }
    fn ints(c) {
        let x = c.int(-9, 10, [4, 6]);
        c.out_int(x.clone().reshape([8, 3]));
        c.out_int(x.clone().transpose());
        c.out_int(x.clone().flip([1]));
        c.out_int(x.clone().slice([1..3, 2..5]));
        c.out_int(x.clone().slice(s![..;2, ..;-1]));
        c.out_int(x.clone().repeat_dim(1, 2));
        c.out_int(Tensor::cat(vec![x.clone(), x.clone()], 1));
        c.out_int(x.clone().unsqueeze_dim::<3>(1).expand([4, 3, 6]));
        let y = c.int(-9, 10, [2, 2]);
        c.out_int(x.clone().slice_assign([1..3, 2..4], y));
        c.out_int(x.clone().unfold::<3, _>(1, 2, 2));
        c.out_int(x.pad((1, 0, 0, 2), 3));
    }
    fn bools(c) {
        let x = c.bool([4, 6]);
        c.out_bool(x.clone().reshape([8, 3]));
        c.out_bool(x.clone().transpose());
        c.out_bool(x.clone().permute([1, 0]));
        c.out_bool(x.clone().flip([0]));
        c.out_bool(x.clone().slice([1..3, 2..5]));
        c.out_bool(x.clone().repeat_dim(1, 2));
        c.out_bool(Tensor::cat(vec![x.clone(), x.clone()], 0));
        c.out_bool(x.clone().unsqueeze_dim::<3>(0).expand([3, 4, 6]));
        let y = c.bool([2, 2]);
        c.out_bool(x.clone().slice_assign([1..3, 2..4], y));
        c.out_bool(x.unfold::<3, _>(0, 2, 2));
    }
    fn creation(c) {
        c.exact();
        let device = c.device.clone();
        c.value(Tensor::<2>::zeros([3, 5], &device));
        c.value(Tensor::<2>::ones([1, 7], &device));
        c.value(Tensor::<2>::full([3, 5], 2.5, &device));
        c.value(Tensor::<2>::eye(5, &device));
        c.out_int(Tensor::<1, Int>::arange(-3..8, &device));
        c.out_int(Tensor::<1, Int>::arange_step(2..20, 3, &device));
        c.out_int(Tensor::<2, Int>::full([3, 2], 7, &device));
        c.out_int(Tensor::<2, Int>::cartesian_grid::<_, 3>([3, 2], &device));
        let x = c.float([3, 5]);
        c.value(x.zeros_like());
        c.value(x.ones_like());
        c.value(x.full_like(1.5));
        c.out(x.clone() + Tensor::arange(0..5, &device).float().unsqueeze());
        c.out(x * Tensor::<2>::ones([3, 5], &device));
    }
    fn dims_of_size_one_at_the_end(c) {
        c.exact();
        // Seen through strides, a dim that is repeated or was swapped is not where the sizes say.
        let (x, y) = (c.float([4, 1, 1]), c.float([1, 5]));
        c.out(x.repeat_dim(1, 3).reshape([4, 3, 1, 1]));
        c.out(y.swap_dims(0, 1).reshape([5, 1, 1]));
        let x = c.int(-9, 10, [1, 5]);
        c.out_int(x.swap_dims(0, 1).reshape([5, 1, 1]));
        let x = c.bool([1, 5]);
        c.out_bool(x.swap_dims(0, 1).reshape([5, 1, 1]));
    }
    fn meshgrid(c) {
        c.exact();
        let (x, y) = (c.float([3]), c.float([5]));
        for part in grid::meshgrid(&[x, y], grid::GridOptions::default()) {
            c.out(part);
        }
    }
    fn chains(c) {
        c.exact();
        let x = c.float([2, 3, 4]);
        let y = x.clone().permute([1, 2, 0]).reshape([12, 2]).slice(3..11).transpose();
        c.out(y.clone());
        c.out(Tensor::cat(vec![y.clone(), y.flip([1])], 0).reshape([4, 4, 2]));
        c.out(x.flip([2]).swap_dims(0, 2).reshape([4, 6]).narrow(1, 1, 4));
    }
    fn empty(c) {
        c.exact();
        let device = c.device.clone();
        let x = c.float([3, 5]);
        c.out(Tensor::empty([3, 5], &device).slice_assign([0..3, 0..5], x));
        let x = c.int(-9, 10, [3, 5]);
        c.out_int(Tensor::empty([3, 5], &device).slice_assign([0..3, 0..5], x));
        let x = c.bool([3, 5]);
        c.out_bool(Tensor::empty([3, 5], &device).slice_assign([0..3, 0..5], x));
    }
    fn creation_of_ints_and_bools(c) {
        let device = c.device.clone();
        c.out_int(Tensor::<2, Int>::zeros([3, 5], &device));
        c.out_int(Tensor::<2, Int>::ones([1, 7], &device));
        c.out_bool(Tensor::<2, Bool>::zeros([3, 5], &device));
        c.out_bool(Tensor::<2, Bool>::ones([1, 7], &device));
    }
    fn permuted_ints(c) {
        let x = c.int(-9, 10, [2, 3, 5]);
        c.out_int(x.clone().permute([2, 0, 1]));
        c.out_int(x.swap_dims(0, 2));
    }
    fn random(c) {
        // Other numbers than one device's, of the same kind.
        let device = c.device.clone();
        let x = Tensor::<2>::random([5, 7], Distribution::Uniform(2.0, 3.0), &device);
        c.out_bool(x.clone().greater_equal_elem(2.0));
        c.out_bool(x.clone().lower_elem(3.0));
        c.out_bool(x.random_like(Distribution::Bernoulli(1.0)).equal_elem(1.0));
        let x = Tensor::<2, Int>::random([5, 7], Distribution::Uniform(2.0, 9.0), &device);
        c.out_bool(x.clone().greater_equal_elem(2));
        c.out_bool(x.lower_equal_elem(9));
    }
    fn read_together(c) {
        let (x, y, z) = (c.constant([3, 5]), c.int(-9, 10, [4]), c.bool([2, 3]));
        let read = Transaction::default().register(x.exp()).register(y + 1).register(z.bool_not());
        for data in read.execute() {
            c.data(data);
        }
    }
}
