//! Layouts that the user asks for, as recorded operations.

use std::sync::Arc;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType, TensorData};
use burn_dist_plan::op::Mark;
use burn_dist_plan::{ParamSpec, Role};
use burn_ir::{BackendIr, TensorIr};
use burn_router::{RouterTensor, RunnerClient};

use super::intercept;
use super::parts::Placement;
use super::{Dist, MeshChannel, MeshClient, MeshDevice};
use crate::annotate::Annotate;
use crate::layout::{Layout, Rows};
use crate::mesh::MeshShape;
use crate::ops::{Marked, Recorded};
use crate::run::Fault;

/// Records what the program says of a value.
pub(super) fn record_mark<B: BackendIr>(
    tensor: RouterTensor<MeshClient<B>>,
    mark: Mark,
) -> RouterTensor<MeshClient<B>> {
    let client = tensor.client.clone();
    let _recording = client.recording();
    let input = tensor.into_ir();
    let out = TensorIr::uninit(
        client.create_empty_handle(),
        input.shape.clone(),
        input.dtype,
    );
    let (id, shape, dtype) = (out.id, out.shape.clone(), out.dtype);
    client.record(Recorded::Mark(Box::new(Marked { mark, input, out })));
    RouterTensor::new(id, shape, dtype, client.clone())
}

impl<B: BackendIr> Annotate for Dist<B> {
    fn annotate(tensor: FloatTensor<Self>, spec: &ParamSpec) -> FloatTensor<Self> {
        if intercept::notes_spec(spec) {
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
        <FloatTensor<Self>>::new(B::annotate(tensor.primitive, spec))
    }

    fn mesh_shape(device: &<Self as burn_backend::BackendTypes>::Device) -> Option<MeshShape> {
        B::mesh_shape(device)
    }
}

/// Records a move to `target`.
pub fn redistribute<B: BackendIr>(
    tensor: RouterTensor<MeshClient<B>>,
    target: &Layout,
) -> RouterTensor<MeshClient<B>> {
    record_mark(tensor, Mark::Redistribute(Arc::new(target.clone())))
}

/// Makes a tensor of the parts of all ranks.
pub fn from_local<B: BackendIr>(
    parts: Vec<B::Handle>,
    layout: &Layout,
    dtype: DType,
    device: &MeshDevice,
) -> Result<RouterTensor<MeshClient<B>>, Fault> {
    let client = burn_router::get_client::<MeshChannel<B>>(device);
    let id = client.create_empty_handle();
    let parts = parts.into_iter().map(Some).collect();
    let placement = Placement {
        layout: Arc::new(layout.clone()),
        stage: None,
        role: Role::Unknown,
    };
    client.with(|recorder| recorder.put(id, parts, placement, dtype))?;
    Ok(RouterTensor::new(id, layout.shape().into(), dtype, client))
}

/// Makes a tensor with `rows` rows of those that the ranks here hold; other processes give theirs.
///
/// # Errors
/// The rows that the ranks here hold, if `data` has another number of them.
pub fn from_process_local<B: BackendIr>(
    data: TensorData,
    rows: usize,
    device: &MeshDevice,
) -> Result<RouterTensor<MeshClient<B>>, Rows> {
    let client = burn_router::get_client::<MeshChannel<B>>(device);
    let id = client.create_empty_handle();
    let mut shape = data.shape.to_vec();
    if let Some(batch) = shape.first_mut() {
        *batch = rows;
    }
    let (dtype, here) = (data.dtype, device.local_ranks());
    client.with(|recorder| recorder.add_rows(id, data, &shape, here))?;
    Ok(RouterTensor::new(id, shape.into(), dtype, client))
}
