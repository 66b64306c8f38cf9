//! What the members of one call hand in, and what they wait for: deposits, matching, and waiting.

use super::wire::Route;
use crate::block::Block;
use crate::buffer::Work;
use crate::group::Group;
use crate::info::CallInfo;
use crate::processes::Waiters;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, OnceLock, Ordering, lock};
use crate::{CommError, Payload};
use burn_dist_mesh::Rank;
use std::collections::VecDeque;
use std::sync::{PoisonError, Weak};
use std::time::{Duration, Instant};

/// What one member brings to a call.
#[derive(Debug)]
pub(super) struct Deposit {
    pub(super) info: Arc<CallInfo>,
    pub(super) input: Input,
}

pub(super) enum Input {
    Block(Option<Block>),
    Value(Payload),
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Input::Block(block) => f.debug_tuple("Block").field(block).finish(),
            Input::Value(_) => f.write_str("Value"),
        }
    }
}

/// What follows when all members have arrived.
pub(super) enum Outcome {
    Work(Work),
    Values(Arc<[Payload]>),
}

/// When all members had arrived, and from when to when the call has the wire, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) launched: Instant,
    pub(super) wire: Option<(Instant, Instant)>,
}

/// One call of a group: empty until all members have arrived, then their common outcome.
#[derive(Default)]
pub(super) struct Completion {
    outcome: OnceLock<(Outcome, Moment)>,
    /// Number of threads that sleep until the bell rings. What they wait for is stored before this lock is taken, so
    /// none sleeps through it.
    sleepers: Mutex<usize>,
    bell: Condvar,
    /// Ranks of other processes whose inputs are still to come.
    awaited: Mutex<Vec<Rank>>,
}

/// How long a waiting thread stays awake before it sleeps.
///
/// Waking a thread costs microseconds, as much as a small collective. Spinning helps only if every rank has a core;
/// giving up the core helps also if several ranks share one, because the one that is waited for runs at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) spins: u32,
    pub(super) yields: u32,
}

/// Why waiting ended without a result.
pub(super) enum Stop {
    Fault(CommError),
    Late,
}

impl Completion {
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get().map(|(outcome, _)| outcome)
    }

    /// When it was concluded.
    pub(super) fn moment(&self) -> Option<Moment> {
        self.outcome.get().map(|(_, moment)| *moment)
    }

    /// Publishes the outcome. Only the last member to arrive does.
    pub(super) fn conclude(&self, outcome: Outcome, moment: Moment) {
        let first = self.outcome.set((outcome, moment)).is_ok();
        assert!(first, "a call has one last member");
        self.ring();
    }

    /// Returns the ranks of other processes that have not made this call.
    pub(super) fn awaited(&self) -> Vec<Rank> {
        lock(&self.awaited).clone()
    }

    /// Lets sleepers look again.
    pub(super) fn ring(&self) {
        if *lock(&self.sleepers) > 0 {
            self.bell.notify_all();
        }
    }

    /// Waits until `ready` returns something, a fault is set, or `timeout` has passed.
    pub(super) fn wait_until<'a, T>(
        &'a self,
        ready: impl Fn(&'a Self) -> Option<T>,
        fault: &OnceLock<CommError>,
        patience: Patience,
        timeout: Duration,
    ) -> Result<T, Stop> {
        for _ in 0..patience.spins {
            if let Some(result) = ready(self) {
                return Ok(result);
            }
            std::hint::spin_loop();
        }
        let started = Instant::now();
        for _ in 0..patience.yields {
            if let Some(result) = ready(self) {
                return Ok(result);
            }
            if fault.get().is_some() {
                break;
            }
            std::thread::yield_now();
        }
        let mut sleepers = lock(&self.sleepers);
        loop {
            if let Some(result) = ready(self) {
                return Ok(result);
            }
            if let Some(fault) = fault.get() {
                return Err(Stop::Fault(fault.clone()));
            }
            let Some(left) = timeout
                .checked_sub(started.elapsed())
                .filter(|left| !left.is_zero())
            else {
                return Err(Stop::Late);
            };
            *sleepers += 1;
            (sleepers, _) = self
                .bell
                .wait_timeout(sleepers, left)
                .unwrap_or_else(PoisonError::into_inner);
            *sleepers -= 1;
        }
    }
}

impl Waiters for Completion {
    fn await_ranks(&self, ranks: Vec<Rank>) {
        *lock(&self.awaited) = ranks;
    }

    fn conclude(&self, work: Work) {
        let moment = Moment {
            launched: Instant::now(),
            wire: None,
        };
        self.conclude(Outcome::Work(work), moment);
    }

    fn wake(&self) {
        self.ring();
    }
}

/// The calls of one group and lane, in order.
pub(super) struct Channel {
    pub(super) group: Group,
    /// Members that live in this process: a call has arrived when theirs have.
    num_here: usize,
    /// What its transfers go over, if they take modelled time.
    pub(super) route: Option<Route>,
    /// For each member the number of its next call.
    next: Vec<AtomicU64>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// Sequence number of the first entry of `open`.
    first: u64,
    /// Calls for which members are missing; `None` where all have arrived out of order.
    open: VecDeque<Option<Open>>,
    /// Calls that all members here have made, and that wait for those in other processes; some may be over.
    elsewhere: VecDeque<(u64, Weak<Completion>)>,
}

struct Open {
    completion: Arc<Completion>,
    /// By member.
    deposits: Vec<Option<Deposit>>,
    arrived: usize,
}

