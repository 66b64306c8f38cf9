//! Promises about results.

use super::reference::{DTYPES, OPS, Random, fill, shift_by};
use super::{Case, Connect, PATIENT, block, on_ranks, run_cases};
use burn_dist_comm::{
    AllToAll, Block, Call, Collective, Exchange, Group, Kind, KindStats, Lane, Payload, Strided,
    chunk_sizes, elements,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use std::sync::Arc;

fn is_supported(dtype: DType, op: ReduceOp) -> bool {
    !matches!(dtype, DType::Bool(_)) || matches!(op, ReduceOp::Min | ReduceOp::Max)
}

/// Divisions of a few sizes: even, uneven, with empty parts, all empty.
fn divisions(k: usize) -> Vec<Vec<usize>> {
    vec![
        vec![2; k],
        chunk_sizes(7, k),
        chunk_sizes(1, k),
        vec![0; k],
        (0..k).map(|i| (i * 5 + 3) % 4).collect(),
        (0..k).map(|i| if i + 1 == k { 9 } else { 0 }).collect(),
    ]
}

pub(super) fn every_collective_moves_every_dtype(connect: Connect) {
    for k in 1..=4 {
        // The members are not in the order of their ranks.
        let group = Group::new((0..k as u32).rev().map(Rank).collect()).unwrap();
        let mut random = Random::new(k as u64);
        let mut cases = Vec::new();
        for dtype in DTYPES {
            let size = dtype.size();
            for (index, division) in divisions(k).into_iter().enumerate() {
                let sizes: Arc<[usize]> = division.iter().map(|n| n * size).collect();
                let root = Rank((index % k) as u32);
                let bytes = sizes.iter().sum();
                let mut add =
                    |collective| cases.push(Case::new(&group, dtype, collective, &mut random));
                add(Collective::AllGather(Strided::flat(sizes.clone())));
                add(Collective::Broadcast { root, bytes });
                // All ways round once, in either direction; one member has none.
                for by in (1 - k as isize..k as isize).filter(|by| *by != 0) {
                    let sizes = sizes.clone();
                    add(Collective::Shift { by, sizes });
                }
                if k == 2 {
                    add(Collective::Send { bytes });
                }
            }
        }
        run_cases(connect, k, &cases);
    }
}

pub(super) fn every_reduction_is_that_of_a_plain_loop_bitwise(connect: Connect) {
    for k in 1..=5 {
        let group = Group::new((0..k as u32).rev().map(Rank).collect()).unwrap();
        let mut random = Random::new(100 + k as u64);
        let mut cases = Vec::new();
        for dtype in DTYPES {
            for op in OPS.into_iter().filter(|&op| is_supported(dtype, op)) {
                for num in [0, 1, 7, 64, 4099] {
                    let bytes = num * dtype.size();
                    let parts = Strided::chunked(1, num, dtype.size(), k);
                    cases.push(Case::new(
                        &group,
                        dtype,
                        Collective::AllReduce { op, bytes },
                        &mut random,
                    ));
                    cases.push(Case::new(
                        &group,
                        dtype,
                        Collective::ReduceScatter { op, parts },
                        &mut random,
                    ));
                }
            }
        }
        run_cases(connect, k, &cases);
    }
}

pub(super) fn several_axes_are_reduced_one_after_the_other_bitwise(connect: Connect) {
    for axes in [vec![2, 2], vec![2, 3], vec![3, 2], vec![2, 2, 2], vec![4]] {
        let k = axes.iter().product();
        let group = Group::new((0..k as u32).rev().map(Rank).collect()).unwrap();
        let mut random = Random::new(7 + k as u64);
        let mut cases = Vec::new();
        for dtype in DTYPES {
            for op in OPS.into_iter().filter(|&op| is_supported(dtype, op)) {
                for num in [1, 7, 4099] {
                    let bytes = num * dtype.size();
                    let all_reduce = Collective::AllReduce { op, bytes };
                    let case = Case::new(&group, dtype, all_reduce, &mut random);
                    cases.push(case.axis_by_axis(op, &axes));
                }
            }
        }
        run_cases(connect, k, &cases);
    }
}

pub(super) fn reduce_scatter_and_all_gather_are_all_reduce_bitwise(connect: Connect) {
    for k in [2, 3, 4] {
        let world = Group::world(k).unwrap();
        on_ranks(connect(k, PATIENT), |comm| {
            for (dtype, num) in [
                (DType::F32, 100_003),
                (DType::F16, 50_001),
                (DType::F64, 13),
            ] {
                let mut random = Random::new(u64::from(comm.rank().0));
                let mine = block(&fill(dtype, num, &mut random));
                for op in OPS {
                    let parts = Strided::chunked(1, num, dtype.size(), k);
                    let whole = comm
                        .run(Call::all_reduce(&world, dtype, op, mine.clone()))
                        .unwrap();
                    let part = comm
                        .run(Call::reduce_scatter(
                            &world,
                            dtype,
                            op,
                            parts.clone(),
                            mine.clone(),
                        ))
                        .unwrap();
                    let joined = comm
                        .run(Call::all_gather(&world, dtype, parts, part))
                        .unwrap();
                    assert!(
                        whole[..] == joined[..],
                        "{op:?} of {} on {k} ranks",
                        dtype.name()
                    );
                }
            }
        });
    }
}

pub(super) fn a_middle_dim_is_gathered_and_scattered_in_place(connect: Connect) {
    for k in [2, 3] {
        let world = Group::world(k).unwrap();
        let mut random = Random::new(7);
        let mut cases = Vec::new();
        for outer in [0, 1, 2, 5] {
            // Elements per step of the divided dim: runs of all the special sizes, and others.
            for inner in [1, 2, 3, 4, 8, 16, 17, 70] {
                for division in divisions(k) {
                    for dtype in [DType::F32, DType::U8] {
                        let parts = Strided {
                            outer,
                            mid_sizes: division.clone().into(),
                            inner_bytes: inner * dtype.size(),
                        };
                        cases.push(Case::new(
                            &world,
                            dtype,
                            Collective::AllGather(parts.clone()),
                            &mut random,
                        ));
                        cases.push(Case::new(
                            &world,
                            dtype,
                            Collective::ReduceScatter {
                                op: ReduceOp::Sum,
                                parts,
                            },
                            &mut random,
                        ));
                    }
                }
            }
        }
        run_cases(connect, k, &cases);
    }
}

pub(super) fn an_all_to_all_swaps_any_two_dims(connect: Connect) {
    for k in [2, 3] {
        let world = Group::world(k).unwrap();
        let mut random = Random::new(8);
        let mut cases = Vec::new();
        for (split_dim, concat_dim) in (0..4)
            .flat_map(|a| (0..4).map(move |b| (a, b)))
            .filter(|(a, b)| a != b)
        {
            for split in divisions(k) {
                for concat in divisions(k) {
                    let mut shape = vec![2, 3, 2, 3];
                    shape[split_dim] = split.iter().sum();
                    shape[concat_dim] = concat.iter().sum();
                    let pieces = AllToAll {
                        shape: shape.into(),
                        split: (split_dim, split.clone().into()),
                        concat: (concat_dim, concat.into()),
                        elem_bytes: 4,
                    };
                    cases.push(Case::new(
                        &world,
                        DType::F32,
                        Collective::AllToAll(pieces),
                        &mut random,
                    ));
                }
            }
        }
        run_cases(connect, k, &cases);
    }
}

pub(super) fn shifts_bring_the_blocks_of_members_so_many_places_before(connect: Connect) {
    let mut random = Random::new(16);
    for num_ranks in 2..=8 {
        let mut cases = Vec::new();
        for dtype in DTYPES {
            for _ in 0..6 {
                let group = some_ranks(num_ranks, &mut random);
                let k = group.len();
                let num = [1, 5, 40, 3000][random.below(4)];
                // Some are empty.
                let sizes = (0..k).map(|_| random.below(num) * dtype.size()).collect();
                let by = shift_by(k, &mut random);
                let shift = Collective::Shift { by, sizes };
                cases.push(Case::new(&group, dtype, shift, &mut random));
            }
        }
        run_cases(connect, num_ranks, &cases);
    }
}

/// Two or more of the ranks, in any order.
fn some_ranks(num_ranks: usize, random: &mut Random) -> Group {
    let mut ranks: Vec<Rank> = (0..num_ranks as u32).map(Rank).collect();
    for i in (1..num_ranks).rev() {
        ranks.swap(i, random.below(i + 1));
    }
    ranks.truncate(2 + random.below(num_ranks - 1));
    Group::new(ranks).unwrap()
}

pub(super) fn a_shift_and_the_shift_back_leave_every_block_with_its_owner(connect: Connect) {
    for k in [2, 3, 6] {
        let world = Group::world(k).unwrap();
        on_ranks(connect(k, PATIENT), |comm| {
            let member = comm.rank().0 as usize;
            let mut sizes: Vec<usize> = (0..k).map(|member| 4 * (member * 7 % 5)).collect();
            let mine = block(&fill(
                DType::F32,
                sizes[member] / 4,
                &mut Random::new(member as u64),
            ));
            let mut held = mine.clone();
            for by in [1, 1, -1, 1, -2, 5] {
                let by = match by % k as isize {
                    0 => 1,
                    _ => by,
                };
                for by in [by, -by] {
                    let call = Call::shift(&world, DType::F32, by, sizes.clone(), held);
                    held = comm.run(call).unwrap().into();
                    sizes.rotate_right(by.rem_euclid(k as isize) as usize);
                    assert_eq!(held.len(), sizes[member]);
                }
                assert!(held.as_slice() == mine.as_slice(), "by {by} of {k}");
            }
        });
    }
}

/// Beyond the sizes at which work is shared (64 KiB) and streamed past the caches (40 MiB), and cut at no round place.
pub(super) fn large_blocks_are_moved_and_reduced_alike(connect: Connect) {
    let k = 3;
    let world = Group::world(k).unwrap();
    let mut random = Random::new(10);
    let mut cases = Vec::new();
    for num in [30_011, 3_000_017] {
        let dtype = DType::F32;
        let mut add = |collective| cases.push(Case::new(&world, dtype, collective, &mut random));
        let strided = Strided::chunked(num / 3001, 7, 4 * 401, k);
        add(Collective::AllReduce {
            op: ReduceOp::Sum,
            bytes: num * 4,
        });
        add(Collective::AllGather(strided.clone()));
        add(Collective::Shift {
            by: 1,
            sizes: vec![num * 4, 4, num * 2].into(),
        });
        add(Collective::ReduceScatter {
            op: ReduceOp::Max,
            parts: strided,
        });
        if num < 1_000_000 {
            let parts = Strided::chunked(1, num, 4, k);
            add(Collective::ReduceScatter {
                op: ReduceOp::Mean,
                parts: parts.clone(),
            });
            add(Collective::AllGather(parts));
            add(Collective::AllToAll(AllToAll {
                shape: vec![num / 3000, 10, 3, 1000].into(),
                split: (1, chunk_sizes(10, k).into()),
                concat: (3, chunk_sizes(1000, k).into()),
                elem_bytes: 4,
            }));
        }
    }
    run_cases(connect, k, &cases);
}

pub(super) fn unaligned_inputs_are_reduced_alike(connect: Connect) {
    let world = Group::world(2).unwrap();
    let mut random = Random::new(11);
    let num = 50_000;
    let case = Case::new(
        &world,
        DType::F64,
        Collective::AllReduce {
            op: ReduceOp::Sum,
            bytes: num * 8,
        },
        &mut random,
    );
    on_ranks(connect(2, PATIENT), |comm| {
        let member = comm.rank().0 as usize;
        let mut shifted = vec![0; 3];
        shifted.extend(&case.inputs[member]);
        let mine = Block::new(elements(shifted), 3..3 + num * 8).unwrap();
        let output = comm
            .run(Call::all_reduce(&world, DType::F64, ReduceOp::Sum, mine))
            .unwrap();
        case.verify(member, &output);
    });
}

pub(super) fn nan_wins_every_minimum_and_maximum(connect: Connect) {
    let world = Group::world(3).unwrap();
    on_ranks(connect(3, PATIENT), |comm| {
        // Rank r has a NaN at element r.
        let mut mine = vec![1.0_f32; 4];
        mine[comm.rank().0 as usize] = f32::NAN;
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let output = comm
                .run(Call::all_reduce(&world, DType::F32, op, mine.clone()))
                .unwrap();
            let values: Vec<f32> = output
                .chunks(4)
                .map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()))
                .collect();
            assert!(
                values[..3].iter().all(|value| value.is_nan()) && values[3] == 1.0,
                "{values:?}"
            );
        }
    });
}

