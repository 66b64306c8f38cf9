//! What processes that `burn-dist run` starts by `mpirun` open to other machines: nothing. The test starts itself again
//! as the program marked *ignored* below.
//!
//! ```text
//! cargo test -p burn-dist-launch --features cli,mpi --test listening
//! ```

#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::fs::{read_dir, read_link, read_to_string};
use std::process::Command;

use burn_dist_launch::run::Options;

/// Where this process listens and other machines reach it, as the system writes addresses; and the number of all
/// places.
fn open_to_others() -> (Vec<String>, usize) {
    let mut listening = HashMap::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // In the state of one that listens, or that anyone may send to.
            if matches!(words[3], "0A" | "07") {
                listening.insert(words[9].to_string(), format!("{table} {}", words[1]));
            }
        }
    }
    let (mut open, mut num) = (Vec::new(), 0);
    for descriptor in read_dir("/proc/self/fd").expect("own descriptors") {
        let Ok(to) = read_link(descriptor.expect("a descriptor").path()) else {
            continue;
        };
        let to = to.to_string_lossy().into_owned();
        let socket = to
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        let Some(address) = socket.and_then(|socket| listening.get(socket)) else {
            continue;
        };
        num += 1;
        // 127.0.0.0/8 and ::1, in the order of the bytes of this machine.
        let is_loopback = match address.split_once(' ') {
            Some(("tcp" | "udp", address)) => address[6..].starts_with("7F"),
            Some((_, address)) => address.starts_with("00000000000000000000000001000000"),
            None => false,
        };
        if !is_loopback {
            open.push(address.clone());
        }
    }
    (open, num)
}

#[test]
fn processes_of_a_run_on_this_machine_are_open_to_no_other() {
    let here = std::env::current_exe().expect("a test knows where it is");
    let options = Options::new(2, Vec::new());
    let mut command = Command::new("mpirun");
    command.args(["-n", "2", "--bind-to", "none"]).arg(here);
    command.args(["listening", "--exact", "--ignored", "--nocapture"]);
    for variable in [
        "RANK",
        "WORLD_SIZE",
        "BURN_DIST_RENDEZVOUS",
        "BURN_DIST_TRANSPORT",
    ] {
        command.env_remove(variable);
    }
    let output = command.envs(options.mpirun_environment(None)).output();
    let output = output.expect("Open MPI is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said.matches("OPEN []").count(),
        2,
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Not its own test: a process of the one above.
#[test]
#[ignore = "a program of another test"]
fn listening() {
    let world = burn_dist_launch::world().expect("mpirun has started it");
    assert_eq!(world.expect("two processes").num_processes(), 2);
    println!("OPEN {:?}", open_to_others().0);
}

/// What is looked at is there.
#[test]
fn a_place_that_is_open_is_seen() {
    let (before, _) = open_to_others();
    let inside = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (open, num) = open_to_others();
    assert!(open == before && num > 0);
    let outside = std::net::TcpListener::bind("0.0.0.0:0").expect("a free port");
    let (open, _) = open_to_others();
    assert_eq!(open.len(), before.len() + 1);
    drop((inside, outside));
}
