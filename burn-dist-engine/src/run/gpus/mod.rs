//! Collectives between ranks that each have a GPU of their own: NCCL moves device memory, the inner backend packs,
//! joins and folds it ([`burn_dist_gpu::endpoint`]).
//!
//! | collective | NCCL | afterwards |
//! | --- | --- | --- |
//! | all-gather | all-gather, of uneven parts a broadcast each | parts joined along their dim |
//! | all-to-all | sends and receives, grouped | pieces joined along their dim |
//! | reduce-scatter | the same, of the pieces | terms folded in the order of the group |
//! | all-reduce | the same, of chunks; then an all-gather of the folded chunks | |
//! | reductions that NCCL may do ([`Reduction`](burn_dist_gpu::Reduction)) | reduce-scatter, of uneven parts a reduction each; all-reduce | |
//!
//! Backends show their memory on Burn 0.21 alone; from 0.22 on such ranks communicate as others do.
//!
//! Nothing goes through the host. Where pieces lie one after the other already (the dim that is cut is the first),
//! nothing is packed; where they arrive in their final order, nothing is joined.

#[cfg(all(burn_021, feature = "cuda"))]
mod cuda;
#[cfg(not(all(burn_021, feature = "cuda")))]
mod none;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::ops::dtype::to_burn;
use burn_backend::{DType, Shape, Slice};
use burn_ir::BackendIr;

#[cfg(any(test, feature = "cuda"))]
use super::device_exchange::failed;
use super::device_exchange::{BoolOps, Context, FloatOps, IntOps, KindOps, cut, no_task, swapped};
use super::turn::Turn;
use crate::comm::{AllToAll, Call, CallInfo, Collective, CommError, Strided, chunk_sizes};
use crate::plan::task::CollectiveTask;
use burn_dist_gpu::endpoint::{self, InFlight, Placed};
use burn_dist_gpu::nccl::api::{Element, Op};
use burn_dist_gpu::nccl::{collectives, native_fold};

#[cfg(all(burn_021, feature = "cuda"))]
pub(super) use cuda::{connect, crossed, identity};
#[cfg(not(all(burn_021, feature = "cuda")))]
pub(super) use none::{connect, crossed, identity};

/// The side of a rank that other GPUs talk to.
pub(super) type Gpus<B> = endpoint::Gpus<<B as BackendIr>::Handle>;

/// A collective between GPUs that has been started.
pub(super) struct Flight<B: BackendIr> {
    call: InFlight<B::Handle>,
    element: Element,
    next: Next,
}

/// The rest of the work, once all has arrived.
enum Next {
    /// Parts, to be joined.
    Join(Blocks),
    /// Nothing: it is the result.
    Done,
    /// Pieces of an all-to-all.
    Swap(AllToAll),
    /// Terms of this rank's piece, of these many elements, which is the result once they are folded.
    Fold { pieces: Vec<usize> },
    /// Terms of this rank's chunk; the chunks, of these many elements, are gathered.
    FoldAndGather { chunks: Vec<usize> },
}

impl<B: BackendIr> Flight<B> {
    pub(super) fn info(&self) -> &Arc<CallInfo> {
        self.call.info()
    }
}

/// Starts a collective between GPUs.
pub(super) fn start<B: BackendIr>(
    task: &CollectiveTask,
    call: Call,
    input: B::Handle,
    gpus: &Gpus<B>,
    device: &B::Device,
) -> Result<Flight<B>, CommError> {
    let (info, element) = gpus.record(call)?;
    let start = match to_burn(task.dtype) {
        DType::Bool(_) => start_as::<B, BoolOps>,
        dtype if dtype.is_float() => start_as::<B, FloatOps>,
        _ => start_as::<B, IntOps>,
    };
    start(task, input, gpus, &info, element, device)
}

/// Waits for a collective, on the device if it can, and returns this rank's result.
pub(super) fn finish<B: BackendIr>(
    task: &CollectiveTask,
    flight: Flight<B>,
    gpus: &Gpus<B>,
    turn: &Turn,
    device: &B::Device,
) -> Result<B::Handle, CommError> {
    let info = flight.info().clone();
    let finish = match to_burn(task.dtype) {
        DType::Bool(_) => finish_as::<B, BoolOps>,
        dtype if dtype.is_float() => finish_as::<B, FloatOps>,
        _ => finish_as::<B, IntOps>,
    };
    let result = finish(task, flight, gpus, turn, device)?;
    gpus.is_over(&info)?;
    Ok(result)
}

/// Waits until the device has done what it was handed, so that another stream may use memory that the backend has
/// handed out.
#[cfg(any(test, feature = "cuda"))]
#[allow(dead_code, reason = "called where a backend shows device memory")]
fn settle<B: BackendIr>(device: &B::Device) -> Result<(), CommError> {
    B::sync(device).map_err(|error| failed(error.to_string()))
}

