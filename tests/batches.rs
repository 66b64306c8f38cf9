//! Batches are split however they are made, nothing else is split for one, and work that ranks repeat is told.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::nn::attention::{SeqLengthOption, generate_padding_mask};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LinearConfig, LstmConfig, RotaryEncodingConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, module};
use burn_dist::explanation::Explanation;
use burn_dist::explanation::FewRows;
use burn_dist::{DTensor, DeviceMesh, InputPolicy, OnMesh, ParallelizeWith, Plan};
use proptest::prelude::*;

use crate::weights::deterministic;

const MESHES: [&str; 3] = ["fsdp=2", "fsdp=3", "dp=2,tp=2"];

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::parse(text).expect("a mesh")
}

/// The data axis of a mesh.
fn axis(mesh: &str) -> &str {
    mesh.split('=').next().expect("an axis")
}

fn values<const D: usize>(shape: [usize; D], salt: usize) -> TensorData {
    let values: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|i| ((i * 37 + salt * 101) % 17) as f32 / 16.0 - 0.5)
        .collect();
    TensorData::new(values, shape)
}

/// Returns a tensor, whole and on the ranks if it is one of a mesh.
fn placed<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.device() == Device::flex() {
        true => tensor,
        false => {
            let whole = format!("[{}]", vec!["-"; D].join(", "));
            tensor.redistribute(&whole).expect("a layout")
        }
    }
}

/// Returns the layout of a tensor of a mesh, ending the window.
fn layout<const D: usize>(tensor: &Tensor<D>) -> String {
    match tensor.device() == Device::flex() {
        true => String::new(),
        false => tensor.layout_text().expect("a layout"),
    }
}

/// A result with its layout.
struct Seen {
    name: &'static str,
    layout: String,
    data: TensorData,
}

fn see<const D: usize>(name: &'static str, tensor: Tensor<D>) -> Seen {
    Seen {
        name,
        layout: layout(&tensor),
        data: tensor.into_data(),
    }
}

fn weight(device: &Device) -> Tensor<2> {
    placed(Tensor::from_data(values([16, 16], 1), device))
}

fn embedding(device: &Device) -> Embedding {
    deterministic(EmbeddingConfig::new(62, 16).init(device))
}

/// An item of a batch of images, as Burn's guide makes it.
fn image(index: usize, device: &Device) -> Tensor<3> {
    let image = Tensor::<2>::from_data(values([28, 28], index), device);
    ((image.reshape([1, 28, 28]) / 255) - 0.1307) / 0.3081
}

fn convolution(device: &Device) -> Conv2d {
    deterministic(Conv2dConfig::new([1, 4], [3, 3]).init(device))
}

/// Batches of `rows` rows after their first layer.
fn batches(rows: usize, device: &Device) -> Vec<Seen> {
    let linear = |x: Tensor<2>| module::linear(x, weight(device), None);
    let item = |i: usize| Tensor::<1>::from_data(values([16], i), device);
    let items = || (0..rows).map(item);
    let whole = Tensor::<2>::from_data(values([rows, 16], 3), device);
    let row = |i| Tensor::<2>::from_data(values([1, 16], i), device);
    let lists = (0..rows).map(|i| vec![1 + i; 4 + i]).collect();
    let mask = generate_padding_mask(0, lists, SeqLengthOption::Fixed(16), device);
    let images = || Tensor::cat((0..rows).map(|i| image(i, device)).collect(), 0);
    let convolved = convolution(device).forward(images().reshape([rows, 1, 28, 28]));
    let pairs = |i| Tensor::<2>::from_data(values([2, 16], i), device);
    let nested: Vec<_> = (0..rows / 2)
        .map(|i| Tensor::cat(vec![row(2 * i), row(2 * i + 1) * 0.5], 0))
        .collect();
    let features = vec![
        Tensor::<2>::from_data(values([rows, 8], 5), device),
        Tensor::<2>::from_data(values([rows, 8], 6), device) * 2,
    ];
    vec![
        see("from_data", linear(whole)),
        see("cat", linear(Tensor::cat((0..rows).map(row).collect(), 0))),
        see("stack", linear(Tensor::stack(items().collect(), 0))),
        see(
            "cat of computed items",
            linear(Tensor::cat(
                items().map(|x| x.reshape([1, 16]) / 255 - 0.1).collect(),
                0,
            )),
        ),
        see(
            "cat of pairs",
            linear(Tensor::cat((0..rows / 2).map(pairs).collect(), 0)),
        ),
        see("cat of cats", linear(Tensor::cat(nested, 0))),
        see("cat of features", linear(Tensor::cat(features, 1))),
        see("padding mask", embedding(device).forward(mask.tensor)),
        see("images", images()),
        see("convolution", convolved),
    ]
}

