//! Collectives between ranks that share a device: handles change hands, and each rank combines them on the device.
//!
//! ```text
//! rank 0: handle a ─┐              ┌─> [a, b] -> cat / slice / a + b -> its result
//!                   ├─ exchange ───┤                                       (ops of the inner backend, in the order of the group)
//! rank 1: handle b ─┘              └─> [a, b] -> cat / slice / a + b -> its result
//! ```
//!
//! Nothing goes through the host, and nothing is waited for on the device: the handles are promises of what is in its
//! queue. That this is safe, and that the others' handles may be read while their owners keep them, is the business of
//! [`Turn`].
//!
//! Reductions add up in the order of the group, axis by axis, each element from its terms alone, as the host's kernels
//! do ([`crate::comm`]); halves accumulate in f32. So reduce-scatter followed by all-gather equals all-reduce bit by
//! bit here too.

use std::sync::Arc;

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{DType, FloatDType, Scalar, Shape, Slice, TensorMetadata};
use burn_ir::{BackendIr, TensorHandle};
use burn_std::BoolDType;

use super::turn::Turn;
use crate::burn::{flat_between, settings};
use crate::comm::{
    AllToAll, Call, Collective, CommError, Communicator, Exchange, Payload, Pending, Strided,
    member_before,
};
use crate::mesh::ReduceOp;
use crate::ops::dtype::to_burn;
use crate::plan::task::CollectiveTask;

#[cfg(test)]
pub(super) mod tests;

/// Returns the error of a tensor that is not handed over, made or combined.
pub(super) fn failed(reason: String) -> CommError {
    CommError::Device { reason }
}

/// Returns the error of a collective that no plan has.
pub(super) fn no_task(task: &CollectiveTask) -> CommError {
    let name = task.kind().name();
    failed(format!(
        "{name} is no collective of a plan; this is a bug in burn-dist"
    ))
}

/// A tensor that a rank hands to the others.
struct Part<H> {
    handle: H,
    shape: Vec<usize>,
}

/// Hands this rank's part of a collective to the others at its device.
pub(super) fn start<B: BackendIr>(
    task: &CollectiveTask,
    input: B::Handle,
    comm: &dyn Communicator,
    call: &Call,
) -> Result<Pending<Arc<[Payload]>>, CommError> {
    let mine: Payload = Arc::new(Part {
        handle: input,
        shape: task.from_shape.clone(),
    });
    comm.exchange(Exchange::of_operands(call), mine)
}

/// Waits for the parts of the others and returns this rank's result.
pub(super) fn finish<B: BackendIr>(
    task: &CollectiveTask,
    pending: Pending<Arc<[Payload]>>,
    turn: &Turn,
    device: &B::Device,
) -> Result<B::Handle, CommError> {
    // Held until this rank has submitted all it does with them: no operation here may take a part for its own and work
    // in place.
    let payloads = turn.yield_turn(|| pending.wait())?;
    let parts = payloads.iter().map(|payload| {
        let part: &Part<B::Handle> = payload
            .downcast_ref()
            .expect("the ranks of a mesh have one backend");
        TensorHandle {
            handle: part.handle.clone(),
            shape: part.shape.clone().into(),
        }
    });
    let cx = Context::<B> { task, device };
    Ok(match to_burn(task.dtype) {
        DType::QFloat(_) => {
            return Err(failed(format!(
                "{} cannot be cut and joined: dequantize it first",
                task.dtype.name()
            )));
        }
        DType::Bool(_) => {
            let parts = parts.map(B::bool_tensor).collect();
            B::bool_tensor_handle(cx.combined::<BoolOps>(parts)?)
        }
        dtype if dtype.is_float() => {
            let parts = parts.map(B::float_tensor).collect();
            B::float_tensor_handle(cx.combined::<FloatOps>(parts)?)
        }
        _ => {
            let parts = parts.map(B::int_tensor).collect();
            B::int_tensor_handle(cx.combined::<IntOps>(parts)?)
        }
    })
}

/// The part of `index` in a dim that is cut into `sizes`.
pub(super) fn cut(sizes: &[usize], index: usize) -> Slice {
    let start: usize = sizes[..index].iter().sum();
    Slice::from(start..start + sizes[index])
}

