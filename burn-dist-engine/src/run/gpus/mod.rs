//! Collectives between ranks that each have a GPU of their own: NCCL moves device memory, the inner backend packs,
//! joins and folds it.
//!
//! ```text
//! input ─ cut and joined piece by piece ─> packed ─┐
//!                                                  ├─ entry ─ NCCL, or copies ─ exit ─> pieces ─ joined, or folded in order ─> result
//! result's buffers, of the backend's own memory ───┘
//! ```
//!
//! Entry and exit are an event and a kernel on the device ([`crate::comm::streams`]), so that the host queues what
//! comes next meanwhile; where the driver cannot do that, the host waits at both. What only moves is copied where GPUs
//! read each other's memory ([`crate::comm::peer`]).
//!
//! | collective | NCCL | afterwards |
//! | --- | --- | --- |
//! | all-gather | all-gather, of uneven parts a broadcast each | parts joined along their dim |
//! | all-to-all | sends and receives, grouped | pieces joined along their dim |
//! | reduce-scatter | the same, of the pieces | terms folded in the order of the group |
//! | all-reduce | the same, of chunks; then an all-gather of what was folded | |
//! | reductions that NCCL may do ([`Reduction`](crate::comm::Reduction)) | reduce-scatter, of uneven parts a reduction each; all-reduce | |
//!
//! Memory of a call that fails stays with the rank until the rank's worker, which first tells everyone of the fault,
//! has [aborted](Gpus::abort) its communicators; what the device may use even then is never given back.
//!
//! Before the host reads anything, it [lands](Gpus::land): it waits until calls are over, and looks whether it was
//! their end or an abort's.
//!
//! The ranks of a process wait for each other before and after each launch ([`crate::comm::nccl`]).
//!
//! Nothing goes through the host. Where pieces lie one after the other already (the dim that is cut is the first),
//! nothing is packed; where they arrive in place, nothing is joined.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
mod none;
mod places;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ops::dtype::to_burn;
use burn_backend::{DType, Shape, Slice};
use burn_ir::BackendIr;

use super::bridge::CollectiveError;
use super::device_exchange::{BoolOps, Context, FloatOps, IntOps, KindOps, cut, swapped};
use super::turn::Turn;
use crate::comm::nccl::api::{Address, Element, Op};
use crate::comm::nccl::groups::{Channels, Launched};
use crate::comm::nccl::{collectives, native_fold};
use crate::comm::streams::api::{FlagWait, Hold};
use crate::comm::streams::watcher::{Watched, Watcher};
use crate::comm::{
    CallInfo, Collective, CommError, Communicator, Group, Lane, LocalHub, Reduction, chunk_sizes,
};
use crate::mesh::Rank;
use crate::plan::task::{CollectiveKind, CollectiveTask};

#[cfg(feature = "cuda")]
pub(super) use cuda::{connect, identity};
#[cfg(not(feature = "cuda"))]
pub(super) use none::{connect, identity};

pub(super) use places::alone;

/// What tells GPUs apart, on all machines: their UUID.
pub(super) type Identity = [u8; 16];

/// A tensor, and where it is.
pub(super) struct Placed<B: BackendIr> {
    pub handle: B::Handle,
    /// An empty one is nowhere.
    pub at: Address,
    /// Keeps its memory, and does not keep the backend from writing in place.
    pub hold: Hold,
}

/// Tensors of an inner backend as device memory, and the stream on which it computes.
pub(super) trait Memory<B: BackendIr>: Send {
    /// Returns a tensor in row-major order.
    fn pinned(
        &self,
        handle: B::Handle,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Placed<B>, CollectiveError>;

    /// Returns a flat tensor that nothing has written yet.
    fn fresh(
        &self,
        elements: usize,
        dtype: DType,
        device: &B::Device,
    ) -> Result<Placed<B>, CollectiveError>;

    /// Waits until the backend has handed to the driver what this thread has given it: the device need not have run it.
    fn submit(&self, device: &B::Device) -> Result<(), CollectiveError>;

    /// Makes what this thread gives the backend from now on wait on the device.
    fn wait(&self, wait: FlagWait, device: &B::Device) -> Result<(), CollectiveError>;
}

/// Where calls start from, and who watches them if the host does not wait for them.
type Opened<B> = (Shared<B>, Option<Watcher>);

type Open = dyn Fn() -> Result<Channels, CommError> + Send;

/// What a rank communicates with other GPUs through; the libraries are opened when it first does.
pub(super) struct Gpus<B: BackendIr> {
    memory: Box<dyn Memory<B>>,
    open: Box<Open>,
    /// What has been opened, or why nothing was.
    ground: OnceCell<Result<Opened<B>, CommError>>,
    reduction: Reduction,
    hub: Arc<LocalHub>,
}

impl<B: BackendIr> Gpus<B> {
    pub(super) fn new(
        memory: impl Memory<B> + 'static,
        open: impl Fn() -> Result<Channels, CommError> + Send + 'static,
        reduction: Reduction,
        hub: Arc<LocalHub>,
    ) -> Self {
        Self {
            memory: Box::new(memory),
            open: Box::new(open),
            ground: OnceCell::new(),
            reduction,
            hub,
        }
    }

