//! Promises about NCCL, against a simulation of it.

use super::api::Code;
use super::collectives;
use super::fake::{Fake, Faults};
use super::groups::{Channels, Launched};
use super::op::{Element, Fold, Op};
use super::{Reduction, native_fold};
use crate::device::Address;
use burn_dist_comm::{
    Call, CallInfo, Collective, CommError, Communicator, Group, Kind, Lane, LocalComm, LocalHub,
    LocalOptions, Strided,
};
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::{BoolStore, DType};
use conformance::PATIENT;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const AT: Address = Address(1000);
const INTO: Address = Address(5000);

#[test]
fn equal_parts_are_one_all_gather_and_others_a_broadcast_each() {
    let even = collectives::gather(AT, INTO, &[4, 4], 1, Element::F32);
    let all = Op::AllGather {
        send: AT,
        recv: INTO,
        count: 4,
    };
    assert_eq!(even, [all]);
    let uneven = collectives::gather(AT, INTO, &[3, 0, 2], 2, Element::F16);
    let from = |send, offset, count, root| Op::Broadcast {
        send,
        recv: INTO.plus(offset),
        count,
        root,
    };
    assert_eq!(uneven, [from(INTO, 0, 3, 0), from(AT, 6, 2, 2)]);
    assert_eq!(collectives::gather(AT, INTO, &[0, 0], 0, Element::F32), []);
}

#[test]
fn an_exchange_leaves_the_own_piece_where_it_is() {
    // Member 1 of 3 sends 2, (1), 0 elements and receives 4, (1), 3.
    let ops = collectives::exchange(AT, &[2, 1, 0], INTO, &[4, 1, 3], 1, Element::I64);
    let expected = [
        Op::Send {
            send: AT,
            count: 2,
            to: 0,
        },
        Op::Recv {
            recv: INTO,
            count: 4,
            from: 0,
        },
        Op::Recv {
            recv: INTO.plus(32),
            count: 3,
            from: 2,
        },
    ];
    assert_eq!(ops, expected);
}

#[test]
fn a_shift_is_a_send_and_a_receive() {
    let send = |count, to| Op::Send {
        send: AT,
        count,
        to,
    };
    let recv = |count, from| Op::Recv {
        recv: INTO,
        count,
        from,
    };
    let of = |sizes: &[usize], by, member| collectives::shift(AT, INTO, sizes, by, member);
    assert_eq!(of(&[2, 3, 4], 1, 0), [send(2, 1), recv(4, 2)]);
    assert_eq!(of(&[2, 3, 4], -1, 0), [send(2, 2), recv(3, 1)]);
    assert_eq!(of(&[2, 3, 4], 5, 2), [send(4, 1), recv(2, 0)]);
    // Empty blocks are no calls: the other side makes none either.
    assert_eq!(of(&[0, 3, 4], 1, 0), [recv(4, 2)]);
    assert_eq!(of(&[0, 3, 4], 1, 1), [send(3, 2)]);
    assert_eq!(of(&[0, 3, 0], 1, 0), []);
}

#[test]
fn uneven_reductions_go_to_each_member() {
    let even = collectives::reduce_scatter(AT, INTO, &[2, 2], Fold::Sum, Element::I32);
    assert_eq!(even[0].function(), "ncclReduceScatter");
    let uneven = collectives::reduce_scatter(AT, INTO, &[1, 0, 2], Fold::Max, Element::I32);
    let to = |offset, count, root| Op::Reduce {
        send: AT.plus(offset),
        recv: INTO,
        count,
        fold: Fold::Max,
        root,
    };
    assert_eq!(uneven, [to(0, 1, 0), to(4, 2, 2)]);
}

