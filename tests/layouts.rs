//! What a plan says is what crosses the network, and it is no more than the papers say.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::explanation::Explanation;
use burn_dist::mesh::MeshShape;
use burn_dist::{
    AsyncTp, DeviceMesh, Float, Float8, OnMesh, ParallelizeWith, Plan, Precision, Scaling,
};

use crate::transformer::{BATCH, DIM, Net, SEQ, Training, megatron, sequence_parallel};

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::builder()
        .axes(&text.parse().expect("a mesh"))
        // Even the small gradients of these nets are scattered.
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh")
}

/// Runs one step without the optimizer and returns what its plan does, parameters having been placed before.
fn gradients(mesh: &DeviceMesh, blocks: usize, plan: &Plan) -> (Explanation, f64) {
    let device = mesh.device().autodiff();
    let net = Net::new(blocks, &device)
        .parallelize_with(mesh.shape(), plan)
        .expect("a plan");
    let training = Training { net, step: 0 };
    training.loss(&device).into_scalar::<f32>();
    let (loss, explanation) = burn_dist::explain(&device, || {
        let loss = training.loss(&device);
        let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
        (loss.into_scalar::<f64>(), gradients)
    });
    (explanation, loss.0)
}

/// Number of collectives over `axes`, by kind.
fn counts(explanation: &Explanation, axes: &str) -> BTreeMap<&'static str, i64> {
    let mut counts = BTreeMap::new();
    for collective in explanation.collectives.iter().filter(|c| c.axes == axes) {
        *counts.entry(collective.kind).or_insert(0) += collective.count as i64;
    }
    counts
}

/// What one more block costs: its collectives over `tp`, forward and backward.
fn per_block(text: &str, plan: &Plan) -> BTreeMap<&'static str, i64> {
    let (two, _) = gradients(&mesh(text), 2, plan);
    let (three, _) = gradients(&mesh(text), 3, plan);
    let mut counted = counts(&three, "tp");
    for (kind, count) in counts(&two, "tp") {
        *counted.entry(kind).or_insert(0) -= count;
    }
    counted.retain(|_, count| *count != 0);
    if std::env::var_os("BURN_DIST_TEST_EXPLAIN").is_some() {
        println!("{three}");
    }
    counted
}

/// Bytes received, by rank and kind of collective.
fn received(device: &Device) -> Vec<BTreeMap<&'static str, (u64, u64)>> {
    device
        .report()
        .ranks
        .iter()
        .map(|rank| {
            rank.received
                .iter()
                .map(|(kind, calls, bytes)| (*kind, (*calls, *bytes)))
                .collect()
        })
        .collect()
}

#[test]
fn the_plan_predicts_the_traffic() {
    predicts_the_traffic(&sequence_parallel(), DIM);
}

#[test]
fn the_plan_predicts_the_traffic_of_chunks() {
    predicts_the_traffic(&sequence_parallel().async_tp(AsyncTp::On), DIM);
}

#[test]
fn the_plan_predicts_the_traffic_of_float8() {
    for scaling in [Scaling::Tensorwise, Scaling::Rowwise, Scaling::Blockwise128] {
        let plan = sequence_parallel().precision(Precision::new(Float::BF16));
        let plan = plan.float8(Float8::new(scaling));
        predicts_the_traffic(&plan, DIM);
        if scaling == Scaling::Blockwise128 {
            // Weights of several blocks, quantised where they rest.
            predicts_on(&["fsdp=2", "tp=2", "fsdp=2,tp=2", "fsdp=4"], &plan, 256);
        }
    }
}

fn predicts_the_traffic(plan: &Plan, dim: usize) {
    let meshes = [
        "",
        "dp=2",
        "fsdp=2",
        "tp=2",
        "fsdp=2,tp=2",
        "dp=2,tp=2",
        "dp=2,fsdp=2,tp=2",
        "fsdp=4",
        "cp=2",
        "cp=4",
        "fsdp=2,cp=2",
        "cp=2,tp=2",
    ];
    predicts_on(&meshes, plan, dim);
}

