//! Activation checkpointing: bitwise the same training, in less memory.

use std::num::NonZeroUsize;

use crate::llama::Size;
use crate::planned;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor};
use burn_dist::explanation::Explanation;
use burn_dist::{ActivationCheckpoint, DeviceMesh, ParallelizeWith, Plan, Regions, UnitPolicy};

const VOCAB: usize = 32;
const DIM: usize = 32;
const HEADS: usize = 4;
const BATCH: usize = 4;
const SEQ: usize = 24;
const BLOCKS: usize = 4;

#[derive(Module, Debug)]
struct Block {
    norm: RmsNorm,
    wq: Linear,
    wk: Linear,
    wv: Linear,
    wo: Linear,
    norm_ff: RmsNorm,
    ff: SwiGlu,
    w2: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let square = LinearConfig::new(DIM, DIM).with_bias(false);
        Self {
            norm: RmsNormConfig::new(DIM).init(device),
            wq: square.init(device),
            wk: square.init(device),
            wv: square.init(device),
            wo: square.init(device),
            norm_ff: RmsNormConfig::new(DIM).init(device),
            ff: SwiGluConfig::new(DIM, DIM * 2).init(device),
            w2: LinearConfig::new(DIM * 2, DIM).init(device),
            dropout: DropoutConfig::new(0.2).init(),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let heads = |x: Tensor<3>| {
            let [batch, seq, _] = x.dims();
            x.reshape([batch, seq, HEADS, DIM / HEADS]).swap_dims(1, 2)
        };
        let y = self.norm.forward(x.clone());
        let q = heads(self.wq.forward(y.clone()));
        let k = heads(self.wk.forward(y.clone()));
        let v = heads(self.wv.forward(y));
        let scores = q.matmul(k.swap_dims(2, 3)).div_scalar((DIM / HEADS) as f64);
        let mixed = self.dropout.forward(softmax(scores, 3)).matmul(v);
        let [batch, _, seq, _] = mixed.dims();
        let mixed = self
            .wo
            .forward(mixed.swap_dims(1, 2).reshape([batch, seq, DIM]));
        let x = x + self.dropout.forward(mixed);
        let f = self
            .w2
            .forward(self.ff.forward(self.norm_ff.forward(x.clone())));
        x + self.dropout.forward(f)
    }
}

/// How the blocks are used.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// One after the other.
    Once,
    /// All of them, twice: every block has two visits forward.
    Twice,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(VOCAB, DIM).init(device),
            blocks: (0..BLOCKS).map(|_| Block::new(device)).collect(),
            norm: RmsNormConfig::new(DIM).init(device),
            output: LinearConfig::new(DIM, VOCAB).init(device),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>, order: Order) -> Tensor<3> {
        let rounds = match order {
            Order::Once => 1,
            Order::Twice => 2,
        };
        let mut x = self.embedding.forward(tokens);
        for _ in 0..rounds {
            for block in &self.blocks {
                x = block.forward(x);
            }
        }
        self.output.forward(self.norm.forward(x))
    }
}

fn plan() -> Plan {
    Plan::new()
        .vocab("embedding")
        .colwise("blocks.*.wq")
        .colwise("blocks.*.wk")
        .colwise("blocks.*.wv")
        .rowwise("blocks.*.wo")
        .colwise("blocks.*.ff.*")
        .rowwise("blocks.*.w2")
        .vocab("output")
        .unit("blocks")
}

/// What a training run leaves, to the bit.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<u64>,
    weights: Vec<u32>,
}

/// What is trained, and how.
#[derive(Clone, Copy)]
struct Setup<'a> {
    mesh: &'a str,
    policy: ActivationCheckpoint,
    microbatches: usize,
    order: Order,
    steps: usize,
    /// How elementwise work runs; as everywhere else where nothing is said.
    regions: Option<Regions>,
}

impl<'a> Setup<'a> {
    fn new(mesh: &'a str, policy: ActivationCheckpoint) -> Self {
        Self {
            mesh,
            policy,
            microbatches: 1,
            order: Order::Once,
            steps: 6,
            regions: None,
        }
    }
}

fn mesh(text: &str, regions: Option<Regions>) -> DeviceMesh {
    let builder = DeviceMesh::builder()
        .axes(&text.parse().expect("a mesh"))
        .scatter_bytes_min(0);
    let builder = match regions {
        Some(regions) => builder.regions(regions),
        None => builder,
    };
    builder.build().expect("a mesh")
}

fn run(setup: Setup<'_>, plan: Plan) -> (Outcome, Explanation) {
    let mesh = mesh(setup.mesh, setup.regions);
    let device = mesh.device().autodiff();
    device.seed(7);
    let net = Net::new(&device)
        .parallelize_with(mesh.shape(), &plan.checkpoint(setup.policy))
        .expect("a plan that fits");
    train(net, &device, setup)
}

