//! Between tensors of the inner backend and blocks of the communicator.
//!
//! On Flex a tensor *is* a shared buffer: blocks go in and results come out without a copy. On other backends, tensors
//! stay where they are in groups whose communicator takes them there ([`device_comm`](super::device_comm)); otherwise
//! parts go through the host.

use std::any::{Any, TypeId};
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::burn::data::*;
use crate::ops::dtype::to_burn;
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType, Shape};
use burn_flex::{Flex, FlexTensor, Layout as FlexLayout};
use burn_ir::{BackendIr, HandleKind, TensorHandle, TensorIr};
use burn_std::Bytes;
use rustc_hash::FxHashMap;

use super::Fault;
use super::bytes;
use super::device_comm::Operand;
use super::device_exchange::failed;
use super::turn::Turn;
use crate::burn::downcast;
use crate::comm::{
    Block, Call, CallInfo, Collective, CommError, Communicator, Group, Kind, Payload, Pending,
    Pool, SharedBuffer,
};
use crate::mesh::Rank;
use crate::ops::execute::{Env, from_data, into_data};
use crate::plan::task::{CollectiveTask, TransferTask};

/// Groups by their members; making one validates it, so it is done once.
#[derive(Default)]
pub(super) struct Groups(FxHashMap<Arc<[Rank]>, Group>);

impl Groups {
    fn get(&mut self, ranks: &Arc<[Rank]>) -> Result<Group, CommError> {
        if let Some(group) = self.0.get(ranks) {
            return Ok(group.clone());
        }
        let group = Group::new(ranks.to_vec())?;
        self.0.insert(ranks.clone(), group.clone());
        Ok(group)
    }
}

/// Returns whether tensors of `B` are shared buffers in memory: whether [`block`] takes them as they are.
pub(super) fn is_in_memory<B: BackendIr>() -> bool {
    TypeId::of::<FloatTensor<B>>() == TypeId::of::<FlexTensor>()
}

/// A handle as the Flex tensor it is, or unchanged.
pub(super) fn to_flex<B: BackendIr>(
    handle: B::Handle,
    shape: &[usize],
    dtype: DType,
) -> Result<FlexTensor, B::Handle> {
    let shape = Shape::from(shape.to_vec());
    let tensor = TensorHandle { handle, shape };
    if dtype.is_float() {
        downcast(B::float_tensor(tensor)).map_err(B::float_tensor_handle)
    } else if dtype.is_bool() {
        downcast(B::bool_tensor(tensor)).map_err(B::bool_tensor_handle)
    } else {
        downcast(B::int_tensor(tensor)).map_err(B::int_tensor_handle)
    }
}

pub(super) fn from_flex<B: BackendIr>(tensor: FlexTensor, dtype: DType) -> Option<B::Handle> {
    if dtype.is_float() {
        downcast(tensor).ok().map(B::float_tensor_handle)
    } else if dtype.is_bool() {
        downcast(tensor).ok().map(B::bool_tensor_handle)
    } else {
        downcast(tensor).ok().map(B::int_tensor_handle)
    }
}

/// Returns the tensor whose elements a buffer has in order.
///
/// # Panics
/// If tensors of `B` are not shared buffers in memory.
pub(super) fn in_order<B: BackendIr>(data: Arc<Bytes>, shape: Shape, dtype: DType) -> B::Handle {
    let tensor = FlexTensor::from_arc(data, FlexLayout::contiguous(shape), dtype);
    from_flex::<B>(tensor, dtype).expect("tensors of this backend are shared buffers in memory")
}

/// Makes a tensor in memory that freed results have left.
///
/// # Safety
/// `write` writes all bytes.
/// # Panics
/// If tensors of `B` are not shared buffers in memory.
pub(super) unsafe fn written<B: BackendIr>(
    out: &TensorIr,
    pool: &Arc<Pool>,
    write: impl FnOnce(&mut [MaybeUninit<u8>]),
) -> B::Handle {
    let len = out.shape.num_elements() * out.dtype.size();
    let mut memory = pool.take(len);
    write(&mut memory.as_uninit_mut()[..len]);
    // SAFETY: as the caller promises.
    let data = unsafe { bytes::of_pool(memory, len) };
    in_order::<B>(data, out.shape.clone(), out.dtype)
}

/// Takes a tensor out of an environment.
///
/// # Panics
/// If tensors of `B` are not shared buffers in memory.
pub(super) fn taken<B: BackendIr>(tensor: &TensorIr, env: &mut impl Env<B>) -> FlexTensor {
    let handle = env.take(tensor);
    to_flex::<B>(handle, tensor.shape.as_slice(), tensor.dtype)
        .unwrap_or_else(|_| panic!("tensors of this backend are in memory"))
}

/// The Flex tensor of a handle.
fn flex_tensor<B: BackendIr>(handle: &B::Handle) -> Option<&FlexTensor> {
    match (handle as &dyn Any).downcast_ref::<HandleKind<Flex>>()? {
        HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => {
            Some(tensor)
        }
        HandleKind::Quantized(_) => None,
    }
}

