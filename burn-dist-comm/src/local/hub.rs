//! The hub: shared by the ranks of one process.

use super::LocalOptions;
use super::channel::{Arrival, Channel, Deposit, Input};
use super::record_file::RecordFile;
use super::wire::Wire;
use crate::buffer::{Memory, Pool};
use crate::completion::{Completion, Moment, Outcome, Patience};
use crate::execution::{self, Operation};
use crate::info::{CallInfo, What};
use crate::processes::{Answer, End, Opened, Placement, Ranks, Remote, Verdict, WindowPrint};
use crate::record::{Counters, FlightRecorder};
use crate::sync::lock;
use crate::{CommError, Group, Lane, Process, Stats};
use burn_dist_mesh::Rank;
use burn_dist_mesh::collective::Collective;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Instant;

/// The state that the ranks of one process share: channels, output buffers, the fault, and the records.
pub struct LocalHub {
    pub(super) options: LocalOptions,
    pub(super) patience: Patience,
    pub(super) memory: Memory,
    pub(super) channels: RwLock<FxHashMap<ChannelKey, Arc<Channel>>>,
    pub(super) fault: OnceLock<CommError>,
    pub(super) ranks: Vec<RankState>,
    /// True if any rank has left; spares the others from looking while all are there.
    pub(super) some_left: AtomicBool,
    pub(super) wire: Option<Wire>,
    /// The other processes, if ranks live there.
    pub(super) remote: Option<Remote>,
    /// Processes that have ended without a word, and how that was seen.
    pub(super) lost: RwLock<Vec<(u32, End)>>,
    /// The flight record, from the fault on.
    pub(super) record: OnceLock<RecordFile>,
    /// The hubs that a fault here ends too.
    followers: Mutex<Vec<Weak<LocalHub>>>,
}

impl Drop for LocalHub {
    fn drop(&mut self) {
        // A program may end with its mesh; what it knows of the fault is for people.
        if let Some(record) = self.record.get() {
            record.path();
        }
    }
}

/// An agreement of all processes to run a window, perhaps later.
#[derive(Clone)]
pub struct Agreed {
    hub: Arc<LocalHub>,
    answer: Arc<Answer<Verdict>>,
    number: u64,
}

impl Agreed {
    /// Waits for all processes.
    ///
    /// # Errors
    /// How they differ, who is late, or what else has stopped the ranks.
    pub fn wait(&self) -> Result<(), CommError> {
        let hub = &self.hub;
        let start = Instant::now();
        let settled = |verdict: &Verdict| match verdict {
            Verdict::Agreed => Some(Ok(())),
            Verdict::Missed(error) => Some(Err(error.clone())),
            Verdict::Waiting(_) => hub.fault().map(Err),
        };
        if let Some(remote) = &hub.remote {
            remote.help(hub.options.timeout, || self.answer.look(settled).is_some());
        }
        let left = hub.options.timeout.saturating_sub(start.elapsed());
        let result = self.answer.wait(left, settled).unwrap_or_else(|| {
            let ran = self.answer.look(|verdict| match verdict {
                Verdict::Waiting(ran) => ran.clone(),
                Verdict::Agreed | Verdict::Missed(_) => Vec::new(),
            });
            let missing = hub.placement().map(|placement| {
                let others = placement.others.iter();
                let missing = others.filter(|process| !ran.contains(process));
                missing.map(|process| placement.name(*process)).collect()
            });
            Err(CommError::WindowTimeout {
                window: self.number,
                missing: missing.unwrap_or_default(),
                elapsed: start.elapsed(),
            })
        });
        result.map_err(|error| hub.abort(error))
    }
}

/// Transfers between a pair are a sequence of their own, apart from the collectives of the same group.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct ChannelKey {
    pub(super) group: Group,
    pub(super) lane: Lane,
    pub(super) is_transfer: bool,
}

pub(super) struct RankState {
    pub(super) left: AtomicBool,
    /// Number of calls, for chaos.
    pub(super) num_calls: AtomicU64,
    pub(super) counters: Counters,
    pub(super) recorder: FlightRecorder,
    /// One more than the number of the last window that the rank began; 0 before.
    pub(super) windows: AtomicU64,
    /// Deposits that chaos holds back; empty without chaos.
    pub(super) held_back: Mutex<Vec<(Arc<Channel>, usize, Deposit)>>,
}

