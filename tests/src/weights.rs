//! Weights to start from that are the same on every backend.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};

/// Gives a model weights that do not depend on the backend's random numbers.
pub fn deterministic<M: Module>(model: M) -> M {
    struct Mapper(usize);
    impl ModuleMapper for Mapper {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            let salt = self.0;
            param.map(|tensor| {
                let shape = tensor.shape();
                let values: Vec<f32> = (0..shape.num_elements())
                    .map(|i| (((i * 37 + salt * 101) % 97) as f32 / 97.0 - 0.5) * 0.4)
                    .collect();
                let device = tensor.device();
                let fixed = Tensor::from_data(TensorData::new(values, shape), &device);
                match device.is_autodiff() {
                    true => fixed.require_grad(),
                    false => fixed,
                }
            })
        }
    }
    model.map(&mut Mapper(0))
}
