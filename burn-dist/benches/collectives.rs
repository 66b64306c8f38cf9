//! How long do the local collectives take, against a copy of the bytes that each rank must move?
//!
//! Sizes are as in nccl-tests: the tensor (all_reduce), the gathered output (all_gather), the input (reduce_scatter), one rank's input
//! (all_to_all), of f32. For S bytes and k ranks, each rank must receive (k-1)/k S from the others; twice that for all_reduce (a
//! reduce-scatter and an all-gather). `memcpy_ratio` is the time of one plain copy of these bytes by one thread, divided by the time of
//! the collective. `limit_ratio` is the same for the physical limit: all bytes that the process must read and write, divided by the
//! traffic that all cores together reach with copies.
//!
//! ```text
//! op              read  written, by all ranks together
//! all_gather      S     S         (ranks of one process share equal outputs)
//! all_reduce      k S   S
//! reduce_scatter  k S   S
//! all_to_all      k S   k S
//! ```
//!
//! Each figure: per repetition, calls back to back on every rank, the slowest rank's time divided by the calls; the median of the
//! repetitions. Copies are measured before and after each collective, and the median of all taken.
//!
//! `cargo bench -p burn-dist --bench collectives [-- NAME...]`, where a NAME picks an operation.

use burn_dist::comm::{AllToAll, Call, Communicator, Group, LocalHub, LocalOptions, Strided};
use burn_dist::layout::ReduceOp;
use burn_std::{Bytes, DType};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SIZES: [usize; 6] = [256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const OPS: [&str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"];
const REPETITIONS: usize = 9;
/// Time of one repetition, about.
const TARGET: Duration = Duration::from_millis(60);

fn main() {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{num_cores} cores; us per call; memcpy_ratio: one thread copies what each rank must receive; limit: what all cores could reach"
    );
    println!(
        "{:<15} {:>5} {:>9} {:>10} {:>9} {:>12} {:>11}",
        "op", "ranks", "bytes", "us", "GB/s", "memcpy_ratio", "limit_ratio"
    );
    let mut rows = Vec::new();
    for num_ranks in [2, 4] {
        for op in OPS
            .into_iter()
            .filter(|op| names.is_empty() || names.iter().any(|name| name == op))
        {
            for bytes in SIZES {
                let received = received_bytes(op, num_ranks, bytes);
                let traffic = traffic_bytes(op, num_ranks, bytes);
                let mut copies = copy_us(received, 1);
                let mut copies_all = copy_us((traffic / 2 / num_cores).max(1), num_cores);
                let us = median(collective_us(op, num_ranks, bytes));
                copies.extend(copy_us(received, 1));
                copies_all.extend(copy_us((traffic / 2 / num_cores).max(1), num_cores));
                let ratio = median(copies) / us;
                let copy_us = ratio * us;
                let limit_ratio = copy_us / median(copies_all);
                println!(
                    "{op:<15} {num_ranks:>5} {bytes:>9} {us:>10.2} {:>9.2} {ratio:>12.3} {limit_ratio:>11.3}",
                    received as f64 / us / 1e3
                );
                rows.push(serde_json::json!({
                    "op": op, "ranks": num_ranks, "bytes": bytes, "us": round(us), "memcpy_ratio": round(ratio),
                    "limit_ratio": round(limit_ratio), "memcpy_us": round(copy_us),
                }));
            }
        }
    }
    println!(
        "{}",
        serde_json::json!({"bench": "collectives", "cores": num_cores, "rows": rows})
    );
}

fn received_bytes(op: &str, num_ranks: usize, bytes: usize) -> usize {
    let once = bytes / num_ranks * (num_ranks - 1);
    if op == "all_reduce" { 2 * once } else { once }
}

fn traffic_bytes(op: &str, num_ranks: usize, bytes: usize) -> usize {
    match op {
        "all_gather" => 2 * bytes,
        "all_to_all" => 2 * num_ranks * bytes,
        _ => (num_ranks + 1) * bytes,
    }
}

/// The call of one rank.
fn call(op: &str, world: &Group, input: &Arc<Bytes>, bytes: usize) -> Call {
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
        _ => Call::all_to_all(world, DType::F32, AllToAll::even(bytes, k), input),
    }
}

/// Microseconds per call, one figure per repetition.
fn collective_us(op: &str, num_ranks: usize, bytes: usize) -> Vec<f64> {
    let world = Group::world(num_ranks).expect("there are ranks");
    let ranks = LocalHub::connect(num_ranks, LocalOptions::default()).expect("there are ranks");
    let barrier = Barrier::new(num_ranks);
    let input_bytes = if op == "all_gather" {
        bytes / num_ranks
    } else {
        bytes
    };
    let per_rank: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                let (world, barrier) = (&world, &barrier);
                scope.spawn(move || {
                    let input = Arc::new(Bytes::from_elems(vec![
                        comm.rank().0 as f32 + 0.5;
                        input_bytes / 4
                    ]));
                    let run = |calls: usize| {
                        barrier.wait();
                        let start = Instant::now();
                        for _ in 0..calls {
                            black_box(
                                comm.run(call(op, world, &input, bytes))
                                    .expect("all ranks make the same calls"),
                            );
                        }
                        start.elapsed()
                    };
                    run(3);
                    let mine = run(10).as_secs_f64() / 10.0;
                    // All ranks must agree on the number of calls.
                    let bits = Arc::new(Bytes::from_elems(vec![mine as f32]));
                    let slowest = comm
                        .run(Call::all_reduce(world, DType::F32, ReduceOp::Max, bits))
                        .expect("all ranks call it");
                    let slowest = f32::from_le_bytes(slowest[..].try_into().expect("one f32"));
                    let calls =
                        ((TARGET.as_secs_f64() / f64::from(slowest)) as usize).clamp(3, 5000);
                    (0..REPETITIONS)
                        .map(|_| run(calls).as_secs_f64() * 1e6 / calls as f64)
                        .collect()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no rank fails"))
            .collect()
    });
    (0..REPETITIONS)
        .map(|i| per_rank.iter().map(|times| times[i]).fold(0.0, f64::max))
        .collect()
}

/// Microseconds of one copy of `bytes` by each of `num_threads` threads at once.
fn copy_us(bytes: usize, num_threads: usize) -> Vec<f64> {
    let barrier = Barrier::new(num_threads);
    let per_thread: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let copy = || {
            let source = vec![1_u8; bytes];
            let mut target = vec![2_u8; bytes];
            let calls = ((20 << 20) / bytes.max(1)).clamp(2, 20_000);
            (0..5)
                .map(|_| {
                    barrier.wait();
                    let start = Instant::now();
                    for _ in 0..calls {
                        black_box(&mut target[..]).copy_from_slice(black_box(&source[..]));
                    }
                    start.elapsed().as_secs_f64() * 1e6 / calls as f64
                })
                .collect()
        };
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(copy)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a copy does not fail"))
            .collect()
    });
    (0..5)
        .map(|i| per_thread.iter().map(|times| times[i]).fold(0.0, f64::max))
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
