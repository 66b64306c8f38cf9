//! A mesh gives what one device gives: operation by operation, under random layouts, and in training.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use burn_dist::custom::{
    CustomError, CustomOp, CustomTensor, Execute, Kernels, OpRule, RuleBuilder, Shapes, TensorInfo,
    Value, WithKernels, check,
};
use burn_dist::{DTensor, DeviceMesh, Dist, Parallelize, Regions};
use custom_op::bias_gelu;
use custom_op::layer::FeedForward;
use custom_op::mesh::{BiasGelu, BiasGeluBackward};

one_thread::one_thread!();

fn data(shape: &[usize], seed: usize) -> TensorData {
    let numel = shape.iter().product();
    let value = |i: usize| ((i * 37 + seed * 101) % 23) as f32 / 8.0 - 1.3;
    TensorData::new((0..numel).map(value).collect::<Vec<_>>(), shape.to_vec())
}

#[test]
fn every_split_gives_what_one_device_gives() {
    let device = Default::default();
    let (x, bias, gradient) = (data(&[4, 6, 6], 1), data(&[6], 2), data(&[4, 6, 6], 3));
    let splits = check::<Flex, _>(&BiasGelu, vec![x.clone(), bias.clone()], 1e-5, &device);
    assert!(splits.expect("it holds") > 50);
    let inputs = vec![x, bias, gradient];
    let splits = check::<Flex, _>(&BiasGeluBackward, inputs, 1e-5, &device);
    assert!(splits.expect("it holds") > 50);
}

/// The gradients of `x` and `bias` of some function of the operation.
fn gradients(device: Device) -> [TensorData; 3] {
    let device = &device.autodiff();
    let x = Tensor::<3>::from_data(data(&[4, 6, 10], 1), device).require_grad();
    let bias = Tensor::<1>::from_data(data(&[10], 2), device).require_grad();
    let y = bias_gelu(x.clone(), bias.clone());
    let weights = Tensor::from_data(data(&[4, 6, 10], 3), device);
    let gradients = (y.clone() * weights).sum().backward();
    [
        y.into_data(),
        x.grad(&gradients).expect("of x").into_data(),
        bias.grad(&gradients).expect("of bias").into_data(),
    ]
}

#[test]
fn random_layouts_change_no_value() {
    let expected = gradients(Device::flex());
    for axes in [
        "dp=2",
        "tp=3",
        "fsdp=2,tp=2",
        "a:model=2,b:model=2,c:model=2",
    ] {
        for seed in 0..40 {
            let mesh = DeviceMesh::builder()
                .axes(&axes.parse().expect("a mesh"))
                .fuzz_layouts(seed)
                .build()
                .expect("a mesh");
            let found = gradients(mesh.device());
            for (found, expected) in found.iter().zip(&expected) {
                found.assert_approx_eq::<f32>(expected, Tolerance::absolute(2e-5));
            }
        }
    }
}

fn train(mut model: FeedForward, device: &Device) -> Vec<f32> {
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..5 {
        let x = Tensor::<2>::from_data(data(&[8, 6], step), device);
        let loss = model.forward(x).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.1, model, gradients);
        losses.push(loss.into_scalar());
    }
    losses
}

#[test]
fn training_on_a_mesh_is_training_on_one_device() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = FeedForward::new(6, 12, &device);
    // A clone of parameters that nothing has used yet draws its own: both start from the record.
    let record = model.clone().into_record();
    let expected = train(model.load_record(record.clone()), &device);
    for axes in ["", "dp=2", "tp=2", "tp=3", "fsdp=2,tp=2", "dp=2,fsdp=2"] {
        let mesh = DeviceMesh::builder()
            .axes(&axes.parse().expect("a mesh"))
            .build()
            .expect("a mesh");
        let device = mesh.device().autodiff();
        let model = FeedForward::new(6, 12, &device).load_record(record.clone());
        let model = model.parallelize(&mesh).expect("it fits");
        let losses = train(model, &device);
        for (found, expected) in losses.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-6, "{axes}: {losses:?}");
        }
    }
}

/// Over a tensor-parallel axis, the kernel works on columns.
#[test]
fn columns_stay_split() {
    let mesh = DeviceMesh::builder().axis("tp", 2).build().expect("a mesh");
    let device = mesh.device();
    let x = Tensor::<2>::from_data(data(&[4, 8], 1), &device);
    let x = x.redistribute("[-, {tp}]").expect("a layout");
    let bias = Tensor::<1>::from_data(data(&[8], 2), &device);
    let (y, explanation) = burn_dist::explain(&device, || bias_gelu(x.clone(), bias.clone()));
    assert_eq!(y.layout_text().expect("placed"), "[-, {tp}]");
    assert!(explanation.collectives.is_empty(), "{explanation}");
}

/// It says that terms of a sum may pass, which a product with itself does not let.
#[derive(Clone, Debug, PartialEq, Hash)]
struct WrongSquare;

impl CustomOp for WrongSquare {
    const ID: &'static str = "custom_op.wrong_square";

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

impl Execute<Flex> for WrongSquare {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        _: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        let square = |x: CustomTensor<Flex>| {
            let x = x.into_float();
            CustomTensor::Float(Flex::float_mul(x.clone(), x))
        };
        inputs.into_iter().map(square).collect()
    }
}

