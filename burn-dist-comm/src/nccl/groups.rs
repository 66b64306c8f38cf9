//! The communicators and streams of one rank.

use super::api::{Code, DeviceError, Element, Event, Gpu, Handle, Nccl, Op, Stream, UniqueId};
use super::ending::{self, End};
use super::neighbours::Neighbour;
use super::watch;
use crate::collective::{Collective, Kind};
use crate::geometry::{input_bytes, received_bytes};
use crate::info::{CallInfo, Transfer, What};
use crate::{Block, Call, CommError, Communicator, Group, Lane};
use burn_dist_mesh::DType;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lanes of the host's communicator on which ids are handed out, counted down from the last one: plans and users have
/// no reason to use them.
const ID_LANE_LAST: u16 = u16::MAX;

/// How long communicators take to end, at most: what is left to flush by then is what nobody waits for, and what has
/// not stopped is left behind.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// A place in the sequences of calls.
type Key = (Group, Lane);

struct Channel {
    comm: Handle,
    stream: Stream,
    neighbour: Neighbour,
    /// Calls made so far.
    calls: u64,
    /// Calls that the device may still be at: launched, and not waited for with success.
    open: u64,
}

/// A call that is on the device.
#[must_use = "memory is the device's until the call has been waited for"]
pub struct Launched {
    key: Key,
    info: Arc<CallInfo>,
    /// `None` if there was nothing to do for this rank.
    event: Option<Event>,
}

/// What one rank needs to talk to other GPUs. Belongs to one thread at a time.
pub struct Channels {
    nccl: Arc<dyn Nccl>,
    gpu: Arc<dyn Gpu>,
    /// Calls of a lane run one after the other, in the order in which they are made.
    streams: FxHashMap<Lane, Stream>,
    channels: FxHashMap<Key, Channel>,
    /// Keys in the order in which their communicators were made, which is that of the program.
    made: Vec<Key>,
    timeout: Duration,
    attached: Option<std::thread::ThreadId>,
    /// Whether an abort could not stop everything: memory of calls under way stays the device's.
    is_lost: bool,
}

impl Channels {
    /// Returns those of a rank at `gpu`, whose calls give up after `timeout`. Communicators are made when they are
    /// needed.
    pub fn new(nccl: Arc<dyn Nccl>, gpu: Arc<dyn Gpu>, timeout: Duration) -> Self {
        Self {
            nccl,
            gpu,
            streams: FxHashMap::default(),
            channels: FxHashMap::default(),
            made: Vec::new(),
            timeout,
            attached: None,
            is_lost: false,
        }
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Counts and records a call, which gets the next number on its group and lane. Returns what its elements are to
    /// NCCL: bytes in a shift of elements that NCCL does not have.
    ///
    /// # Errors
    /// [`CommError::NotAMember`], [`CommError::Invalid`] if the collective contradicts itself,
    /// [`CommError::UnsupportedDtype`], what stops the making of a communicator, and the fault that has stopped the
    /// mesh. Communicators are to be [aborted](Self::abort) then.
    pub fn record(
        &mut self,
        host: &dyn Communicator,
        (group, lane): (&Group, Lane),
        label: Option<&Arc<str>>,
        (dtype, collective, axes): (DType, Collective, Arc<[usize]>),
    ) -> Result<(Arc<CallInfo>, Element), CommError> {
        let rank = host.rank();
        let key = (group.clone(), lane);
        let sequence = self.channels.get(&key).map_or(0, |channel| channel.calls);
        let Some(member) = group.member(rank) else {
            let what = What::Collective(dtype, collective, axes).to_string();
            return Err(CommError::NotAMember {
                rank,
                group: group.clone(),
                what,
            });
        };
        let valid = input_bytes(&collective, dtype, group, member);
        let received = match &valid {
            Ok(_) => received_bytes(&collective, dtype, group, member),
            Err(_) => 0,
        };
        let what = What::Collective(dtype, collective, axes);
        let label = label.cloned().unwrap_or_else(|| "".into());
        let info = CallInfo::new(rank, key, sequence, label, what);
        host.record(&info, received)?;
        if let Err(reason) = valid {
            return Err(CommError::Invalid { call: info, reason });
        }
        let bytes = (info.kind() == Kind::Shift).then_some(Element::U8);
        let Some(element) = Element::of(dtype).or(bytes) else {
            return Err(CommError::UnsupportedDtype { call: info, dtype });
        };
        self.join(host, &info)?;
        Ok((info, element))
    }

    /// Joins the communicator of a recorded call's group and lane, if this is the first one there.
    ///
    /// # Errors
    /// What stops the making of a communicator. Communicators are to be [aborted](Self::abort) then.
    pub fn join(&mut self, host: &dyn Communicator, info: &Arc<CallInfo>) -> Result<(), CommError> {
        let key = (info.group.clone(), info.lane);
        if !self.channels.contains_key(&key) {
            self.open(host, &key, info)?;
        }
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.calls += 1;
        }
        Ok(())
    }