/// Every rank has a thread per lane, and each makes calls on groups that overlap.
pub(super) fn groups_and_lanes_are_independent_sequences(connect: Connect) {
    let groups: Vec<Group> = [
        vec![0, 1, 2, 3],
        vec![0, 1],
        vec![2, 3],
        vec![3, 1],
        vec![0, 2, 3],
        vec![2],
    ]
    .into_iter()
    .map(|ranks: Vec<u32>| Group::new(ranks.into_iter().map(Rank).collect()).unwrap())
    .collect();
    let mut random = Random::new(12);
    let lanes: Vec<Vec<Case>> = (0..3)
        .map(|lane| {
            (0..60)
                .map(|_| {
                    let group = &groups[random.below(groups.len())];
                    let num = random.below(50);
                    let collective = match random.below(3) {
                        0 => Collective::AllReduce {
                            op: ReduceOp::Sum,
                            bytes: num * 8,
                        },
                        1 => Collective::AllGather(Strided::chunked(1, num, 8, group.len())),
                        _ => Collective::Broadcast {
                            root: group.ranks()[0],
                            bytes: num * 8,
                        },
                    };
                    Case {
                        lane: Lane(lane),
                        ..Case::new(group, DType::I64, collective, &mut random)
                    }
                })
                .collect()
        })
        .collect();
    on_ranks(connect(4, PATIENT), |comm| {
        let comm = &comm;
        std::thread::scope(|scope| {
            for cases in &lanes {
                scope.spawn(move || {
                    for case in cases {
                        if let Some(member) = case.group.member(comm.rank()) {
                            case.verify(member, &comm.run(case.call(member)).unwrap());
                        }
                    }
                });
            }
        });
    });
}

