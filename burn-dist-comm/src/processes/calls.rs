//! The calls of a mesh that several processes make together: those in flight, and inputs that came before theirs.
//!
//! Plain data: inputs come in and go out. What is wrong with a call stops the ranks here.

use super::head::{InputId, Out};
use super::membership::End;
use super::placement::Placement;
use super::ranks::{Opened, Ranks};
use super::waiting::Waiting;
use crate::execution::{Execution, Operation};
use crate::info::{CallInfo, What};
use crate::transport::{Destination, Message};
use crate::{Block, CommError};
use burn_dist_mesh::Rank;
use burn_dist_mesh::collective::Collective;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

/// A round of a call: the channel, the number of the call there, and which round.
type CallKey = (u64, u64, u8);

/// The calls of a mesh in flight here, and what is known of the ranks that they wait for.
pub(super) struct Calls {
    ranks: Weak<dyn Ranks>,
    placement: Arc<Placement>,
    in_flight: FxHashMap<CallKey, Call>,
    /// Inputs that came before their call, by call and member: the id, the sender and the body.
    early: Waiting<(CallKey, u32), (InputId, u32, Block)>,
    /// Ranks of other processes that make no more calls.
    left: FxHashSet<Rank>,
    /// Processes that have ended without waiting for the others.
    lost: FxHashMap<u32, End>,
}

/// A call in flight.
struct Call {
    opened: Opened,
    /// Group, lane and direction, hashed alike by all processes.
    channel: u64,
    fingerprint: u64,
    execution: Execution,
}

impl InputId {
    fn key(&self) -> CallKey {
        (self.channel, self.sequence, self.round)
    }
}

impl Call {
    /// The ranks whose inputs are still to come.
    fn awaited(&self) -> impl Iterator<Item = Rank> {
        let ranks = self.execution.group().ranks();
        self.execution.awaited().map(|member| ranks[member])
    }
}

