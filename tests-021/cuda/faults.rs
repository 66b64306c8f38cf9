//! GPUs and processes that fail: a run ends on every rank, and says which call of CUDA's or NCCL's has failed, or who
//! is missing. The tests start themselves again as the program below, and want CUDA in software, which fails when it is
//! told to.

use std::env;
use std::time::{Duration, Instant};

use burn_dist::mesh::GpuTransport;

use super::processes::{Ended, printed, run};
use super::{gpus, losses_on};

/// How the GPUs of the program talk to each other.
const TRANSPORT: &str = "PROMISES_TRANSPORT";

/// The rank whose process ends in the middle of its run.
const DIES: &str = "PROMISES_DIES";

/// A call of CUDA in software that fails; a GPU that stops; the memory of each.
const FAIL: &str = "CUDA_IN_SOFTWARE_FAIL";
const HANG: &str = "CUDA_IN_SOFTWARE_HANG";
const MEMORY: &str = "CUDA_IN_SOFTWARE_MEMORY";

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
        Ok("workspace") => GpuTransport::Workspace,
        _ => GpuTransport::Auto,
    };
    let mesh = gpus("fsdp=2").gpu_transport(transport).timeout(TIMEOUT);
    let mesh = mesh
        .build()
        .unwrap_or_else(|error| panic!("no mesh: {error}"));
    println!("losses: {:?}", losses_on(&mesh));
    if env::var(DIES).is_ok_and(|dies| env::var("RANK").is_ok_and(|rank| rank == dies)) {
        std::process::abort();
    }
    println!("losses: {:?}", losses_on(&mesh));
}

/// Runs the program in so many processes, with these variables for all of them, and returns what each has said; all of
/// them have failed, and in time.
fn failing(processes: usize, variables: &[(&str, &str)]) -> Vec<String> {
    let begun = Instant::now();
    let ended: Vec<Ended> = run("faults::trains_twice", processes, |_| variables.to_vec());
    let took = begun.elapsed();
    let said = ended.into_iter().enumerate().map(|(rank, process)| {
        let Ended { succeeded, said } = process;
        assert!(
            !succeeded,
            "{variables:?}: process {rank} has not failed\n{said}"
        );
        said
    });
    let said = said.collect();
    assert!(took < OVER, "{variables:?}: {took:?}");
    said
}

/// Fails unless what a process has said contains some words.
fn contains(said: &str, words: &str, variables: &[(&str, &str)]) {
    assert!(
        said.contains(words),
        "{variables:?}: no `{words}` in\n{said}"
    );
}

#[test]
#[ignore = "needs CUDA in software"]
fn a_call_that_fails_ends_the_run_and_is_named() {
    for (transport, processes, call) in [
        ("auto", 1, "cuMemcpyDtoDAsync_v2:5:700"),
        ("auto", 1, "cuStreamWriteValue32_v2:5:700"),
        ("auto", 1, "cuCtxRecordEvent:5:700"),
        ("nccl", 1, "ncclCommInitRankConfig:1:2"),
        ("nccl", 1, "ncclSend:3:3"),
        ("nccl", 1, "ncclGroupEnd:5:1"),
        ("workspace", 2, "cuMemCreate:1:2"),
        ("workspace", 2, "cuMemExportToShareableHandle:1:999"),
    ] {
        let variables = [(TRANSPORT, transport), (FAIL, call)];
        let (symbol, _) = call.split_once(':').expect("a name and numbers");
        let name = symbol.trim_end_matches("_v2");
        for said in failing(processes, &variables) {
            contains(&said, &format!("failed in {name}"), &variables);
        }
    }
}

/// CubeCL does not say which call it was.
#[test]
#[ignore = "needs CUDA in software"]
fn a_call_of_cubecls_that_fails_ends_the_run() {
    for call in [
        "cuLaunchKernel:60:719",
        "cuMemcpyHtoDAsync_v2:20:700",
        "cuMemcpyDtoHAsync_v2:2:700",
        "nvrtcCompileProgram:5:6",
        "cuModuleLoadData:5:209",
    ] {
        let variables = [(FAIL, call)];
        let said = failing(1, &variables).remove(0);
        contains(&said, " failed in ", &variables);
    }
}

/// CubeCL asks for memory in another way then.
#[test]
#[ignore = "needs CUDA in software"]
fn memory_that_is_refused_once_changes_nothing() {
    let losses = |variables: &[(&str, &str)]| {
        let ended = run("faults::trains_twice", 1, |_| variables.to_vec()).remove(0);
        assert!(ended.succeeded, "{variables:?}\n{}", ended.said);
        printed(&ended)
    };
    assert_eq!(losses(&[(FAIL, "cuMemAllocAsync:6:2")]), losses(&[]));
}

#[test]
#[ignore = "needs CUDA in software"]
fn memory_that_runs_out_ends_the_run() {
    let variables = [(MEMORY, "100000")];
    let said = failing(1, &variables).remove(0);
    contains(&said, "can't allocate buffer", &variables);
    contains(&said, " failed in ", &variables);
}

#[test]
#[ignore = "needs CUDA in software"]
fn a_gpu_that_stops_ends_the_run() {
    for processes in [1, 2] {
        let variables = [(HANG, "1:600")];
        for said in failing(processes, &variables) {
            contains(&said, "gave up after", &variables);
        }
    }
}

#[test]
#[ignore = "needs CUDA in software"]
fn a_process_that_is_killed_ends_the_others() {
    for transport in ["auto", "workspace", "host"] {
        let variables = [(TRANSPORT, transport), (DIES, "1")];
        let said = failing(2, &variables).remove(0);
        contains(&said, "losses: ", &variables);
        contains(&said, "rank 1 ", &variables);
        contains(&said, "has vanished", &variables);
    }
}
