//! When every action of a schedule starts and ends.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::validate::waits;
use super::{Action, Kind, Schedule, ScheduleError};

/// How long the actions of a stage take for one microbatch, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StageTimes {
    /// The forward.
    pub forward: u64,
    /// The input gradient.
    pub backward: u64,
    /// The weight gradient.
    pub weight: u64,
}

impl StageTimes {
    /// Returns how long an action of the stage takes.
    pub fn of(self, kind: Kind) -> u64 {
        match kind {
            Kind::Forward => self.forward,
            Kind::Backward => self.backward,
            Kind::Weight => self.weight,
            Kind::Full => self.backward + self.weight,
        }
    }
}

/// How long everything takes, in any one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// The times of each stage.
    pub stages: Vec<StageTimes>,
    /// The time between the end of an action and the start of the one that needs its result, if that is on another
    /// rank: between each stage and the next, in both directions. Neither rank is busy with it.
    pub transfers: Vec<u64>,
    /// True if a backward that is whole sends the gradient of its stage's input before it makes those of its weights,
    /// as a run does. The literature counts with the end of the whole backward.
    pub sends_early: bool,
}

impl Times {
    /// Returns the times of a model whose stages are alike, with transfers that take no time.
    pub fn uniform(stages: u32, times: StageTimes) -> Self {
        Self {
            stages: vec![times; stages as usize],
            transfers: vec![0; (stages as usize).saturating_sub(1)],
            sends_early: false,
        }
    }

    /// Returns the same times with gradients of inputs that are sent as soon as they are there.
    pub fn sending_early(mut self) -> Self {
        self.sends_early = true;
        self
    }

    /// Returns how long before its end an action has made what another needs.
    fn ahead(&self, needed: Action, action: Action) -> u64 {
        let times = self.stages[needed.stage as usize];
        match needed.kind {
            Kind::Full if self.sends_early && needed.stage != action.stage => times.weight,
            _ => 0,
        }
    }

    /// Returns the same times with transfers that all take `transfer`.
    pub fn with_transfer(mut self, transfer: u64) -> Self {
        self.transfers.fill(transfer);
        self
    }

    pub(super) fn check(&self, stages: u32) -> Result<(), ScheduleError> {
        let (of, transfers) = (self.stages.len(), self.transfers.len());
        if of == stages as usize && transfers + 1 == of {
            return Ok(());
        }
        Err(ScheduleError::Times {
            stages: of,
            transfers,
            expected: stages,
        })
    }

    pub(super) fn of(&self, action: Action) -> u64 {
        self.stages[action.stage as usize].of(action.kind)
    }

    /// Returns what lies between two actions of which one needs the other.
    pub(super) fn between(&self, schedule: &Schedule, needed: Action, action: Action) -> u64 {
        if schedule.rank(needed.stage) == schedule.rank(action.stage) {
            return 0;
        }
        self.transfers[needed.stage.min(action.stage) as usize]
    }
}

/// One action with its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// A pause within an action that takes less than its work divided by this is part of it.
const PAUSE_DIVISOR: u64 = 20;

/// Returns when some actions took place, in order of time, by the tasks that did: which, its start and its end, in order.
/// `actions` have ranges of tasks. An action that waits in between, for what is sent to it, has several spans.
pub fn spans_of(
    actions: &[(Action, Range<u32>)],
    took_place: impl Iterator<Item = (u32, u64, u64)>,
) -> Vec<Span> {
    let mut by_task: Vec<(usize, (u32, u64, u64))> = took_place.enumerate().collect();
    by_task.sort_by_key(|(_, (task, ..))| *task);
    let mut spans: Vec<Span> = Vec::new();
    for (action, tasks) in actions {
        let place = |end: u32| by_task.partition_point(|(_, (task, ..))| *task < end);
        let mut mine = by_task[place(tasks.start)..place(tasks.end)].to_vec();
        mine.sort_unstable();
        let work: u64 = mine.iter().map(|(_, (_, start, end))| end - start).sum();
        let first = spans.len();
        for (_, (_, start, end)) in mine {
            match spans[first..].last_mut() {
                Some(last) if start <= last.end + work / PAUSE_DIVISOR => {
                    last.end = last.end.max(end)
                }
                _ => spans.push(Span {
                    action: *action,
                    start,
                    end,
                }),
            }
        }
    }
    spans.sort_by_key(|span| (span.start, span.end));
    spans
}

