//! The promises between processes that `mpirun` starts; each runs all of them, with its own ranks.

use burn_dist_comm::{Communicator, LocalOptions, Mpi, World};
use conformance::{BETWEEN_PROCESSES, PATIENT, messages};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

fn connect(num_ranks: usize, timeout: Duration) -> Vec<Box<dyn Communicator>> {
    let world = WORLD.get_or_init(|| World::over(|| Mpi::init(|| None)).unwrap());
    let options = LocalOptions {
        timeout,
        ..Default::default()
    };
    let ranks = world.connect_spread(num_ranks, options).unwrap();
    let boxed = |comm| Box::new(comm) as Box<dyn Communicator>;
    ranks.into_iter().map(boxed).collect()
}

static WORLD: OnceLock<World> = OnceLock::new();

#[test]
#[ignore = "a program that the test below starts"]
fn program() {
    for (name, promise) in BETWEEN_PROCESSES {
        promise(connect);
        println!("KEPT {name}");
    }
    let world = WORLD.get().expect("every promise connects");
    world.finish(PATIENT).unwrap();
}

#[test]
#[ignore = "a program that the test below starts"]
fn message_program() {
    messages::keep_with(Mpi::init(|| None).unwrap());
    println!("KEPT messages");
}

/// Runs a program with so many processes; returns how many promises these say that they have kept.
fn kept(program: &str, num_processes: usize) -> usize {
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n"])
        .arg(num_processes.to_string())
        .arg(std::env::current_exe().unwrap())
        .args([program, "--exact"])
        .args(["--ignored", "--nocapture"])
        .output()
        .expect("mpirun is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text.matches("KEPT ").count()
}

#[test]
fn every_promise_is_kept() {
    for num_processes in [2, 4] {
        let expected = BETWEEN_PROCESSES.len() * num_processes;
        assert_eq!(kept("program", num_processes), expected);
    }
}

#[test]
fn messages_are_as_promised() {
    assert_eq!(kept("message_program", 3), 3);
}