fn train(net: Net, device: &Device, setup: Setup<'_>) -> (Outcome, Explanation) {
    let mut net = net;
    let mut optimizer = AdamWConfig::new().init();
    let loss_fn = CrossEntropyLossConfig::new().init(device);
    let mut losses = Vec::new();
    let mut explanation = None;
    for step in 0..setup.steps {
        let mut one = || {
            let mut accumulator = GradientsAccumulator::new();
            let mut total: Option<Tensor<1>> = None;
            for micro in 0..setup.microbatches {
                let tokens: Vec<i32> = (0..BATCH * SEQ)
                    .map(|i| ((i * 7 + (step * 3 + micro) * 13 + 3) % VOCAB) as i32)
                    .collect();
                let x = Tensor::<1, Int>::from_ints(tokens.as_slice(), device);
                let logits = net.forward(x.clone().reshape([BATCH, SEQ]), setup.order);
                let loss = loss_fn.forward(logits.reshape([BATCH * SEQ, VOCAB]), x);
                let gradients = GradientsParams::from_grads(loss.backward(), &net);
                accumulator.accumulate(&net, gradients);
                total = Some(match total.take() {
                    Some(total) => total + loss.detach(),
                    None => loss.detach(),
                });
            }
            net = optimizer.step(1e-2, net.clone(), accumulator.grads());
            total.expect("a microbatch").into_scalar::<f64>()
        };
        let loss = if step + 1 == setup.steps {
            let (loss, plan) = burn_dist::explain::<f64>(device, one);
            explanation = Some(plan);
            loss
        } else {
            one()
        };
        assert!(loss.is_finite());
        losses.push(loss.to_bits());
    }
    let outcome = Outcome {
        losses,
        weights: weights(&net),
    };
    (outcome, explanation.expect("at least one step"))
}

fn weights(net: &Net) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            self.0.extend(data.iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    net.visit(&mut bits);
    bits.0
}

fn every(n: usize) -> ActivationCheckpoint {
    ActivationCheckpoint::EveryNth(NonZeroUsize::new(n).expect("not zero"))
}

const MESHES: [&str; 4] = ["", "fsdp=2", "tp=2", "fsdp=2,tp=2"];

#[test]
fn every_policy_trains_to_the_bit_like_none() {
    for text in MESHES {
        let (expected, none) = run(Setup::new(text, ActivationCheckpoint::None), plan());
        assert_eq!(none.recomputed.ops, 0);
        let mut activations = Vec::new();
        for policy in [
            ActivationCheckpoint::Full,
            every(2),
            ActivationCheckpoint::Selective,
            ActivationCheckpoint::Bytes(40_000),
        ] {
            let (found, plan) = run(Setup::new(text, policy), plan());
            assert!(found == expected, "`{text}` {policy}: the training differs");
            let visits = match policy {
                ActivationCheckpoint::EveryNth(_) => BLOCKS / 2,
                _ => BLOCKS,
            };
            assert_eq!(
                plan.recomputed.visits as usize, visits,
                "`{text}` {policy}\n{plan}"
            );
            assert_eq!(
                plan.recomputed.visits_seen as usize, BLOCKS,
                "`{text}` {policy}"
            );
            activations.push(plan.activation_bytes());
            eprintln!(
                "`{text}` {policy}: {} of {} bytes, {} steps again",
                plan.activation_bytes(),
                none.activation_bytes(),
                plan.recomputed.ops
            );
        }
        let most = none.activation_bytes();
        let [full, every, selective, bytes] = activations[..] else {
            panic!("four policies");
        };
        // What a policy saves alone: regions make masks again without any.
        let alone = |policy| Setup {
            regions: Some(Regions::Flex),
            ..Setup::new(text, policy)
        };
        let [most_alone, full_alone] = [ActivationCheckpoint::None, ActivationCheckpoint::Full]
            .map(|policy| run(alone(policy), plan()).1.activation_bytes());
        assert!(
            full_alone * 3 < most_alone,
            "`{text}`: {full_alone} of {most_alone}"
        );
        assert!(
            full <= full_alone && most <= most_alone,
            "`{text}`: {full} and {most}"
        );
        assert!(
            full < selective && selective < most,
            "`{text}`: {selective}"
        );
        assert!(full < every && every < most, "`{text}`: {every}");
        assert!(
            full < bytes && bytes <= full + 2 * 40_000,
            "`{text}`: {bytes}"
        );
    }
}

