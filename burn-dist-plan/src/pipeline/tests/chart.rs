//! Charts.

use crate::pipeline::{ScheduleKind, StageTimes, Timeline, Times};

fn timeline(kind: ScheduleKind, ranks: u32, chunks: u32, microbatches: u32) -> Timeline {
    let schedule = kind.schedule(ranks, chunks, microbatches).unwrap();
    let times = StageTimes {
        forward: 1,
        backward: 1,
        weight: 1,
    };
    schedule
        .simulate(&Times::uniform(schedule.stages(), times))
        .unwrap()
}

#[test]
fn as_text() {
    let mut out = String::new();
    for (kind, chunks) in [
        (ScheduleKind::OneFOneB, 1),
        (ScheduleKind::ZbH1, 1),
        (ScheduleKind::ZbV, 2),
    ] {
        let timeline = timeline(kind, 4, chunks, 8);
        out.push_str(&format!("{kind}\n{}", timeline.text(160)));
    }
    out.push_str(&format!(
        "narrow\n{}",
        timeline(ScheduleKind::OneFOneB, 4, 1, 8).text(20)
    ));
    insta::assert_snapshot!(out);
}

#[test]
fn as_svg() {
    insta::assert_snapshot!(timeline(ScheduleKind::ZbV, 2, 2, 2).svg("zb-v <2 ranks>"));
}

#[test]
fn every_action_is_drawn() {
    for kind in ScheduleKind::ALL {
        let timeline = timeline(kind, 4, kind.chunks().unwrap_or(3), 9);
        let svg = timeline.svg("a schedule");
        let actions = timeline.ranks.iter().map(Vec::len).sum::<usize>();
        assert_eq!(svg.matches("<title>").count(), actions, "{kind}");
        for columns in [0, 1, 7, 80, 400] {
            let text = timeline.text(columns);
            let widths = text
                .lines()
                .take(4)
                .map(|line| line.len() - "rank 0 ".len());
            assert!(
                widths.into_iter().all(|width| width <= columns.max(1)),
                "{kind}\n{text}"
            );
        }
    }
}
