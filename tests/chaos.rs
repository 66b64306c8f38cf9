//! Whole programs under delays, reordering and killed ranks, from seeds: results are bitwise those without, and who is
//! killed is named to everyone.
//!
//! ```text
//! cargo test -p promises --test promises chaos::                          # 500 seeds
//! BURN_DIST_CHAOS=17 cargo test -p promises --test promises chaos::       # only seed 17
//! BURN_DIST_CHAOS=0..2000 cargo test --release -p promises --test promises chaos::
//! ```
//!
//! A seed decides the program, whether it runs in one process or in several (simulated ones, whose messages are delayed
//! too), and whether a rank is killed, and where.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::launch::World;
use burn_dist::mesh::Chaos;
use burn_dist::mesh::Rank;
use burn_dist::{
    DTensor, DeviceMesh, DeviceMeshBuilder, OnMesh, ParallelizeWith, Plan, ShardStrategy,
};

use crate::weights::deterministic;

/// Two products between an embedding and its transpose: tied weights, sizes that nothing divides.
#[derive(Module, Debug)]
struct Tiny {
    embedding: Embedding,
    up: Linear,
    down: Linear,
}

const VOCAB: usize = 7;
const STEPS: usize = 2;

impl Tiny {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(VOCAB, 6).init(device),
            up: LinearConfig::new(6, 10).init(device),
            down: LinearConfig::new(10, 6).init(device),
        }
    }

    fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        let x = self.embedding.forward(tokens);
        let x = x.clone() + self.down.forward(relu(self.up.forward(x)));
        let logits = x.matmul(self.embedding.weight.val().transpose().unsqueeze());
        (logits - 0.25).powi_scalar(2).mean()
    }
}

/// A mesh and a plan.
struct Program {
    axes: &'static str,
    /// Processes that can share the ranks out.
    processes: usize,
    parallel: fn() -> Plan,
    strategy: ShardStrategy,
    /// Layout of the batch, if the planner is not to choose it: what is so small may be computed whole everywhere.
    batch: Option<&'static str>,
}

const PROGRAMS: [Program; 5] = [
    Program {
        axes: "dp=2",
        processes: 2,
        parallel: Plan::new,
        strategy: ShardStrategy::Full,
        batch: Some("[{dp}, -]"),
    },
    Program {
        axes: "fsdp=3",
        processes: 3,
        parallel: units,
        strategy: ShardStrategy::Full,
        batch: None,
    },
    Program {
        axes: "tp=2",
        processes: 2,
        parallel: tensor_parallel,
        strategy: ShardStrategy::Full,
        batch: None,
    },
    Program {
        axes: "dp=2,fsdp=2",
        processes: 2,
        parallel: units,
        strategy: ShardStrategy::GradOptim,
        batch: None,
    },
    Program {
        axes: "fsdp=2,tp=2",
        processes: 4,
        parallel: tensor_parallel,
        strategy: ShardStrategy::Full,
        batch: None,
    },
];

fn units() -> Plan {
    Plan::new().unit("up").unit("down")
}

fn tensor_parallel() -> Plan {
    units().colwise("up").rowwise("down")
}

/// Bits of losses and weights, and the calls of each rank here.
#[derive(PartialEq, Eq, Debug, Clone)]
struct Outcome {
    bits: Vec<u32>,
    calls: Vec<u64>,
}

struct Bits(Result<Vec<u32>, String>);

impl ModuleVisitor for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let read = bits(param.val());
        self.0 = std::mem::replace(&mut self.0, Ok(Vec::new())).and_then(|mut all| {
            all.extend(read?);
            Ok(all)
        });
    }
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Result<Vec<u32>, String> {
    let data = tensor.try_into_data().map_err(|error| error.to_string())?;
    Ok(data.iter::<f32>().map(f32::to_bits).collect())
}

impl Program {
    fn builder(&self) -> DeviceMeshBuilder {
        let builder = DeviceMesh::builder().axes(&self.axes.parse().expect("a mesh"));
        builder
            .scatter_bytes_min(0)
            .timeout(Duration::from_secs(20))
    }

