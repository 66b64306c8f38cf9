//! Jobs of a worker: what it is handed, and where answers go.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use burn_backend::{Scalar, StreamId};
use burn_dist_door::InFlight;
use burn_ir::{BackendIr, TensorId};

use super::Fault;
use super::stats::RankStats;
use crate::burn::data::*;
use crate::comm::WindowPrint;
use crate::layout::Rows;
use crate::mesh::Rank;
use crate::plan::ValueIndex;
use crate::plan::task::RankPlan;

/// A host tensor that a window uses.
#[derive(Clone)]
pub(crate) struct HostValue {
    pub value: ValueIndex,
    pub data: Arc<TensorData>,
    /// The rows that `data` has, if this process has not all.
    pub rows: Option<Rows>,
}

/// Values that one run of a plan is bound to.
#[derive(Clone)]
pub(crate) struct RunArgs {
    /// Recorded id of each value.
    pub ids: Arc<[TensorId]>,
    /// Scalars by slot.
    pub scalars: Arc<[Scalar]>,
    /// Host tensors, by ascending value.
    pub host: Arc<[HostValue]>,
    /// Tensors that were dropped without being used.
    pub forget: Arc<[TensorId]>,
    /// Seed of random operations.
    pub seed: u64,
    /// Stream of the window's first random operation.
    pub streams: u64,
    /// Number of the window.
    pub number: u64,
    /// The window, as other processes know it, if there are some.
    pub print: Option<WindowPrint>,
}

impl RunArgs {
    /// Bytes that the window keeps on the host until it has run.
    pub(super) fn host_bytes(&self) -> u64 {
        let tensors: usize = self.host.iter().map(|value| value.data.bytes().len()).sum();
        (tensors + size_of_val(&*self.ids) + size_of_val(&*self.scalars)) as u64
    }

    /// Returns the host tensor that is a value of the window.
    pub(crate) fn host(&self, value: ValueIndex) -> Option<&HostValue> {
        // A batch may come as a tensor per item, and every rank looks for each of them.
        let at = self.host.binary_search_by_key(&value, |host| host.value);
        at.ok().map(|at| &self.host[at])
    }
}

/// A read: the ranks that send their part of the tensor, and where to.
pub(super) struct Reader {
    pub senders: Vec<Rank>,
    pub parts: Sender<(Rank, Result<TensorData, Fault>)>,
}

/// One plan to run.
pub(super) struct Run {
    pub plan: Arc<RankPlan>,
    pub reads: Arc<[Reader]>,
    /// Planned peak of the window.
    pub peak_bytes: u64,
    pub args: RunArgs,
    /// Until all ranks have dropped it, the window is in flight.
    pub _in_flight: Arc<InFlight>,
}

/// A job of a worker.
pub(super) enum Job<B: BackendIr> {
    Run(Box<Run>),
    Sync(Sender<Result<(), Fault>>),
    /// For the stream that asks.
    Local(TensorId, StreamId, Sender<Result<B::Handle, Fault>>),
    Put(TensorId, B::Handle, u64),
    Stats(Sender<RankStats>),
}