impl Ranks for LocalHub {
    fn lost(&self, process: u32, end: &End) {
        let mut lost = self.lost.write().unwrap_or_else(PoisonError::into_inner);
        lost.push((process, end.clone()));
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn abort(&self, error: CommError) {
        Self::abort(self, error);
    }

    fn stopped(&self, error: CommError) {
        let mut is_first = false;
        self.fault.get_or_init(|| {
            is_first = true;
            self.begin_record(&error);
            error
        });
        self.wake_all();
        if is_first {
            self.tell_followers();
        }
    }
}

impl LocalHub {
    /// Returns what `num_ranks` ranks share, of which some live in other processes if there is a `remote`.
    pub(super) fn new(
        num_ranks: usize,
        options: LocalOptions,
        remote: Option<Remote>,
    ) -> Arc<Self> {
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_alone = remote
            .as_ref()
            .map_or(num_ranks <= num_cores, |remote| remote.is_alone);
        let spins = if is_alone { 100 } else { 0 };
        let ranks = (0..num_ranks).map(|_| RankState {
            left: AtomicBool::new(false),
            num_calls: AtomicU64::new(0),
            counters: Counters::default(),
            recorder: FlightRecorder::new(options.recorded_calls_max),
            windows: AtomicU64::new(0),
            held_back: Mutex::default(),
        });
        let pool = Pool::sharing(options.pool_bytes_max, options.share);
        let hub = Arc::new(Self {
            patience: Patience { spins, yields: 50 },
            memory: Memory::new(pool),
            channels: RwLock::default(),
            fault: OnceLock::new(),
            ranks: ranks.collect(),
            some_left: AtomicBool::new(false),
            wire: options
                .network
                .clone()
                .map(|network| Wire::new(network, num_ranks)),
            options,
            remote,
            lost: RwLock::default(),
            record: OnceLock::new(),
            followers: Mutex::default(),
        });
        if let Some(remote) = &hub.remote {
            let ranks: Arc<dyn Ranks> = Arc::<Self>::clone(&hub);
            remote.join(Arc::downgrade(&ranks), hub.options.kind_name);
        }
        hub
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Stops all ranks: every waiting and later call returns `error`, or an earlier one if there is one, which is also
    /// returned here.
    pub fn abort(&self, error: CommError) -> CommError {
        let mut is_first = false;
        let first = self.fault.get_or_init(|| {
            is_first = true;
            // Before anyone here can see it, and leave; and before anything that may take long.
            if let Some(remote) = &self.remote {
                remote.stop(&error);
            }
            self.begin_record(&error);
            error
        });
        if let (true, Some(remote)) = (is_first, &self.remote) {
            remote.wake();
        }
        self.wake_all();
        if is_first {
            self.tell_followers();
        }
        first.clone()
    }

    /// Has what stops these ranks stop those of `follower` too, which lives in this process.
    pub(crate) fn lead(&self, follower: &Arc<Self>) {
        lock(&self.followers).push(Arc::downgrade(follower));
        // Either this sees the fault, or whoever sets it sees the follower.
        if let Some(fault) = self.fault() {
            follower.abort(fault);
        }
    }

    fn tell_followers(&self) {
        let Some(fault) = self.fault() else { return };
        let followers = std::mem::take(&mut *lock(&self.followers));
        for follower in followers.iter().filter_map(Weak::upgrade) {
            follower.abort(fault.clone());
        }
    }

    fn rank_left(&self, rank: Rank, call: Arc<CallInfo>) -> CommError {
        let placement = self.placement();
        CommError::RankLeft {
            rank,
            call,
            process: placement.and_then(|placement| placement.names_of(&[rank]).pop()),
        }
    }

    /// Wakes those who wait for ranks of this process.
    fn wake_all(&self) {
        for channel in self.all_channels() {
            channel.wake_all();
        }
    }

    /// Tells other processes of a window; `None` if there are none.
    pub fn window(self: &Arc<Self>, print: WindowPrint) -> Option<Agreed> {
        let remote = self.remote.as_ref()?;
        // An error is a fault, which whoever waits for the answer gets.
        let _ = self.wait_for_room(remote, || format!("window {}", print.number));
        Some(Agreed {
            number: print.number,
            answer: remote.window(print),
            hub: Arc::clone(self),
        })
    }

    /// Waits while too much of what was sent has not left this process.
    fn wait_for_room(&self, remote: &Remote, what: impl Fn() -> String) -> Result<(), CommError> {
        let timeout = self.options.timeout;
        let engine = &remote.engine;
        let room = engine.wait_for_room(timeout, || self.fault.get().is_some());
        room.map_err(|bytes| {
            self.abort(CommError::NotSent {
                call: what(),
                bytes,
                elapsed: timeout,
            })
        })
    }

    /// Where ranks live, if there are other processes.
    pub(super) fn placement(&self) -> Option<&Placement> {
        let remote = self.remote.as_ref()?;
        Some(&*remote.placement)
    }

    /// Returns the other processes that these ranks live in, with those of them.
    pub(crate) fn processes_of(&self, ranks: &[Rank]) -> Vec<Process> {
        let placement = self.placement();
        placement.map_or_else(Vec::new, |placement| placement.names_of(ranks))
    }

    pub(super) fn is_local(&self, rank: Rank) -> bool {
        self.placement()
            .is_none_or(|placement| placement.is_local(rank))
    }

    /// Returns the members that have not made a call.
    pub(super) fn missing(
        &self,
        channel: &Channel,
        completion: &Completion,
        sequence: u64,
    ) -> Vec<Rank> {
        let mut missing = channel.missing(sequence);
        missing.retain(|rank| self.is_local(*rank));
        missing.extend(completion.awaited());
        missing
    }

    /// The fault that has stopped the ranks, if anything has.
    pub fn fault(&self) -> Option<CommError> {
        self.fault.get().cloned()
    }

    /// The counters of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn stats(&self, rank: Rank) -> Stats {
        self.state(rank).counters.read()
    }

