//! How much of the communication of a training step hides behind its computing: the example's Llama S on `fsdp=4`, over
//! a modelled link.
//!
//! A step without a link is measured first. The link of the other meshes then has the bandwidth with which the gathers
//! and reductions of a step take 60 % of its computing, at a latency of 20 microseconds. All meshes take their steps in
//! turn, so that a busy machine is busy for all; figures are medians over steps of the mean over ranks.
//!
//! `exposed` is the time in which a rank's thread launched collectives, waited for them or copied for them. Parts of
//! it: `late` is waiting for a rank that had not launched yet, `on wire` is waiting for data when all had. The rest is
//! copying and, on a machine with fewer cores than ranks, waiting for a core; of that and of `late` there is as much
//! without a link. Shares are of the communication: of `exposed`, of `on wire`, and of what the step takes longer than
//! without a link.
//!
//! `cargo bench -p burn-dist --bench overlap [-- STEPS [TRACE.json]]`; the trace is that of prefetch 1.

use std::time::{Duration, Instant};

use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn_dist::mesh::{Link, Links};
use burn_dist::report::RankTimes;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::optimizer;
use burn_dist::trainer::step;
use burn_dist::trainer::tokens::RandomTokens;
use burn_dist::{DeviceMesh, DeviceMeshBuilder, OnMesh, Parallelize, ParallelizeWith, explain};
use burn_dist_lm::model::{Llama, Size};
use serde_json::json;

const RANKS: u64 = 4;
const LATENCY_US: f64 = 20.0;
/// Communication as a share of computing.
const SHARE: f64 = 0.6;

/// What one step took, in milliseconds, the mean over ranks.
#[derive(Clone, Copy, Default)]
struct Step {
    wall: f64,
    compute: f64,
    comm: f64,
    exposed: f64,
    late: f64,
    on_wire: f64,
}

struct Trainer {
    name: String,
    device: Device,
    model: Option<Llama>,
    optim: ModuleOptimizer,
    source: RandomTokens,
    steps: Vec<Step>,
}

impl Trainer {
    fn new(name: &str, builder: DeviceMeshBuilder, prefetch: u32) -> Self {
        let mesh = builder
            .axis("fsdp", RANKS as usize)
            .build()
            .expect("the mesh can be made");
        let device = mesh.device().autodiff();
        let config = Size::S.config();
        let (seq, batch) = Size::S.default_seq_and_batch();
        device.seed(0);
        let model = config.init(&device);
        let plan = model.plan().prefetch(prefetch);
        let model = model.parallelize_with(&mesh, &plan);
        Self {
            name: name.into(),
            device,
            model: Some(model.expect("the model fits the mesh")),
            optim: optimizer::optimizer(),
            source: RandomTokens {
                batch,
                seq,
                vocab: config.vocab,
                rng: Rng::new(0, 1),
                held: burn_dist::layout::Rows::all(batch),
            },
            steps: Vec::new(),
        }
    }

    fn times(&self) -> Vec<RankTimes> {
        let ranks = self.device.report().ranks;
        ranks.into_iter().map(|rank| rank.times).collect()
    }

    fn step(&mut self) -> Step {
        let batch = self.source.next_batch().expect("random tokens");
        let before = self.times();
        let start = Instant::now();
        let model = self.model.take().expect("put back below");
        let (model, loss) = step::one(model, &mut self.optim, &batch, 3e-4, &self.device);
        let _ = loss.into_data();
        self.model = Some(model);
        let wall = start.elapsed();
        let after = self.times();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut step = Step {
            wall: ms(wall),
            ..Step::default()
        };
        let num_ranks = after.len() as f64;
        for (after, before) in after.iter().zip(&before) {
            let times = after.since(before);
            step.compute += ms(times.compute) / num_ranks;
            step.comm += ms(times.comm) / num_ranks;
            step.exposed += ms(times.exposed) / num_ranks;
            step.late += ms(times.late) / num_ranks;
            step.on_wire += ms(times.on_wire) / num_ranks;
        }
        step
    }

