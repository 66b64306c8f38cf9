//! Names of Burn that differ by its line, and what its router asks of a channel and its client: Burn 0.21.

use std::marker::PhantomData;

use burn_backend::backend::ExecutionError;
use burn_backend::{DType, DTypeUsageSet, Shape, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::{MultiBackendBridge, RouterTensor, get_client};
use burn_std::future::DynFut;

pub(crate) use burn_router::RunnerChannel as RouterChannel;
/// The trait that burn-router asks of a client.
pub use burn_router::RunnerClient as RouterClient;

use crate::{Inner, MeshClient, MeshDevice, Origin, Recorder, Ticket};

/// Returns what Burn's functions answer with where the mesh says no.
pub(crate) fn refused(reason: String) -> ExecutionError {
    ExecutionError::WithContext { reason }
}

/// The channel between recorded operations and the ranks of a mesh.
pub struct MeshChannel<E>(PhantomData<fn() -> E>);

impl<E> Clone for MeshChannel<E> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<E: Inner> RouterChannel for MeshChannel<E> {
    type Device = MeshDevice;
    type Bridge = HostBridge;
    type Client = MeshClient<E>;
    type FloatElem = E::FloatElem;
    type IntElem = E::IntElem;
    type BoolElem = E::BoolElem;

    fn name(device: &Self::Device) -> String {
        format!("dist<{device:?}>")
    }

    fn init_client(device: &Self::Device) -> Self::Client {
        MeshClient::new(device)
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &Self::Client) -> TensorData {
        fetched(client.read_ir(tensor.clone()))
    }

    fn register_tensor(
        client: &Self::Client,
        handle: TensorData,
        _shape: Shape,
        _dtype: DType,
    ) -> RouterTensor<Self::Client> {
        client.register_tensor_data(handle)
    }

    fn change_client_backend(
        tensor: RouterTensor<Self::Client>,
        device: &Self::Device,
    ) -> RouterTensor<Self::Client> {
        let data = fetched(MeshClient::read(tensor));
        get_client::<Self>(device).register_tensor_data(data)
    }
}

/// Burn's `to_device` cannot fail: this is where a failed read becomes a panic.
fn fetched(ticket: Ticket<TensorData>) -> TensorData {
    match ticket() {
        Ok(data) => data,
        Err(reason) => panic!("{reason}"),
    }
}

impl<E: Inner> RouterClient for MeshClient<E> {
    type Device = MeshDevice;

    fn register_op(&self, op: OperationIr) {
        self.record(op);
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let ticket = self.read_ir(tensor);
        Box::pin(async move { ticket().map_err(refused) })
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        let ticket = self.with(Recorder::sync);
        ticket().map_err(refused)
    }

    fn create_empty_handle(&self) -> TensorId {
        self.next_id()
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        self.enter(data, Origin::Data)
    }

    fn device(&self) -> MeshDevice {
        self.mesh_device()
    }

    fn seed(&self, seed: u64) {
        self.with(|recorder| recorder.seed(seed));
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        self.with(|recorder| recorder.dtype_usage(dtype))
    }
}

/// Moves tensors between meshes through the host.
pub struct HostBridge;

impl MultiBackendBridge for HostBridge {
    type TensorHandle = TensorData;
    type Device = MeshDevice;

    fn change_backend_float(data: TensorData, _: Shape, _: &MeshDevice) -> TensorData {
        data
    }

    fn change_backend_int(data: TensorData, _: Shape, _: &MeshDevice) -> TensorData {
        data
    }

    fn change_backend_bool(data: TensorData, _: Shape, _: &MeshDevice) -> TensorData {
        data
    }
}
