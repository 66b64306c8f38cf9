//! The schedules of the literature, written down.

use std::collections::VecDeque;

use super::validate::check_counts;
use super::{Action, Kind, Placement, Schedule, ScheduleError, ScheduleKind};

impl ScheduleKind {
    /// Returns the schedule of so many ranks, stages per rank, and microbatches.
    /// # Errors
    /// [`ScheduleError::Empty`], [`ScheduleError::TooMany`], and [`ScheduleError::Chunks`] if the schedule has another
    /// number of stages per rank.
    pub fn schedule(
        self,
        ranks: u32,
        chunks: u32,
        microbatches: u32,
    ) -> Result<Schedule, ScheduleError> {
        check_counts(ranks, chunks, microbatches)?;
        if let Some(needs) = self.chunks().filter(|needs| *needs != chunks) {
            return Err(ScheduleError::Chunks {
                kind: self,
                chunks,
                needs,
            });
        }
        let (p, m) = (ranks, microbatches);
        Ok(match self {
            Self::GPipe => one_stage(p, m, |_| (m, None)),
            Self::OneFOneB => one_f_one_b(p, m, p),
            Self::ZbH1 => zero_bubble(p, m, p),
            Self::ZbH2 => zero_bubble(p, m, 2 * p - 1),
            Self::Interleaved => interleaved(p, chunks, m),
            Self::LoopedBfs => looped_bfs(p, chunks, m),
            // What a microbatch needs are actions for the same one: a schedule of more microbatches stays valid
            // without the last.
            Self::ZbV => v_shaped(p, m.max(2 * p - 1), zb_v).truncated(m),
            Self::DualPipeV => v_shaped(p, m.max(2 * p), dualpipe_v).truncated(m),
        })
    }
}

/// Returns the schedule in which each rank has its `actions`, for so many ranks, stages per rank, and microbatches.
fn of_ranks(
    (ranks, chunks, microbatches): (u32, u32, u32),
    placement: Placement,
    actions: impl Fn(u32) -> Vec<Action>,
) -> Schedule {
    Schedule {
        ranks,
        chunks,
        placement,
        microbatches,
        order: (0..ranks).map(actions).collect(),
    }
}

/// 1F1B with at most `alive` microbatches between forward and backward on any rank.
pub(super) fn one_f_one_b(ranks: u32, microbatches: u32, alive: u32) -> Schedule {
    one_stage(ranks, microbatches, |rank| (alive.min(ranks - rank), None))
}

/// ZB-H1 (`alive` = p), ZB-H2 (2 p - 1), and those before and between them: `alive` microbatches between forward and
/// weight gradient on every rank, as many of them before their input gradient as there is use for.
pub(super) fn zero_bubble(ranks: u32, microbatches: u32, alive: u32) -> Schedule {
    one_stage(ranks, microbatches, |rank| {
        let ahead = (ranks - rank)
            .max(alive.saturating_sub(2 * rank))
            .min(alive);
        (ahead, Some(alive - ahead))
    })
}

/// One stage per rank: some forwards, then backward and forward in turns, then the backwards that are left.
///
/// `plan` returns how many forwards a rank is ahead of its backwards, and how many microbatches its weight gradients
/// are behind them, if they are apart.
fn one_stage(ranks: u32, microbatches: u32, plan: impl Fn(u32) -> (u32, Option<u32>)) -> Schedule {
    let actions = |rank| {
        let (ahead, behind) = plan(rank);
        let ahead = ahead.min(microbatches);
        let mut actions: Vec<Action> = (0..ahead).map(|m| Action::forward(rank, m)).collect();
        for m in 0..microbatches {
            if let Some(behind) = behind {
                actions.push(Action::backward(rank, m));
                actions.extend(m.checked_sub(behind).map(|m| Action::weight(rank, m)));
            } else {
                actions.push(Action::full(rank, m));
            }
            if m < microbatches - ahead {
                actions.push(Action::forward(rank, ahead + m));
            }
        }
        if let Some(behind) = behind {
            let left = microbatches.saturating_sub(behind)..microbatches;
            actions.extend(left.map(|m| Action::weight(rank, m)));
        }
        actions
    };
    of_ranks((ranks, 1, microbatches), Placement::Loop, actions)
}

fn interleaved(ranks: u32, chunks: u32, microbatches: u32) -> Schedule {
    // Groups of microbatches that pass one stage of a rank after the other.
    let groups = (microbatches / ranks).max(1);
    let last = microbatches - (groups - 1) * ranks;
    let turns = |reverse: bool| {
        (0..groups).flat_map(move |group| {
            let size = if group + 1 == groups { last } else { ranks };
            (0..chunks).flat_map(move |chunk| {
                let chunk = if reverse { chunks - 1 - chunk } else { chunk };
                (0..size).map(move |m| (chunk, group * ranks + m))
            })
        })
    };
    let actions = |rank| {
        // The forwards before the first backward: one each for the way to the last rank and back, and all but the last
        // stage of the first group.
        let ahead = if chunks == 1 {
            ranks - rank
        } else {
            2 * (ranks - rank) - 1 + (chunks - 1) * last
        };
        let mut forwards = turns(false).map(|(chunk, m)| Action::forward(chunk * ranks + rank, m));
        let mut actions: Vec<Action> = forwards.by_ref().take(ahead as usize).collect();
        for (chunk, m) in turns(true) {
            actions.push(Action::full(chunk * ranks + rank, m));
            actions.extend(forwards.next());
        }
        actions
    };
    of_ranks((ranks, chunks, microbatches), Placement::Loop, actions)
}