/// One rank waits for the large call first, the other for the small one first.
pub(super) fn opposite_orders_on_different_groups_do_not_block(connect: Connect) {
    let (forth, back) = (
        Group::new(vec![Rank(0), Rank(1)]).unwrap(),
        Group::new(vec![Rank(1), Rank(0)]).unwrap(),
    );
    let mut random = Random::new(13);
    let reduce = |num: usize| Collective::AllReduce {
        op: ReduceOp::Sum,
        bytes: num * 4,
    };
    let large = Case::new(&forth, DType::F32, reduce(300_000), &mut random);
    let small = Case::new(&back, DType::F32, reduce(10), &mut random);
    on_ranks(connect(2, PATIENT), |comm| {
        let mut order = [&large, &small];
        if comm.rank() == Rank(1) {
            order.reverse();
        }
        for _ in 0..20 {
            let member = |case: &Case| case.group.member(comm.rank()).unwrap();
            let pending = order.map(|case| (case, comm.start(case.call(member(case))).unwrap()));
            for (case, pending) in pending.into_iter().rev() {
                case.verify(member(case), &pending.wait().unwrap());
            }
        }
    });
}

pub(super) fn a_send_does_not_wait_for_its_receiver(connect: Connect) {
    let (forth, back) = (
        Group::new(vec![Rank(0), Rank(1)]).unwrap(),
        Group::new(vec![Rank(1), Rank(0)]).unwrap(),
    );
    on_ranks(connect(2, PATIENT), |comm| {
        // Both send first, which blocks if a send waits.
        let (out, into) = if comm.rank() == Rank(0) {
            (&forth, &back)
        } else {
            (&back, &forth)
        };
        let mine = comm.rank().0 as u8;
        for i in 0..50 {
            let sent = comm
                .run(Call::send(out, DType::U8, block(&[mine, i])))
                .unwrap();
            assert!(sent.is_empty());
        }
        for i in 0..50 {
            let received = comm.run(Call::recv(into, DType::U8, 2)).unwrap();
            assert_eq!(received[..], [1 - mine, i]);
        }
    });
}

