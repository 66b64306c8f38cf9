//! The text of every schedule.

use crate::pipeline::ScheduleKind;

#[test]
fn schedules_of_four_ranks() {
    for kind in ScheduleKind::ALL {
        let chunks = kind.chunks().unwrap_or(2);
        let schedule = kind.schedule(4, chunks, 8).unwrap();
        insta::assert_snapshot!(format!("{kind}_4"), schedule.to_string());
    }
}

#[test]
fn schedules_in_a_v_of_two_ranks() {
    for kind in [ScheduleKind::ZbV, ScheduleKind::DualPipeV] {
        let schedule = kind.schedule(2, 2, 8).unwrap();
        insta::assert_snapshot!(format!("{kind}_2"), schedule.to_string());
    }
}

#[test]
fn lowered_with_shards() {
    let schedule = ScheduleKind::ZbV.schedule(2, 2, 4).unwrap();
    insta::assert_snapshot!("zb-v_2_lowered", schedule.lower(true).to_string());
}