/// The block of an all-to-all as `[p, first, q, second, r]` around the two dims, with `joined` of the dim that is
/// joined; and where the two stand: cut, joined.
pub(super) fn swapped(pieces: &AllToAll, joined: usize) -> ([usize; 5], usize, usize) {
    let (shape, cut_dim, join_dim) = (&pieces.shape, pieces.split.0, pieces.concat.0);
    let (first, second) = (cut_dim.min(join_dim), cut_dim.max(join_dim));
    let (at_cut, at_join) = if cut_dim < join_dim { (1, 3) } else { (3, 1) };
    let mut block = [
        shape[..first].iter().product(),
        0,
        shape[first + 1..second].iter().product(),
        0,
        shape[second + 1..].iter().product(),
    ];
    block[at_cut] = pieces.split.1.iter().sum();
    block[at_join] = joined;
    (block, at_cut, at_join)
}

pub(super) struct Context<'a, B: BackendIr> {
    pub task: &'a CollectiveTask,
    pub device: &'a B::Device,
}

impl<B: BackendIr> Context<'_, B> {
    /// Returns this rank's result from the parts of all members, in the order of the group.
    fn combined<K: KindOps<B>>(&self, parts: Vec<K::Tensor>) -> Result<K::Tensor, CommError> {
        let task = self.task;
        let shape = || Shape::from(task.to_shape.clone());
        if task.to_shape.contains(&0) {
            return Ok(K::empty(shape(), self.device, to_burn(task.dtype)));
        }
        let elem = task.dtype.size();
        // A block as `[outer, mid, inner]` around the dim that is divided.
        let block = |pieces: &Strided, mid: usize| {
            let inner = pieces.inner_bytes / elem;
            [pieces.outer, mid, inner]
        };
        let combined = match &task.collective {
            Collective::AllReduce { .. } => self.reduced::<K>(parts)?,
            Collective::AllGather(pieces) => {
                let parts = parts.into_iter().zip(pieces.mid_sizes.iter());
                let parts = parts
                    .filter(|(_, size)| **size > 0)
                    .map(|(part, &size)| K::reshape(part, block(pieces, size).into()));
                K::cat(parts.collect(), 1)
            }
            Collective::ReduceScatter { parts: pieces, .. } => {
                let whole = block(pieces, pieces.mid());
                let mut mine = whole.map(|size| Slice::from(0..size));
                mine[1] = cut(&pieces.mid_sizes, task.index);
                let parts = parts
                    .into_iter()
                    .map(|part| K::slice(K::reshape(part, whole.into()), &mine));
                self.reduced::<K>(parts.collect())?
            }
            Collective::AllToAll(pieces) => {
                let (_, _, at_join) = swapped(pieces, 0);
                let parts = parts.into_iter().zip(pieces.concat.1.iter());
                let parts = parts.filter(|(_, size)| **size > 0).map(|(part, &size)| {
                    let (block, at_cut, _) = swapped(pieces, size);
                    let mut mine = block.map(|size| Slice::from(0..size));
                    mine[at_cut] = cut(&pieces.split.1, task.index);
                    K::slice(K::reshape(part, block.into()), &mine)
                });
                K::cat(parts.collect(), at_join)
            }
            Collective::Shift { by, .. } => {
                let from = member_before(task.index, *by, parts.len());
                let block = parts.into_iter().nth(from);
                block.expect("it is one of the members")
            }
            Collective::Broadcast { .. } | Collective::Send { .. } | Collective::Recv { .. } => {
                return Err(no_task(task));
            }
        };
        Ok(K::reshape(combined, shape()))
    }

    /// Combines terms over each of the axes of the group, the last first.
    pub(super) fn reduced<K: KindOps<B>>(
        &self,
        parts: Vec<K::Tensor>,
    ) -> Result<K::Tensor, CommError> {
        let mut parts = parts;
        for &size in self.task.axes.iter().rev() {
            let mut reduced = Vec::with_capacity(parts.len() / size);
            let mut terms = parts.into_iter();
            while terms.len() > 0 {
                reduced.push(self.along::<K>(terms.by_ref().take(size))?);
            }
            parts = reduced;
        }
        self.along::<K>(parts.into_iter())
    }

    /// Combines the terms of one axis.
    fn along<K: KindOps<B>>(
        &self,
        terms: impl ExactSizeIterator<Item = K::Tensor>,
    ) -> Result<K::Tensor, CommError> {
        let op = self.task.collective.reduce_op();
        let op = op.expect("only reductions have terms");
        let dtype = to_burn(self.task.dtype);
        let bools = settings::<B>(self.device).bool_dtype;
        if op == ReduceOp::Mean && terms.len() > 1 {
            let terms = terms.map(|term| K::widen(term, dtype)).collect();
            return Ok(K::narrow(K::mean(terms, bools)?, dtype));
        }
        tree(terms.collect(), &|a, b| K::pair(op, a, b, bools))
    }
}

