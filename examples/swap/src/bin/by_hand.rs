//! A training loop written by hand, on a mesh of devices. Burn's data loaders make batches on the default device:
//! `set_device` says that it is the mesh.

use burn::data::dataloader::DataLoaderBuilder;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Tanh};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use burn_dist::{DeviceMesh, ParallelizeWith, Plan};
use swap::data::{DigitBatcher, NUM_CLASSES, SIDE, digits};

const EPOCHS: usize = 3;

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(SIDE * SIDE, 64).init(device),
            output: LinearConfig::new(64, NUM_CLASSES).init(device),
        }
    }

    /// `[batch, 1, 28, 28]` to `[batch, classes]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = self.hidden.forward(images.flatten(1, 3));
        self.output.forward(Tanh::new().forward(hidden))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mesh = DeviceMesh::parse(std::env::args().nth(1).as_deref().unwrap_or("fsdp=2"))?;
    let device = mesh.device().autodiff();
    device.seed(42);
    let mut model = Net::new(&device).parallelize_with(&mesh, &Plan::new())?;
    let mut optimizer = AdamConfig::new().init();
    let train = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(50)
        .num_workers(1)
        .set_device(device.clone())
        .build(digits(640, 1));
    let valid = DataLoaderBuilder::new(DigitBatcher)
        .batch_size(50)
        .set_device(mesh.device())
        .build(digits(160, 2));
    let criterion = CrossEntropyLossConfig::new().init(&device);

    for epoch in 1..=EPOCHS {
        for (step, batch) in train.iter().enumerate() {
            let batch = batch?;
            let loss = criterion.forward(model.forward(batch.images), batch.labels);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
            println!(
                "train {epoch}/{EPOCHS} step {step} Loss {}",
                loss.into_scalar::<f32>()
            );
        }
        let (model, mut right) = (model.valid(), 0.0);
        for batch in valid.iter() {
            let batch = batch?;
            let found = model.forward(batch.images).argmax(1).squeeze_dim(1);
            right += found.equal(batch.labels).int().sum().into_scalar::<f64>();
        }
        println!("valid {epoch}/{EPOCHS} Accuracy {}", 100.0 * right / 160.0);
    }
    Ok(())
}
