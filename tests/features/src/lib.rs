//! Trains on a mesh, whatever features of Burn's crates are on: see `all` in `Cargo.toml`.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Tensor;
use burn_dist::{DeviceMesh, ParallelizeWith, Plan};

/// A module with one layer.
#[derive(Module, Debug)]
pub struct Model {
    linear: Linear,
}

/// Returns the loss before and after one step of training.
pub fn train_one_step(model: Model, inputs: Tensor<2>) -> [f32; 2] {
    let loss = |model: &Model| model.linear.forward(inputs.clone()).powf_scalar(2.0).mean();
    let before = loss(&model);
    let grads = GradientsParams::from_grads(before.backward(), &model);
    let model = SgdConfig::new().init().step(0.1, model, grads);
    [before, loss(&model)].map(|loss| loss.into_scalar())
}

/// Trains on a mesh of two ranks.
pub fn train_on_two_ranks() -> [f32; 2] {
    let mesh = DeviceMesh::parse("fsdp=2").expect("a mesh");
    let device = mesh.device().autodiff();
    let model = Model {
        linear: LinearConfig::new(4, 4).init(&device),
    };
    let model = model
        .parallelize_with(&mesh, &Plan::new())
        .expect("every layout is possible");
    train_one_step(model, Tensor::ones([4, 4], &device))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_step_lowers_the_loss() {
        let [before, after] = super::train_on_two_ranks();
        assert!(after < before, "{after} is not less than {before}");
    }
}
