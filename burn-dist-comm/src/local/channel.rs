//! The calls of one group: what their members hand in, and whether it matches.

use super::wire::Route;
use crate::block::Block;
use crate::completion::Completion;
use crate::group::Group;
use crate::info::CallInfo;
use crate::sync::lock;
use crate::{CommError, Payload};
use burn_dist_mesh::Rank;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The deposit of one member of a call.
pub(super) struct Deposit {
    pub(super) info: Arc<CallInfo>,
    pub(super) input: Input,
}

pub(super) enum Input {
    Block(Option<Block>),
    Value(Payload),
}

/// The calls of one group and lane, in order.
pub(super) struct Channel {
    pub(super) group: Group,
    /// Members that live in this process: a call has arrived when theirs have.
    num_here: usize,
    /// The links of its transfers, if they take modelled time.
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

/// The consequence of a deposit.
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

    /// Returns whether members live in other processes.
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
    pub(super) fn wake_all(&self) {
        let completions: Vec<_> = lock(&self.calls)
            .open
            .iter()
            .flatten()
            .map(|open| Arc::clone(&open.completion))
            .collect();
        for completion in completions {
            completion.wake();
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
