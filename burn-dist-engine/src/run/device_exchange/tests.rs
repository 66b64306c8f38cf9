//! Exchanged handles give the same bits as blocks of bytes, for every kind, operation, dtype and uneven division.

use std::sync::Arc;

use burn_backend::{BoolStore, DType};
use burn_flex::{Flex, FlexDevice};
use burn_std::future::block_on;

use crate::burn::data::*;
use crate::comm::{
    AllToAll, Collective, Communicator, Kind, LocalHub, LocalOptions, Strided, member_before,
};
use crate::mesh::Rank;
use crate::mesh::ReduceOp;
use crate::ops::dtype::{of_burn, to_burn};
use crate::ops::execute::{from_data, into_data};
use crate::plan::task::CollectiveTask;
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

/// The collectives that tasks are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Moves {
    Gather,
    Scatter(ReduceOp),
    Reduce(ReduceOp),
    Swap,
    Shift(isize),
}

/// Tasks of all members, in the order of the group; two of each, of which one of the dims before is different.
pub(in crate::run) fn tasks(
    kind: Moves,
    dtype: DType,
    group: &[u32],
    sizes: &[usize],
    axes: &[usize],
) -> Vec<CollectiveTask> {
    let elem = of_burn(dtype).size();
    let to_sizes: Vec<usize> = sizes.iter().rev().map(|size| size + 1).collect();
    let (whole, to_whole): (usize, usize) = (sizes.iter().sum(), to_sizes.iter().sum());
    let mut tasks = Vec::new();
    for (index, (&size, &to_size)) in sizes.iter().zip(&to_sizes).enumerate() {
        for is_second in [false, true] {
            let outer = if is_second { 2 } else { 1 };
            let parts = Strided {
                outer,
                mid_sizes: sizes.into(),
                inner_bytes: 3 * elem,
            };
            let (collective, from, to) = match kind {
                Moves::Gather => {
                    let (from, to) = (vec![outer, size, 3], vec![outer, whole, 3]);
                    (Collective::AllGather(parts), from, to)
                }
                Moves::Scatter(op) => {
                    let (from, to) = (vec![outer, whole, 3], vec![outer, size, 3]);
                    (Collective::ReduceScatter { op, parts }, from, to)
                }
                Moves::Reduce(op) => {
                    let bytes = whole * 3 * elem;
                    let shape = vec![whole, 3];
                    (Collective::AllReduce { op, bytes }, shape.clone(), shape)
                }
                // Both orders of the two dims.
                Moves::Swap => {
                    let (shape, cut, join) = match is_second {
                        false => (vec![2, whole, 3, to_whole], 1, 3),
                        true => (vec![to_whole, 2, whole, 2], 2, 0),
                    };
                    let (mut from, mut to) = (shape.clone(), shape.clone());
                    (from[join], to[cut]) = (to_size, size);
                    let pieces = AllToAll {
                        shape: shape.into(),
                        split: (cut, sizes.into()),
                        concat: (join, to_sizes.clone().into()),
                        elem_bytes: elem,
                    };
                    (Collective::AllToAll(pieces), from, to)
                }
                Moves::Shift(by) => {
                    let from = member_before(index, by, sizes.len());
                    let bytes = sizes.iter().map(|size| size * elem).collect();
                    let shift = Collective::Shift { by, sizes: bytes };
                    (shift, vec![size], vec![sizes[from]])
                }
            };
            tasks.push(CollectiveTask {
                collective,
                group: group.iter().copied().map(Rank).collect(),
                index,
                axes: axes.into(),
                dtype: of_burn(dtype),
                from: 0,
                to: 1,
                // The shapes of a plan may differ from those of the description by reshapes.
                from_shape: vec![from.iter().product()],
                to_shape: to,
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
    every_task_of(&GROUPS)
}

/// Every kind, operation, dtype and division in these groups; in those of four also over the axes of a larger one.
pub(in crate::run) fn every_task_of(groups: &[&[u32]]) -> Vec<Vec<CollectiveTask>> {
    let mut all = Vec::new();
    for group in groups {
        for sizes in divisions(group.len()) {
            for dtype in DTYPES {
                let mut add = |kind, axes: &[usize]| {
                    all.push(tasks(kind, dtype, group, &sizes, axes));
                };
                add(Moves::Gather, &[]);
                add(Moves::Swap, &[]);
                let members = group.len() as isize;
                for by in [1, -1, 5].into_iter().filter(|by| by % members != 0) {
                    add(Moves::Shift(by), &[]);
                }
                for op in ReduceOp::ALL.into_iter().filter(|op| reducible(dtype, *op)) {
                    for kind in [Moves::Scatter(op), Moves::Reduce(op)] {
                        add(kind, &[]);
                        if group.len() == 4 {
                            add(kind, &[2, 2]);
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
                                    into_fault(error, comm.rank(), task.kind().name(), None)
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
#[cfg_attr(burn_021, ignore = "long, and the same source on the current line")]
fn handles_give_the_bits_that_bytes_give() {
    let all = every_task();
    let (blocks, _) = run(&all, true);
    let (handles, counted) = run(&all, false);
    assert_same(&all, &blocks, &handles);
    // Counted by kind, with the bytes that the plan says.
    for (kind, calls, bytes) in counted {
        let mine = all.iter().flatten();
        let mine = mine.filter(|task| task.group[task.index] == Rank(0) && task.kind() == kind);
        let mine: Vec<u64> = mine.map(CollectiveTask::bytes).collect();
        let expected = (mine.len() as u64, mine.iter().sum::<u64>());
        assert_eq!((calls, bytes), expected, "{}", kind.name());
        let is_planned = kind <= Kind::Shift;
        assert_eq!(bytes > 0, is_planned, "{}", kind.name());
    }
}

#[test]
fn sums_of_booleans_are_refused_by_name() {
    let dtype = DType::Bool(BoolStore::Native);
    let kind = Moves::Reduce(ReduceOp::Sum);
    let all = [tasks(kind, dtype, &[0, 1], &[2, 2], &[])];
    let (results, _) = run(&all, false);
    for result in &results[..2] {
        let error = result[0].as_ref().expect_err("no sum of booleans");
        assert!(error.contains("Sum is not defined for booleans"), "{error}");
    }
}

#[test]
fn plans_that_differ_are_found() {
    let of = |sizes: &[usize], index: usize| {
        let tasks = tasks(Moves::Gather, DType::F32, &[0, 1], sizes, &[]);
        let mut tasks = tasks.into_iter().filter(move |task| task.index == index);
        tasks.next().expect("a task per member")
    };
    let (results, _) = run(&[vec![of(&[2, 2], 0), of(&[2, 3], 1)]], false);
    let error = results[0][0].as_ref().expect_err("a mismatch");
    assert!(
        error.contains("all_gather f32 of [1, [2, 3], 3]"),
        "{error}"
    );
}
