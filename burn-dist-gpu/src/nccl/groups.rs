//! The groups and streams of one rank.

use super::api::{Code, Handle, Nccl, UniqueId};
use super::neighbours::Neighbour;
use super::op::Element;
use super::watch;
use crate::device::{DeviceError, Event, Gpu, Stream};
use crate::peer::api::Copies;
use crate::peer::choice::{Card, GroupId, Route, process, route};
use crate::streams::api::{Hold, Signals};
use crate::streams::order::{Key, Order, Poison, Ticket};
use crate::symmetric::api::Symmetric;
use crate::symmetric::os::{self, MachineId};
use crate::symmetric::workspace::{Links, SLOT, Workspace};
use burn_dist_comm::{Block, Call, CallInfo, CommError, Communicator, Kind, Lane, Strided};
use burn_dist_mesh::DType;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Lanes of the host's communicator on which members tell each other of themselves, counted down from the last one:
/// plans and users have no reason to use them.
const CARD_LANE_LAST: u16 = u16::MAX;

/// A group, on a lane.
pub(crate) struct Channel {
    pub route: Route,
    /// NCCL's communicator, made when it is first needed.
    pub comm: Option<Handle>,
    pub neighbour: Neighbour,
    /// Calls made so far.
    pub calls: u64,
    /// Calls that the device may still be at: launched, and not seen over.
    pub open: u64,
    /// Events that members may be giving to their streams in the call at hand, or the one before.
    pub fresh: Vec<Event>,
    /// Events that are forgotten when all members have come to the next call.
    pub spent: Vec<Event>,
    /// The ids of the groups by which members that share memory are found, in the order of the group.
    pub groups: Vec<GroupId>,
    /// The workspaces of the others, linked when they are first needed.
    pub links: Option<Links>,
}

/// The carrier of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Carrier {
    Nccl,
    /// Copies from memory of others, or from their workspaces.
    Copies,
}

/// How the end of a call on the device is seen.
pub(crate) enum Mark {
    /// There was nothing to do for this rank.
    Nothing,
    /// By an event.
    Event(Event),
    /// By a word, for which the backend's stream can wait.
    Ticket(Ticket),
}

/// A call that is on the device.
#[must_use = "memory is the device's until the call has been waited for"]
pub struct Launched {
    pub(super) key: Key,
    pub(super) info: Arc<CallInfo>,
    pub(super) mark: Mark,
}

/// The channels of one rank to other GPUs. Belongs to one thread at a time.
pub struct Channels {
    pub(super) nccl: Arc<dyn Nccl>,
    pub(super) gpu: Arc<dyn Gpu>,
    /// `None` if the user wants NCCL for everything.
    pub(crate) copies: Option<Arc<dyn Copies>>,
    /// `None` if the host orders calls with the backend's work.
    pub(crate) order: Option<Order>,
    /// The functions that share memory between processes, and the machine where they can; `None` if it is not to be
    /// shared.
    symmetric: Option<(Arc<dyn Symmetric>, MachineId)>,
    /// The workspaces of lanes, made when they are first needed, with slots of so many bytes.
    pub(crate) workspaces: FxHashMap<Lane, Workspace>,
    pub(crate) slot: usize,
    /// The number that distinguishes the rank's process from others.
    process: [u8; 16],
    /// Calls of a lane run one after the other, in the order in which they are made, apart from what NCCL does and what
    /// is copied.
    pub(super) streams: FxHashMap<(Lane, Carrier), Stream>,
    pub(crate) channels: FxHashMap<Key, Channel>,
    /// Keys in the order in which they were first used, which is that of the program.
    pub(super) made: Vec<Key>,
    pub(crate) timeout: Duration,
    /// How long communicators take to end, at most: what is left to flush by then is what nobody waits for, and what has
    /// not stopped is left behind.
    pub(super) closing_max: Duration,
    attached: Option<std::thread::ThreadId>,
    /// The holds of calls that have failed.
    pub(super) kept: Vec<Hold>,
    /// True if an abort could not stop everything: memory of open calls stays the device's.
    pub(super) is_lost: bool,
}