fn start_as<B: BackendIr, K: KindOps<B>>(
    task: &CollectiveTask,
    input: B::Handle,
    gpus: &Gpus<B>,
    info: &Arc<CallInfo>,
    element: Element,
    _: &B::Device,
) -> Result<Flight<B>, CommError> {
    let me = task.index;
    let op = task.collective.reduce_op();
    let native = op.and_then(|op| native_fold(op, task.dtype, gpus.reduction()));
    // What is sent, as one flat tensor: pieces one after the other.
    let packed = match &task.collective {
        Collective::ReduceScatter { parts, .. } => {
            let blocks = Blocks::of(parts, task);
            let block = vec![blocks.outer, parts.mid(), blocks.inner];
            packed::<B, K>(task, input, block, 1, &parts.mid_sizes)
        }
        Collective::AllToAll(pieces) => {
            let (block, at_cut, _) = swapped(pieces, pieces.concat.1[me]);
            packed::<B, K>(task, input, block.into(), at_cut, &pieces.split.1)
        }
        _ => input,
    };
    let elements: usize = task.from_shape.iter().product();
    let sent = gpus.memory().pinned(packed, elements, task.dtype)?;
    let from = sent.at;
    let arrive = |elements| gpus.memory().fresh(elements, task.dtype);
    let sum = |sizes: &[usize]| sizes.iter().sum::<usize>();
    let (ops, received, next) = match &task.collective {
        Collective::AllGather(parts) => {
            let blocks = Blocks::of(parts, task);
            let parts = blocks.pieces();
            let into = arrive(sum(&parts))?;
            let ops = collectives::gather(from, into.at, &parts, me, element);
            let next = match blocks.outer {
                1 => Next::Done,
                _ => Next::Join(blocks),
            };
            (ops, into, next)
        }
        Collective::ReduceScatter { parts, .. } => {
            let pieces = Blocks::of(parts, task).pieces();
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
                    (ops, into, Next::Fold { pieces })
                }
            }
        }
        Collective::AllReduce { .. } => match native {
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
        Collective::AllToAll(pieces) => {
            let (sends, recvs) = swaps(pieces, me);
            let into = arrive(sum(&recvs) - recvs[me])?;
            let ops = collectives::exchange(from, &sends, into.at, &recvs, me, element);
            (ops, into, Next::Swap(pieces.clone()))
        }
        Collective::Shift { by, sizes } => {
            // Those of the library: what it has no type for moves as bytes.
            let sizes: Vec<usize> = sizes.iter().map(|size| size / element.bytes()).collect();
            let into = arrive(task.to_shape.iter().product())?;
            let ops = collectives::shift(from, into.at, &sizes, *by, me);
            (ops, into, Next::Done)
        }
        Collective::Broadcast { .. } | Collective::Send { .. } | Collective::Recv { .. } => {
            return Err(no_task(task));
        }
    };
    let memory = [sent, received];
    let call = launch::<B>(gpus, info, element, &ops, memory)?;
    Ok(Flight {
        call,
        element,
        next,
    })
}

/// Puts operations on the device; they use `tensors`.
fn launch<B: BackendIr>(
    gpus: &Gpus<B>,
    info: &Arc<CallInfo>,
    element: Element,
    ops: &[Op],
    tensors: [Placed<B::Handle>; 2],
) -> Result<InFlight<B::Handle>, CommError> {
    // SAFETY: the operations are made for tensors of these sizes: `pinned` and `fresh` have checked them.
    unsafe { gpus.launch(info, element, ops, tensors) }
}

/// Makes the backend wait for a call, or waits for it, and returns the tensors that were sent and received.
fn land<B: BackendIr>(
    mut call: InFlight<B::Handle>,
    gpus: &Gpus<B>,
    turn: &Turn,
) -> Result<(B::Handle, B::Handle), CommError> {
    if let Some(wait) = turn.yield_turn(|| call.exit())? {
        gpus.memory().wait(wait)?;
    }
    Ok(call.into_tensors())
}

