//! What burn-router calls: recording of operations, data and reads.

use std::cell::RefCell;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn_backend::backend::ExecutionError;
use burn_backend::{DType, DTypeUsageSet, TensorData};
use burn_ir::{BackendIr, OperationIr, TensorId, TensorIr};
use burn_router::{RouterTensor, RunnerClient};
use burn_std::future::DynFut;
use parking_lot::ReentrantMutex;

use super::call::{Locked, Recording};
use super::{MeshDevice, Recorder};
use crate::layout::Layout;
use crate::mesh::Rank;
use crate::ops::Recorded;
use crate::plan::Origin;
use crate::run::{Fault, Queue, ReadTicket};

/// A handle on the recorder of one mesh; every tensor holds one.
pub struct MeshClient<B: BackendIr> {
    /// burn-router keeps a client per mesh for the life of the process, so nothing is lost by never freeing what it
    /// shares.
    shared: &'static Shared<B>,
}

struct Shared<B: BackendIr> {
    mesh: u16,
    next_id: AtomicU64,
    queue: Arc<Queue>,
    recorder: Locked<B>,
}

// The recorder never leaves its state half-changed.
impl<B: BackendIr> RefUnwindSafe for Shared<B> {}

/// Tensor ids carry the id of their mesh in their upper bits: an id of one mesh is never one of another.
const MESH_SHIFT: u32 = 48;

impl<B: BackendIr> Clone for MeshClient<B> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            shared: self.shared,
        }
    }
}

