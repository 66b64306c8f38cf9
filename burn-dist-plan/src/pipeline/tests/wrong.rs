//! Schedules that cannot run, and texts that are none: their errors.

use crate::pipeline::{
    Action, Bytes, Kind, Limits, Lowered, Schedule, ScheduleError, ScheduleKind, StageTimes, Step,
    Times,
};

fn message(text: &str) -> String {
    text.parse::<Schedule>().unwrap_err().to_string()
}

fn table(lines: &[&str]) -> String {
    format!(
        "schedule ranks=2 chunks=1 placement=loop microbatches=2\n{}\n",
        lines.join("\n")
    )
}

const FIRST: &str = "F0.0 F0.1 BW0.0 BW0.1";
const SECOND: &str = "F1.0 BW1.0 F1.1 BW1.1";

#[test]
fn tables_that_cannot_run() {
    table(&[FIRST, SECOND]).parse::<Schedule>().unwrap();
    for (lines, expected) in [
        (
            vec![FIRST],
            "a schedule of 2 ranks has a line for each of them, but here are 1",
        ),
        (
            vec![FIRST, SECOND, SECOND],
            "a schedule of 2 ranks has a line for each of them, but here are 3",
        ),
        (vec!["F0.0 F0.1 BW0.0", SECOND], "line 2: BW0.1 is missing"),
        (
            vec!["F0.0 F0.1 BW0.0 B0.1", SECOND],
            "line 2: W0.1 is missing",
        ),
        (
            vec!["F0.0 F0.1 BW0.0 W0.1", SECOND],
            "line 2: B0.1 is missing",
        ),
        (vec![FIRST, "F1.0 BW1.0 BW1.1"], "line 3: F1.1 is missing"),
        (
            vec![FIRST, "F1.0 BW1.0 F1.1 BW1.1 F1.0"],
            "line 3: F1.0 is there twice",
        ),
        (
            vec!["F0.0 F0.1 BW0.0 BW0.1 W0.1", SECOND],
            "line 2: W0.1 and BW0.1 both compute the same gradient: keep one of them",
        ),
        (
            vec!["F0.0 F0.1 BW0.0 F2.1", SECOND],
            "line 2: there is no F2.1: stages are 0 to 1, microbatches 0 to 1",
        ),
        (
            vec!["F0.0 F0.2 BW0.0 BW0.1", SECOND],
            "line 2: there is no F0.2: stages are 0 to 1, microbatches 0 to 1",
        ),
        (
            vec!["F0.0 F0.1 BW1.0 BW0.1", SECOND],
            "line 2: BW1.0 belongs to rank 1, on line 3: stage 1 is there",
        ),
        (
            vec!["F0.0 BW0.1 BW0.0 F0.1", SECOND],
            "line 2: BW0.1 comes before F0.1, which it needs",
        ),
        (
            vec!["F0.0 F0.1 BW0.0 W0.1 B0.1", SECOND],
            "line 2: W0.1 comes before B0.1, which it needs",
        ),
        (
            vec![FIRST, "F1.1 BW1.1 F1.0 BW1.0"],
            "", // Another order than rank 0, and no one waits for long.
        ),
        (
            vec!["F0.0 BW0.0 F0.1 BW0.1", "F1.1 F1.0 BW1.0 BW1.1"],
            "deadlock: rank 0 (line 2) waits at RBW1.0<1, \
             rank 1 (line 3) waits at RF0.1<0",
        ),
        (
            vec!["F0.0 F0.1 B0 BW0.1", SECOND],
            "line 2: `B0` is not an action: a stage and a microbatch follow, as in F0.3",
        ),
        (
            vec!["F0.0 F0.1 X0.0 BW0.1", SECOND],
            "line 2: `X0.0` is not an action: it starts with F, B, W or BW",
        ),
        (
            vec![FIRST, "F1.0 F1.+1"],
            "line 3: `F1.+1` is not an action: its stage or its microbatch is no number",
        ),
        (
            vec![FIRST, "F1.0 F1.99999999999"],
            "line 3: `F1.99999999999` is not an action: its stage or its microbatch is no number",
        ),
    ] {
        let read = table(&lines).parse::<Schedule>();
        assert_eq!(
            read.err()
                .map(|error| error.to_string())
                .unwrap_or_default(),
            expected,
            "{lines:?}"
        );
    }
}

