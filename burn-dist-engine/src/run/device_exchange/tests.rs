//! Exchanged handles give the same bits as blocks of bytes, for every kind, operation, dtype and uneven division.

use std::sync::Arc;

use burn_backend::{BoolStore, DType};
use burn_flex::{Flex, FlexDevice};
use burn_std::future::block_on;

use super::kind;
use crate::burn::data::*;
use crate::comm::{Communicator, Kind, LocalHub, LocalOptions};
use crate::mesh::Rank;
use crate::mesh::ReduceOp;
use crate::ops::dtype::{of_burn, to_burn};
use crate::ops::execute::{from_data, into_data};
use crate::plan::task::{CollectiveKind, CollectiveTask};
use crate::run::bridge::{self, Groups, into_fault};
use crate::run::device_comm::DeviceComm;
use crate::run::turn::Turn;

/// Members of the group, in an order of their own, of a world of [`WORLD`] ranks.
const GROUPS: [&[u32]; 4] = [&[0, 1], &[2, 0], &[1, 3, 0], &[0, 1, 2, 3]];
pub(in crate::run) const WORLD: usize = 4;

const DTYPES: [DType; 8] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::Bool(BoolStore::Native),
];

/// Returns the endpoints of so many ranks.
pub(in crate::run) fn world(num_ranks: usize) -> Vec<Arc<dyn Communicator>> {
    let ranks = LocalHub::connect(num_ranks, LocalOptions::default()).expect("a world");
    ranks
        .into_iter()
        .map(|comm| Arc::new(comm) as Arc<dyn Communicator>)
        .collect()
}

/// The size of each member's piece: equal, shorter at the end, empty at the end, empty anywhere.
fn divisions(members: usize) -> Vec<Vec<usize>> {
    let last = members - 1;
    vec![
        vec![2; members],
        (0..members)
            .map(|i| if i == last { 1 } else { 3 })
            .collect(),
        (0..members).map(|i| usize::from(i != last)).collect(),
        (0..members).map(|i| if i == 0 { 0 } else { i }).collect(),
    ]
}

/// Tasks of all members, in the order of the group.
pub(in crate::run) fn tasks(
    kind: CollectiveKind,
    op: ReduceOp,
    dtype: DType,
    group: &[u32],
    sizes: &[usize],
    axes: &[usize],
) -> Vec<CollectiveTask> {
    let to_sizes: Vec<usize> = sizes.iter().rev().map(|size| size + 1).collect();
    let (whole, to_whole): (usize, usize) = (sizes.iter().sum(), to_sizes.iter().sum());
    let mut tasks = Vec::new();
    for (index, (&size, &to_size)) in sizes.iter().zip(&to_sizes).enumerate() {
        // Both orders of the two dims of an all-to-all.
        for swap in [false, true] {
            let (from, to, dim, to_dim) = match (kind, swap) {
                (CollectiveKind::AllGather, _) => (vec![2, size, 3], vec![2, whole, 3], 1, 1),
                (CollectiveKind::ReduceScatter, _) => (vec![2, whole, 3], vec![2, size, 3], 1, 1),
                (CollectiveKind::AllReduce, _) => (vec![whole, 3], vec![whole, 3], 0, 0),
                (CollectiveKind::AllToAll, false) => {
                    (vec![2, whole, 3, to_size], vec![2, size, 3, to_whole], 1, 3)
                }
                (CollectiveKind::AllToAll, true) => {
                    (vec![to_size, 2, whole, 2], vec![to_whole, 2, size, 2], 2, 0)
                }
                (CollectiveKind::Shift { by }, _) => {
                    let from = (index as i32 - by).rem_euclid(sizes.len() as i32);
                    (vec![size], vec![sizes[from as usize]], 0, 0)
                }
            };
            let reduces = kind == CollectiveKind::AllReduce;
            tasks.push(CollectiveTask {
                kind,
                group: group.iter().copied().map(Rank).collect(),
                index,
                axes: axes.into(),
                op,
                dtype: of_burn(dtype),
                from: 0,
                to: 1,
                // What the plan calls shape and view may differ by reshapes.
                from_shape: vec![from.iter().product()],
                to_shape: to.clone(),
                from_view: if reduces { Vec::new() } else { from },
                to_view: if reduces { Vec::new() } else { to },
                dim,
                to_dim,
                sizes: if reduces { [].into() } else { sizes.into() },
                to_sizes: match kind {
                    CollectiveKind::AllToAll => to_sizes.clone().into(),
                    _ => sizes.into(),
                },
                bytes: 10,
                record: 0,
                path: 0,
                take: true,
            });
        }
    }
    tasks
}

