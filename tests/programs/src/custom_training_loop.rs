//! The network of Burn's guide, trained by a loop written out, after Burn's `custom-training-loop`.
//!
//! Its batcher makes two tensors per item on the device, and computes on each of them.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLoss;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Int, Tensor, TensorData};

use crate::data::{NUM_CLASSES, Picture, SIDE, pictures};
use crate::{Numbers, Program, Setup, start};

const SEED: u64 = 42;

#[derive(Clone, Debug)]
struct Batch<B: Backend> {
    /// `[batch, SIDE, SIDE]`.
    images: Tensor<B, 3>,
    /// `[batch]`.
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
            .map(|image| ((image / 255) - 0.1307) / 0.3081)
            .collect();
        let targets = items
            .iter()
            .map(|item| {
                let label = i64::from(item.label).elem::<B::IntElem>();
                Tensor::<B, 1, Int>::from_data([label], device)
            })
            .collect();
        Batch {
            images: Tensor::cat(images, 0),
            targets: Tensor::cat(targets, 0),
        }
    }
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    hidden: Linear<B>,
    output: Linear<B>,
    activation: Relu,
}

impl<B: Backend> Model<B> {
    fn new(hidden: usize, dropout: f64, device: &B::Device) -> Self {
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
    fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
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
fn accuracy<B: Backend>(output: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> f64 {
    let [count] = targets.dims();
    let predictions = output.argmax(1).squeeze_dim(1);
    let correct = predictions.equal(targets).int().sum().into_scalar();
    correct.elem::<f64>() / count as f64 * 100.0
}

/// The program.
pub struct CustomTrainingLoop;

impl Program for CustomTrainingLoop {
    const NAME: &'static str = "custom-training-loop";

    fn run<B: AutodiffBackend>(setup: &Setup<B::Device>) -> Numbers {
        let (device, size) = (&setup.device, setup.size);
        B::seed(device, SEED);
        let hidden = size.pick(16, 1024);
        let dropout = setup.dropout(0.5);
        let model = Model::<B>::new(hidden, dropout, device);
        let mut model = start::<B, _, _>(setup, model, || {
            Model::new(hidden, dropout, &Default::default())
        });
        let mut optimizer = AdamConfig::new().init();
        let train = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(size.pick(16, 64))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(pictures(size.pick(90, 2_048), 1));
        let test = DataLoaderBuilder::new(PictureBatcher)
            .batch_size(size.pick(16, 64))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .build(pictures(size.pick(40, 256), 2));

        let mut numbers = Numbers::default();
        for _epoch in 0..size.pick(2, 1) {
            for batch in train.iter() {
                let output = model.forward(batch.images);
                let loss = CrossEntropyLoss::new(None, &output.device())
                    .forward(output.clone(), batch.targets.clone());
                let accuracy = accuracy(output, batch.targets);
                numbers.add("train Loss", loss.clone().into_scalar().elem());
                numbers.add("train Accuracy", accuracy);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(1e-4, model, grads);
            }
            let valid = model.valid();
            for batch in test.iter() {
                let output = valid.forward(batch.images);
                let loss = CrossEntropyLoss::new(None, &output.device())
                    .forward(output.clone(), batch.targets.clone());
                let accuracy = accuracy(output, batch.targets);
                numbers.add("valid Loss", loss.into_scalar().elem());
                numbers.add("valid Accuracy", accuracy);
            }
        }
        numbers
    }
}