fn predicts_on(meshes: &[&str], plan: &Plan, dim: usize) {
    for &text in meshes {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        let net = Net::wide(2, dim, &device)
            .parallelize_with(mesh.shape(), plan)
            .expect("a plan");
        let mut training = Training { net, step: 0 };
        let mut optimizer = AdamWConfig::new().init();
        // The first step also makes the optimizer's state.
        for _ in 0..3 {
            let before = received(&device);
            let (_, explanation) = burn_dist::explain(&device, || {
                let loss = training.loss(&device);
                let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
                training.net = optimizer.step(1e-2, training.net.clone(), gradients);
                loss.into_scalar::<f32>()
            });
            training.step += 1;
            let after = received(&device);
            for (rank, (before, after)) in before.iter().zip(&after).enumerate() {
                let moved: BTreeMap<&str, (u64, u64)> = after
                    .iter()
                    .map(|(kind, (calls, bytes))| {
                        let (calls_before, bytes_before) =
                            before.get(kind).copied().unwrap_or_default();
                        (*kind, (calls - calls_before, bytes - bytes_before))
                    })
                    .filter(|(_, (calls, _))| *calls > 0)
                    .collect();
                let planned: BTreeMap<&str, (u64, u64)> = explanation
                    .totals
                    .iter()
                    .map(|(kind, total)| (*kind, (total.count, total.bytes)))
                    .collect();
                // Everything here divides evenly, but for numbers such as the loss, whose terms only the first rank
                // receives.
                let ranks = mesh.shape().ranks().count();
                let lost = |kind: &str| -> u64 {
                    let uneven = explanation.collectives.iter().filter(|c| {
                        c.kind == kind && !c.shape.iter().product::<usize>().is_multiple_of(ranks)
                    });
                    let bytes = uneven.map(|c| c.bytes).sum();
                    if rank == 0 { 0 } else { bytes }
                };
                for (kind, (calls, bytes)) in &planned {
                    let (found_calls, found_bytes) = moved.get(kind).copied().unwrap_or_default();
                    let bytes_min = bytes.saturating_sub(lost(kind));
                    assert!(
                        found_calls == *calls && (bytes_min..=*bytes).contains(&found_bytes),
                        "mesh {text}, rank {rank}, {kind}: {found_calls} calls and {found_bytes} bytes\n{explanation}"
                    );
                }
                assert_eq!(
                    moved.len(),
                    planned.len(),
                    "mesh {text}, rank {rank}: {moved:?}\n{explanation}"
                );
            }
        }
    }
}

