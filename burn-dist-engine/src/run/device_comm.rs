//! The communicator of a rank whose tensors are on a device: calls take them where they lie.
//!
//! Ranks that share a device hand each other handles ([`device_exchange`]), and ranks that each have a GPU of their own
//! communicate on device memory ([`gpus`]). All else is the host's communicator: it counts, records, and carries
//! faults and blocks.

use std::sync::Arc;

use burn_ir::BackendIr;

use super::device_exchange::{self, failed};
use super::gpus::{self, Flight, Gpus};
use super::turn::Turn;
use crate::comm::{
    Call, CallInfo, CommError, Communicator, Exchange, Group, Kind, Payload, Pending, PendingCall,
    SharedBuffer, Stats,
};
use crate::mesh::Rank;
use crate::plan::task::CollectiveTask;

/// The tensor of a call on a device.
pub(super) enum Operand<B: BackendIr> {
    /// The input of a collective, with the views by which it is cut and joined.
    Collective(B::Handle, Box<CollectiveTask>),
    /// One end of a transfer.
    Transfer {
        /// The tensor of the sender.
        input: Option<B::Handle>,
        /// The tensor in words.
        what: String,
        bytes: usize,
    },
}

/// The endpoint of a rank at a device.
pub(super) struct DeviceComm<B: BackendIr>(Arc<Inner<B>>);

struct Inner<B: BackendIr> {
    /// Dropped before the host's endpoint, with which the rank leaves.
    gpus: Option<Gpus<B>>,
    host: Arc<dyn Communicator>,
    turn: Turn,
    device: B::Device,
}

impl<B: BackendIr> DeviceComm<B> {
    pub(super) fn new(
        host: Arc<dyn Communicator>,
        gpus: Option<Gpus<B>>,
        turn: Turn,
        device: B::Device,
    ) -> Self {
        Self(Arc::new(Inner {
            gpus,
            host,
            turn,
            device,
        }))
    }

    fn transfer(
        &self,
        exchange: Exchange,
        input: Option<B::Handle>,
    ) -> Result<Pending<Payload>, CommError> {
        let mine: Payload = match input {
            Some(input) => Arc::new(input),
            None => Arc::new(()),
        };
        let pending = self.0.host.exchange(exchange, mine)?;
        Ok(Pending::new(Transferred {
            pending,
            of: Arc::clone(&self.0),
        }))
    }
}

impl<B: BackendIr> Communicator for DeviceComm<B> {
    fn is_on_device(&self, group: &Group, kind: Kind) -> bool {
        let Inner { turn, gpus, .. } = &*self.0;
        let is_transfer = matches!(kind, Kind::Send | Kind::Recv);
        turn.share_device(group.ranks())
            || (gpus.is_some() && !is_transfer && turn.are_alone(group.ranks()))
    }

    fn start_on_device(&self, call: Call, tensor: Payload) -> Result<Pending<Payload>, CommError> {
        let operand = tensor.downcast::<Operand<B>>().ok();
        let of = Arc::clone(&self.0);
        let (input, task) = match operand.and_then(Arc::into_inner) {
            Some(Operand::Collective(input, task)) => (input, task),
            Some(Operand::Transfer { input, what, bytes }) => {
                let exchange = Exchange::new(call.group(), what).counted_as(Kind::Recv, bytes);
                return self.transfer(exchange.labelled(call.label().clone()), input);
            }
            None => {
                return Err(failed(
                    "an operand is none; this is a bug in burn-dist".into(),
                ));
            }
        };
        match &self.0.gpus {
            Some(gpus) if !self.0.turn.share_device(&task.group) => {
                let flight = gpus::start::<B>(&task, call, input, gpus, &self.0.device)?;
                Ok(Pending::new(OnGpus { flight, task, of }))
            }
            _ => {
                let pending = device_exchange::start::<B>(&task, input, &*self.0.host, &call)?;
                Ok(Pending::new(Exchanged { pending, task, of }))
            }
        }
    }

