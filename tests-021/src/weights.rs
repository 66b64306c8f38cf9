//! Weights to start from that are the same on every backend.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

/// Gives a model weights that do not depend on the backend's random numbers.
pub fn deterministic<B: Backend, M: Module<B>>(model: M) -> M {
    struct Mapper(usize);
    impl<B: Backend> ModuleMapper<B> for Mapper {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            self.0 += 1;
            let salt = self.0;
            param.map(|tensor| {
                let shape = tensor.shape();
                let values: Vec<f32> = (0..shape.num_elements())
                    .map(|i| (((i * 37 + salt * 101) % 97) as f32 / 97.0 - 0.5) * 0.4)
                    .collect();
                Tensor::from_data(TensorData::new(values, shape), &tensor.device()).require_grad()
            })
        }
    }
    model.map(&mut Mapper(0))
}
