//! The endpoint of one rank.

use super::channel::{Deposit, Input};
use super::hub::{ChannelKey, LocalHub};
use super::pending::{LocalCall, PendingBuffer, PendingValues};
use crate::buffer::{Pool, is_reducible};
use crate::geometry::{check, input_bytes};
use crate::info::{CallInfo, What};
use crate::sync::lock;
use crate::{
    Block, Call, CommError, Communicator, Exchange, Group, Lane, Payload, Pending, SharedBuffer,
    Stats,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::collective::{Collective, elem_bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    pub(super) fn new(hub: Arc<LocalHub>, rank: Rank) -> Self {
        Self { hub, rank }
    }

    /// The hub that this rank shares with the others.
    pub fn hub(&self) -> &Arc<LocalHub> {
        &self.hub
    }

    /// Records and announces a call; `input` comes with whether it is counted and recorded.
    fn begin(
        &self,
        group: Group,
        lane: Lane,
        label: Arc<str>,
        what: What,
        input: (Input, bool),
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
        (mut input, counted): (Input, bool),
    ) -> Result<LocalCall, CommError> {
        let (hub, rank, state) = (&self.hub, self.rank, self.hub.state(self.rank));
        let Some(member) = group.member(rank) else {
            return Err(CommError::NotAMember {
                rank,
                group,
                what: what.to_string(),
            });
        };
        let is_here = |rank: &Rank| hub.is_local(*rank);
        if what.is_exchange() && !group.ranks().iter().all(is_here) {
            return Err(CommError::NoSharedMemory { rank });
        }
        let is_send = matches!(&what, What::Collective(_, Collective::Send { .. }, _));
        let is_transfer = what.is_transfer();
        let channel = hub.channel(&ChannelKey {
            group: group.clone(),
            lane,
            is_transfer,
        })?;
        let sequence = channel.next_sequence(member);
        let info = CallInfo::new(rank, (group, lane), sequence, label, what);
        if counted {
            state.recorder.push(Arc::clone(&info));
        }
        let received = prepare(&info, member, &mut input, &hub.memory.pool)?;
        if counted {
            state.counters.add(info.kind(), received);
        }

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
        let completion = if holds_back {
            let completion = channel.completion(sequence);
            lock(&state.held_back).push((Arc::clone(&channel), member, deposit));
            completion
        } else {
            hub.deposit(&channel, member, deposit)?
        };
        Ok(LocalCall {
            hub: Arc::clone(hub),
            channel,
            completion,
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
    let (What::Collective(dtype, collective, axes), Input::Block(block)) = (&info.what, input)
    else {
        return Ok(info.received_bytes());
    };
    let members: usize = axes.iter().product();
    if !axes.is_empty() && members != info.group.len() {
        return Err(CommError::Invalid {
            call: Arc::clone(info),
            reason: format!(
                "axes of sizes {axes:?} have {members} members, and the group {}",
                info.group.len()
            ),
        });
    }
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
            *block = Some(Block::from(pool.copy_of(unaligned.as_slice())));
        }
    }
    Ok(collective.received_bytes(*dtype, info.group.ranks(), member))
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

    fn start(&self, call: Call) -> Result<Pending<SharedBuffer>, CommError> {
        let Call {
            group,
            lane,
            label,
            dtype,
            collective,
            input,
            axes,
            counted,
        } = call;
        let call = self.begin(
            group,
            lane,
            label,
            What::Collective(dtype, collective, axes),
            (Input::Block(input), counted),
        )?;
        Ok(Pending::new(PendingBuffer(call)))
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
        let call = self.begin(group, lane, label, what, (Input::Value(payload), true))?;
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

    fn record(&self, call: Call, sequence: u64) -> Result<Arc<CallInfo>, CommError> {
        let (rank, group) = (self.rank, call.group);
        let what = What::Collective(call.dtype, call.collective, call.axes);
        let Some(member) = group.member(rank) else {
            let what = what.to_string();
            return Err(CommError::NotAMember { rank, group, what });
        };
        if let Some(fault) = self.hub.fault() {
            return Err(fault);
        }
        let info = CallInfo::new(rank, (group, call.lane), sequence, call.label, what);
        let state = self.hub.state(rank);
        state.recorder.push(Arc::clone(&info));
        let valid = match &info.what {
            What::Collective(dtype, collective, _) => {
                input_bytes(collective, *dtype, &info.group, member)
            }
            What::Exchange(..) | What::Operands(..) => Ok(None),
        };
        if let Err(reason) = valid {
            state.counters.add(info.kind(), 0);
            return Err(CommError::Invalid { call: info, reason });
        }
        state.counters.add(info.kind(), info.received_bytes());
        Ok(info)
    }

    fn behind(&self, call: &CallInfo) -> Vec<Rank> {
        self.hub.behind(call)
    }

    fn lost(&self, call: &Arc<CallInfo>) -> Option<CommError> {
        self.hub.lost(call)
    }
}
