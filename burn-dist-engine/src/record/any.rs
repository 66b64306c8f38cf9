//! The recorder of a mesh, whatever its ranks compute on.
//!
//! A program asks a mesh for more than Burn's functions through [`AnyRecorder`], whether the program's backend
//! names the ranks' ([`Ranks`]) or not ([`Registered`]).

use std::any::{Any, TypeId, type_name};
use std::ops::Range;
use std::sync::Arc;

use burn_backend::{DType, DTypeUsageSet};
use burn_dist_door::{
    Inner, MeshChannel, MeshClient, MeshDevice, Origin, Queue, Registered, Ticket,
};
use burn_ir::{BackendIr, OperationIr, TensorId, TensorIr};
use burn_router::get_client;

use super::hold_note::HoldNote;
use super::parts::{PendingPart, Placement, TensorParts, Uploaded, upload};
use super::planner::RecorderStats;
use super::{Ranks, Recorder};
use crate::burn::data::*;
use crate::comm::{Block, LocalHub};
use crate::layout::{Layout, Rows};
use crate::mesh::{MeshShape, Rank};
use crate::ops::Recorded;
use crate::ops::custom::CheckedFormulas;
use crate::plan::explain::{Ask, Explanation};
use crate::run::{Fault, StatsTicket, Trace, block_of};

/// Moves parts to the devices of ranks; made for the backend that these compute on.
pub(super) type Upload = fn(TensorParts, &MeshDevice) -> Result<Uploaded, Fault>;

/// A recorder of a mesh, of which is not known what its ranks compute on.
#[allow(missing_docs)] // Functions of `Recorder`.
pub trait AnyRecorder: burn_dist_door::Recorder {
    /// Returns the type of the backend that the ranks compute on, and its name.
    fn backend(&self) -> (TypeId, &'static str);
    fn mesh(&self) -> &MeshShape;
    fn record_any(&mut self, op: Recorded);
    fn formulas(&mut self) -> &mut CheckedFormulas;
    fn settle(&mut self, tensor: &TensorIr) -> Result<Placement, Fault>;
    fn place(&mut self, tensor: &TensorIr) -> Result<Arc<Layout>, Fault>;
    fn part(&mut self, tensor: TensorId, dtype: DType, rank: Rank, layout: &Layout) -> PendingPart;
    fn upload(&self) -> Upload;
    fn put_uploaded(&mut self, id: TensorId, tensor: Uploaded) -> Result<(), Fault>;
    fn add_rows(
        &mut self,
        id: TensorId,
        data: TensorData,
        shape: &[usize],
        here: Range<u32>,
    ) -> Result<(), Rows>;
    fn random_state(&mut self) -> (u64, u64);
    fn set_random_state(&mut self, state: (u64, u64));
    fn hub(&self) -> Option<Arc<LocalHub>>;
    fn hold(&mut self, note: Arc<HoldNote>);
    fn release(&mut self, note: &Arc<HoldNote>);
    fn stats(&mut self) -> RecorderStats;
    fn runtime_stats(&mut self) -> Option<StatsTicket>;
    fn fault(&self) -> Option<Fault>;
    fn trace(&self) -> Option<Trace>;
    fn explain(&mut self, ask: Ask);
    fn explained(&mut self) -> Option<Explanation>;
}

impl<B: BackendIr> AnyRecorder for Recorder<B> {
    fn backend(&self) -> (TypeId, &'static str) {
        (TypeId::of::<B>(), type_name::<B>())
    }

    fn mesh(&self) -> &MeshShape {
        Self::mesh(self)
    }

    fn record_any(&mut self, op: Recorded) {
        Self::record(self, op);
    }

    fn formulas(&mut self) -> &mut CheckedFormulas {
        &mut self.formulas
    }

    fn settle(&mut self, tensor: &TensorIr) -> Result<Placement, Fault> {
        Self::settle(self, tensor)
    }

    fn place(&mut self, tensor: &TensorIr) -> Result<Arc<Layout>, Fault> {
        Self::place(self, tensor)
    }

    fn part(&mut self, tensor: TensorId, dtype: DType, rank: Rank, layout: &Layout) -> PendingPart {
        let shape = layout.local_shape(Self::mesh(self), rank);
        let bytes = self.host_data(tensor).map(|data| data.bytes().clone());
        let ticket = self.local(tensor, rank);
        Box::new(move || match bytes {
            Some(bytes) => Ok(Block::from(Arc::new(bytes))),
            None => block_of::<B>(ticket.wait()?, rank, &shape, dtype),
        })
    }

    fn upload(&self) -> Upload {
        upload::<B>
    }

