//! Against NCCL and CUDA's driver themselves, on the GPUs of this machine.
//!
//! ```text
//! cargo test -p burn-dist-gpu --features cuda real -- --ignored
//! ```
//!
//! Where there is one GPU, all ranks are on it: copies work there too, NCCL refuses it.

use super::groups::{Channels, Launched};
use super::op::{Fold, Op};
use super::{driver, ffi};
use crate::device::{Address, Gpu};
use burn_dist_comm::{
    Call, Collective, CommError, Communicator, Group, LocalComm, LocalHub, LocalOptions, Strided,
    World,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use conformance;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than NCCL needs to set up a communicator.
const PATIENT: Duration = Duration::from_secs(30);

/// Longer than an abort takes.
const SOON: Duration = Duration::from_secs(15);

/// Numbers of each member.
const COUNT: usize = 5;
const BYTES: usize = 4 * COUNT;

/// The GPU of a rank: its own, if there are as many.
fn gpu_of(rank: usize) -> Arc<driver::Device> {
    cudarc::driver::result::init().expect("CUDA's driver");
    let gpus = cudarc::driver::result::device::get_count().expect("a number of GPUs");
    driver::open(rank % gpus as usize).expect("a GPU")
}

/// Ranks with a GPU each, if there are as many.
fn ranks(num: usize) -> Vec<(LocalComm, Arc<dyn Gpu>, Channels)> {
    let options = LocalOptions {
        timeout: PATIENT,
        ..LocalOptions::default()
    };
    let hosts = LocalHub::connect(num, options).expect("a world");
    let nccl = ffi::nccl().unwrap_or_else(|error| panic!("{error}"));
    let with_gpu = |(rank, host)| {
        let gpu: Arc<dyn Gpu> = gpu_of(rank);
        let channels = Channels::new(nccl.clone(), gpu.clone(), PATIENT);
        (host, gpu, channels)
    };
    hosts.into_iter().enumerate().map(with_gpu).collect()
}

/// The numbers of a rank.
fn numbers(rank: u32) -> Vec<u8> {
    let numbers = (1..=COUNT as u32).map(|at| 100 * rank + at);
    numbers.flat_map(u32::to_ne_bytes).collect()
}

/// Memory that holds a rank's numbers.
fn filled(gpu: &dyn Gpu, rank: Rank) -> Address {
    let memory = gpu.alloc(BYTES).expect("memory");
    // SAFETY: there is room for as many bytes, and nobody uses them yet.
    unsafe { gpu.upload(memory, &numbers(rank.0)) }.expect("a copy");
    memory
}

/// Fails unless memory holds the numbers of both ranks.
fn check_both(gpu: &dyn Gpu, gathered: Address) {
    let mut found = [0; 2 * BYTES];
    // SAFETY: as many bytes were gathered, and the call is over.
    unsafe { gpu.download(gathered, &mut found) }.expect("a copy");
    assert_eq!(found[..], [numbers(0), numbers(1)].concat());
}

/// Launches calls on the first lane, recorded as an all-gather.
///
/// # Safety
/// As [`Channels::launch`].
unsafe fn launch(
    comm: &LocalComm,
    channels: &mut Channels,
    group: &Group,
    ops: &[Op],
) -> Result<Launched, CommError> {
    let parts = Strided::flat(vec![BYTES; group.len()]);
    let call = Call::new(group, DType::U32, Collective::AllGather(parts), None);
    let (info, element) = channels.record(comm, call)?;
    // SAFETY: the caller's promise.
    unsafe { channels.launch(comm, &info, element, ops) }
}

#[test]
#[ignore = "needs NVIDIA's driver"]
fn a_gpu_that_is_not_there_is_refused_by_the_drivers_own_words() {
    let error = driver::identity(1000).expect_err("no machine has as many");
    assert_eq!(error.function, "cuDeviceGet");
    let reason = error.reason;
    assert!(reason.ends_with("(CUDA_ERROR_INVALID_DEVICE)"), "{reason}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn one_member_makes_every_collective_and_aborts() {
    let (comm, gpu, mut channels) = ranks(1).remove(0);
    let alone = Group::world(1).expect("a rank");
    gpu.attach().expect("a device");
    let (send, recv) = (filled(&*gpu, Rank(0)), gpu.alloc(BYTES).expect("memory"));
    let (count, root) = (COUNT, 0);
    let mut calls = vec![
        vec![Op::AllGather { send, recv, count }],
        vec![Op::Broadcast {
            send,
            recv,
            count,
            root,
        }],
        vec![
            Op::Send { send, count, to: 0 },
            Op::Recv {
                recv,
                count,
                from: 0,
            },
        ],
    ];
    for fold in [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min, Fold::Avg] {
        calls.push(vec![Op::AllReduce {
            send,
            recv,
            count,
            fold,
        }]);
        calls.push(vec![Op::ReduceScatter {
            send,
            recv,
            count,
            fold,
        }]);
        calls.push(vec![Op::Reduce {
            send,
            recv,
            count,
            fold,
            root,
        }]);
    }
    for ops in &calls {
        // SAFETY: nothing uses the memory between calls, and there is room for as many bytes.
        unsafe { gpu.upload(recv, &[0; BYTES]) }.expect("a copy");
        // SAFETY: the memory is freed at the end.
        let launched = unsafe { launch(&comm, &mut channels, &alone, ops) };
        let outcome = launched.and_then(|launched| channels.finish(&comm, launched));
        outcome.unwrap_or_else(|error| panic!("{ops:?}: {error}"));
        let mut found = [0; BYTES];
        // SAFETY: as above, and the call is over.
        unsafe { gpu.download(recv, &mut found) }.expect("a copy");
        assert_eq!(found[..], numbers(0), "{ops:?}");
    }
    // SAFETY: as above.
    let launched = unsafe { launch(&comm, &mut channels, &alone, &calls[0]) };
    channels.give_up(launched.unwrap_or_else(|error| panic!("{error}")));
    let start = Instant::now();
    assert!(channels.abort());
    assert!(start.elapsed() < SOON);
    for memory in [send, recv] {
        // SAFETY: the abort shows that nothing uses it any more.
        unsafe { gpu.free(memory) };
    }
}

/// Two communicators on a stream; the kernel that came first waits for a peer that does not come.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn kernels_that_wait_for_ever_are_aborted_within_a_bound() {
    let world = Group::world(2).expect("two ranks");
    let turned = Group::new(vec![Rank(1), Rank(0)]).expect("two ranks");
    let body = |comm: LocalComm, gpu: Arc<dyn Gpu>, mut channels: Channels| {
        gpu.attach().expect("a device");
        // Before the first launch: the driver may wait for kernels where it allocates.
        let send = filled(&*gpu, comm.rank());
        let recv: Vec<Address> = (0..4)
            .map(|_| gpu.alloc(2 * BYTES).expect("memory"))
            .collect();
        let count = COUNT;
        let all = |index: usize| {
            let recv = recv[index];
            [Op::AllGather { send, recv, count }]
        };
        for (index, group) in [&world, &turned].into_iter().enumerate() {
            // SAFETY: the memory is never freed.
            let launched = unsafe { launch(&comm, &mut channels, group, &all(index)) };
            let outcome = launched.and_then(|launched| channels.finish(&comm, launched));
            outcome.unwrap_or_else(|error| panic!("{error}"));
        }
        check_both(&*gpu, recv[0]);
        let takes_part = comm.rank() == Rank(0);
        let [stuck, queued] = [(2, &turned), (3, &world)].map(|(index, group)| {
            let ops = all(index);
            let ops = if takes_part { &ops[..] } else { &[] };
            // SAFETY: as above.
            let launched = unsafe { launch(&comm, &mut channels, group, ops) };
            launched.unwrap_or_else(|error| panic!("{error}"))
        });
        channels.give_up(queued);
        if takes_part {
            let error = channels.finish(&comm, stuck).expect_err("a kernel waits");
            comm.abort(error);
        } else {
            channels.give_up(stuck);
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let start = Instant::now();
        assert!(channels.abort());
        start.elapsed()
    };
    let took: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks(2)
            .into_iter()
            .map(|(comm, gpu, channels)| scope.spawn(|| body(comm, gpu, channels)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Duration>| thread.join();
        let took = threads.into_iter().map(join);
        took.collect::<Result<_, _>>().expect("no panic")
    });
    assert!(took.iter().all(|took| *took < SOON), "{took:?}");
}

/// Runs `body` on a thread per rank.
fn on_ranks<T: Send>(
    num: usize,
    body: impl Fn(&LocalComm, &dyn Gpu, &mut Channels) -> T + Sync,
) -> Vec<T> {
    conformance::on_ranks(ranks(num), |(comm, gpu, mut channels)| {
        gpu.attach().expect("a device");
        body(&comm, &*gpu, &mut channels)
    })
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn a_member_that_stays_away_ends_the_call_within_a_bound() {
    let world = Group::world(2).expect("two ranks");
    let start = Instant::now();
    let errors = on_ranks(2, |comm, gpu, channels| {
        let (send, count) = (filled(gpu, comm.rank()), COUNT);
        let recv = gpu.alloc(2 * BYTES).expect("memory");
        let mut gather = || {
            let all = [Op::AllGather { send, recv, count }];
            // SAFETY: the memory is never freed.
            let launched = unsafe { launch(comm, channels, &world, &all) }?;
            channels.finish(comm, launched)
        };
        gather().expect("both are there");
        check_both(gpu, recv);
        let error = match comm.rank() {
            Rank(0) => {
                let error = gather().expect_err("nobody comes");
                comm.abort(error.clone());
                error
            }
            _ => loop {
                if let Some(fault) = comm.fault() {
                    break fault;
                }
                std::thread::sleep(Duration::from_millis(1));
            },
        };
        assert!(channels.abort());
        error.to_string()
    });
    // Setting up, the call, and the end of what both have.
    assert!(start.elapsed() < 3 * PATIENT);
    for error in errors {
        let expected = [
            "rank 0 called all_gather",
            "ranks [1] have not made this call",
        ];
        assert!(expected.iter().all(|text| error.contains(text)), "{error}");
    }
}

/// The error of the rank whose call fails is everyone's: it names the rank, the operation and the call.
#[test]
#[ignore = "needs CUDA in software that fails NCCL's second all-gather, as `cargo xtask cuda gpu` has it"]
fn a_call_that_fails_is_named_to_all() {
    let world = Group::world(2).expect("two ranks");
    let errors = on_ranks(2, |comm, gpu, channels| {
        let (send, count) = (filled(gpu, comm.rank()), COUNT);
        let recv = gpu.alloc(2 * BYTES).expect("memory");
        let all = [Op::AllGather { send, recv, count }];
        // SAFETY: the memory is never freed.
        let launched = unsafe { launch(comm, channels, &world, &all) };
        let outcome = launched.and_then(|launched| channels.finish(comm, launched));
        let error = outcome.expect_err("a call fails");
        comm.abort(error);
        assert!(channels.abort());
        comm.fault().expect("a fault").to_string()
    });
    for error in errors {
        println!("{error}");
        let expected = [
            "rank",
            "called all_gather",
            "ncclAllGather",
            "internal error",
        ];
        assert!(expected.iter().all(|text| error.contains(text)), "{error}");
    }
}

/// While one rank waits in its first call, and later ones, the other allocates memory, for which CUDA may wait for what
/// both GPUs run.
#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn a_rank_that_allocates_and_comes_late_is_waited_for() {
    let world = Group::world(2).expect("two ranks");
    on_ranks(2, |comm, gpu, channels| {
        let (send, count) = (filled(gpu, comm.rank()), COUNT);
        let recv = gpu.alloc(2 * BYTES).expect("memory");
        for turn in 0..4 {
            if comm.rank() == Rank(turn % 2) {
                std::thread::sleep(Duration::from_millis(500));
                // More than any pool has, so that the driver makes it now.
                let _ = gpu.alloc((64 << 20) << turn).expect("memory");
            }
            let all = [Op::AllGather { send, recv, count }];
            // SAFETY: the memory is never freed.
            let launched = unsafe { launch(comm, channels, &world, &all) };
            let outcome = launched.and_then(|launched| channels.finish(comm, launched));
            outcome.unwrap_or_else(|error| panic!("{error}"));
            check_both(gpu, recv);
        }
        channels.close(comm);
    });
}

/// Shifts between GPUs that copy, on streams that the device orders: NCCL is not called.
#[test]
#[ignore = "needs an NVIDIA GPU, or two with access to each other's memory, and a driver for CUDA 12.5 or later"]
fn gpus_copy_from_each_other() {
    let with_copies = |(rank, (host, gpu, channels)): (usize, (LocalComm, _, Channels))| {
        let driver = gpu_of(rank);
        let copies = crate::peer::driver::copies(&driver).expect("what it reads");
        let signals = crate::streams::driver::signals(&driver).expect("a driver with everything");
        let channels = channels.copying(copies).ordered(signals);
        (host, gpu, channels.expect("a page of words"))
    };
    let ranks = ranks(2).into_iter().enumerate().map(with_copies).collect();
    shift_many(ranks);
}

/// Copies on one GPU like those of two processes: in rounds of a few bytes, and in one round.
#[test]
#[ignore = "needs an NVIDIA GPU, and a driver for CUDA 12.5 or later"]
fn processes_copy_through_workspaces() {
    for slot in [8, 1 << 20] {
        let options = LocalOptions {
            timeout: PATIENT,
            ..LocalOptions::default()
        };
        let nccl = ffi::nccl().unwrap_or_else(|error| panic!("{error}"));
        let in_process = |(process, world): (usize, World)| {
            let driver = driver::open(0).expect("a GPU");
            let gpu: Arc<dyn Gpu> = driver.clone();
            let copies = crate::peer::driver::copies(&driver).expect("what it reads");
            let signals = crate::streams::driver::signals(&driver).expect("a recent driver");
            let symmetric = crate::symmetric::driver::symmetric(&driver).expect("shared memory");
            let channels = Channels::new(nccl.clone(), gpu.clone(), PATIENT).copying(copies);
            let channels = channels.ordered(signals).expect("a page of words");
            let channels = channels.in_process(process as u8, slot).sharing(symmetric);
            let host = world.connect(2, options.clone()).expect("a rank").remove(0);
            (host, gpu, channels.expect("Linux"))
        };
        let worlds = World::simulated(2).into_iter().enumerate();
        shift_many(worlds.map(in_process).collect());
    }
}

/// Two ranks send each other their numbers, many times.
fn shift_many(ranks: Vec<(LocalComm, Arc<dyn Gpu>, Channels)>) {
    let world = Group::world(2).expect("two ranks");
    conformance::on_ranks(
        ranks,
        |(comm, gpu, mut channels): (LocalComm, Arc<dyn Gpu>, Channels)| {
            gpu.attach().expect("a device");
            let [send, recv] = [(); 2].map(|()| gpu.alloc(BYTES).expect("memory"));
            let me = comm.rank().0;
            for turn in 0..100 {
                let numbers = |rank: u32| {
                    let numbers = (0..COUNT as u32).map(|at| 1000 * turn + 10 * at + rank);
                    numbers.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>()
                };
                // SAFETY: there is room for as many bytes, and the call before is over.
                unsafe { gpu.upload(send, &numbers(me)) }.expect("a copy");
                let ops = super::collectives::shift(send, recv, &[COUNT; 2], 1, me as usize);
                // SAFETY: the memory is never freed.
                let launched = unsafe { launch(&comm, &mut channels, &world, &ops) };
                let outcome = launched.and_then(|launched| channels.finish(&comm, launched));
                outcome.unwrap_or_else(|error| panic!("{error}"));
                let mut found = [0; BYTES];
                // SAFETY: as above.
                unsafe { gpu.download(recv, &mut found) }.expect("a copy");
                assert_eq!(found[..], numbers(1 - me), "turn {turn}");
            }
            channels.close(&comm);
        },
    );
}
