//! The network of Burn's guide, trained by a loop written out, after Burn's `custom-training-loop`.
//!
//! Its batcher makes two tensors per item on the device, and computes on each of them.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLoss;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::data::{NUM_CLASSES, Picture, SIDE, pictures};
use crate::{Numbers, Program, Setup, start};

const SEED: u64 = 42;

#[derive(Clone, Debug)]
struct Batch {
    /// `[batch, SIDE, SIDE]`.
    images: Tensor<3>,
    /// `[batch]`.
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
            .map(|image| ((image / 255) - 0.1307) / 0.3081)
            .collect();
        let targets = items
            .iter()
            .map(|item| Tensor::<1, Int>::from_data([i64::from(item.label)], device))
            .collect();
        Batch {
            images: Tensor::cat(images, 0),
            targets: Tensor::cat(targets, 0),
        }
    }
}

#[derive(Module, Debug)]
struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    hidden: Linear,
    output: Linear,
    activation: Relu,
}

impl Model {
    fn new(hidden: usize, dropout: f64, device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            dropout: DropoutConfig::new(dropout).init(),
            hidden: LinearConfig::new(16 * 8 * 8, hidden).init(device),
            output: LinearConfig::new(hidden, NUM_CLASSES).init(device),
            activation: Relu::new(),
        }
    }

    /// `[batch, SIDE, SIDE]` to `[batch, classes]`.
    fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let [rows, height, width] = images.dims();
        let x = self.conv1.forward(images.reshape([rows, 1, height, width]));
        let x = self.conv2.forward(self.dropout.forward(x));
        let x = self.activation.forward(self.dropout.forward(x));
        let x = self.pool.forward(x).reshape([rows, 16 * 8 * 8]);
        let x = self.dropout.forward(self.hidden.forward(x));
        self.output.forward(self.activation.forward(x))
    }
}

/// Returns how many percent of `output` name the class.
fn accuracy(output: Tensor<2>, targets: Tensor<1, Int>) -> f64 {
    let [count] = targets.dims();
    let predictions = output.argmax(1).squeeze_dim(1);
    let correct: f64 = predictions.equal(targets).int().sum().into_scalar();
    correct / count as f64 * 100.0
}

/// The program.
pub struct CustomTrainingLoop;

impl Program for CustomTrainingLoop {
    const NAME: &'static str = "custom-training-loop";

    fn run(setup: &Setup) -> Numbers {
        let (device, size) = (&setup.device.clone().autodiff(), setup.size);
        device.seed(SEED);
        let hidden = size.pick(16, 1024);
        let dropout = setup.dropout(0.5);
        let model = Model::new(hidden, dropout, device);
        let mut model = start(setup, model, |host| Model::new(hidden, dropout, host));
        let mut optimizer = AdamConfig::new().init();
        let train = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(size.pick(16, 64))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .set_device(device.clone())
            .build(pictures(size.pick(90, 2_048), 1));
        let test = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(size.pick(16, 64))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .set_device(setup.device.clone())
            .build(pictures(size.pick(40, 256), 2));

        let mut numbers = Numbers::default();
        for _epoch in 0..size.pick(2, 1) {
            for batch in train.iter() {
                let batch = batch.expect("what is in memory is read");
                let output = model.forward(batch.images);
                let loss = CrossEntropyLoss::new(None, &output.device())
                    .forward(output.clone(), batch.targets.clone());
                let accuracy = accuracy(output, batch.targets);
                numbers.add("train Loss", loss.clone().into_scalar());
                numbers.add("train Accuracy", accuracy);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(1e-4, model, grads);
            }
            let valid = model.valid();
            for batch in test.iter() {
                let batch = batch.expect("what is in memory is read");
                let output = valid.forward(batch.images);
                let loss = CrossEntropyLoss::new(None, &output.device())
                    .forward(output.clone(), batch.targets.clone());
                let accuracy = accuracy(output, batch.targets);
                numbers.add("valid Loss", loss.into_scalar());
                numbers.add("valid Accuracy", accuracy);
            }
        }
        numbers
    }
}
