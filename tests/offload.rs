//! Offload: the same training to the bit, in less device memory, as predicted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Tensor;
use burn_dist::explanation::Explanation;
use burn_dist::report::RankStats;
use burn_dist::{
    ActivationCheckpoint, DeviceMesh, DeviceMeshBuilder, Offload, OnMesh, ParallelizeWith, Plan,
};

use crate::transformer::{Net, Training, megatron};

const STEPS: usize = 6;
const BLOCKS: usize = 4;

struct Run {
    losses: Vec<u32>,
    weights: Vec<u32>,
    ranks: Vec<RankStats>,
    explanation: Explanation,
}

struct Bits(Vec<u32>);

impl ModuleVisitor for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data();
        self.0.extend(data.iter::<f32>().map(f32::to_bits));
    }
}

fn builder(axes: &str) -> DeviceMeshBuilder {
    DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .account_memory(true)
}

fn offload(text: &str) -> Offload {
    text.parse().expect("an offload")
}

fn train(mesh: DeviceMeshBuilder, plan: &Plan) -> Run {
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device().autodiff();
    device.seed(5);
    let net = Net::new(BLOCKS, &device)
        .parallelize_with(&mesh, &plan.clone().unit("blocks"))
        .expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    let ((), explanation) = burn_dist::explain(&device, || {
        for step in 0..STEPS {
            training.step = step;
            let loss = training.loss(&device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            training.net = optimizer.step(1e-2, training.net.clone(), gradients);
            let loss: f32 = loss.into_scalar();
            losses.push(loss.to_bits());
        }
    });
    let ranks = device.report().ranks;
    let mut weights = Bits(Vec::new());
    training.net.visit(&mut weights);
    Run {
        losses,
        weights: weights.0,
        ranks,
        explanation,
    }
}

#[test]
fn offload_changes_memory_and_no_bit() {
    for (axes, plan, policy) in [
        ("", Plan::new(), ActivationCheckpoint::None),
        ("fsdp=2", Plan::new(), ActivationCheckpoint::None),
        ("fsdp=2", Plan::new(), ActivationCheckpoint::Full),
        ("tp=2", megatron(), ActivationCheckpoint::None),
        ("fsdp=2,tp=2", megatron(), ActivationCheckpoint::Selective),
    ] {
        let plan = || plan.clone().checkpoint(policy);
        let expected = train(builder(axes), &plan());
        for text in [
            "params",
            "optimizer",
            "activations",
            "params,optimizer,activations",
        ] {
            let run = train(builder(axes), &plan().offload(offload(text)));
            let what = format!("`{axes}` {policy}, {text}");
            assert!(run.losses == expected.losses, "{what}: losses differ");
            assert!(run.weights == expected.weights, "{what}: weights differ");
            for (rank, before) in run.ranks.iter().zip(&expected.ranks) {
                let (predicted, found) = (rank.predicted_peak_bytes, rank.peak_bytes);
                let planned = &run.explanation.memory[rank.rank as usize];
                eprintln!(
                    "{what}, rank {}: predicted {predicted}, accounted {found} at {}, without {}; host {} of {}",
                    rank.rank,
                    planned.peak_cause,
                    before.peak_bytes,
                    rank.host_bytes,
                    rank.host_peak_bytes,
                );
                assert!(
                    predicted.abs_diff(found) * 100 <= predicted,
                    "{what}, rank {}: predicted {predicted}, accounted {found}",
                    rank.rank
                );
                // Full checkpointing leaves next to no activations to move.
                let little = policy == ActivationCheckpoint::Full && text == "activations";
                let falls = match little {
                    true => found <= before.peak_bytes,
                    false => found < before.peak_bytes,
                };
                assert!(falls, "{what}: {found} of {}", before.peak_bytes);
                assert!(rank.host_peak_bytes > 0, "{what}");
                assert_eq!(before.host_peak_bytes, 0);
                let kept = text != "activations";
                assert_eq!(rank.host_bytes > 0, kept, "{what}: {}", rank.host_bytes);
            }
        }
    }
}

#[test]
fn everything_offloaded_leaves_a_fraction() {
    let expected = train(builder("fsdp=2"), &Plan::new());
    let all = offload("params,optimizer,activations");
    let run = train(builder("fsdp=2"), &Plan::new().offload(all));
    for (rank, before) in run.ranks.iter().zip(&expected.ranks) {
        assert_eq!(rank.resident_bytes, 0, "all that is kept is on the host");
        assert!(
            rank.peak_bytes * 100 < before.peak_bytes * 75,
            "{} of {}",
            rank.peak_bytes,
            before.peak_bytes
        );
    }
}

#[test]
fn too_little_host_memory_is_an_error_with_a_way_out() {
    let all = offload("params,optimizer,host=4096");
    let ended = catch_unwind(AssertUnwindSafe(|| {
        train(builder("fsdp=2"), &Plan::new().offload(all));
    }));
    let panic = ended.expect_err("4 KiB are too little");
    let text = panic
        .downcast_ref::<String>()
        .expect("a text that was put together");
    for part in [
        "params,optimizer",
        "of host memory",
        "4.0 KiB are allowed",
        "offload less",
    ] {
        assert!(text.contains(part), "{text} must say {part}");
    }
}
