//! The transport between ranks that are threads of one process.
//!
//! Inputs are read where they are, and members with equal results share one output, so an all-gather costs one copy of the gathered bytes for the
//! whole process, not one per rank. Small calls are done by the last member to arrive; large ones are cut into units that all waiting members
//! claim. It is stricter than NCCL: calls that do not match are an error that names both, and so are ranks that are late or have left.
//!
//! # Faults
//! The first error of any rank becomes the fault of the hub: every waiting and every later call of every rank returns it at once.

mod meeting;
mod options;

pub use options::{Chaos, LocalOptions};

use super::buffer::{Buffer, Pool, Work, is_reducible};
use super::call::{CallInfo, Collective, What, elem_bytes};
use super::geometry::{Geometry, check, received_bytes};
use super::record::{Counters, FlightRecorder};
use super::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, RwLock, lock};
use super::{
    Block, Call, CommError, Communicator, Exchange, Group, Lane, Payload, Pending, PendingCall,
    Stats,
};
use crate::mesh::Rank;
use burn_std::{Bytes, DType};
use meeting::{Arrival, Channel, Deposit, Input, Meeting, Outcome, Patience, Stop};
use rustc_hash::FxHashMap;
use std::sync::PoisonError;
use std::time::Instant;

/// Calls that write no more than this are done by the last member to arrive: waking the others would take longer.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// What the ranks of one process share: channels, output buffers, the fault, and the records.
pub struct LocalHub {
    options: LocalOptions,
    patience: Patience,
    pool: Arc<Pool>,
    empty: Arc<Bytes>,
    channels: RwLock<FxHashMap<ChannelKey, Arc<Channel>>>,
    fault: OnceLock<CommError>,
    ranks: Vec<RankState>,
}

/// Transfers between a pair are a sequence of their own, apart from the collectives of the same group.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ChannelKey {
    group: Group,
    lane: Lane,
    is_transfer: bool,
}