#[test]
fn batches_made_of_items_are_split() {
    let expected = batches(8, &Device::flex());
    for text in MESHES {
        let mesh = mesh(text);
        for (found, expected) in batches(8, &mesh.device()).into_iter().zip(&expected) {
            let ndim = expected.data.shape().len();
            let layout = format!("[{{{}}}{}]", axis(text), ", -".repeat(ndim - 1));
            assert_eq!(found.layout, layout, "{} on {text}", found.name);
            assert_eq!(found.data, expected.data, "{} on {text}", found.name);
        }
    }
}

#[test]
fn whole_is_whole_where_that_is_asked_for() {
    let expected = batches(8, &Device::flex());
    let mesh = DeviceMesh::builder()
        .axis("fsdp", 2)
        .input_policy(InputPolicy::Replicate)
        .build()
        .expect("a mesh");
    for (found, expected) in batches(8, &mesh.device()).into_iter().zip(&expected) {
        assert!(
            !found.layout.contains("fsdp"),
            "{}: {}",
            found.name,
            found.layout
        );
        assert_eq!(found.data, expected.data, "{}", found.name);
    }
}

#[test]
fn a_batch_with_fewer_rows_than_ranks_is_whole() {
    let expected = batches(2, &Device::flex());
    for (found, expected) in batches(2, &mesh("fsdp=3").device())
        .into_iter()
        .zip(&expected)
    {
        assert!(
            !found.layout.contains("fsdp"),
            "{}: {}",
            found.name,
            found.layout
        );
        assert_eq!(found.data, expected.data, "{}", found.name);
    }
}

/// Runs `program` on the mesh and returns its result and what its plans do.
fn explained<const D: usize>(
    device: &Device,
    program: impl FnOnce() -> Tensor<D>,
) -> (String, Explanation) {
    burn_dist::explain(device, || program().layout_text().expect("a layout"))
}

/// Each rank makes its own items and no others: no work is done twice.
#[test]
fn ranks_make_their_own_items() {
    for text in ["fsdp=2", "fsdp=4", "dp=2,fsdp=2"] {
        let mesh = mesh(text);
        let device = mesh.device();
        let weight = weight(&device);
        let _ = weight.layout_text().expect("placed");
        let (_, explanation) = explained(&device, || {
            let images = (0..16)
                .map(|i| image(i, &device).reshape([1, 784]))
                .collect();
            let images = Tensor::cat(images, 0).slice([0..16, 0..16]);
            module::linear(images, weight.clone(), None)
        });
        for axis in &explanation.redundancy.axes {
            assert_eq!(axis.flops, 0.0, "{text}: {explanation}");
        }
        assert!(explanation.collectives.is_empty(), "{text}: {explanation}");
    }
}

// ---------------------------------------------------------------- what is no batch

