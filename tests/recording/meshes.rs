//! Tensors of two meshes in one operation are an error there, whatever the operation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::module;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor};
use burn_dist::DeviceMesh;

use super::mesh;

/// Tensors that an operation may be given.
#[derive(Clone)]
struct On {
    device: Device,
    float: Tensor<2>,
    row: Tensor<1>,
    int: Tensor<2, Int>,
    ids: Tensor<1, Int>,
    bool: Tensor<2, Bool>,
    image: Tensor<4>,
}

fn on(mesh: &DeviceMesh) -> On {
    let device = mesh.device().autodiff();
    On {
        float: Tensor::ones([4, 4], &device),
        row: Tensor::ones([4], &device),
        int: Tensor::ones([4, 4], &device),
        ids: Tensor::from_ints([0, 1, 2, 3], &device),
        bool: Tensor::<2>::ones([4, 4], &device).bool(),
        image: Tensor::ones([1, 4, 4, 4], &device),
        device,
    }
}

type Row = (&'static str, fn(On, On));

/// Every function of Burn that takes two tensors: `(a, b)` are on two meshes.
const FUNCTIONS: &[Row] = &[
    ("add", |a, b| drop(a.float + b.float)),
    ("sub", |a, b| drop(a.float - b.float)),
    ("mul", |a, b| drop(a.float * b.float)),
    ("div", |a, b| drop(a.float / b.float)),
    ("remainder", |a, b| drop(a.float.remainder(b.float))),
    ("powf", |a, b| drop(a.float.powf(b.float))),
    ("powi", |a, b| drop(a.float.powi(b.float))),
    ("atan2", |a, b| drop(a.float.atan2(b.float))),
    ("max_pair", |a, b| drop(a.float.max_pair(b.float))),
    ("matmul", |a, b| drop(a.float.matmul(b.float))),
    ("cross", |a, b| {
        let (x, y) = (a.float.slice([0..4, 0..3]), b.float.slice([0..4, 0..3]));
        drop(x.cross(y, 1))
    }),
    ("cat", |a, b| {
        drop(Tensor::cat(vec![a.float.clone(), a.float, b.float], 0))
    }),
    ("stack", |a, b| {
        drop(Tensor::stack::<3>(vec![a.float, b.float], 0))
    }),
    ("gather", |a, b| drop(a.float.gather(0, b.int))),
    ("scatter", |a, b| {
        drop(
            a.float
                .clone()
                .scatter(0, b.int, a.float.clone(), IndexingUpdateOp::Add),
        )
    }),
    ("scatter values", |a, b| {
        drop(a.float.scatter(0, a.int, b.float, IndexingUpdateOp::Add))
    }),
    ("select", |a, b| drop(a.float.select(0, b.ids))),
    ("select_assign", |a, b| {
        drop(
            a.float
                .clone()
                .select_assign(0, b.ids, a.float.clone(), IndexingUpdateOp::Add),
        )
    }),
    ("select_assign values", |a, b| {
        drop(
            a.float
                .select_assign(0, a.ids, b.float, IndexingUpdateOp::Add),
        )
    }),
    ("slice_assign", |a, b| {
        drop(a.float.slice_assign([0..4, 0..4], b.float))
    }),
    ("mask_where", |a, b| {
        drop(a.float.clone().mask_where(b.bool, a.float))
    }),
    ("mask_where values", |a, b| {
        drop(a.float.mask_where(a.bool, b.float))
    }),
    ("mask_fill", |a, b| drop(a.float.mask_fill(b.bool, 1.0))),
    ("equal", |a, b| drop(a.float.equal(b.float))),
    ("greater", |a, b| drop(a.float.greater(b.float))),
    ("greater_equal", |a, b| drop(a.float.greater_equal(b.float))),
    ("lower", |a, b| drop(a.float.lower(b.float))),
    ("lower_equal", |a, b| drop(a.float.lower_equal(b.float))),
    ("int add", |a, b| drop(a.int + b.int)),
    ("int matmul", |a, b| drop(a.int.matmul(b.int))),
    ("int cat", |a, b| drop(Tensor::cat(vec![a.int, b.int], 1))),
    ("int gather", |a, b| drop(a.int.gather(1, b.int))),
    ("int select", |a, b| drop(a.int.select(0, b.ids))),
    ("int slice_assign", |a, b| {
        drop(a.int.slice_assign([0..4, 0..4], b.int))
    }),
    ("int mask_where", |a, b| {
        drop(a.int.clone().mask_where(b.bool, a.int))
    }),
    ("int bitwise_and", |a, b| drop(a.int.bitwise_and(b.int))),
    ("int equal", |a, b| drop(a.int.equal(b.int))),
    ("bool and", |a, b| drop(a.bool.bool_and(b.bool))),
    ("bool or", |a, b| drop(a.bool.bool_or(b.bool))),
    ("bool equal", |a, b| drop(a.bool.equal(b.bool))),
    ("bool cat", |a, b| {
        drop(Tensor::cat(vec![a.bool, b.bool], 0))
    }),
    ("linear", |a, b| {
        drop(module::linear(a.float, b.float, None))
    }),
    ("linear bias", |a, b| {
        drop(module::linear(a.float.clone(), a.float, Some(b.row)))
    }),
    ("embedding", |a, b| drop(module::embedding(a.float, b.int))),
    ("conv2d", |a, b| {
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        drop(module::conv2d(a.image, b.image, None, options))
    }),
    ("conv2d bias", |a, b| {
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        drop(module::conv2d(
            a.image.clone(),
            a.image,
            Some(b.row.narrow(0, 0, 1)),
            options,
        ))
    }),
    ("attention", |a, b| {
        drop(module::attention(
            a.image.clone(),
            b.image,
            a.image,
            None,
            None,
            Default::default(),
        ))
    }),
    ("prelu", |a, b| {
        drop(burn::tensor::activation::prelu(a.float, b.row))
    }),
    ("layer", |a, b| {
        let layer = LinearConfig::new(4, 4).init(&a.device);
        drop(layer.forward(b.float))
    }),
    ("embedding layer", |a, b| {
        let layer = EmbeddingConfig::new(4, 4).init(&a.device);
        drop(layer.forward(b.int))
    }),
    ("cross entropy", |a, b| {
        let loss = CrossEntropyLossConfig::new().init(&a.device);
        drop(loss.forward(a.float, b.ids))
    }),
    ("gradient", |a, b| {
        let layer = LinearConfig::new(4, 4).init(&a.device);
        drop(layer.forward(Tensor::from_inner(b.float)))
    }),
];

fn message(call: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("tensors of two meshes");
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| {
        panic
            .downcast_ref::<&str>()
            .map_or_else(String::new, |text| text.to_string())
    })
}

