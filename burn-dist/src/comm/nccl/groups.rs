//! The communicators and streams of one rank.

use super::api::{Code, DeviceError, Element, Event, Gpu, Handle, Nccl, Op, Stream, UniqueId};
use super::watch;
use crate::comm::collective::Collective;
use crate::comm::geometry::received_bytes;
use crate::comm::info::{CallInfo, Transfer, What};
use crate::comm::sync::{AtomicU64, OnceLock};
use crate::comm::{Block, Call, CommError, Communicator, Group, Lane};
use burn_std::{Bytes, DType};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lanes of the host's communicator on which ids are handed out, counted down from the last one: plans and users have no reason to use them.
const ID_LANE_LAST: u16 = u16::MAX;

/// How long the end of a mesh waits for the others to end theirs, at most: what is left to flush by then is what nobody waits for.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// A place in the sequences of calls.
type Key = (Group, Lane);

struct Channel {
    comm: Handle,
    stream: Stream,
    /// Calls made so far.
    calls: u64,
}

/// A call that is on the device.
#[must_use = "memory is the device's until the call has been waited for"]
pub(crate) struct Launched {
    key: Key,
    info: Arc<CallInfo>,
    /// `None` if there was nothing to do for this rank.
    event: Option<Event>,
}

/// What one rank needs to talk to other GPUs. Belongs to one thread at a time.
pub(crate) struct Channels {
    nccl: Arc<dyn Nccl>,
    gpu: Arc<dyn Gpu>,
    /// Calls of a lane run one after the other, in the order in which they are made.
    streams: FxHashMap<Lane, Stream>,
    channels: FxHashMap<Key, Channel>,
    /// Keys in the order in which their communicators were made, which is that of the program.
    made: Vec<Key>,
    timeout: Duration,
    /// Added to a lane on the way to that of its ids.
    id_offset: u16,
    attached: Option<std::thread::ThreadId>,
}

impl Channels {
    pub fn new(nccl: Arc<dyn Nccl>, gpu: Arc<dyn Gpu>, timeout: Duration) -> Self {
        Self {
            nccl,
            gpu,
            streams: FxHashMap::default(),
            channels: FxHashMap::default(),
            made: Vec::new(),
            timeout,
            id_offset: 0,
            attached: None,
        }
    }

    /// Hands ids out on other lanes: for channels that exist beside others of the same groups and lanes.
    pub fn with_id_offset(mut self, offset: u16) -> Self {
        self.id_offset = offset;
        self
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Counts and records a call, which gets the next number on its group and lane.
    ///
    /// # Errors
    /// [`CommError::NotAMember`], [`CommError::UnsupportedDtype`], what stops the making of a communicator, and the fault that has stopped the mesh.
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
        let received = received_bytes(&collective, dtype, group, member);
        let info = Arc::new(CallInfo {
            rank,
            group: group.clone(),
            lane,
            sequence,
            label: label.cloned().unwrap_or_else(|| "".into()),
            what: What::Collective(dtype, collective, axes),
            started: Instant::now(),
            elapsed_ns: AtomicU64::new(0),
            transfer: OnceLock::new(),
        });
        host.record(&info, received)?;
        let Some(element) = Element::of(dtype) else {
            return Err(CommError::UnsupportedDtype { call: info, dtype });
        };
        self.join(host, &info)?;
        Ok((info, element))
    }

    /// Joins the communicator of a recorded call's group and lane, if this is the first one there.
    pub fn join(&mut self, host: &dyn Communicator, info: &Arc<CallInfo>) -> Result<(), CommError> {
        let key = (info.group.clone(), info.lane);
        if !self.channels.contains_key(&key) {
            let channel = self.open(host, &key, info)?;
            self.channels.insert(key.clone(), channel);
            self.made.push(key.clone());
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
        (group, lane): &Key,
        info: &Arc<CallInfo>,
    ) -> Result<Channel, CommError> {
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
                Some(Block::from(Bytes::from_bytes_vec(id.0.to_vec())))
            }
            _ => None,
        };
        let id = Call::broadcast(group, DType::U8, root, UniqueId::BYTES, mine)
            .on_lane(Lane(
                ID_LANE_LAST
                    .wrapping_sub(lane.0)
                    .wrapping_sub(self.id_offset),
            ))
            .labelled(format!("NCCL id of lane {}", lane.0))
            .uncounted();
        let bytes = host.run(id)?;
        let mut id = UniqueId([0; UniqueId::BYTES]);
        id.0.copy_from_slice(&bytes);
        let comm = self
            .nccl
            .init(group.len(), &id, member)
            .map_err(|code| self.refused(info, "ncclCommInitRankConfig", code, None))?;
        // Known from now on, so that an abort ends it.
        let settled = self.settled(host, info, "ncclCommInitRankConfig", comm);
        if let Err(error) = settled {
            self.nccl.abort(comm);
            return Err(error);
        }
        Ok(Channel {
            comm,
            stream,
            calls: 0,
        })
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

