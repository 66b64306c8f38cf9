//! Every op on inputs that are views of larger, permuted, flipped or expanded buffers: layouts make such views where
//! Burn's programs have none.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::TensorMetadata;
use burn_flex::{FlexTensor, Layout};

use super::*;

/// Values as views of other buffers, each with its name and the values that it shows.
fn views(data: &TensorData) -> Vec<(&'static str, FlexTensor, TensorData)> {
    let rank = data.shape().num_dims();
    if rank == 0 || matches!(data.dtype(), DType::QFloat(_)) {
        return Vec::new();
    }
    let whole = FlexTensor::from_data(data.clone());
    // The middle one of three copies, along every dim.
    let part = |tensor: FlexTensor| {
        (0..rank).fold(tensor, |tensor, dim| {
            let len = tensor.layout().shape()[dim];
            burn_flex::ops::cat::cat(vec![tensor.clone(); 3], dim).narrow(dim, len, len)
        })
    };
    let reversed: Vec<usize> = (0..rank).rev().collect();
    let permuted =
        |tensor: FlexTensor| tensor.permute(&reversed).to_contiguous().permute(&reversed);
    let flip = |tensor: FlexTensor| {
        let layout = tensor.layout().flip(&[rank - 1]);
        tensor.with_layout(layout)
    };
    let mut views = vec![
        ("part", part(whole.clone())),
        ("permuted", permuted(whole.clone())),
        ("part of a permuted one", part(permuted(whole.clone()))),
        ("permuted part", {
            let wide = part(whole.permute(&reversed));
            wide.permute(&reversed)
        }),
        ("flipped", flip(flip(whole.clone()).to_contiguous())),
    ];
    for dim in 0..rank {
        let mut strides = whole.layout().strides().to_vec();
        strides[dim] = 0;
        let layout = Layout::new(whole.shape(), strides, 0);
        views.push(("expanded", whole.clone().with_layout(layout)));
    }
    let shown = |(name, view): (&'static str, FlexTensor)| {
        let data = view.clone().into_data();
        (name, view, data)
    };
    views.into_iter().map(shown).collect()
}

/// Runs an op with each of its inputs in turn shown as each view, and says what differs from the same values in buffers
/// of their own. Returns how many results were compared.
fn compare(op: &OperationIr, data: &[TensorData], wrong: &mut Vec<String>) -> usize {
    let mut compared = 0;
    for (at, viewed) in op.inputs().enumerate() {
        for (name, view, shown) in views(&data[at]) {
            let mut data = data.to_vec();
            data[at] = shown;
            let want = run(op, &data);
            let mut env = Map::default();
            for (tensor, data) in op.inputs().zip(&data) {
                env.set(tensor, data.clone());
            }
            let handle = match viewed.dtype {
                DType::Bool(_) => Flex::bool_tensor_handle(view),
                dtype if dtype.is_float() => Flex::float_tensor_handle(view),
                _ => Flex::int_tensor_handle(view),
            };
            env.put(viewed, handle);
            let done = catch_unwind(AssertUnwindSafe(|| {
                execute::<Flex, _>(op, &mut env).unwrap();
            }));
            if done.is_err() {
                wrong.push(format!("{op:?}: panic of input {at}, {name}"));
                continue;
            }
            for (out, want) in op.outputs().zip(want) {
                let got = env.read(out);
                let (got, want): (Vec<f64>, Vec<f64>) =
                    (got.iter().collect(), want.iter().collect());
                // Kernels sum a view in another order.
                let is_close = |(got, want): (&f64, &f64)| {
                    got == want
                        || (got.is_nan() && want.is_nan())
                        || (got - want).abs() <= 1e-5 * want.abs().max(1.0)
                };
                if !got.iter().zip(&want).all(is_close) {
                    wrong.push(format!("{op:?}: input {at}, {name}: {got:?}, not {want:?}"));
                }
                compared += 1;
            }
        }
    }
    compared
}

#[test]
fn every_op_takes_views() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for op in samples().into_iter().filter(|op| !beyond_interpreter(op)) {
        compared += compare(&op, &inputs(&op, 1), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 2_000, "compared only {compared} tensors");
}

#[test]
fn views_are_reduced_along_every_dim() {
    use NumericOperationIr::{CumSum, MaxDim, MeanDim, ProdDim, SumDim};
    let mut wrong = Vec::new();
    for shape in [
        &[5][..],
        &[3, 5],
        &[5, 1],
        &[1, 5],
        &[2, 3, 4],
        &[1, 3, 5],
        &[3, 1, 2],
    ] {
        for dim in 0..shape.len() {
            let id = || TensorId::new(1);
            let reduced = || ReduceDimOpIr::create(tensor(0, shape, FLOAT), dim, 1, id);
            let scanned = DimOpIr::create(tensor(0, shape, FLOAT), dim, id);
            let ops = [
                SumDim(reduced()),
                MeanDim(reduced()),
                ProdDim(reduced()),
                MaxDim(reduced()),
                CumSum(scanned),
            ];
            for op in ops {
                let op = OperationIr::NumericFloat(FLOAT, op);
                compare(&op, &inputs(&op, 1), &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_flex_reads_rightly_is_not_copied() {
    let data = TensorData::new((0..24).map(|i| i as f32).collect::<Vec<f32>>(), [4, 6]);
    let whole = FlexTensor::from_data(data);
    let transposed = whole.transpose(0, 1);
    let column = transposed.narrow(0, 0, 3).narrow(1, 0, 1);
    for (view, dim) in [
        (whole, Some(0)),
        (transposed.clone(), Some(0)),
        (transposed, None),
        (column, Some(0)),
    ] {
        let read = crate::burn::reducible(view.clone(), dim);
        assert_eq!(
            read.bytes().as_ptr(),
            view.bytes().as_ptr(),
            "{:?}",
            view.layout()
        );
    }
}