#[test]
fn nccl_adds_up_what_any_order_leaves_exact_and_floats_when_asked() {
    use ReduceOp::{Max, Mean, Min, Prod, Sum};
    for op in ReduceOp::ALL {
        assert_eq!(native_fold(op, DType::F32, Reduction::InOrder), None);
        for reduction in [Reduction::InOrder, Reduction::Fast] {
            let bools = DType::Bool(BoolStore::U8);
            assert_eq!(native_fold(op, bools, reduction), None);
        }
    }
    for reduction in [Reduction::InOrder, Reduction::Fast] {
        let of = |op| native_fold(op, DType::I32, reduction);
        assert_eq!(
            [Sum, Prod, Min, Max, Mean].map(of),
            [
                Some(Fold::Sum),
                Some(Fold::Prod),
                Some(Fold::Min),
                Some(Fold::Max),
                None
            ]
        );
    }
    let of = |op| native_fold(op, DType::BF16, Reduction::Fast);
    assert_eq!([Sum, Mean].map(of), [Some(Fold::Sum), Some(Fold::Avg)]);
    assert_eq!([Prod, Min, Max].map(of), [None; 3]);
}

/// Ranks with a simulated GPU each.
fn ranks(fake: &Arc<Fake>, num: usize, timeout: Duration) -> Vec<(LocalComm, Channels)> {
    let options = LocalOptions {
        timeout,
        ..LocalOptions::default()
    };
    let comms = LocalHub::connect(num, options).expect("a world");
    let with_channels = |comm: LocalComm| {
        let gpu = fake.machine().gpu(comm.rank().0 as usize);
        let channels = fake.channels(gpu, 0, timeout);
        (comm, channels)
    };
    comms.into_iter().map(with_channels).collect()
}

/// Launches a gather of a number of each rank; whoever does not take part launches nothing, so that the kernels of the
/// others wait for it. Returns where the numbers will be.
fn launch(
    comm: &LocalComm,
    channels: &mut Channels,
    (group, lane): (&Group, Lane),
    takes_part: bool,
) -> Result<(Launched, Address), CommError> {
    // Never released: a test that fails need not have stopped the device.
    let mine = Box::leak(Box::new([comm.rank().0 + 10]));
    let all = Box::leak(vec![0_u32; group.len()].into_boxed_slice());
    let all = Address(all.as_mut_ptr().addr() as u64);
    let parts = Strided::flat(vec![4; group.len()]);
    let call = Call::new(group, DType::U32, Collective::AllGather(parts), None).on_lane(lane);
    let (info, element) = channels.record(comm, call.labelled("layers.3"))?;
    let op = Op::AllGather {
        send: Address(mine.as_ptr().addr() as u64),
        recv: all,
        count: 1,
    };
    let ops = Vec::from_iter(takes_part.then_some(op));
    // SAFETY: both live for ever, and are read when the call is over.
    let launched = unsafe { channels.launch(comm, &info, element, &ops) }?;
    Ok((launched, all))
}

/// Reads the numbers of a gather that is over.
fn numbers(channels: &Channels, all: Address, members: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * members];
    // SAFETY: `launch` has made room for a number of each member, and nobody writes any more.
    unsafe { channels.gpu().download(all, &mut bytes) }.expect("memory of the simulation");
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|n| u32::from_ne_bytes(*n)).collect()
}

/// Gathers a number of each rank on the device; what members of `group` do.
fn gather(
    comm: &LocalComm,
    channels: &mut Channels,
    group: &Group,
    lane: Lane,
) -> Result<Vec<u32>, CommError> {
    let (launched, all) = launch(comm, channels, (group, lane), true)?;
    channels.finish(comm, launched)?;
    Ok(numbers(channels, all, group.len()))
}

/// Handles an error of a rank: everyone learns of it, and then communicators are aborted. Returns whether memory is
/// free.
fn stop(comm: &LocalComm, channels: &mut Channels, error: CommError) -> bool {
    comm.abort(error);
    channels.abort()
}

