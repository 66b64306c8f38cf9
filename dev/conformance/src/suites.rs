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