struct RankState {
    left: AtomicBool,
    /// Number of calls, for chaos.
    num_calls: AtomicU64,
    counters: Counters,
    recorder: FlightRecorder,
    /// Deposits that chaos holds back; empty without chaos.
    held_back: Mutex<Vec<(Arc<Channel>, usize, Deposit)>>,
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
            options,
        });
        Ok((0..num_ranks as u32)
            .map(|rank| LocalComm {
                hub: Arc::clone(&hub),
                rank: Rank(rank),
            })
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

    fn state(&self, rank: Rank) -> &RankState {
        &self.ranks[rank.0 as usize]
    }

    fn has_left(&self, rank: Rank) -> bool {
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

    fn channel(&self, key: &ChannelKey) -> Result<Arc<Channel>, CommError> {
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
    fn deposit(
        &self,
        channel: &Channel,
        member: usize,
        deposit: Deposit,
    ) -> Result<Arc<Meeting>, CommError> {
        match channel.deposit(member, deposit, self.options.open_calls_max)? {
            Arrival::Early(meeting) => {
                // A rank that leaves marks itself first and then looks for open calls, so one of the two sides notices.
                match channel.deserted(|rank| self.has_left(rank)) {
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
            What::Exchange(_) => None,
            What::Collective(dtype, collective) => Some((*dtype, collective.clone())),
        };
        let Some((dtype, collective)) = what else {
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
        let reduction = collective.reduce_op().map(|op| (dtype, op));
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
    fn release_held_back(&self, rank: Rank) -> Result<(), CommError> {
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
    fn leave(&self, rank: Rank) {
        if self.release_held_back(rank).is_err() {
            return;
        }
        self.state(rank).left.store(true, Ordering::SeqCst);
        let deserted = self
            .all_channels()
            .iter()
            .find_map(|channel| channel.deserted(|member| member == rank));
        if let Some((rank, call)) = deserted {
            self.abort(CommError::RankLeft { rank, call });
        }
    }
}

/// The endpoint of one rank of a [`LocalHub`].
///
/// Dropping it means that the rank makes no more calls: whoever waits for one gets [`CommError::RankLeft`] at once.
pub struct LocalComm {
    hub: Arc<LocalHub>,
    rank: Rank,
}

impl Drop for LocalComm {
    fn drop(&mut self) {
        self.hub.leave(self.rank);
    }
}

impl LocalComm {
    /// What this rank shares with the others.
    pub fn hub(&self) -> &Arc<LocalHub> {
        &self.hub
    }

    /// Records and announces a call.
    fn begin(
        &self,
        group: Group,
        lane: Lane,
        label: Arc<str>,
        what: What,
        input: Input,
    ) -> Result<LocalCall, CommError> {
        let hub = &self.hub;
        if let Some(fault) = hub.fault.get() {
            return Err(fault.clone());
        }
        self.try_begin(group, lane, label, what, input)
            .map_err(|error| hub.abort(error))
    }

    fn try_begin(
        &self,
        group: Group,
        lane: Lane,
        label: Arc<str>,
        what: What,
        mut input: Input,
    ) -> Result<LocalCall, CommError> {
        let (hub, rank, state) = (&self.hub, self.rank, self.hub.state(self.rank));
        let Some(member) = group.member(rank) else {
            return Err(CommError::NotAMember {
                rank,
                group,
                what: what.to_string(),
            });
        };
        let is_send = matches!(&what, What::Collective(_, Collective::Send { .. }));
        let is_transfer = is_send || matches!(&what, What::Collective(_, Collective::Recv { .. }));
        let channel = hub.channel(&ChannelKey {
            group: group.clone(),
            lane,
            is_transfer,
        })?;
        let sequence = channel.next_sequence(member);
        let info = Arc::new(CallInfo {
            rank,
            group,
            lane,
            sequence,
            label,
            what,
            started: Instant::now(),
            elapsed_ns: AtomicU64::new(0),
        });
        state.recorder.push(Arc::clone(&info));
        let received = prepare(&info, member, &mut input, &hub.pool)?;
        state.counters.add(info.kind(), received);

        let number = state.num_calls.fetch_add(1, Ordering::Relaxed);
        let mut holds_back = false;
        if let Some(chaos) = &hub.options.chaos {
            if chaos.kill == Some((rank, number)) {
                return Err(CommError::Killed {
                    rank,
                    at_call: number,
                    seed: chaos.seed,
                    call: info,
                });
            }
            chaos.delay(rank, number, 0);
            holds_back = chaos.reorder && chaos.draw(rank, number, 1).is_multiple_of(3);
        }
        let deposit = Deposit {
            info: Arc::clone(&info),
            input,
        };
        let meeting = if holds_back {
            let meeting = channel.meeting(sequence);
            lock(&state.held_back).push((Arc::clone(&channel), member, deposit));
            meeting
        } else {
            hub.deposit(&channel, member, deposit)?
        };
        Ok(LocalCall {
            hub: Arc::clone(hub),
            channel,
            meeting,
            member,
            info,
            number,
            is_send,
        })
    }
}

/// Checks a call by itself, aligns its input for the reduction, and returns the bytes it receives.
fn prepare(
    info: &Arc<CallInfo>,
    member: usize,
    input: &mut Input,
    pool: &Arc<Pool>,
) -> Result<usize, CommError> {
    let (What::Collective(dtype, collective), Input::Block(block)) = (&info.what, input) else {
        return Ok(0);
    };
    check(
        collective,
        *dtype,
        &info.group,
        member,
        block.as_ref().map(Block::len),
    )
    .map_err(|reason| CommError::Invalid {
        call: Arc::clone(info),
        reason,
    })?;
    if let Some(op) = collective.reduce_op() {
        if !is_reducible(*dtype, op) {
            return Err(CommError::UnsupportedReduce {
                call: Arc::clone(info),
                op,
                dtype: *dtype,
            });
        }
        if let Some(unaligned) = block.as_ref().filter(|block| !is_aligned(block, *dtype)) {
            *block = Some(Block::from(Buffer::copy_of(pool, unaligned.as_slice())));
        }
    }
    Ok(received_bytes(collective, *dtype, &info.group, member))
}

fn is_aligned(block: &Block, dtype: DType) -> bool {
    block
        .as_slice()
        .as_ptr()
        .addr()
        .is_multiple_of(elem_bytes(dtype))
}

impl Communicator for LocalComm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn num_ranks(&self) -> usize {
        self.hub.num_ranks()
    }

    fn start(&self, call: Call) -> Result<Pending<Arc<Bytes>>, CommError> {
        let Call {
            group,
            lane,
            label,
            dtype,
            collective,
            input,
        } = call;
        let call = self.begin(
            group,
            lane,
            label,
            What::Collective(dtype, collective),
            Input::Block(input),
        )?;
        Ok(Pending::new(PendingBytes(call)))
    }

    fn exchange(
        &self,
        exchange: Exchange,
        payload: Payload,
    ) -> Result<Pending<Arc<[Payload]>>, CommError> {
        let Exchange {
            group,
            lane,
            label,
            what,
        } = exchange;
        let call = self.begin(
            group,
            lane,
            label,
            What::Exchange(what),
            Input::Value(payload),
        )?;
        Ok(Pending::new(PendingValues(call)))
    }

    fn abort(&self, error: CommError) {
        self.hub.abort(error);
    }

    fn fault(&self) -> Option<CommError> {
        self.hub.fault()
    }

    fn stats(&self) -> Stats {
        self.hub.stats(self.rank)
    }

    fn recent_calls(&self) -> Vec<Arc<CallInfo>> {
        self.hub.recent_calls(self.rank)
    }
}

/// A started call of one rank.
struct LocalCall {
    hub: Arc<LocalHub>,
    channel: Arc<Channel>,
    meeting: Arc<Meeting>,
    member: usize,
    info: Arc<CallInfo>,
    /// Among all calls of the rank.
    number: u64,
    is_send: bool,
}

impl LocalCall {
    fn is_ready(&self) -> bool {
        self.is_send || self.hub.fault.get().is_some() || self.meeting.outcome().is_some()
    }

    /// Waits until all members have arrived.
    fn outcome(&self) -> Result<&Outcome, CommError> {
        let hub = &self.hub;
        if let Some(fault) = hub.fault.get() {
            return Err(fault.clone());
        }
        hub.release_held_back(self.info.rank)?;
        self.wait_until(Meeting::outcome)
    }

    fn wait_until<'a, T>(
        &'a self,
        ready: impl Fn(&'a Meeting) -> Option<T>,
    ) -> Result<T, CommError> {
        let hub = &self.hub;
        let stop =
            match self
                .meeting
                .wait_until(ready, &hub.fault, hub.patience, hub.options.timeout)
            {
                Ok(result) => return Ok(result),
                Err(stop) => stop,
            };
        Err(match stop {
            Stop::Fault(fault) => fault,
            Stop::Late => {
                let (call, elapsed, missing) = (
                    Arc::clone(&self.info),
                    self.info.started.elapsed(),
                    self.channel.missing(self.info.sequence),
                );
                hub.abort(match missing.is_empty() {
                    true => CommError::Stalled { call, elapsed },
                    false => CommError::Timeout {
                        call,
                        missing,
                        elapsed,
                    },
                })
            }
        })
    }

    fn finish(&self) {
        if let Some(chaos) = &self.hub.options.chaos {
            chaos.delay(self.info.rank, self.number, 2);
        }
        self.info.finish();
    }
}

impl Drop for LocalCall {
    fn drop(&mut self) {
        // A fault, if this finds one, is returned by the next call.
        let _ = self.hub.release_held_back(self.info.rank);
    }
}

struct PendingBytes(LocalCall);

impl PendingCall<Arc<Bytes>> for PendingBytes {
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn wait(self: Box<Self>) -> Result<Arc<Bytes>, CommError> {
        let call = self.0;
        if call.is_send {
            if let Some(fault) = call.hub.fault.get() {
                return Err(fault.clone());
            }
            call.hub.release_held_back(call.info.rank)?;
            call.finish();
            return Ok(Arc::clone(&call.hub.empty));
        }
        let Outcome::Work(work) = call.outcome()? else {
            unreachable!("an exchange does not match a collective")
        };
        // Helps until nothing is left to claim, also when its own output is there: the ranks usually need the results at the same time.
        while let Some(finished) = work.run_next() {
            if finished {
                call.meeting.ring();
            }
        }
        let output = match work.output(call.member) {
            Some(output) => output,
            None => call.wait_until(|_| work.output(call.member))?,
        };
        let output = Arc::clone(output);
        call.finish();
        Ok(output)
    }
}

struct PendingValues(LocalCall);

impl PendingCall<Arc<[Payload]>> for PendingValues {
    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn wait(self: Box<Self>) -> Result<Arc<[Payload]>, CommError> {
        let call = self.0;
        let Outcome::Values(values) = call.outcome()? else {
            unreachable!("a collective does not match an exchange")
        };
        let values = Arc::clone(values);
        call.finish();
        Ok(values)
    }
}
