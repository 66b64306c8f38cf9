//! Tensors as the parts that ranks hold: what a checkpoint takes from a mesh, and what it gives to one.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, TensorMetadata};
use burn_dist_door::{AnyTensor, Dist, MeshTensor, RouterClient};
use burn_dist_plan::{Role, Stage};
use burn_ir::BackendIr;
use burn_router::RouterTensor;
use burn_std::device::{Device, DeviceId};
use rustc_hash::FxHashMap;

use super::any::{client, with};
use super::device::{details, device_of};
use super::{MeshDevice, OnRanks, local_ranks};
use crate::burn::data::*;
use crate::burn::primitive;
use crate::comm::{Block, CommError, Votes};
use crate::layout::Layout;
use crate::mesh::{DType, Rank};
use crate::ops::dtype::{of_burn, to_burn};
use crate::ops::execute::from_data;
use crate::run::Fault;

/// Where a tensor is.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Says which part each rank holds.
    pub layout: Arc<Layout>,
    /// The stage whose ranks hold it; `None` if those of all stages do.
    pub stage: Option<Stage>,
    /// Its role in training.
    pub role: Role,
}

/// The bytes of a rank's part, row-major, once the rank has come to it.
pub type PendingPart = Box<dyn FnOnce() -> Result<Block, Fault> + Send>;

/// A handle on a tensor of a mesh, of any kind and inner backend. The tensor lives as long.
pub trait Taken: Send {
    /// Returns the global shape.
    fn shape(&self) -> Vec<usize>;
    /// Returns the type of its elements.
    fn dtype(&self) -> DType;
    /// Returns its mesh.
    fn device(&self) -> MeshDevice;
    /// Returns where it is. If it is recorded and has not run, the window ends; nothing is read.
    ///
    /// # Errors
    /// The fault that has stopped the mesh.
    fn place(&self) -> Result<Placement, Fault>;
    /// Asks for what a rank of this process holds; `layout` is that of [`Self::place`]. What is recorded later does not
    /// change it.
    fn part(&self, rank: Rank, layout: &Layout) -> PendingPart;
}

/// The parts of a tensor to be made, as a checkpoint has them.
pub struct TensorParts {
    /// Where it shall be.
    pub placement: Placement,
    /// The type of its elements.
    pub dtype: DType,
    /// The parts; ranks that hold the same share one.
    pub parts: Vec<TensorData>,
    /// For each rank of this process, which part it holds; `None` if it is of another stage.
    pub part_of: Vec<Option<usize>>,
}

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

/// Parts on the devices of ranks.
#[doc(hidden)]
pub struct Uploaded {
    /// A handle of the ranks' backend for each rank of this process, `None` if it is of another stage.
    pub(super) handles: Box<dyn Any>,
    pub(super) placement: Placement,
    pub(super) dtype: burn_backend::DType,
}

/// Makes a tensor of the parts that ranks of this process shall hold.
///
/// # Errors
/// The fault that has stopped the mesh.
pub(crate) fn give<E: OnRanks>(
    tensor: TensorParts,
    device: &MeshDevice,
) -> Result<MeshTensor<E>, Fault> {
    let client = client::<E>(device);
    let id = client.create_empty_handle();
    let (shape, dtype) = (tensor.placement.layout.shape(), to_burn(tensor.dtype));
    let upload = with(&client, |recorder| recorder.upload());
    let uploaded = upload(tensor, device)?;
    with(&client, |recorder| recorder.put_uploaded(id, uploaded))?;
    Ok(RouterTensor::new(id, shape.into(), dtype, client))
}

/// Moves parts to the devices of ranks that compute on `B`.
pub(super) fn upload<B: BackendIr>(
    tensor: TensorParts,
    device: &MeshDevice,
) -> Result<Uploaded, Fault> {
    let mut made: FxHashMap<(usize, DeviceId), B::Handle> = FxHashMap::default();
    let mut uses = vec![0; tensor.parts.len()];
    let used = tensor.part_of.iter().flatten();
    used.for_each(|part| uses[*part] += 1);
    let mut parts: Vec<Option<TensorData>> = tensor.parts.into_iter().map(Some).collect();
    let mut handles: Vec<Option<B::Handle>> = Vec::with_capacity(tensor.part_of.len());
    for (part, rank) in tensor.part_of.iter().zip(local_ranks(device)) {
        let Some(part) = *part else {
            handles.push(None);
            continue;
        };
        let device: B::Device = device_of(device, Rank(rank));
        let key = (part, device.to_id());
        uses[part] -= 1;
        let handle = match made.entry(key) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                // The last rank takes the bytes as they are.
                let data = match uses[part] {
                    0 => parts[part].take(),
                    _ => parts[part].clone(),
                };
                let data =
                    data.ok_or_else(|| Fault::bug("a part of a checkpoint was handed out twice"))?;
                place.insert(from_data::<B>(data, &device))
            }
        };
        handles.push(Some(handle.clone()));
    }
    Ok(Uploaded {
        handles: Box::new(handles),
        placement: tensor.placement,
        dtype: to_burn(tensor.dtype),
    })
}

/// A backend whose tensors are taken off ranks and put on them part by part.
pub trait Parts: Backend {
    /// Returns a handle on a float tensor.
    fn take_float(tensor: FloatTensor<Self>) -> Box<dyn Taken>;
    /// Returns a handle on an int tensor.
    fn take_int(tensor: IntTensor<Self>) -> Box<dyn Taken>;
    /// Returns a handle on a bool tensor.
    fn take_bool(tensor: BoolTensor<Self>) -> Box<dyn Taken>;
    /// Returns a handle on a tensor of any kind; `None` if it is on another backend's mesh.
    fn taken(tensor: AnyTensor) -> Option<Box<dyn Taken>>;
    /// Makes a tensor of the parts that ranks of this process shall hold.
    ///
    /// # Errors
    /// The fault that has stopped the mesh.
    fn give(tensor: TensorParts, device: &Self::Device) -> Result<AnyTensor, Fault>;
    /// Returns the float tensor that [`Self::give`] has made, `None` if it is none.
    fn float_of(tensor: AnyTensor) -> Option<FloatTensor<Self>>;
    /// Returns the int tensor that [`Self::give`] has made, `None` if it is none.
    fn int_of(tensor: AnyTensor) -> Option<IntTensor<Self>>;
    /// Returns the bool tensor that [`Self::give`] has made, `None` if it is none.
    fn bool_of(tensor: AnyTensor) -> Option<BoolTensor<Self>>;
    /// Returns the seed of random numbers, and how many streams were drawn from it.
    fn random_state(device: &Self::Device) -> (u64, u64);
    /// Goes on with the random numbers of another run.
    fn set_random_state(device: &Self::Device, state: (u64, u64));
    /// Returns votes of the processes that share the ranks out, if they are several, and which of them this is. A
    /// process waits for another one as long as a rank does, and no longer than the ranks run.
    ///
    /// # Errors
    /// The error that has stopped the processes.
    fn votes(device: &Self::Device) -> Result<Option<(Votes, usize)>, CommError>;
    /// Returns true if nothing is computed on the mesh.
    fn is_dry_run(device: &Self::Device) -> bool;
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