#[test]
fn uneven_parts_move_no_more_than_planned() {
    for text in ["tp=3", "fsdp=3", "fsdp=2,tp=3"] {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        let plan = Plan::new()
            .colwise("blocks.*.w1")
            .colwise("blocks.*.w3")
            .rowwise("blocks.*.w2")
            .vocab("output");
        let net = Net::new(1, &device)
            .parallelize_with(mesh.shape(), &plan)
            .expect("a plan");
        let training = Training { net, step: 0 };
        training.loss(&device).into_scalar::<f32>();
        let before = received(&device);
        let (_, explanation) = burn_dist::explain(&device, || {
            let loss = training.loss(&device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            (loss.into_scalar::<f32>(), gradients)
        });
        let after = received(&device);
        let mut busiest: BTreeMap<&str, u64> = BTreeMap::new();
        for (before, after) in before.iter().zip(&after) {
            for (kind, (calls, bytes)) in after {
                let (calls_before, bytes_before) = before.get(kind).copied().unwrap_or_default();
                let total = explanation.totals.get(kind).copied().unwrap_or_default();
                assert_eq!(
                    calls - calls_before,
                    total.count,
                    "mesh {text}: calls of {kind}"
                );
                let moved = bytes - bytes_before;
                assert!(
                    moved <= total.bytes,
                    "mesh {text}: {kind} moved {moved} of {total:?}"
                );
                let entry = busiest.entry(kind).or_default();
                *entry = moved.max(*entry);
            }
        }
        // The bound is tight up to which rank is the busiest of each collective.
        for (kind, total) in &explanation.totals {
            assert!(
                2 * busiest[kind] >= total.bytes,
                "mesh {text}: {kind} planned {total:?}, moved {}",
                busiest[kind]
            );
        }
    }
}

#[test]
fn a_megatron_block_moves_four_activations() {
    // Megatron-LM (arXiv:1909.08053), section 3: one all-reduce of an activation after attention and one after the MLP,
    // forward and backward. The planner may do it in two halves, scattered features and a gather, and sum the
    // statistics of the norms between: the same bytes and a little.
    for (text, local_batch) in [("tp=2", BATCH), ("fsdp=2,tp=2", BATCH / 2)] {
        let (two, _) = gradients(&mesh(text), 2, &megatron());
        let (three, _) = gradients(&mesh(text), 3, &megatron());
        let bytes = |explanation: &Explanation| -> u64 {
            let over_tp = explanation.collectives.iter().filter(|c| c.axes == "tp");
            over_tp.map(|c| c.bytes).sum()
        };
        // An all-reduce over 2 ranks receives the tensor once: half of it to be reduced, half of it reduced.
        let activation = (local_batch * SEQ * DIM * size_of::<f32>()) as u64;
        let statistics = (4 * local_batch * SEQ * size_of::<f32>()) as u64;
        let moved = bytes(&three) - bytes(&two);
        assert!(
            (4 * activation..=4 * activation + statistics).contains(&moved),
            "mesh {text}: {moved} bytes per block, {activation} per activation\n{three}"
        );
    }
}

#[test]
fn a_sequence_parallel_block_gathers_and_scatters_twice_each_way() {
    // Korthikanti et al. (arXiv:2205.05198), section 4.2.2: each all-reduce becomes a reduce-scatter and an all-gather,
    // twice forward and twice backward. The gathered inputs are kept for the weight gradients rather than gathered
    // again. The gains of the two norms see parts of the sequence: their gradients are summed, over the shard axis at
    // the same time where there is one.
    let mut expected =
        BTreeMap::from([("all_gather", 4), ("reduce_scatter", 4), ("all_reduce", 2)]);
    assert_eq!(per_block("tp=2", &sequence_parallel()), expected);
    expected.remove("all_reduce");
    assert_eq!(per_block("fsdp=2,tp=2", &sequence_parallel()), expected);
}

#[test]
fn fsdp_gathers_each_parameter_and_scatters_each_gradient() {
    let (explanation, _) = gradients(&mesh("fsdp=2"), 2, &Plan::new());
    let counted = counts(&explanation, "fsdp");
    // 2 blocks of 9 parameters, the embedding, the last norm and the output.
    assert_eq!(counted.get("reduce_scatter"), Some(&21), "{explanation}");
    // The loss, which is one number.
    assert_eq!(counted.get("all_reduce"), Some(&1), "{explanation}");
    // Those that are used again in backward long after forward are gathered again: never more than twice each.
    let gathers = counted["all_gather"];
    assert!((21..=42).contains(&gathers), "{gathers}\n{explanation}");
}

#[test]
fn data_parallelism_only_reduces_gradients() {
    let (explanation, _) = gradients(&mesh("dp=2"), 2, &Plan::new());
    let shape = MeshShape::parse("dp=2").expect("a mesh");
    assert_eq!(explanation.mesh, shape.to_string());
    let counted = counts(&explanation, "dp");
    // 21 gradients and the loss.
    assert_eq!(
        counted,
        BTreeMap::from([("all_reduce", 22)]),
        "{explanation}"
    );
}

#[test]
fn parameters_and_optimizer_state_are_a_share_of_the_whole() {
    /// A table of which a step reads few rows: gathering those is cheaper than reducing its gradient.
    #[derive(Module, Debug)]
    struct Table {
        embedding: Embedding,
        output: Linear,
    }
    let (vocab, ranks) = (1024, 4);
    let mesh = mesh("fsdp=4");
    let device = mesh.device().autodiff();
    let table = Table {
        embedding: EmbeddingConfig::new(vocab, DIM).init(&device),
        output: LinearConfig::new(DIM, DIM).with_bias(false).init(&device),
    };
    let mut table = table
        .parallelize_with(&mesh, &Plan::new())
        .expect("nothing to place");
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..2 {
        let tokens: Vec<i32> = (0..8).map(|i| (i * 31 + step) % vocab as i32).collect();
        let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device).reshape([8, 1]);
        let out = table.output.forward(table.embedding.forward(tokens));
        let gradients = GradientsParams::from_grads(out.powi_scalar(2).sum().backward(), &table);
        table = optimizer.step(1e-2, table, gradients);
    }
    let whole = 3 * size_of::<f32>() * table.num_params();
    for rank in device.report().ranks {
        let share = rank.at_rest_bytes as f64 * ranks as f64 / whole as f64;
        assert!((share - 1.0).abs() < 0.01, "rank {}: {share}", rank.rank);
    }
}
