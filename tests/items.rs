//! Batches made item by item, as Burn's batchers do, are what they are on one device, and no operation is recorded per
//! item.

use burn::nn::attention::{SeqLengthOption, generate_padding_mask};
use burn::tensor::{Device, Int, Tensor, TensorData, s};
use burn_dist::{DeviceMesh, OnMesh};
use proptest::prelude::*;

const MESHES: [&str; 3] = ["dp=1", "dp=2", "fsdp=3"];

/// A tensor of distinct numbers.
fn item(shape: [usize; 2], number: usize, device: &Device) -> Tensor<2> {
    let numbers = (0..shape[0] * shape[1]).map(|at| (100 * number + at) as f32);
    let data = TensorData::new(numbers.collect::<Vec<f32>>(), [shape[0] * shape[1]]);
    Tensor::<1>::from_data(data, device).reshape(shape)
}

/// What a program does with items besides joining them.
#[derive(Clone, Debug)]
struct Steps {
    rows: Vec<usize>,
    /// Items that are used again after they were joined, and those that were used before.
    kept: Vec<bool>,
    used: Vec<bool>,
    dim: usize,
    reshaped: bool,
}

fn steps() -> impl Strategy<Value = Steps> {
    (1usize..20).prop_flat_map(|count| {
        let flags = || prop::collection::vec(any::<bool>(), count);
        let rows = prop::collection::vec(1usize..4, count);
        (rows, flags(), flags(), 0usize..2, any::<bool>()).prop_map(
            |(rows, kept, used, dim, reshaped)| Steps {
                rows,
                kept,
                used,
                dim,
                reshaped,
            },
        )
    })
}

/// Joins items and returns everything that can be seen of it.
fn join(steps: &Steps, device: &Device) -> Vec<TensorData> {
    let mut seen = Vec::new();
    let items: Vec<Tensor<2>> = steps
        .rows
        .iter()
        .enumerate()
        .map(|(number, &rows)| match steps.dim {
            0 => item(
                if steps.reshaped { [rows, 3] } else { [3, rows] },
                number,
                device,
            )
            .reshape([rows, 3]),
            _ => item([3, rows], number, device),
        })
        .collect();
    let used: Vec<Tensor<2>> = items
        .iter()
        .zip(&steps.used)
        .filter(|(_, used)| **used)
        .map(|(item, _)| item.clone().add_scalar(1))
        .collect();
    let kept: Vec<Tensor<2>> = items
        .iter()
        .zip(&steps.kept)
        .filter(|(_, kept)| **kept)
        .map(|(item, _)| item.clone())
        .collect();
    let joined = Tensor::cat(items, steps.dim);
    seen.push(joined.clone().mul_scalar(2).into_data());
    seen.extend(used.into_iter().map(Tensor::into_data));
    seen.extend(kept.into_iter().map(|item| item.neg().into_data()));
    seen.push(joined.into_data());
    seen
}

/// Writes texts into a table of padding, then uses the table and writes again.
fn pad(lengths: &[usize], width: usize, device: &Device) -> Vec<TensorData> {
    let texts: Vec<Vec<usize>> = lengths
        .iter()
        .enumerate()
        .map(|(row, &length)| (0..length).map(|at| 10 * row + at).collect())
        .collect();
    let padded = generate_padding_mask(7, texts, SeqLengthOption::Fixed(width), device);
    let table = padded.tensor;
    let doubled = table.clone().mul_scalar(2);
    let ones = || Tensor::<1, Int>::from_data([1, 1], device).reshape([1, 2]);
    // A recorded operation uses the table by now, and then a copy of it is kept.
    let once = table.slice_assign(s![0..1, 0..2], ones());
    let twice = once.clone().slice_assign(s![0..1, 1..3], ones());
    let stepped = twice.clone().slice_assign(s![0..1, 0..3;2], ones());
    let zeros = Tensor::<2, Int>::zeros([2, 3], device);
    let unused = Tensor::<2, Int>::zeros([3, 3], device).add_scalar(4);
    drop(unused);
    let column = Tensor::<1, Int>::from_data([5, 6], device).reshape([2, 1]);
    let columns = zeros.clone().slice_assign(s![.., 1..2], column);
    let tensors = [
        doubled,
        once,
        twice,
        stepped,
        zeros,
        columns,
        table_of_shapes(device),
    ];
    let mut seen: Vec<TensorData> = tensors.map(Tensor::into_data).into();
    seen.push(padded.mask.into_data());
    seen
}

/// A table that is reshaped after items were written.
fn table_of_shapes(device: &Device) -> Tensor<2, Int> {
    let table = Tensor::<2, Int>::zeros([2, 2], device).add_scalar(-3);
    let item = Tensor::<2, Int>::from_data([[8]], device);
    table.slice_assign(s![1..2, 0..1], item).reshape([1, 4])
}

fn same(what: &str, expected: &[TensorData], found: &[TensorData]) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected, found, "{what}: tensor {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn joined_items_are_those_of_one_device(steps in steps()) {
        let expected = join(&steps, &Device::flex());
        for text in MESHES {
            let mesh = DeviceMesh::parse(text).expect("a mesh");
            same(text, &expected, &join(&steps, &mesh.device()));
        }
    }

    #[test]
    fn padded_tables_are_those_of_one_device(
        lengths in prop::collection::vec(1usize..7, 1..12),
        width in 3usize..7,
    ) {
        let expected = pad(&lengths, width, &Device::flex());
        for text in MESHES {
            let mesh = DeviceMesh::parse(text).expect("a mesh");
            same(text, &expected, &pad(&lengths, width, &mesh.device()));
        }
    }
}

/// Returns the operations that a mesh has recorded for `make`, and what it read.
fn recorded(make: impl Fn(&Device) -> TensorData) -> (u64, TensorData) {
    let mesh = DeviceMesh::parse("dp=2").expect("a mesh");
    let data = make(&mesh.device());
    (mesh.device().report().ops, data)
}

#[test]
fn a_batch_records_nothing_per_item() {
    let batch = |count: usize| {
        recorded(|device| {
            let items = (0..count).map(|number| item([1, 4], number, device));
            Tensor::cat(items.collect(), 0).sum_dim(1).into_data()
        })
    };
    let ((few, _), (many, sums)) = (batch(8), batch(200));
    assert_eq!((few, many), (1, 1), "only the sum is recorded");
    assert_eq!(sums.shape().as_slice(), [200, 1]);
}

#[test]
fn texts_of_other_lengths_are_the_same_window() {
    let mesh = DeviceMesh::parse("dp=2").expect("a mesh");
    for step in 0..10 {
        let texts: Vec<Vec<usize>> = (0..6)
            .map(|row| vec![3; 1 + (row * 5 + step) % 9])
            .collect();
        let padded = generate_padding_mask(0, texts, SeqLengthOption::Fixed(12), &mesh.device());
        padded.tensor.float().mean().into_scalar::<f32>();
    }
    let cache = mesh.device().report().cache;
    assert!(cache.misses <= 3, "{cache:?}");
}
