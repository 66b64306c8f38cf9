//! Meshes to train the small model on, and its weights afterwards, to be compared bit by bit.

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_dist::{DeviceMesh, DeviceMeshBuilder, Dist};

pub type B = Autodiff<Dist<Flex>>;

pub const BLOCKS: usize = 3;

/// A mesh on which gradients are scattered however small they are.
pub fn builder(axes: &str) -> DeviceMeshBuilder {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
}

/// The content of all float parameters.
pub fn weights<B: Backend>(model: &impl Module<B>) -> Vec<TensorData> {
    struct Weights(Vec<TensorData>);
    impl<B: Backend> ModuleVisitor<B> for Weights {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut weights = Weights(Vec::new());
    model.visit(&mut weights);
    weights.0
}
