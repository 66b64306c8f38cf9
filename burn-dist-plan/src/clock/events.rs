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
//! Nothing here knows operations or plans: whoever sends and receives starts calls of two members.

use std::collections::VecDeque;

use super::ClockError;

/// Number of a lane; 0 computes.
pub type Lane = usize;

/// The lane that computes.
pub const COMPUTE: Lane = 0;

/// Something a rank takes part in with others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The lane it goes over.
    pub lane: Lane,
    /// The simulated ranks that take part, as indices in rising order, this rank included.
    pub members: Vec<usize>,
    /// How long it takes once all are there; of several members, the longest counts.
    pub ns: u64,
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

#[derive(Default)]
struct RankState {
    next: usize,
    host: u64,
    compute: u64,
    /// By lane.
    free: Vec<u64>,
    waiting: Vec<VecDeque<Waiting>>,
    /// When the calls ended, as far as that is known.
    ended: Vec<Option<u64>>,
    timeline: Timeline,
}

impl RankState {
    fn lane(&mut self, lane: Lane) {
        if self.free.len() <= lane {
            self.free.resize(lane + 1, 0);
            self.waiting.resize_with(lane + 1, VecDeque::new);
        }
    }

    /// Does what can be done without others; returns whether anything could.
    fn advance(&mut self, actions: &[Action], started: &mut Vec<(Lane, Vec<usize>)>) -> bool {
        let first = self.next;
        while let Some(action) = actions.get(self.next) {
            match action {
                Action::Compute { host_ns, ns } => {
                    self.host += host_ns;
                    let start = self.host.max(self.compute);
                    if start > self.compute {
                        self.timeline.starved.push((self.compute, start));
                    }
                    self.compute = start + ns;
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
                    started.push((call.lane, call.members.clone()));
                }
                Action::Wait(call) => match self.ended.get(*call) {
                    Some(Some(end)) => self.compute = self.compute.max(*end),
                    _ => break,
                },
                Action::Sync { ns } => {
                    self.host = self.host.max(self.compute) + ns;
                }
            }
            self.timeline.done.push(self.compute);
            self.next += 1;
        }
        self.next > first
    }
}

/// Runs the actions of all ranks.
///
/// # Errors
/// [`ClockError::Stuck`] if ranks wait for calls that not all members make.
pub fn run(ranks: &[Vec<Action>]) -> Result<Vec<Timeline>, ClockError> {
    let mut states: Vec<RankState> = Vec::new();
    states.resize_with(ranks.len(), RankState::default);
    loop {
        let mut moved = false;
        for (rank, actions) in ranks.iter().enumerate() {
            let mut started = Vec::new();
            moved |= states[rank].advance(actions, &mut started);
            for (lane, members) in started {
                begin(&mut states, lane, members);
            }
        }
        if !moved {
            break;
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
fn begin(states: &mut [RankState], lane: Lane, members: Vec<usize>) {
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
