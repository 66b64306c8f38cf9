//! Tensors that are read together are read in one window.

use burn::tensor::{Bool, Int, Tensor, Transaction};
use burn_dist::{DeviceMesh, OnMesh};

use super::mesh;

#[test]
fn a_transaction_is_one_window_on_each_mesh() {
    let (one, other) = (mesh("dp=2,tp=2"), mesh("dp=3"));
    let windows = |mesh: &DeviceMesh| mesh.device().autodiff().report().cache.windows;
    let before = (windows(&one), windows(&other));
    let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &one.device()) * 2.0;
    let ints = Tensor::<1, Int>::arange(0..3, &one.device());
    let bools: Tensor<1, Bool> = x.clone().greater_elem(4.0);
    let y = Tensor::<1>::from_floats([5.0, 6.0], &other.device()) + 1.0;
    let on_host = Tensor::<1>::from_floats([7.0, 8.0], &one.device());
    let read = Transaction::default()
        .register(bools)
        .register(x.clone())
        .register(y)
        .register(on_host)
        .register(ints)
        .register(x.clone())
        .register(x.sum())
        .execute();
    assert_eq!(windows(&one) - before.0, 1);
    assert_eq!(windows(&other) - before.1, 1);
    let bools: Vec<bool> = read[0].iter().collect();
    assert_eq!(bools, [false, false, true, true]);
    let floats = |at: usize| read[at].iter::<f32>().collect::<Vec<_>>();
    assert_eq!(floats(1), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(floats(2), [6.0, 7.0]);
    assert_eq!(floats(3), [7.0, 8.0]);
    assert_eq!(read[4].iter::<i64>().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(floats(5), floats(1));
    assert_eq!(floats(6), [20.0]);
}

#[test]
fn a_fault_answers_every_read_of_its_window() {
    let mesh = mesh("tp=2");
    let x = Tensor::<1>::from_floats([1.0, 2.0], &mesh.device().autodiff()) * 2.0;
    let wrong = x.clone().select(
        0,
        Tensor::<1, Int>::from_ints([0, 99], &mesh.device().autodiff()),
    );
    let read = Transaction::default().register(x).register(wrong);
    let error = read.try_execute().expect_err("index 99 of 2").to_string();
    assert!(error.contains("99"), "{error}");
}
