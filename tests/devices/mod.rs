//! What ranks on GPUs promise, against plain Flex.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::DropoutConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use burn_dist::nn::{AttentionOptions, attention};
use burn_dist::{
    DeviceMesh, DeviceMeshBuilder, Float8, Parallelize, ParallelizeWith, Regions, Scaling,
};
use minimal::{Decoder, LEARNING_RATE, batch};

const STEPS: usize = 3;

/// Sums that a value comes through from the tokens to the loss: two layers with four products, two norms and a softmax
/// each, a norm, the head and the loss.
pub(crate) const SUMS: f32 = 20.0;

/// The devices that are tested.
#[derive(Clone, Copy)]
pub(crate) struct Devices {
    /// Puts ranks on them.
    pub on: fn(DeviceMeshBuilder) -> DeviceMeshBuilder,
    /// How to come by one.
    pub hint: &'static str,
    /// How far losses may be from those on Flex, relative. Functions of GPUs are off by less than the longest of the
    /// sums before them; and steps of AdamW that take signs of gradients that are all but zero hardly move the loss.
    pub tolerance: f32,
}

impl Devices {
    fn mesh(&self, axes: &str) -> DeviceMesh {
        self.fuzzed(axes, None)
    }

    /// Opens a mesh, with random layouts from a seed.
    fn fuzzed(&self, axes: &str, seed: Option<u64>) -> DeviceMesh {
        let builder = (self.on)(DeviceMesh::builder().axes(&axes.parse().expect("axes")));
        let builder = match seed {
            Some(seed) => builder.fuzz_layouts(seed),
            None => builder,
        };
        builder.build().expect(self.hint)
    }
}

/// Weights to start from that no backend computes.
struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        let salt = self.0;
        param.map(|tensor| {
            let shape = tensor.shape();
            let is_scale = shape.num_dims() == 1;
            let value = |i: usize| match is_scale {
                true => 1.0,
                false => (((i * 37 + salt * 101) % 97) as f32 / 97.0 - 0.5) * 0.4,
            };
            let values: Vec<f32> = (0..shape.num_elements()).map(value).collect();
            Tensor::from_data(TensorData::new(values, shape), &tensor.device()).require_grad()
        })
    }
}

/// Returns values between -1/2 and 1/2.
fn input<const D: usize>(salt: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let value = |i: usize| ((i * 31 + salt * 57) % 89) as f32 / 89.0 - 0.5;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Returns the losses of some steps.
fn train(device: &Device, prepare: impl FnOnce(Decoder) -> Decoder) -> Vec<f32> {
    let device = device.clone().autodiff();
    let mut model = prepare(Decoder::new(&device).map(&mut Fill(0)));
    let mut optimizer = AdamWConfig::new().init();
    let step = |step| {
        let [bytes, next] = batch(step, &device);
        let loss = model.loss(bytes, next);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model.clone(), gradients);
        loss.into_scalar::<f32>()
    };
    (0..STEPS).map(step).collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let close = |(a, b): (&f32, &f32)| ((a - b) / b).abs() <= tolerance;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(close),
        "{what}: {found:?}, on Flex {expected:?}"
    );
}

/// A decoder trains as on Flex, and the same each time.
pub(crate) fn a_decoder_trains(of: Devices) {
    let expected = train(&Device::flex(), |model| model);
    for axes in ["dp=1", "fsdp=2", "tp=2", "dp=2"] {
        let mesh = of.mesh(axes);
        let run = || {
            train(&mesh.device(), |model| {
                model.parallelize(&mesh).expect("it fits")
            })
        };
        let losses = run();
        assert_close(&losses, &expected, of.tolerance, axes);
        assert_eq!(losses, run(), "{axes}: a second run differs");
    }
}

/// Elementwise work in regions trains as on Flex, and to the bits of one operation after the other, on every mesh.
pub(crate) fn regions_train(of: Devices) {
    let expected = train(&Device::flex(), |model| model);
    for axes in ["dp=1", "fsdp=2", "tp=2"] {
        let losses = |regions, kernels: bool| {
            let builder = (of.on)(DeviceMesh::builder().axes(&axes.parse().expect("axes")));
            let mesh = builder.regions(regions).build().expect(of.hint);
            let (losses, plans) = burn_dist::explain(&mesh.device(), || {
                train(&mesh.device(), |model| {
                    model.parallelize(&mesh).expect("it fits")
                })
            });
            let fused = plans.fused.as_ref().map(|fused| fused.regions);
            assert_eq!(fused.is_some_and(|regions| regions > 0), kernels, "{plans}");
            (losses, fused)
        };
        let (on, of_on) = losses(Regions::On, true);
        let (off, of_off) = losses(Regions::Off, true);
        assert!(of_on < of_off, "{axes}: {of_on:?} and {of_off:?} regions");
        assert_eq!(on, off, "{axes}");
        assert_close(&on, &expected, of.tolerance, axes);
        losses(Regions::Flex, false);
    }
}