/// A number for the description that must be equal for all members of a call.
fn fingerprint(info: &CallInfo) -> u64 {
    let label = info.label();
    match &info.what {
        // Both halves of a transfer are one description.
        What::Collective(dtype, Collective::Recv { bytes }, axes) => {
            hash((dtype, &Collective::Send { bytes: *bytes }, axes, label))
        }
        What::Collective(dtype, collective, axes) | What::Operands(dtype, collective, axes) => {
            hash((dtype, collective, axes, label))
        }
        What::Exchange(what, _) => hash((what, label)),
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Calls {
    /// Keeps at most so many bytes of inputs that come before their call.
    pub(super) fn new(
        ranks: Weak<dyn Ranks>,
        placement: Arc<Placement>,
        early_bytes_max: usize,
    ) -> Self {
        Self {
            ranks,
            placement,
            in_flight: FxHashMap::default(),
            early: Waiting::new(early_bytes_max),
            left: FxHashSet::default(),
            lost: FxHashMap::default(),
        }
    }

    /// Returns whether none is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns whether `rank` is a member of one in flight.
    pub(super) fn has_member(&self, rank: Rank) -> bool {
        let mut calls = self.in_flight.values();
        calls.any(|call| call.execution.group().member(rank).is_some())
    }

    /// Returns how the end of a process was seen, if it is lost.
    pub(super) fn loss(&self, process: u32) -> Option<&End> {
        self.lost.get(&process)
    }

    /// Returns whether all ranks of another process have left.
    pub(super) fn have_left(&self, process: u32) -> bool {
        let mut ranks = self.placement.ranks_of(process);
        ranks.all(|rank| self.left.contains(&rank))
    }

    /// Notes that a rank of another process makes no more calls.
    pub(super) fn leave(&mut self, rank: Rank) {
        self.left.insert(rank);
    }

    /// Notes that a process has ended without waiting for the others.
    pub(super) fn lose(&mut self, process: u32, end: &End) {
        self.lost.insert(process, end.clone());
    }

    /// Ends all of them: whoever waits for one is woken.
    pub(super) fn clear(&mut self) {
        self.in_flight.clear();
        self.early.clear();
    }

    /// Returns where the input that a message brings is to go.
    pub(super) fn destination(&mut self, id: &InputId, bytes: usize) -> Destination {
        let Some(call) = self.in_flight.get_mut(&id.key()) else {
            return Destination::Later;
        };
        let is_expected = call.fingerprint == id.fingerprint;
        let region = is_expected.then(|| call.execution.region(id.member as usize, bytes));
        region
            .flatten()
            .map_or(Destination::Buffer, Destination::Region)
    }

    /// Starts a call that all ranks here have made.
    pub(super) fn open(&mut self, mut opened: Opened, out: &mut Out) {
        let info = &opened.info;
        let Some(operation) = Operation::of(&info.what) else {
            return;
        };
        let process_of = |rank: &Rank| self.placement.process_of[rank.0 as usize];
        let execution = Execution::new(
            operation,
            info.group.clone(),
            info.group.ranks().iter().map(process_of).collect(),
            self.placement.process,
            std::mem::take(&mut opened.inputs),
        );
        let call = Call {
            channel: hash((info.group.ranks(), info.lane, info.what.is_transfer())),
            fingerprint: fingerprint(info),
            execution,
            opened,
        };
        self.start(call, out);
    }

    /// Sends what others need of the inputs of a round, and sees what is there of theirs.
    fn start(&mut self, mut call: Call, out: &mut Out) {
        let mut id = InputId {
            mesh: self.placement.mesh,
            channel: call.channel,
            sequence: call.opened.info.sequence,
            round: call.execution.round(),
            member: 0,
            fingerprint: call.fingerprint,
            call: call.opened.info.to_string(),
        };
        let key = id.key();
        let memory = call.opened.ranks.memory();
        let send = |process, member: usize, body| {
            id.member = member as u32;
            let head = id.to_bytes();
            out(Message {
                process,
                head,
                body,
            });
        };
        call.execution.start(&self.placement.others, memory, send);
        let members = 0..call.execution.group().len() as u32;
        // Before anything can go wrong with it: who waits is woken when it is released, after the fault can be seen.
        self.in_flight.insert(key, call);
        let early: Vec<_> = members
            .flat_map(|member| self.early.take(&(key, member)))
            .collect();
        for (id, from, body) in early {
            self.input(id, from, body, out);
        }
        self.advance(key, out);
        self.check();
    }

    /// Takes what process `from` sends of an input.
    pub(super) fn input(&mut self, id: InputId, from: u32, body: Block, out: &mut Out) {
        let key = id.key();
        let Some(call) = self.in_flight.get_mut(&key) else {
            let (at, bytes) = ((key, id.member), body.len() + id.call.len());
            let text = id.call.clone();
            if let Err(bytes_max) = self.early.put(at, (id, from, body), bytes) {
                let error = CommError::TooFarAhead {
                    process: self.placement.name(from),
                    ahead: format!(
                        "of inputs of calls that were not made here there are more than {bytes_max} bytes, the last \
                         one: {text}"
                    ),
                };
                if let Some(ranks) = self.ranks.upgrade() {
                    ranks.abort(error);
                }
            }
            return;
        };
        let member = id.member as usize;
        if call.fingerprint != id.fingerprint || !call.execution.awaits(member) {
            let mut processes = [from, self.placement.process];
            processes.sort_unstable();
            return call.opened.ranks.abort(CommError::Diverged {
                call: Arc::clone(&call.opened.info),
                other: id.call,
                processes: processes.map(|number| self.placement.name(number)).into(),
            });
        }
        call.execution.arrive(member, body);
        self.advance(key, out);
    }

    /// Ends a round whose inputs are all there.
    fn advance(&mut self, key: CallKey, out: &mut Out) {
        let Some(call) = self.in_flight.get(&key) else {
            return;
        };
        if !call.execution.is_complete() {
            return call.opened.completion.await_ranks(call.awaited().collect());
        }
        let Some(mut call) = self.in_flight.remove(&key) else {
            return;
        };
        let memory = call.opened.ranks.memory();
        match call.execution.finish(memory) {
            Ok(Some(work)) => call.opened.completion.conclude_work(work),
            Ok(None) => self.start(call, out),
            Err(reason) => {
                let reason = format!("{}: {reason}", call.opened.info);
                call.opened.ranks.abort(CommError::Connection { reason });
            }
        }
    }

    /// Stops the ranks here if a call waits for a rank that makes no more, or whose process is lost.
    pub(super) fn check(&self) {
        if self.left.is_empty() && self.lost.is_empty() {
            return;
        }
        let process_of = |rank: Rank| self.placement.process_of[rank.0 as usize];
        let is_gone =
            |rank: &Rank| self.left.contains(rank) || self.lost.contains_key(&process_of(*rank));
        let mut calls = self.in_flight.values();
        let found = calls.find_map(|call| Some((call, call.awaited().find(is_gone)?)));
        let Some((call, rank)) = found else { return };
        let number = process_of(rank);
        let process = self.placement.name(number);
        let info = Arc::clone(&call.opened.info);
        call.opened.ranks.abort(match self.left.contains(&rank) {
            true => CommError::RankLeft {
                rank,
                call: info,
                process: Some(process),
            },
            false => CommError::ProcessLost {
                process,
                call: Some(info),
                window: None,
                connection: self.loss(number).and_then(End::of_connection),
            },
        });
    }
}