#[test]
fn position_ids_follow_the_tokens() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        let table = placed(Tensor::<2>::from_data(values([62, 16], 1), &device));
        let _ = table.layout_text();
        let embed = |ids: Tensor<2, Int>| module::embedding(table.clone(), ids);
        let ids = || {
            let ids: Vec<i64> = (0..24).map(|i| (i * 7) % 62).collect();
            Tensor::<2, Int>::from_data(TensorData::new(ids, [4, 6]), &device)
        };
        let given = || TensorData::new((0..6i64).collect(), [1, 6]);
        let of_kind = |kind: &str| match kind {
            "repeated" => Tensor::<1, Int>::arange(0..6, &device)
                .reshape([1, 6])
                .repeat_dim(0, 4),
            "expanded" => Tensor::<1, Int>::arange(0..6, &device).expand([4, 6]),
            "one row" => Tensor::<1, Int>::arange(0..6, &device).unsqueeze(),
            "given" => Tensor::<2, Int>::from_data(given(), &device).expand([4, 6]),
            _ => Tensor::<2, Int>::from_data(given(), &device),
        };
        for kind in ["repeated", "expanded", "one row", "given", "given once"] {
            let (layout, explanation) = explained(&device, || embed(of_kind(kind)) + embed(ids()));
            assert_eq!(layout, format!("[{{{}}}, -, -]", axis(text)), "{kind}");
            assert!(explanation.collectives.is_empty(), "{kind}: {explanation}");
        }
    }
}

#[test]
fn tables_follow_what_they_are_used_with() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        let x = Tensor::<4>::from_data(values([4, 2, 6, 8], 1), &device) * 1.0;
        let x = x
            .redistribute(&format!("[{{{}}}, -, -, -]", axis(text)))
            .expect("a layout");
        let _ = x.layout_text();
        for before in [false, true] {
            let rope = RotaryEncodingConfig::new(16, 8).init(&device);
            if before {
                // The table outlives the window that makes it.
                device.sync().expect("a mesh");
            }
            let (layout, explanation) = explained(&device, || rope.forward(x.clone()));
            assert_eq!(layout, format!("[{{{}}}, -, -, -]", axis(text)));
            assert!(explanation.collectives.is_empty(), "{explanation}");
        }
        // A table of data, and one computed from it.
        let bias = || Tensor::<4>::from_data(values([1, 2, 6, 8], 1), &device);
        let (_, explanation) = explained(&device, || x.clone() * (bias() * 2.0) + bias());
        assert!(explanation.collectives.is_empty(), "{explanation}");
    }
}

#[test]
fn class_weights_are_whole() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        let loss = CrossEntropyLossConfig::new()
            .with_weights(Some(vec![0.5, 1.0, 2.0, 4.0]))
            .init(&device);
        let weight = Tensor::<2>::from_data(values([16, 4], 2), &device);
        let weight = placed(weight);
        let _ = weight.layout_text();
        for _ in 0..2 {
            let (_, explanation) = explained(&device, || {
                let x = Tensor::from_data(values([8, 16], 4), &device);
                let targets = Tensor::from_ints([0, 1, 2, 3, 0, 1, 2, 3], &device);
                loss.forward(module::linear(x, weight.clone(), None), targets)
            });
            // Sums of losses and of weights.
            for collective in &explanation.collectives {
                assert_eq!(
                    (collective.kind, &collective.shape[..]),
                    ("all_reduce", &[1][..])
                );
            }
        }
    }
}

#[test]
fn views_take_the_batch_along() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        let split = axis(text);
        let weight = weight(&device);
        let _ = weight.layout_text();
        // [batch, sequence, features] as [sequence, batch, features].
        let (layout, explanation) = explained(&device, || {
            let x = Tensor::<3>::from_data(values([4, 6, 16], 1), &device) * 0.5;
            module::linear(x.swap_dims(0, 1), weight.clone(), None)
        });
        assert_eq!(layout, format!("[-, {{{split}}}, -]"));
        assert!(explanation.collectives.is_empty(), "{explanation}");
        // Steps of [sequence, batch, features], one by one.
        let (layout, explanation) = explained(&device, || {
            let x = Tensor::<3>::from_data(values([6, 4, 16], 1), &device) * 0.5;
            let step = |t: usize| x.clone().slice([t..t + 1, 0..4]).reshape([4, 16]);
            (0..6)
                .map(|t| module::linear(step(t), weight.clone(), None))
                .reduce(|a, b| a + b)
                .expect("steps")
        });
        assert_eq!(layout, format!("[{{{split}}}, -]"));
        assert!(explanation.collectives.is_empty(), "{explanation}");
    }
}

