//! Promises of the local transport beyond the conformance tests: sharing, recycling and bounds.

use crate::{
    Block, Call, CommError, Communicator, Exchange, Group, Kind, LocalHub, LocalOptions, Network,
    SharedBuffer, Strided, Transfer, downcast, elements,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::{MeshShape, Rank, Topology};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn floats(num: usize) -> SharedBuffer {
    elements(vec![1.5_f32; num])
}

/// Starts the call of every rank of a new hub, in order.
fn run(num_ranks: usize, call: impl Fn(Rank) -> Call) -> Vec<SharedBuffer> {
    let ranks = LocalHub::connect(num_ranks, LocalOptions::default()).unwrap();
    let pending: Vec<_> = ranks
        .iter()
        .map(|comm| comm.start(call(comm.rank())).unwrap())
        .collect();
    pending
        .into_iter()
        .map(|pending| pending.wait().unwrap())
        .collect()
}

#[test]
fn equal_outputs_are_one_buffer() {
    let world = Group::world(3).unwrap();
    for num in [4, 100_000] {
        let gathered = run(3, |_| {
            Call::all_gather(
                &world,
                DType::F32,
                Strided::flat(vec![4 * num; 3]),
                floats(num),
            )
        });
        let reduced = run(3, |_| {
            Call::all_reduce(&world, DType::F32, ReduceOp::Sum, floats(num))
        });
        for mut outputs in [gathered, reduced] {
            assert!(
                outputs
                    .iter()
                    .all(|output| Arc::ptr_eq(output, &outputs[0]))
            );
            // Nobody gets it to write into while others hold it.
            let mut mine = outputs.remove(0);
            assert!(Arc::get_mut(&mut mine).is_none());
            drop(outputs);
            assert!(Arc::get_mut(&mut mine).is_some());
        }
    }
}

#[test]
fn a_broadcast_and_a_transfer_hand_over_the_senders_buffer() {
    let input = floats(10);
    let world = Group::world(2).unwrap();
    let whole = || Block::whole(Arc::clone(&input));
    let outputs = run(2, |rank| {
        Call::broadcast(
            &world,
            DType::F32,
            Rank(0),
            40,
            (rank == Rank(0)).then(whole),
        )
    });
    assert!(
        outputs
            .iter()
            .all(|output| output.as_ptr() == input.as_ptr())
    );
    let outputs = run(2, |rank| match rank.0 {
        0 => Call::send(&world, DType::F32, whole()),
        _ => Call::recv(&world, DType::F32, 40),
    });
    assert!(outputs[1].as_ptr() == input.as_ptr());
    // A part of a buffer is copied: the output is exactly what was sent.
    let part = || Block::new(Arc::clone(&input), 4..12).unwrap();
    let outputs = run(2, |rank| {
        Call::broadcast(&world, DType::F32, Rank(1), 8, (rank == Rank(1)).then(part))
    });
    assert_eq!(outputs[0][..], input[4..12]);
}

#[test]
fn a_shift_hands_over_every_buffer() {
    let world = Group::world(3).unwrap();
    let sizes = [40, 400_000, 4];
    let inputs = sizes.map(|bytes| floats(bytes / 4));
    for (by, from) in [(1, [2, 0, 1]), (-1, [1, 2, 0])] {
        let outputs = run(3, |rank| {
            let mine = Arc::clone(&inputs[rank.0 as usize]);
            Call::shift(&world, DType::F32, by, sizes, mine)
        });
        for (output, from) in outputs.iter().zip(from) {
            assert!(Arc::ptr_eq(output, &inputs[from]), "by {by}");
        }
    }
    // What nobody else holds is the receiver's to write into.
    let mut outputs = run(2, |_| {
        let pair = Group::world(2).unwrap();
        Call::shift(&pair, DType::F32, 1, [8, 8], floats(2))
    });
    assert!(
        outputs
            .iter_mut()
            .all(|output| Arc::get_mut(output).is_some())
    );
    // A part of a buffer is copied: the output is exactly what was sent.
    let outputs = run(2, |rank| {
        let pair = Group::world(2).unwrap();
        let part = Block::new(Arc::clone(&inputs[0]), 4..12 + 4 * rank.0 as usize).unwrap();
        Call::shift(&pair, DType::F32, 1, [8, 12], part)
    });
    assert_eq!(outputs[0][..], inputs[0][4..16]);
    assert_eq!(outputs[1][..], inputs[0][4..12]);
}

#[test]
fn inputs_are_released_with_the_last_unit_of_work() {
    let world = Group::world(2).unwrap();
    for num in [10, 300_000] {
        let input = floats(num);
        let ranks = LocalHub::connect(2, LocalOptions::default()).unwrap();
        let start = |comm: &dyn Communicator| {
            comm.start(Call::all_reduce(
                &world,
                DType::F32,
                ReduceOp::Sum,
                Arc::clone(&input),
            ))
            .unwrap()
        };
        let (first, second) = (start(&ranks[0]), start(&ranks[1]));
        first.wait().unwrap();
        // The second rank has not waited yet.
        assert_eq!(Arc::strong_count(&input), 1, "{num} elements");
        assert!(second.is_ready());
        drop(second);
    }
}

#[test]
fn a_steady_loop_uses_the_same_memory() {
    let world = Group::world(2).unwrap();
    let ranks = LocalHub::connect(2, LocalOptions::default()).unwrap();
    let input = floats(100_000);
    let mut addresses = std::collections::HashSet::new();
    for _ in 0..10 {
        let call = || Call::all_reduce(&world, DType::F32, ReduceOp::Sum, Arc::clone(&input));
        let pending: Vec<_> = ranks
            .iter()
            .map(|comm| comm.start(call()).unwrap())
            .collect();
        for pending in pending {
            addresses.insert(pending.wait().unwrap().as_ptr().addr());
        }
    }
    assert_eq!(addresses.len(), 1);
}

#[test]
fn the_number_of_open_calls_is_bounded() {
    let pair = Group::world(2).unwrap();
    let options = LocalOptions {
        open_calls_max: 10,
        recorded_calls_max: 4,
        ..Default::default()
    };
    let ranks = LocalHub::connect(2, options).unwrap();
    for _ in 0..10 {
        ranks[0]
            .run(Call::send(&pair, DType::F32, floats(1)))
            .unwrap();
    }
    assert_eq!(ranks[0].recent_calls().len(), 4);
    assert_eq!(ranks[0].recent_calls()[0].sequence(), 6);
    let error = ranks[0]
        .run(Call::send(&pair, DType::F32, floats(1)))
        .unwrap_err();
    assert!(
        matches!(error, CommError::TooManyOpen { limit: 10, .. }),
        "{error}"
    );
}

#[test]
fn an_output_is_made_once_into_what_ranks_share() {
    /// The buffers of another library, which each have an owner.
    struct Boxed(Box<[u8]>);

    impl std::ops::Deref for Boxed {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            &self.0
        }
    }

    let world = Group::world(2).unwrap();
    let options = LocalOptions {
        share: Some(|output| Arc::new(Boxed(output[..].into()))),
        ..LocalOptions::default()
    };
    let ranks = LocalHub::connect(2, options).unwrap();
    let sum = || Call::all_reduce(&world, DType::F32, ReduceOp::Sum, floats(50_000));
    let barrier = || Call::barrier(&world);
    for call in [&sum as &dyn Fn() -> Call, &barrier] {
        let pending: Vec<_> = ranks
            .iter()
            .map(|comm| comm.start(call()).unwrap())
            .collect();
        let outputs = pending.into_iter().map(|pending| {
            let output = downcast::<Boxed>(pending.wait().unwrap());
            output.unwrap_or_else(|_| panic!("every output is of the kind that was asked for"))
        });
        let outputs: Vec<_> = outputs.collect();
        assert!(Arc::ptr_eq(&outputs[0], &outputs[1]));
    }
}