    /// Opens the libraries the first time, and gives the same ever after.
    fn ground(&self, rank: Rank) -> Result<Shared<B>, CommError> {
        let opened = self.ground.get_or_init(|| {
            let channels = (self.open)()?;
            let poison = channels.poison();
            let shared = Shared::new(channels);
            // Where the host waits for calls itself, it sees what becomes of them.
            let watcher = poison.map(|poison| {
                let hub = Arc::clone(&self.hub);
                let name = format!("watcher of rank {}", rank.0);
                Watcher::start(name, hub, &shared.0, poison)
            });
            let watcher = watcher.transpose().map_err(|error| CommError::Aborted {
                rank,
                what: "starting a thread that watches calls between GPUs".into(),
                label: "".into(),
                reason: error.to_string(),
            })?;
            Ok((shared, watcher))
        });
        opened
            .as_ref()
            .map(|(shared, _)| shared.clone())
            .map_err(Clone::clone)
    }

    /// Waits until the device is done with all calls that it was given the wait for: until what the host reads is what
    /// they have brought.
    pub(super) fn land(&self, comm: &dyn Communicator, turn: &Turn) -> Result<(), CommError> {
        match self.ground.get() {
            Some(Ok((ground, _))) => {
                let mut ground = ground.get();
                turn.yield_turn(|| ground.channels.land(comm))
            }
            _ => Ok(()),
        }
    }

    /// Stops what is on the device. Everyone has to know of the fault: this waits for others.
    pub(super) fn abort(&mut self) {
        if let Some(Ok((ground, _))) = self.ground.get() {
            ground.get().abort();
        }
    }

    /// Leaves the groups.
    pub(super) fn close(&mut self, comm: &dyn Communicator) {
        if let Some(Ok((ground, _))) = self.ground.get() {
            let mut ground = ground.get();
            ground.channels.close(comm);
            // Nothing is left to stop, but perhaps memory to give back.
            ground.abort();
        }
    }
}

/// Where the calls of a rank start from and come back to.
struct Ground<B: BackendIr> {
    channels: Channels,
    /// What is sent and what arrives in calls that have not come back: the device may use it until their communicators
    /// have ended.
    kept: Vec<(B::Handle, B::Handle, Hold)>,
}

impl<B: BackendIr> Ground<B> {
    fn abort(&mut self) {
        let is_free = self.channels.abort();
        let kept = std::mem::take(&mut self.kept);
        if !is_free && !kept.is_empty() {
            tracing::warn!(
                calls = kept.len(),
                "a GPU may still use memory of calls that were aborted: it is not given back"
            );
            std::mem::forget(kept);
        }
    }
}

impl<B: BackendIr> Watched for Ground<B> {
    fn check(&mut self, hub: &LocalHub) -> Result<(), CommError> {
        self.channels.look(hub)
    }

    fn abort(&mut self) {
        Self::abort(self);
    }
}

impl<B: BackendIr> Drop for Ground<B> {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The ground of a rank, shared with its calls.
struct Shared<B: BackendIr>(Arc<Mutex<Ground<B>>>);

impl<B: BackendIr> Clone for Shared<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: BackendIr> Shared<B> {
    fn new(channels: Channels) -> Self {
        let kept = Vec::new();
        Self(Arc::new(Mutex::new(Ground { channels, kept })))
    }

