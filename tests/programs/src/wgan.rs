//! A generator and a critic trained against each other, after Burn's `wgan`.
//!
//! Two optimizers, a module mapper that clamps the critic's weights, and pictures read one by one.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, LeakyRelu, LeakyReluConfig, Linear, LinearConfig, Tanh,
};
use burn::optim::{GradientsParams, RmsPropConfig};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

use crate::data::{Picture, SIDE, Source, pictures};
use crate::{Numbers, Program, Randomness, Setup, start};

const SEED: u64 = 5;
const NUM_CRITIC: usize = 5;

#[derive(Clone, Debug)]
struct Batch {
    /// `[batch, 1, SIDE, SIDE]`.
    images: Tensor<4>,
    /// `[batch]`; unused, as in Burn's.
    #[allow(dead_code, reason = "made and dropped unread")]
    targets: Tensor<1, Int>,
}

#[derive(Clone)]
struct PictureBatcher;

impl Batcher<Picture, Batch> for PictureBatcher {
    fn batch(&self, items: Vec<Picture>, device: &Device) -> Batch {
        let images = items
            .iter()
            .map(|item| TensorData::from(item.pixels))
            .map(|data| Tensor::<2>::from_data(data, device))
            .map(|image| image.reshape([1, SIDE, SIDE]))
            .map(|image| ((image / 255) - 0.5) / 0.5)
            .collect::<Vec<Tensor<3>>>();
        let targets = items
            .iter()
            .map(|item| {
                let label = TensorData::from([i64::from(item.label)]);
                Tensor::<1, Int>::from_data(label, device)
            })
            .collect();
        Batch {
            images: Tensor::stack(images, 0),
            targets: Tensor::cat(targets, 0),
        }
    }
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    norm: BatchNorm,
    activation: LeakyRelu,
}

fn leaky() -> LeakyRelu {
    LeakyReluConfig::new().with_negative_slope(0.2).init()
}

impl Layer {
    fn new(input: usize, output: usize, device: &Device) -> Self {
        Self {
            linear: LinearConfig::new(input, output).init(device),
            norm: BatchNormConfig::new(output).with_epsilon(0.8).init(device),
            activation: leaky(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.activation
            .forward(self.norm.forward(self.linear.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Generator {
    layers: Vec<Layer>,
    output: Linear,
    activation: Tanh,
}

impl Generator {
    fn new(widths: &[usize], device: &Device) -> Self {
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
    fn forward(&self, noise: Tensor<2>) -> Tensor<2> {
        let mut x = noise;
        for layer in &self.layers {
            x = layer.forward(x);
        }
        self.activation.forward(self.output.forward(x))
    }
}

#[derive(Module, Debug)]
struct Critic {
    layers: Vec<Linear>,
    output: Linear,
    activation: LeakyRelu,
}

impl Critic {
    fn new(widths: [usize; 2], device: &Device) -> Self {
        let linear = |input, output| LinearConfig::new(input, output).init(device);
        Self {
            layers: vec![linear(SIDE * SIDE, widths[0]), linear(widths[0], widths[1])],
            output: linear(widths[1], 1),
            activation: leaky(),
        }
    }

    /// `[batch, 1, SIDE, SIDE]` to `[batch, 1]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
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

impl ModuleMapper for Clip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
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
fn look(images: Tensor<4>, count: usize) -> f64 {
    let images = images.swap_dims(2, 1).swap_dims(3, 2).slice(0..count);
    let min = images.clone().min().reshape([1, 1, 1, 1]);
    let max = images.clone().max().reshape([1, 1, 1, 1]);
    let images = ((images - min.clone()) / (max - min) + 0.5 / 255.0).clamp(0.0, 1.0);
    let mut sum = 0.0;
    for at in 0..count {
        let image: Tensor<3> = images.clone().slice(at..at + 1).squeeze_dim(0);
        sum += image.into_data().iter::<f64>().sum::<f64>();
    }
    sum / (count * SIDE * SIDE) as f64
}

/// The program.
pub struct Wgan;

impl Program for Wgan {
    const NAME: &'static str = "wgan";

    fn run(setup: &Setup) -> Numbers {
        let (device, size) = (&setup.device.clone().autodiff(), setup.size);
        device.seed(SEED);
        let widths: &[usize] = size.pick(&[8, 16, 24], &[100, 128, 256, 512, 1024]);
        let critic_widths = size.pick([24, 16], [512, 256]);
        let generator = Generator::new(widths, device);
        let mut generator = start(setup, generator, |host| Generator::new(widths, host));
        let critic = Critic::new(critic_widths, device);
        let mut critic = start(setup, critic, |host| Critic::new(critic_widths, host));
        let mut optimizer_g = RmsPropConfig::new().init();
        let mut optimizer_c = RmsPropConfig::new().init();
        let batch_size = size.pick(12, 512);
        let train = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(batch_size)
            .shuffle(SEED)
            .num_workers(setup.workers)
            .set_device(device.clone())
            .build(pictures(size.pick(84, 4_096), 1));
        let mut clip = Clip { limit: 0.01 };
        let mut source = Source(3);
        let shape = [batch_size, 1, SIDE, SIDE];
        let lr = 3e-4;

        let mut numbers = Numbers::default();
        for _epoch in 0..size.pick(2, 1) {
            for (iteration, batch) in train.iter().enumerate() {
                let batch = batch.expect("what is in memory is read");
                let noise = match setup.randomness {
                    Randomness::Device => Tensor::<2>::random(
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
                    numbers.add("critic Loss", loss_c.into_scalar());
                    numbers.add("generator Loss", loss_g.into_scalar());
                }
                if iteration == 0 {
                    numbers.add("brightness", look(fakes, size.pick(6, 25)));
                }
            }
        }
        generator
            .save_file(setup.path("generator"))
            .expect("the generator is saved");
        critic
            .save_file(setup.path("critic"))
            .expect("the critic is saved");
        numbers
    }
}
