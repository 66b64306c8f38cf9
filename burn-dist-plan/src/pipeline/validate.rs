//! Validation of schedules: every action once, dependencies met, no deadlock, within the memory bound.

use rustc_hash::{FxHashMap, FxHashSet};

use super::line::line;
use super::{Action, Bytes, Kind, Lowered, Schedule, ScheduleError, Step};

/// The limits of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many messages one rank may have sent to another that has not received them. A rank that would send one more
    /// waits.
    pub buffers: u32,
    /// The bytes that a rank may hold at a time.
    pub memory: u64,
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self {
            buffers: u32::MAX,
            memory: u64::MAX,
        }
    }
}

impl Schedule {
    /// Checks that the schedule can run, and returns the most that each rank holds at a time, if `bytes` says what
    /// stages keep.
    ///
    /// It holds for the lowered schedule: each rank sends a result as soon as it is there, receives one right before
    /// the action that needs it, and takes messages in any order.
    /// # Errors
    /// What is wrong, with the action and its line in the text form. Of several mistakes the first is named.
    pub fn validate(
        &self,
        limits: Limits,
        bytes: impl Fn(u32) -> Bytes,
    ) -> Result<Vec<u64>, ScheduleError> {
        self.check_counts()?;
        let places = self.check_once()?;
        self.check_order(&places)?;
        self.lower(false).run(limits.buffers)?;
        (0..self.order.len())
            .map(|rank| self.check_memory(rank, limits.memory, &bytes))
            .collect()
    }

    /// Returns the least number of messages in flight from one rank to another with which the schedule does not
    /// deadlock.
    /// # Errors
    /// Those of [`validate`](Self::validate).
    pub fn buffers(&self) -> Result<u32, ScheduleError> {
        self.validate(Limits::default(), |_| Bytes::default())?;
        let lowered = self.lower(false);
        let mut buffers = 1;
        while lowered.run(buffers).is_err() {
            buffers += 1;
        }
        Ok(buffers)
    }

    fn check_counts(&self) -> Result<(), ScheduleError> {
        check_counts(self.ranks, self.chunks, self.microbatches)?;
        if self.order.len() != self.ranks as usize {
            return Err(ScheduleError::Lines {
                ranks: self.ranks,
                lines: self.order.len(),
            });
        }
        Ok(())
    }

    /// Checks that every action is there once, on its rank. Returns where on its line each stands.
    fn check_once(&self) -> Result<FxHashMap<Action, usize>, ScheduleError> {
        let mut places = FxHashMap::default();
        for (rank, actions) in self.order.iter().enumerate() {
            let line = line(rank);
            for (place, &action) in actions.iter().enumerate() {
                if action.stage >= self.stages() || action.microbatch >= self.microbatches {
                    return Err(ScheduleError::Unknown {
                        action,
                        line,
                        stage_last: self.stages() - 1,
                        microbatch_last: self.microbatches - 1,
                    });
                }
                let owner = self.rank(action.stage);
                if owner as usize != rank {
                    return Err(ScheduleError::Elsewhere {
                        action,
                        line,
                        owner,
                    });
                }
                if places.insert(action, place).is_some() {
                    return Err(ScheduleError::Doubled { action, line });
                }
                let others: &[Kind] = match action.kind {
                    Kind::Forward => &[],
                    Kind::Backward | Kind::Weight => &[Kind::Full],
                    Kind::Full => &[Kind::Backward, Kind::Weight],
                };
                let both = others.iter().map(|kind| action.with_kind(*kind));
                if let Some(other) = both.into_iter().find(|other| places.contains_key(other)) {
                    return Err(ScheduleError::Both {
                        action,
                        other,
                        line,
                    });
                }
            }
        }
        for stage in 0..self.stages() {
            for microbatch in 0..self.microbatches {
                let has = |kind| places.contains_key(&Action::new(kind, stage, microbatch));
                let needed = if has(Kind::Backward) || has(Kind::Weight) {
                    &[Kind::Forward, Kind::Backward, Kind::Weight][..]
                } else {
                    &[Kind::Forward, Kind::Full]
                };
                for &kind in needed {
                    if !has(kind) {
                        let action = Action::new(kind, stage, microbatch);
                        let line = line(self.rank(stage) as usize);
                        return Err(ScheduleError::Missing { action, line });
                    }
                }
            }
        }
        Ok(places)
    }

