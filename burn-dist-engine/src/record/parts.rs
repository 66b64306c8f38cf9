//! Tensors as the parts that ranks hold: what a checkpoint takes from a mesh, and what it gives to one.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use burn_backend::Backend;
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_dist_door::AnyTensor;
use burn_dist_plan::{Role, Stage};
use burn_ir::BackendIr;
use burn_std::device::{Device, DeviceId};
use rustc_hash::FxHashMap;

use super::MeshDevice;
use super::details::{device_of, local_ranks};
use crate::burn::data::*;
use crate::comm::{Block, CommError, Votes};
use crate::layout::Layout;
use crate::mesh::{DType, Rank};
use crate::ops::dtype::to_burn;
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

/// Parts on the devices of ranks.
#[doc(hidden)]
pub struct Uploaded {
    /// A handle of the ranks' backend for each rank of this process, `None` if it is of another stage.
    pub(super) handles: Box<dyn Any>,
    pub(super) placement: Placement,
    pub(super) dtype: burn_backend::DType,
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
