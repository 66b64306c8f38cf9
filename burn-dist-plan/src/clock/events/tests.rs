//! Small cases by hand.

use super::*;

fn compute(ns: u64) -> Action {
    Action::Compute { host_ns: 0, ns }
}

fn start(lane: Lane, members: &[usize], ns: u64) -> Action {
    Action::Start {
        host_ns: 0,
        call: Call {
            lane,
            members: members.to_vec(),
            ns,
            takes: 0,
        },
    }
}

fn spans(timeline: &Timeline) -> Vec<(usize, Lane, u64, u64)> {
    let spans = timeline.spans.iter();
    let spans = spans.map(|span| (span.action, span.lane, span.start, span.end));
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    spans
}

#[test]
fn a_call_runs_beside_what_does_not_wait_for_it() {
    let actions = vec![
        compute(10),
        start(1, &[0], 30),
        compute(20),
        Action::Wait(0),
        compute(5),
    ];
    let found = &run(&[actions]).expect("it ends")[0];
    let expected = [
        (0, 0, 0, 10),
        (1, 1, 10, 40),
        (2, 0, 10, 30),
        (4, 0, 40, 45),
    ];
    assert_eq!(spans(found), expected);
    assert_eq!(found.done, [10, 10, 30, 40, 45]);
    assert_eq!((found.end, &found.starved[..]), (45, &[][..]));
}

#[test]
fn calls_of_one_lane_follow_each_other_and_those_of_two_do_not() {
    let calls = |lane| vec![start(1, &[0], 30), start(lane, &[0], 20), Action::Wait(1)];
    let ends = [1, 2].map(|lane| run(&[calls(lane)]).expect("it ends")[0].done[2]);
    assert_eq!(ends, [50, 20]);
}

/// A start of a call that takes a part of the device.
fn taking(takes: f64, action: Action) -> Action {
    match action {
        Action::Start { host_ns, mut call } => {
            call.takes = (takes * f64::from(DEVICE)) as u32;
            Action::Start { host_ns, call }
        }
        other => other,
    }
}

/// Beside the call, a kernel does 30 of 60 ns of its work in 40.
#[test]
fn what_is_computed_beside_a_call_has_the_rest_of_the_device() {
    let actions = |takes| {
        vec![
            compute(10),
            taking(takes, start(1, &[0], 40)),
            compute(60),
            compute(5),
        ]
    };
    let found = [0.0, 0.25, 1.0].map(|takes| run(&[actions(takes)]).expect("it ends").remove(0));
    for (found, second) in found.iter().zip([70, 80, 110]) {
        let expected = [
            (0, 0, 0, 10),
            (1, 1, 10, 50),
            (2, 0, 10, second),
            (3, 0, second, second + 5),
        ];
        assert_eq!(spans(found), expected);
        assert_eq!(found.done, [10, 10, second, second + 5]);
    }
}

/// Two of them take all of it until 40, and the longer one a half until 60.
#[test]
fn calls_of_several_lanes_take_their_parts_together() {
    let actions = vec![
        taking(0.5, start(1, &[0], 60)),
        taking(0.5, start(2, &[0], 40)),
        taking(0.75, start(3, &[0], 10)),
        compute(5),
        compute(10),
        compute(10),
    ];
    let found = &run(&[actions]).expect("it ends")[0];
    let computed = spans(found).into_iter().filter(|span| span.1 == COMPUTE);
    let expected = [(3, 0, 0, 50), (4, 0, 50, 65), (5, 0, 65, 75)];
    assert!(computed.eq(expected), "{:?}", spans(found));
}

/// The call begins when the other rank is there, in the middle of what is computed: 30 ns before it, 20 of work in 40
/// beside it, the rest after it.
#[test]
fn a_call_slows_from_when_its_last_member_comes() {
    let call = || taking(0.5, start(1, &[0, 1], 40));
    let early = vec![call(), compute(100), compute(1)];
    let late = vec![
        compute(10),
        compute(20),
        call(),
        Action::Wait(0),
        compute(7),
    ];
    for (early_first, ranks) in [
        (true, [early.clone(), late.clone()]),
        (false, [late, early]),
    ] {
        let found = run(&ranks).expect("it ends");
        let (early, late) = match early_first {
            true => (&found[0], &found[1]),
            false => (&found[1], &found[0]),
        };
        assert_eq!(
            spans(early),
            [(0, 1, 30, 70), (1, 0, 0, 120), (2, 0, 120, 121)]
        );
        assert_eq!(early.done, [0, 120, 121]);
        assert_eq!(late.end, 77);
    }
}

#[test]
fn a_call_waits_for_its_members_and_takes_as_long_as_the_slowest() {
    let rank = |before, ns| vec![compute(before), start(1, &[0, 1], ns), Action::Wait(0)];
    let found = run(&[rank(10, 5), rank(25, 7)]).expect("it ends");
    assert_eq!(spans(&found[0]), [(0, 0, 0, 10), (1, 1, 25, 32)]);
    assert_eq!(spans(&found[1]), [(0, 0, 0, 25), (1, 1, 25, 32)]);
}

/// A stage sends to the next, which computes and sends back: calls of two members.
#[test]
fn a_message_is_a_call_of_two() {
    let message = |from: usize| start(1, &[from, from + 1], 3);
    let first = vec![
        compute(10),
        message(0),
        compute(10),
        message(0),
        Action::Wait(1),
    ];
    let last = vec![message(0), Action::Wait(0), compute(10), message(0)];
    let found = run(&[first, last]).expect("it ends");
    // 10 computed and 3 sent; then 10 more there, while the first goes on; 3 back.
    assert_eq!([found[0].end, found[1].end], [26, 26]);
    assert_eq!(
        spans(&found[1]),
        [(0, 1, 10, 13), (2, 0, 13, 23), (3, 1, 23, 26)]
    );
}

#[test]
fn a_slow_host_starves_the_device_and_a_read_waits_for_it() {
    let slow = |ns| Action::Compute { host_ns: 10, ns };
    let actions = vec![slow(4), slow(25), slow(4), Action::Sync { ns: 3 }, slow(1)];
    let found = &run(&[actions]).expect("it ends")[0];
    let expected = [
        (0, 0, 10, 14),
        (1, 0, 20, 45),
        (2, 0, 45, 49),
        (4, 0, 62, 63),
    ];
    assert_eq!(spans(found), expected);
    assert_eq!(found.starved, [(0, 10), (14, 20), (49, 62)]);
}

#[test]
fn ranks_that_make_other_calls_are_stuck() {
    let actions = vec![
        vec![start(1, &[0, 1], 1), Action::Wait(0)],
        vec![compute(1)],
    ];
    let error = run(&actions).expect_err("rank 1 never calls").to_string();
    let expected = "simulated rank 0 waits forever, before action 1 of 2: not all members of a group make the same \
                    calls in the same order";
    assert_eq!(error, expected);
}