    /// The last calls of `rank`, oldest first, finished or not.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn recent_calls(&self, rank: Rank) -> Vec<Arc<CallInfo>> {
        self.state(rank).recorder.read()
    }

    /// Returns what a recorded call waits for in vain: a process of one of its members that has ended without a word.
    pub fn lost(&self, call: &Arc<CallInfo>) -> Option<CommError> {
        let lost = self.lost.read().unwrap_or_else(PoisonError::into_inner);
        let placement = self.placement().filter(|_| !lost.is_empty())?;
        let processes = call.group.ranks().iter();
        let mut processes = processes.map(|rank| placement.process_of[rank.0 as usize]);
        let (process, end) = processes.find_map(|process| {
            let (_, end) = lost.iter().find(|(lost, _)| *lost == process)?;
            Some((process, end))
        })?;
        Some(CommError::ProcessLost {
            process: placement.name(process),
            call: Some(Arc::clone(call)),
            window: None,
            connection: end.of_connection(),
        })
    }

    /// Returns those other members of a recorded call's group that are in this process and have not recorded theirs.
    pub fn behind(&self, call: &CallInfo) -> Vec<Rank> {
        let is_here = |rank: &Rank| *rank != call.rank && self.is_local(*rank);
        let has_recorded = |rank: &Rank| {
            self.recent_calls(*rank).iter().any(|other| {
                other.sequence >= call.sequence
                    && other.lane == call.lane
                    && other.group == call.group
            })
        };
        let ranks = call.group.ranks().iter().copied();
        ranks
            .filter(is_here)
            .filter(|rank| !has_recorded(rank))
            .collect()
    }

