//! The discrete-event simulation: what ranks do, in order, on lanes.
//!
//! A rank has a host, a lane that computes, and a lane for each set of axes that it communicates over. The host hands
//! out work and runs ahead of the lanes; a lane does one thing at a time, in the order in which it was handed out:
//!
//! | action | host | lanes |
//! | --- | --- | --- |
//! | [`Action::Compute`] | takes `host_ns` | starts once the host has handed it out and the lane is free |
//! | [`Action::Start`] | takes `host_ns` | starts once the compute lane is done with what came before and the lane is free, for every member |
//! | [`Action::Wait`] | goes on | the compute lane waits for a call |
//! | [`Action::Sync`] | waits for the compute lane, then takes `ns` | |
//!
//! A call may take a part of the device: what is computed beside it has the rest. Calls do not slow each other.
//!
//! Ranks act in order of time, so that a call that begins slows at most what each of its members computes last.
//!
//! Nothing here knows operations or plans: whoever sends and receives starts calls of two members.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::ClockError;

#[cfg(test)]
mod tests;

/// Number of a lane; 0 computes.
pub type Lane = usize;

/// The lane that computes.
pub const COMPUTE: Lane = 0;

/// All of a device, in the unit of `Call::takes`.
pub(super) const DEVICE: u32 = 1_000_000;

/// Something a rank takes part in with others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The lane it goes over.
    pub lane: Lane,
    /// The simulated ranks that take part, as indices in rising order, this rank included.
    pub members: Vec<usize>,
    /// How long it takes once all are there; of several members, the longest counts.
    pub ns: u64,
    /// The part of the device that it takes from what is computed meanwhile, in millionths. Calls of several lanes take
    /// theirs together, but no more than all of it.
    pub takes: u32,
}

/// The next action of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Computes.
    Compute {
        /// Time of the host.
        host_ns: u64,
        /// Time of the compute lane.
        ns: u64,
    },
    /// Starts a call, without waiting for it.
    Start {
        /// Time of the host.
        host_ns: u64,
        /// The call; a rank's calls are numbered in order.
        call: Call,
    },
    /// Lets the compute lane wait for the call of that number.
    Wait(usize),
    /// Lets the host wait for the compute lane, and take some time more.
    Sync {
        /// Time of the host.
        ns: u64,
    },
}

/// When something ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The action.
    pub action: usize,
    /// Where.
    pub lane: Lane,
    /// From when, in nanoseconds.
    pub start: u64,
    /// Until when.
    pub end: u64,
}

/// The actions of a rank, with their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Everything that took time on a lane; of each lane in order.
    pub spans: Vec<Span>,
    /// When nothing but the host kept the rank: the compute lane was free for what had not been handed out yet, or all
    /// lanes were done and the host was not. From, until; in order.
    pub starved: Vec<(u64, u64)>,
    /// For each action, when the compute lane had done it, or had come to it.
    pub done: Vec<u64>,
    /// When host and lanes were done.
    pub end: u64,
}

/// A call that a rank has started and that has not begun.
struct Waiting {
    /// The rank's number of it.
    number: usize,
    action: usize,
    ready: u64,
    call: Call,
}

/// A call that has begun and may not have ended, as computing sees it.
#[derive(Clone, Copy)]
struct Beside {
    start: u64,
    end: u64,
    takes: u32,
}

/// The last kernel of a rank.
#[derive(Clone, Copy, Default)]
struct Kernel {
    /// Index of its span.
    span: usize,
    action: usize,
    /// Until when it is known how far it has come.
    at: u64,
    /// The work left of it then, in nanoseconds of the whole device times [`DEVICE`].
    left: u128,
}

#[derive(Default)]
struct RankState {
    next: usize,
    host: u64,
    compute: u64,
    /// By lane.
    free: Vec<u64>,
    waiting: Vec<VecDeque<Waiting>>,
    /// By lane, in order of time, those that end after `kernel.at`.
    beside: Vec<VecDeque<Beside>>,
    kernel: Kernel,
    /// When the calls ended, as far as that is known.
    ended: Vec<Option<u64>>,
    /// True if it can do nothing before a call of it begins.
    is_blocked: bool,
    timeline: Timeline,
}

impl RankState {
    fn lane(&mut self, lane: Lane) {
        if self.free.len() <= lane {
            self.free.resize(lane + 1, 0);
            self.waiting.resize_with(lane + 1, VecDeque::new);
            self.beside.resize_with(lane + 1, VecDeque::new);
        }
    }

    /// Does the next action, if that can be done without others. Returns whether it was done, and what it started.
    fn act(&mut self, action: &Action) -> (bool, Option<(Lane, Vec<usize>)>) {
        let mut started = None;
        match action {
            Action::Compute { host_ns, ns } => {
                self.host += host_ns;
                let start = self.host.max(self.compute);
                if start > self.compute {
                    self.timeline.starved.push((self.compute, start));
                }
                self.kernel = Kernel {
                    span: self.timeline.spans.len(),
                    action: self.next,
                    at: start,
                    left: u128::from(*ns) * u128::from(DEVICE),
                };
                self.forget();
                (self.compute, _) = self.computed(u64::MAX);
                self.timeline.spans.push(Span {
                    action: self.next,
                    lane: COMPUTE,
                    start,
                    end: self.compute,
                });
            }
            Action::Start { host_ns, call } => {
                self.host += host_ns;
                self.lane(call.lane);
                self.waiting[call.lane].push_back(Waiting {
                    number: self.ended.len(),
                    action: self.next,
                    ready: self.host.max(self.compute),
                    call: call.clone(),
                });
                self.ended.push(None);
                started = Some((call.lane, call.members.clone()));
            }
            Action::Wait(call) => match self.ended.get(*call) {
                Some(Some(end)) => self.compute = self.compute.max(*end),
                _ => return (false, None),
            },
            Action::Sync { ns } => {
                self.host = self.host.max(self.compute) + ns;
            }
        }
        self.timeline.done.push(self.compute);
        self.next += 1;
        (true, started)
    }