    fn put_uploaded(&mut self, id: TensorId, tensor: Uploaded) -> Result<(), Fault> {
        let handles = tensor.handles.downcast();
        let handles = handles.map_err(|_| Fault::bug("parts are of another backend's ranks"))?;
        self.put(id, *handles, tensor.placement, tensor.dtype)
    }

    fn add_rows(
        &mut self,
        id: TensorId,
        data: TensorData,
        shape: &[usize],
        here: Range<u32>,
    ) -> Result<(), Rows> {
        Self::add_rows(self, id, data, shape, here)
    }

    fn random_state(&mut self) -> (u64, u64) {
        Self::random_state(self)
    }

    fn set_random_state(&mut self, state: (u64, u64)) {
        Self::set_random_state(self, state);
    }

    fn hub(&self) -> Option<Arc<LocalHub>> {
        Self::hub(self)
    }

    fn hold(&mut self, note: Arc<HoldNote>) {
        Self::hold(self, note);
    }

    fn release(&mut self, note: &Arc<HoldNote>) {
        Self::release(self, note);
    }

    fn stats(&mut self) -> RecorderStats {
        Self::stats(self)
    }

    fn runtime_stats(&mut self) -> Option<StatsTicket> {
        Self::runtime_stats(self)
    }

    fn fault(&self) -> Option<Fault> {
        Self::fault(self)
    }

    fn trace(&self) -> Option<Trace> {
        Self::trace(self)
    }

    fn explain(&mut self, ask: Ask) {
        Self::explain(self, ask);
    }

    fn explained(&mut self) -> Option<Explanation> {
        Self::explained(self)
    }
}

impl dyn AnyRecorder {
    /// Returns the recorder, if its ranks compute on `B`.
    ///
    /// # Errors
    /// [`Fault::OtherBackend`].
    pub(crate) fn of<B: BackendIr>(&mut self) -> Result<&mut Recorder<B>, Fault> {
        let (_, found) = self.backend();
        self.as_any().downcast_mut().ok_or(Fault::OtherBackend {
            asked: type_name::<B>(),
            found,
        })
    }
}

/// The ranks of a mesh whose recorder this crate made.
pub trait OnRanks: Inner {
    /// Returns the recorder.
    #[doc(hidden)]
    fn any(recorder: &mut Self::Recorder) -> &mut dyn AnyRecorder;
}

impl<B: BackendIr> OnRanks for Ranks<B> {
    #[inline]
    fn any(recorder: &mut Recorder<B>) -> &mut dyn AnyRecorder {
        recorder
    }
}

impl OnRanks for Registered {
    /// # Panics
    /// If another engine has registered itself with the door: a program has one.
    fn any(recorder: &mut Box<dyn burn_dist_door::Recorder>) -> &mut dyn AnyRecorder {
        let erased: Option<&mut Erased> = recorder.as_any().downcast_mut();
        &mut *erased.expect("a program has one engine").0
    }
}

/// A recorder for [`Registered`], which has to find it again.
pub(super) struct Erased(pub(super) Box<dyn AnyRecorder>);

impl burn_dist_door::Recorder for Erased {
    #[inline]
    fn record(&mut self, op: OperationIr) {
        self.0.record(op);
    }

    fn drop_tensor(&mut self, id: TensorId) {
        self.0.drop_tensor(id);
    }

    fn enter(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        self.0.enter(id, data, origin);
    }

    fn read(&mut self, tensors: Vec<TensorIr>) -> Vec<Ticket<TensorData>> {
        self.0.read(tensors)
    }

    fn sync(&mut self) -> Ticket<()> {
        self.0.sync()
    }

    fn seed(&mut self, seed: u64) {
        self.0.seed(seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        self.0.dtype_usage(dtype)
    }

    fn path_of(&self, tensor: &TensorIr) -> Option<String> {
        self.0.path_of(tensor)
    }

    fn stopped(&self) -> Option<String> {
        self.0.stopped()
    }

    fn queue(&self) -> Arc<Queue> {
        self.0.queue()
    }

    fn close(&mut self) -> Box<dyn Any + Send> {
        self.0.close()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Returns the handle on the recorder of a device's mesh.
pub(super) fn client<E: OnRanks>(device: &MeshDevice) -> MeshClient<E> {
    get_client::<MeshChannel<E>>(device)
}

/// Calls `f` with the recorder of a mesh, under its lock.
pub(super) fn with<E: OnRanks, T>(
    client: &MeshClient<E>,
    f: impl FnOnce(&mut dyn AnyRecorder) -> T,
) -> T {
    client.with(|recorder| f(E::any(recorder)))
}