/// Returns the address and the length of the buffer behind a handle, if the backend shows it.
pub(super) fn buffer<B: BackendIr>(handle: &B::Handle) -> Option<(u64, u64)> {
    let bytes = flex_tensor::<B>(handle)?.bytes();
    Some((bytes.as_ptr().addr() as u64, bytes.len() as u64))
}

/// Returns whether a collective takes a tensor without a copy.
pub(super) fn is_sent_as_it_is<B: BackendIr>(handle: &B::Handle) -> bool {
    flex_tensor::<B>(handle).is_none_or(|tensor| tensor.layout().is_contiguous())
}

/// Returns a tensor in a buffer of just its size. What is kept between windows must not keep more than itself, and
/// later windows, which know its shape alone, count on no less: not on a row that is stretched to many. A tensor that
/// fills its buffer stays as it is, in whatever order of dims: products of operands in another order have other bits,
/// which must not depend on where a window ends.
pub(super) fn compact<B: BackendIr>(handle: B::Handle, shape: &[usize], dtype: DType) -> B::Handle {
    if matches!(dtype, DType::QFloat(_)) {
        return handle;
    }
    match to_flex::<B>(handle, shape, dtype) {
        Ok(tensor) => {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            let tensor = match tensor.bytes().len() == bytes {
                true => tensor,
                false => FlexTensor::from_data(tensor.into_data()),
            };
            from_flex::<B>(tensor, dtype).expect("it came from this backend")
        }
        Err(handle) => handle,
    }
}

/// The content of a tensor as a block; `true` if the backend shares its buffers.
fn block<B: BackendIr>(
    handle: B::Handle,
    shape: &[usize],
    dtype: DType,
) -> Result<(Block, bool), CommError> {
    match to_flex::<B>(handle, shape, dtype) {
        Ok(tensor) => {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            let tensor = match tensor.layout().is_contiguous() {
                true => tensor,
                false => tensor.to_contiguous(),
            };
            let start = tensor.layout().start_offset() * dtype.size();
            Ok((Block::new(tensor.data_arc(), start..start + bytes)?, true))
        }
        Err(handle) => {
            let data = burn_std::future::block_on(into_data::<B>(
                handle,
                Shape::from(shape.to_vec()),
                dtype,
            ))
            .map_err(|error| failed(error.to_string()))?;
            Ok((Block::from(Arc::new(data.into_parts().0)), false))
        }
    }
}

/// Returns the bytes of a rank's part, row-major.
///
/// # Errors
/// If the backend could not hand them over.
pub(crate) fn block_of<B: BackendIr>(
    handle: B::Handle,
    rank: Rank,
    shape: &[usize],
    dtype: DType,
) -> Result<Block, Fault> {
    let block = block::<B>(handle, shape, dtype).map(|(block, _)| block);
    block.map_err(|error| into_fault(error, rank, "read of a part", None))
}

/// Returns the fault of a rank whose collective has failed.
pub(super) fn into_fault(
    error: CommError,
    rank: Rank,
    name: &str,
    path: Option<&Arc<str>>,
) -> Fault {
    let path = path.cloned();
    match error {
        CommError::Device { reason } => Fault::Op {
            rank,
            op: name.to_string(),
            path,
            message: reason,
        },
        source => Fault::Collective {
            rank,
            path,
            source: Arc::new(source),
        },
    }
}

/// A collective that has been started.
pub(super) enum Started {
    /// On memory of the host.
    Host {
        pending: Pending<SharedBuffer>,
        /// True if the backend shares its buffers.
        shared: bool,
    },
    /// On tensors where they lie.
    Device(Pending<Payload>),
}

impl Started {
    /// The communicator's record of it.
    pub(super) fn info(&self) -> Arc<CallInfo> {
        match self {
            Self::Host { pending, .. } => pending.info().clone(),
            Self::Device(pending) => pending.info().clone(),
        }
    }

    /// Returns whether it goes on while this rank does something else, although the rank's operations are only queued.
    pub(super) fn overlaps(&self) -> bool {
        match self {
            Self::Host { pending, .. } => pending.overlaps(),
            Self::Device(pending) => pending.overlaps(),
        }
    }

    /// Waits for this rank's result.
    pub(super) fn wait<B: BackendIr>(
        self,
        task: &CollectiveTask,
        turn: &Turn,
        device: &B::Device,
    ) -> Result<B::Handle, CommError> {
        match self {
            Self::Host { pending, shared } => {
                let output = turn.yield_turn(|| pending.wait())?;
                let (shape, dtype) = (&task.to_shape, task.dtype);
                Ok(result::<B>(output, shape, dtype, shared, device))
            }
            Self::Device(pending) => pending.wait().map(tensor::<B>),
        }
    }
}

/// Returns the tensor that a call on a device has brought.
fn tensor<B: BackendIr>(output: Payload) -> B::Handle {
    let handle = output.downcast::<B::Handle>();
    Arc::unwrap_or_clone(handle.expect("the ranks of a mesh have one backend"))
}