#[test]
fn headers_that_are_none() {
    for (header, expected) in [
        (
            "",
            "line 1: `` is not the header of a schedule: `schedule ranks=P chunks=V placement=loop|v microbatches=M`",
        ),
        ("schedule", "line 1: `` should be `ranks=...`"),
        (
            "schedule ranks=2 placement=v",
            "line 1: `placement=v` should be `chunks=...`",
        ),
        (
            "schedule ranks=-1 chunks=1 placement=loop microbatches=2",
            "line 1: `ranks=-1` has no number that can be counted to",
        ),
        (
            "schedule ranks=2 chunks=1 placement=w microbatches=2",
            "line 1: `placement=w` is not a placement: use loop or v",
        ),
        (
            "schedule ranks=2 chunks=1 placement=loop microbatches=2 seed=1",
            "line 1: `seed=1` follows the last field of the header",
        ),
        (
            "schedule ranks=2 chunks=1 placement=loop microbatches=0",
            "a schedule needs at least one rank, one chunk per rank and one microbatch: microbatches is 0",
        ),
        (
            "schedule ranks=65536 chunks=65536 placement=loop microbatches=1",
            "65536 ranks of 65536 chunks are too many stages",
        ),
        (
            "schedule ranks=2 chunks=2000000000 placement=loop microbatches=4000000000",
            "a schedule of 2 ranks has a line for each of them, but here are 0",
        ),
    ] {
        assert_eq!(message(header), expected);
    }
}

#[test]
fn families_that_do_not_exist() {
    assert_eq!(
        ScheduleKind::ZbV.schedule(4, 1, 8).unwrap_err().to_string(),
        "zb-v has 2 of the model's stages on a rank, not 1: give it chunks=2"
    );
    assert_eq!(
        ScheduleKind::ZbH1.schedule(4, 2, 8).unwrap_err(),
        ScheduleError::Chunks {
            kind: ScheduleKind::ZbH1,
            chunks: 2,
            needs: 1
        }
    );
    assert_eq!(
        ScheduleKind::GPipe.schedule(0, 1, 8).unwrap_err(),
        ScheduleError::Empty { what: "ranks" }
    );
    assert_eq!(
        ScheduleKind::LoopedBfs
            .schedule(1 << 20, 1 << 20, 1)
            .unwrap_err(),
        ScheduleError::TooMany {
            ranks: 1 << 20,
            chunks: 1 << 20
        }
    );
    for kind in ScheduleKind::ALL {
        assert_eq!(kind.to_string().parse::<ScheduleKind>().unwrap(), kind);
    }
    let error = "1b1f".parse::<ScheduleKind>().unwrap_err().to_string();
    let start = "`1b1f` is not a schedule: use gpipe, 1f1b, interleaved, looped-bfs, ";
    assert!(error.starts_with(start), "{error}");
    assert!(error.contains(" or "), "{error}");
}

#[test]
fn buffers_are_finite() {
    // Rank 0 sends both microbatches before rank 1 takes one, and rank 1 wants the second first.
    let text = table(&["F0.0 F0.1 BW0.1 BW0.0", "F1.1 F1.0 BW1.1 BW1.0"]);
    let schedule: Schedule = text.parse().unwrap();
    assert_eq!(schedule.buffers().unwrap(), 2);
    let limits = Limits {
        buffers: 1,
        ..Limits::default()
    };
    assert_eq!(
        schedule
            .validate(limits, |_| Bytes::default())
            .unwrap_err()
            .to_string(),
        "deadlock (buffers: 1 from one rank to another): rank 0 (line 2) waits at SF0.1>1, rank 1 (line 3) \
         waits at RF0.1<0"
    );
}

