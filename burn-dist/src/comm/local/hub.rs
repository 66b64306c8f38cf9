//! What the ranks of one process share.

use super::LocalOptions;
use super::endpoint::LocalComm;
use super::meeting::{Arrival, Channel, Deposit, Input, Meeting, Outcome, Patience};
use crate::comm::buffer::{Pool, Work};
use crate::comm::geometry::Geometry;
use crate::comm::info::{CallInfo, What};
use crate::comm::record::{Counters, FlightRecorder};
use crate::comm::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, RwLock, lock};
use crate::comm::{CommError, Group, Lane, Stats};
use crate::mesh::Rank;
use burn_std::Bytes;
use rustc_hash::FxHashMap;
use std::sync::PoisonError;

/// Calls that write no more than this are done by the last member to arrive: waking the others would take longer.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// What the ranks of one process share: channels, output buffers, the fault, and the records.
pub struct LocalHub {
    pub(super) options: LocalOptions,
    pub(super) patience: Patience,
    pub(super) pool: Arc<Pool>,
    pub(super) empty: Arc<Bytes>,
    pub(super) channels: RwLock<FxHashMap<ChannelKey, Arc<Channel>>>,
    pub(super) fault: OnceLock<CommError>,
    pub(super) ranks: Vec<RankState>,
    /// Whether any rank has left; spares the others from looking while all are there.
    pub(super) some_left: AtomicBool,
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
    /// Deposits that chaos holds back; empty without chaos.
    pub(super) held_back: Mutex<Vec<(Arc<Channel>, usize, Deposit)>>,
}

impl LocalHub {
    /// Returns the endpoints of `num_ranks` ranks, in order.
    ///
    /// # Errors
    /// [`CommError::EmptyGroup`] if `num_ranks` is 0.
    pub fn connect(num_ranks: usize, options: LocalOptions) -> Result<Vec<LocalComm>, CommError> {
        if num_ranks == 0 {
            return Err(CommError::EmptyGroup);
        }
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if num_ranks <= num_cores { 100 } else { 0 };
        let ranks = (0..num_ranks).map(|_| RankState {
            left: AtomicBool::new(false),
            num_calls: AtomicU64::new(0),
            counters: Counters::default(),
            recorder: FlightRecorder::new(options.recorded_calls_max),
            held_back: Mutex::default(),
        });
        let hub = Arc::new(Self {
            patience: Patience { spins, yields: 50 },
            pool: Pool::new(options.pool_bytes_max),
            // Aligned for every element type: backends look at an empty result as a slice of its elements.
            empty: Arc::new(Bytes::from_elems::<u128>(Vec::new())),
            channels: RwLock::default(),
            fault: OnceLock::new(),
            ranks: ranks.collect(),
            some_left: AtomicBool::new(false),
            options,
        });
        Ok((0..num_ranks as u32)
            .map(|rank| LocalComm::new(Arc::clone(&hub), Rank(rank)))
            .collect())
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Stops all ranks: every waiting and later call returns `error`, or an earlier one if there is one, which is also returned here.
    pub fn abort(&self, error: CommError) -> CommError {
        let first = self.fault.get_or_init(|| error).clone();
        for channel in self.all_channels() {
            channel.ring_all();
        }
        first
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
            || Arc::new(Channel::new(key.group.clone())),
        )))
    }

    /// Brings a deposit to its channel; the last one of a call concludes it.
    pub(super) fn deposit(
        &self,
        channel: &Channel,
        member: usize,
        deposit: Deposit,
    ) -> Result<Arc<Meeting>, CommError> {
        match channel.deposit(member, deposit, self.options.open_calls_max)? {
            Arrival::Early(meeting) => {
                // A rank that leaves marks itself first and then looks for open calls, so one of the two sides notices.
                let deserted = self
                    .some_left
                    .load(Ordering::SeqCst)
                    .then(|| channel.deserted(|rank| self.has_left(rank)));
                match deserted.flatten() {
                    Some((rank, call)) => Err(CommError::RankLeft { rank, call }),
                    None => Ok(meeting),
                }
            }
            Arrival::Last(meeting, deposits) => {
                meeting.conclude(self.outcome(&channel.group, deposits));
                Ok(meeting)
            }
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
    pub(super) fn release_held_back(&self, rank: Rank) -> Result<(), CommError> {
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
    pub(super) fn leave(&self, rank: Rank) {
        if self.release_held_back(rank).is_err() {
            return;
        }
        self.state(rank).left.store(true, Ordering::SeqCst);
        self.some_left.store(true, Ordering::SeqCst);
        let deserted = self
            .all_channels()
            .iter()
            .find_map(|channel| channel.deserted(|member| member == rank));
        if let Some((rank, call)) = deserted {
            self.abort(CommError::RankLeft { rank, call });
        }
    }
}