    fn get(&self) -> MutexGuard<'_, Ground<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on the device, with its memory, which comes back with it; dropped before that, it leaves the memory on the
/// [`Ground`].
struct Airborne<B: BackendIr> {
    launched: Option<Launched>,
    info: Arc<CallInfo>,
    ground: Shared<B>,
    /// What is sent, and what arrives.
    memory: Option<(B::Handle, B::Handle)>,
    hold: Hold,
}

impl<B: BackendIr> Airborne<B> {
    /// Makes the backend wait for the call, or waits for it, and returns what was sent and what has arrived.
    fn land(
        mut self,
        memory: &dyn Memory<B>,
        comm: &dyn Communicator,
        turn: &Turn,
        device: &B::Device,
    ) -> Result<(B::Handle, B::Handle), CollectiveError> {
        if let Some(launched) = self.launched.take() {
            let hold = std::mem::replace(&mut self.hold, Box::new(()));
            let mut ground = self.ground.get();
            let wait = turn.yield_turn(|| ground.channels.exit(comm, launched, hold))?;
            drop(ground);
            if let Some(wait) = wait {
                memory.wait(wait, device)?;
            }
        }
        let memory = self.memory.take();
        Ok(memory.expect("taken here only, and by a drop"))
    }
}

impl<B: BackendIr> Drop for Airborne<B> {
    fn drop(&mut self) {
        if let Some((sent, received)) = self.memory.take() {
            let hold = std::mem::replace(&mut self.hold, Box::new(()));
            let mut ground = self.ground.get();
            ground.kept.push((sent, received, hold));
            if let Some(launched) = self.launched.take() {
                ground.channels.give_up(launched);
            }
        }
    }
}

/// A collective between GPUs that has been started.
pub(super) struct Flight<B: BackendIr> {
    call: Airborne<B>,
    element: Element,
    next: Next,
}

/// What is to be done with what has arrived.
enum Next {
    /// Parts of these many elements, to be joined.
    Join { parts: Vec<usize> },
    /// Nothing: it is the result.
    Done,
    /// Pieces of an all-to-all.
    Swap,
    /// Terms of this rank's piece, which is the result once they are folded.
    Fold,
    /// Terms of this rank's chunk; the chunks, of these many elements, are gathered.
    FoldAndGather { chunks: Vec<usize> },
}

impl<B: BackendIr> Flight<B> {
    pub(super) fn info(&self) -> &Arc<CallInfo> {
        &self.call.info
    }
}

/// Starts a collective between GPUs.
#[allow(
    clippy::too_many_arguments,
    reason = "the worker's state, field by field"
)]
pub(super) fn start<B: BackendIr>(
    task: &CollectiveTask,
    collective: Collective,
    input: B::Handle,
    gpus: &mut Gpus<B>,
    comm: &dyn Communicator,
    group: &Group,
    label: Option<&Arc<str>>,
    device: &B::Device,
) -> Result<Flight<B>, CollectiveError> {
    let call = (task.dtype, collective, task.axes.clone());
    let place = (group, Lane::default());
    let ground = gpus.ground(comm.rank())?;
    let (info, element) = ground.get().channels.record(comm, place, label, call)?;
    let start = match to_burn(task.dtype) {
        DType::Bool(_) => start_as::<B, BoolOps>,
        dtype if dtype.is_float() => start_as::<B, FloatOps>,
        _ => start_as::<B, IntOps>,
    };
    start(task, input, gpus, comm, &info, element, device)
}

/// Waits for a collective, on the device if it can, and returns this rank's result.
pub(super) fn finish<B: BackendIr>(
    task: &CollectiveTask,
    flight: Flight<B>,
    gpus: &mut Gpus<B>,
    comm: &dyn Communicator,
    turn: &Turn,
    device: &B::Device,
) -> Result<B::Handle, CollectiveError> {
    let info = flight.info().clone();
    let finish = match to_burn(task.dtype) {
        DType::Bool(_) => finish_as::<B, BoolOps>,
        dtype if dtype.is_float() => finish_as::<B, FloatOps>,
        _ => finish_as::<B, IntOps>,
    };
    let result = finish(task, flight, gpus, comm, turn, device)?;
    if !gpus.ground(comm.rank())?.get().channels.is_ordered() {
        Channels::over(&info);
    }
    Ok(result)
}

/// Waits until the device has done what it was given, so that another stream may use memory that the backend has handed
/// out.
fn settle<B: BackendIr>(device: &B::Device) -> Result<(), CollectiveError> {
    B::sync(device).map_err(|error| CollectiveError::Backend(error.to_string()))
}

fn start_as<B: BackendIr, K: KindOps<B>>(
    task: &CollectiveTask,
    input: B::Handle,
    gpus: &mut Gpus<B>,
    comm: &dyn Communicator,
    info: &Arc<CallInfo>,
    element: Element,
    device: &B::Device,
) -> Result<Flight<B>, CollectiveError> {
    let (me, dtype) = (task.index, to_burn(task.dtype));
    let view = Blocks::of(task);
    let native = native_fold(task.op, task.dtype, gpus.reduction);
    // What is sent, as one flat tensor: pieces one after the other.
    let packed = match task.kind {
        CollectiveKind::AllGather | CollectiveKind::AllReduce | CollectiveKind::Shift { .. } => {
            input
        }
        CollectiveKind::ReduceScatter => {
            let whole: usize = task.sizes.iter().sum();
            view.packed::<B, K>(task, input, [view.outer, whole, view.inner].into(), 1)
        }
        CollectiveKind::AllToAll => {
            let (block, at_cut, _) = swapped(task, task.to_sizes[me]);
            view.packed::<B, K>(task, input, block.into(), at_cut)
        }
    };
    let elements: usize = task.from_shape.iter().product();
    let sent = gpus.memory.pinned(packed, &[elements], dtype)?;
    let from = sent.at;
    let arrive = |elements| gpus.memory.fresh(elements, dtype, device);
    let sum = |sizes: &[usize]| sizes.iter().sum::<usize>();
    let (ops, received, next) = match task.kind {
        CollectiveKind::AllGather => {
            let parts = view.pieces(&task.sizes);
            let into = arrive(sum(&parts))?;
            let ops = collectives::gather(from, into.at, &parts, me, element);
            let next = match view.outer {
                1 => Next::Done,
                _ => Next::Join { parts },
            };
            (ops, into, next)
        }
        CollectiveKind::ReduceScatter => {
            let pieces = view.pieces(&task.sizes);
            match native {
                Some(fold) => {
                    let into = arrive(pieces[me])?;
                    let ops = collectives::reduce_scatter(from, into.at, &pieces, fold, element);
                    (ops, into, Next::Done)
                }
                None => {
                    let terms = vec![pieces[me]; pieces.len()];
                    let into = arrive(sum(&terms) - pieces[me])?;
                    let ops = collectives::exchange(from, &pieces, into.at, &terms, me, element);
                    (ops, into, Next::Fold)
                }
            }
        }
        CollectiveKind::AllReduce => match native {
            Some(fold) => {
                let into = arrive(elements)?;
                let ops = collectives::all_reduce(from, into.at, elements, fold);
                (ops, into, Next::Done)
            }
            None => {
                let chunks = chunk_sizes(elements, task.group.len());
                let terms = vec![chunks[me]; chunks.len()];
                let into = arrive(sum(&terms) - chunks[me])?;
                let ops = collectives::exchange(from, &chunks, into.at, &terms, me, element);
                (ops, into, Next::FoldAndGather { chunks })
            }
        },
        CollectiveKind::AllToAll => {
            let (sends, recvs) = swaps(task);
            let into = arrive(sum(&recvs) - recvs[me])?;
            let ops = collectives::exchange(from, &sends, into.at, &recvs, me, element);
            (ops, into, Next::Swap)
        }
        CollectiveKind::Shift { by } => {
            let into = arrive(task.to_shape.iter().product())?;
            let ops = collectives::shift(from, into.at, &task.sizes, by as isize, me);
            (ops, into, Next::Done)
        }
    };
    let memory = [sent, received];
    let call = launch::<B>(gpus, comm, info, element, &ops, memory, device)?;
    Ok(Flight {
        call,
        element,
        next,
    })
}

/// Puts calls on the device behind what is queued there; they use `memory`.
fn launch<B: BackendIr>(
    gpus: &Gpus<B>,
    comm: &dyn Communicator,
    info: &Arc<CallInfo>,
    element: Element,
    ops: &[Op],
    [sent, received]: [Placed<B>; 2],
    device: &B::Device,
) -> Result<Airborne<B>, CollectiveError> {
    let ground = gpus.ground(comm.rank())?;
    let is_ordered = ground.get().channels.is_ordered();
    match is_ordered {
        true => gpus.memory.submit(device)?,
        false => settle::<B>(device)?,
    }
    let mut call = Airborne {
        launched: None,
        info: Arc::clone(info),
        ground,
        memory: Some((sent.handle, received.handle)),
        hold: Box::new((sent.hold, received.hold)),
    };
    // SAFETY: the addresses are of tensors of the inner backend, within the counts: `pinned` and `fresh` have checked
    // their sizes. `call` has them: it gives them back when it has landed, and else to the ground, which keeps them
    // until an abort says that they are free. What the backend has queued and may still use their memory has been
    // waited for, or handed to the driver, where the launch is put behind it.
    let launched = unsafe { call.ground.get().channels.launch(comm, info, element, ops) };
    call.launched = Some(launched?);
    Ok(call)
}

fn finish_as<B: BackendIr, K: KindOps<B>>(
    task: &CollectiveTask,
    flight: Flight<B>,
    gpus: &mut Gpus<B>,
    comm: &dyn Communicator,
    turn: &Turn,
    device: &B::Device,
) -> Result<B::Handle, CollectiveError> {
    let (me, dtype) = (task.index, to_burn(task.dtype));
    let Flight {
        call,
        element,
        next,
    } = flight;
    let info = call.info.clone();
    let (sent, received) = call.land(&*gpus.memory, comm, turn, device)?;
    let result = |tensor| Ok(K::handle(K::reshape(tensor, task.to_shape.clone().into())));
    if task.to_shape.contains(&0) {
        let empty = K::empty(task.to_shape.clone().into(), device, dtype);
        return Ok(K::handle(empty));
    }
    let view = Blocks::of(task);
    let cx = Context::<B> { task, device };
    let flat = |handle, elements: usize| flat::<B, K>(handle, elements);
    let sent_elements: usize = task.from_shape.iter().product();
    match next {
        Next::Done => result(flat(received, task.to_shape.iter().product())),
        Next::Join { parts } => {
            let whole: usize = parts.iter().sum();
            let pieces = pieces::<B, K>(flat(received, whole), &parts);
            let pieces = pieces.into_iter().zip(task.sizes.iter());
            let pieces = pieces.filter_map(|(part, &size)| {
                let block = [view.outer, size, view.inner];
                part.map(|part| K::reshape(part, block.into()))
            });
            result(K::cat(pieces.collect(), 1))
        }
        Next::Swap => {
            let (sends, recvs) = swaps(task);
            let (_, _, at_join) = swapped(task, 0);
            let own = || piece::<B, K>(flat(sent, sent_elements), &sends, me);
            let own = (sends[me] > 0).then(own);
            let parts = with_own::<B, K>(received, own, &recvs, me);
            let parts = parts.into_iter().zip(task.to_sizes.iter());
            let parts = parts.filter_map(|(part, &size)| {
                let (mut block, at_cut, _) = swapped(task, size);
                block[at_cut] = task.sizes[me];
                part.map(|part| K::reshape(part, block.into()))
            });
            result(K::cat(parts.collect(), at_join))
        }
        Next::Fold => {
            let sizes = view.pieces(&task.sizes);
            let own = piece::<B, K>(flat(sent, sent_elements), &sizes, me);
            let terms = vec![sizes[me]; sizes.len()];
            let terms = with_own::<B, K>(received, Some(own), &terms, me);
            result(cx.reduced::<K>(terms.into_iter().flatten().collect())?)
        }
        Next::FoldAndGather { chunks } => {
            let folded = match chunks[me] {
                0 => K::empty([0].into(), device, dtype),
                _ => {
                    let own = piece::<B, K>(flat(sent, sent_elements), &chunks, me);
                    let terms = vec![chunks[me]; chunks.len()];
                    let terms = with_own::<B, K>(received, Some(own), &terms, me);
                    cx.reduced::<K>(terms.into_iter().flatten().collect())?
                }
            };
            let mine = gpus
                .memory
                .pinned(K::handle(folded), &[chunks[me]], dtype)?;
            let whole = gpus.memory.fresh(sent_elements, dtype, device)?;
            let ops = collectives::gather(mine.at, whole.at, &chunks, me, element);
            let call = launch::<B>(gpus, comm, &info, element, &ops, [mine, whole], device)?;
            let (_, whole) = call.land(&*gpus.memory, comm, turn, device)?;
            result(flat(whole, sent_elements))
        }
    }
}

/// The local block as `[outer, mid, inner]` around the dim that is gathered or scattered.
struct Blocks {
    outer: usize,
    inner: usize,
}

impl Blocks {
    fn of(task: &CollectiveTask) -> Self {
        Self {
            outer: task.from_view.iter().take(task.dim).product(),
            inner: task.from_view.iter().skip(task.dim + 1).product(),
        }
    }

