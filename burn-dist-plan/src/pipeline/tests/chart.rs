//! Charts.

use crate::pipeline::{Action, Kind, ScheduleKind, Span, StageTimes, Timeline, Times};

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

/// Every end of an axis from one to beyond an hour in nanoseconds, a power of ten and what is next to it: labels are
/// whole numbers, a few, of which no two are the same.
#[test]
fn an_axis_has_a_few_marks_in_a_unit_that_people_read() {
    let ends =
        (0..13).flat_map(|power| [-1, 0, 1].map(|by| 10_u64.pow(power).saturating_add_signed(by)));
    for end in ends {
        let action = Action {
            kind: Kind::Forward,
            stage: 0,
            microbatch: 0,
        };
        let span = Span {
            action,
            start: 0,
            end,
        };
        let timeline = Timeline {
            ranks: vec![vec![span]],
        };
        let drawn = Timeline::svg_of(&[("measured", &timeline)]);
        let marks: Vec<u64> = drawn
            .lines()
            .zip(drawn.lines().skip(1))
            .filter(|(mark, _)| mark.starts_with("<path"))
            .map(|(_, label)| {
                let label = label.trim_end_matches("</text>");
                label.rsplit('>').next().unwrap().parse().unwrap()
            })
            .collect();
        assert!((1..=11).contains(&marks.len()), "{end}: {marks:?}");
        assert!(end < 5 || marks.len() > 3, "{end}: {marks:?}");
        assert!(
            marks.is_sorted_by(|one, next| one < next),
            "{end}: {marks:?}"
        );
        assert!(*marks.last().unwrap() <= 10_000, "{end}: {marks:?}");
    }
}