/// The actions of every rank in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The actions of each rank, in order.
    pub ranks: Vec<Vec<Span>>,
}

impl Timeline {
    /// Returns the timeline of ranks of a mesh, the first with each stage, from its first action on; `None` if none has an
    /// action.
    pub fn of_ranks(ranks: impl IntoIterator<Item = Vec<Span>>) -> Option<Self> {
        let mut found: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        for spans in ranks {
            if let Some(first) = spans.iter().map(|span| span.action.stage).min() {
                found.entry(first).or_insert(spans);
            }
        }
        let start = found.values().flatten().map(|span| span.start).min()?;
        for span in found.values_mut().flatten() {
            span.start -= start;
            span.end -= start;
        }
        Some(Self {
            ranks: found.into_values().collect(),
        })
    }

    /// Returns when the last action ends; the first starts at 0.
    pub fn end(&self) -> u64 {
        let last = self.ranks.iter().filter_map(|spans| spans.last());
        last.map(|span| span.end).max().unwrap_or(0)
    }

    /// Returns the most that any rank takes from the start of its first action to the end of its last.
    pub fn span(&self) -> u64 {
        self.ranks
            .iter()
            .map(|spans| span(spans))
            .max()
            .unwrap_or(0)
    }

    /// Returns the most that any rank is idle between its first action and its last.
    pub fn idle(&self) -> u64 {
        let idle = self.ranks.iter().map(|spans| span(spans) - work(spans));
        idle.max().unwrap_or(0)
    }

    /// Returns the bubble rate: the share of the longest rank's [`span`](Self::span) in which a rank, on average, does
    /// not compute.
    ///
    /// For stages alike it is what arXiv:2401.10241 (section 5.3) calls so: (cost - m (F + B + W)) / cost.
    pub fn bubble(&self) -> f64 {
        let work: u64 = self.ranks.iter().map(|spans| work(spans)).sum();
        let all = self.span() as f64 * self.ranks.len() as f64;
        if all == 0.0 {
            0.0
        } else {
            1.0 - work as f64 / all
        }
    }
}

fn span(spans: &[Span]) -> u64 {
    match spans {
        [first, .., last] => last.end - first.start,
        [only] => only.end - only.start,
        [] => 0,
    }
}

fn work(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.end - span.start).sum()
}

impl Schedule {
    /// Runs the schedule on a clock: each action starts when its rank is free and what it needs is there.
    ///
    /// Sends never wait for room. No gather, reduction or optimizer is counted.
    /// # Errors
    /// [`ScheduleError::Times`] for times of another number of stages, [`ScheduleError::Deadlock`].
    pub fn simulate(&self, times: &Times) -> Result<Timeline, ScheduleError> {
        times.check(self.stages())?;
        let mut ends: FxHashMap<Action, Option<u64>> = FxHashMap::default();
        ends.extend(self.order.iter().flatten().map(|action| (*action, None)));
        let mut ranks: Vec<Vec<Span>> = vec![Vec::new(); self.order.len()];
        let mut progress = true;
        while progress {
            progress = false;
            for (spans, actions) in ranks.iter_mut().zip(&self.order) {
                while let Some(&action) = actions.get(spans.len()) {
                    let free = spans.last().map_or(0, |span| span.end);
                    let needs = self.needs(action, |needed| ends.contains_key(&needed));
                    let start = needs.into_iter().try_fold(free, |start, needed| {
                        let end = ends.get(&needed).copied().flatten()?;
                        let made = end - times.ahead(needed, action);
                        Some(start.max(made + times.between(self, needed, action)))
                    });
                    let Some(start) = start else { break };
                    let end = start + times.of(action);
                    ends.insert(action, Some(end));
                    spans.push(Span { action, start, end });
                    progress = true;
                }
            }
        }
        let left = ranks.iter().zip(&self.order);
        waits(
            left.map(|(spans, actions)| actions.get(spans.len()..)),
            u32::MAX,
        )?;
        Ok(Timeline { ranks })
    }
}
