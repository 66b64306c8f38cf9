//! Training steps of the example's Llama on meshes of one machine, against plain Flex in the same run.
//!
//! The machine's limit is the rate of its matrix products: a large product is timed first, and every row says which
//! fraction of it a step reaches. Machines are shared and noisy, so each mesh alternates with Flex step by step and the
//! figure is the median ratio.
//!
//! `cargo bench -p burn-dist --bench llama [-- [S|M] [on|off|flex] [MESH]]`: of one size, with elementwise work in
//! regions or not, on one mesh (`1`: one rank).

use std::time::Instant;

use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::mesh::MeshShape;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::optimizer;
use burn_dist::trainer::step;
use burn_dist::trainer::tokens::{Batch, RandomTokens};
use burn_dist::{DeviceMesh, OnMesh, Parallelize, Regions};
use burn_dist_lm::model::{Llama, LlamaConfig, Size};
use serde_json::json;

struct Trainer {
    model: Option<Llama>,
    optim: ModuleOptimizer,
    device: Device,
}

impl Trainer {
    fn new(model: Llama, device: Device) -> Self {
        Self {
            model: Some(model),
            optim: optimizer::optimizer(),
            device,
        }
    }

    /// Seconds of one step, from the batch to the loss on the host.
    fn step(&mut self, batch: &Batch) -> f64 {
        let start = Instant::now();
        let model = self.model.take().expect("put back below");
        let (model, loss) = step::one(model, &mut self.optim, batch, 3e-4, &self.device);
        let _ = loss.into_data();
        self.model = Some(model);
        start.elapsed().as_secs_f64()
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Floating-point operations per second of a product of 512 x 512 matrices on all cores.
fn peak_flops() -> f64 {
    let make = || Tensor::<2>::random([512, 512], Distribution::Default, &Device::flex());
    let (a, b) = (make(), make());
    let mut times: Vec<f64> = (0..20)
        .map(|_| {
            let start = Instant::now();
            let _ = a.clone().matmul(b.clone()).into_data();
            start.elapsed().as_secs_f64()
        })
        .collect();
    2.0 * 512f64.powi(3) / median(&mut times)
}

/// Operations of the matrix products of one training step: forward, and twice backward.
fn step_flops(config: &LlamaConfig, batch: usize, seq: usize) -> f64 {
    let tokens = (batch * seq) as f64;
    let matrices = (config.num_params() - config.vocab * config.dim) as f64;
    let attention = (2 * config.num_layers * seq * config.dim) as f64;
    6.0 * tokens * (matrices + attention)
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let only = args.iter().find(|arg| ["S", "M"].contains(&arg.as_str()));
    let regions: Regions = args
        .iter()
        .find_map(|arg| arg.parse().ok())
        .unwrap_or_default();
    let on = args.iter().find(|arg| *arg == "1" || arg.contains('='));
    println!("elementwise work: {regions}");
    let peak = peak_flops();
    println!(
        "matrix products reach {:.1} GFLOP/s on this machine",
        peak / 1e9
    );
    println!(
        "{:<5} {:<14} {:>10} {:>8} {:>9} {:>10} {:>7}",
        "size", "mesh", "tokens/s", "ratio", "of peak", "plan share", "misses"
    );
    let mut rows = Vec::new();
    let mut one_rank = json!(null);
    let mut plan_share_max: f64 = 0.0;
    let mut misses_max = 0;
    for (name, size, steps) in [("S", Size::S, 9), ("M", Size::M, 3)] {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let config = size.config();
        let (seq, batch) = size.default_seq_and_batch();
        for text in ["", "fsdp=2", "tp=2", "dp=2", "fsdp=2,tp=2", "fsdp=4"] {
            let mesh_name = if text.is_empty() { "1" } else { text };
            if on.is_some_and(|on| on != mesh_name) {
                continue;
            }
            let axes = MeshShape::parse(text).expect("a mesh");
            let mesh = DeviceMesh::builder().axes(&axes).regions(regions).build();
            let mesh = mesh.expect("a mesh");
            let device = mesh.device().autodiff();
            let flex = Device::flex().autodiff();
            let mut plain = Trainer::new(config.init(&flex), flex);
            let meshed = config
                .init(&device)
                .parallelize(mesh.shape())
                .expect("the model fits the mesh");
            let mut meshed = Trainer::new(meshed, device.clone());
            let mut source = RandomTokens {
                batch,
                seq,
                vocab: config.vocab,
                rng: Rng::new(0, 1),
                held: burn_dist::layout::Rows::all(batch),
            };
            for _ in 0..2 {
                let batch = source.next_batch().expect("random tokens");
                plain.step(&batch);
                meshed.step(&batch);
            }
            let before = device.report();
            let (mut ratios, mut times, mut total) = (Vec::new(), Vec::new(), 0.0);
            for _ in 0..steps {
                let batch = source.next_batch().expect("random tokens");
                let flex = plain.step(&batch);
                let dist = meshed.step(&batch);
                ratios.push(flex / dist);
                times.push(dist);
                total += dist;
            }
            let after = device.report();
            let share = (after.plan_time - before.plan_time).as_secs_f64() / total;
            let misses = after.cache.misses - before.cache.misses;
            let ratio = median(&mut ratios);
            let time = median(&mut times);
            let tokens_per_s = (batch * seq) as f64 / time;
            let of_peak = step_flops(&config, batch, seq) / time / peak;
            println!(
                "{name:<5} {mesh_name:<14} {tokens_per_s:>10.0} {ratio:>8.3} {of_peak:>9.2} {share:>10.4} {misses:>7}"
            );
            if (name, text) == ("S", "") {
                one_rank = json!(1.0 / ratio);
            }
            plan_share_max = plan_share_max.max(share);
            misses_max = misses_max.max(misses);
            rows.push(json!({
                "size": name, "mesh": mesh_name, "tokens_per_s": tokens_per_s, "ratio_to_flex": ratio,
                "fraction_of_peak": of_peak, "plan_share": share, "plan_misses": misses,
                "at_rest_bytes": after.ranks.iter().map(|r| r.at_rest_bytes).collect::<Vec<_>>(),
                "peak_bytes": after.ranks.iter().map(|r| r.peak_bytes).collect::<Vec<_>>(),
            }));
        }
    }
    println!(
        "{}",
        json!({
            "bench": "llama",
            "regions": regions.to_string(),
            "one_rank_ratio": one_rank,
            "plan_share": plan_share_max,
            "plan_misses": misses_max,
            "peak_gflops": peak / 1e9,
            "rows": rows,
        })
    );
}
