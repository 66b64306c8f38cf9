//! The promises, kept by the transports of this crate.

use super::*;

/// Makes one test per promise.
macro_rules! suite {
    ($name:ident, $connect:expr, [$($module:ident :: $promise:ident),* $(,)?]) => {
        mod $name {
            $(
                #[test]
                fn $promise() {
                    super::super::$module::$promise($connect);
                }
            )*
        }
    };
}

fn in_one_process(num_ranks: usize, timeout: Duration) -> Vec<Box<dyn Communicator>> {
    let options = burn_dist_comm::LocalOptions {
        timeout,
        ..Default::default()
    };
    let ranks = burn_dist_comm::LocalHub::connect(num_ranks, options).unwrap();
    let boxed = |comm| Box::new(comm) as Box<dyn Communicator>;
    ranks.into_iter().map(boxed).collect()
}

promises_between_processes!(suite, [local, super::in_one_process,], []);
promises_in_one_process!(suite, [local_only, super::in_one_process,], []);

/// Makes one test per such promise, for a transport between processes.
macro_rules! between_processes {
    ($name:ident, $connect:expr) => {
        promises_between_processes!(
            suite,
            [$name, {
                use super::*;
                $connect
            },],
            []
        );
    };
}

between_processes!(two_processes, |num_ranks, timeout| in_processes(
    2, num_ranks, timeout
));
between_processes!(many_processes, |num_ranks, timeout| in_processes(
    64, num_ranks, timeout
));

/// Ranks in up to `num_processes` processes, as many as can have equally many of them.
fn in_processes(
    num_processes: usize,
    num_ranks: usize,
    timeout: Duration,
) -> Vec<Box<dyn Communicator>> {
    let divides = |n: &usize| num_ranks.is_multiple_of(*n);
    let num_processes = (1..=num_processes).rev().find(divides).unwrap_or(1);
    burn_dist_comm::World::simulated(num_processes)
        .into_iter()
        .flat_map(|world| {
            let options = burn_dist_comm::LocalOptions {
                timeout,
                ..Default::default()
            };
            world.connect(num_ranks, options).unwrap()
        })
        .map(|comm| Box::new(comm) as Box<dyn Communicator>)
        .collect()
}

/// The promises of messages over channels, with delays and without.
mod channels {
    use crate::messages;
    use burn_dist_comm::Channels;
    use burn_dist_comm::Chaos;

    #[test]
    fn messages_are_as_promised() {
        for num_processes in [1, 2, 3] {
            messages::keep(Channels::connect(num_processes, None));
        }
    }

    #[test]
    fn messages_are_as_promised_under_delays() {
        for seed in 0..3 {
            messages::keep(Channels::connect(3, Some(&Chaos::new(seed))));
        }
    }
}

/// The same promises between processes that `mpirun` starts; each runs all of them, with its own ranks.
#[cfg(feature = "mpi")]
mod over_mpi {
    use super::*;
    use burn_dist_comm::{Mpi, World};
    use std::process::Command;
    use std::sync::OnceLock;

    fn connect(num_ranks: usize, timeout: Duration) -> Vec<Box<dyn Communicator>> {
        let world = WORLD.get_or_init(|| World::over(|| Mpi::init(|| None)).unwrap());
        let options = burn_dist_comm::LocalOptions {
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
            .args([&format!("suites::over_mpi::{program}"), "--exact"])
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
}