#[test]
fn the_step_that_makes_the_parameters_is_checkpointed_too() {
    for mesh in ["", "dp=2", "fsdp=2", "fsdp=2,tp=2"] {
        let first = |policy| Setup {
            steps: 1,
            ..Setup::new(mesh, policy)
        };
        let (expected, _) = run(first(ActivationCheckpoint::None), plan());
        let (found, explanation) = run(first(ActivationCheckpoint::Full), plan());
        assert_eq!(found, expected, "mesh `{mesh}`");
        let visits = explanation.recomputed.visits as usize;
        assert_eq!(visits, BLOCKS, "mesh `{mesh}`: {explanation}");
    }
}

#[test]
fn microbatches_are_checkpointed_one_by_one() {
    for text in ["", "fsdp=2,tp=2"] {
        let setup = |policy| Setup {
            microbatches: 2,
            steps: 3,
            ..Setup::new(text, policy)
        };
        let (expected, none) = run(setup(ActivationCheckpoint::None), plan());
        for policy in [
            ActivationCheckpoint::Full,
            ActivationCheckpoint::Selective,
            ActivationCheckpoint::Bytes(40_000),
        ] {
            let (found, plan) = run(setup(policy), plan());
            assert!(found == expected, "`{text}` {policy}: the training differs");
            assert_eq!(
                plan.recomputed.visits as usize,
                2 * BLOCKS,
                "`{text}` {policy}"
            );
            assert!(plan.activation_bytes() < none.activation_bytes());
        }
    }
}

#[test]
fn units_used_twice_are_checkpointed_twice() {
    for text in ["", "fsdp=2"] {
        let setup = |policy| Setup {
            order: Order::Twice,
            steps: 2,
            ..Setup::new(text, policy)
        };
        let (expected, none) = run(setup(ActivationCheckpoint::None), plan());
        let (found, plan) = run(setup(ActivationCheckpoint::Full), plan());
        assert!(found == expected, "`{text}`: the training differs");
        assert_eq!(
            plan.recomputed.visits as usize,
            2 * BLOCKS,
            "`{text}`\n{plan}"
        );
        assert!(plan.activation_bytes() * 2 < none.activation_bytes());
    }
}

#[test]
fn marked_units_need_no_policy() {
    let (expected, _) = run(Setup::new("fsdp=2", ActivationCheckpoint::None), plan());
    let full = || UnitPolicy::new().checkpoint(ActivationCheckpoint::Full);
    let marked = plan()
        .unit_policy("blocks.1", full())
        .unit_policy("blocks.2", full());
    let (found, plan) = run(Setup::new("fsdp=2", ActivationCheckpoint::None), marked);
    assert!(found == expected);
    assert_eq!(plan.recomputed.visits, 2, "{plan}");
}

#[test]
fn a_model_without_units_says_so() {
    let setup = Setup {
        steps: 1,
        ..Setup::new("fsdp=2", ActivationCheckpoint::Full)
    };
    let (_, plan) = run(setup, Plan::new());
    assert_eq!(plan.recomputed.ops, 0);
    assert!(
        plan.to_string()
            .contains("checkpoint full: nothing to make again"),
        "{plan}"
    );
}

fn llama_m(policy: ActivationCheckpoint, regions: Regions) -> Explanation {
    let (size, mesh) = (Size::M, DeviceMesh::builder().regions(regions));
    let amend = |plan: Plan| plan.checkpoint(policy);
    planned::llama_step(size, mesh, amend, size.default_seq_and_batch())
}

/// What regions make again, no operation of a region leaves behind.
#[test]
fn regions_hold_three_quarters_of_the_activations() {
    let [on, flex] = [Regions::On, Regions::Flex].map(|regions| {
        let plan = llama_m(ActivationCheckpoint::None, regions);
        plan.activation_bytes()
    });
    assert!(on * 100 <= 75 * flex, "{on} of {flex} bytes");
}

/// By operations of their own, so that each leaves what it makes.
#[test]
fn llama_keeps_a_fraction_of_its_activations() {
    let none = llama_m(ActivationCheckpoint::None, Regions::Flex);
    eprintln!("{none}");
    // Of what there is with attention as one operation, which leaves no scores behind.
    for (policy, percent) in [
        (ActivationCheckpoint::Full, 25),
        (ActivationCheckpoint::Selective, 62),
    ] {
        let plan = llama_m(policy, Regions::Flex);
        eprintln!("{plan}");
        assert_eq!(plan.recomputed.visits, 8, "{plan}");
        let (found, all) = (plan.activation_bytes(), none.activation_bytes());
        assert!(
            found * 100 <= all * percent,
            "{policy}: {found} of {all} bytes\n{plan}"
        );
    }
}
