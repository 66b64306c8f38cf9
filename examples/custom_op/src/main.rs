//! Trains a feed-forward block with a kernel of its own, on a mesh: `cargo run -p custom_op -- fsdp=2,tp=2`.

use std::error::Error;

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Distribution, Tensor};
use burn_dist::{DeviceMesh, Parallelize};
use custom_op::layer::FeedForward;

fn main() -> Result<(), Box<dyn Error>> {
    let axes = std::env::args().nth(1).unwrap_or("tp=2".into());
    let mesh = DeviceMesh::builder().axes(&axes.parse()?).build()?;
    let device = mesh.device().autodiff();
    device.seed(0);
    let mut model = FeedForward::new(16, 64, &device).parallelize(&mesh)?;
    let mut optimizer = AdamWConfig::new().init();
    let x = Tensor::<2>::random([32, 16], Distribution::Default, &device);
    let y = x.clone().powf_scalar(2.0);
    for step in 1..=20 {
        let loss = (model.forward(x.clone()) - y.clone())
            .powf_scalar(2.0)
            .mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
        println!("step {step:>2}  loss {:.6}", loss.into_scalar::<f32>());
    }
    let step = || model.forward(x.clone()).into_data();
    let (_, explanation) = burn_dist::explain(&device, step);
    println!("{explanation}");
    Ok(())
}