    /// Joins the communicator of a group and lane.
    fn open(
        &mut self,
        host: &dyn Communicator,
        key: &Key,
        info: &Arc<CallInfo>,
    ) -> Result<(), CommError> {
        let (group, lane) = key;
        let member = group
            .member(info.rank)
            .expect("calls are recorded by members");
        self.attach(info)?;
        let stream = self.stream(*lane, info)?;
        let root = group.ranks()[0];
        let mine = match member {
            0 => {
                let id = self.nccl.unique_id();
                let id = id.map_err(|code| self.refused(info, "ncclGetUniqueId", code, None))?;
                Some(Block::from(id.0.to_vec()))
            }
            _ => None,
        };
        let id = Call::broadcast(group, DType::U8, root, UniqueId::BYTES, mine)
            .on_lane(Lane(ID_LANE_LAST.wrapping_sub(lane.0)))
            .labelled(format!("NCCL id of lane {}", lane.0))
            .uncounted();
        let bytes = host.run(id)?;
        let mut id = UniqueId([0; UniqueId::BYTES]);
        id.0.copy_from_slice(&bytes);
        let neighbour = self.nccl.neighbours().enter(&id);
        let comm = self.nccl.init(group.len(), &id, member).map_err(|code| {
            neighbour.stop();
            self.refused(info, "ncclCommInitRankConfig", code, None)
        })?;
        // Known from now on, so that an abort ends it.
        let channel = Channel {
            comm,
            stream,
            neighbour,
            calls: 0,
            open: 0,
        };
        self.channels.insert(key.clone(), channel);
        self.made.push(key.clone());
        self.settled(host, info, "ncclCommInitRankConfig", comm)
    }

    /// Makes the device the current one of the thread that calls.
    fn attach(&mut self, info: &Arc<CallInfo>) -> Result<(), CommError> {
        let here = std::thread::current().id();
        if self.attached != Some(here) {
            self.gpu.attach().map_err(|error| failed(info, error))?;
            self.attached = Some(here);
        }
        Ok(())
    }

    fn stream(&mut self, lane: Lane, info: &Arc<CallInfo>) -> Result<Stream, CommError> {
        if let Some(stream) = self.streams.get(&lane) {
            return Ok(*stream);
        }
        let stream = self.gpu.stream().map_err(|error| failed(info, error))?;
        self.streams.insert(lane, stream);
        Ok(stream)
    }