    /// Puts the calls of a recorded call on the device, as one group.
    ///
    /// # Safety
    /// As [`Nccl::issue`], until the call has been waited for with success, or [`Channels::abort`] has returned.
    pub unsafe fn launch(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        element: Element,
        ops: &[Op],
    ) -> Result<Launched, CommError> {
        let key = (info.group.clone(), info.lane);
        let (comm, stream) = match self.channels.get(&key) {
            Some(channel) => (channel.comm, channel.stream),
            // Aborted meanwhile.
            None => return Err(host.fault().unwrap_or_else(|| ended(info))),
        };
        let mut launched = Launched {
            key,
            info: Arc::clone(info),
            event: None,
        };
        if ops.is_empty() {
            return Ok(launched);
        }
        self.attach(info)?;
        let nccl = Arc::clone(&self.nccl);
        self.accepted(info, "ncclGroupStart", nccl.group_start(), comm)?;
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
        self.settled(host, info, "ncclGroupEnd", comm)?;
        let event = self.gpu.record(stream);
        launched.event = Some(event.map_err(|error| failed(info, error))?);
        Ok(launched)
    }

    /// Waits until the device is done with a call.
    ///
    /// # Errors
    /// What the library or the driver says, the fault of the mesh, and a time-out. Communicators are to be [aborted](Self::abort) then.
    pub fn finish(&mut self, host: &dyn Communicator, launched: Launched) -> Result<(), CommError> {
        let Launched { key, info, event } = launched;
        let Some(event) = event else { return Ok(()) };
        self.attach(&info)?;
        let Some(comm) = self.channels.get(&key).map(|channel| channel.comm) else {
            self.gpu.forget(event);
            return Err(host.fault().unwrap_or_else(|| ended(&info)));
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
        outcome
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

    /// Stops what is on the device, and frees all communicators: memory of calls under way is the caller's again.
    pub fn abort(&mut self) {
        if self.made.is_empty() {
            return;
        }
        for key in std::mem::take(&mut self.made) {
            if let Some(channel) = self.channels.remove(&key) {
                self.nccl.abort(channel.comm);
            }
        }
        // Kernels see the abort at their next step; what an event cannot be recorded on has failed, and runs nothing any more.
        let limit = Instant::now() + CLOSING_MAX;
        for stream in self.streams.values() {
            let Ok(event) = self.gpu.record(*stream) else {
                continue;
            };
            while self.gpu.is_over(event) == Ok(false) && Instant::now() < limit {
                std::thread::sleep(Duration::from_micros(100));
            }
            self.gpu.forget(event);
        }
    }

    /// Ends all communicators, in the order in which they were made: as the other members do, unless there was a fault.
    pub fn close(&mut self, host: &dyn Communicator) {
        let limit = Instant::now() + self.timeout.min(CLOSING_MAX);
        for key in std::mem::take(&mut self.made) {
            let Some(Channel { comm, .. }) = self.channels.remove(&key) else {
                continue;
            };
            let mut state = match host.fault() {
                Some(_) => Code(-1),
                None => self.nccl.finalize(comm),
            };
            while state == Code::IN_PROGRESS && Instant::now() < limit && host.fault().is_none() {
                std::thread::sleep(Duration::from_micros(100));
                state = self.nccl.state(comm);
            }
            match state {
                Code::SUCCESS => self.nccl.destroy(comm),
                _ => self.nccl.abort(comm),
            };
        }
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.abort();
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
