//! Small cases of the account: tasks of a rank, and what it holds during each.

use std::sync::Arc;

use super::*;
use crate::ir::{HostTask, NewTensor, Side, TensorIndex, TransferTask, UploadTask};
use crate::mesh::collective::{Collective, Strided};
use crate::mesh::{DType, Rank};
use crate::toy::Toy;

/// A tensor of `n` elements of four bytes.
fn tensor(id: Slot, n: usize) -> NewTensor {
    NewTensor {
        id,
        shape: vec![n],
        dtype: DType::F32,
    }
}

fn upload(slot: Slot, n: usize) -> Task<Toy> {
    Task::Upload(Box::new(UploadTask {
        value: slot,
        slot,
        dtype: DType::F32,
        shape: vec![n],
        runs: None,
        terms: Vec::new(),
        seed: 0,
    }))
}

/// The operation, whose inputs are used for the last time if they are among `last`.
fn op(mut op: Toy, last: &[TensorIndex]) -> Task<Toy> {
    op.rewire(|side, wire| wire.last_use = side == Side::Input && last.contains(&wire.id));
    Task::Op(op, 0)
}

fn store(slot: Slot, n: usize) -> Task<Toy> {
    Task::Store {
        slot,
        value: 7,
        take: true,
        bytes: 4 * n as u64,
        shape: vec![n],
        dtype: DType::F32,
        host: false,
    }
}

fn host(slot: Slot, n: usize) -> Box<HostTask> {
    Box::new(HostTask {
        slot,
        shape: vec![n],
        dtype: DType::F32,
    })
}

fn send(slot: Slot, n: usize) -> Task<Toy> {
    Task::Send(Box::new(TransferTask {
        peer: Rank(1),
        slot,
        shape: vec![n],
        dtype: DType::F32,
        record: 0,
        path: 0,
        take: true,
    }))
}

/// An all-gather of `n` elements from each of two ranks, which gives up what it sends.
fn gather(from: Slot, to: Slot, n: usize) -> CollectiveTask {
    CollectiveTask {
        collective: Collective::AllGather(Strided {
            outer: 1,
            mid_sizes: Arc::new([n, n]),
            inner_bytes: 4,
        }),
        group: Arc::new([Rank(0), Rank(1)]),
        index: 0,
        axes: Arc::new([2]),
        dtype: DType::F32,
        from,
        to,
        from_shape: vec![n],
        to_shape: vec![2 * n],
        record: 0,
        path: 0,
        take: true,
    }
}

fn plan(tasks: Vec<Task<Toy>>) -> RankPlan<Toy> {
    RankPlan {
        tasks,
        num_slots: 4,
        paths: Arc::new([]),
        classes: Arc::new([MemoryClass::Activation; 4]),
        storage: Default::default(),
        indexed: Default::default(),
        actions: Arc::new([]),
    }
}

#[test]
fn every_task_holds_what_it_makes_and_what_it_gives_up() {
    let add = || Toy::add(tensor(0, 4), tensor(1, 4), tensor(2, 4));
    let reshape = || Toy::reshape(tensor(0, 4), tensor(1, 4));
    let slice = || Toy::slice(tensor(0, 4), 0, 0..1, tensor(1, 1));
    let launch = |take| Task::Launch {
        group: 0,
        tasks: vec![CollectiveTask {
            take,
            ..gather(0, 1, 4)
        }],
    };
    let finish = || Task::Finish {
        group: 0,
        to: vec![1],
    };
    for (what, tasks, during, end, on_host) in [
        (
            "operands of their last use go once the result is there",
            vec![
                upload(0, 4),
                upload(1, 4),
                op(add(), &[0, 1]),
                Task::Free(2),
            ],
            vec![16, 32, 48, 16],
            0,
            0,
        ),
        (
            "operands that are used again stay",
            vec![upload(0, 4), upload(1, 4), op(add(), &[0]), Task::Free(1)],
            vec![16, 32, 48, 32],
            16,
            0,
        ),
        (
            "a look at a buffer takes none of its own, and keeps all of it",
            vec![
                upload(0, 4),
                op(reshape(), &[0]),
                upload(2, 4),
                Task::Free(1),
            ],
            vec![16, 16, 32, 32],
            16,
            0,
        ),
        (
            "what is kept of a larger buffer is copied",
            vec![upload(0, 4), op(slice(), &[0]), store(1, 1)],
            vec![16, 16, 20],
            4,
            0,
        ),
        (
            "on the host it takes no memory of the device",
            vec![
                upload(0, 4),
                Task::ToHost(host(0, 4)),
                upload(1, 2),
                Task::FromHost(host(0, 4)),
                Task::Free(0),
            ],
            vec![16, 16, 8, 24, 24],
            8,
            16,
        ),
        (
            "a collective holds what it sends until it is done",
            vec![upload(0, 4), Task::Collective(Box::new(gather(0, 1, 4)))],
            vec![16, 48],
            32,
            0,
        ),
        (
            "so does one that is waited for later, though nothing else needs it",
            vec![
                upload(0, 4),
                launch(true),
                upload(2, 1),
                finish(),
                upload(3, 1),
            ],
            vec![16, 48, 52, 52, 40],
            40,
            0,
        ),
        (
            "what is sent goes",
            vec![upload(0, 4), send(0, 4), upload(1, 1)],
            vec![16, 16, 4],
            4,
            0,
        ),
    ] {
        let (memory, timeline) = account(&plan(tasks));
        let found: Vec<u64> = timeline.tasks.iter().map(ClassBytes::total).collect();
        assert_eq!(found, during, "{what}");
        assert_eq!(
            (memory.end_bytes, memory.host_peak_bytes),
            (end, on_host),
            "{what}"
        );
        assert_eq!(memory.peak_bytes, *during.iter().max().unwrap(), "{what}");
    }
}

#[test]
fn what_is_loaded_is_there_from_the_start() {
    let load = Task::Load {
        value: 0,
        slot: 1,
        take: true,
        bytes: 16,
        shape: vec![4],
        dtype: DType::F32,
        host: false,
    };
    let (memory, timeline) = account(&plan(vec![upload(0, 1), load, Task::Free(1)]));
    let found: Vec<u64> = timeline.tasks.iter().map(ClassBytes::total).collect();
    assert_eq!(found, [20, 20, 20]);
    assert_eq!((memory.start_bytes, memory.end_bytes), (16, 4));
}
