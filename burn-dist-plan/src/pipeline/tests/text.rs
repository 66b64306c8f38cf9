//! The text of every schedule.

use crate::pipeline::Family;

#[test]
fn schedules_of_four_ranks() {
    for family in Family::ALL {
        let chunks = family.chunks().unwrap_or(2);
        let schedule = family.schedule(4, chunks, 8).unwrap();
        insta::assert_snapshot!(format!("{family}_4"), schedule.to_string());
    }
}

#[test]
fn schedules_in_a_v_of_two_ranks() {
    for family in [Family::ZbV, Family::DualPipeV] {
        let schedule = family.schedule(2, 2, 8).unwrap();
        insta::assert_snapshot!(format!("{family}_2"), schedule.to_string());
    }
}

#[test]
fn lowered_with_shards() {
    let schedule = Family::ZbV.schedule(2, 2, 4).unwrap();
    insta::assert_snapshot!("zb-v_2_lowered", schedule.lower(true).to_string());
}
