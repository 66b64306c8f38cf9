//! The meshes, strategies and plans that every loop is run on.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData, Tolerance};
use burn_dist::{DeviceMesh, DeviceMeshBuilder, Plan, ShardStrategy};

/// A mesh, what its shard axis does, and whether the model is split over `tp` and the sequence with it.
pub(super) struct Setting {
    pub axes: &'static str,
    pub strategy: ShardStrategy,
    pub tensor_parallel: bool,
}

/// Every strategy, alone and with tensor and sequence parallelism.
pub(super) fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for (axes, strategies) in [
        ("dp=2", &[ShardStrategy::Full][..]),
        ("fsdp=2", &ShardStrategy::ALL[..]),
        // More ranks than some parameters have rows.
        ("fsdp=3", &[ShardStrategy::Full, ShardStrategy::Optim]),
        (
            "dp=2,fsdp=2",
            &[ShardStrategy::Full, ShardStrategy::GradOptim],
        ),
        ("tp=2", &[ShardStrategy::Full]),
        ("dp=2,tp=2", &[ShardStrategy::Full]),
        ("cp=2", &[ShardStrategy::Full, ShardStrategy::Optim]),
        ("fsdp=2,cp=2", &[ShardStrategy::Full]),
        ("fsdp=2,tp=2", &ShardStrategy::ALL[..]),
    ] {
        for &strategy in strategies {
            settings.push(Setting {
                axes,
                strategy,
                tensor_parallel: axes.contains("tp"),
            });
        }
    }
    settings
}

/// Starts a mesh whose small gradients are scattered like large ones.
pub(super) fn builder(axes: &str) -> DeviceMeshBuilder {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
}

impl Setting {
    pub(super) fn builder(&self) -> DeviceMeshBuilder {
        builder(self.axes)
    }

    /// `split`, or the plan that splits nothing over `tp`, under the strategy.
    pub(super) fn plan(&self, split: Plan) -> Plan {
        let plan = match self.tensor_parallel {
            true => split,
            false => Plan::new(),
        };
        plan.strategy(self.strategy)
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under {}", self.axes, self.strategy)
    }
}

struct Weights(Vec<TensorData>);

impl ModuleVisitor for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().into_data());
    }
}

/// Reads every parameter.
pub(super) fn weights<M: Module>(module: &M) -> Vec<TensorData> {
    let mut weights = Weights(Vec::new());
    module.visit(&mut weights);
    weights.0
}

/// What a run showed.
#[derive(Default)]
pub(super) struct Outcome {
    pub losses: Vec<f64>,
    pub weights: Vec<TensorData>,
}

impl Outcome {
    /// Checks that this is another's outcome, to rounding.
    pub(super) fn assert_close(&self, expected: &Self, what: &str) {
        assert_eq!(self.losses.len(), expected.losses.len(), "{what}");
        for (step, (found, expected)) in self.losses.iter().zip(&expected.losses).enumerate() {
            let error = (found - expected).abs();
            assert!(
                error <= 1e-4 * expected.abs() + 1e-6,
                "{what}: number {step} is {found}, not {expected}"
            );
        }
        assert_eq!(self.weights.len(), expected.weights.len(), "{what}");
        for (found, expected) in self.weights.iter().zip(&expected.weights) {
            found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-3, 1e-4));
        }
    }
}