/// What a deposit led to.
pub(super) enum Arrival {
    /// Others are missing.
    Early(Arc<Completion>),
    /// This was the last one: all deposits, in the order of the group. The caller concludes the call.
    Last(Arc<Completion>, Vec<Deposit>),
}

impl Channel {
    pub(super) fn new(group: Group, route: Option<Route>, num_here: usize) -> Self {
        let next = (0..group.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            group,
            num_here,
            route,
            next,
            calls: Mutex::default(),
        }
    }

    /// Whether members live in other processes.
    pub(super) fn has_members_elsewhere(&self) -> bool {
        self.num_here < self.group.len()
    }

    /// The number of the next call of `member`.
    pub(super) fn next_sequence(&self, member: usize) -> u64 {
        self.next[member].fetch_add(1, Ordering::Relaxed)
    }

    /// Returns what the members of call `sequence` wait for; the caller has not yet made a deposit.
    pub(super) fn completion(&self, sequence: u64) -> Arc<Completion> {
        Arc::clone(
            &lock(&self.calls)
                .entry(sequence, self.group.len())
                .completion,
        )
    }

    /// Makes the deposit of `member` to its call.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] and [`CommError::TooManyOpen`].
    pub(super) fn deposit(
        &self,
        member: usize,
        deposit: Deposit,
        open_calls_max: usize,
    ) -> Result<Arrival, CommError> {
        let sequence = deposit.info.sequence;
        let mut calls = lock(&self.calls);
        let ahead = sequence - calls.first;
        calls.forget_finished();
        if ahead as usize + calls.elsewhere.len() >= open_calls_max {
            return Err(CommError::TooManyOpen {
                call: deposit.info,
                limit: open_calls_max,
            });
        }
        let open = calls.entry(sequence, self.group.len());
        if let Some(first) = open.deposits.iter().flatten().next()
            && !first.info.matches(&deposit.info)
        {
            return Err(CommError::Mismatch {
                first: Arc::clone(&first.info),
                second: deposit.info,
            });
        }
        let before = open.deposits[member].replace(deposit);
        assert!(before.is_none(), "a member makes each of its calls once");
        open.arrived += 1;
        if open.arrived < self.num_here {
            return Ok(Arrival::Early(Arc::clone(&open.completion)));
        }
        let open = calls.open[ahead as usize]
            .take()
            .expect("the entry was just filled");
        while calls.open.front().is_some_and(Option::is_none) {
            calls.open.pop_front();
            calls.first += 1;
        }
        if self.num_here < self.group.len() {
            calls
                .elsewhere
                .push_back((sequence, Arc::downgrade(&open.completion)));
        }
        Ok(Arrival::Last(
            open.completion,
            open.deposits.into_iter().flatten().collect(),
        ))
    }

    /// The members that have not arrived at call `sequence`; none if it is not open any more.
    pub(super) fn missing(&self, sequence: u64) -> Vec<Rank> {
        let calls = lock(&self.calls);
        let index = sequence
            .checked_sub(calls.first)
            .map(|index| index as usize);
        let Some(open) = index
            .and_then(|index| calls.open.get(index))
            .and_then(Option::as_ref)
        else {
            return Vec::new();
        };
        self.group
            .ranks()
            .iter()
            .zip(&open.deposits)
            .filter(|(_, deposit)| deposit.is_none())
            .map(|(&rank, _)| rank)
            .collect()
    }

    /// Returns the ranks of other processes that call `sequence` waits for, if all members here have made it; `None` if
    /// it is over.
    pub(super) fn awaited(&self, sequence: u64) -> Option<Vec<Rank>> {
        let calls = lock(&self.calls);
        let mut elsewhere = calls.elsewhere.iter();
        let (_, completion) = elsewhere.find(|(number, _)| *number == sequence)?;
        let completion = completion.upgrade()?;
        completion.outcome().is_none().then(|| completion.awaited())
    }

    /// Returns a call that someone has made and that waits for a member for which `left` is true, and that member.
    pub(super) fn deserted(&self, left: impl Fn(Rank) -> bool) -> Option<(Rank, Arc<CallInfo>)> {
        let calls = lock(&self.calls);
        calls.open.iter().flatten().find_map(|open| {
            let call = open.deposits.iter().flatten().next()?;
            let absent = self
                .group
                .ranks()
                .iter()
                .zip(&open.deposits)
                .find(|(rank, deposit)| deposit.is_none() && left(**rank));
            absent.map(|(&rank, _)| (rank, Arc::clone(&call.info)))
        })
    }

    /// Wakes everyone who waits in this channel.
    pub(super) fn ring_all(&self) {
        let completions: Vec<_> = lock(&self.calls)
            .open
            .iter()
            .flatten()
            .map(|open| Arc::clone(&open.completion))
            .collect();
        for completion in completions {
            completion.ring();
        }
    }
}

impl Calls {
    /// Forgets the oldest calls that wait for other processes, as far as they are over.
    fn forget_finished(&mut self) {
        let is_over = |(_, completion): &(u64, Weak<Completion>)| {
            completion
                .upgrade()
                .is_none_or(|completion| completion.outcome().is_some())
        };
        while self.elsewhere.front().is_some_and(is_over) {
            self.elsewhere.pop_front();
        }
    }

    fn entry(&mut self, sequence: u64, num_members: usize) -> &mut Open {
        let index = (sequence - self.first) as usize;
        while self.open.len() <= index {
            let deposits = (0..num_members).map(|_| None).collect();
            self.open.push_back(Some(Open {
                completion: Arc::default(),
                deposits,
                arrived: 0,
            }));
        }
        self.open[index]
            .as_mut()
            .expect("a call is open until all its members have arrived")
    }
}
