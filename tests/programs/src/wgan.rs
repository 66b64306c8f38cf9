//! A generator and a critic trained against each other, after Burn's `wgan`.
//!
//! Two optimizers, a module mapper that clamps the critic's weights, and pictures read one by one.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, LeakyRelu, LeakyReluConfig, Linear, LinearConfig, Tanh,
};
use burn::optim::{GradientsParams, Optimizer, RmsPropConfig};
use burn::record::CompactRecorder;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, ElementConversion, Int, Tensor, TensorData};

use crate::data::{Picture, SIDE, Source, pictures};
use crate::{Numbers, Program, Randomness, Setup, start};

const SEED: u64 = 5;
const NUM_CRITIC: usize = 5;

#[derive(Clone, Debug)]
struct Batch<B: Backend> {
    /// `[batch, 1, SIDE, SIDE]`.
    images: Tensor<B, 4>,
    /// `[batch]`; unused, as in Burn's.
    #[allow(dead_code, reason = "made and dropped unread")]
    targets: Tensor<B, 1, Int>,
}

#[derive(Clone)]
struct PictureBatcher;

impl<B: Backend> Batcher<B, Picture, Batch<B>> for PictureBatcher {
    fn batch(&self, items: Vec<Picture>, device: &B::Device) -> Batch<B> {
        let images = items
            .iter()
            .map(|item| TensorData::from(item.pixels).convert::<B::FloatElem>())
            .map(|data| Tensor::<B, 2>::from_data(data, device))
            .map(|image| image.reshape([1, SIDE, SIDE]))
            .map(|image| ((image / 255) - 0.5) / 0.5)
            .collect::<Vec<Tensor<B, 3>>>();
        let targets = items
            .iter()
            .map(|item| {
                let label = TensorData::from([i64::from(item.label)]).convert::<B::IntElem>();
                Tensor::<B, 1, Int>::from_data(label, device)
            })
            .collect();
        Batch {
            images: Tensor::stack(images, 0),
            targets: Tensor::cat(targets, 0),
        }
    }
}

#[derive(Module, Debug)]
struct Layer<B: Backend> {
    linear: Linear<B>,
    norm: BatchNorm<B>,
    activation: LeakyRelu,
}

fn leaky() -> LeakyRelu {
    LeakyReluConfig::new().with_negative_slope(0.2).init()
}