#[test]
fn recurrent_layers_split_the_batch() {
    for batch_first in [true, false] {
        let run = |lstm: &burn::nn::Lstm, device: &Device| {
            let shape = if batch_first { [4, 6, 3] } else { [6, 4, 3] };
            let x = Tensor::<3>::from_data(values(shape, 1), device);
            lstm.forward(x, None).0
        };
        let mesh = mesh("fsdp=2");
        let device = mesh.device();
        let config = LstmConfig::new(3, 5, true).with_batch_first(batch_first);
        let lstm = deterministic(config.init(&device))
            .parallelize_with(mesh.shape(), &Plan::new())
            .expect("a plan");
        let _ = run(&lstm, &device).into_data();
        let (layout, explanation) = explained(&device, || run(&lstm, &device));
        let expected = if batch_first {
            "[{fsdp}, -, -]"
        } else {
            "[-, {fsdp}, -]"
        };
        assert_eq!(layout, expected);
        // Parameters are gathered, nothing else is moved.
        for collective in &explanation.collectives {
            assert_eq!(collective.kind, "all_gather", "{explanation}");
            assert!(collective.path.is_some(), "{explanation}");
        }
    }
}

#[test]
fn parameters_made_from_data_are_whole() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        // Not parallelized: a weight and a gain as a record has them.
        let weight = Tensor::<2>::from_data(values([16, 16], 1), &device);
        let gain = Tensor::<1>::from_data(values([16], 2), &device);
        for _ in 0..2 {
            let (layout, explanation) = explained(&device, || {
                let x = Tensor::<2>::from_data(values([8, 16], 3), &device);
                let x = gain.clone().unsqueeze() * module::linear(x, weight.clone(), None);
                module::linear(x, weight.clone().transpose(), None)
            });
            assert_eq!(layout, format!("[{{{}}}, -]", axis(text)), "{explanation}");
            assert!(explanation.collectives.is_empty(), "{explanation}");
        }
        assert_eq!(weight.layout_text().expect("a layout"), "[-, -]");
    }
}

// ---------------------------------------------------------------- beyond a window

#[test]
fn items_of_an_earlier_window_make_a_batch() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        // The window ends after each number of items, and in the middle of one.
        for ended in 0..=8 {
            let items = (0..8).map(|i| {
                let image = Tensor::<2>::from_data(values([28, 28], i), &device) / 255;
                if i == ended {
                    device.sync().expect("a mesh");
                }
                (image.reshape([1, 28, 28]) - 0.1307) / 0.3081
            });
            let batch = Tensor::cat(items.collect(), 0);
            if ended == 8 {
                device.sync().expect("a mesh");
            }
            let expected = (0..8).map(|i| image(i, &Device::flex()));
            let expected = Tensor::cat(expected.collect(), 0);
            let layout = batch.layout_text().expect("a layout");
            assert_eq!(layout, format!("[{{{}}}, -, -]", axis(text)), "{ended}");
            assert_eq!(batch.into_data(), expected.into_data(), "{ended}");
        }
    }
}

#[test]
fn masks_of_an_earlier_window_stay_batches() {
    for text in MESHES {
        let mesh = mesh(text);
        let device = mesh.device();
        for ended in 0..7 {
            let mut mask = Tensor::<2, Int>::zeros([6, 5], &device);
            for row in 0..6 {
                if row == ended {
                    device.sync().expect("a mesh");
                }
                let tokens: Vec<i64> = (0..=row as i64 % 5).collect();
                let tokens = TensorData::new(tokens.clone(), [1, tokens.len()]);
                let tokens = Tensor::from_data(tokens, &device);
                mask = mask.slice_assign([row..row + 1, 0..row % 5 + 1], tokens);
            }
            let layout = mask.layout_text().expect("a layout");
            assert_eq!(
                layout,
                format!("[{{{}}}, -]", axis(text)),
                "after {ended} rows"
            );
            let expected: Vec<i64> = (0..6)
                .flat_map(|row| (0..5).map(move |i| if i <= row % 5 { i } else { 0 }))
                .collect();
            let expected = TensorData::new(expected, [6, 5]);
            mask.into_data().assert_eq(&expected, false);
        }
    }
}