impl<B: BackendIr> MeshClient<B> {
    /// Called by burn-router, once per mesh and inner backend.
    pub(super) fn new(device: &MeshDevice) -> Self {
        let mesh = burn_std::device::Device::to_id(device).index_id;
        let recorder = Recorder::new(device);
        let shared: &'static Shared<B> = Box::leak(Box::new(Shared {
            mesh,
            next_id: AtomicU64::new(u64::from(mesh) << MESH_SHIFT),
            queue: recorder.queue().clone(),
            recorder: ReentrantMutex::new(RefCell::new(recorder)),
        }));
        if let Some(inner) = device.inner() {
            inner.on_close(Box::new(move || {
                let workers = shared.recorder.lock().borrow_mut().close();
                // Joined without the lock: a worker that is still busy must not keep others from dropping their
                // tensors.
                drop(workers);
            }));
        }
        Self { shared }
    }

    /// Calls `f` with the recorder, under its lock.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Recorder<B>) -> T) -> T {
        f(&mut self.shared.recorder.lock().borrow_mut())
    }

    /// Keeps other threads from recording on this mesh until the result is dropped.
    #[inline]
    pub(super) fn recording(&self) -> Recording<B> {
        Recording::new(self.clone(), &self.shared.recorder)
    }

    /// Waits if the program is too far ahead of the ranks, unless this thread still holds the lock: then the outer call
    /// waits when it ends.
    #[inline]
    pub(super) fn wait_for_room(&self) {
        if self.shared.queue.is_full() {
            self.wait_in_queue();
        }
    }

    #[cold]
    fn wait_in_queue(&self) {
        if !self.shared.recorder.is_owned_by_current_thread() && !std::thread::panicking() {
            self.shared.queue.wait();
        }
    }

    /// Returns whether both are handles on one mesh.
    #[inline]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.shared, other.shared)
    }

    /// Returns the layout of `tensor` on the ranks, closing the window.
    pub fn layout_of(&self, tensor: &RouterTensor<Self>) -> Result<Layout, Fault> {
        let tensor = tensor.clone();
        let _recording = self.recording();
        let tensor = tensor.into_ir();
        let layout = self.with(|recorder| recorder.place(&tensor))?;
        Ok(layout.as_ref().clone())
    }

    /// Returns a rank's part of `tensor` with its shape, closing the window.
    pub fn local_of(
        &self,
        tensor: &RouterTensor<Self>,
        rank: Rank,
    ) -> Result<(B::Handle, Vec<usize>), Fault> {
        let tensor = tensor.clone();
        let (layout, ticket, mesh) = {
            let _recording = self.recording();
            let tensor = tensor.into_ir();
            self.with(|recorder| {
                let layout = recorder.place(&tensor)?;
                let ticket = recorder.local(tensor.id, rank);
                Ok::<_, Fault>((layout, ticket, recorder.mesh().clone()))
            })?
        };
        Ok((ticket.wait()?, layout.local_shape(&mesh, rank)))
    }

    /// Consumes `tensor`, closes the window and asks for its content.
    pub(super) fn read(tensor: RouterTensor<Self>) -> ReadTicket {
        let client = tensor.client.clone();
        let _recording = client.recording();
        client.read_ir(tensor.into_ir())
    }

    /// Consumes tensors, closes the window and asks for their content: one window for those of one mesh.
    pub(super) fn read_all(tensors: Vec<RouterTensor<Self>>) -> Vec<ReadTicket> {
        let mut left: Vec<(usize, RouterTensor<Self>)> = tensors.into_iter().enumerate().collect();
        let mut tickets = Vec::with_capacity(left.len());
        while let Some((_, first)) = left.first() {
            let client = first.client.clone();
            let (here, others): (Vec<_>, _) = left
                .into_iter()
                .partition(|(_, tensor)| tensor.client.is_same(&client));
            left = others;
            let _recording = client.recording();
            let (places, irs): (Vec<_>, _) = here
                .into_iter()
                .map(|(place, tensor)| (place, tensor.into_ir()))
                .unzip();
            let read = client.with(|recorder| recorder.read(irs));
            tickets.extend(places.into_iter().zip(read));
        }
        tickets.sort_by_key(|(place, _)| *place);
        tickets.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Takes data of the host.
    pub(super) fn enter(&self, data: TensorData, origin: Origin) -> RouterTensor<Self> {
        let id = self.create_empty_handle();
        let (shape, dtype) = (data.shape.clone(), data.dtype);
        self.with(|recorder| recorder.add_data(id, data, origin));
        self.wait_for_room();
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    /// Records an operation; waits where the program is too far ahead of the ranks.
    pub(super) fn record(&self, op: Recorded) {
        self.shared.recorder.lock().borrow_mut().record(op);
        self.wait_for_room();
    }

    /// Closes the window and asks for the content of `tensor`.
    pub(super) fn read_ir(&self, tensor: TensorIr) -> ReadTicket {
        let tickets = self.with(|recorder| recorder.read(vec![tensor]));
        let ticket = tickets.into_iter().next();
        ticket.unwrap_or_else(|| ReadTicket::failed(Fault::bug("a read without an answer")))
    }
}

impl<B: BackendIr> RunnerClient for MeshClient<B> {
    type Device = MeshDevice;

    fn register_op(&self, op: OperationIr) {
        match op {
            // May come from anywhere, under locks of Burn: it neither closes a window nor waits.
            OperationIr::Drop(tensor) => self.with(|recorder| recorder.drop_tensor(tensor.id)),
            // Data announces itself by `register_tensor_data`.
            OperationIr::Init(_) => {}
            op => self.record(op.into()),
        }
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let ticket = self.read_ir(tensor);
        Box::pin(async move { ticket.wait().map_err(Fault::into_execution_error) })
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        let ticket = self.with(Recorder::sync);
        ticket.wait().map_err(Fault::into_execution_error)
    }

    fn create_empty_handle(&self) -> TensorId {
        TensorId::new(self.shared.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        self.enter(data, Origin::Data)
    }

    fn device(&self) -> MeshDevice {
        MeshDevice::find(self.shared.mesh)
    }

    fn seed(&self, seed: u64) {
        self.with(|recorder| recorder.seed(seed));
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        let device = self.with(|recorder| recorder.inner_device());
        B::dtype_usage(&device, dtype)
    }
}