    fn median(&self) -> Step {
        let of = |figure: fn(&Step) -> f64| {
            let mut values: Vec<f64> = self.steps.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Step {
            wall: of(|step| step.wall),
            compute: of(|step| step.compute),
            comm: of(|step| step.comm),
            exposed: of(|step| step.exposed),
            late: of(|step| step.late),
            on_wire: of(|step| step.on_wire),
        }
    }
}

/// Steps of all, in turn.
fn run(trainers: &mut [Trainer], steps: usize) {
    for trainer in &mut *trainers {
        for _ in 0..2 {
            trainer.step();
        }
    }
    for _ in 0..steps {
        for trainer in &mut *trainers {
            let step = trainer.step();
            trainer.steps.push(step);
        }
    }
}

/// Rounds and bytes of the collectives of a step: those of the busiest rank.
fn collectives(trainer: &mut Trainer) -> (u64, u64) {
    let device = trainer.device.clone();
    let (_, explanation) = explain(&device, || trainer.step());
    let rounds = explanation.totals.iter().map(|(kind, total)| {
        let each = if *kind == "all_reduce" { 2 } else { 1 };
        each * (RANKS - 1) * total.count
    });
    let bytes = explanation.totals.values().map(|total| total.bytes);
    (rounds.sum(), bytes.sum())
}

fn main() {
    // Cargo says `--bench`.
    let mut args = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"));
    let steps: usize = args
        .next()
        .map_or(7, |text| text.parse().expect("a number of steps"));
    let trace_file = args.next();

    let mut first = [Trainer::new("no link", DeviceMesh::builder(), 1)];
    run(&mut first, steps.div_ceil(2));
    let compute_ms = first[0].median().compute;
    let (rounds, bytes) = collectives(&mut first[0]);
    let latency_ms = rounds as f64 * LATENCY_US / 1e3;
    let gbps = bytes as f64 * 8.0 / ((SHARE * compute_ms - latency_ms) * 1e6);
    let link = Link::new(LATENCY_US, gbps).expect("computing takes longer than the latencies");
    println!(
        "computing {compute_ms:.1} ms a step; {bytes} bytes in {rounds} rounds a rank; link {link}"
    );

    let [mut plain] = first;
    plain.steps.clear();
    let mut trainers = vec![plain];
    for prefetch in [0, 1, 2] {
        let mut builder = DeviceMesh::builder().links(Links::all(link));
        if trace_file.is_some() && prefetch == 1 {
            builder = builder.trace();
        }
        let name = format!("prefetch {prefetch}");
        trainers.push(Trainer::new(&name, builder, prefetch));
    }
    run(&mut trainers, steps);

    println!(
        "{:<12} {:>9} {:>11} {:>8} {:>11} {:>8} {:>10} {:>8} {:>8} {:>8}",
        "",
        "step ms",
        "compute ms",
        "comm ms",
        "exposed ms",
        "late ms",
        "on wire ms",
        "exposed",
        "on wire",
        "slower"
    );
    let baseline = trainers[0].median();
    let mut rows = Vec::new();
    for trainer in &trainers {
        let Step {
            wall,
            compute,
            comm,
            exposed,
            late,
            on_wire,
        } = trainer.median();
        let linked = trainer.name != "no link";
        let share = |ms: f64| linked.then_some(ms / comm);
        let text =
            |share: Option<f64>| share.map_or("".into(), |share| format!("{:.1} %", 1e2 * share));
        let (exposed_share, slower) = (share(exposed), share(wall - baseline.wall));
        println!(
            "{:<12} {wall:>9.1} {compute:>11.1} {comm:>8.1} {exposed:>11.1} {late:>8.1} {on_wire:>10.1} {:>8} {:>8} \
             {:>8}",
            trainer.name,
            text(exposed_share),
            text(share(on_wire)),
            text(slower),
        );
        rows.push(json!({
            "name": trainer.name, "step_ms": wall, "compute_ms": compute, "comm_ms": comm, "exposed_comm_ms": exposed, "late_ms": late,
            "on_wire_ms": on_wire, "exposed_share": exposed_share, "on_wire_share": share(on_wire), "slower_share": slower,
        }));
    }
    if let Some(file) = trace_file {
        let trace = trainers[2].device.trace().expect("it was turned on");
        trace.save(&file).expect("the file can be written");
    }
    println!(
        "{}",
        json!({
            "bench": "overlap", "size": "S", "mesh": "fsdp=4", "latency_us": LATENCY_US, "gbps": gbps,
            "comm_to_compute": SHARE, "exposed_share": rows[2]["exposed_share"], "on_wire_share": rows[2]["on_wire_share"], "slower_share": rows[2]["slower_share"], "rows": rows,
        })
    );
}