    /// Returns how far the kernel comes until its end, at most until `until`: when that is, and what is left of it.
    fn computed(&self, until: u64) -> (u64, u128) {
        let Kernel {
            mut at, mut left, ..
        } = self.kernel;
        // Most kernels run beside nothing: no list is made for them.
        let lanes = self.beside.iter().filter(|calls| !calls.is_empty());
        let mut lanes: Vec<_> = lanes.map(|calls| calls.iter().peekable()).collect();
        while left > 0 && at < until {
            let (mut taken, mut change) = (0, until);
            for calls in &mut lanes {
                while calls.next_if(|call| call.end <= at).is_some() {}
                let Some(call) = calls.peek() else { continue };
                let is_now = call.start <= at;
                taken += if is_now { call.takes } else { 0 };
                change = change.min(if is_now { call.end } else { call.start });
            }
            let rate = u128::from(DEVICE.saturating_sub(taken));
            let alone = left
                .checked_div(rate)
                .map(|whole| whole + u128::from(left % rate > 0));
            let span = u128::from(change - at);
            match alone {
                Some(alone) if alone <= span => (at, left) = (at + alone as u64, 0),
                _ => (at, left) = (change, left - rate * span),
            }
        }
        (at, left)
    }

    /// Forgets calls that have ended before what is left of the kernel.
    fn forget(&mut self) {
        let at = self.kernel.at;
        for calls in &mut self.beside {
            while calls.front().is_some_and(|call| call.end <= at) {
                calls.pop_front();
            }
        }
    }

    /// Notes a call of the lane, which begins after all that were noted before it.
    fn slow(&mut self, lane: Lane, call: Beside) {
        if call.takes == 0 {
            return;
        }
        if call.start < self.compute {
            (self.kernel.at, self.kernel.left) = self.computed(call.start.max(self.kernel.at));
            self.forget();
        }
        self.beside[lane].push_back(call);
        if call.start < self.compute && self.kernel.left > 0 {
            (self.compute, _) = self.computed(u64::MAX);
            self.timeline.spans[self.kernel.span].end = self.compute;
            self.timeline.done[self.kernel.action] = self.compute;
        }
    }
}

/// Runs the actions of all ranks.
///
/// # Errors
/// [`ClockError::Stuck`] if ranks wait for calls that not all members make.
pub fn run(ranks: &[Vec<Action>]) -> Result<Vec<Timeline>, ClockError> {
    let mut states: Vec<RankState> = Vec::new();
    states.resize_with(ranks.len(), RankState::default);
    // Who can act, and from when on it may.
    let mut turns: BinaryHeap<Reverse<(u64, usize)>> =
        (0..ranks.len()).map(|rank| Reverse((0, rank))).collect();
    while let Some(Reverse((_, rank))) = turns.pop() {
        while let Some(action) = ranks[rank].get(states[rank].next) {
            let others = turns.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            if states[rank].compute > others {
                turns.push(Reverse((states[rank].compute, rank)));
                break;
            }
            let (was_done, started) = states[rank].act(action);
            if !was_done {
                states[rank].is_blocked = true;
                break;
            }
            if let Some((lane, members)) = started {
                begin(&mut states, &mut turns, lane, members);
            }
        }
    }
    for (rank, (state, actions)) in states.iter().zip(ranks).enumerate() {
        let mut queues = state.waiting.iter();
        if state.next < actions.len() || queues.any(|queue| !queue.is_empty()) {
            return Err(ClockError::Stuck {
                rank,
                action: state.next,
                actions: actions.len(),
            });
        }
    }
    let end = |mut state: RankState| {
        let lanes = state.free.iter().copied().max().unwrap_or(0);
        let device = state.compute.max(lanes);
        if state.host > device {
            state.timeline.starved.push((device, state.host));
        }
        state.timeline.end = device.max(state.host);
        state.timeline
    };
    Ok(states.into_iter().map(end).collect())
}

/// Begins the first calls of a lane for which all members are there, and those that waited for them.
fn begin(
    states: &mut [RankState],
    turns: &mut BinaryHeap<Reverse<(u64, usize)>>,
    lane: Lane,
    members: Vec<usize>,
) {
    let mut look = vec![members];
    while let Some(members) = look.pop() {
        let head = |state: &RankState| {
            let first = state.waiting.get(lane)?.front()?;
            let start = first.ready.max(state.free[lane]);
            (first.call.members == members).then_some((start, first.call.ns))
        };
        let heads = members.iter().map(|&member| head(&states[member]));
        let Some(heads) = heads.collect::<Option<Vec<_>>>() else {
            continue;
        };
        let start = heads.iter().map(|(start, _)| *start).max().unwrap_or(0);
        let end = start + heads.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
        for &member in &members {
            let state = &mut states[member];
            if let Some(call) = state.waiting[lane].pop_front() {
                state.free[lane] = end;
                state.ended[call.number] = Some(end);
                if std::mem::take(&mut state.is_blocked) {
                    turns.push(Reverse((state.compute, member)));
                }
                let takes = call.call.takes;
                state.slow(lane, Beside { start, end, takes });
                state.timeline.spans.push(Span {
                    action: call.action,
                    lane,
                    start,
                    end,
                });
            }
            if let Some(next) = state.waiting[lane].front() {
                look.push(next.call.members.clone());
            }
        }
    }
}
