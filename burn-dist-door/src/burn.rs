//! Names of Burn that differ by its line, and what its router asks of a channel and its client: Burn 0.21 and 0.22.

use std::marker::PhantomData;

use burn_backend::backend::{DeviceOps, ExecutionError};
use burn_backend::{DType, DTypeUsageSet, Shape, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::{MultiBackendBridge, RouterTensor, get_client};
use burn_std::future::DynFut;

#[cfg(not(burn_021))]
pub(crate) use burn_router::RouterChannel;
/// The trait that burn-router asks of a client.
#[cfg(not(burn_021))]
pub use burn_router::RouterClient;
#[cfg(burn_021)]
pub(crate) use burn_router::RunnerChannel as RouterChannel;
/// The trait that burn-router asks of a client.
#[cfg(burn_021)]
pub use burn_router::RunnerClient as RouterClient;

use crate::{Inner, MeshClient, MeshDevice, Origin, Recorder, Ticket};

/// Returns what Burn's functions answer with where the mesh says no.
pub(crate) fn refused(reason: String) -> ExecutionError {
    ExecutionError::WithContext { reason }
}

#[cfg(not(burn_021))]
impl<E: Inner> crate::Argument<E> for burn_backend::ops::PadMode {}

impl DeviceOps for MeshDevice {
    /// Returns what tensors are made of where a program does not say: what the ranks' backend says.
    #[cfg(not(burn_021))]
    fn defaults(&self) -> burn_backend::DeviceSettings {
        (crate::registered::engine(self).settings)(self)
    }
}

#[cfg(not(burn_021))]
impl MeshDevice {
    /// The one device that burn-dispatch lists of a crate named burn-ndarray: no mesh. Programs make meshes.
    #[allow(non_upper_case_globals, reason = "its name in burn-ndarray")]
    #[doc(hidden)]
    pub const Cpu: Self = Self::NO_MESH;
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

    #[cfg(burn_021)]
    type FloatElem = E::FloatElem;
    #[cfg(burn_021)]
    type IntElem = E::IntElem;
    #[cfg(burn_021)]
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
        client_of::<E>(device).register_tensor_data(data)
    }
}

/// Returns the client of a device's mesh, as burn-router keeps it.
///
/// burn-router looks it up under a lock that spins: where the system stops a thread that has it, all others that make
/// tensors spin until it goes on. So the mesh keeps what was found there.
pub(crate) fn client_of<E: Inner>(device: &MeshDevice) -> MeshClient<E> {
    let find = || get_client::<MeshChannel<E>>(device);
    let kept = device.mesh().and_then(|mesh| MeshClient::kept(mesh, find));
    kept.unwrap_or_else(find)
}

/// Burn's `to_device` cannot fail: this is where a failed read becomes a panic.
fn fetched(ticket: Ticket<TensorData>) -> TensorData {
    match ticket() {
        Ok(data) => data,
        Err(reason) => panic!("{reason}"),
    }
}

/// Graphs are registered by burn-fusion over burn-router, which `Dist` is not.
#[cfg(not(burn_021))]
const NO_FUSION: &str = "no fusion is between a program and `Dist`";

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

    /// Does nothing, as [`Backend::flush`](burn_backend::Backend::flush).
    #[cfg(not(burn_021))]
    fn flush(&self) {}

    #[cfg(not(burn_021))]
    fn register_and_execute_graph(
        &self,
        _: burn_ir::GraphId,
        _: Vec<OperationIr>,
        _: burn_ir::GraphBindings,
    ) {
        unreachable!("{NO_FUSION}")
    }

    #[cfg(not(burn_021))]
    fn execute_graph(&self, _: burn_ir::GraphId, _: burn_ir::GraphBindings) {
        unreachable!("{NO_FUSION}")
    }

    #[cfg(not(burn_021))]
    fn register_alias(&self, _: TensorId, _: TensorId) {
        unreachable!("{NO_FUSION}")
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

/// Settings of backends of the host, for tests.
#[cfg(all(test, burn_021))]
pub(crate) fn host_settings(device: &MeshDevice) -> burn_backend::backend::DeviceSettings {
    burn_backend::backend::get_device_settings::<crate::Dist<crate::Registered>>(device)
}

/// Settings of backends of the host, for tests.
#[cfg(all(test, not(burn_021)))]
pub(crate) fn host_settings(_: &MeshDevice) -> burn_backend::DeviceSettings {
    use burn_std::{BoolDType, FloatDType, IntDType};
    burn_backend::DeviceSettings::with_dtypes(FloatDType::F32, IntDType::I32, BoolDType::Native)
}
