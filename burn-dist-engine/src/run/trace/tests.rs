//! The record and its bounds.

use super::*;
use crate::mesh::DType;
use crate::plan::task::Task;

fn plan() -> Arc<RankPlan> {
    Arc::new(RankPlan {
        classes: Default::default(),
        storage: Default::default(),
        indexed: Default::default(),
        actions: Default::default(),
        tasks: vec![Task::Free(0); 3],
        draws: Vec::new(),
        num_slots: 1,
        paths: Arc::new([]),
        room: 0,
    })
}

/// A task that a trace shows.
fn shown() -> Task {
    Task::Read {
        slot: 0,
        read: 0,
        shape: vec![1],
        dtype: DType::F32,
        take: false,
    }
}

fn log() -> Arc<TraceLog> {
    let mesh = Arc::new("fsdp=2".parse().unwrap());
    Arc::new(TraceLog::new(mesh, Topology::single(2)))
}

#[test]
fn a_window_that_does_not_fit_is_left_out_whole() {
    assert_eq!(size_of::<Event>(), 32, "the bound in the documentation");
    let (log, plan, shown) = (log(), plan(), shown());
    let mut tracer = Tracer::new(log.clone(), Rank(1));
    let mut window = |tasks: usize| {
        tracer.window_begins(&plan);
        for task in 0..tasks {
            tracer.task_ends(task % 3, &shown);
        }
        tracer.window_ends(&plan, true);
    };
    window(EVENTS_MAX / 2 - 1);
    assert_eq!(log.read().left_out(), 0);
    window(EVENTS_MAX / 2);
    assert_eq!(log.read().left_out(), EVENTS_MAX as u64 / 2 + 1);
    window(EVENTS_MAX / 2 - 1);
    let trace = log.read();
    assert_eq!(trace.left_out(), EVENTS_MAX as u64 / 2 + 1);
    assert_eq!(trace.ranks[1].events.len(), EVENTS_MAX);
    assert_eq!(trace.ranks[1].plans.len(), 1);
    assert!(trace.ranks[0].events.is_empty());
}

#[test]
fn plans_are_bounded_too() {
    let log = log();
    let mut tracer = Tracer::new(log.clone(), Rank(0));
    for _ in 0..PLANS_MAX + 3 {
        tracer.window_begins(&plan());
        tracer.window_ends(&plan(), true);
    }
    let trace = log.read();
    assert_eq!(trace.ranks[0].plans.len(), PLANS_MAX);
    assert_eq!(trace.left_out(), 3);
}

#[test]
fn tasks_follow_each_other() {
    let log = log();
    let mut tracer = Tracer::new(log.clone(), Rank(0));
    tracer.window_begins(&plan());
    tracer.task_ends(0, &shown());
    tracer.task_ends(1, &Task::Free(0));
    tracer.task_ends(2, &shown());
    tracer.window_ends(&plan(), true);
    let trace = log.read();
    let [first, second, window] = &trace.ranks[0].events[..] else {
        panic!("two tasks and the window");
    };
    assert_eq!((first.what, second.at.task), (What::Task, 2));
    assert_eq!(window.what, What::Window);
    assert!(window.start <= first.start && first.end <= second.start && second.end <= window.end);
}