    pub(super) fn state(&self, rank: Rank) -> &RankState {
        &self.ranks[rank.0 as usize]
    }

    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.state(rank).left.load(Ordering::SeqCst)
    }

    fn all_channels(&self) -> Vec<Arc<Channel>> {
        self.channels
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    pub(super) fn channel(&self, key: &ChannelKey) -> Result<Arc<Channel>, CommError> {
        if let Some(channel) = self
            .channels
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
        {
            return Ok(Arc::clone(channel));
        }
        if let Some(&rank) = key
            .group
            .ranks()
            .iter()
            .find(|rank| rank.0 as usize >= self.ranks.len())
        {
            return Err(CommError::NoSuchRank {
                rank,
                num_ranks: self.ranks.len(),
            });
        }
        let mut channels = self
            .channels
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(channels.entry(key.clone()).or_insert_with(
            || {
                let route = self.wire.as_ref().and_then(|wire| wire.route(&key.group));
                let ranks = key.group.ranks().iter();
                let num_here = ranks.filter(|rank| self.is_local(**rank)).count();
                Arc::new(Channel::new(key.group.clone(), route, num_here))
            },
        )))
    }

    /// Brings a deposit to its channel; the last one of a call concludes it.
    pub(super) fn deposit(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        member: usize,
        deposit: Deposit,
    ) -> Result<Arc<Completion>, CommError> {
        match channel.deposit(member, deposit, self.options.open_calls_max)? {
            Arrival::Early(completion) => {
                // A rank that leaves marks itself first and then looks for open calls, so one of the two sides notices.
                let deserted = self
                    .some_left
                    .load(Ordering::SeqCst)
                    .then(|| channel.deserted(|rank| self.has_left(rank)));
                match deserted.flatten() {
                    Some((rank, call)) => Err(self.rank_left(rank, call)),
                    None => Ok(completion),
                }
            }
            Arrival::Last(completion, deposits) if deposits.len() < channel.group.len() => {
                self.call(channel, &completion, deposits)?;
                Ok(completion)
            }
            Arrival::Last(completion, deposits) => {
                let moment = self.moment(channel, &deposits);
                completion.conclude(self.outcome(&channel.group, deposits), moment);
                Ok(completion)
            }
        }
    }

    /// Hands a call that all ranks here have made to the engine, once there is room for it.
    fn call(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        completion: &Arc<Completion>,
        deposits: Vec<Deposit>,
    ) -> Result<(), CommError> {
        let (Some(remote), Some(first)) = (&self.remote, deposits.first()) else {
            return Ok(());
        };
        let info = Arc::clone(&first.info);
        let mut inputs = vec![None; channel.group.len()];
        for deposit in deposits {
            let member = channel.group.member(deposit.info.rank);
            if let (Some(member), Input::Block(block)) = (member, deposit.input) {
                inputs[member] = block;
            }
        }
        let placement = &remote.placement;
        let members = channel.group.ranks().iter().copied();
        completion.await_ranks(members.filter(|rank| !placement.is_local(*rank)).collect());
        self.wait_for_room(remote, || info.to_string())?;
        remote.call(Opened {
            ranks: Arc::<Self>::clone(self),
            completion: Arc::clone(completion),
            inputs,
            info,
        });
        Ok(())
    }

    /// Notes that all members have launched a call, and puts it on the wire if there is one.
    fn moment(&self, channel: &Channel, deposits: &[Deposit]) -> Moment {
        let launched = Instant::now();
        let group = &channel.group;
        let route_of = |wire: &Wire| match &deposits[0].info.what {
            What::Collective(_, Collective::Shift { by, .. }, _) => {
                wire.route_of_shift(group, *by).map(Cow::Owned)
            }
            _ => channel.route.as_ref().map(Cow::Borrowed),
        };
        let wire = self.wire.as_ref();
        let Some((wire, route)) = wire.and_then(|wire| Some((wire, route_of(wire)?))) else {
            return Moment {
                launched,
                wire: None,
            };
        };
        // The others wait for the busiest member: in a ring, everyone moves at its pace.
        let received = deposits.iter().map(|deposit| deposit.info.received_bytes());
        let bytes = received.max().unwrap_or(0) as u64;
        let rounds = deposits[0].info.kind().rounds(group.len());
        Moment {
            launched,
            wire: Some(wire.book(&route, group, (rounds, bytes), launched)),
        }
    }

    fn outcome(&self, group: &Group, deposits: Vec<Deposit>) -> Outcome {
        let operation = Operation::of(&deposits[0].info.what);
        let (mut blocks, mut values) = (Vec::new(), Vec::new());
        for deposit in deposits {
            match deposit.input {
                Input::Block(block) => blocks.push(block),
                Input::Value(value) => values.push(value),
            }
        }
        match operation {
            Some(operation) => {
                Outcome::Work(execution::work(operation, group, blocks, &self.memory))
            }
            None => Outcome::Values(values.into()),
        }
    }

    /// Makes the deposits of `rank` that chaos has held back, in an order of its own.
    pub(super) fn release_held_back(self: &Arc<Self>, rank: Rank) -> Result<(), CommError> {
        let Some(chaos) = &self.options.chaos else {
            return Ok(());
        };
        let state = self.state(rank);
        loop {
            // Other lanes may hold back and release meanwhile; every deposit is taken by exactly one of them.
            let (channel, member, deposit) = {
                let mut held_back = lock(&state.held_back);
                if held_back.is_empty() {
                    return Ok(());
                }
                let drawn = chaos.draw(
                    rank,
                    state.num_calls.load(Ordering::Relaxed),
                    held_back.len() as u64,
                );
                let index = (drawn % held_back.len() as u64) as usize;
                held_back.swap_remove(index)
            };
            self.deposit(&channel, member, deposit)
                .map_err(|error| self.abort(error))?;
        }
    }

    /// Notes that `rank` makes no more calls, and stops those who wait for one.
    pub(super) fn leave(self: &Arc<Self>, rank: Rank) {
        if self.release_held_back(rank).is_err() {
            return;
        }
        self.state(rank).left.store(true, Ordering::SeqCst);
        self.some_left.store(true, Ordering::SeqCst);
        if let Some(remote) = &self.remote {
            remote.leave(rank);
        }
        let deserted = self
            .all_channels()
            .iter()
            .find_map(|channel| channel.deserted(|member| member == rank));
        if let Some((rank, call)) = deserted {
            self.abort(self.rank_left(rank, call));
        }
    }
}
