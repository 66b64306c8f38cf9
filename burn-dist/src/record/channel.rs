//! `Dist<B>`: burn-router's decorator over a channel to the ranks of a mesh.

use std::marker::PhantomData;

use burn_backend::{DType, Shape, TensorData};
use burn_ir::{BackendIr, TensorIr};
use burn_router::{BackendRouter, MultiBackendBridge, RouterTensor, RunnerChannel, RunnerClient};

use super::{MeshClient, MeshDevice};

/// A backend whose tensors live on a device mesh: records the program, partitions it, and runs each rank's part on `B`.
///
/// Nests inside `Autodiff`: `Autodiff<Dist<Flex>>`. `Autodiff` records gradients as ordinary operations, which `Dist` then partitions with the rest; the
/// other order would differentiate each rank's part on its own. Fusion goes inside: `Dist<Cuda>` is `Dist` over the fused CUDA backend, so that
/// what a rank runs between two collectives is fused.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::Tensor;
/// use burn_dist::{DeviceMesh, Dist};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let x = Tensor::<Dist<Flex>, 2>::ones([4, 3], &mesh.device());
/// assert_eq!(x.sum().into_scalar(), 12.0);
/// # Ok::<(), burn_dist::mesh::MeshError>(())
/// ```
pub type Dist<B> = BackendRouter<MeshChannel<B>>;

/// The channel between recorded operations and the ranks of a mesh.
pub struct MeshChannel<B>(PhantomData<fn() -> B>);

impl<B> Clone for MeshChannel<B> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<B: BackendIr> RunnerChannel for MeshChannel<B> {
    type Device = MeshDevice;
    type Bridge = HostBridge;
    type Client = MeshClient<B>;
    type FloatElem = B::FloatElem;
    type IntElem = B::IntElem;
    type BoolElem = B::BoolElem;

    fn name(device: &Self::Device) -> String {
        format!("dist<{device:?}>")
    }

    fn init_client(device: &Self::Device) -> Self::Client {
        MeshClient::new(device)
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &Self::Client) -> TensorData {
        // Burn's `to_device` cannot fail: this is where a failed read becomes a panic.
        match client.read(tensor.clone()).wait() {
            Ok(data) => data,
            Err(error) => panic!("{error}"),
        }
    }

    fn register_tensor(
        client: &Self::Client,
        handle: TensorData,
        _shape: Shape,
        _dtype: DType,
    ) -> RouterTensor<Self::Client> {
        client.register_tensor_data(handle)
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
