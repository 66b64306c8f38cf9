//! Small cases of last uses, as texts: tasks before and after.

use super::*;
use crate::form;
use crate::layout::Policy;
use crate::plan;
use crate::plan::Plan;
use crate::policy::Offload;
use crate::tests::three_layers;
use crate::toy::{Toy, options};

fn after(tasks: &str) -> Vec<Task<Toy>> {
    let mut plan = form::rank::<Toy>(tasks).expect("tasks");
    lifetimes(&mut plan);
    plan.tasks
}

#[test]
fn slots_go_with_their_last_use() {
    for (what, tasks, expected) in [
        (
            "an operand is marked where it is used last",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = exp [s0: f32 [4]] in 0
             run s2: f32 [4] = add [s0, s1] in 0
             store s2 as %1 f32 [4] bytes 16",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = exp [s0: f32 [4]] in 0
             run s2: f32 [4] = add [s0!, s1!] in 0
             store s2 as %1 f32 [4] bytes 16 take",
        ),
        (
            "an operand that an operation uses twice is freed after it",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = mul [s0: f32 [4], s0] in 0
             read 0 s1 f32 [4]",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = mul [s0: f32 [4], s0] in 0
             free s0
             read 0 s1 f32 [4] take",
        ),
        (
            "a result that nothing uses is freed at once",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = exp [s0: f32 [4]] in 0
             run s2: f32 [4] = exp [s0] in 0
             read 0 s1 f32 [4]",
            "upload %0 to s0 f32 [4]
             run s1: f32 [4] = exp [s0: f32 [4]] in 0
             run s2: f32 [4] = exp [s0!] in 0
             free s2
             read 0 s1 f32 [4] take",
        ),
        (
            "a slot that is stored and read goes with the second",
            "upload %0 to s0 f32 [4]
             store s0 as %1 f32 [4] bytes 16
             read 0 s0 f32 [4]",
            "upload %0 to s0 f32 [4]
             store s0 as %1 f32 [4] bytes 16
             read 0 s0 f32 [4] take",
        ),
        (
            "a slot that is sent goes, unless it is needed here",
            "upload %0 to s0 f32 [4]
             send s0 f32 [4] peer 1 record 0 in 0
             send s0 f32 [4] peer 2 record 1 in 0",
            "upload %0 to s0 f32 [4]
             send s0 f32 [4] peer 1 record 0 in 0
             send s0 f32 [4] peer 2 record 1 in 0 take",
        ),
        (
            "a slot on the host is no less alive",
            "upload %0 to s0 f32 [4]
             to_host s0 f32 [4]
             from_host s0 f32 [4]
             read 0 s0 f32 [4]",
            "upload %0 to s0 f32 [4]
             to_host s0 f32 [4]
             from_host s0 f32 [4]
             read 0 s0 f32 [4] take",
        ),
    ] {
        let expected = form::rank(expected).expect("tasks");
        assert_eq!(after(tasks), expected.tasks, "{what}");
    }
}

/// Collectives that are started together: of those that send one slot, the last empties it; what they make and nothing
/// uses is freed once it is there.
#[test]
fn slots_of_collectives_go_once_they_are_done() {
    let tasks = |second: bool, free: &str, take: &str| {
        format!(
            "upload %0 to s0 f32 [4]
             launch 0 {{
               {}
               {}
             }}
             finish 0 [1, 2]{free}
             read 0 s2 f32 [8]{take}",
            form::gather(1, false),
            form::gather(2, second),
        )
    };
    let expected = form::rank::<Toy>(&tasks(true, "\nfree s1", " take")).expect("tasks");
    assert_eq!(after(&tasks(false, "", "")), expected.tasks);
}

/// A policy allows the ranks as much of the host as they need, and no byte less.
#[test]
fn the_host_has_room_for_what_it_is_asked_for() {
    let planned = |limit: Option<u64>| {
        let mut offload: Offload = "optimizer,params".parse().expect("a policy");
        offload.host_bytes_max = limit;
        let b = three_layers("fsdp=2", 4).under(Policy {
            offload,
            ..Policy::default()
        });
        plan(&b.window, &b.mesh, &options(&b.mesh))
    };
    let asked = |planned: &Plan<Toy>| planned.memory.iter().map(|rank| rank.host_peak_bytes).sum();
    let needed: u64 = asked(&planned(None).expect("a plan"));
    assert!(needed > 0);
    assert!(planned(Some(needed)).is_ok());
    let error = planned(Some(needed - 1)).expect_err("a byte is missing");
    assert!(
        matches!(error, PlanError::HostMemory { asked, limit, .. } if (asked, limit) == (needed, needed - 1)),
        "{error}"
    );
}
