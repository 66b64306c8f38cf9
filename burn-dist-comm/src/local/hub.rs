//! What the ranks of one process share.

use super::LocalOptions;
use super::completion::{Arrival, Channel, Completion, Deposit, Input, Moment, Outcome, Patience};
use super::endpoint::LocalComm;
use super::wire::Wire;
use crate::buffer::{Pool, Work};
use crate::collective::Collective;
use crate::geometry::{Geometry, received_bytes};
use crate::info::{CallInfo, What};
use crate::processes::{Agreement, Opened, Remote, WindowPrint};
use crate::record::{Counters, FlightRecorder};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, RwLock, lock};
use crate::{CommError, Group, Lane, SharedBuffer, Stats};
use burn_dist_mesh::Rank;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Instant;

/// Calls that write no more than this are done by the last member to arrive: waking the others would take longer.
pub(crate) const SMALL_BYTES_MAX: usize = 64 << 10;

/// What the ranks of one process share: channels, output buffers, the fault, and the records.
pub struct LocalHub {
    pub(super) options: LocalOptions,
    pub(super) patience: Patience,
    pub(super) pool: Arc<Pool>,
    pub(super) empty: SharedBuffer,
    pub(super) channels: RwLock<FxHashMap<ChannelKey, Arc<Channel>>>,
    pub(super) fault: OnceLock<CommError>,
    pub(super) ranks: Vec<RankState>,
    /// Whether any rank has left; spares the others from looking while all are there.
    pub(super) some_left: AtomicBool,
    pub(super) wire: Option<Wire>,
    /// The other processes, if ranks live there.
    pub(super) remote: Option<Remote>,
    /// Where the flight record lies, once it is written.
    pub(super) record: OnceLock<PathBuf>,
}

/// That all processes run a window, perhaps later.
#[derive(Clone)]
pub struct Agreed {
    hub: Arc<LocalHub>,
    agreement: Arc<Agreement>,
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
        if let Some(remote) = &hub.remote {
            remote.help(hub.options.timeout, || {
                self.agreement.is_settled() || hub.fault.get().is_some()
            });
        }
        let left = hub.options.timeout.saturating_sub(start.elapsed());
        let here = match self.agreement.wait(left, || hub.fault()) {
            Ok(None) => return Ok(()),
            Ok(Some(here)) => here,
            Err(error) => return Err(hub.abort(error)),
        };
        let missing = hub.remote().map(|remote| {
            let missing = remote.others().to_vec().into_iter();
            let missing = missing.filter(|process| !here.contains(process));
            missing.map(|process| remote.name(process)).collect()
        });
        Err(hub.abort(CommError::WindowTimeout {
            window: self.number,
            missing: missing.unwrap_or_default(),
            elapsed: start.elapsed(),
        }))
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

impl LocalHub {
    /// Returns the endpoints of `num_ranks` ranks, in order.
    ///
    /// # Errors
    /// [`CommError::EmptyGroup`] if `num_ranks` is 0.
    pub fn connect(num_ranks: usize, options: LocalOptions) -> Result<Vec<LocalComm>, CommError> {
        Self::connect_part(num_ranks, options, None)
    }