/// Combines terms as a balanced tree, split at the largest power of two; sums are rounded to the type of the terms.
fn tree<T, E>(mut terms: Vec<T>, combine: &impl Fn(T, T) -> Result<T, E>) -> Result<T, E> {
    if terms.len() < 2 {
        return Ok(terms.pop().expect("a group has a member"));
    }
    let right = terms.split_off(terms.len().next_power_of_two() / 2);
    combine(tree(terms, combine)?, tree(right, combine)?)
}

/// The operations that collectives need, for one kind of tensor.
pub(super) trait KindOps<B: BackendIr> {
    type Tensor: Clone;
    fn tensor(handle: B::Handle, shape: Shape) -> Self::Tensor;
    fn handle(tensor: Self::Tensor) -> B::Handle;
    fn reshape(tensor: Self::Tensor, shape: Shape) -> Self::Tensor;
    fn slice(tensor: Self::Tensor, slices: &[Slice]) -> Self::Tensor;
    fn cat(tensors: Vec<Self::Tensor>, dim: usize) -> Self::Tensor;
    fn empty(shape: Shape, device: &B::Device, dtype: DType) -> Self::Tensor;

    /// Combines two terms of any reduction but a mean.
    fn pair(
        op: ReduceOp,
        a: Self::Tensor,
        b: Self::Tensor,
        bools: BoolDType,
    ) -> Result<Self::Tensor, CommError>;

    /// Returns the mean of a term and others: their sum divided by their number or, where all are equal, the term
    /// itself.
    fn mean(terms: Vec<Self::Tensor>, bools: BoolDType) -> Result<Self::Tensor, CommError>;

    /// Converts a term to what terms are combined in.
    fn widen(term: Self::Tensor, _dtype: DType) -> Self::Tensor {
        term
    }

    /// Converts a result of [`Self::pair`] back.
    fn narrow(sum: Self::Tensor, _dtype: DType) -> Self::Tensor {
        sum
    }
}

macro_rules! moves {
    ($tensor:ident, $from:ident $into:ident $reshape:ident $slice:ident $cat:ident $empty:ident) => {
        type Tensor = $tensor<B>;
        fn tensor(handle: B::Handle, shape: Shape) -> Self::Tensor {
            B::$from(TensorHandle { handle, shape })
        }
        fn handle(tensor: Self::Tensor) -> B::Handle {
            B::$into(tensor)
        }
        fn reshape(tensor: Self::Tensor, shape: Shape) -> Self::Tensor {
            match flat_between(&tensor.shape(), &shape) {
                Some(flat) => B::$reshape(B::$reshape(tensor, flat), shape),
                None => B::$reshape(tensor, shape),
            }
        }
        fn slice(tensor: Self::Tensor, slices: &[Slice]) -> Self::Tensor {
            B::$slice(tensor, slices)
        }
        fn cat(tensors: Vec<Self::Tensor>, dim: usize) -> Self::Tensor {
            B::$cat(tensors, dim)
        }
        fn empty(shape: Shape, device: &B::Device, dtype: DType) -> Self::Tensor {
            B::$empty(shape, device, dtype.into())
        }
    };
}

