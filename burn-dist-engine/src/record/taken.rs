//! Taking tensors off the ranks of a mesh, and putting them there, part by part.

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::TensorMetadata;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_dist_door::{AnyTensor, Dist, MeshTensor, RouterClient};
use burn_router::RouterTensor;

use super::any::{client, with};
use super::details::details;
use super::parts::{Parts, PendingPart, Placement, Taken, TensorParts};
use super::{MeshDevice, OnRanks};
use crate::burn::primitive;
use crate::comm::{CommError, Votes};
use crate::layout::Layout;
use crate::mesh::{DType, Rank};
use crate::ops::dtype::{of_burn, to_burn};
use crate::run::Fault;

impl<E: OnRanks> Taken for MeshTensor<E> {
    fn shape(&self) -> Vec<usize> {
        TensorMetadata::shape(self).to_vec()
    }

    fn dtype(&self) -> DType {
        of_burn(TensorMetadata::dtype(self))
    }

    fn device(&self) -> MeshDevice {
        self.client.device()
    }

    fn place(&self) -> Result<Placement, Fault> {
        let tensor = self.clone();
        let _recording = self.client.recording();
        let tensor = tensor.into_ir();
        with(&self.client, |recorder| recorder.settle(&tensor))
    }

    fn part(&self, rank: Rank, layout: &Layout) -> PendingPart {
        let id = self.clone().into_ir().id;
        let dtype = TensorMetadata::dtype(self);
        with(&self.client, |recorder| {
            recorder.part(id, dtype, rank, layout)
        })
    }
}

/// Makes a tensor of the parts that ranks of this process shall hold.
///
/// # Errors
/// The fault that has stopped the mesh.
fn give<E: OnRanks>(tensor: TensorParts, device: &MeshDevice) -> Result<MeshTensor<E>, Fault> {
    let client = client::<E>(device);
    let id = client.create_empty_handle();
    let (shape, dtype) = (tensor.placement.layout.shape(), to_burn(tensor.dtype));
    let upload = with(&client, |recorder| recorder.upload());
    let uploaded = upload(tensor, device)?;
    with(&client, |recorder| recorder.put_uploaded(id, uploaded))?;
    Ok(RouterTensor::new(id, shape.into(), dtype, client))
}

fn same<T: 'static>(tensor: AnyTensor) -> Option<T> {
    tensor.downcast().ok().map(|tensor| *tensor)
}

impl<E: OnRanks> Parts for Dist<E> {
    fn take_float(tensor: FloatTensor<Self>) -> Box<dyn Taken> {
        Box::new(tensor)
    }

    fn take_int(tensor: IntTensor<Self>) -> Box<dyn Taken> {
        Box::new(tensor)
    }

    fn take_bool(tensor: BoolTensor<Self>) -> Box<dyn Taken> {
        Box::new(tensor)
    }

    fn taken(tensor: AnyTensor) -> Option<Box<dyn Taken>> {
        let tensor = tensor.downcast::<MeshTensor<E>>().ok()?;
        Some(tensor)
    }

    fn give(tensor: TensorParts, device: &MeshDevice) -> Result<AnyTensor, Fault> {
        give::<E>(tensor, device).map(|tensor| Box::new(tensor) as AnyTensor)
    }

    fn float_of(tensor: AnyTensor) -> Option<FloatTensor<Self>> {
        same(tensor)
    }

    fn int_of(tensor: AnyTensor) -> Option<IntTensor<Self>> {
        same(tensor)
    }

    fn bool_of(tensor: AnyTensor) -> Option<BoolTensor<Self>> {
        same(tensor)
    }

    fn random_state(device: &MeshDevice) -> (u64, u64) {
        with(&client::<E>(device), |recorder| recorder.random_state())
    }

    fn set_random_state(device: &MeshDevice, state: (u64, u64)) {
        with(&client::<E>(device), |recorder| {
            recorder.set_random_state(state)
        });
    }

    fn votes(device: &MeshDevice) -> Result<Option<(Votes, usize)>, CommError> {
        let options = device.mesh().map(|mesh| &details(mesh).options);
        let Some(options) = options.filter(|options| !options.dry_run) else {
            return Ok(None);
        };
        let Some(world) = &options.world else {
            return Ok(None);
        };
        let votes = world.votes_within(options.timeout)?;
        let votes = match with(&client::<E>(device), |recorder| recorder.hub()) {
            Some(ranks) => votes.following(&ranks),
            None => votes,
        };
        Ok(Some((votes, world.process())))
    }

    fn is_dry_run(device: &MeshDevice) -> bool {
        let mesh = device.mesh();
        mesh.is_some_and(|mesh| details(mesh).options.dry_run)
    }
}

impl<B: Parts, C: CheckpointStrategy> Parts for Autodiff<B, C> {
    fn take_float(tensor: FloatTensor<Self>) -> Box<dyn Taken> {
        B::take_float(primitive::<B, C>(tensor))
    }

    fn take_int(tensor: IntTensor<Self>) -> Box<dyn Taken> {
        B::take_int(tensor)
    }

    fn take_bool(tensor: BoolTensor<Self>) -> Box<dyn Taken> {
        B::take_bool(tensor)
    }

    fn taken(tensor: AnyTensor) -> Option<Box<dyn Taken>> {
        B::taken(tensor)
    }

    fn give(tensor: TensorParts, device: &Self::Device) -> Result<AnyTensor, Fault> {
        B::give(tensor, device)
    }

    fn float_of(tensor: AnyTensor) -> Option<FloatTensor<Self>> {
        B::float_of(tensor).map(<FloatTensor<Self>>::new)
    }

    fn int_of(tensor: AnyTensor) -> Option<IntTensor<Self>> {
        B::int_of(tensor)
    }

    fn bool_of(tensor: AnyTensor) -> Option<BoolTensor<Self>> {
        B::bool_of(tensor)
    }

    fn random_state(device: &Self::Device) -> (u64, u64) {
        B::random_state(device)
    }

    fn set_random_state(device: &Self::Device, state: (u64, u64)) {
        B::set_random_state(device, state);
    }

    fn votes(device: &Self::Device) -> Result<Option<(Votes, usize)>, CommError> {
        B::votes(device)
    }

    fn is_dry_run(device: &Self::Device) -> bool {
        B::is_dry_run(device)
    }
}