#[test]
fn what_outlives_its_window_is_placed_as_the_policy_says() {
    let mesh = mesh("fsdp=2");
    let device = mesh.device();
    let batch = Tensor::<2>::from_data(values([8, 16], 1), &device) / 255;
    let table = Tensor::<1, Int>::arange(0..8, &device).float() * 0.5;
    device.sync().expect("a mesh");
    assert_eq!(batch.layout_text().expect("a layout"), "[{fsdp}, -]");
    assert_eq!(table.layout_text().expect("a layout"), "[-]");
}

// ---------------------------------------------------------------- any program

/// One step of a random program on matrices of integers, whose sums are exact.
#[derive(Clone, Debug)]
enum Step {
    Enter(usize, usize),
    Constant(usize, usize),
    Table(usize),
    Add(usize, usize),
    Scale(usize),
    Cat(usize, usize, usize),
    Stack(usize, usize),
    Assign(usize, usize, usize),
    Cut(usize, usize),
    Turn(usize),
    Fold(usize),
    Sum(usize, usize),
    Product(usize),
    EndWindow,
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0..64usize;
    prop_oneof![
        3 => (1..7usize, 1..7usize).prop_map(|(r, c)| Step::Enter(r, c)),
        1 => (1..7usize, 1..7usize).prop_map(|(r, c)| Step::Constant(r, c)),
        1 => (1..7usize).prop_map(Step::Table),
        3 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Add(a, b)),
        2 => any.clone().prop_map(Step::Scale),
        3 => (any.clone(), any.clone(), 0..2usize).prop_map(|(a, b, d)| Step::Cat(a, b, d)),
        2 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Stack(a, b)),
        3 => (any.clone(), any.clone(), any.clone()).prop_map(|(a, b, c)| Step::Assign(a, b, c)),
        2 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Cut(a, b)),
        2 => any.clone().prop_map(Step::Turn),
        2 => any.clone().prop_map(Step::Fold),
        1 => (any.clone(), 0..2usize).prop_map(|(a, d)| Step::Sum(a, d)),
        1 => any.prop_map(Step::Product),
        1 => Just(Step::EndWindow),
    ]
}

fn integers(rows: usize, columns: usize, salt: usize) -> TensorData {
    let values: Vec<f32> = (0..rows * columns)
        .map(|i| ((i * 7 + salt * 3) % 5) as f32 - 2.0)
        .collect();
    TensorData::new(values, [rows, columns])
}

