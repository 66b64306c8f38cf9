//! Small plans of a rank, as tests write them.

use super::tasks::local;
use super::{Failed, Form, FormError, Reader};
use crate::ir::{Op, RankPlan};
use crate::memory::MemoryClass;
use crate::mesh::MeshShape;

/// Reads the tasks of a rank, one on a line, of up to four slots.
///
/// # Errors
/// [`FormError`] if one is none, with its line.
pub(crate) fn rank<O: Op + Form>(tasks: &str) -> Result<RankPlan<O>, FormError> {
    let mesh = MeshShape::parse("").expect("a mesh of one rank");
    let text = format!("{{{tasks}\n}}");
    let mut from = Reader::new(&text, &mesh);
    match local::read(&mut from) {
        Ok(tasks) => Ok(RankPlan {
            tasks,
            draws: Vec::new(),
            num_slots: 4,
            paths: [].into(),
            classes: [MemoryClass::Activation; 4].into(),
            storage: Default::default(),
            indexed: Default::default(),
            actions: [].into(),
            room: 0,
        }),
        Err(Failed) => Err(from.error()),
    }
}

/// Returns the text of a collective in which each of two ranks gives four elements, of slot 0, and gets eight.
pub(crate) fn gather(to: u32, take: bool) -> String {
    let take = if take { " take" } else { "" };
    format!(
        "s{to} = all_gather 1 x [4, 4] x 4 of s0{take} as 0 of [0, 1] axes [2] f32 [4] to [8] record 0 in 0"
    )
}