macro_rules! mean {
    ($tensor:ident, $equal:ident $add:ident $div:ident $choose:ident, $number:ty) => {
        fn mean(terms: Vec<$tensor<B>>, bools: BoolDType) -> Result<$tensor<B>, CommError> {
            let members = terms.len();
            let first = terms[0].clone();
            let equal = terms[1..]
                .iter()
                .map(|term| B::$equal(first.clone(), term.clone(), bools));
            let are_equal: Option<BoolTensor<B>> = equal.reduce(B::bool_and);
            let sum = tree(terms, &|a, b| Ok::<_, CommError>(B::$add(a, b)))?;
            let mean = B::$div(sum, Scalar::from(members as $number));
            Ok(match are_equal {
                Some(are_equal) => B::$choose(mean, are_equal, first),
                None => mean,
            })
        }
    };
}

pub(super) struct FloatOps;

impl<B: BackendIr> KindOps<B> for FloatOps {
    moves! { FloatTensor, float_tensor float_tensor_handle float_reshape float_slice float_cat float_empty }

    fn pair(
        op: ReduceOp,
        a: FloatTensor<B>,
        b: FloatTensor<B>,
        bools: BoolDType,
    ) -> Result<FloatTensor<B>, CommError> {
        // The smaller or larger one; NaN if either is: one in `b` fails the comparison and stays, one in `a` is caught
        // by the second condition.
        let chosen = |first: fn(FloatTensor<B>, FloatTensor<B>, BoolDType) -> BoolTensor<B>| {
            let first = first(a.clone(), b.clone(), bools);
            let nan = B::float_is_nan(a.clone(), bools);
            B::float_mask_where(b.clone(), B::bool_or(first, nan), a.clone())
        };
        Ok(match op {
            ReduceOp::Min => chosen(B::float_lower),
            ReduceOp::Max => chosen(B::float_greater),
            ReduceOp::Sum | ReduceOp::Mean => B::float_add(a, b),
            ReduceOp::Prod => B::float_mul(a, b),
        })
    }

    mean! { FloatTensor, float_equal float_add float_div_scalar float_mask_where, f64 }

    fn widen(term: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
        match dtype {
            DType::F16 | DType::BF16 => B::float_cast(term, FloatDType::F32),
            _ => term,
        }
    }

    fn narrow(sum: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
        match dtype {
            DType::F16 | DType::BF16 => B::float_cast(sum, dtype.into()),
            _ => sum,
        }
    }
}

pub(super) struct IntOps;

impl<B: BackendIr> KindOps<B> for IntOps {
    moves! { IntTensor, int_tensor int_tensor_handle int_reshape int_slice int_cat int_empty }

    fn pair(
        op: ReduceOp,
        a: IntTensor<B>,
        b: IntTensor<B>,
        bools: BoolDType,
    ) -> Result<IntTensor<B>, CommError> {
        let chosen = |first: fn(IntTensor<B>, IntTensor<B>, BoolDType) -> BoolTensor<B>| {
            B::int_mask_where(b.clone(), first(a.clone(), b.clone(), bools), a.clone())
        };
        Ok(match op {
            ReduceOp::Min => chosen(B::int_lower),
            ReduceOp::Max => chosen(B::int_greater),
            ReduceOp::Sum | ReduceOp::Mean => B::int_add(a, b),
            ReduceOp::Prod => B::int_mul(a, b),
        })
    }

    mean! { IntTensor, int_equal int_add int_div_scalar int_mask_where, i64 }
}

pub(super) struct BoolOps;

impl BoolOps {
    fn unsupported(op: ReduceOp) -> CommError {
        failed(format!(
            "{op:?} is not defined for booleans: use Min (and), Max (or), or integers"
        ))
    }
}

impl<B: BackendIr> KindOps<B> for BoolOps {
    moves! { BoolTensor, bool_tensor bool_tensor_handle bool_reshape bool_slice bool_cat bool_empty }

    fn pair(
        op: ReduceOp,
        a: BoolTensor<B>,
        b: BoolTensor<B>,
        _: BoolDType,
    ) -> Result<BoolTensor<B>, CommError> {
        match op {
            ReduceOp::Min => Ok(B::bool_and(a, b)),
            ReduceOp::Max => Ok(B::bool_or(a, b)),
            other => Err(Self::unsupported(other)),
        }
    }

    fn mean(_: Vec<BoolTensor<B>>, _: BoolDType) -> Result<BoolTensor<B>, CommError> {
        Err(Self::unsupported(ReduceOp::Mean))
    }
}