pub(super) fn a_dropped_call_still_takes_place(connect: Connect) {
    let world = Group::world(2).unwrap();
    let mut random = Random::new(14);
    let collective = Collective::AllReduce {
        op: ReduceOp::Sum,
        bytes: 400_000,
    };
    let case = Case::new(&world, DType::F32, collective, &mut random);
    on_ranks(connect(2, PATIENT), |comm| {
        let member = comm.rank().0 as usize;
        let pending = comm.start(case.call(member)).unwrap();
        if member == 0 {
            drop(pending);
        } else {
            case.verify(1, &pending.wait().unwrap());
        }
        // The next call meets the next call.
        case.verify(member, &comm.run(case.call(member)).unwrap());
    });
}

pub(super) fn counters_follow_their_formulae(connect: Connect) {
    let k = 3;
    let world = Group::world(k).unwrap();
    let pair = Group::new(vec![Rank(2), Rank(0)]).unwrap();
    let mut random = Random::new(15);
    let parts = Strided {
        outer: 2,
        mid_sizes: vec![4, 0, 3].into(),
        inner_bytes: 8,
    };
    let swap = AllToAll {
        shape: vec![5, 2, 7].into(),
        split: (0, vec![2, 2, 1].into()),
        concat: (2, vec![3, 3, 1].into()),
        elem_bytes: 4,
    };
    let op = ReduceOp::Sum;
    let root = Rank(1);
    let sizes: Arc<[usize]> = vec![8, 4, 12].into();
    // Bytes received by ranks 0, 1, 2, by hand.
    let table = [
        (&world, Collective::AllGather(parts.clone()), [48, 112, 64]),
        (
            &world,
            Collective::ReduceScatter { op, parts },
            [2 * 64, 0, 2 * 48],
        ),
        // 10 elements: chunks of 4, 4, 2.
        (
            &world,
            Collective::AllReduce { op, bytes: 40 },
            [2 * 16 + 24, 2 * 16 + 24, 2 * 8 + 32],
        ),
        (
            &world,
            Collective::AllToAll(swap),
            [2 * 2 * 4 * 4, 2 * 2 * 4 * 4, 2 * 6 * 4],
        ),
        (
            &world,
            Collective::Broadcast { root, bytes: 20 },
            [20, 0, 20],
        ),
        (
            &world,
            Collective::Shift {
                by: -1,
                sizes: sizes.clone(),
            },
            [4, 12, 8],
        ),
        (&pair, Collective::Send { bytes: 16 }, [16, 0, 0]),
    ];
    let cases: Vec<_> = table
        .into_iter()
        .map(|(group, collective, bytes)| {
            (Case::new(group, DType::F32, collective, &mut random), bytes)
        })
        .collect();
    on_ranks(connect(k, PATIENT), |comm| {
        for (case, bytes) in &cases {
            let Some(member) = case.group.member(comm.rank()) else {
                continue;
            };
            let before = comm.stats();
            case.verify(member, &comm.run(case.call(member)).unwrap());
            let kind = match (case.collective.kind(), member) {
                (Kind::Send, 1) => Kind::Recv,
                (kind, _) => kind,
            };
            let added = comm.stats().since(&before);
            let wanted = KindStats {
                calls: 1,
                bytes: bytes[comm.rank().0 as usize],
            };
            assert_eq!(
                added.get(kind),
                wanted,
                "{} on rank {}",
                kind.name(),
                comm.rank().0
            );
            assert_eq!(added.total(), wanted);
        }
    });
}