/// Kernels of regions draw what Flex does, in the forward and once more in the backward: no task draws.
pub(crate) fn regions_draw_what_flex_does(of: Devices) {
    const SHAPE: [usize; 2] = [37, 24];
    let run = |device: &Device| {
        let device = device.clone().autodiff();
        device.seed(11);
        let [x, weights] = [0, 1].map(|salt| input(salt, SHAPE, &device));
        let x = x.require_grad();
        let noise = Tensor::<2>::random(SHAPE, Distribution::Normal(0.5, 2.0), &device);
        let dropped = DropoutConfig::new(0.3).init().forward(x.clone() + noise);
        let uniform = Tensor::<2>::random(SHAPE, Distribution::Uniform(-1.0, 3.0), &device);
        let out = dropped * uniform;
        let gradients = (out.clone() * weights).sum().backward();
        let gradient = x.grad(&gradients).expect("tracked");
        [out.inner(), gradient].map(Tensor::into_data)
    };
    let flex = DeviceMesh::parse("dp=1").expect("a mesh");
    let expected = run(&flex.device());
    for axes in ["dp=1", "dp=2", "tp=3", "fsdp=2,tp=2"] {
        for regions in [Regions::On, Regions::Off, Regions::Flex] {
            let builder = (of.on)(DeviceMesh::builder().axes(&axes.parse().expect("axes")));
            let mesh = builder.regions(regions).build().expect(of.hint);
            let device = mesh.device();
            let (found, plans) =
                burn_dist::explain_after(&device, "regions", || run(&device)).expect("a pass");
            assert_eq!(found, expected, "{axes}, {regions}");
            let plans = plans.after.join("\n");
            assert!(plans.contains("random stream"), "{plans}");
            let is_task = plans.contains("= random stream");
            assert_eq!(
                is_task,
                regions != Regions::On,
                "{axes}, {regions}: {plans}"
            );
        }
    }
}

/// Float8 trains as on ranks of Flex.
///
/// Rounding to 8 bits hides what values differ in, unless one lies next to a boundary: losses are as close as without.
pub(crate) fn float8_trains(of: Devices) {
    let losses = |mesh: &DeviceMesh| {
        let (losses, plans) = burn_dist::explain(&mesh.device(), || {
            train(&mesh.device(), |model| {
                let plan = model.plan().float8(Float8::new(Scaling::Tensorwise));
                model.parallelize_with(mesh, &plan).expect("it fits")
            })
        });
        let taken = plans.float8.iter().filter(|layer| layer.skipped.is_none());
        assert_eq!(taken.count(), 14, "{plans}");
        losses
    };
    for axes in ["dp=1", "fsdp=2"] {
        let flex = DeviceMesh::parse(axes).expect("a mesh");
        let (found, expected) = (losses(&of.mesh(axes)), losses(&flex));
        assert_close(&found, &expected, of.tolerance, axes);
    }
}

/// Attention as one operation, forward and backward, is that of Flex.
pub(crate) fn attention_is_that_of_flex(of: Devices) {
    const SHAPE: [usize; 4] = [2, 4, 8, 16];
    let run = |device: &Device| {
        let device = device.clone().autodiff();
        let input = |salt: usize| input(salt, SHAPE, &device).require_grad();
        let inputs = [0, 1, 2].map(input);
        let [q, k, v] = inputs.clone();
        let out = attention(q, k, v, AttentionOptions::causal());
        let weights = input(3).detach();
        let gradients = (out.clone() * weights).sum().backward();
        let of = inputs.map(|input| input.grad(&gradients).expect("a gradient"));
        let tensors = std::iter::once(out.inner()).chain(of);
        tensors.map(|tensor| tensor.into_data()).collect::<Vec<_>>()
    };
    let expected = run(&Device::flex());
    for axes in ["dp=1", "dp=2", "tp=2"] {
        for (found, expected) in run(&of.mesh(axes).device()).iter().zip(&expected) {
            // Sums of 16 products and of 8 weights, one after the other, of values below 1.
            let tolerance = burn::tensor::Tolerance::absolute(of.tolerance);
            found.assert_approx_eq::<f32>(expected, tolerance);
        }
    }
}

/// Whole numbers that are moved, added up and read back are those of Flex, where ranks have parts of one row or none.
pub(crate) fn parts_without_elements(of: Devices) {
    let run = |device: &Device, rows: usize| {
        let device = device.clone().autodiff();
        let values: Vec<f32> = (0..rows * 6).map(|i| (i * 37 % 13) as f32 - 6.0).collect();
        let x = Tensor::<2>::from_data(TensorData::new(values, [rows, 6]), &device).require_grad();
        let sums = x.clone().sum_dim(0) + x.clone().slice(0..1) * 2.0;
        let joined = Tensor::cat(vec![x.clone().transpose(), sums.clone().transpose()], 1);
        let gradients = (joined.clone() * joined.clone()).sum().backward();
        let gradient = x.grad(&gradients).expect("a gradient");
        [x.inner(), sums.inner(), joined.inner(), gradient].map(Tensor::into_data)
    };
    for rows in [1, 2, 3, 5] {
        let expected = run(&Device::flex(), rows);
        for (axes, seed) in ["dp=4", "fsdp=2,tp=2"].into_iter().zip([3, 8]) {
            for seed in [None, Some(seed), Some(seed + 1)] {
                let mesh = of.fuzzed(axes, seed);
                assert_eq!(
                    run(&mesh.device(), rows),
                    expected,
                    "{rows} rows, {axes}, {seed:?}"
                );
            }
        }
    }
}