    /// Trains; an error is that of the first read that fails.
    fn run(&self, builder: DeviceMeshBuilder) -> Result<Outcome, String> {
        let mesh = builder.build().expect("a mesh");
        let device = mesh.device().autodiff();
        let net = deterministic(Tiny::new(&device));
        let mut net = net
            .parallelize_with(&mesh, &(self.parallel)().strategy(self.strategy))
            .expect("a plan");
        let mut optimizer = AdamWConfig::new().init();
        let mut all = Vec::new();
        for step in 0..STEPS as i32 {
            let tokens: Vec<i32> = (0..12).map(|i| (i * 5 + step) % VOCAB as i32).collect();
            let mut tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [4, 3]), &device);
            if let Some(layout) = self.batch {
                tokens = tokens.redistribute(layout).expect("a layout");
            }
            let loss = net.loss(tokens);
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(1e-2, net, gradients);
            all.extend(bits(loss)?);
        }
        let mut weights = Bits(Ok(all));
        net.visit(&mut weights);
        let bits = weights.0?;
        device.sync().map_err(|error| error.to_string())?;
        let ranks = device.report().ranks;
        let calls =
            |received: &[(&str, u64, u64)]| received.iter().map(|(_, calls, _)| calls).sum();
        Ok(Outcome {
            bits,
            calls: ranks.iter().map(|rank| calls(&rank.received)).collect(),
        })
    }

    /// Runs in `processes` processes; what each of them gives.
    fn run_in(&self, processes: usize, chaos: &Chaos) -> Vec<Result<Outcome, String>> {
        if processes == 1 {
            return vec![self.run(self.builder().chaos(chaos.clone()))];
        }
        std::thread::scope(|scope| {
            let worlds = World::simulated_with(processes, chaos).into_iter();
            let threads: Vec<_> = worlds
                .map(|world| {
                    scope.spawn(move || self.run(self.builder().chaos(chaos.clone()).world(world)))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no process panics"))
                .collect()
        })
    }

    fn check(&self, seed: u64, expected: &Outcome) {
        let draw = |purpose: u64| {
            let state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ purpose.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (state ^ (state >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
        };
        let processes = match draw(0) % 3 {
            0 => self.processes,
            _ => 1,
        };
        let chaos = Chaos::new(seed);
        if draw(1) % 3 != 0 {
            for found in self.run_in(processes, &chaos) {
                assert_eq!(found.expect("nobody is killed").bits, expected.bits);
            }
            return;
        }
        let victim = draw(2) % expected.calls.len() as u64;
        let at = draw(3) % expected.calls[victim as usize];
        for found in self.run_in(processes, &chaos.with_kill(Rank(victim as u32), at)) {
            let error = found.expect_err("somebody is killed");
            let named = format!("rank {victim} was killed at its call {at} by chaos seed {seed}");
            assert!(error.contains(&named), "{error}");
        }
    }
}

/// The seeds to run.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("BURN_DIST_CHAOS") else {
        return 0..500;
    };
    let number = |text: &str| {
        text.trim()
            .parse()
            .expect("BURN_DIST_CHAOS is a seed, or two as 0..2000")
    };
    match text.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => number(&text)..number(&text) + 1,
    }
}

/// More than a mesh waits: whoever is not back then hangs.
const SOON: Duration = Duration::from_secs(60);

/// Runs the seeds of one of the programs.
fn run(index: usize) {
    let program = &PROGRAMS[index];
    let expected = program.run(program.builder()).expect("no chaos, no fault");
    assert!(
        expected.calls.iter().all(|calls| *calls > 3),
        "{:?}",
        expected.calls
    );
    for seed in seeds().filter(|seed| seed % PROGRAMS.len() as u64 == index as u64) {
        let (done, is_done) = mpsc::channel();
        let expected = expected.clone();
        // A thread of its own: one that hangs is left behind.
        std::thread::spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| program.check(seed, &expected)));
            let _ = done.send(result.is_ok());
        });
        let repeat = format!(
            "repeat it: BURN_DIST_CHAOS={seed} cargo test -p promises --test promises chaos::"
        );
        match is_done.recv_timeout(SOON) {
            Ok(true) => {}
            Ok(false) => panic!("chaos seed {seed} failed on {}; {repeat}", program.axes),
            Err(_) => panic!("chaos seed {seed} hangs on {}; {repeat}", program.axes),
        }
    }
}

#[test]
fn data_parallel() {
    run(0);
}

#[test]
fn sharded_over_three() {
    run(1);
}

#[test]
fn split_products() {
    run(2);
}

#[test]
fn hybrid_sharding() {
    run(3);
}

#[test]
fn sharded_and_split() {
    run(4);
}
