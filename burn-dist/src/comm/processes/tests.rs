//! Faults between processes: every process learns of one; each may tell of its own call.

use super::World;
use super::carrier::{Carrier, Channels, Parcel, Placing};
use super::engine::Engine;
use crate::comm::{Block, Communicator};
use crate::comm::{Call, CommError, Exchange, Group, LocalComm, LocalOptions};
use crate::layout::ReduceOp;
use crate::mesh::Rank;
use burn_std::{Bytes, DType};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

fn connect(num_processes: usize, num_ranks: usize, timeout: Duration) -> Vec<LocalComm> {
    World::simulated(num_processes)
        .iter()
        .flat_map(|world| {
            let options = LocalOptions {
                timeout,
                ..LocalOptions::default()
            };
            world.connect(num_ranks, options).expect("an even share")
        })
        .collect()
}

const PATIENT: Duration = Duration::from_secs(20);

fn sum(group: &Group, num: usize) -> Call {
    let block = Block::from(Bytes::from_elems(vec![1.0_f32; num]));
    Call::all_reduce(group, DType::F32, ReduceOp::Sum, block)
}

fn on_ranks<T: Send>(ranks: Vec<LocalComm>, body: impl Fn(LocalComm) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| scope.spawn(move || body(comm)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no rank panics"))
            .collect()
    })
}