/// Runs a program and reads all its tensors.
fn run(program: &[Step], device: &Device) -> Vec<TensorData> {
    let mut made = vec![Tensor::<2>::from_data(integers(6, 4, 0), device)];
    for (salt, step) in program.iter().enumerate() {
        let at = |index: &usize| made[index % made.len()].clone();
        let dims = |x: &Tensor<2>| x.dims();
        let next = match step {
            Step::Enter(rows, columns) => {
                Some(Tensor::from_data(integers(*rows, *columns, salt), device))
            }
            Step::Constant(rows, columns) => Some(Tensor::ones([*rows, *columns], device)),
            Step::Table(size) => {
                let table = Tensor::<1, Int>::arange(0..*size as i64, device);
                Some(table.float().unsqueeze())
            }
            Step::Add(a, b) => {
                let (a, b) = (at(a), at(b));
                let fits = dims(&a)
                    .iter()
                    .zip(dims(&b))
                    .all(|(&a, b)| a == b || a == 1 || b == 1);
                fits.then(|| a + b)
            }
            Step::Scale(a) => Some(at(a) * 2.0),
            Step::Cat(a, b, dim) => {
                let (a, b) = (at(a), at(b));
                let fits = dims(&a)[1 - dim] == dims(&b)[1 - dim] && dims(&a)[*dim] < 20;
                fits.then(|| Tensor::cat(vec![a, b], *dim))
            }
            Step::Stack(a, b) => {
                let (a, b) = (at(a), at(b));
                let [rows, columns] = dims(&a);
                let fits = dims(&a) == dims(&b) && rows < 10;
                fits.then(|| Tensor::stack::<3>(vec![a, b], 0).reshape([2 * rows, columns]))
            }
            Step::Assign(a, b, start) => {
                let (a, b) = (at(a), at(b));
                let ([rows, columns], [r, c]) = (dims(&a), dims(&b));
                (r <= rows && c <= columns).then(|| {
                    let (y, x) = (start % (rows - r + 1), start % (columns - c + 1));
                    a.slice_assign([y..y + r, x..x + c], b)
                })
            }
            Step::Cut(a, start) => {
                let a = at(a);
                let [rows, columns] = dims(&a);
                Some(a.slice([start % rows..rows, 0..columns.div_ceil(2)]))
            }
            Step::Turn(a) => Some(at(a).transpose()),
            Step::Fold(a) => {
                let a = at(a);
                let [rows, columns] = dims(&a);
                Some(a.reshape([columns, rows]))
            }
            Step::Sum(a, dim) => Some(at(a).sum_dim(*dim)),
            Step::Product(a) => {
                let a = at(a);
                let weight = Tensor::from_data(integers(dims(&a)[1], 3, 1), device);
                Some(a.matmul(placed(weight)))
            }
            Step::EndWindow => {
                device.sync().expect("a device");
                None
            }
        };
        made.extend(next);
    }
    made.into_iter().map(Tensor::into_data).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_program_of_items_has_its_values(program in prop::collection::vec(step(), 1..24)) {
        let expected = run(&program, &Device::flex());
        for text in MESHES {
            let found = run(&program, &mesh(text).device());
            for (found, expected) in found.iter().zip(&expected) {
                found.assert_eq(expected, false);
            }
        }
    }
}

// ---------------------------------------------------------------- work done more than once

#[test]
fn redundancy_of_a_linear_layer() {
    let mesh = mesh("dp=2,tp=2");
    let device = mesh.device();
    let weight = weight(&device);
    let _ = weight.layout_text();
    let x = || Tensor::<2>::from_data(values([8, 16], 1), &device);
    // (layout of the input, of the weight, flops of all ranks, shares along dp and tp); once around it is 2 * 8 * 16 *
    // 16.
    let once = 2.0 * 8.0 * 16.0 * 16.0;
    for (input, columns, flops, dp, tp) in [
        (None, "[-, -]", 2.0 * once, 0.0, 0.5),
        (None, "[-, {tp}]", once, 0.0, 0.0),
        (None, "[{tp}, -]", once, 0.0, 0.0),
        (Some("[-, -]"), "[-, -]", 4.0 * once, 0.5, 0.5),
        (Some("[-, -]"), "[-, {tp}]", 2.0 * once, 0.5, 0.0),
    ] {
        let weight = weight.clone().redistribute(columns).expect("a layout");
        let _ = weight.layout_text();
        let before = device.report().redundancy;
        let (_, explanation) = explained(&device, || {
            let x = match input {
                Some(layout) => x().redistribute(layout).expect("a layout"),
                None => x(),
            };
            module::linear(x, weight.clone(), None)
        });
        let redundancy = &explanation.redundancy;
        assert_eq!(redundancy.flops, flops, "{input:?} {columns}: {redundancy}");
        assert_eq!(
            redundancy.share("dp"),
            dp,
            "{input:?} {columns}: {redundancy}"
        );
        assert_eq!(
            redundancy.share("tp"),
            tp,
            "{input:?} {columns}: {redundancy}"
        );
        assert_eq!(redundancy.share("no such axis"), 0.0);
        let after = device.report().redundancy;
        assert_eq!(
            after.flops - before.flops,
            flops,
            "the report adds windows up"
        );
        assert!(
            explanation.to_string().contains("done more than once: "),
            "{explanation}"
        );
    }
}