impl<B: Backend> Layer<B> {
    fn new(input: usize, output: usize, device: &B::Device) -> Self {
        Self {
            linear: LinearConfig::new(input, output).init(device),
            norm: BatchNormConfig::new(output).with_epsilon(0.8).init(device),
            activation: leaky(),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.activation
            .forward(self.norm.forward(self.linear.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Generator<B: Backend> {
    layers: Vec<Layer<B>>,
    output: Linear<B>,
    activation: Tanh,
}

impl<B: Backend> Generator<B> {
    fn new(widths: &[usize], device: &B::Device) -> Self {
        let last = widths[widths.len() - 1];
        Self {
            layers: widths
                .windows(2)
                .map(|pair| Layer::new(pair[0], pair[1], device))
                .collect(),
            output: LinearConfig::new(last, SIDE * SIDE).init(device),
            activation: Tanh::new(),
        }
    }

    /// `[batch, latent]` to `[batch, SIDE * SIDE]`.
    fn forward(&self, noise: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = noise;
        for layer in &self.layers {
            x = layer.forward(x);
        }
        self.activation.forward(self.output.forward(x))
    }
}

#[derive(Module, Debug)]
struct Critic<B: Backend> {
    layers: Vec<Linear<B>>,
    output: Linear<B>,
    activation: LeakyRelu,
}

impl<B: Backend> Critic<B> {
    fn new(widths: [usize; 2], device: &B::Device) -> Self {
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        Self {
            layers: vec![linear(SIDE * SIDE, widths[0]), linear(widths[0], widths[1])],
            output: linear(widths[1], 1),
            activation: leaky(),
        }
    }

    /// `[batch, 1, SIDE, SIDE]` to `[batch, 1]`.
    fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let mut x = images.flatten(1, 3);
        for layer in &self.layers {
            x = self.activation.forward(layer.forward(x));
        }
        self.output.forward(x)
    }
}

/// Clamps every parameter.
struct Clip {
    limit: f32,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Clip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let tracked = tensor.is_require_grad();
        let mut clipped = Tensor::from_inner(tensor.inner().clamp(-self.limit, self.limit));
        if tracked {
            clipped = clipped.require_grad();
        }
        Param::from_mapped_value(id, clipped, mapper)
    }
}

/// Reads pictures one by one, scaled to between 0 and 1, and returns their mean brightness.
fn look<B: Backend>(images: Tensor<B, 4>, count: usize) -> f64 {
    let images = images.swap_dims(2, 1).swap_dims(3, 2).slice(0..count);
    let min = images.clone().min().reshape([1, 1, 1, 1]);
    let max = images.clone().max().reshape([1, 1, 1, 1]);
    let images = ((images - min.clone()) / (max - min) + 0.5 / 255.0).clamp(0.0, 1.0);
    let mut sum = 0.0;
    for at in 0..count {
        let image: Tensor<B, 3> = images.clone().slice(at..at + 1).squeeze_dim(0);
        sum += image.into_data().iter::<f64>().sum::<f64>();
    }
    sum / (count * SIDE * SIDE) as f64
}

/// The program.
pub struct Wgan;

impl Program for Wgan {
    const NAME: &'static str = "wgan";

    fn run<B: AutodiffBackend>(setup: &Setup<B::Device>) -> Numbers {
        let (device, size) = (&setup.device, setup.size);
        B::seed(device, SEED);
        let widths: &[usize] = size.pick(&[8, 16, 24], &[100, 128, 256, 512, 1024]);
        let critic_widths = size.pick([24, 16], [512, 256]);
        let generator = Generator::<B>::new(widths, device);
        let mut generator = start::<B, _, _>(setup, generator, || {
            Generator::new(widths, &Default::default())
        });
        let critic = Critic::<B>::new(critic_widths, device);
        let mut critic = start::<B, _, _>(setup, critic, || {
            Critic::new(critic_widths, &Default::default())
        });
        let mut optimizer_g = RmsPropConfig::new().init();
        let mut optimizer_c = RmsPropConfig::new().init();
        let batch_size = size.pick(12, 512);
        let train = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(batch_size)
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(pictures(size.pick(84, 4_096), 1));
        let mut clip = Clip { limit: 0.01 };
        let mut source = Source(3);
        let shape = [batch_size, 1, SIDE, SIDE];
        let lr = 3e-4;

        let mut numbers = Numbers::default();
        for _epoch in 0..size.pick(2, 1) {
            for (iteration, batch) in train.iter().enumerate() {
                let noise = match setup.randomness {
                    Randomness::Backend => Tensor::<B, 2>::random(
                        [batch_size, widths[0]],
                        Distribution::Normal(0.0, 1.0),
                        device,
                    ),
                    Randomness::Host => {
                        let values = (0..batch_size * widths[0]).map(|_| source.normal());
                        let data =
                            TensorData::new(values.collect::<Vec<f32>>(), [batch_size, widths[0]]);
                        Tensor::from_data(data, device)
                    }
                };
                let fakes = generator.forward(noise.clone()).detach().reshape(shape);
                let loss_c =
                    -critic.forward(batch.images).mean() + critic.forward(fakes.clone()).mean();
                let grads = GradientsParams::from_grads(loss_c.backward(), &critic);
                critic = optimizer_c.step(lr, critic, grads).map(&mut clip);

                if iteration % NUM_CRITIC == 0 {
                    let fakes = generator.forward(noise).reshape(shape);
                    let loss_g = -critic.forward(fakes).mean();
                    let grads = GradientsParams::from_grads(loss_g.backward(), &generator);
                    generator = optimizer_g.step(lr, generator, grads);
                    numbers.add("critic Loss", loss_c.into_scalar().elem());
                    numbers.add("generator Loss", loss_g.into_scalar().elem());
                }
                if iteration == 0 {
                    numbers.add("brightness", look(fakes, size.pick(6, 25)));
                }
            }
        }
        let recorder = CompactRecorder::new();
        generator
            .save_file(setup.path("generator"), &recorder)
            .expect("the generator is saved");
        critic
            .save_file(setup.path("critic"), &recorder)
            .expect("the critic is saved");
        numbers
    }
}