#[test]
fn tensors_of_two_meshes_are_an_error_at_every_operation() {
    let (first, second) = (mesh("fsdp=2"), mesh("tp=2"));
    let (a, b) = (on(&first), on(&second));
    let names = ["(fsdp=2)", "(tp=2)"];
    let mut wrong = Vec::new();
    for (name, function) in FUNCTIONS {
        for (a, b) in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
            let text = message(|| function(a, b));
            // Burn itself compares the devices of some operations, and names both.
            if !names.iter().all(|name| text.contains(name)) {
                wrong.push(format!("{name}: {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Nothing of it was recorded: both meshes work on.
    assert_eq!(a.float.sum().into_scalar::<f32>(), 16.0);
    assert_eq!(b.float.sum().into_scalar::<f32>(), 16.0);
}

/// A batch that a data loader made on Burn's default device: Burn compares devices itself, and backends of what it
/// joins.
#[test]
fn the_error_names_a_device_that_is_no_mesh() {
    let mesh = mesh("fsdp=2");
    let weight = Tensor::<2>::ones([4, 4], &mesh.device().autodiff());
    let batch = || Tensor::<2>::ones([2, 4], &Device::flex().autodiff());
    let text = message(|| drop(batch().matmul(weight.clone())));
    assert!(text.contains("Flex") && text.contains("(fsdp=2)"), "{text}");
    let text = message(|| drop(Tensor::cat(vec![batch(), weight.clone()], 0)));
    assert!(text.contains("is on the wrong backend"), "{text}");
}

#[test]
fn the_error_says_what_was_asked_and_the_way_out() {
    let (first, second) = (mesh("fsdp=2"), mesh("tp=2"));
    let (a, b) = (on(&first), on(&second));
    let text = message(|| drop(Tensor::cat(vec![a.float.clone(), b.float.clone()], 0)));
    assert!(
        text.contains("`cat` was given tensors of two meshes"),
        "{text}"
    );
    assert!(
        text.contains("(fsdp=2)") && text.contains("(tp=2)"),
        "{text}"
    );
    assert!(
        text.contains("`mesh.device()`") && text.contains("`to_device`"),
        "{text}"
    );
    assert!(!text.contains("set_device"), "none is the default: {text}");
    let moved = b.float.to_device(&a.device);
    assert_eq!(
        Tensor::cat(vec![a.float, moved], 0)
            .sum()
            .into_scalar::<f32>(),
        32.0
    );
}