pub(super) fn values_are_exchanged_in_the_order_of_the_group(connect: Connect) {
    let group = Group::new(vec![Rank(2), Rank(0), Rank(1)]).unwrap();
    on_ranks(connect(3, PATIENT), |comm| {
        for round in 0..10 {
            let mine: Payload = Arc::new(format!("rank {} round {round}", comm.rank().0));
            let all = comm
                .exchange(Exchange::new(&group, "names").labelled("test"), mine)
                .unwrap()
                .wait()
                .unwrap();
            let all: Vec<&String> = all
                .iter()
                .map(|payload| payload.downcast_ref().unwrap())
                .collect();
            let wanted: Vec<String> = [2, 0, 1]
                .map(|rank| format!("rank {rank} round {round}"))
                .into();
            assert!(all.into_iter().eq(&wanted));
        }
        assert_eq!(
            comm.stats().get(Kind::Exchange),
            KindStats {
                calls: 10,
                bytes: 0
            }
        );
    });
}

#[test]
fn the_reference_knows_simple_answers() {
    let values = |numbers: &[f32]| {
        numbers
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect::<Vec<u8>>()
    };
    let inputs = [values(&[1.0, 6.0]), values(&[3.0, 2.0])];
    let reduce = |op| super::reference::reduce(DType::F32, op, &inputs);
    assert_eq!(reduce(ReduceOp::Sum), values(&[4.0, 8.0]));
    assert_eq!(reduce(ReduceOp::Mean), values(&[2.0, 4.0]));
    assert_eq!(reduce(ReduceOp::Min), values(&[1.0, 2.0]));
    assert_eq!(reduce(ReduceOp::Max), values(&[3.0, 6.0]));
    assert_eq!(reduce(ReduceOp::Prod), values(&[3.0, 12.0]));
    let bools = [vec![0_u8, 1, 1], vec![0, 0, 1]];
    assert_eq!(
        super::reference::reduce(
            DType::Bool(burn_dist_mesh::BoolStore::Native),
            ReduceOp::Max,
            &bools
        ),
        [0, 1, 1]
    );
    assert_eq!(
        super::reference::reduce(DType::I8, ReduceOp::Mean, &[vec![-3_i8 as u8], vec![0]]),
        [-1_i8 as u8]
    );
}