#[test]
fn a_rule_that_contradicts_the_kernel_is_told_with_the_element() {
    let x = data(&[4, 6], 1);
    let error = check::<Flex, _>(&WrongSquare, vec![x], 1e-5, &Default::default());
    let text = error.expect_err("terms do not pass").to_string();
    assert!(
        text.starts_with(
            "custom_op.wrong_square split as [-, -] + sum{a} -> [-, -] + sum{a} on a:model=2"
        ),
        "{text}"
    );
    assert!(text.contains("on one device"), "{text}");
}

/// A bias and GELU whose formula is another function.
#[derive(Clone, Debug, PartialEq, Hash)]
struct WrongFormula;

impl CustomOp for WrongFormula {
    const ID: &'static str = "custom_op.wrong_formula";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        BiasGelu.outputs(inputs)
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        BiasGelu.rule(shapes)
    }

    fn formula<'s>(&self, inputs: &[Value<'s>]) -> Option<Vec<Value<'s>>> {
        Some(vec![inputs[0] + inputs[1]])
    }
}

impl Execute<Flex> for WrongFormula {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        device: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        BiasGelu.execute(inputs, device)
    }
}

#[test]
fn a_formula_that_contradicts_the_kernel_is_told_with_the_element() {
    let inputs = vec![data(&[4, 6], 1), data(&[6], 2)];
    let error = check::<Flex, _>(&WrongFormula, inputs, 1e-5, &Default::default());
    let text = error.expect_err("a sum is no GELU").to_string();
    assert!(
        text.starts_with("the formula of custom_op.wrong_formula gives ")
            && text.contains("for element 0 of output 0"),
        "{text}"
    );
}

/// A formula that has no result for its output.
#[derive(Clone, Debug, PartialEq, Hash)]
struct NoResult;

impl CustomOp for NoResult {
    const ID: &'static str = "custom_op.no_result";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs.to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::uniform(shapes, "...").elementwise().build()
    }

    fn formula<'s>(&self, _: &[Value<'s>]) -> Option<Vec<Value<'s>>> {
        Some(Vec::new())
    }
}

impl Execute<Flex> for NoResult {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        _: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        inputs
    }
}

impl WithKernels for NoResult {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

#[test]
fn a_formula_that_does_not_go_with_the_outputs_is_refused() {
    let mesh = DeviceMesh::builder().axis("tp", 2).build().expect("a mesh");
    let x = Tensor::<2>::from_data(data(&[4, 8], 1), &mesh.device());
    let x = x.try_into_primitive::<Dist>().expect("it is on a mesh");
    let error = burn_dist::custom::call(NoResult, vec![CustomTensor::Float(x)]);
    let text = error.err().expect("refused").to_string();
    assert_eq!(
        text,
        "operation `custom_op.no_result` has no formula that goes with its outputs: it has 0 result(s) for 1 output(s)"
    );
}

/// The operation and what stands around it are one kernel.
#[test]
fn a_formula_joins_what_stands_around_it() {
    let fused = |regions| {
        let mesh = DeviceMesh::builder().axis("tp", 2).regions(regions).build();
        let device = mesh.expect("a mesh").device();
        let x = Tensor::<2>::from_data(data(&[4, 8], 1), &device);
        let bias = Tensor::<1>::from_data(data(&[8], 2), &device);
        let made = || (bias_gelu(x.clone() * 2.0, bias.clone()) + x.clone()).into_data();
        let (made, explanation) = burn_dist::explain(&device, made);
        (made, explanation.fused)
    };
    let (on, fused_on) = fused(Regions::On);
    let (off, _) = fused(Regions::Off);
    let (flex, fused_flex) = fused(Regions::Flex);
    let fused_on = fused_on.expect("regions");
    assert_eq!((fused_on.operations, fused_on.regions), (3, 1));
    assert!(fused_flex.is_none());
    assert_eq!(on, off);
    on.assert_approx_eq::<f32>(&flex, Tolerance::absolute(1e-6));
}

/// Another type with the id of [`BiasGelu`].
#[derive(Clone, Debug, PartialEq, Hash)]
struct Impostor;

impl CustomOp for Impostor {
    const ID: &'static str = BiasGelu::ID;

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs.to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::uniform(shapes, "...").elementwise().build()
    }
}

impl Execute<Flex> for Impostor {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        _: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        inputs
    }
}

impl WithKernels for Impostor {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

#[test]
fn an_id_belongs_to_one_type() {
    let mesh = DeviceMesh::builder().axis("tp", 2).build().expect("a mesh");
    let device = mesh.device();
    let x = Tensor::<2>::from_data(data(&[4, 8], 1), &device);
    let bias = Tensor::<1>::from_data(data(&[8], 2), &device);
    bias_gelu(x.clone(), bias).into_data();
    let x = x.try_into_primitive::<Dist>().expect("it is on a mesh");
    let inputs = vec![CustomTensor::Float(x)];
    let error = burn_dist::custom::call(Impostor, inputs)
        .err()
        .expect("refused");
    assert!(matches!(error, CustomError::Registered { .. }));
    let text = error.to_string();
    assert!(
        text.contains("`custom_op.bias_gelu`") && text.contains("Impostor"),
        "{text}"
    );
}
