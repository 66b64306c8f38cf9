//! How long do the local collectives take, against a copy of the bytes that each rank must move?
//!
//! Sizes are as in nccl-tests: the tensor (all_reduce), the gathered output (all_gather), the input (reduce_scatter),
//! one rank's input (all_to_all), of f32. For S bytes and k ranks, by definition of the operation, a rank
//!
//! ```text
//! op              receives from others  moves (also its own part: nothing is in place)
//! all_gather      (k-1)/k S             S             into its output
//! reduce_scatter  (k-1)/k S             S             k terms of its part
//! all_reduce      2 (k-1)/k S           2 S           a reduce_scatter and an all_gather
//! all_to_all      (k-1)/k S             S             into its output
//! ```
//!
//! `memcpy_ratio` is the time of one plain copy of the bytes that a rank moves, by one thread, divided by the time of
//! the collective; `received_ratio` is the same for the bytes that it receives from others. `limit_ratio` is the
//! memcpy_ratio at the physical limit: all bytes that the process has to read and write (below), at the traffic that
//! all cores together reach with copies.
//!
//! ```text
//! op              read  written, by all ranks together
//! all_gather      S     S         (ranks of one process share equal outputs)
//! all_reduce      k S   S
//! reduce_scatter  k S   S
//! all_to_all      k S   k S
//! ```
//!
//! Each repetition measures the copies and then calls back to back on every rank: the slowest rank's time divided by
//! the calls. Times are medians of the repetitions, ratios are medians of their ratios. Copies cycle through k pairs of
//! buffers, so that their data are as cold as those of the k ranks.
//!
//! `cargo bench -p burn-dist-comm --bench collectives [-- NAME...]`, where a NAME picks an operation.

use burn_dist_comm::{
    AllToAll, Call, Communicator, Group, LocalComm, LocalHub, LocalOptions, SharedBuffer, Strided,
    elements,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SIZES: [usize; 6] = [256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const OPS: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];
const REPETITIONS: usize = 9;
/// Time of one repetition, about.
const TARGET: Duration = Duration::from_millis(60);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this without `--bench`: one small row shows that it works.
    let (sizes, ranks): (&[usize], &[usize]) = if args.iter().any(|arg| arg == "--bench") {
        (&SIZES, &[2, 4])
    } else {
        (&SIZES[1..2], &[2])
    };
    let names: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{num_cores} cores; memcpy_ratio: copy by one thread of what each rank moves (own part included) / collective"
    );
    println!(
        "received_ratio: same, of what each rank receives from others; limit_ratio: memcpy_ratio at the physical limit"
    );
    println!(
        "{:<15} {:>5} {:>9} {:>10} {:>9} {:>12} {:>14} {:>11}",
        "op", "ranks", "bytes", "us", "GB/s", "memcpy_ratio", "received_ratio", "limit_ratio"
    );
    let mut rows = Vec::new();
    for &num_ranks in ranks {
        for op in OPS
            .into_iter()
            .filter(|op| names.is_empty() || names.iter().any(|name| *name == op))
        {
            for &bytes in sizes {
                let reps = measure(op, num_ranks, num_cores, bytes);
                let figure = |of: fn(&Repetition) -> f64| median(reps.iter().map(of).collect());
                let us = figure(|rep| rep.us);
                let ratio = figure(|rep| rep.copy_us / rep.us);
                let received_ratio = figure(|rep| rep.received_copy_us / rep.us);
                let limit_ratio = figure(|rep| rep.copy_us / rep.limit_us);
                let moved = moved_bytes(op, bytes);
                println!(
                    "{op:<15} {num_ranks:>5} {bytes:>9} {us:>10.2} {:>9.2} {ratio:>12.3} {received_ratio:>14.3} \
                     {limit_ratio:>11.3}",
                    moved as f64 / us / 1e3
                );
                rows.push(serde_json::json!({
                    "op": op, "ranks": num_ranks, "bytes": bytes, "us": round(us), "memcpy_ratio": round(ratio),
                    "received_ratio": round(received_ratio), "limit_ratio": round(limit_ratio), "memcpy_us": round(figure(|rep| rep.copy_us)),
                }));
            }
        }
    }
    println!(
        "{}",
        serde_json::json!({"bench": "collectives", "cores": num_cores, "rows": rows})
    );
}

fn moved_bytes(op: &str, bytes: usize) -> usize {
    if op == "all_reduce" { 2 * bytes } else { bytes }
}

/// Read and written by all ranks together.
fn traffic_bytes(op: &str, num_ranks: usize, bytes: usize) -> usize {
    match op {
        "all_gather" => 2 * bytes,
        "all_to_all" => 2 * num_ranks * bytes,
        _ => (num_ranks + 1) * bytes,
    }
}