fn finish_as<B: BackendIr, K: KindOps<B>>(
    task: &CollectiveTask,
    flight: Flight<B>,
    gpus: &Gpus<B>,
    turn: &Turn,
    device: &B::Device,
) -> Result<B::Handle, CommError> {
    let (me, dtype) = (task.index, to_burn(task.dtype));
    let Flight {
        call,
        element,
        next,
    } = flight;
    let info = call.info().clone();
    let (sent, received) = land::<B>(call, gpus, turn)?;
    let result = |tensor| Ok(K::handle(K::reshape(tensor, task.to_shape.clone().into())));
    if task.to_shape.contains(&0) {
        let empty = K::empty(task.to_shape.clone().into(), device, dtype);
        return Ok(K::handle(empty));
    }
    let cx = Context::<B> { task, device };
    let flat = |handle, elements: usize| flat::<B, K>(handle, elements);
    let sent_elements: usize = task.from_shape.iter().product();
    match next {
        Next::Done => result(flat(received, task.to_shape.iter().product())),
        Next::Join(blocks) => {
            let parts = blocks.pieces();
            let whole: usize = parts.iter().sum();
            let pieces = pieces::<B, K>(flat(received, whole), &parts);
            let pieces = pieces.into_iter().zip(blocks.sizes.iter());
            let pieces = pieces.filter_map(|(part, &size)| {
                let block = [blocks.outer, size, blocks.inner];
                part.map(|part| K::reshape(part, block.into()))
            });
            result(K::cat(pieces.collect(), 1))
        }
        Next::Swap(pieces) => {
            let (sends, recvs) = swaps(&pieces, me);
            let (_, _, at_join) = swapped(&pieces, 0);
            let own = || piece::<B, K>(flat(sent, sent_elements), &sends, me);
            let own = (sends[me] > 0).then(own);
            let parts = with_own::<B, K>(received, own, &recvs, me);
            let parts = parts.into_iter().zip(pieces.concat.1.iter());
            let parts = parts.filter_map(|(part, &size)| {
                let (mut block, at_cut, _) = swapped(&pieces, size);
                block[at_cut] = pieces.split.1[me];
                part.map(|part| K::reshape(part, block.into()))
            });
            result(K::cat(parts.collect(), at_join))
        }
        Next::Fold { pieces } => {
            let own = piece::<B, K>(flat(sent, sent_elements), &pieces, me);
            let terms = vec![pieces[me]; pieces.len()];
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
            let memory = gpus.memory();
            let mine = memory.pinned(K::handle(folded), chunks[me], task.dtype)?;
            let whole = memory.fresh(sent_elements, task.dtype)?;
            let ops = collectives::gather(mine.at, whole.at, &chunks, me, element);
            let call = launch::<B>(gpus, &info, element, &ops, [mine, whole])?;
            let (_, whole) = land::<B>(call, gpus, turn)?;
            result(flat(whole, sent_elements))
        }
    }
}

/// The block as `[outer, mid, inner]` around the dim that is gathered or scattered, in elements, with the size of each
/// member's piece of that dim.
struct Blocks {
    outer: usize,
    inner: usize,
    sizes: Arc<[usize]>,
}

impl Blocks {
    fn of(parts: &Strided, task: &CollectiveTask) -> Self {
        Self {
            outer: parts.outer,
            inner: parts.inner_bytes / task.dtype.size(),
            sizes: parts.mid_sizes.clone(),
        }
    }

    /// Elements of each member's piece.
    fn pieces(&self) -> Vec<usize> {
        let sizes = self.sizes.iter();
        sizes.map(|size| self.outer * size * self.inner).collect()
    }
}

/// Returns `input`, seen as `block`, with the pieces of dim `dim`, of these sizes, one after the other.
fn packed<B: BackendIr, K: KindOps<B>>(
    task: &CollectiveTask,
    input: B::Handle,
    block: Vec<usize>,
    dim: usize,
    sizes: &[usize],
) -> B::Handle {
    let elements: usize = block.iter().product();
    if block[..dim].iter().product::<usize>() == 1 || elements == 0 {
        return input;
    }
    let whole = K::reshape(
        K::tensor(input.clone(), task.from_shape.clone().into()),
        block.clone().into(),
    );
    let pieces = (0..sizes.len()).filter(|index| sizes[*index] > 0);
    let pieces = pieces.map(|index| {
        let mut mine: Vec<Slice> = block.iter().map(|&size| Slice::from(0..size)).collect();
        mine[dim] = cut(sizes, index);
        let size = elements / block[dim] * sizes[index];
        K::reshape(K::slice(whole.clone(), &mine), [size].into())
    });
    K::handle(K::cat(pieces.collect(), 0))
}

/// Elements that an all-to-all sends to and receives from each member.
fn swaps(pieces: &AllToAll, me: usize) -> (Vec<usize>, Vec<usize>) {
    let (block, at_cut, at_join) = swapped(pieces, 0);
    let rest: usize = [0, 2, 4].iter().map(|&dim| block[dim]).product();
    debug_assert_eq!(at_cut + at_join, 4);
    let (cut_sizes, join_sizes) = (&pieces.split.1, &pieces.concat.1);
    let sends = cut_sizes.iter().map(|size| rest * size * join_sizes[me]);
    let recvs = join_sizes.iter().map(|size| rest * size * cut_sizes[me]);
    (sends.collect(), recvs.collect())
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
