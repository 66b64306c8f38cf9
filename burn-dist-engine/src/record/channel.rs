//! What burn-router needs to record onto a mesh: a channel to its recorder, and a bridge between meshes.

use std::marker::PhantomData;

use burn_backend::{DType, Shape, TensorData};
use burn_ir::{BackendIr, TensorIr};
use burn_router::{MultiBackendBridge, RouterTensor, RunnerChannel, RunnerClient, get_client};

use super::{MeshClient, MeshDevice};
use crate::run::ReadTicket;

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
fn fetched(ticket: ReadTicket) -> TensorData {
    match ticket.wait() {
        Ok(data) => data,
        Err(error) => panic!("{error}"),
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
