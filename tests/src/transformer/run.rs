//! Ten steps of the small model, and what they leave, to be compared bit by bit.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Tensor, TensorData};
use burn_dist::explanation::Explanation;
use burn_dist::{DeviceMesh, DeviceMeshBuilder, ParallelizeWith, Plan};

use crate::transformer::{DIM, Net, Training};
use crate::weights::deterministic;

pub const STEPS: usize = 10;
pub const BLOCKS: usize = 3;

pub struct Run {
    pub losses: Vec<f32>,
    pub weights: Vec<TensorData>,
    /// The plan of the last step.
    pub explanation: Explanation,
}

/// A mesh on which gradients are scattered however small they are.
pub fn builder(axes: &str) -> DeviceMeshBuilder {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
}

/// Trains with every block a unit.
pub fn train(mesh: DeviceMeshBuilder, plan: &Plan) -> Run {
    train_wide(mesh, plan, BLOCKS, DIM, STEPS)
}

/// Does the same as [`train`], with a model with other sizes.
pub fn train_wide(
    mesh: DeviceMeshBuilder,
    plan: &Plan,
    blocks: usize,
    dim: usize,
    steps: usize,
) -> Run {
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device().autodiff();
    let net = deterministic(Net::wide(blocks, dim, &device))
        .parallelize_with(&mesh, &plan.clone().unit("blocks"))
        .expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    let mut last = None;
    for step in 0..steps {
        training.step = step;
        let (loss, explanation) = burn_dist::explain(&device, || {
            let loss = training.loss(&device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            training.net = optimizer.step(1e-2, training.net.clone(), gradients);
            loss.into_scalar()
        });
        losses.push(loss);
        last = Some(explanation);
    }
    Run {
        losses,
        weights: weights(&training.net),
        explanation: last.expect("there were steps"),
    }
}

/// The content of all float parameters.
pub fn weights(model: &impl Module) -> Vec<TensorData> {
    struct Weights(Vec<TensorData>);
    impl ModuleVisitor for Weights {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut weights = Weights(Vec::new());
    model.visit(&mut weights);
    weights.0
}

pub fn assert_alike(found: &Run, expected: &Run, what: &str) {
    assert_eq!(found.losses, expected.losses, "losses of {what}");
    for (number, (found, expected)) in found.weights.iter().zip(&expected.weights).enumerate() {
        assert!(
            found.bytes() == expected.bytes(),
            "weights {number} of {what}"
        );
    }
}