/// Starts a collective.
pub(super) fn start<B: BackendIr>(
    task: &CollectiveTask,
    input: B::Handle,
    comm: &dyn Communicator,
    groups: &mut Groups,
    label: Option<&Arc<str>>,
) -> Result<Started, CommError> {
    let group = groups.get(&task.group)?;
    let is_on_device = comm.is_on_device(&group, task.kind());
    let call = |block| {
        let call = Call::new(&group, task.dtype, task.collective.clone(), block);
        let call = call.axis_by_axis(task.axes.clone());
        match label {
            Some(label) => call.labelled(label.clone()),
            None => call,
        }
    };
    if is_on_device {
        let operand = Operand::<B>::Collective(input, Box::new(task.clone()));
        let pending = comm.start_on_device(call(None), Arc::new(operand))?;
        return Ok(Started::Device(pending));
    }
    comm.land()?;
    let (block, shared) = block::<B>(input, &task.from_shape, to_burn(task.dtype))?;
    let pending = comm.start(call(Some(block)))?;
    Ok(Started::Host { pending, shared })
}

/// A slot that moves between the ranks of two stages, as one of them sees it.
pub(super) struct Transfer<'a> {
    pub task: &'a TransferTask,
    /// The rank that sends, and the one that receives.
    pub pair: [Rank; 2],
    pub label: Option<&'a Arc<str>>,
}

impl Transfer<'_> {
    fn call(&self, group: &Group, collective: Collective, input: Option<Block>) -> Call {
        let call = Call::new(group, self.task.dtype, collective, input);
        match self.label {
            Some(label) => call.labelled(label.clone()),
            None => call,
        }
    }

    fn operand<B: BackendIr>(&self, input: Option<B::Handle>) -> Payload {
        let TransferTask { shape, dtype, .. } = self.task;
        let what = format!("{} {shape:?} between stages", dtype.name());
        let bytes = self.task.bytes() as usize;
        Arc::new(Operand::<B>::Transfer { input, what, bytes })
    }

    /// Sends a tensor, without waiting for the receiver.
    pub(super) fn send<B: BackendIr>(
        &self,
        input: B::Handle,
        comm: &dyn Communicator,
        groups: &mut Groups,
    ) -> Result<(), CommError> {
        let group = groups.get(&Arc::from(self.pair))?;
        let bytes = self.task.bytes() as usize;
        let send = Collective::Send { bytes };
        if comm.is_on_device(&group, Kind::Send) {
            let call = self.call(&group, send, None);
            drop(comm.start_on_device(call, self.operand::<B>(Some(input)))?);
            return Ok(());
        }
        comm.land()?;
        let (block, _) = block::<B>(input, &self.task.shape, to_burn(self.task.dtype))?;
        comm.start(self.call(&group, send, Some(block)))?.wait()?;
        Ok(())
    }

    /// Waits for a tensor.
    pub(super) fn receive<B: BackendIr>(
        &self,
        comm: &dyn Communicator,
        groups: &mut Groups,
        turn: &Turn,
        device: &B::Device,
    ) -> Result<(B::Handle, Arc<CallInfo>), CommError> {
        let group = groups.get(&Arc::from(self.pair))?;
        let bytes = self.task.bytes() as usize;
        let call = self.call(&group, Collective::Recv { bytes }, None);
        if comm.is_on_device(&group, Kind::Recv) {
            let pending = comm.start_on_device(call, self.operand::<B>(None))?;
            let info = pending.info().clone();
            return Ok((tensor::<B>(pending.wait()?), info));
        }
        let pending = comm.start(call)?;
        let info = pending.info().clone();
        let output = turn.yield_turn(|| pending.wait())?;
        let (shape, dtype) = (&self.task.shape, self.task.dtype);
        let handle = result::<B>(output, shape, dtype, is_in_memory::<B>(), device);
        Ok((handle, info))
    }
}

fn result<B: BackendIr>(
    output: SharedBuffer,
    shape: &[usize],
    dtype: crate::mesh::DType,
    shared: bool,
    device: &B::Device,
) -> B::Handle {
    let shape = Shape::from(shape.to_vec());
    let bytes = bytes::of_burn(output);
    if shared {
        return in_order::<B>(bytes, shape, to_burn(dtype));
    }
    let data = TensorData::from_bytes(Arc::unwrap_or_clone(bytes), shape, to_burn(dtype));
    from_data::<B>(data, device)
}

/// Returns what the communicator counted: kind, calls, bytes received.
pub(super) fn received(comm: &dyn Communicator) -> Vec<(&'static str, u64, u64)> {
    let stats = comm.stats();
    Kind::ALL
        .iter()
        .map(|&kind| (kind.name(), stats.get(kind)))
        .filter(|(_, stats)| stats.calls > 0)
        .map(|(name, stats)| (name, stats.calls, stats.bytes))
        .collect()
}