#[test]
fn programs_that_diverge_are_told_both_calls() {
    let world = Group::world(4).unwrap();
    let errors = on_ranks(connect(2, 4, PATIENT), |comm| {
        comm.run(Call::barrier(&world)).unwrap();
        let call = match comm.rank().0 {
            0 | 1 => sum(&world, 8).labelled("layers.3.wo"),
            _ => sum(&world, 9).labelled("layers.3.w1"),
        };
        comm.run(call).unwrap_err().to_string()
    });
    let host = crate::comm::Peer::this().to_string();
    for error in &errors {
        for part in [
            "f32 x 8 ",
            "f32 x 9 ",
            "layers.3.wo",
            "layers.3.w1",
            "same calls",
            &format!("process 0 (ranks [0, 1], {host})"),
            &format!("process 1 (ranks [2, 3], {host})"),
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_late_rank_of_another_process_is_named() {
    let world = Group::world(4).unwrap();
    let errors = on_ranks(connect(2, 4, Duration::from_millis(100)), |comm| {
        if comm.rank() == Rank(3) {
            // Alive, until the others have given up.
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        comm.run(sum(&world, 4)).unwrap_err().to_string()
    });
    // The process of rank 3 has not sent anything: to the other one, both of its ranks are late.
    for error in errors {
        let named = ["ranks [3] have not", "ranks [2, 3] have not"];
        assert!(named.iter().any(|ranks| error.contains(ranks)), "{error}");
        // Who is in the same process needs no place, and who is told knows from whom.
        let placed =
            error.contains("process 1 (ranks [2, 3], host") || error.contains("ranks [3] have not");
        assert!(placed, "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_to_all_processes() {
    for num_before in [0, 3] {
        let world = Group::world(3).unwrap();
        on_ranks(connect(3, 3, PATIENT), |comm| {
            for _ in 0..num_before {
                comm.run(Call::barrier(&world)).unwrap();
            }
            if comm.rank() != Rank(1) {
                let error = comm.run(sum(&world, 4)).unwrap_err();
                assert_eq!(error.exit_code(), 75);
                let error = error.to_string();
                assert!(
                    error.contains("rank 1 has left with process 1 (ranks [1], host "),
                    "{error}"
                );
            }
        });
    }
    // Leaving after the last call hurts nobody, also with a call in flight, in one round or two.
    for num in [100, 100_000] {
        let world = Group::world(2).unwrap();
        on_ranks(connect(2, 2, PATIENT), |comm| {
            let pending = comm.start(sum(&world, num)).unwrap();
            drop(comm);
            assert_eq!(pending.wait().unwrap().len(), 4 * num);
        });
    }
}

#[test]
fn a_block_travels_to_another_process_once() {
    // Ranks 0, 1 | 2, 3: what is counted is what the algorithm needs, and every rank of a process reads the same output.
    let world = Group::world(4).unwrap();
    let outputs = on_ranks(connect(2, 4, PATIENT), |comm| {
        comm.run(sum(&world, 100_000)).unwrap()
    });
    assert!(Arc::ptr_eq(&outputs[0], &outputs[1]) && Arc::ptr_eq(&outputs[2], &outputs[3]));
    assert!(outputs[0][..] == outputs[2][..]);
}

#[test]
fn values_stay_in_their_process() {
    let all = Group::world(4).unwrap();
    let [first, second] = [[0, 1], [2, 3]].map(|pair| Group::new(pair.map(Rank).to_vec()).unwrap());
    on_ranks(connect(2, 4, PATIENT), |comm| {
        let pair = if comm.rank().0 < 2 { &first } else { &second };
        let mine = Arc::new(comm.rank().0);
        let values = comm
            .exchange(Exchange::new(pair, "ranks"), mine.clone())
            .unwrap();
        let values = values.wait().unwrap();
        let ranks: Vec<u32> = values
            .iter()
            .filter_map(|value| value.downcast_ref::<u32>().copied())
            .collect();
        assert_eq!(
            ranks,
            pair.ranks().iter().map(|rank| rank.0).collect::<Vec<_>>()
        );
        comm.run(Call::barrier(&all)).unwrap();
        let error = comm
            .exchange(Exchange::new(&all, "ranks"), mine)
            .err()
            .unwrap();
        let expected = matches!(
            error,
            CommError::NoSharedMemory { .. } | CommError::Stopped { .. }
        );
        assert!(expected, "{error}");
    });
}

#[test]
fn ranks_are_shared_out_evenly_or_not_at_all() {
    let worlds = World::simulated(2);
    let error = worlds[0].connect(3, LocalOptions::default()).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("3 ranks") && text.contains("2 processes"),
        "{text}"
    );
}

#[test]
fn meshes_may_be_made_at_different_times() {
    let mut ranks: Vec<Vec<LocalComm>> = vec![Vec::new(), Vec::new()];
    let worlds = World::simulated(2);
    let group = Group::world(2).unwrap();
    std::thread::scope(|scope| {
        for (world, ranks) in worlds.iter().zip(&mut ranks) {
            let group = &group;
            scope.spawn(move || {
                for mesh in 0..3 {
                    std::thread::sleep(Duration::from_millis(20 * world.process() as u64));
                    let comm = world.connect(2, LocalOptions::default()).unwrap().remove(0);
                    let num = 10 * (mesh + 1);
                    assert_eq!(comm.run(sum(group, num)).unwrap().len(), 4 * num);
                    ranks.push(comm);
                }
            });
        }
    });
}

#[test]
fn who_waits_for_another_process_learns_of_its_fault_at_once() {
    let world = Group::world(2).unwrap();
    for round in 0..40 {
        let start = Instant::now();
        let errors = on_ranks(connect(2, 2, PATIENT), |comm| {
            if comm.rank() == Rank(1) {
                std::thread::sleep(Duration::from_micros(50 * round));
                comm.abort(CommError::EmptyGroup);
            }
            comm.run(Call::barrier(&world)).unwrap_err().to_string()
        });
        assert!(errors[0].ends_with(&errors[1]), "{}", errors[0]);
        assert!(errors[0].starts_with("process 1 ("), "{}", errors[0]);
        assert!(start.elapsed() < PATIENT / 2, "slept through it");
    }
}

/// A carrier that only the thread which set it up may use.
struct OneThread(Channels, ThreadId);

impl OneThread {
    fn channels(&mut self) -> &mut Channels {
        assert_eq!(std::thread::current().id(), self.1, "another thread");
        &mut self.0
    }
}

impl Carrier for OneThread {
    fn is_for_all_threads(&self) -> bool {
        false
    }

    fn process(&self) -> u32 {
        self.0.process()
    }

    fn num_processes(&self) -> usize {
        self.0.num_processes()
    }

    fn send(&mut self, parcel: Parcel) {
        self.channels().send(parcel);
    }

    fn receive(&mut self, placing: Placing) -> Result<Option<Parcel>, String> {
        self.channels().receive(placing)
    }

    fn is_sending(&mut self) -> bool {
        self.channels().is_sending()
    }

    fn is_receiving(&self) -> bool {
        self.0.is_receiving()
    }
}

#[test]
fn a_carrier_for_one_thread_is_left_to_it() {
    let engines: Vec<_> = Channels::connect(2, None)
        .into_iter()
        .map(|channels| {
            let carrier = || Ok::<_, String>(OneThread(channels, std::thread::current().id()));
            Engine::start(carrier).unwrap()
        })
        .collect();
    let worlds = engines
        .into_iter()
        .map(|engine| World::new(engine, true).unwrap());
    let ranks = worlds.flat_map(|world| world.connect(4, LocalOptions::default()).unwrap());
    let group = Group::world(4).unwrap();
    on_ranks(ranks.collect(), |comm| {
        for num in [1, 100_000] {
            let sum = comm.run(sum(&group, num)).unwrap();
            assert_eq!(sum[..4], 4.0_f32.to_ne_bytes());
        }
    });
}

#[test]
fn a_process_that_leaves_is_named_to_who_waits_for_its_windows() {
    use super::WindowPrint;
    let mut ranks = connect(2, 2, PATIENT).into_iter();
    let (stays, leaves) = (ranks.next().unwrap(), ranks.next().unwrap());
    let print = |number| WindowPrint {
        number,
        hash: 1,
        values: 1,
        digest: None,
        parts: Vec::new(),
    };
    // Before it leaves, it runs one.
    let agreed = [
        stays.hub().window(print(0)).unwrap(),
        leaves.hub().window(print(0)).unwrap(),
    ];
    for agreed in agreed {
        agreed.wait().unwrap();
    }
    let waits = stays.hub().window(print(1)).unwrap();
    drop(leaves);
    let start = Instant::now();
    let error = waits.wait().unwrap_err();
    assert!(start.elapsed() < PATIENT / 2, "waited for the time-out");
    assert_eq!(error.exit_code(), 75);
    let error = error.to_string();
    let named = error.contains("window 1 cannot finish: process 1 (ranks [1], host")
        && error.contains("has left");
    assert!(named, "{error}");
}

#[test]
fn a_window_that_a_process_does_not_run_names_it() {
    use super::WindowPrint;
    let ranks = connect(3, 3, Duration::from_millis(50));
    let print = WindowPrint {
        number: 5,
        hash: 1,
        values: 1,
        digest: None,
        parts: Vec::new(),
    };
    let _other = ranks[2].hub().window(print.clone());
    let error = ranks[0]
        .hub()
        .window(print)
        .unwrap()
        .wait()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("window 5 gave up after 0.1 s: process 1 (ranks [1], host"),
        "{error}"
    );
    assert!(!error.contains("process 2"), "{error}");
}

#[test]
fn a_mesh_of_processes_that_cannot_talk_ends_at_once() {
    /// A line that breaks after some messages.
    struct Breaks(Channels, u32);

    impl Carrier for Breaks {
        fn is_for_all_threads(&self) -> bool {
            true
        }

        fn send(&mut self, parcel: Parcel) {
            self.0.send(parcel);
        }

        fn receive(&mut self, placing: Placing) -> Result<Option<Parcel>, String> {
            if self.1 == 0 {
                return Err("the cable was pulled".into());
            }
            let parcel = self.0.receive(placing)?;
            self.1 -= u32::from(parcel.is_some());
            Ok(parcel)
        }

        fn is_sending(&mut self) -> bool {
            self.0.is_sending()
        }

        fn is_receiving(&self) -> bool {
            self.0.is_receiving()
        }

        fn process(&self) -> u32 {
            self.0.process()
        }

        fn num_processes(&self) -> usize {
            self.0.num_processes()
        }
    }

    let carriers = Channels::connect(2, None);
    let worlds = World::simulated_by(
        carriers
            .into_iter()
            .map(|channels| Breaks(channels, 20))
            .collect(),
    );
    let ranks: Vec<LocalComm> = worlds
        .iter()
        .flat_map(|world| world.connect(2, LocalOptions::default()).unwrap())
        .collect();
    let group = Group::world(2).unwrap();
    let start = Instant::now();
    on_ranks(ranks, |comm| {
        let error = loop {
            if let Err(error) = comm.run(Call::barrier(&group)) {
                break error;
            }
        };
        assert_eq!(error.exit_code(), 75);
        assert!(
            error.to_string().contains("the cable was pulled"),
            "{error}"
        );
    });
    // A mesh that is made later ends as soon.
    let late = worlds[0]
        .connect(2, LocalOptions::default())
        .unwrap()
        .remove(0);
    let error = late.run(Call::barrier(&group)).unwrap_err().to_string();
    assert!(error.contains("the cable was pulled"), "{error}");
    assert!(start.elapsed() < PATIENT / 2);
}
