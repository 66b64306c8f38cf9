//! GPUs and processes that fail: a run ends on every rank, and says which call of CUDA's or NCCL's has failed, or who
//! is missing. The tests start themselves again as the program below, and want CUDA in software, which fails when it is
//! told to.

use std::env;
use std::time::{Duration, Instant};

use burn_dist::mesh::GpuTransport;

use super::processes::{Ended, run};
use super::{losses_on, two_gpus};

/// How the GPUs of the program talk to each other.
const TRANSPORT: &str = "PROMISES_TRANSPORT";

/// The rank whose process ends in the middle of its run.
const DIES: &str = "PROMISES_DIES";

/// After so long, a rank no longer waits for others.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A run that fails is over after so long: two time-outs, one after the other, and what a machine with few cores takes
/// to start it.
const OVER: Duration = Duration::from_secs(90);

#[test]
#[ignore = "a program that tests below start"]
fn trains_twice() {
    let transport = match env::var(TRANSPORT).as_deref() {
        Ok("nccl") => GpuTransport::Nccl,
        Ok("host") => GpuTransport::Host,
        _ => GpuTransport::Auto,
    };
    let mesh = two_gpus("fsdp").gpu_transport(transport).timeout(TIMEOUT);
    let mesh = mesh.build().unwrap_or_else(|error| panic!("no mesh: {error}"));
    println!("losses: {:?}", losses_on(&mesh));
    if env::var(DIES).is_ok_and(|dies| env::var("RANK").is_ok_and(|rank| rank == dies)) {
        std::process::abort();
    }
    println!("losses: {:?}", losses_on(&mesh));
}

/// Runs the program, with variables for one of its processes or for all of them, and returns the words of each process;
/// all of them have failed, and in time.
fn failing(processes: usize, variables: &[(Option<usize>, &str, &str)]) -> Vec<Ended> {
    let begun = Instant::now();
    let of = |rank: usize| {
        let mine = variables.iter().filter(move |(of, ..)| of.is_none_or(|of| of == rank));
        mine.map(|(_, name, value)| (*name, *value)).collect()
    };
    let ended = run("faults::trains_twice", processes, of);
    for (rank, process) in ended.iter().enumerate() {
        assert!(!process.succeeded, "{variables:?}: process {rank} goes on\n{}", process.said);
    }
    assert!(begun.elapsed() < OVER, "{variables:?}: {:?}", begun.elapsed());
    ended
}
