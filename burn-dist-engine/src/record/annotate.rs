//! Layouts that the user asks for, as recorded operations.

use std::sync::Arc;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::DType;
use burn_backend::tensor::FloatTensor;
use burn_dist_door::{Dist, MeshTensor, RouterClient};
use burn_dist_plan::op::Mark;
use burn_dist_plan::{ParamSpec, Role};
use burn_ir::{BackendIr, TensorIr};
use burn_router::RouterTensor;

use super::any::{client, with};
use super::noted;
use super::parts::Placement;
use super::{MeshDevice, OnRanks, local_ranks};
use crate::annotate::Annotate;
use crate::burn::data::*;
use crate::burn::primitive;
use crate::layout::{Layout, Rows};
use crate::mesh::{MeshShape, Rank};
use crate::ops::{Marked, Recorded};
use crate::run::Fault;

/// Records what the program says of a value.
pub(super) fn record_mark<E: OnRanks>(tensor: MeshTensor<E>, mark: Mark) -> MeshTensor<E> {
    let client = tensor.client.clone();
    let _recording = client.recording();
    let input = tensor.into_ir();
    let out = TensorIr::uninit(
        client.create_empty_handle(),
        input.shape.clone(),
        input.dtype,
    );
    let (id, shape, dtype) = (out.id, out.shape.clone(), out.dtype);
    let mark = Recorded::Mark(Box::new(Marked { mark, input, out }));
    with(&client, |recorder| recorder.record_any(mark));
    RouterTensor::new(id, shape, dtype, client.clone())
}

impl<E: OnRanks> Annotate for Dist<E> {
    fn annotate(tensor: FloatTensor<Self>, spec: &ParamSpec) -> FloatTensor<Self> {
        if noted::notes(spec) {
            return tensor;
        }
        record_mark(tensor, Mark::Param(Arc::new(spec.clone())))
    }

    fn mesh_shape(device: &MeshDevice) -> Option<MeshShape> {
        device.shape().cloned()
    }
}

impl<B: Annotate, C: CheckpointStrategy> Annotate for Autodiff<B, C> {
    fn annotate(tensor: FloatTensor<Self>, spec: &ParamSpec) -> FloatTensor<Self> {
        // Not through `AutodiffBackend`: with Burn's feature `distributed`, that asks more of `B`.
        <FloatTensor<Self>>::new(B::annotate(primitive::<B, C>(tensor), spec))
    }

    fn mesh_shape(device: &<Self as burn_backend::BackendTypes>::Device) -> Option<MeshShape> {
        B::mesh_shape(device)
    }
}

/// Records a move to `target`.
pub fn redistribute<E: OnRanks>(tensor: MeshTensor<E>, target: &Layout) -> MeshTensor<E> {
    record_mark(tensor, Mark::Redistribute(Arc::new(target.clone())))
}

/// Makes a tensor of the parts of all ranks, which compute on `B`.
///
/// # Errors
/// What has stopped the mesh, or [`Fault::OtherBackend`].
pub fn from_local<E: OnRanks, B: BackendIr>(
    parts: Vec<B::Handle>,
    layout: &Layout,
    dtype: DType,
    device: &MeshDevice,
) -> Result<MeshTensor<E>, Fault> {
    let client = client::<E>(device);
    let id = client.create_empty_handle();
    let parts = parts.into_iter().map(Some).collect();
    let placement = Placement {
        layout: Arc::new(layout.clone()),
        stage: None,
        role: Role::Unknown,
    };
    with(&client, |recorder| {
        recorder.of::<B>()?.put(id, parts, placement, dtype)
    })?;
    Ok(RouterTensor::new(id, layout.shape().into(), dtype, client))
}

/// Makes a tensor with `rows` rows of those that the ranks here hold; other processes give theirs.
///
/// # Errors
/// The rows that the ranks here hold, if `data` has another number of them.
pub fn from_process_local<E: OnRanks>(
    data: TensorData,
    rows: usize,
    device: &MeshDevice,
) -> Result<MeshTensor<E>, Rows> {
    let client = client::<E>(device);
    let id = client.create_empty_handle();
    let mut shape = data.shape().to_vec();
    if let Some(batch) = shape.first_mut() {
        *batch = rows;
    }
    let (dtype, here) = (data.dtype(), local_ranks(device));
    with(&client, |recorder| {
        recorder.add_rows(id, data, &shape, here)
    })?;
    Ok(RouterTensor::new(id, shape.into(), dtype, client))
}

/// Returns the layout of `tensor` on the ranks, closing the window.
///
/// # Errors
/// What has stopped the mesh.
pub fn layout_of<E: OnRanks>(tensor: &MeshTensor<E>) -> Result<Layout, Fault> {
    let tensor = tensor.clone();
    let client = tensor.client.clone();
    let _recording = client.recording();
    let tensor = tensor.into_ir();
    let layout = with(&client, |recorder| recorder.place(&tensor))?;
    Ok(layout.as_ref().clone())
}

/// Returns a rank's part of `tensor` with its shape, closing the window; the ranks compute on `B`.
///
/// # Errors
/// What has stopped the mesh, or [`Fault::OtherBackend`].
pub fn local_of<E: OnRanks, B: BackendIr>(
    tensor: &MeshTensor<E>,
    rank: Rank,
) -> Result<(B::Handle, Vec<usize>), Fault> {
    let tensor = tensor.clone();
    let client = tensor.client.clone();
    let (layout, ticket, mesh) = {
        let _recording = client.recording();
        let tensor = tensor.into_ir();
        with(&client, |recorder| {
            let recorder = recorder.of::<B>()?;
            let layout = recorder.place(&tensor)?;
            let ticket = recorder.local(tensor.id, rank);
            Ok::<_, Fault>((layout, ticket, recorder.mesh().clone()))
        })?
    };
    Ok((ticket.wait()?, layout.local_shape(&mesh, rank)))
}
