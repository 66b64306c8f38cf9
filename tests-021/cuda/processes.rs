//! Processes of the operating system, with a GPU each: the tests start themselves again as the programs marked so
//! below.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::{gpus, losses};

/// What a process has ended with.
pub(super) struct Ended {
    pub(super) succeeded: bool,
    pub(super) said: String,
}

/// Runs processes of a program, which find each other over TCP; each has variables of its own.
pub(super) fn run<'a>(
    program: &str,
    processes: usize,
    variables: impl Fn(usize) -> Vec<(&'a str, &'a str)>,
) -> Vec<Ended> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("a port").port().to_string();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("a test knows where it is"));
        command
            .args([program, "--exact", "--ignored", "--nocapture"])
            .envs(variables(rank))
            .env("BURN_DIST_FLIGHT", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if processes > 1 {
            command
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", processes.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", &port);
        }
        command.spawn().expect("a process")
    };
    let all: Vec<_> = (0..processes).map(start).collect();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = all
            .into_iter()
            .map(|process| scope.spawn(|| process.wait_with_output().expect("a process")))
            .collect();
        let ended = waiting.into_iter().map(|thread| {
            let output = thread.join().expect("no panic");
            let [out, error] =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            Ended {
                succeeded: output.status.success(),
                said: format!("{out}{error}"),
            }
        });
        ended.collect()
    })
}

/// The losses that a process has printed.
pub(super) fn printed(of: &Ended) -> String {
    let line = of.said.lines().find_map(|line| line.split_once("losses: "));
    let (_, losses) = line.unwrap_or_else(|| panic!("no losses in\n{}", of.said));
    losses.into()
}

#[test]
#[ignore = "a program that tests below start"]
fn prints_the_losses_of_two() {
    println!("losses: {:?}", losses(gpus("fsdp=2")));
}

#[test]
#[ignore = "a program that tests below start"]
fn prints_the_losses_of_four() {
    println!("losses: {:?}", losses(gpus("fsdp=2,tp=2")));
}

#[test]
#[ignore = "a program that tests below start"]
fn prints_the_losses_of_eight() {
    println!("losses: {:?}", losses(gpus("dp=2,fsdp=2,tp=2")));
}

/// Fails unless processes of a program, of which each has a part of the GPUs, print these losses.
fn train_as_one(program: &str, processes: usize, one: &[f64]) {
    let one = format!("{one:?}");
    for process in run(program, processes, |_| Vec::new()) {
        assert!(process.succeeded, "{}", process.said);
        assert_eq!(printed(&process), one);
    }
}

#[test]
#[ignore = "needs 2 NVIDIA GPUs and NCCL"]
fn processes_of_the_system_train_as_one() {
    let one = losses(gpus("fsdp=2"));
    train_as_one("processes::prints_the_losses_of_two", 2, &one);
}

#[test]
#[ignore = "needs 4 NVIDIA GPUs and NCCL"]
fn processes_of_four_gpus_train_as_one() {
    let one = losses(gpus("fsdp=2,tp=2"));
    for processes in [2, 4] {
        train_as_one("processes::prints_the_losses_of_four", processes, &one);
    }
}

#[test]
#[ignore = "needs 8 NVIDIA GPUs and NCCL"]
fn processes_of_eight_gpus_train_as_one() {
    let one = losses(gpus("dp=2,fsdp=2,tp=2"));
    for processes in [2, 8] {
        train_as_one("processes::prints_the_losses_of_eight", processes, &one);
    }
}