    /// Checks that what an action needs of its own rank comes before it.
    fn check_order(&self, places: &FxHashMap<Action, usize>) -> Result<(), ScheduleError> {
        for (rank, actions) in self.order.iter().enumerate() {
            for (place, &action) in actions.iter().enumerate() {
                for needs in self.needs(action, |needed| places.contains_key(&needed)) {
                    if self.rank(needs.stage) as usize == rank && places[&needs] > place {
                        return Err(ScheduleError::Before {
                            action,
                            needs,
                            line: line(rank),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn check_memory(
        &self,
        rank: usize,
        limit: u64,
        bytes: impl Fn(u32) -> Bytes,
    ) -> Result<u64, ScheduleError> {
        let (mut held, mut most) = (0, 0);
        for &action in &self.order[rank] {
            held = bytes(action.stage).after(action.kind, held);
            most = held.max(most);
            if held > limit {
                return Err(ScheduleError::Memory {
                    action,
                    rank: rank as u32,
                    line: line(rank),
                    held,
                    limit,
                });
            }
        }
        Ok(most)
    }

    /// Returns what an action needs, if `exists` says whether a schedule has an action.
    pub(super) fn needs(
        &self,
        action: Action,
        exists: impl Fn(Action) -> bool,
    ) -> impl Iterator<Item = Action> {
        let backward = |stage| {
            let split = Action::backward(stage, action.microbatch);
            let full = split.with_kind(Kind::Full);
            if exists(full) { full } else { split }
        };
        let (stage, last) = (action.stage, self.stages() - 1);
        let (first, second) = match action.kind {
            Kind::Forward if stage == 0 => (None, None),
            Kind::Forward => (Some(Action::forward(stage - 1, action.microbatch)), None),
            Kind::Weight => (Some(action.with_kind(Kind::Backward)), None),
            Kind::Backward | Kind::Full => (
                Some(action.with_kind(Kind::Forward)),
                (stage < last).then(|| backward(stage + 1)),
            ),
        };
        first.into_iter().chain(second)
    }
}

/// Checks that there is something to schedule, and that its stages can be counted.
pub(super) fn check_counts(
    ranks: u32,
    chunks: u32,
    microbatches: u32,
) -> Result<(), ScheduleError> {
    let counts = [
        (ranks, "ranks"),
        (chunks, "chunks"),
        (microbatches, "microbatches"),
    ];
    if let Some((_, what)) = counts.into_iter().find(|(count, _)| *count == 0) {
        return Err(ScheduleError::Empty { what });
    }
    match ranks.checked_mul(chunks) {
        Some(_) => Ok(()),
        None => Err(ScheduleError::TooMany { ranks, chunks }),
    }
}

impl Lowered {
    /// Runs the steps of all ranks, with so many messages in flight from one rank to another.
    fn run(&self, buffers: u32) -> Result<(), ScheduleError> {
        let mut next = vec![0; self.order.len()];
        let mut sent = FxHashSet::default();
        let mut under_way: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut progress = true;
        while progress {
            progress = false;
            for (rank, steps) in self.order.iter().enumerate() {
                let own = rank as u32;
                while let Some(step) = steps.get(next[rank]) {
                    match *step {
                        Step::Send { of, to } => {
                            let count = under_way.entry((own, to)).or_default();
                            if *count >= buffers {
                                break;
                            }
                            *count += 1;
                            sent.insert(of);
                        }
                        Step::Recv { of, from } => {
                            if !sent.remove(&of) {
                                break;
                            }
                            *under_way.entry((from, own)).or_default() -= 1;
                        }
                        Step::Compute(_) | Step::Gather { .. } | Step::Reduce { .. } => {}
                    }
                    next[rank] += 1;
                    progress = true;
                }
            }
        }
        let waiting = self
            .order
            .iter()
            .zip(&next)
            .map(|(steps, &next)| steps.get(next..));
        waits(waiting, buffers)
    }
}

/// Returns an error if any rank has something left to do: it waits at the first of it.
pub(super) fn waits<'a, T: std::fmt::Display + 'a>(
    left: impl Iterator<Item = Option<&'a [T]>>,
    buffers: u32,
) -> Result<(), ScheduleError> {
    let waits: Vec<String> = left
        .enumerate()
        .filter_map(|(rank, left)| Some((rank, left?.first()?)))
        .map(|(rank, step)| format!("rank {rank} (line {}) waits at {step}", line(rank)))
        .collect();
    if waits.is_empty() {
        return Ok(());
    }
    Err(ScheduleError::Deadlock {
        waits: waits.join(", "),
        buffers,
    })
}