#[test]
fn memory_is_bounded() {
    let schedule = ScheduleKind::GPipe.schedule(2, 1, 4).unwrap();
    let limits = Limits {
        memory: 3 << 20,
        ..Limits::default()
    };
    let bytes = |_| Bytes {
        activation: 1 << 20,
        ..Bytes::default()
    };
    assert_eq!(
        schedule.validate(limits, bytes).unwrap_err().to_string(),
        "line 2: from F0.3 on, rank 0 holds 4.0 MiB, and 3.0 MiB are allowed: raise the bound, use more microbatches of \
         fewer rows, or recompute activations"
    );
}

#[test]
fn what_a_split_backward_keeps_is_counted() {
    let schedule: Schedule =
        "schedule ranks=1 chunks=1 placement=loop microbatches=2\nF0.0 B0.0 F0.1 B0.1 W0.0 W0.1\n"
            .parse()
            .unwrap();
    let bytes = Bytes {
        activation: 10,
        saved_for_weight: 4,
        gradient_for_weight: 3,
    };
    // After each action: 10, 7, 17, 14, 7, 0.
    assert_eq!(
        schedule.validate(Limits::default(), |_| bytes).unwrap(),
        [17]
    );
}

#[test]
fn times_of_other_stages() {
    let schedule = ScheduleKind::OneFOneB.schedule(2, 1, 2).unwrap();
    let times = StageTimes {
        forward: 1,
        backward: 1,
        weight: 1,
    };
    assert_eq!(
        schedule
            .simulate(&Times::uniform(3, times))
            .unwrap_err()
            .to_string(),
        "times of 3 stages and 2 transfers between them do not fit a schedule of 2 stages: give one of each stage, and \
         one of each stage but the last"
    );
}

#[test]
fn steps_that_are_none() {
    for (text, expected) in [
        (
            "SF0.3",
            "line 1: `SF0.3` is not a step: a send is SF0.3>1, a receive RF0.3<0",
        ),
        (
            "AG",
            "line 1: `AG` is not a step: it ends with no number of a stage or rank",
        ),
        (
            "F0.0\nSW0.3>1",
            "line 2: `SW0.3>1` is not a step: gradients of weights stay on their rank",
        ),
        (
            "S0.3>1",
            "line 1: `0.3` is not an action: it starts with F, B, W or BW",
        ),
    ] {
        assert_eq!(text.parse::<Lowered>().unwrap_err().to_string(), expected);
    }
}

#[test]
fn lowering_of_two_ranks() {
    let schedule: Schedule = table(&["F0.0 F0.1 B0.0 W0.0 BW0.1", SECOND])
        .parse()
        .unwrap();
    let lowered = schedule.lower(true);
    let text = "AG0 F0.0 SF0.0>1 F0.1 SF0.1>1 RBW1.0<1 B0.0 W0.0 RBW1.1<1 BW0.1 RS0\n\
                AG1 RF0.0<0 F1.0 BW1.0 SBW1.0>0 RF0.1<0 F1.1 BW1.1 SBW1.1>0 RS1\n";
    assert_eq!(lowered.to_string(), text);
    assert_eq!(text.parse::<Lowered>().unwrap(), lowered);
    let own = |rank: usize| {
        let steps = lowered.order[rank].iter();
        steps.filter_map(|step| match step {
            Step::Compute(action) => Some(*action),
            _ => None,
        })
    };
    for rank in 0..2 {
        assert!(own(rank).eq(schedule.order[rank].iter().copied()));
    }
}

#[test]
fn a_v_sends_nothing_where_it_turns() {
    let lowered = ScheduleKind::ZbV.schedule(3, 2, 6).unwrap().lower(false);
    let turns = |step: &Step| {
        matches!(
            step,
            Step::Send {
                of: Action {
                    kind: Kind::Forward,
                    stage: 2,
                    ..
                },
                ..
            }
        )
    };
    assert!(!lowered.order[2].iter().any(turns));
    let from_last = |step: &Step| matches!(step, Step::Send { to: 1, .. });
    assert_eq!(
        lowered.order[2]
            .iter()
            .filter(|step| from_last(step))
            .count(),
        12
    );
}
