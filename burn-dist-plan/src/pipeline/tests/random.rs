//! Random schedules run; random mistakes in them are found.

use proptest::prelude::*;

use crate::pipeline::greedy::greedy;
use crate::pipeline::{
    Action, Bytes, Kind, Limits, Lowered, Placement, Schedule, ScheduleError, ScheduleKind,
    StageTimes, Times,
};

fn validate(schedule: &Schedule) -> Result<Vec<u64>, ScheduleError> {
    schedule.validate(Limits::default(), |_| Bytes::UNTIL_WEIGHT)
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let kinds = proptest::sample::select(&ScheduleKind::ALL[..]);
    (kinds, 1u32..=16, 1u32..=4, 1u32..=40).prop_map(|(kind, ranks, chunks, microbatches)| {
        let chunks = kind.chunks().unwrap_or(chunks);
        kind.schedule(ranks, chunks, microbatches).unwrap()
    })
}

fn times(stages: u32, seed: u64) -> Times {
    // A small generator is enough: what it makes only has to differ.
    let mut state = seed;
    let mut next = |least: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        least + (state >> 60)
    };
    let mut times = Times::uniform(
        stages,
        StageTimes {
            forward: 1,
            backward: 1,
            weight: 1,
        },
    );
    for stage in &mut times.stages {
        *stage = StageTimes {
            forward: next(1),
            backward: next(1),
            weight: next(1),
        };
    }
    times
        .transfers
        .iter_mut()
        .for_each(|transfer| *transfer = next(0));
    times
}

/// Checks a timeline against its definition.
fn check_timeline(schedule: &Schedule, times: &Times) {
    let timeline = schedule.simulate(times).unwrap();
    let spans = || timeline.ranks.iter().flatten();
    let end_of = |action: Action| {
        spans()
            .find(|span| span.action == action)
            .map(|span| span.end)
    };
    for (actions, spans) in schedule.order.iter().zip(&timeline.ranks) {
        assert!(actions.iter().eq(spans.iter().map(|span| &span.action)));
        assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
    for span in spans().step_by(7) {
        let Action {
            kind,
            stage,
            microbatch,
        } = span.action;
        let after = |other: Action, transfer: u64| {
            let end = end_of(other).or_else(|| end_of(Action::full(other.stage, other.microbatch)));
            assert!(
                end.unwrap() + transfer <= span.start,
                "{} after {other}",
                span.action
            );
        };
        let transfer = |a: u32, b: u32| {
            let same = schedule.rank(a) == schedule.rank(b);
            if same { 0 } else { times.transfers[a as usize] }
        };
        match kind {
            Kind::Forward if stage > 0 => {
                after(
                    Action::forward(stage - 1, microbatch),
                    transfer(stage - 1, stage),
                );
            }
            Kind::Forward => {}
            Kind::Weight => after(Action::backward(stage, microbatch), 0),
            Kind::Backward | Kind::Full => {
                after(Action::forward(stage, microbatch), 0);
                if stage + 1 < schedule.stages() {
                    after(
                        Action::backward(stage + 1, microbatch),
                        transfer(stage, stage + 1),
                    );
                }
            }
        }
    }
    assert!(timeline.idle() <= timeline.span() && timeline.span() <= timeline.end());
    assert!((0.0..1.0).contains(&timeline.bubble()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn schedules_run(schedule in schedules(), seed: u64) {
        validate(&schedule).unwrap();
        check_timeline(&schedule, &times(schedule.stages(), seed));
        prop_assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule.clone());
        let lowered = schedule.lower(true);
        prop_assert_eq!(lowered.to_string().parse::<Lowered>().unwrap(), lowered);
    }

    #[test]
    fn greedy_schedules_run_within_their_bound(
        ranks in 1u32..=8, chunks in 1u32..=3, microbatches in 1u32..=20, more in 0u32..20, v: bool, seed: u64,
    ) {
        let placement = if v { Placement::V } else { Placement::Loop };
        let times = times(ranks * chunks, seed);
        let alive = chunks + more;
        let schedule = greedy((ranks, chunks, microbatches), placement, &times, alive).unwrap();
        let peaks = validate(&schedule).unwrap();
        prop_assert!(peaks.iter().all(|peak| *peak <= u64::from(alive)));
        check_timeline(&schedule, &times);
    }

    #[test]
    fn a_dropped_action_is_named(schedule in schedules(), rank: prop::sample::Index, place: prop::sample::Index) {
        let mut schedule = schedule;
        let rank = rank.index(schedule.order.len());
        let place = place.index(schedule.order[rank].len());
        let action = schedule.order[rank].remove(place);
        prop_assert_eq!(validate(&schedule).unwrap_err(), ScheduleError::Missing { action, line: rank + 2 });
    }

    #[test]
    fn a_doubled_action_is_named(schedule in schedules(), rank: prop::sample::Index, place: prop::sample::Index) {
        let mut schedule = schedule;
        let rank = rank.index(schedule.order.len());
        let place = place.index(schedule.order[rank].len());
        let action = schedule.order[rank][place];
        schedule.order[rank].push(action);
        prop_assert_eq!(validate(&schedule).unwrap_err(), ScheduleError::Doubled { action, line: rank + 2 });
    }

    #[test]
    fn swapped_actions_run_or_are_named(
        schedule in schedules(), rank: prop::sample::Index, a: prop::sample::Index, b: prop::sample::Index,
    ) {
        let mut schedule = schedule;
        let rank = rank.index(schedule.order.len());
        let actions = &mut schedule.order[rank];
        let (a, b) = (a.index(actions.len()), b.index(actions.len()));
        let (first, second) = (actions[a.min(b)], actions[a.max(b)]);
        actions.swap(a, b);
        let same = (first.stage, first.microbatch) == (second.stage, second.microbatch) && a != b;
        match validate(&schedule) {
            Ok(_) => {
                prop_assert!(!same);
                let times = times(schedule.stages(), 1);
                schedule.simulate(&times).unwrap();
            }
            Err(ScheduleError::Before { action, needs, line }) => {
                prop_assert_eq!(line, rank + 2);
                let moved = [first, second];
                prop_assert!(moved.contains(&action) || moved.contains(&needs));
            }
            Err(ScheduleError::Deadlock { waits, .. }) => {
                prop_assert!(!same);
                prop_assert!(waits.contains(" waits at "));
                let times = times(schedule.stages(), 1);
                let deadlock = matches!(schedule.simulate(&times), Err(ScheduleError::Deadlock { .. }));
                prop_assert!(deadlock);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
