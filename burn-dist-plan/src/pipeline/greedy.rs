//! A list scheduler: each rank does what is ready, within a memory bound.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::{Action, Kind, Placement, Schedule, Times};

/// A rank while its actions are put in order.
struct Rank {
    /// When its last action ends.
    free: u64,
    /// The microbatches of its stages between forward and weight gradient.
    alive: u32,
    /// The next microbatch by stage: of forwards, of input gradients.
    forwards: Vec<u32>,
    backwards: Vec<u32>,
    /// Weight gradients that are still to be done.
    weights: VecDeque<Action>,
}

/// Orders the actions by time: whenever a rank is free, it takes the input gradient that is ready, else a forward, else
/// a weight gradient.
///
/// A rank holds at most `alive` microbatches of its stages between forward and weight gradient. A forward leaves room
/// for one in each later stage of the rank, so that what was begun can always be finished. Returns nothing if there
/// is no room for that.
///
/// Source: after the heuristic of arXiv:2401.10241, section 3.1. Differs: the memory bound counts microbatches, and
/// nothing is tried twice.
pub(super) fn greedy(
    (ranks, chunks, microbatches): (u32, u32, u32),
    placement: Placement,
    times: &Times,
    alive: u32,
) -> Option<Schedule> {
    if alive < chunks {
        return None;
    }
    let mut schedule = Schedule {
        ranks,
        chunks,
        placement,
        microbatches,
        order: vec![Vec::new(); ranks as usize],
    };
    let rank = |_| Rank {
        free: 0,
        alive: 0,
        forwards: vec![0; chunks as usize],
        backwards: vec![0; chunks as usize],
        weights: VecDeque::new(),
    };
    let mut state: Vec<Rank> = (0..ranks).map(rank).collect();
    let place = |stage: u32, microbatch: u32| (stage * microbatches + microbatch) as usize;
    // When what the next stage needs is there: of forwards, of input gradients.
    let mut ends = [(); 2].map(|()| vec![None; place(schedule.stages(), 0)]);

    for _ in 0..3 * schedule.stages() * microbatches {
        let mut best = None;
        for (rank, own) in (0..).zip(&state) {
            for chunk in 0..chunks {
                let stage = placement.stage(rank, chunk, ranks);
                let ready = |kind: Kind, microbatch| {
                    let action = Action::new(kind, stage, microbatch);
                    schedule
                        .needs(action, |needed| needed.kind != Kind::Full)
                        .try_fold(own.free, |start, needed| {
                            let which = usize::from(needed.kind == Kind::Backward);
                            let end: Option<u64> = ends[which][place(needed.stage, microbatch)];
                            Some(start.max(end? + times.between(&schedule, needed, action)))
                        })
                };
                let (forward, backward) =
                    (own.forwards[chunk as usize], own.backwards[chunk as usize]);
                if backward < forward
                    && let Some(start) = ready(Kind::Backward, backward)
                {
                    let action = Action::backward(stage, backward);
                    best = earlier(best, (start, 0, 0, rank), action);
                }
                let room = own.alive + chunks - chunk <= alive;
                if forward < microbatches
                    && room
                    && let Some(start) = ready(Kind::Forward, forward)
                {
                    let action = Action::forward(stage, forward);
                    best = earlier(best, (start, 1, chunks - chunk, rank), action);
                }
            }
            if let Some(action) = own.weights.front() {
                best = earlier(best, (own.free, 2, 0, rank), *action);
            }
        }
        let (Reverse((start, _, _, rank)), action) = best?;
        let own = &mut state[rank as usize];
        own.free = start + times.of(action);
        let chunk = (action.stage / ranks) as usize;
        match action.kind {
            Kind::Weight => {
                own.weights.pop_front();
                own.alive -= 1;
            }
            Kind::Forward => {
                own.forwards[chunk] += 1;
                own.alive += 1;
                ends[0][place(action.stage, action.microbatch)] = Some(own.free);
            }
            Kind::Backward | Kind::Full => {
                own.backwards[chunk] += 1;
                own.weights.push_back(action.with_kind(Kind::Weight));
                ends[1][place(action.stage, action.microbatch)] = Some(own.free);
            }
        }
        schedule.order[rank as usize].push(action);
    }
    Some(schedule)
}

/// Start, preference of kind, preference of stage, rank.
type Key = Reverse<(u64, u32, u32, u32)>;

fn earlier(
    best: Option<(Key, Action)>,
    key: (u64, u32, u32, u32),
    action: Action,
) -> Option<(Key, Action)> {
    best.max(Some((Reverse(key), action)))
}
