//! Reading and writing by index.

use burn::tensor::{IndexingUpdateOp, Tensor};

use super::harness::cases;

cases! {
    fn select(c) {
        c.exact();
        let x = c.float([5, 7]);
        let (rows, columns) = (c.int(0, 5, [4]), c.int(0, 7, [9]));
        c.out(x.clone().select(0, rows));
        c.out(x.select(1, columns));
        let y = c.float([3, 1, 2]);
        let one = c.int(0, 2, [1]);
        c.out(y.select(2, one));
    }
    fn select_assign(c) {
        c.exact();
        let (x, y) = (c.float([5, 7]), c.float([4, 7]));
        let rows = c.int(0, 5, [4]);
        c.out(x.clone().select_assign(0, rows, y, IndexingUpdateOp::Add));
        let (y, columns) = (c.float([5, 3]), c.int(0, 7, [3]));
        c.out(x.select_assign(1, columns, y, IndexingUpdateOp::Add));
    }
    fn gather(c) {
        c.exact();
        let x = c.float([5, 7]);
        let (rows, columns) = (c.int(0, 5, [3, 7]), c.int(0, 7, [5, 4]));
        c.out(x.clone().gather(0, rows));
        c.out(x.gather(1, columns));
        let y = c.float([2, 3, 5]);
        let indices = c.int(0, 5, [2, 3, 1]);
        c.out(y.gather(2, indices));
    }
    fn scatter(c) {
        c.exact();
        let (x, y) = (c.float([5, 7]), c.float([3, 7]));
        let rows = c.int(0, 5, [3, 7]);
        c.out(x.clone().scatter(0, rows, y, IndexingUpdateOp::Add));
        let (y, columns) = (c.float([5, 4]), c.int(0, 7, [5, 4]));
        c.out(x.scatter(1, columns, y, IndexingUpdateOp::Add));
    }
    fn gather_nd(c) {
        c.exact();
        let x = c.constant([3, 5, 2]);
        let indices = c.int(0, 3, [4, 1]);
        c.value(x.clone().gather_nd::<2, 3>(indices));
        let indices = c.int(0, 3, [4, 2]);
        c.value(x.gather_nd::<2, 2>(indices));
    }
    fn scatter_nd(c) {
        c.exact();
        let (x, y) = (c.constant([5, 3]), c.constant([4, 3]));
        let indices = c.int(0, 5, [4, 1]);
        c.value(x.scatter_nd::<2, 2>(indices, y, IndexingUpdateOp::Add));
    }
    fn take(c) {
        c.exact();
        let x = c.float([5, 7]);
        let indices = c.int(0, 5, [2, 3]);
        c.out(x.take::<2, 3>(0, indices));
    }
    fn ints(c) {
        let x = c.int(-9, 10, [5, 7]);
        let rows = c.int(0, 5, [4]);
        c.out_int(x.clone().select(0, rows.clone()));
        let y = c.int(-9, 10, [4, 7]);
        c.out_int(x.clone().select_assign(0, rows, y, IndexingUpdateOp::Add));
        let columns = c.int(0, 7, [5, 4]);
        c.out_int(x.clone().gather(1, columns.clone()));
        let y = c.int(-9, 10, [5, 4]);
        c.out_int(x.scatter(1, columns, y, IndexingUpdateOp::Add));
    }
    fn bools(c) {
        let x = c.bool([5, 7]);
        let rows = c.int(0, 5, [4]);
        c.out_bool(x.clone().select(0, rows));
        let columns = c.int(0, 7, [5, 4]);
        c.out_bool(x.gather(1, columns));
    }
    fn one_hot(c) {
        let x = c.int(0, 5, [7]);
        c.out_int(x.one_hot::<2>(5));
        let x = c.int(0, 3, [2, 4]);
        c.out_int(x.clone().one_hot_fill::<3>(3, 5.0, -1.0, -1));
        c.out_int(x.clone().one_hot_fill::<3>(3, 5.0, 0.0, 0));
        c.value(x.float().one_hot::<3>(3));
    }
    fn nonzero(c) {
        let x = c.bool([3, 5]);
        c.out_int(x.clone().argwhere());
        for dim in x.nonzero() {
            c.out_int(dim);
        }
    }
    fn indices_from_argmax(c) {
        c.exact();
        let x = c.float([4, 6]);
        let best = x.clone().argmax(1);
        c.out(x.clone().gather(1, best.clone()));
        c.out(x.select(0, best.squeeze_dim::<1>(1).remainder_scalar(4)));
    }
    fn read_twice(c) {
        c.exact();
        let table = c.float([6, 3]);
        let (a, b) = (c.int(0, 6, [5]), c.int(0, 6, [4]));
        let rows = Tensor::cat(vec![table.clone().select(0, a), table.select(0, b)], 0);
        c.out(rows);
    }
    fn ints_nd(c) {
        let (x, y) = (c.int(-9, 10, [5, 3]), c.int(-9, 10, [4, 3]));
        let indices = c.int(0, 5, [4, 1]);
        // Burn's autodiff has neither.
        let (x, y, indices) = (x.inner(), y.inner(), indices.inner());
        c.out_int(Tensor::from_inner(x.clone().gather_nd::<2, 2>(indices.clone())));
        c.out_int(Tensor::from_inner(x.scatter_nd::<2, 2>(indices, y, IndexingUpdateOp::Add)));
    }
    fn bools_written(c) {
        let (x, y) = (c.bool([5, 7]), c.bool([4, 7]));
        let rows = c.int(0, 5, [4]);
        c.out_bool(x.clone().select_assign(0, rows, y, IndexingUpdateOp::Add));
        let (y, columns) = (c.bool([5, 4]), c.int(0, 7, [5, 4]));
        c.out_bool(x.scatter(1, columns, y, IndexingUpdateOp::Add));
    }
}
