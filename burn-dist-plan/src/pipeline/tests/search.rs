//! The choice of a schedule.

use proptest::prelude::*;

use crate::pipeline::{
    Bytes, Choice, Limits, Schedule, ScheduleError, ScheduleKind, StageTimes, Times,
};

const EQUAL: StageTimes = StageTimes {
    forward: 1,
    backward: 1,
    weight: 1,
};

fn auto(
    ranks: u32,
    chunks: u32,
    microbatches: u32,
    times: &Times,
    memory: u64,
) -> Result<Choice, ScheduleError> {
    let limits = Limits {
        memory,
        ..Limits::default()
    };
    Schedule::auto(ranks, chunks, microbatches, times, limits, |_| {
        Bytes::UNTIL_WEIGHT
    })
}

#[test]
fn no_bubble_where_there_is_memory() {
    for ranks in [1, 2, 4, 8] {
        let microbatches = 2 * ranks;
        let choice = auto(
            ranks,
            1,
            microbatches,
            &Times::uniform(ranks, EQUAL),
            u64::MAX,
        )
        .unwrap();
        assert_eq!(choice.timeline.idle(), 0, "{}", choice.name);
        // Within the memory of 1F1B it takes two stages per rank.
        let times = Times::uniform(2 * ranks, EQUAL);
        let choice = auto(ranks, 2, microbatches, &times, u64::from(2 * ranks)).unwrap();
        assert_eq!(choice.timeline.idle(), 0, "{}", choice.name);
        assert!(
            choice
                .peaks
                .iter()
                .all(|peak| *peak <= u64::from(2 * ranks))
        );
    }
}

#[test]
fn the_least_memory_is_named() {
    let times = Times::uniform(4, EQUAL);
    assert_eq!(
        auto(4, 1, 8, &times, 0).unwrap_err().to_string(),
        "no schedule of 4 ranks, 1 stages each, fits into 0 B per rank; the smallest (1f1b with 1 alive) needs 1 B: raise \
         the bound to that, use microbatches of fewer rows, or recompute activations"
    );
    let choice = auto(4, 1, 8, &times, 1).unwrap();
    assert_eq!(choice.peaks, [1; 4]);
    // One microbatch at a time: down, back, and the weight gradient of rank 0; the others' are done meanwhile.
    assert_eq!(choice.timeline.end(), 8 * (4 + 4 + 1));
}

#[test]
fn counts_and_times_are_checked() {
    let times = Times::uniform(4, EQUAL);
    assert_eq!(
        auto(4, 1, 0, &times, 0).unwrap_err(),
        ScheduleError::Empty {
            what: "microbatches"
        }
    );
    assert!(matches!(
        auto(4, 2, 8, &times, 0),
        Err(ScheduleError::Times { .. })
    ));
}

#[test]
fn buffers_are_a_limit() {
    let times = Times::uniform(8, EQUAL);
    let auto = |buffers| {
        let limits = Limits {
            buffers,
            ..Limits::default()
        };
        Schedule::auto(4, 2, 8, &times, limits, |_| Bytes::UNTIL_WEIGHT)
    };
    let choice = auto(1).unwrap();
    assert_eq!(choice.schedule.buffers().unwrap(), 1, "{}", choice.name);
    assert!(matches!(auto(0), Err(ScheduleError::Deadlock { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_that_fits_is_faster(
        ranks in 1u32..=4, chunks in 1u32..=2, microbatches in 1u32..=10, memory in 2u64..=24,
        forward in 1u64..9, backward in 1u64..9, weight in 1u64..9, transfer in 0u64..4,
    ) {
        let times = StageTimes { forward, backward, weight };
        let times = Times::uniform(ranks * chunks, times).with_transfer(transfer);
        let choice = auto(ranks, chunks, microbatches, &times, memory).unwrap();
        prop_assert_eq!(&choice.schedule.simulate(&times).unwrap(), &choice.timeline);
        let limits = Limits { memory, ..Limits::default() };
        prop_assert_eq!(choice.schedule.validate(limits, |_| Bytes::UNTIL_WEIGHT).unwrap(), choice.peaks);
        for kind in ScheduleKind::ALL {
            let Ok(schedule) = kind.schedule(ranks, chunks, microbatches) else { continue };
            if schedule.validate(limits, |_| Bytes::UNTIL_WEIGHT).is_ok() {
                let span = schedule.simulate(&times).unwrap().span();
                prop_assert!(choice.timeline.span() <= span, "{} and {kind}", choice.name);
            }
        }
        let more = auto(ranks, chunks, microbatches, &times, memory + 4).unwrap();
        prop_assert!(more.timeline.span() <= choice.timeline.span());
    }
}
