//! Flops of a training step: what is counted is what the papers' closed form says.

use burn_dist::explanation::Redundancy;
use burn_dist::{ActivationCheckpoint, DeviceMesh, Plan};

use crate::llama::{LlamaConfig, Size};
use crate::planned;

/// What a step takes, by formula.
struct Form {
    /// Two for each token and element of a matrix: the embedding is read, not multiplied with.
    matrices: f64,
    /// Two products of queries and the keys that a causal mask leaves them.
    attention: f64,
    /// Queries and keys are turned by a matrix as wide as a head, which has no gradient.
    rotation: f64,
    /// Of the matrices of all layers, those whose results the backward needs: all but the last one of each.
    needed: f64,
}

impl Form {
    fn new(config: &LlamaConfig, (seq, batch): (usize, usize)) -> Self {
        let tokens = (batch * seq) as f64;
        let [dim, hidden, layers] = [config.dim, config.hidden_dim, config.num_layers];
        let parameters = config.num_params() - config.vocab * dim;
        let pairs = (batch * seq * (seq + 1) / 2) as f64;
        let output = config.vocab * dim;
        let kv_dim = config.num_kv_heads * config.head_dim();
        let needed = parameters - output - layers * hidden * dim;
        Self {
            matrices: 2.0 * tokens * parameters as f64,
            attention: 4.0 * pairs * (layers * dim) as f64,
            rotation: 2.0 * tokens * (layers * (dim + kv_dim) * config.head_dim()) as f64,
            needed: 2.0 * tokens * needed as f64,
        }
    }

    /// Forward, and twice that backward: 6 for each parameter and token. What has no gradient is used twice.
    fn of_model(&self) -> f64 {
        3.0 * (self.matrices + self.attention) + 2.0 * self.rotation
    }

    /// Attention makes its scores again in the backward: half of its forward.
    fn of_hardware(&self) -> f64 {
        self.of_model() + self.attention / 2.0
    }

    /// And layers are run again.
    fn of_hardware_again(&self) -> f64 {
        self.of_hardware() + self.needed + self.attention + self.rotation
    }
}

fn counted(size: Size, mesh: &str, (seq, batch): (usize, usize), plan: &str) -> Redundancy {
    let axes = DeviceMesh::builder().axes(&mesh.parse().expect("a mesh"));
    let policy: ActivationCheckpoint = plan.parse().expect("a policy");
    let amend = |plan: Plan| plan.checkpoint(policy);
    planned::llama_step(size, axes, amend, (seq, batch)).redundancy
}

fn assert_near(found: f64, expected: f64, what: &str) {
    let error = found / expected - 1.0;
    assert!(error.abs() < 0.01, "{what}: {found:e} for {expected:e}");
}

#[test]
fn counted_flops_are_the_closed_form() {
    for size in [Size::Tiny, Size::S, Size::M, Size::B8] {
        let shape = size.default_seq_and_batch();
        let form = Form::new(&size.config(), shape);
        for (policy, hardware) in [
            ("none", form.of_hardware()),
            ("full", form.of_hardware_again()),
        ] {
            let work = counted(size, "fsdp=2", shape, policy);
            let what = format!("{size:?}, {policy}");
            assert_near(work.model_flops, form.of_model(), &format!("{what}, model"));
            assert_near(work.hardware_flops, hardware, &format!("{what}, hardware"));
        }
    }
}

#[test]
fn no_mesh_changes_the_flops_of_the_model() {
    let shape = Size::Tiny.default_seq_and_batch();
    let expected = counted(Size::Tiny, "fsdp=2", shape, "none");
    for mesh in ["dp=2", "tp=2", "cp=2", "pp=2", "fsdp=2,tp=2"] {
        let work = counted(Size::Tiny, mesh, shape, "none");
        assert_eq!(work.model_flops, expected.model_flops, "{mesh}");
        assert_near(work.hardware_flops, expected.hardware_flops, mesh);
    }
}
