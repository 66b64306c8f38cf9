//! What burn-router calls: recording of operations, data and reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use burn_backend::backend::ExecutionError;
use burn_backend::{DType, DTypeUsageSet, TensorData};
use burn_ir::{BackendIr, OperationIr, TensorId, TensorIr};
use burn_router::{RouterTensor, RunnerClient};
use burn_std::future::DynFut;

use super::{MeshDevice, Recorder};
use crate::layout::Layout;
use crate::mesh::Rank;
use crate::plan::window::Origin;
use crate::run::{Fault, ReadTicket};

/// A handle on the recorder of one mesh; every tensor holds one.
pub struct MeshClient<B: BackendIr> {
    shared: Arc<Shared<B>>,
}

struct Shared<B: BackendIr> {
    mesh: u16,
    next_id: AtomicU64,
    recorder: Mutex<Recorder<B>>,
}

impl<B: BackendIr> Clone for MeshClient<B> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<B: BackendIr> MeshClient<B> {
    /// Called by burn-router, once per mesh and inner backend.
    pub(super) fn new(device: &MeshDevice) -> Self {
        let shared = Arc::new(Shared {
            mesh: burn_std::device::Device::to_id(device).index_id,
            next_id: AtomicU64::new(0),
            recorder: Mutex::new(Recorder::new(device)),
        });
        if let Some(inner) = device.inner() {
            let weak = Arc::downgrade(&shared);
            inner.on_close(Box::new(move || {
                if let Some(shared) = weak.upgrade() {
                    let workers = shared
                        .recorder
                        .lock()
                        .unwrap_or_else(|e| e.into_inner())
                        .close();
                    // Joined without the lock: a worker that is still busy must not keep others from dropping their tensors.
                    drop(workers);
                }
            }));
        }
        Self { shared }
    }

    /// The recorder never leaves its state half-changed, so a panic elsewhere does not make it unusable.
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder<B>> {
        self.shared
            .recorder
            .lock()
            .unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the layout of `tensor` on the ranks, closing the window.
    pub(crate) fn layout_of(&self, tensor: &RouterTensor<Self>) -> Result<Layout, Fault> {
        let tensor = tensor.clone().into_ir();
        let layout = self.recorder().place(&tensor)?;
        Ok(layout.as_ref().clone())
    }

    /// Returns a rank's part of `tensor` with its shape, closing the window.
    pub(crate) fn local_of(
        &self,
        tensor: &RouterTensor<Self>,
        rank: Rank,
    ) -> Result<(B::Handle, Vec<usize>), Fault> {
        let tensor = tensor.clone().into_ir();
        let (layout, ticket, mesh) = {
            let mut recorder = self.recorder();
            let layout = recorder.place(&tensor)?;
            (
                layout,
                recorder.local(tensor.id, rank),
                recorder.mesh().clone(),
            )
        };
        Ok((ticket.wait()?, layout.local_shape(&mesh, rank)))
    }

    /// Takes data of the host.
    pub(super) fn enter(&self, data: TensorData, origin: Origin) -> RouterTensor<Self> {
        let id = self.create_empty_handle();
        let (shape, dtype) = (data.shape.clone(), data.dtype);
        self.recorder().add_data(id, data, origin);
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    /// Closes the window and asks for the content of `tensor`.
    pub(super) fn read(&self, tensor: TensorIr) -> ReadTicket {
        self.recorder().read(tensor)
    }
}

impl<B: BackendIr> RunnerClient for MeshClient<B> {
    type Device = MeshDevice;

    fn register_op(&self, op: OperationIr) {
        let mut recorder = self.recorder();
        match op {
            OperationIr::Drop(tensor) => recorder.drop_tensor(tensor.id),
            // Data announces itself by `register_tensor_data`.
            OperationIr::Init(_) => {}
            op => recorder.record(op),
        }
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let ticket = self.read(tensor);
        Box::pin(async move {
            ticket.wait().map_err(|error| ExecutionError::WithContext {
                reason: error.to_string(),
            })
        })
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        let wait = self.recorder().sync();
        wait.wait().map_err(|error| ExecutionError::WithContext {
            reason: error.to_string(),
        })
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
        self.recorder().seed(seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        let device = self.recorder().inner_device();
        B::dtype_usage(&device, dtype)
    }
}