/// Values of a member: unlike each other, with signs, roundings in their sums, and NaN where the dtype has it.
pub(in crate::run) fn values(task: &CollectiveTask, number: usize) -> TensorData {
    let count: usize = task.from_shape.iter().product();
    let salt = task.index * 13 + number;
    // Some terms are equal for all members: their mean is the term itself.
    let salt = |i: usize| if i.is_multiple_of(5) { number } else { salt };
    let at = |i: usize| (i * 37 + salt(i) * 101) % 257;
    let shape = task.from_shape.clone();
    match to_burn(task.dtype) {
        DType::Bool(_) => TensorData::new(
            (0..count).map(|i| at(i) % 3 == 0).collect::<Vec<_>>(),
            shape,
        ),
        dtype if dtype.is_float() => {
            let value = |i: usize| match at(i) {
                7 => f64::NAN,
                x => x as f64 / 3.0 - 40.0,
            };
            TensorData::new((0..count).map(value).collect::<Vec<_>>(), shape).convert_dtype(dtype)
        }
        dtype => {
            // No sum or product overflows: on overflow blocks wrap, and the backend does as it likes.
            let modulus = if dtype.size() == 1 { 4 } else { 100 };
            let value = |i: usize| at(i) as i64 % modulus;
            TensorData::new((0..count).map(value).collect::<Vec<_>>(), shape).convert_dtype(dtype)
        }
    }
}

/// Every kind, operation, dtype and division in every group; also over the axes of a larger one.
pub(in crate::run) fn every_task() -> Vec<Vec<CollectiveTask>> {
    let mut all = Vec::new();
    for group in GROUPS {
        for sizes in divisions(group.len()) {
            for dtype in DTYPES {
                for kind in [CollectiveKind::AllGather, CollectiveKind::AllToAll] {
                    all.push(tasks(kind, ReduceOp::Sum, dtype, group, &sizes, &[]));
                }
                let members = group.len() as i32;
                for by in [1, -1, 5].into_iter().filter(|by| by % members != 0) {
                    let kind = CollectiveKind::Shift { by };
                    all.push(tasks(kind, ReduceOp::Sum, dtype, group, &sizes, &[]));
                }
                for op in ReduceOp::ALL.into_iter().filter(|op| reducible(dtype, *op)) {
                    for kind in [CollectiveKind::ReduceScatter, CollectiveKind::AllReduce] {
                        all.push(tasks(kind, op, dtype, group, &sizes, &[]));
                        if group.len() == 4 {
                            all.push(tasks(kind, op, dtype, group, &sizes, &[2, 2]));
                        }
                    }
                }
            }
        }
    }
    all
}

/// The bytes of each result of a rank.
pub(in crate::run) type Results = Vec<Result<Vec<u8>, String>>;

/// Each rank has the same results twice, of all its tasks, and no errors.
pub(in crate::run) fn assert_same(
    tasks: &[Vec<CollectiveTask>],
    expected: &[Results],
    found: &[Results],
) {
    let mut compared = 0;
    for (rank, (expected, found)) in expected.iter().zip(found).enumerate() {
        let mine = tasks
            .iter()
            .flatten()
            .filter(|task| task.group[task.index].0 as usize == rank);
        for ((task, expected), found) in mine.zip(expected).zip(found) {
            let expected = expected.as_ref().expect("a block");
            assert_eq!(found.as_ref(), Ok(expected), "{task:#?}");
            compared += 1;
        }
    }
    assert!(compared > 5000, "{compared}");
}