    /// Elements of each member's piece.
    fn pieces(&self, sizes: &[usize]) -> Vec<usize> {
        sizes
            .iter()
            .map(|size| self.outer * size * self.inner)
            .collect()
    }

    /// Returns `input`, seen as `block`, with the pieces of dim `dim` one after the other.
    fn packed<B: BackendIr, K: KindOps<B>>(
        &self,
        task: &CollectiveTask,
        input: B::Handle,
        block: Vec<usize>,
        dim: usize,
    ) -> B::Handle {
        let elements: usize = block.iter().product();
        if block[..dim].iter().product::<usize>() == 1 || elements == 0 {
            return input;
        }
        let whole = K::reshape(
            K::tensor(input.clone(), task.from_shape.clone().into()),
            block.clone().into(),
        );
        let pieces = (0..task.sizes.len()).filter(|index| task.sizes[*index] > 0);
        let pieces = pieces.map(|index| {
            let mut mine: Vec<Slice> = block.iter().map(|&size| Slice::from(0..size)).collect();
            mine[dim] = cut(&task.sizes, index);
            let size = elements / block[dim] * task.sizes[index];
            K::reshape(K::slice(whole.clone(), &mine), [size].into())
        });
        K::handle(K::cat(pieces.collect(), 0))
    }
}

/// Elements that an all-to-all sends to and receives from each member.
fn swaps(task: &CollectiveTask) -> (Vec<usize>, Vec<usize>) {
    let me = task.index;
    let (block, at_cut, at_join) = swapped(task, 0);
    let rest: usize = [0, 2, 4].iter().map(|&dim| block[dim]).product();
    debug_assert_eq!(at_cut + at_join, 4);
    let sends = task.sizes.iter();
    let recvs = task.to_sizes.iter();
    (
        sends.map(|size| rest * size * task.to_sizes[me]).collect(),
        recvs.map(|size| rest * size * task.sizes[me]).collect(),
    )
}

fn flat<B: BackendIr, K: KindOps<B>>(handle: B::Handle, elements: usize) -> K::Tensor {
    let shape = Shape::from([elements]);
    K::reshape(K::tensor(handle, shape.clone()), shape)
}

/// One of the pieces of a flat tensor, which is not empty: to CubeCL, a kernel without threads is an error.
fn piece<B: BackendIr, K: KindOps<B>>(
    whole: K::Tensor,
    sizes: &[usize],
    index: usize,
) -> K::Tensor {
    debug_assert!(sizes[index] > 0, "piece {index} of {sizes:?} is empty");
    match sizes.len() {
        1 => whole,
        _ => K::slice(whole, &[cut(sizes, index)]),
    }
}

/// The pieces of a flat tensor; `None` where they are empty.
fn pieces<B: BackendIr, K: KindOps<B>>(
    whole: K::Tensor,
    sizes: &[usize],
) -> Vec<Option<K::Tensor>> {
    (0..sizes.len())
        .map(|index| (sizes[index] > 0).then(|| piece::<B, K>(whole.clone(), sizes, index)))
        .collect()
}

/// The pieces of all members, of which this rank's own was not sent; `None` where they are empty.
fn with_own<B: BackendIr, K: KindOps<B>>(
    received: B::Handle,
    own: Option<K::Tensor>,
    sizes: &[usize],
    me: usize,
) -> Vec<Option<K::Tensor>> {
    let mut others = sizes.to_vec();
    others.remove(me);
    let mut parts = match others.iter().sum() {
        0 => others.iter().map(|_| None).collect(),
        elements => pieces::<B, K>(flat::<B, K>(received, elements), &others),
    };
    parts.insert(me, own);
    parts
}
