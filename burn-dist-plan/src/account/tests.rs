//! Small cases of the account: tasks of a rank, and what it holds during each.

use super::*;
use crate::form;
use crate::toy::Toy;

/// The plan of a rank that does these tasks.
fn plan(tasks: &str) -> RankPlan<Toy> {
    form::rank(&tasks.replace("GATHER", &form::gather(1, true))).expect("tasks")
}

#[test]
fn every_task_holds_what_it_makes_and_what_it_gives_up() {
    for (what, tasks, during, end, on_host) in [
        (
            "operands of their last use go once the result is there",
            "upload %0 to s0 f32 [4]
             upload %1 to s1 f32 [4]
             run s2: f32 [4] = add [s0!: f32 [4], s1!: f32 [4]] in 0
             free s2",
            vec![16, 32, 48, 16],
            0,
            0,
        ),
        (
            "operands that are used again stay",
            "upload %0 to s0 f32 [4]
             upload %1 to s1 f32 [4]
             run s2: f32 [4] = add [s0!: f32 [4], s1: f32 [4]] in 0
             free s1",
            vec![16, 32, 48, 32],
            16,
            0,
        ),
        (
            "a look at a buffer takes none of its own, and keeps all of it",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = reshape [s0!: f32 [4]] in 0
             upload %2 to s2 f32 [4]
             free s1",
            vec![16, 16, 32, 32],
            16,
            0,
        ),
        (
            "what is kept of a larger buffer is copied",
            "upload %0 to s0 f32 [4]
             run s1: f32 [1] = slice dim 0 from 0 to 1 [s0!: f32 [4]] in 0
             store s1 as %7 f32 [1] bytes 4 take",
            vec![16, 16, 20],
            4,
            0,
        ),
        (
            "on the host it takes no memory of the device",
            "upload %0 to s0 f32 [4]
             to_host s0 f32 [4]
             upload %1 to s1 f32 [2]
             from_host s0 f32 [4]
             free s0",
            vec![16, 16, 8, 24, 24],
            8,
            16,
        ),
        (
            "a collective holds what it sends until it is done",
            "upload %0 to s0 f32 [4]
             collective GATHER",
            vec![16, 48],
            32,
            0,
        ),
        (
            "so does one that is waited for later, though nothing else needs it",
            "upload %0 to s0 f32 [4]
             launch 0 {
                 GATHER
             }
             upload %2 to s2 f32 [1]
             finish 0 [1]
             upload %3 to s3 f32 [1]",
            vec![16, 48, 52, 52, 40],
            40,
            0,
        ),
        (
            "what is sent goes",
            "upload %0 to s0 f32 [4]
             send s0 f32 [4] peer 1 record 0 in 0 take
             upload %1 to s1 f32 [1]",
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
    let tasks = "upload %0 to s0 f32 [1]
                 load %0 to s1 f32 [4] bytes 16 take
                 free s1";
    let (memory, timeline) = account(&plan(tasks));
    let found: Vec<u64> = timeline.tasks.iter().map(ClassBytes::total).collect();
    assert_eq!(found, [20, 20, 20]);
    assert_eq!((memory.start_bytes, memory.end_bytes), (16, 4));
}