fn looped_bfs(ranks: u32, chunks: u32, microbatches: u32) -> Schedule {
    let actions = |rank| {
        let turns = |kind, chunk| {
            (0..microbatches).map(move |m| Action::new(kind, chunk * ranks + rank, m))
        };
        let forwards = (0..chunks).flat_map(|chunk| turns(Kind::Forward, chunk));
        let backwards = (0..chunks).rev().flat_map(|chunk| turns(Kind::Full, chunk));
        forwards.chain(backwards).collect()
    };
    of_ranks((ranks, chunks, microbatches), Placement::Loop, actions)
}

/// The actions of a rank that has one stage down the V and one up, in the order in which they are
/// asked for: of each kind and stage one microbatch after another, and none that does not exist.
struct Writer {
    /// Down, up.
    stages: [u32; 2],
    microbatches: u32,
    /// The next microbatch, by stage: of forwards, of backwards.
    next: [[u32; 2]; 2],
    /// Weight gradients that are still to be done.
    weights: VecDeque<Action>,
    actions: Vec<Action>,
}

/// The stage down the V.
const DOWN: usize = 0;
/// The stage up the V.
const UP: usize = 1;

impl Writer {
    fn forward(&mut self, way: usize) {
        self.next(Kind::Forward, way);
    }

    fn full(&mut self, way: usize) {
        self.next(Kind::Full, way);
    }

    /// The input gradient. Its weight gradient is the last of those that are still to be done.
    fn backward(&mut self, way: usize) {
        if let Some(action) = self.next(Kind::Backward, way) {
            self.weights.push_back(action.with_kind(Kind::Weight));
        }
    }

    /// The first of the weight gradients that are still to be done.
    fn weight(&mut self) {
        self.actions.extend(self.weights.pop_front());
    }

    fn next(&mut self, kind: Kind, way: usize) -> Option<Action> {
        let next = &mut self.next[usize::from(kind != Kind::Forward)][way];
        if *next == self.microbatches {
            return None;
        }
        let action = Action::new(kind, self.stages[way], *next);
        *next += 1;
        self.actions.push(action);
        Some(action)
    }

    fn forwards_left(&self) -> bool {
        self.next[0] != [self.microbatches; 2]
    }
}

fn v_shaped(ranks: u32, microbatches: u32, write: impl Fn(&mut Writer, u32, u32)) -> Schedule {
    let placement = Placement::V;
    let actions = |rank| {
        let mut writer = Writer {
            stages: [0, 1].map(|chunk| placement.stage(rank, chunk, ranks)),
            microbatches,
            next: [[0; 2]; 2],
            weights: VecDeque::new(),
            actions: Vec::new(),
        };
        write(&mut writer, rank, ranks);
        writer.actions
    };
    of_ranks((ranks, 2, microbatches), placement, actions)
}

/// Every action takes one unit: the order is that of the only times at which no rank has to wait.
fn zb_v(out: &mut Writer, rank: u32, ranks: u32) {
    // Forwards until the first microbatch is back from the bottom of the V.
    for _ in 0..2 * (ranks - rank) - 1 {
        out.forward(DOWN);
    }
    for _ in 0..rank {
        out.forward(UP);
        out.forward(DOWN);
    }
    // Up to the top of the V and back.
    for _ in 0..ranks - rank {
        out.forward(UP);
        out.backward(UP);
        out.weight();
    }
    // The steady part: six units per microbatch.
    while out.forwards_left() {
        out.forward(DOWN);
        out.backward(DOWN);
        out.weight();
        out.forward(UP);
        out.backward(UP);
        out.weight();
    }
    // Input gradients first where another rank waits for them.
    for _ in 0..rank {
        out.backward(DOWN);
        out.backward(UP);
    }
    for _ in 0..ranks - rank {
        out.backward(DOWN);
        out.weight();
    }
    while !out.weights.is_empty() {
        out.weight();
    }
}

fn dualpipe_v(out: &mut Writer, rank: u32, ranks: u32) {
    let after = ranks - 1 - rank;
    for _ in 0..2 * after {
        out.forward(DOWN);
    }
    for _ in 0..=rank {
        out.forward(DOWN);
        out.forward(UP);
    }
    for _ in 0..after {
        out.backward(UP);
        out.weight();
        out.forward(UP);
    }
    // The steady part: a forward of one stage beside the whole backward of the other.
    while out.next[0][DOWN] + 1 < out.microbatches {
        out.forward(DOWN);
        out.full(UP);
        out.forward(UP);
        out.full(DOWN);
    }
    // From here on the other ranks wait for input gradients.
    out.forward(DOWN);
    for _ in 0..=after {
        out.backward(UP);
        out.weight();
        out.forward(UP);
        out.backward(DOWN);
        out.weight();
    }
    for _ in 0..=rank {
        out.backward(UP);
        out.backward(DOWN);
    }
    for _ in 0..after {
        out.weight();
        out.backward(DOWN);
    }
    while !out.weights.is_empty() {
        out.weight();
    }
}
