//! Bubbles and memory, against their closed forms.

use crate::pipeline::{Bytes, Kind, Limits, Schedule, ScheduleKind, StageTimes, Times};

/// Times of one rank and microbatch with W <= min(F, B), in units that divide by the stages of a rank.
fn times() -> impl Iterator<Item = (u64, u64, u64)> {
    let all = (1..=4).flat_map(|f| (1..=5).flat_map(move |b| (1..=4).map(move |w| (f, b, w))));
    all.filter(|(f, b, w)| w <= f.min(b))
}

/// The idle time of a schedule whose ranks take `(f, b, w)` for each of their stages.
fn idle(schedule: &Schedule, (forward, backward, weight): (u64, u64, u64)) -> u64 {
    let times = StageTimes {
        forward,
        backward,
        weight,
    };
    let timeline = schedule.simulate(&Times::uniform(schedule.stages(), times));
    timeline.unwrap().idle()
}

fn make(kind: ScheduleKind, ranks: u32, chunks: u32, microbatches: u32) -> Schedule {
    let schedule = kind.schedule(ranks, chunks, microbatches).unwrap();
    schedule
        .validate(Limits::default(), |_| Bytes::default())
        .unwrap();
    schedule
}

const RANKS: [u32; 5] = [2, 3, 4, 8, 16];

