//! Collectives between processes, against plain MPI doing the same.
//!
//! ```text
//! cargo bench -p burn-dist-comm --features mpi --bench processes
//! ```
//!
//! Starts itself under `mpirun`, in turn as ours and as plain MPI (`MPI_Allgather`, `MPI_Reduce_scatter_block`,
//! `MPI_Allreduce`, in their own order of summation), one rank per process, calls back to back, and prints the best
//! time per call of each, their ratio (plain / ours: above 1 is faster than plain MPI), and at the end all ratios as
//! one line of JSON. The physical limit on one machine is copying memory: every byte received is written once.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use burn_dist_comm::{Call, Communicator, Group, LocalOptions, Mpi, Strided, World};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _};

const KINDS: [&str; 3] = ["all_gather", "reduce_scatter", "all_reduce"];

/// Bytes of the whole tensor.
const SIZES: [usize; 5] = [256, 64 << 10, 1 << 20, 8 << 20, 64 << 20];

const ROUNDS: usize = 3;

/// Longer than the end of the others takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Repetitions of one size within a round.
fn repetitions(bytes: usize) -> usize {
    ((64 << 20) / bytes).clamp(5, 1000)
}

/// Times calls back to back, after one that does not count: each needs all processes, so that none runs ahead.
fn per_call(bytes: usize, mut once: impl FnMut()) -> f64 {
    once();
    let start = Instant::now();
    let count = repetitions(bytes);
    for _ in 0..count {
        once();
    }
    start.elapsed().as_secs_f64() / count as f64
}

fn report(kind: &str, bytes: usize, seconds: f64) {
    println!("TIME {kind} {bytes} {seconds:e}");
}

fn ours(world: &World) {
    let num = world.num_processes();
    let comm = world
        .connect(num, LocalOptions::default())
        .expect("a rank per process")
        .remove(0);
    let group = Group::world(num).expect("some ranks");
    for kind in KINDS {
        for bytes in SIZES {
            let elements = bytes / 4;
            let whole = burn_dist_comm::elements(vec![1.0_f32; elements]);
            let part = burn_dist_comm::elements(vec![1.0_f32; elements / num]);
            let parts = Strided::flat(vec![bytes / num; num]);
            let together = Call::all_reduce(&group, DType::F32, ReduceOp::Sum, vec![0.0_f32]);
            let once = || {
                let call = match kind {
                    "all_gather" => {
                        Call::all_gather(&group, DType::F32, parts.clone(), part.clone())
                    }
                    "reduce_scatter" => Call::reduce_scatter(
                        &group,
                        DType::F32,
                        ReduceOp::Sum,
                        parts.clone(),
                        whole.clone(),
                    ),
                    _ => Call::all_reduce(&group, DType::F32, ReduceOp::Sum, whole.clone()),
                };
                let _ = comm.run(call).expect("all call it");
            };
            let _ = comm.run(together.clone()).expect("all are there");
            let seconds = per_call(bytes, once);
            if world.process() == 0 {
                report(kind, bytes, seconds);
            }
        }
    }
}

fn plain() {
    let universe = mpi::initialize().expect("MPI");
    let world = universe.world();
    let num = world.size() as usize;
    for kind in KINDS {
        for bytes in SIZES {
            let elements = bytes / 4;
            let (whole, part) = (vec![1.0_f32; elements], vec![1.0_f32; elements / num]);
            let (mut to_whole, mut to_part) = (whole.clone(), part.clone());
            let once = || match kind {
                "all_gather" => world.all_gather_into(&part[..], &mut to_whole[..]),
                "reduce_scatter" => world.reduce_scatter_block_into(
                    &whole[..],
                    &mut to_part[..],
                    SystemOperation::sum(),
                ),
                _ => world.all_reduce_into(&whole[..], &mut to_whole[..], SystemOperation::sum()),
            };
            world.barrier();
            let seconds = per_call(bytes, once);
            if world.rank() == 0 {
                report(kind, bytes, seconds);
            }
        }
    }
}

/// Best times by kind and size.
type Times = BTreeMap<(String, usize), f64>;

fn run(processes: usize, who: &str, times: &mut Times) {
    let output = Command::new("mpirun")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            &processes.to_string(),
        ])
        .arg(std::env::current_exe().expect("a program knows where it is"))
        .arg(who)
        .output()
        .expect("mpirun is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some(line) = line.strip_prefix("TIME ") else {
            continue;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let key = (words[0].to_string(), words[1].parse().expect("bytes"));
        let seconds: f64 = words[2].parse().expect("seconds");
        let best = times.entry(key).or_insert(f64::INFINITY);
        *best = best.min(seconds);
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("ours") => {
            let world = World::over(|| Mpi::init(|| None)).expect("MPI");
            ours(&world);
            return world.finish(PATIENCE).expect("all end");
        }
        Some("plain") => return plain(),
        _ => {}
    }
    let mut ratios = serde_json::Map::new();
    for processes in [2, 4] {
        let (mut of_ours, mut of_plain) = (Times::new(), Times::new());
        for _ in 0..ROUNDS {
            run(processes, "ours", &mut of_ours);
            run(processes, "plain", &mut of_plain);
        }
        println!("{processes} processes          bytes        ours       plain MPI   ratio");
        for ((kind, bytes), ours) in &of_ours {
            let plain = of_plain[&(kind.clone(), *bytes)];
            println!(
                "  {kind:<15} {bytes:>10} {:>9.1} us {:>12.1} us {:>7.2}",
                ours * 1e6,
                plain * 1e6,
                plain / ours
            );
            ratios.insert(format!("{kind}_{bytes}_{processes}"), (plain / ours).into());
        }
    }
    println!("{}", serde_json::Value::Object(ratios));
}