/// Waits until another rank has failed.
fn await_fault(comm: &dyn Communicator) -> CommError {
    loop {
        if let Some(fault) = comm.fault() {
            return fault;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `body` on a thread per rank.
fn on_ranks<T: Send>(
    ranks: Vec<(LocalComm, Channels)>,
    body: impl Fn(&LocalComm, &mut Channels) -> T + Sync,
) -> Vec<T> {
    conformance::on_ranks(ranks, |(comm, mut channels)| body(&comm, &mut channels))
}

#[test]
fn a_group_has_a_communicator_per_lane_and_leaves_them_in_order() {
    let fake = Fake::new();
    let world = Group::world(2).expect("two ranks");
    let turned = Group::new(vec![Rank(1), Rank(0)]).expect("two ranks");
    let found = on_ranks(ranks(&fake, 2, PATIENT), |comm, channels| {
        let mut found = Vec::new();
        for group in [&world, &turned, &world] {
            for lane in [Lane(0), Lane(3)] {
                found.push(gather(comm, channels, group, lane).expect("both are there"));
            }
        }
        let calls = comm.recent_calls();
        let last = calls.last().expect("calls").to_string();
        let stats = comm.stats().get(Kind::AllGather);
        channels.close(comm);
        (
            found,
            last,
            stats.calls,
            stats.bytes,
            comm.stats().total().calls,
        )
    });
    for (rank, (found, last, calls, bytes, total)) in found.into_iter().enumerate() {
        let turned = [vec![11, 10], vec![11, 10]];
        let world = [vec![10, 11], vec![10, 11]];
        assert_eq!(found, [world.clone(), turned, world].concat());
        // Each of the two calls of this group and lane is numbered; ids are not counted.
        let expected = format!(
            "rank {rank} called all_gather U32 of [1, [4, 4], 1 B] (call 1 on group [0, 1] lane 3, layers.3)"
        );
        assert!(last.eq_ignore_ascii_case(&expected), "{last}");
        assert_eq!((calls, bytes, total), (6, 24, 6));
    }
    for member in [0, 1] {
        let calls = fake.calls_of(member);
        assert_eq!(calls.iter().filter(|call| *call == "init of 2").count(), 4);
        let mut end = calls[calls.len() - 8..].to_vec();
        end.sort();
        let [left, freed] = ["finalize", "destroy"].map(|call| vec![call; 4]);
        assert_eq!(end, [freed, left].concat());
    }
    assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
}

/// Shifts a block of `sizes` bytes of each member on the device; returns what the caller gets.
fn shift(
    comm: &LocalComm,
    channels: &mut Channels,
    group: &Group,
    (dtype, by, sizes): (DType, isize, &[usize]),
) -> Result<Vec<u8>, CommError> {
    let member = group.member(comm.rank()).expect("a member");
    let collective = Collective::Shift {
        by,
        sizes: sizes.into(),
    };
    let call = Call::new(group, dtype, collective, None);
    let (info, element) = channels.record(comm, call)?;
    let received = info.received_bytes();
    let mine = block_of(comm.rank(), sizes[member]);
    let mut into = vec![0xee_u8; received + 2];
    let [from, to] = [mine.as_ptr(), into.as_mut_ptr().cast_const()];
    let [from, to] = [from, to].map(|at| Address(at.addr() as u64));
    let counts: Vec<usize> = sizes.iter().map(|bytes| bytes / element.bytes()).collect();
    let ops = collectives::shift(from, to, &counts, by, member);
    // SAFETY: both live until the call has been waited for; a test that fails before ends the process.
    let launched = unsafe { channels.launch(comm, &info, element, &ops) }?;
    channels.finish(comm, launched)?;
    let mut found = vec![0; into.len()];
    // SAFETY: within `into`, which nobody writes any more.
    unsafe { channels.gpu().download(to, &mut found) }.expect("memory of the simulation");
    assert_eq!(found.split_off(received), [0xee; 2], "nothing beyond");
    Ok(found)
}

/// Bytes that tell whose they are.
fn block_of(rank: Rank, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 5) as u8 ^ (rank.0 as u8) << 5)
        .collect()
}

#[test]
fn shifts_are_those_of_the_hosts_transport() {
    for k in 2..=5 {
        let fake = Fake::new();
        let group = Group::new((0..k as u32).rev().map(Rank).collect()).expect("ranks");
        on_ranks(ranks(&fake, k, PATIENT), |comm, channels| {
            let member = group.member(comm.rank()).expect("a member");
            for by in (-9..=9).filter(|by| by % k as isize != 0) {
                // NCCL has no 16-bit integers: their bytes are moved.
                for dtype in [DType::BF16, DType::I16, DType::F64, DType::U8] {
                    let sizes = (0..k).map(|member| (member * 3 + 2) % 5 * dtype.size());
                    let sizes: Vec<usize> = sizes.collect();
                    let found = shift(comm, channels, &group, (dtype, by, &sizes));
                    let mine = block_of(comm.rank(), sizes[member]);
                    let call = Call::shift(&group, dtype, by, sizes, mine);
                    let expected = comm.run(call.on_lane(Lane(1))).expect("all are there");
                    assert_eq!(
                        found.expect("all are there")[..],
                        expected[..],
                        "by {by} of {k}"
                    );
                }
            }
            channels.close(comm);
            let calls = comm.recent_calls();
            let of_device = calls.iter().rev().nth(1).expect("two calls each");
            let of_host = calls.last().expect("two calls each");
            let what = |call: &CallInfo| {
                let text = call.to_string();
                text.split_once(" (call ").map(|(what, _)| what.to_string())
            };
            assert_eq!(what(of_device), what(of_host));
            assert_eq!(of_device.received_bytes(), of_host.received_bytes());
        });
        assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
    }
}

#[test]
fn a_shift_that_contradicts_itself_is_refused_before_the_device() {
    let fake = Fake::new();
    let world = Group::world(2).expect("two ranks");
    for (by, sizes, reason) in [
        (
            4,
            vec![1, 1],
            "by 4 places along 2 members, a multiple of 2",
        ),
        (
            1,
            vec![2, 2, 2],
            "the list of blocks lists 3 sizes for 2 members",
        ),
    ] {
        let errors = on_ranks(ranks(&fake, 2, PATIENT), |comm, channels| {
            let call = (DType::BF16, by, &sizes[..]);
            let error = shift(comm, channels, &world, call).expect_err("no shift");
            assert!(matches!(error, CommError::Invalid { .. }), "{error}");
            error.to_string()
        });
        for (rank, error) in errors.iter().enumerate() {
            assert!(error.contains(reason), "{error}");
            assert!(
                error.contains(&format!("rank {rank} called shift bf16 by {by}")),
                "{error}"
            );
        }
    }
    assert!(fake.log.lock().expect("no panic").is_empty());
}

#[test]
fn a_member_that_does_not_come_is_named_and_communicators_are_aborted() {
    let fake = Fake::new();
    let world = Group::world(2).expect("two ranks");
    let timeout = Duration::from_millis(500);
    let start = Instant::now();
    let found = on_ranks(ranks(&fake, 2, timeout), |comm, channels| {
        gather(comm, channels, &world, Lane(0)).expect("both are there");
        if comm.rank() == Rank(1) {
            // Stays away.
            await_fault(comm);
            assert!(channels.abort());
            return gather(comm, channels, &world, Lane(0)).expect_err("a fault");
        }
        let error = gather(comm, channels, &world, Lane(0)).expect_err("nobody comes");
        assert!(stop(comm, channels, error.clone()));
        error
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    for error in found {
        let text = error.to_string();
        assert!(matches!(error, CommError::Timeout { .. }), "{text}");
        assert!(text.contains("rank 0 called all_gather"), "{text}");
        assert!(text.contains("ranks [1] have not made this call"), "{text}");
    }
    assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
    assert_eq!(fake.calls_of(0).last().map(String::as_str), Some("abort"));
}

/// Runs one gather between two ranks with `faults`, and returns the errors.
fn failing(faults: Faults) -> (Arc<Fake>, Vec<String>) {
    let fake = Fake::new();
    *fake.faults.lock().expect("no panic") = faults;
    let world = Group::world(2).expect("two ranks");
    let errors = on_ranks(ranks(&fake, 2, PATIENT), |comm, channels| {
        let outcome = gather(comm, channels, &world, Lane(0));
        outcome
            .map_err(|error| {
                assert!(stop(comm, channels, error));
                comm.fault().expect("set above").to_string()
            })
            .expect_err("one of them fails")
    });
    (fake, errors)
}

#[test]
fn a_call_that_nccl_refuses_stops_every_rank_with_its_text() {
    for function in [
        "ncclGetUniqueId",
        "ncclCommInitRankConfig",
        "ncclAllGather",
        "ncclGroupEnd",
    ] {
        let faults = Faults {
            refuses: Some((function, 2, 0)),
            ..Faults::default()
        };
        let (fake, errors) = failing(faults);
        for error in errors {
            assert!(error.contains("rank 0 called all_gather"), "{error}");
            assert!(error.contains(&format!("failed in {function}")), "{error}");
            assert!(error.contains("unhandled system error (code 2)"), "{error}");
            assert!(error.contains("layers.3"), "{error}");
        }
        assert_eq!(
            (fake.open_comms(), fake.open_events()),
            (0, 0),
            "{function}"
        );
    }
}

#[test]
fn an_error_that_comes_later_is_reported_with_its_details() {
    let faults = Faults {
        state: Some((6, 1)),
        ..Faults::default()
    };
    let (fake, errors) = failing(faults);
    for error in errors {
        assert!(error.contains("rank 1 called all_gather"), "{error}");
        assert!(
            error.contains("network error (code 6): a cable is loose"),
            "{error}"
        );
    }
    assert_eq!(fake.open_comms(), 0);
}

#[test]
fn an_initialisation_that_fails_with_a_communicator_loses_none() {
    let faults = Faults {
        failed_at_start: Some((3, 0)),
        ..Faults::default()
    };
    let (fake, errors) = failing(faults);
    for error in errors {
        assert!(
            error.contains("failed in ncclCommInitRankConfig"),
            "{error}"
        );
        assert!(error.contains("(code 3)"), "{error}");
    }
    assert_eq!(fake.open_comms(), 0);
    assert_eq!(fake.calls_of(0).last().map(String::as_str), Some("abort"));
}

/// Much longer than an abort takes, and shorter than what hangs in the simulation.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn communicators_behind_each_other_on_a_stream_are_aborted_together() {
    let fake = Fake::new();
    let timeout = Duration::from_secs(1);
    let world = Group::world(2).expect("two ranks");
    let turned = Group::new(vec![Rank(1), Rank(0)]).expect("two ranks");
    let took = on_ranks(ranks(&fake, 2, timeout), |comm, channels| {
        // The communicator that is made first comes second on the stream.
        for group in [&world, &turned] {
            gather(comm, channels, group, Lane(0)).expect("both are there");
        }
        let takes_part = comm.rank() == Rank(0);
        let [stuck, queued] = [&turned, &world].map(|group| {
            let launched = launch(comm, channels, (group, Lane(0)), takes_part);
            launched.expect("both launch").0
        });
        let error = match takes_part {
            true => channels.finish(comm, stuck).expect_err("a kernel waits"),
            false => {
                channels.give_up(stuck);
                await_fault(comm)
            }
        };
        channels.give_up(queued);
        let start = Instant::now();
        assert!(stop(comm, channels, error));
        start.elapsed()
    });
    assert!(took.iter().all(|took| *took < SOON), "{took:?}");
    assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
}

#[test]
fn memory_is_free_when_the_neighbours_have_stopped_too() {
    let world = Group::world(2).expect("two ranks");
    for is_late in [false, true] {
        let fake = Fake::new();
        let returned = Barrier::new(2);
        let free = on_ranks(ranks(&fake, 2, PATIENT), |comm, channels| {
            let takes_part = comm.rank() == Rank(0);
            let launched = launch(comm, channels, (&world, Lane(0)), takes_part);
            channels.give_up(launched.expect("both launch").0);
            if !takes_part {
                await_fault(comm);
                if is_late {
                    returned.wait();
                }
                return channels.abort();
            }
            let error = CommError::Aborted {
                rank: comm.rank(),
                what: "matmul".into(),
                label: "".into(),
                reason: "out of memory".into(),
            };
            let start = Instant::now();
            let free = stop(comm, channels, error);
            assert!(start.elapsed() < SOON);
            if is_late {
                returned.wait();
                // Nor later: what it was is not known any more.
                assert!(!channels.abort());
            }
            free
        });
        // The other one has nothing open that could use memory.
        assert_eq!(free, [!is_late, true]);
        assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
    }
}

#[test]
fn a_communicator_that_does_not_end_is_left_behind() {
    let world = Group::world(2).expect("two ranks");
    conformance::side_by_side(["ncclCommDestroy", "ncclCommAbort"], |function| {
        let fake = Fake::new();
        *fake.faults.lock().expect("no panic") = Faults {
            hangs: Some((function, 0)),
            ..Faults::default()
        };
        let took = on_ranks(ranks(&fake, 2, PATIENT), |comm, channels| {
            gather(comm, channels, &world, Lane(0)).expect("both are there");
            let start = Instant::now();
            match function {
                "ncclCommDestroy" => channels.close(comm),
                // Nothing is open, so that memory is free whatever becomes of the communicator.
                _ => assert!(channels.abort()),
            }
            start.elapsed()
        });
        assert!(took.iter().all(|took| *took < SOON), "{function}: {took:?}");
        assert_eq!(fake.open_comms(), 1, "{function}");
    });
}

#[test]
fn communicators_are_aborted_on_any_thread() {
    let fake = Fake::new();
    let alone = Group::world(1).expect("a rank");
    let (comm, mut channels) = ranks(&fake, 1, PATIENT).remove(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let launched = launch(&comm, &mut channels, (&alone, Lane(0)), true);
            channels.give_up(launched.expect("it is there").0);
        });
        thread.join().expect("no panic");
    });
    // This thread has no device yet, and the simulation asks for one.
    assert!(channels.abort());
    assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
}

