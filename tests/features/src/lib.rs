//! Trains on a mesh, whatever features of Burn's crates are on: see `all` in `Cargo.toml`.

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_dist::{DeviceMesh, Dist, ParallelizeWith, Plan};
use burn_flex::Flex;

/// A module with one layer.
#[derive(Module, Debug)]
pub struct Model<B: Backend> {
    linear: Linear<B>,
}

/// Returns the loss before and after one step of training.
pub fn train_one_step<B: AutodiffBackend>(model: Model<B>, inputs: Tensor<B, 2>) -> [f32; 2]
where
    Model<B>: burn::module::AutodiffModule<B>,
{
    use burn::tensor::ElementConversion;

    let loss = |model: &Model<B>| model.linear.forward(inputs.clone()).powf_scalar(2.0).mean();
    let before = loss(&model);
    let grads = GradientsParams::from_grads(before.backward(), &model);
    let model = SgdConfig::new().init().step(0.1, model, grads);
    [before, loss(&model)].map(|loss| loss.into_scalar().elem())
}

/// Trains on a mesh of two ranks.
pub fn train_on_two_ranks() -> [f32; 2] {
    type B = Autodiff<Dist<Flex>>;
    let mesh = DeviceMesh::parse("fsdp=2").expect("a mesh");
    let device = mesh.device();
    let model = Model::<B> {
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