    /// Returns the endpoints of those of `num_ranks` ranks that live here, in order; without `remote`, all of them.
    pub(crate) fn connect_part(
        num_ranks: usize,
        options: LocalOptions,
        remote: Option<Remote>,
    ) -> Result<Vec<LocalComm>, CommError> {
        if num_ranks == 0 {
            return Err(CommError::EmptyGroup);
        }
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_here = |rank: &Rank| remote.as_ref().is_none_or(|remote| remote.is_local(*rank));
        let here: Vec<Rank> = (0..num_ranks as u32).map(Rank).filter(is_here).collect();
        let is_alone = remote
            .as_ref()
            .map_or(num_ranks <= num_cores, Remote::is_alone);
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
        // Aligned for every element type: backends look at an empty result as a slice of its elements.
        let empty = pool.copy_of(&[]);
        let hub = Arc::new(Self {
            patience: Patience { spins, yields: 50 },
            pool,
            empty,
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
            record: OnceLock::new(),
        });
        if let Some(remote) = &hub.remote {
            remote.join(&hub, hub.options.kind_name);
        }
        Ok(here
            .into_iter()
            .map(|rank| LocalComm::new(Arc::clone(&hub), rank))
            .collect())
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
            self.write_record(&error);
            // Before anyone here can see it, and leave.
            if let Some(remote) = &self.remote {
                remote.stop(&error);
            }
            error
        });
        if let (true, Some(remote)) = (is_first, &self.remote) {
            remote.wake();
        }
        self.ring_all();
        first.clone()
    }

    fn rank_left(&self, rank: Rank, call: Arc<CallInfo>) -> CommError {
        let process = self
            .remote
            .as_ref()
            .and_then(|remote| remote.elsewhere(rank));
        CommError::RankLeft {
            rank,
            call,
            process,
        }
    }

    /// As [`Self::abort`], of an error that the other processes know.
    pub fn stopped(&self, error: CommError) -> CommError {
        // Whoever looks meanwhile waits: the error is not known before its record is there.
        let first = self.fault.get_or_init(|| {
            self.write_record(&error);
            error
        });
        self.ring_all();
        first.clone()
    }

    /// Wakes those who wait for ranks of this process.
    fn ring_all(&self) {
        for channel in self.all_channels() {
            channel.ring_all();
        }
    }

    /// Tells other processes of a window; `None` if there are none.
    pub fn window(self: &Arc<Self>, print: WindowPrint) -> Option<Agreed> {
        let remote = self.remote.as_ref()?;
        Some(Agreed {
            number: print.number,
            agreement: remote.window(print),
            hub: Arc::clone(self),
        })
    }

    /// Returns what is known of other processes.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// Returns where outputs are made, and the empty one.
    pub(crate) fn buffers(&self) -> (&Arc<Pool>, &SharedBuffer) {
        (&self.pool, &self.empty)
    }

    pub(super) fn is_local(&self, rank: Rank) -> bool {
        self.remote
            .as_ref()
            .is_none_or(|remote| remote.is_local(rank))
    }

    /// Publishes the work of a call whose inputs have come from other processes.
    pub(crate) fn conclude(&self, completion: &Completion, work: Work, is_small: bool) {
        if is_small {
            while work.run_next().is_some() {}
        }
        let moment = Moment {
            launched: Instant::now(),
            wire: None,
        };
        completion.conclude(Outcome::Work(work), moment);
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

    /// What has stopped the ranks, if anything has.
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
                self.call(channel, &completion, deposits);
                Ok(completion)
            }
            Arrival::Last(completion, deposits) => {
                let moment = self.moment(channel, &deposits);
                completion.conclude(self.outcome(&channel.group, deposits), moment);
                Ok(completion)
            }
        }
    }

    /// Hands a call that all ranks here have made to the engine.
    fn call(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        completion: &Arc<Completion>,
        deposits: Vec<Deposit>,
    ) {
        let (Some(remote), Some(first)) = (&self.remote, deposits.first()) else {
            return;
        };
        let info = Arc::clone(&first.info);
        let mut inputs = vec![None; channel.group.len()];
        for deposit in deposits {
            let member = channel.group.member(deposit.info.rank);
            if let (Some(member), Input::Block(block)) = (member, deposit.input) {
                inputs[member] = block;
            }
        }
        let members = channel.group.ranks().iter().copied();
        completion.await_ranks(members.filter(|rank| !remote.is_local(*rank)).collect());
        remote.call(Opened {
            hub: Arc::clone(self),
            channel: Arc::clone(channel),
            completion: Arc::clone(completion),
            inputs,
            is_transfer: matches!(
                info.what,
                What::Collective(_, Collective::Send { .. } | Collective::Recv { .. }, _)
            ),
            info,
        });
    }

    /// Notes that all members have launched a call, and puts it on the wire if there is one.
    fn moment(&self, channel: &Channel, deposits: &[Deposit]) -> Moment {
        let launched = Instant::now();
        let (Some(wire), Some(route)) = (&self.wire, &channel.route) else {
            return Moment {
                launched,
                wire: None,
            };
        };
        let group = &channel.group;
        // The others wait for the busiest member: in a ring, everyone moves at its pace.
        let received =
            deposits
                .iter()
                .enumerate()
                .map(|(member, deposit)| match &deposit.info.what {
                    What::Exchange(_, (_, bytes)) => *bytes,
                    What::Collective(dtype, collective, _) => {
                        received_bytes(collective, *dtype, group, member)
                    }
                });
        let bytes = received.max().unwrap_or(0) as u64;
        let rounds = deposits[0].info.kind().rounds(group.len());
        Moment {
            launched,
            wire: Some(wire.book(route, group, (rounds, bytes), launched)),
        }
    }

    fn outcome(&self, group: &Group, deposits: Vec<Deposit>) -> Outcome {
        let what = match &deposits[0].info.what {
            What::Exchange(..) => None,
            What::Collective(dtype, collective, axes) => {
                Some((*dtype, collective.clone(), axes.clone()))
            }
        };
        let Some((dtype, collective, axes)) = what else {
            return Outcome::Values(
                deposits
                    .into_iter()
                    .filter_map(|deposit| match deposit.input {
                        Input::Value(value) => Some(value),
                        Input::Block(_) => None,
                    })
                    .collect(),
            );
        };
        let inputs = deposits.into_iter().map(|deposit| match deposit.input {
            Input::Block(block) => block,
            Input::Value(_) => None,
        });
        let geometry = Geometry::new(&collective, group);
        let is_small = geometry.bytes() <= SMALL_BYTES_MAX;
        let reduction = collective.reduce_op().map(|op| (dtype, op, axes));
        let work = Work::new(
            geometry,
            reduction,
            inputs.collect(),
            &self.pool,
            &self.empty,
        );
        if is_small {
            while work.run_next().is_some() {}
        }
        Outcome::Work(work)
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