#[test]
fn members_of_a_process_wait_for_each_other_around_launches() {
    let fake = Fake::new();
    fake.machine().linked.store(true, Ordering::SeqCst);
    let world = Group::world(2).expect("two ranks");
    on_ranks(ranks(&fake, 2, PATIENT), |comm, channels| {
        let gpu = Arc::clone(channels.gpu());
        gpu.attach().expect("a device");
        let allocate = || {
            let memory = gpu.alloc(64).expect("nothing waits for this rank");
            // SAFETY: allocated above, and not used.
            unsafe { gpu.free(memory) };
        };
        for turn in 0..20 {
            if comm.rank() == Rank(turn % 2) {
                // Comes late, and first does what waits for the kernels of both.
                std::thread::sleep(Duration::from_millis(5));
                allocate();
            }
            let launched = launch(comm, channels, (&world, Lane(0)), true);
            let (launched, all) = launched.expect("both are there");
            // The same while the other one may still be launching.
            allocate();
            channels.finish(comm, launched).expect("both are there");
            assert_eq!(numbers(channels, all, 2), [10, 11]);
        }
        channels.close(comm);
    });
    assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
}

#[test]
fn elements_that_nccl_does_not_have_are_refused_by_name() {
    let fake = Fake::new();
    let world = Group::world(1).expect("a rank");
    let errors = on_ranks(ranks(&fake, 1, PATIENT), |comm, channels| {
        let parts = Strided::flat(vec![2]);
        let call = Call::new(&world, DType::I16, Collective::AllGather(parts), None);
        let error = channels.record(comm, call);
        error.expect_err("no 16-bit integers").to_string()
    });
    assert!(
        errors[0].contains("NCCL has no elements of"),
        "{}",
        errors[0]
    );
    assert!(errors[0].contains("cast to f32"), "{}", errors[0]);
    assert!(fake.calls_of(0).is_empty());
    assert_eq!(Element::of(DType::Bool(BoolStore::U32)), Some(Element::U32));
    assert!(Code::IN_PROGRESS.is_accepted() && !Code(2).is_accepted());
}