/// The call of one rank.
fn call(op: &str, world: &Group, input: &SharedBuffer, bytes: usize) -> Call {
    let (k, input) = (world.len(), Arc::clone(input));
    match op {
        "all_reduce" => Call::all_reduce(world, DType::F32, ReduceOp::Sum, input),
        "all_gather" => {
            Call::all_gather(world, DType::F32, Strided::flat(vec![bytes / k; k]), input)
        }
        "reduce_scatter" => Call::reduce_scatter(
            world,
            DType::F32,
            ReduceOp::Sum,
            Strided::flat(vec![bytes / k; k]),
            input,
        ),
        _ => Call::all_to_all(world, DType::F32, even(bytes, k), input),
    }
}

/// The all-to-all of equal pieces: of `bytes` per member, piece j goes to member j.
fn even(bytes: usize, num_members: usize) -> AllToAll {
    let each = bytes / 4 / num_members;
    AllToAll {
        shape: vec![num_members, num_members * each].into(),
        split: (0, vec![1; num_members].into()),
        concat: (1, vec![each; num_members].into()),
        elem_bytes: 4,
    }
}

/// Microseconds of one call, and of the copies beside it.
#[derive(Clone, Copy, Default)]
struct Repetition {
    us: f64,
    copy_us: f64,
    received_copy_us: f64,
    limit_us: f64,
}

fn measure(op: &str, num_ranks: usize, num_cores: usize, bytes: usize) -> Vec<Repetition> {
    let world = Group::world(num_ranks).expect("there are ranks");
    let ranks = LocalHub::connect(num_ranks, LocalOptions::default()).expect("there are ranks");
    let barrier = Barrier::new(num_ranks);
    let moved = moved_bytes(op, bytes);
    let received = moved / num_ranks * (num_ranks - 1);
    let share = (traffic_bytes(op, num_ranks, bytes) / 2 / num_cores).max(1);
    let rank = |comm: LocalComm| -> Vec<Repetition> {
        let id = comm.rank().0 as usize;
        let input_bytes = if op == "all_gather" {
            bytes / num_ranks
        } else {
            bytes
        };
        let input = elements(vec![id as f32 + 0.5; input_bytes / 4]);
        // Rank 0 copies alone, and then as many ranks as there are cores (a rank per core) at once.
        let mut alone = (id == 0).then(|| Copies::new(moved, num_ranks));
        let mut together = (id < num_cores).then(|| Copies::new(share, 1));
        let timed = |calls: usize| {
            barrier.wait();
            let start = Instant::now();
            for _ in 0..calls {
                black_box(
                    comm.run(call(op, &world, &input, bytes))
                        .expect("all ranks make the same calls"),
                );
            }
            start.elapsed().as_secs_f64() * 1e6 / calls as f64
        };
        timed(3);
        // All ranks must agree on the number of calls.
        let mine = elements(vec![timed(10) as f32]);
        let slowest = comm
            .run(Call::all_reduce(&world, DType::F32, ReduceOp::Max, mine))
            .expect("all ranks call it");
        let slowest = f32::from_le_bytes(slowest[..].try_into().expect("one f32"));
        let calls = ((TARGET.as_secs_f64() * 1e6 / f64::from(slowest)) as usize).clamp(3, 5000);
        (0..REPETITIONS)
            .map(|_| {
                let copy_us = alone.as_mut().map_or(0.0, |copies| copies.run(moved));
                let received_copy_us = alone.as_mut().map_or(0.0, |copies| copies.run(received));
                barrier.wait();
                let limit_us = together.as_mut().map_or(0.0, |copies| copies.run(share));
                Repetition {
                    us: timed(calls),
                    copy_us,
                    received_copy_us,
                    limit_us,
                }
            })
            .collect()
    };
    let per_rank: Vec<Vec<Repetition>> = std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| scope.spawn(move || rank(comm)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no rank fails"))
            .collect()
    });
    let slowest = |i: usize, of: fn(&Repetition) -> f64| {
        per_rank.iter().map(|reps| of(&reps[i])).fold(0.0, f64::max)
    };
    (0..REPETITIONS)
        .map(|i| Repetition {
            us: slowest(i, |rep| rep.us),
            copy_us: slowest(i, |rep| rep.copy_us),
            received_copy_us: slowest(i, |rep| rep.received_copy_us),
            limit_us: slowest(i, |rep| rep.limit_us),
        })
        .collect()
}

/// Pairs of buffers to copy between.
struct Copies(Vec<(Vec<u8>, Vec<u8>)>);

impl Copies {
    fn new(bytes: usize, num_pairs: usize) -> Self {
        Self(
            (0..num_pairs)
                .map(|i| (vec![i as u8; bytes], vec![!(i as u8); bytes]))
                .collect(),
        )
    }

    /// Microseconds of one copy of `bytes`, by one thread.
    fn run(&mut self, bytes: usize) -> f64 {
        let rounds = ((64 << 20) / (bytes * self.0.len())).clamp(1, 5000);
        let start = Instant::now();
        for _ in 0..rounds {
            for (source, target) in &mut self.0 {
                black_box(&mut target[..bytes]).copy_from_slice(black_box(&source[..bytes]));
            }
        }
        start.elapsed().as_secs_f64() * 1e6 / (rounds * self.0.len()) as f64
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
