//! The fastest schedule within a memory bound.

use super::greedy::greedy;
use super::literature::{one_f_one_b, zero_bubble};
use super::{Bytes, Limits, Placement, Schedule, ScheduleError, ScheduleKind, Timeline, Times};

/// A schedule that was chosen, with what speaks for it.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The schedule.
    pub schedule: Schedule,
    /// Its name: a schedule of the literature, one of those with less or more memory, or a greedy one.
    pub name: String,
    /// How it runs with the times it was chosen for.
    pub timeline: Timeline,
    /// The most that each rank holds at a time.
    pub peaks: Vec<u64>,
}

/// The costs of each stage's actions for one microbatch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Costs {
    /// Nanoseconds, by the figures that choose layouts.
    pub times: Times,
    /// The bytes that a stage keeps, on the rank with the most.
    pub bytes: Vec<Bytes>,
}

impl Schedule {
    /// Returns the fastest schedule within the limits for these times: the one with the least
    /// [`Timeline::span`], of those the first to end, of those the one of least memory.
    ///
    /// It tries all of [`ScheduleKind`], 1F1B and the zero-bubble schedules with every number of microbatches alive, and a
    /// greedy order under every memory bound.
    /// # Errors
    /// [`ScheduleError::NoneFits`] with the memory that the smallest of them needs, [`ScheduleError::Deadlock`] if only
    /// the number of buffers is too small, [`ScheduleError::Times`], and those of [`ScheduleKind::schedule`] for counts.
    pub fn auto(
        ranks: u32,
        chunks: u32,
        microbatches: u32,
        times: &Times,
        limits: Limits,
        bytes: impl Fn(u32) -> Bytes,
    ) -> Result<Choice, ScheduleError> {
        choose((ranks, chunks, microbatches), None, times, limits, bytes)
    }
}

/// Chooses as [`Schedule::auto`] does, for stages that are placed already, if `placement` says how.
pub(crate) fn choose(
    (ranks, chunks, microbatches): (u32, u32, u32),
    placement: Option<Placement>,
    times: &Times,
    limits: Limits,
    bytes: impl Fn(u32) -> Bytes,
) -> Result<Choice, ScheduleError> {
    // Says what is wrong with the counts; it exists for all that are right.
    let first = ScheduleKind::LoopedBfs.schedule(ranks, chunks, microbatches)?;
    times.check(first.stages())?;
    let mut best: Option<Choice> = None;
    let mut least: Option<(u64, String)> = None;
    let mut deadlock = None;
    // With one stage per rank both placements are the same.
    let is_placed = |schedule: &Schedule| {
        chunks == 1 || placement.is_none_or(|placement| schedule.placement == placement)
    };
    let candidates = candidates(ranks, chunks, microbatches, times);
    for (name, schedule) in candidates.filter(|(_, schedule)| is_placed(schedule)) {
        let memory = Limits {
            memory: u64::MAX,
            ..limits
        };
        let peaks = match schedule.validate(memory, &bytes) {
            Ok(peaks) => peaks,
            Err(error @ ScheduleError::Deadlock { .. }) => {
                deadlock = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let peak = peaks.iter().copied().max().unwrap_or(0);
        if least.as_ref().is_none_or(|(least, _)| peak < *least) {
            least = Some((peak, name.clone()));
        }
        if peak > limits.memory {
            continue;
        }
        let choice = Choice {
            timeline: schedule.simulate(times)?,
            schedule,
            name,
            peaks,
        };
        let key = |choice: &Choice| {
            let peak = choice.peaks.iter().copied().max();
            (choice.timeline.span(), choice.timeline.end(), peak)
        };
        if best.as_ref().is_none_or(|best| key(&choice) < key(best)) {
            best = Some(choice);
        }
    }
    match (best, least, deadlock) {
        (Some(best), _, _) => Ok(best),
        (None, None, Some(deadlock)) => Err(deadlock),
        (None, least, _) => {
            let (least, name) = least.unwrap_or_default();
            Err(ScheduleError::NoneFits {
                ranks,
                chunks,
                limit: limits.memory,
                least,
                name,
            })
        }
    }
}

/// Returns the schedules to choose from, with their names. Of two alike the first is better known.
fn candidates(
    ranks: u32,
    chunks: u32,
    microbatches: u32,
    times: &Times,
) -> impl Iterator<Item = (String, Schedule)> {
    let kinds = ScheduleKind::ALL.into_iter().filter_map(move |kind| {
        let schedule = kind.schedule(ranks, chunks, microbatches).ok()?;
        Some((kind.to_string(), schedule))
    });
    let alive = |most: u32| 1..=most.min(microbatches);
    let one_stage = chunks == 1;
    let fewer = alive(ranks).map(move |alive| {
        let schedule = one_f_one_b(ranks, microbatches, alive);
        (format!("1f1b with {alive} alive"), schedule)
    });
    let split = alive(2 * ranks).map(move |alive| {
        let schedule = zero_bubble(ranks, microbatches, alive);
        (format!("zero bubble with {alive} alive"), schedule)
    });
    let placements = [Placement::Loop, Placement::V];
    let greedy = placements.into_iter().flat_map(move |placement| {
        // With one stage per rank both placements are the same.
        let most = match placement {
            Placement::V if one_stage => 0,
            _ => chunks * (2 * ranks).min(microbatches),
        };
        (chunks..=most).filter_map(move |alive| {
            let schedule = greedy((ranks, chunks, microbatches), placement, times, alive)?;
            Some((format!("greedy, {placement}, {alive} alive"), schedule))
        })
    });
    let tuned = fewer.chain(split).filter(move |_| one_stage);
    kinds.chain(tuned).chain(greedy)
}