#[test]
fn bubbles_of_one_stage_per_rank() {
    for ranks in RANKS {
        let idle_ranks = u64::from(ranks - 1);
        for microbatches in [ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks + 1] {
            let [gpipe, one_f_one_b, zb_h1, zb_h2] = [
                ScheduleKind::GPipe,
                ScheduleKind::OneFOneB,
                ScheduleKind::ZbH1,
                ScheduleKind::ZbH2,
            ]
            .map(|kind| make(kind, ranks, 1, microbatches));
            for (f, b, w) in times() {
                let at = format!("p={ranks} m={microbatches} F={f} B={b} W={w}");
                assert_eq!(
                    idle(&gpipe, (f, b, w)),
                    idle_ranks * (f + b + w),
                    "gpipe {at}"
                );
                assert_eq!(
                    idle(&one_f_one_b, (f, b, w)),
                    idle_ranks * (f + b + w),
                    "1f1b {at}"
                );
                assert_eq!(
                    idle(&zb_h1, (f, b, w)),
                    idle_ranks * (f + b - w),
                    "zb-h1 {at}"
                );
                if microbatches >= 2 * ranks - 1 {
                    assert_eq!(
                        idle(&zb_h2, (f, b, w)),
                        idle_ranks * (f + b - 2 * w),
                        "zb-h2 {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn bubbles_of_several_stages_per_rank() {
    for ranks in RANKS {
        for chunks in [1, 2, 3, 4] {
            // (p - 1) (F + B + W) / v for the times of a rank, which are v times those of a stage.
            for microbatches in [ranks, 2 * ranks, 3 * ranks] {
                let schedule = make(ScheduleKind::Interleaved, ranks, chunks, microbatches);
                for (f, b, w) in times() {
                    let at = format!("p={ranks} v={chunks} m={microbatches} F={f} B={b} W={w}");
                    assert_eq!(
                        idle(&schedule, (f, b, w)),
                        u64::from(ranks - 1) * (f + b + w),
                        "{at}"
                    );
                }
            }
            for microbatches in [ranks, ranks + 1, 3 * ranks - 1] {
                let schedule = make(ScheduleKind::LoopedBfs, ranks, chunks, microbatches);
                for (f, b, w) in times() {
                    let at = format!("p={ranks} v={chunks} m={microbatches} F={f} B={b} W={w}");
                    assert_eq!(
                        idle(&schedule, (f, b, w)),
                        u64::from(ranks - 1) * (f + b + w),
                        "{at}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_bubbles_in_a_v() {
    for ranks in [1, 2, 3, 4, 5, 8, 16] {
        for microbatches in [2 * ranks, 2 * ranks + 1, 3 * ranks, 5 * ranks + 1] {
            for kind in [ScheduleKind::ZbV, ScheduleKind::DualPipeV] {
                let schedule = make(kind, ranks, 2, microbatches);
                for time in [1, 7] {
                    let at = format!("{kind} p={ranks} m={microbatches}");
                    assert_eq!(idle(&schedule, (time, time, time)), 0, "{at}");
                }
            }
        }
    }
}

#[test]
fn one_rank_is_never_idle() {
    for kind in ScheduleKind::ALL {
        let schedule = make(kind, 1, kind.chunks().unwrap_or(3), 5);
        assert_eq!(idle(&schedule, (3, 4, 2)), 0, "{kind}");
    }
}

/// Microbatches of one stage alive per rank, at most.
fn alive(schedule: &Schedule, bytes: Bytes) -> Vec<u64> {
    schedule.validate(Limits::default(), |_| bytes).unwrap()
}

#[test]
fn microbatches_alive() {
    for ranks in [1, 2, 3, 4, 8, 16] {
        for microbatches in [1, 2, ranks, 2 * ranks, 4 * ranks + 1] {
            let (p, m) = (u64::from(ranks), u64::from(microbatches));
            let by_rank = |of: &dyn Fn(u64) -> u64| (0..p).map(of).collect::<Vec<_>>();
            let peaks =
                |kind, chunks, bytes| alive(&make(kind, ranks, chunks, microbatches), bytes);
            let at = format!("p={p} m={m}");

            assert_eq!(
                peaks(ScheduleKind::GPipe, 1, Bytes::UNTIL_BACKWARD),
                by_rank(&|_| m),
                "{at}"
            );
            let one_f_one_b = by_rank(&|rank| m.min(p - rank));
            assert_eq!(
                peaks(ScheduleKind::OneFOneB, 1, Bytes::UNTIL_BACKWARD),
                one_f_one_b,
                "{at}"
            );
            assert_eq!(
                peaks(ScheduleKind::ZbH1, 1, Bytes::UNTIL_BACKWARD),
                one_f_one_b,
                "{at}"
            );
            assert_eq!(
                peaks(ScheduleKind::ZbH1, 1, Bytes::UNTIL_WEIGHT),
                by_rank(&|_| m.min(p)),
                "{at}"
            );
            let more = by_rank(&|rank| m.min(2 * (p - rank) - 1));
            assert_eq!(
                peaks(ScheduleKind::ZbH2, 1, Bytes::UNTIL_BACKWARD),
                more,
                "{at}"
            );
            assert_eq!(
                peaks(ScheduleKind::ZbH2, 1, Bytes::UNTIL_WEIGHT),
                by_rank(&|_| m.min(2 * p - 1)),
                "{at}"
            );
            for chunks in [1, 2, 3] {
                let whole = by_rank(&|_| u64::from(chunks) * m);
                assert_eq!(
                    peaks(ScheduleKind::LoopedBfs, chunks, Bytes::UNTIL_BACKWARD),
                    whole,
                    "{at}"
                );
            }
            if microbatches.is_multiple_of(ranks) {
                for chunks in [2, 3, 4] {
                    let v = u64::from(chunks);
                    let most = by_rank(&|rank| (v * m).min((v + 1) * p - 2 * rank - 1));
                    assert_eq!(
                        peaks(ScheduleKind::Interleaved, chunks, Bytes::UNTIL_BACKWARD),
                        most,
                        "{at} v={v}"
                    );
                }
            }
            if m >= 2 * p {
                // In stages, of which a rank has two: p and p + 1/2 microbatches.
                assert_eq!(
                    peaks(ScheduleKind::ZbV, 2, Bytes::UNTIL_WEIGHT),
                    by_rank(&|_| 2 * p),
                    "{at}"
                );
                assert_eq!(
                    peaks(ScheduleKind::DualPipeV, 2, Bytes::UNTIL_WEIGHT),
                    by_rank(&|_| 2 * p + 1),
                    "{at}"
                );
            }
        }
    }
}

#[test]
fn messages_in_flight() {
    for ranks in [2, 3, 4, 8] {
        for microbatches in [1, 2, ranks, 2 * ranks + 1, 4 * ranks] {
            for kind in ScheduleKind::ALL {
                for chunks in kind.chunks().map_or(2..=3, |chunks| chunks..=chunks) {
                    let needed = make(kind, ranks, chunks, microbatches).buffers().unwrap();
                    let at = format!("{kind} p={ranks} v={chunks} m={microbatches}: {needed}");
                    match kind {
                        ScheduleKind::LoopedBfs => {
                            assert_eq!(needed, (microbatches / ranks).max(1), "{at}")
                        }
                        ScheduleKind::Interleaved | ScheduleKind::ZbV | ScheduleKind::DualPipeV => {
                            assert!(needed <= 2, "{at}")
                        }
                        _ => assert_eq!(needed, 1, "{at}"),
                    }
                }
            }
        }
    }
}

#[test]
fn gradients_are_made_in_the_order_of_microbatches() {
    for kind in ScheduleKind::ALL {
        let schedule = make(kind, 4, kind.chunks().unwrap_or(3), 11);
        for stage in 0..schedule.stages() {
            let own = schedule.order[schedule.rank(stage) as usize].iter();
            let gradients = own.filter(|action| {
                action.stage == stage && matches!(action.kind, Kind::Weight | Kind::Full)
            });
            assert!(
                gradients.map(|action| action.microbatch).eq(0..11),
                "{kind}, stage {stage}"
            );
        }
    }
}

/// Sent before the gradients of weights are made, the gradient of an input comes W earlier at each stage.
#[test]
fn gradients_that_are_sent_early_make_the_bubble_smaller() {
    for (p, m) in [(2, 4), (4, 8), (8, 16)] {
        let (f, b, w) = (3, 4, 2);
        let times = StageTimes {
            forward: f,
            backward: b,
            weight: w,
        };
        let times = Times::uniform(p, times).sending_early();
        let timeline = make(ScheduleKind::OneFOneB, p, 1, m)
            .simulate(&times)
            .unwrap();
        assert_eq!(
            timeline.end(),
            u64::from(m) * (f + b + w) + u64::from(p - 1) * (f + b)
        );
    }
}
