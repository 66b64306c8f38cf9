//! Programs whose tensors name no backend.

mod form;
mod regions;
mod windows;

use std::any::TypeId;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_backend::Backend;
use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_dist_door::{Dist, MeshDevice, Registered};
use burn_dist_plan::rule::{OpRule, RuleBuilder, Shapes};
use burn_flex::Flex;
use burn_std::future::block_on;

use super::{DeviceMesh, call, layout_of, local_of};
use crate::burn::NAMES_BACKEND;
use crate::burn::data::*;
use crate::mesh::Rank;
use crate::ops::custom::{
    CustomError, CustomOp, CustomTensor, Execute, Kernels, TensorInfo, WithKernels,
};
use crate::ops::formula::Value;
use crate::plan::Regions;

/// A backend that does not say what ranks compute on.
type Nameless = Dist<Registered>;

fn floats(shape: [usize; 2], step: f32) -> TensorData {
    let values = (0..shape[0] * shape[1]).map(|i| (i as f32 * step).sin());
    TensorData::new(values.collect::<Vec<_>>(), shape)
}

/// A layer with norms, an activation and a sum, forward.
fn program<B: Backend>(device: &B::Device) -> TensorData {
    let float = |shape, step| B::float_from_data(floats(shape, step), device);
    let line = |size: usize| {
        let values: Vec<f32> = (0..size).map(|i| 1.0 + i as f32 / 8.0).collect();
        B::float_from_data(TensorData::new(values, [size]), device)
    };
    let x = B::float_matmul(float([12, 7], 0.3), float([7, 10], 0.7));
    let x = B::layer_norm(x, line(10), Some(line(10)), 1e-5);
    let x = B::float_neg(B::gelu(x));
    let x = B::float_add(B::softmax(x.clone(), 1), B::log_softmax(x, 0));
    let x = B::float_sort(x, 1, true);
    block_on(B::float_into_data(B::float_sum_dim(x, 1))).unwrap()
}

fn mesh(ranks: usize) -> DeviceMesh {
    let mesh = DeviceMesh::builder().axis("fsdp", ranks).alone();
    mesh.build().unwrap()
}

#[test]
fn one_rank_gives_the_bits_of_its_backend_and_more_the_values() {
    let want = program::<Flex>(&Default::default());
    for ranks in [1, 3] {
        let mesh = DeviceMesh::builder().axis("fsdp", ranks).alone();
        let mesh = mesh.regions(Regions::Flex).build().unwrap();
        let got = program::<Nameless>(&mesh.device());
        // Burn 0.21 records norms as their parts.
        if ranks == 1 && !NAMES_BACKEND {
            assert_eq!(got, want);
        }
        for (got, want) in got.iter::<f32>().zip(want.iter::<f32>()) {
            assert!((got - want).abs() < 1e-4, "{got} for {want}");
        }
    }
}

#[test]
fn parts_are_those_of_the_backend_of_the_mesh() {
    let mesh = mesh(2);
    let x = Nameless::float_from_data(floats([4, 3], 0.1), &mesh.device());
    let layout = layout_of(&x).unwrap();
    assert_eq!(layout.local_shape(mesh.shape(), Rank(1)), [2, 3]);
    let (_, shape) = local_of::<_, Flex>(&x, Rank(1)).unwrap();
    assert_eq!(shape, [2, 3]);
}

/// Twice its input.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Twice;

impl CustomOp for Twice {
    const ID: &'static str = "tests.twice";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs.to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::uniform(shapes, "...")
            .elementwise()
            .linear()
            .build()
    }
}

impl Execute<Flex> for Twice {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        _: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        let twice = |tensor: CustomTensor<Flex>| {
            CustomTensor::Float(Flex::float_mul_scalar(tensor.into_float(), 2.into()))
        };
        inputs.into_iter().map(twice).collect()
    }
}

impl WithKernels for Twice {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

/// How often the formula of [`Scaled`] was asked for.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// A multiple of its input.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Scaled {
    by: i32,
}

impl CustomOp for Scaled {
    const ID: &'static str = "tests.scaled";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs.to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::uniform(shapes, "...").elementwise().build()
    }

    fn formula<'s>(&self, inputs: &[Value<'s>]) -> Option<Vec<Value<'s>>> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // There is none for ints that goes with its outputs.
        match inputs[0].is_float() {
            true => Some(vec![inputs[0] * inputs[0].number(self.by.into())]),
            false => Some(Vec::new()),
        }
    }
}

impl Execute<Flex> for Scaled {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        _: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        let scaled = |tensor: CustomTensor<Flex>| {
            CustomTensor::Float(Flex::float_mul_scalar(tensor.into_float(), self.by.into()))
        };
        inputs.into_iter().map(scaled).collect()
    }
}

impl WithKernels for Scaled {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

/// Recording asks for the formula of an operation once for its options and the shapes and types of its inputs; what
/// does not go with its outputs is refused each time.
#[test]
fn a_formula_is_checked_once() {
    let device = mesh(1).device();
    let asked = |by: i32, shape: [usize; 2]| {
        let before = ASKED.load(Ordering::Relaxed);
        for _ in 0..3 {
            let x = Nameless::float_from_data(floats(shape, 0.1), &device);
            call(Scaled { by }, vec![CustomTensor::<Nameless>::Float(x)]).unwrap();
        }
        ASKED.load(Ordering::Relaxed) - before
    };
    assert_eq!(asked(2, [4, 3]), 1);
    assert_eq!(asked(2, [4, 3]), 0);
    assert_eq!(asked(3, [4, 3]), 1);
    assert_eq!(asked(2, [3, 4]), 1);
    for _ in 0..2 {
        let x = Nameless::int_from_data(TensorData::new(vec![1_i64; 12], [4, 3]), &device);
        let made = call(Scaled { by: 2 }, vec![CustomTensor::<Nameless>::Int(x)]);
        assert!(matches!(made, Err(CustomError::Formula { .. })));
    }
}

#[test]
fn a_custom_operation_runs_by_the_kernel_of_the_mesh() {
    let mesh = mesh(2);
    let data = floats([4, 3], 0.1);
    let x = Nameless::float_from_data(data.clone(), &mesh.device());
    let made = call(Twice, vec![CustomTensor::<Nameless>::Float(x)]).unwrap();
    let made = made.into_iter().next().unwrap().into_float();
    let got = block_on(Nameless::float_into_data(made)).unwrap();
    let want: Vec<f32> = data.iter::<f32>().map(|x| 2.0 * x).collect();
    assert_eq!(got, TensorData::new(want, [4, 3]));
}

#[test]
fn a_backend_without_a_kernel_is_named() {
    let found = Twice::kernels().find((TypeId::of::<MeshDevice>(), "Other"));
    let Err(error) = found else {
        panic!("there is none");
    };
    let text = error.to_string();
    assert!(text.contains("`tests.twice` runs on"), "{text}");
    assert!(text.contains("compute on Other"), "{text}");
}

#[test]
fn devices_are_those_of_the_backend() {
    let other = mesh(1).device();
    let built = DeviceMesh::builder()
        .axis("fsdp", 2)
        .alone()
        .devices(&[other.clone(), other])
        .build();
    // Where the program names the backend, devices are known to be others only when it makes a tensor.
    let error = built.err().map(|error| error.to_string());
    assert_eq!(error.is_none(), NAMES_BACKEND);
    assert!(error.is_none_or(|text| text.contains("Flex")));
}