/// Runs every task of every rank, in order, and returns the bytes of each result, and what was counted.
fn run(tasks: &[Vec<CollectiveTask>], apart: bool) -> (Vec<Results>, Vec<(Kind, u64, u64)>) {
    let turns = Turn::assign::<Flex>(&[FlexDevice; WORLD], apart);
    let comms = world(WORLD);
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .iter()
            .zip(&turns)
            .map(|(comm, turn)| {
                scope.spawn(move || {
                    let mut groups = Groups::default();
                    let comm =
                        &DeviceComm::<Flex>::new(comm.clone(), None, turn.clone(), FlexDevice);
                    let mine = tasks
                        .iter()
                        .flatten()
                        .enumerate()
                        .filter(|(_, task)| task.group[task.index] == comm.rank());
                    mine.map(|(number, task)| {
                        turn.work(|| {
                            let input = from_data::<Flex>(values(task, number), &FlexDevice);
                            let started =
                                bridge::start::<Flex>(task, input, comm, &mut groups, None);
                            let output = started
                                .and_then(|started| started.wait::<Flex>(task, turn, &FlexDevice))
                                .map_err(|error| {
                                    into_fault(error, comm.rank(), task.kind.name(), None)
                                        .to_string()
                                })?;
                            let data = block_on(into_data::<Flex>(
                                output,
                                task.to_shape.clone().into(),
                                to_burn(task.dtype),
                            ))
                            .map_err(|error| error.to_string())?;
                            assert_eq!(data.shape().to_vec(), task.to_shape);
                            assert_eq!(of_burn(data.dtype()), task.dtype);
                            Ok::<_, String>(data.bytes().to_vec())
                        })
                    })
                    .collect()
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("no panic"))
            .collect()
    });
    let counted = Kind::ALL.map(|kind| {
        let stats = comms[0].stats().get(kind);
        (kind, stats.calls, stats.bytes)
    });
    (results, counted.to_vec())
}

fn reducible(dtype: DType, op: ReduceOp) -> bool {
    !matches!(dtype, DType::Bool(_)) || matches!(op, ReduceOp::Min | ReduceOp::Max)
}

#[test]
fn handles_give_the_bits_that_bytes_give() {
    let all = every_task();
    let (blocks, _) = run(&all, true);
    let (handles, counted) = run(&all, false);
    assert_same(&all, &blocks, &handles);
    // Counted by kind, with the bytes that the plan says.
    for (kind, calls, bytes) in counted {
        let expected = match kind {
            Kind::AllGather
            | Kind::ReduceScatter
            | Kind::AllReduce
            | Kind::AllToAll
            | Kind::Shift => 10 * calls,
            _ => 0,
        };
        assert_eq!(bytes, expected, "{}", kind.name());
        assert_eq!(calls > 0, expected > 0, "{}", kind.name());
    }
}

#[test]
fn sums_of_booleans_are_refused_by_name() {
    let dtype = DType::Bool(BoolStore::Native);
    let all = [tasks(
        CollectiveKind::AllReduce,
        ReduceOp::Sum,
        dtype,
        &[0, 1],
        &[2, 2],
        &[],
    )];
    let (results, _) = run(&all, false);
    for result in &results[..2] {
        let error = result[0].as_ref().expect_err("no sum of booleans");
        assert!(error.contains("Sum is not defined for booleans"), "{error}");
    }
}

#[test]
fn plans_that_differ_are_found() {
    let of = |sizes: &[usize], index: usize| {
        let tasks = tasks(
            CollectiveKind::AllGather,
            ReduceOp::Sum,
            DType::F32,
            &[0, 1],
            sizes,
            &[],
        );
        let mut tasks = tasks.into_iter().filter(move |task| task.index == index);
        tasks.next().expect("a task per member")
    };
    let (results, _) = run(&[vec![of(&[2, 2], 0), of(&[2, 3], 1)]], false);
    let error = results[0][0].as_ref().expect_err("a mismatch");
    assert!(error.contains("all_gather of [2, 3]"), "{error}");
}

#[test]
fn a_collective_takes_as_many_rounds_in_a_plan_as_on_the_wire() {
    for plan in [
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllReduce,
        CollectiveKind::AllToAll,
        CollectiveKind::Shift { by: 1 },
    ] {
        for members in [0, 1, 2, 5] {
            assert_eq!(plan.rounds(members), kind(plan).rounds(members));
        }
    }
}