/// However the rows come into a window, and whatever tables they meet there.
#[test]
fn all_ranks_compute_rows_that_are_fewer_than_they_are() {
    let mesh = mesh("dp=4");
    let device = mesh.device();
    let layer = LinearConfig::new(16, 16).with_bias(false).init(&device);
    let model = (layer, embedding(&device)).parallelize_with(&mesh, &Plan::new());
    let (layer, table) = model.expect("it fits");
    let _ = (
        layer.weight.val().layout_text(),
        table.weight.val().layout_text(),
    );
    let linear = |x: Tensor<3>| layer.forward(x);
    let all = |rows: usize, made: &dyn Fn() -> Tensor<3>| {
        let (_, explanation) = explained(&device, made);
        let work = &explanation.redundancy;
        assert!(work.share("dp") > 0.7, "{explanation}");
        assert_eq!(work.few_rows, Some(FewRows { rows, ranks: 4 }));
    };
    all(3, &|| {
        linear(Tensor::<3>::from_data(values([3, 1, 16], 1), &device))
    });
    // Two texts of six tokens, which a table of six positions rotates: neither is a batch of six rows or more.
    all(2, &|| {
        let ids = Tensor::<2, Int>::from_data(values([2, 6], 1), &device);
        let rotation = Tensor::<3>::from_data(values([1, 6, 16], 2), &device);
        linear(table.forward(ids) * rotation)
    });
    all(2, &|| {
        let x = Tensor::<3>::from_data(values([2, 6, 16], 1), &device);
        let rotation = Tensor::<2>::from_data(values([16, 16], 2), &device);
        linear(linear(x).matmul(rotation.unsqueeze()))
    });
}

/// Collects the messages of warnings.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns the messages so far.
    pub(crate) fn messages(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().expect("no panic").push(message.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Trains a linear layer of `width` for some steps, and returns the warnings.
fn warnings(text: &str, width: usize, rows: usize, parallelize: Option<Plan>) -> Vec<String> {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        let mut model = LinearConfig::new(width, width).init(&device);
        if let Some(plan) = parallelize {
            model = model.parallelize_with(mesh.shape(), &plan).expect("a plan");
        }
        let mut optimizer = SgdConfig::new().init();
        for step in 0..3 {
            let rows = (0..rows).map(|i| values([width], i + step));
            let rows = rows.map(|row| Tensor::<1>::from_data(row, &device));
            let x: Tensor<2> = Tensor::stack(rows.collect(), 0);
            let loss = model.forward(x).powi_scalar(2).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
            let _ = loss.into_scalar::<f32>();
        }
    });
    let found = warnings.messages();
    found
        .into_iter()
        .filter(|text| text.contains("more than once"))
        .collect()
}

#[test]
fn repeated_work_is_told_once() {
    crate::in_a_process("batches::listen_to_warnings");
}

#[test]
#[ignore = "a child process: whether a warning is listened to is found out once, by whichever thread comes first"]
fn listen_to_warnings() {
    // Nobody splits the layer over tp: told once, with the axis, an operation and the way out.
    for plan in [None, Some(Plan::new().replicate("**"))] {
        let found = warnings("dp=2,tp=2", 32, 128, plan);
        assert_eq!(found.len(), 1, "{found:?}");
        for part in ["50 %", "along tp", "of [128, 32]", ".parallelize"] {
            assert!(found[0].contains(part), "no `{part}` in: {}", found[0]);
        }
        assert!(!found[0].contains("along dp"), "{}", found[0]);
    }
    // Split over all axes, with few rows too: nothing to tell.
    for rows in [8, 128] {
        assert_eq!(
            warnings("dp=2", 32, rows, Some(Plan::new())),
            Vec::<String>::new()
        );
    }
    assert_eq!(
        warnings("fsdp=2", 32, 128, Some(Plan::new())),
        Vec::<String>::new()
    );
    // Fewer rows than ranks: told once, with both numbers and the way out.
    let found = warnings("dp=4", 32, 3, Some(Plan::new()));
    assert_eq!(found.len(), 1, "{found:?}");
    for part in [
        "75 %",
        "along dp",
        "3 row(s) of data cannot be split over the 4 ranks",
        "at least 4 rows",
    ] {
        assert!(found[0].contains(part), "no `{part}` in: {}", found[0]);
    }
}