/// Ranks over a modelled network: 1 microsecond per round, and 8 bytes per nanosecond.
fn networked(mesh: &str) -> LocalOptions {
    LocalOptions {
        network: Some(Network {
            topology: Topology::single(mesh.parse::<MeshShape>().unwrap().num_ranks()),
            mesh: mesh.parse().unwrap(),
            links: "latency_us=1,gbps=64".parse().unwrap(),
        }),
        ..LocalOptions::default()
    }
}

/// The output and the times of the call of every rank.
fn timed(
    ranks: &[impl Communicator],
    call: impl Fn(Rank) -> Call,
) -> Vec<(SharedBuffer, Transfer)> {
    let pending: Vec<_> = ranks
        .iter()
        .map(|comm| comm.start(call(comm.rank())).unwrap())
        .collect();
    let wait = |pending: crate::Pending<SharedBuffer>| {
        let info = Arc::clone(pending.info());
        let output = pending.wait().unwrap();
        let transfer = info.transfer().expect("it was waited for");
        assert!(Instant::now() >= transfer.end);
        (output, transfer)
    };
    pending.into_iter().map(wait).collect()
}

#[test]
fn a_network_changes_times_and_no_values() {
    let world = Group::world(3).unwrap();
    let mine = |rank: Rank, num: usize| elements(vec![rank.0 as f32 + 0.1; num]);
    let uneven = Strided::flat(vec![8_000, 0, 4_000]);
    // With 3 members; bytes are those that the busiest receives.
    type Make<'a> = Box<dyn Fn(Rank) -> Call + 'a>;
    let cases: [(Make<'_>, u64); 5] = [
        (
            Box::new(|rank| {
                let part = mine(rank, [2_000, 0, 1_000][rank.0 as usize]);
                Call::all_gather(&world, DType::F32, uneven.clone(), part)
            }),
            2_000 + 12_000 / 8,
        ),
        (
            Box::new(|rank| {
                let whole = mine(rank, 3_000);
                Call::reduce_scatter(&world, DType::F32, ReduceOp::Sum, uneven.clone(), whole)
            }),
            2_000 + 16_000 / 8,
        ),
        (
            Box::new(|rank| Call::all_reduce(&world, DType::F32, ReduceOp::Sum, mine(rank, 3_000))),
            4_000 + 16_000 / 8,
        ),
        (
            Box::new(|rank| {
                let part = mine(rank, [2_000, 0, 1_000][rank.0 as usize]);
                Call::shift(&world, DType::F32, -1, [8_000, 0, 4_000], part)
            }),
            1_000 + 8_000 / 8,
        ),
        (Box::new(|_| Call::barrier(&world)), 2_001),
    ];
    let plain = LocalHub::connect(3, LocalOptions::default()).unwrap();
    let modelled = LocalHub::connect(3, networked("fsdp=3")).unwrap();
    for (call, expected_ns) in &cases {
        let plain = timed(&plain, call);
        let modelled = timed(&modelled, call);
        for ((value, _), (same, transfer)) in plain.iter().zip(&modelled) {
            assert_eq!(value[..], same[..]);
            assert_eq!(transfer.duration(), Duration::from_nanos(*expected_ns));
            assert!(transfer.start >= transfer.launched);
            assert_eq!(*transfer, modelled[0].1, "all members move at once");
        }
    }
}

#[test]
fn a_shift_takes_the_time_of_the_links_between_its_pairs() {
    let options = LocalOptions {
        network: Some(Network {
            topology: Topology::single(4),
            mesh: "cp=2,tp=2".parse().unwrap(),
            links: "cp:latency_us=3,gbps=8;tp:latency_us=1,gbps=64"
                .parse()
                .unwrap(),
        }),
        ..LocalOptions::default()
    };
    let ranks = LocalHub::connect(4, options).unwrap();
    // By 2, members of one axis swap their blocks; by 1, some go along cp.
    for (members, by, expected_ns) in [
        ([0, 1, 2, 3], 2, 3_000 + 8_000),
        ([0, 2, 1, 3], 2, 1_000 + 1_000),
        ([0, 2, 1, 3], -1, 3_000 + 8_000),
    ] {
        let group = Group::new(members.map(Rank).to_vec()).unwrap();
        // The block of 8,000 bytes is the largest.
        let sizes = [8_000, 4_000, 0, 4_000];
        let call = |rank| {
            let bytes = sizes[group.member(rank).unwrap()];
            Call::shift(&group, DType::F32, by, sizes, floats(bytes / 4))
        };
        for (_, transfer) in timed(&ranks, call) {
            let found = transfer.duration();
            assert_eq!(
                found,
                Duration::from_nanos(expected_ns),
                "{members:?} by {by}"
            );
        }
    }
}

#[test]
fn a_link_is_serial_and_a_call_of_one_member_or_no_axis_takes_no_time() {
    let ranks = LocalHub::connect(2, networked("fsdp=2")).unwrap();
    let world = Group::world(2).unwrap();
    let call = |_| Call::all_reduce(&world, DType::F32, ReduceOp::Sum, floats(1_000_000));
    let started: Vec<Vec<_>> = ranks
        .iter()
        .map(|comm| {
            (0..3)
                .map(|_| comm.start(call(comm.rank())).unwrap())
                .collect()
        })
        .collect();
    let mut before: Option<Transfer> = None;
    for pending in started.into_iter().flatten().take(3) {
        let info = Arc::clone(pending.info());
        assert!(pending.is_ready() <= (Instant::now() >= info.started));
        pending.wait().unwrap();
        let transfer = info.transfer().unwrap();
        assert_eq!(transfer.duration(), Duration::from_nanos(2_000 + 500_000));
        if let Some(before) = before {
            assert!(transfer.start >= before.end);
        }
        before = Some(transfer);
    }
    // Alone, there is no link to go over; an exchange that counts as a collective takes that one's time.
    let alone = Group::new(vec![Rank(0)]).unwrap();
    let pending = ranks[0]
        .start(Call::all_reduce(
            &alone,
            DType::F32,
            ReduceOp::Sum,
            floats(10),
        ))
        .unwrap();
    pending.wait().unwrap();
    let exchange = |counted: (Kind, usize)| {
        let started: Vec<_> = ranks
            .iter()
            .map(|comm| {
                let exchange = Exchange::new(&world, "x").counted_as(counted.0, counted.1);
                comm.exchange(exchange, Arc::new(comm.rank())).unwrap()
            })
            .collect();
        let infos: Vec<_> = started
            .iter()
            .map(|pending| Arc::clone(pending.info()))
            .collect();
        for pending in started {
            pending.wait().unwrap();
        }
        infos[1].transfer().unwrap().duration()
    };
    assert_eq!(
        exchange((Kind::AllGather, 800)),
        Duration::from_nanos(1_100)
    );
    assert_eq!(exchange((Kind::Exchange, 0)), Duration::ZERO);
}
