//! Products.

use burn::tensor::DType;
use burn::tensor::linalg;

use super::harness::cases;

cases! {
    fn matmul_2d(c) {
        for (m, k, n) in [(3, 5, 2), (4, 6, 8), (1, 7, 3), (5, 1, 3), (3, 4, 1)] {
            let (x, y) = (c.float([m, k]), c.float([k, n]));
            c.out(x.matmul(y));
        }
    }
    fn matmul_3d(c) {
        for (b, m, k, n) in [(2, 3, 5, 2), (3, 4, 6, 1), (1, 2, 3, 4)] {
            let (x, y) = (c.float([b, m, k]), c.float([b, k, n]));
            c.out(x.matmul(y));
        }
    }
    fn matmul_4d(c) {
        let (x, y) = (c.float([2, 3, 2, 5]), c.float([2, 3, 5, 4]));
        c.out(x.matmul(y));
    }
    fn matmul_broadcast(c) {
        let (x, y) = (c.float([2, 3, 5]), c.float([1, 5, 2]));
        c.out(x.matmul(y));
        let (x, y) = (c.float([1, 3, 5]), c.float([4, 5, 2]));
        c.out(x.matmul(y));
        let (x, y) = (c.float([2, 1, 3, 5]), c.float([1, 4, 5, 2]));
        c.out(x.matmul(y));
    }
    fn matmul_transposed(c) {
        let (x, y) = (c.float([3, 5]), c.float([4, 5]));
        c.out(x.clone().matmul(y.clone().transpose()));
        c.out(y.matmul(x.clone().transpose()));
        c.out(x.clone().transpose().matmul(x));
    }
    fn matmul_int(c) {
        let (x, y) = (c.int(-9, 10, [3, 5]), c.int(-9, 10, [5, 2]));
        c.out_int(x.matmul(y));
        let (x, y) = (c.int(-9, 10, [2, 3, 5]), c.int(-9, 10, [2, 5, 2]));
        c.out_int(x.matmul(y));
    }
    fn matmul_f64(c) {
        let (x, y) = (c.float([3, 5]).cast(DType::F64), c.float([5, 2]).cast(DType::F64));
        c.out(x.matmul(y).cast(DType::F32));
    }
    fn matmul_chain(c) {
        let (x, y, z) = (c.float([3, 5]), c.float([5, 4]), c.float([4, 2]));
        c.out(x.matmul(y).matmul(z) * 0.25);
    }
    fn dot(c) {
        let (x, y) = (c.float([7]), c.float([7]));
        c.out(x.dot(y));
    }
    fn outer(c) {
        let (x, y) = (c.float([3]), c.float([5]));
        c.out(linalg::outer::<1, 2, _>(x, y));
    }
    fn matvec(c) {
        let (x, y) = (c.float([3, 5]), c.float([5]));
        c.out(linalg::matvec::<2, 1, _>(x, y));
    }
    fn cross(c) {
        let (x, y) = (c.float([5, 3]), c.float([5, 3]));
        c.out(x.cross(y, 1));
    }
    fn determinant(c) {
        let x = c.constant([2, 3, 3]);
        c.value(linalg::det::<3, 2, 1>(x));
        let x = c.constant([1, 4, 4]);
        c.value(linalg::det::<3, 2, 1>(x));
    }
}