impl Channels {
    /// Returns those of a rank at `gpu`, whose calls give up after `timeout`. Groups are joined when they are needed;
    /// all go through NCCL, and the host orders them with what else the device does.
    pub fn new(nccl: Arc<dyn Nccl>, gpu: Arc<dyn Gpu>, timeout: Duration) -> Self {
        Self {
            nccl,
            gpu,
            copies: None,
            order: None,
            symmetric: None,
            workspaces: FxHashMap::default(),
            slot: SLOT,
            process: process(),
            streams: FxHashMap::default(),
            channels: FxHashMap::default(),
            made: Vec::new(),
            timeout,
            closing_max: Duration::from_secs(5),
            attached: None,
            kept: Vec::new(),
            is_lost: false,
        }
    }

    /// Copies where the members of a group can, and only data is moved.
    pub fn copying(mut self, copies: Arc<dyn Copies>) -> Self {
        self.copies = Some(copies);
        self
    }

    /// Waits no longer than this for communicators to end; by default 5 s.
    pub fn closing_within(mut self, limit: Duration) -> Self {
        self.closing_max = limit;
        self
    }

    /// Orders calls with the backend's work on the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn ordered(mut self, signals: Arc<dyn Signals>) -> Result<Self, DeviceError> {
        self.gpu.attach()?;
        self.order = Some(Order::new(signals)?);
        Ok(self)
    }

    /// Copies through [workspaces](crate::symmetric) where the members of a group live in several processes of one
    /// machine, and only data is moved. Calls have to be [ordered](Self::ordered) and [copied](Self::copying).
    ///
    /// # Errors
    /// Why processes of this machine cannot share memory.
    pub fn sharing(mut self, symmetric: Arc<dyn Symmetric>) -> Result<Self, DeviceError> {
        assert!(
            self.is_ordered() && self.copies.is_some(),
            "order and copies"
        );
        let machine = os::machine().map_err(DeviceError::of_system("sharing of memory"))?;
        self.symmetric = Some((symmetric, machine));
        Ok(self)
    }

    /// Behaves as if the rank were in another process than others of this one, with slots of another size.
    #[cfg(any(test, feature = "simulated-gpus"))]
    pub fn in_process(mut self, process: u8, slot: usize) -> Self {
        (self.process, self.slot) = ([process; 16], slot);
        self
    }

    pub(crate) fn symmetric(&self) -> Arc<dyn Symmetric> {
        let (symmetric, _) = self
            .symmetric
            .as_ref()
            .expect("a member that shares memory");
        Arc::clone(symmetric)
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Returns whether the device orders calls with the backend's work: whether the host need not wait before and after
    /// them.
    pub fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// The word that ends all waits of the backend's stream; `None` if the host waits instead, before and after each
    /// call.
    pub fn poison(&self) -> Option<Poison> {
        self.order.as_ref().map(Order::poison)
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
        call: Call,
    ) -> Result<(Arc<CallInfo>, Element), CommError> {
        let (key, dtype) = ((call.group().clone(), call.lane()), call.dtype());
        let channel = self.channels.get(&key);
        let sequence = channel.map_or(0, |channel| channel.calls);
        let info = host.record(call, sequence)?;
        let bytes = (info.kind() == Kind::Shift).then_some(Element::U8);
        let Some(element) = Element::of(dtype).or(bytes) else {
            return Err(CommError::UnsupportedDtype { call: info, dtype });
        };
        self.join(host, &info)?;
        Ok((info, element))
    }

    /// Joins a recorded call's group and lane, if this is the first call there.
    ///
    /// # Errors
    /// What stops the members' exchange of cards.
    fn join(&mut self, host: &dyn Communicator, info: &Arc<CallInfo>) -> Result<(), CommError> {
        let key = (info.group().clone(), info.lane());
        if !self.channels.contains_key(&key) {
            self.open(host, &key, info)?;
        }
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.calls += 1;
        }
        Ok(())
    }

    /// Meets the members of a group, on a lane.
    fn open(
        &mut self,
        host: &dyn Communicator,
        key: &Key,
        info: &Arc<CallInfo>,
    ) -> Result<(), CommError> {
        let (group, lane) = key;
        self.attach(info)?;
        let machine = self.symmetric.as_ref().map(|(_, machine)| *machine);
        let mine = Card::of(self.copies.as_deref(), self.process, machine);
        let parts = Strided::flat(vec![Card::BYTES; group.len()]);
        let call = Call::all_gather(group, DType::U8, parts, Block::from(mine.to_bytes()))
            .on_lane(Lane(CARD_LANE_LAST.wrapping_sub(lane.0)))
            .labelled(format!("GPUs of lane {}", lane.0))
            .uncounted();
        let bytes = host.run(call)?;
        let cards: Option<Vec<Card>> = bytes.chunks(Card::BYTES).map(Card::of_bytes).collect();
        let cards = cards.expect("members run one version of this crate");
        let route = route(&cards);
        let member = member_of(info);
        if member == 0 {
            tracing::info!(target: "burn_dist", %group, lane = lane.0, way = %route, "how GPUs move what is not reduced");
        }
        let is_here = |card: &&Card| card.process == mine.process;
        let num_here = cards.iter().filter(is_here).count();
        let neighbours = self.nccl.neighbours();
        let channel = Channel {
            route,
            comm: None,
            neighbour: neighbours.enter(&cards[0].group, member, num_here),
            calls: 0,
            open: 0,
            fresh: Vec::new(),
            spent: Vec::new(),
            groups: cards.iter().map(|card| card.group).collect(),
            links: None,
        };
        self.channels.insert(key.clone(), channel);
        self.made.push(key.clone());
        Ok(())
    }

    /// Returns the communicator of a group and lane, which all members make when they first need it.
    pub(super) fn communicator(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<Handle, CommError> {
        if let Some(comm) = self.channel(host, info, key)?.comm {
            return Ok(comm);
        }
        let ((group, lane), member) = (key, member_of(info));
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
            .on_lane(Lane(CARD_LANE_LAST.wrapping_sub(lane.0)))
            .labelled(format!("NCCL id of lane {}", lane.0))
            .uncounted();
        let bytes = host.run(id)?;
        let mut id = UniqueId([0; UniqueId::BYTES]);
        id.0.copy_from_slice(&bytes);
        let function = "ncclCommInitRankConfig";
        let comm = self.nccl.init(group.len(), &id, member);
        let comm = comm.map_err(|code| self.refused(info, function, code, None))?;
        // Known from now on, so that an abort ends it.
        if let Some(channel) = self.channels.get_mut(key) {
            channel.comm = Some(comm);
        }
        self.settled(host, info, function, comm)?;
        Ok(comm)
    }

    /// Makes the device the current one of the thread that calls.
    pub(super) fn attach(&mut self, info: &Arc<CallInfo>) -> Result<(), CommError> {
        let here = std::thread::current().id();
        if self.attached != Some(here) {
            self.gpu.attach().map_err(|error| failed(info, error))?;
            self.attached = Some(here);
        }
        Ok(())
    }

    pub(crate) fn stream(
        &mut self,
        of: (Lane, Carrier),
        info: &Arc<CallInfo>,
    ) -> Result<Stream, CommError> {
        if let Some(stream) = self.streams.get(&of) {
            return Ok(*stream);
        }
        let stream = self.gpu.stream().map_err(|error| failed(info, error))?;
        self.streams.insert(of, stream);
        Ok(stream)
    }

    pub(crate) fn channel(
        &self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<&Channel, CommError> {
        // None where they have been aborted meanwhile.
        let channel = self.channels.get(key);
        channel.ok_or_else(|| host.fault().unwrap_or_else(|| ended(info)))
    }

    /// Waits until the last call on a communicator is no longer in progress.
    pub(super) fn settled(
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

    pub(super) fn accepted(
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

    pub(super) fn refused(
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
}

impl Drop for Channels {
    fn drop(&mut self) {
        // Whoever knows of memory of open calls has asked before.
        let _ = self.abort();
    }
}

/// A call on the driver that failed.
pub(crate) fn failed(info: &Arc<CallInfo>, error: DeviceError) -> CommError {
    CommError::Gpu {
        call: Arc::clone(info),
        function: error.function,
        reason: error.reason,
    }
}

/// A call whose operations do not meet those of the other members.
pub(crate) fn mismatch(info: &Arc<CallInfo>, reason: String) -> CommError {
    let call = Arc::clone(info);
    CommError::Invalid { call, reason }
}

/// The place of the rank of a recorded call in its group.
pub(crate) fn member_of(info: &CallInfo) -> usize {
    let member = info.group().member(info.rank());
    member.expect("calls are recorded by members")
}

fn ended(info: &Arc<CallInfo>) -> CommError {
    CommError::Gpu {
        call: Arc::clone(info),
        function: "ncclCommAbort",
        reason: "the communicators of this rank have ended".into(),
    }
}