    /// Puts the calls of a recorded call on the device, as one group; there may be none. Members in this process wait
    /// for each other before and after.
    ///
    /// # Safety
    /// As [`Nccl::issue`], until the call has been waited for with success, or [`Channels::abort`] has returned true.
    pub unsafe fn launch(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        element: Element,
        ops: &[Op],
    ) -> Result<Launched, CommError> {
        self.attach(info)?;
        let key = (info.group.clone(), info.lane);
        self.meet(host, info, &key)?;
        if !ops.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.issue(host, info, &key, element, ops) }?;
        }
        self.meet(host, info, &key)?;
        let mut launched = Launched {
            key,
            info: Arc::clone(info),
            event: None,
        };
        if !ops.is_empty() {
            let stream = self.channel(host, info, &launched.key)?.stream;
            let event = self.gpu.record(stream);
            launched.event = Some(event.map_err(|error| failed(info, error))?);
        }
        Ok(launched)
    }

    /// Waits until all members in this process have come as far as this one: see [`super::neighbours`].
    fn meet(
        &self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<(), CommError> {
        let neighbour = &self.channel(host, info, key)?.neighbour;
        let barrier = neighbour.arrive();
        watch::until(host, info, self.timeout, || {
            Ok(neighbour.have_all_arrived(barrier).then_some(()))
        })
    }

    /// # Safety
    /// As [`Self::launch`].
    unsafe fn issue(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
        element: Element,
        ops: &[Op],
    ) -> Result<(), CommError> {
        let Channel { comm, stream, .. } = *self.channel(host, info, key)?;
        let nccl = Arc::clone(&self.nccl);
        self.accepted(info, "ncclGroupStart", nccl.group_start(), comm)?;
        if let Some(channel) = self.channels.get_mut(key) {
            channel.open += 1;
        }
        let mut refused = None;
        for op in ops {
            // SAFETY: the caller's promise.
            let code = unsafe { nccl.issue(comm, op, element, stream) };
            if !code.is_accepted() {
                refused = Some((op.function(), code));
                break;
            }
        }
        // A group that was started has to be ended, whatever is in it.
        let end = nccl.group_end();
        if let Some((function, code)) = refused {
            return Err(self.refused(info, function, code, Some(comm)));
        }
        self.accepted(info, "ncclGroupEnd", end, comm)?;
        self.settled(host, info, "ncclGroupEnd", comm)
    }

    fn channel(
        &self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<&Channel, CommError> {
        // None where they have been aborted meanwhile.
        let channel = self.channels.get(key);
        channel.ok_or_else(|| host.fault().unwrap_or_else(|| ended(info)))
    }

    /// Waits until the device is done with a call.
    ///
    /// # Errors
    /// What the library or the driver says, the fault of the mesh, and a time-out. Communicators are to be
    /// [aborted](Self::abort) then.
    pub fn finish(&mut self, host: &dyn Communicator, launched: Launched) -> Result<(), CommError> {
        let Launched { key, info, event } = launched;
        let Some(event) = event else { return Ok(()) };
        self.attach(&info)?;
        let comm = match self.channel(host, &info, &key) {
            Ok(channel) => channel.comm,
            Err(error) => {
                self.gpu.forget(event);
                return Err(error);
            }
        };
        let outcome = watch::until(host, &info, self.timeout, || {
            let over = self.gpu.is_over(event);
            if over.map_err(|error| failed(&info, error))? {
                return Ok(Some(()));
            }
            // An error that a peer or the network has caused shows here, not on the stream.
            let state = self.nccl.state(comm);
            match state.is_accepted() {
                true => Ok(None),
                false => Err(self.refused(&info, "ncclCommGetAsyncError", state, Some(comm))),
            }
        });
        self.gpu.forget(event);
        outcome?;
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.open -= 1;
        }
        Ok(())
    }

    /// Takes note that nobody waits for a call, which stays under way.
    pub fn give_up(&self, launched: Launched) {
        if let Some(event) = launched.event {
            self.gpu.forget(event);
        }
    }

    /// Notes that a recorded call is over.
    pub fn over(info: &CallInfo) {
        // NCCL does not tell when the others launched theirs. Set once: a call is waited for once.
        let _ = info.transfer.set(Transfer {
            launched: info.started,
            start: info.started,
            end: Instant::now(),
        });
        info.finish();
    }

    /// Waits until the last call on a communicator is no longer in progress.
    fn settled(
        &self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        function: &'static str,
        comm: Handle,
    ) -> Result<(), CommError> {
        watch::until(host, info, self.timeout, || match self.nccl.state(comm) {
            Code::SUCCESS => Ok(Some(())),
            Code::IN_PROGRESS => Ok(None),
            code => Err(self.refused(info, function, code, Some(comm))),
        })
    }

    fn accepted(
        &self,
        info: &Arc<CallInfo>,
        function: &'static str,
        code: Code,
        comm: Handle,
    ) -> Result<(), CommError> {
        match code.is_accepted() {
            true => Ok(()),
            false => Err(self.refused(info, function, code, Some(comm))),
        }
    }

    fn refused(
        &self,
        info: &Arc<CallInfo>,
        function: &'static str,
        code: Code,
        comm: Option<Handle>,
    ) -> CommError {
        let mut reason = format!("{} (code {})", self.nccl.error_text(code), code.0);
        let details = comm.map(|comm| self.nccl.last_error(comm));
        if let Some(details) = details.filter(|details| !details.is_empty()) {
            reason = format!("{reason}: {details}");
        }
        CommError::Gpu {
            call: Arc::clone(info),
            function,
            reason,
        }
    }

    /// Stops what is on the device, and frees all communicators. Returns whether memory of calls under way is the
    /// caller's again: whether everything has stopped in time, of this rank and of its neighbours in those calls.
    ///
    /// # Communication
    /// None, but the others have to end theirs too: whoever calls this has told them of the fault before.
    #[must_use = "memory may still be in use"]
    pub fn abort(&mut self) -> bool {
        let all = self.take().into_iter();
        self.end(all.map(|(key, channel)| (key, channel, End::Abort)))
    }

    /// Ends all communicators: as the other members do, flushed in the order in which they were made, unless there was
    /// a fault.
    pub fn close(&mut self, host: &dyn Communicator) {
        let limit = Instant::now() + self.timeout.min(CLOSING_MAX);
        let mut ends = Vec::new();
        for (key, channel) in self.take() {
            let comm = channel.comm;
            let mut state = match host.fault() {
                Some(_) => Code(-1),
                None => self.nccl.finalize(comm),
            };
            watch::by(limit, || {
                let goes_on = state == Code::IN_PROGRESS && host.fault().is_none();
                if goes_on {
                    state = self.nccl.state(comm);
                }
                !goes_on
            });
            let end = match state {
                Code::SUCCESS => End::Destroy,
                _ => End::Abort,
            };
            ends.push((key, channel, end));
        }
        self.end(ends);
    }

    /// Takes all communicators, in the order in which they were made: that of the program.
    fn take(&mut self) -> Vec<(Key, Channel)> {
        let made = std::mem::take(&mut self.made);
        made.iter()
            .filter_map(|key| self.channels.remove_entry(key))
            .collect()
    }

    /// Ends communicators, and returns whether memory of their calls is free.
    fn end(&mut self, ends: impl IntoIterator<Item = (Key, Channel, End)>) -> bool {
        let (mut comms, mut neighbours) = (Vec::new(), Vec::new());
        for ((group, lane), channel, end) in ends {
            comms.push((format!("{group} lane {}", lane.0), channel.comm, end));
            // What was flushed is over.
            let is_busy = channel.open > 0 && end == End::Abort;
            neighbours.push((channel.neighbour, is_busy));
        }
        if comms.is_empty() {
            return !self.is_lost;
        }
        // This need not be the thread of the calls. A device that cannot be attached to has failed, and runs nothing.
        let _ = self.gpu.attach();
        let limit = Instant::now() + CLOSING_MAX;
        let have_ended = ending::side_by_side(&self.nccl, &self.gpu, comms, limit);
        let is_busy = neighbours.iter().any(|(_, is_busy)| *is_busy);
        let has_stopped = !is_busy || (have_ended && self.have_drained(limit));
        if has_stopped {
            for (neighbour, _) in &neighbours {
                neighbour.stop();
            }
        }
        let mut busy = neighbours.iter().filter(|(_, is_busy)| *is_busy);
        let is_free = has_stopped
            && busy.all(|(neighbour, _)| watch::by(limit, || neighbour.have_all_stopped()));
        self.is_lost |= !is_free;
        !self.is_lost
    }

    /// Waits until the streams have come to their end; returns whether they have.
    fn have_drained(&self, limit: Instant) -> bool {
        self.streams.values().all(|stream| {
            // What an event cannot be recorded on has failed, and runs nothing any more.
            let Ok(event) = self.gpu.record(*stream) else {
                return true;
            };
            let is_over = watch::by(limit, || self.gpu.is_over(event) != Ok(false));
            self.gpu.forget(event);
            is_over
        })
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        // Whoever knows of memory under way has asked before.
        let _ = self.abort();
    }
}

/// A call on the driver that failed.
fn failed(info: &Arc<CallInfo>, error: DeviceError) -> CommError {
    CommError::Gpu {
        call: Arc::clone(info),
        function: error.function,
        reason: error.reason,
    }
}

fn ended(info: &Arc<CallInfo>) -> CommError {
    CommError::Gpu {
        call: Arc::clone(info),
        function: "ncclCommAbort",
        reason: "the communicators of this rank have ended".into(),
    }
}
