//! Faults between processes: every process learns of one; each may tell of its own call.

use super::World;
use crate::comm::{Block, Communicator};
use crate::comm::{Call, CommError, Exchange, Group, LocalComm, LocalOptions};
use crate::layout::ReduceOp;
use crate::mesh::Rank;
use burn_std::{Bytes, DType};
use std::sync::Arc;
use std::time::Duration;

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
    for error in &errors {
        assert_eq!(error, &errors[0]);
    }
    for part in [
        "f32 x 8 ",
        "f32 x 9 ",
        "layers.3.wo",
        "layers.3.w1",
        "same calls",
    ] {
        assert!(errors[0].contains(part), "{}", errors[0]);
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
                let error = comm.run(sum(&world, 4)).unwrap_err().to_string();
                assert!(error.contains("rank 1 has left"), "{error}");
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