    fn land(&self) -> Result<(), CommError> {
        let Inner { turn, gpus, .. } = &*self.0;
        match gpus {
            Some(gpus) => turn.yield_turn(|| gpus.land()),
            None => Ok(()),
        }
    }

    fn end_on_device(&self) {
        if let Some(gpus) = &self.0.gpus {
            gpus.abort();
        }
    }

    fn close(&self) {
        if let Some(gpus) = &self.0.gpus {
            gpus.close();
        }
    }

    fn rank(&self) -> Rank {
        self.0.host.rank()
    }

    fn num_ranks(&self) -> usize {
        self.0.host.num_ranks()
    }

    fn start(&self, call: Call) -> Result<Pending<SharedBuffer>, CommError> {
        self.0.host.start(call)
    }

    fn exchange(
        &self,
        exchange: Exchange,
        payload: Payload,
    ) -> Result<Pending<Arc<[Payload]>>, CommError> {
        self.0.host.exchange(exchange, payload)
    }

    fn abort(&self, error: CommError) {
        self.0.host.abort(error);
    }

    fn fault(&self) -> Option<CommError> {
        self.0.host.fault()
    }

    fn stats(&self) -> Stats {
        self.0.host.stats()
    }

    fn recent_calls(&self) -> Vec<Arc<CallInfo>> {
        self.0.host.recent_calls()
    }

    fn record(&self, call: Call, sequence: u64) -> Result<Arc<CallInfo>, CommError> {
        self.0.host.record(call, sequence)
    }

    fn behind(&self, call: &CallInfo) -> Vec<Rank> {
        self.0.host.behind(call)
    }

    fn lost(&self, call: &Arc<CallInfo>) -> Option<CommError> {
        self.0.host.lost(call)
    }
}

/// A collective between ranks at one device.
struct Exchanged<B: BackendIr> {
    pending: Pending<Arc<[Payload]>>,
    task: Box<CollectiveTask>,
    of: Arc<Inner<B>>,
}

impl<B: BackendIr> PendingCall<Payload> for Exchanged<B> {
    fn info(&self) -> &Arc<CallInfo> {
        self.pending.info()
    }

    fn is_ready(&self) -> bool {
        self.pending.is_ready()
    }

    fn wait(self: Box<Self>) -> Result<Payload, CommError> {
        let Inner { turn, device, .. } = &*self.of;
        let output = device_exchange::finish::<B>(&self.task, self.pending, turn, device)?;
        Ok(Arc::new(output))
    }
}

/// A tensor that changes hands between ranks at one device.
struct Transferred<B: BackendIr> {
    pending: Pending<Arc<[Payload]>>,
    of: Arc<Inner<B>>,
}

impl<B: BackendIr> PendingCall<Payload> for Transferred<B> {
    fn info(&self) -> &Arc<CallInfo> {
        self.pending.info()
    }

    fn is_ready(&self) -> bool {
        self.pending.is_ready()
    }

    fn wait(self: Box<Self>) -> Result<Payload, CommError> {
        let Self { pending, of } = *self;
        let payloads = of.turn.yield_turn(|| pending.wait())?;
        Ok(Arc::clone(&payloads[0]))
    }
}

/// A collective between ranks with a GPU each.
struct OnGpus<B: BackendIr> {
    flight: Flight<B>,
    task: Box<CollectiveTask>,
    of: Arc<Inner<B>>,
}

impl<B: BackendIr> PendingCall<Payload> for OnGpus<B> {
    fn info(&self) -> &Arc<CallInfo> {
        self.flight.info()
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Payload, CommError> {
        let Inner {
            gpus, turn, device, ..
        } = &*self.of;
        let gpus = gpus.as_ref().expect("it has started the call");
        let output = gpus::finish::<B>(&self.task, self.flight, gpus, turn, device)?;
        Ok(Arc::new(output))
    }
}
