//! Runs one recorded operation on a backend.
//!
//! [`execute_recorded`] takes its tensors from an [`Env`] and puts the results back; what a tensor id means (a slot of
//! a plan, a key of a map) is the environment's business. Families say which kernel runs. Beyond it, an operation costs
//! the moves of its handles and the clones of their shapes: no lock, no map, no boxing.
//!
//! Closes gaps of burn-router's runner: updates other than add in scatter and select, quantization, casts of ints and
//! bools, nd gathers and scatters of bools, matrix products of mixed float dtypes. Goes around faults of Burn 0.21 (see
//! `burn`).
//!
//! Left out on purpose: random numbers by global index, which ranks draw themselves, and any decision: a plan has made it
//! before.

use core::marker::PhantomData;

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn_backend::{DType, ExecutionError, Scalar, Shape, Slice, TensorMetadata};
use burn_ir::{BackendIr, OperationIr, ScalarIr, TensorHandle, TensorIr};
use burn_std::future::DynFut;
use smallvec::SmallVec;

use super::convert::{bool_of_int, int_of_bool};
use super::family::{Family, Run};
use super::kinds::{Arithmetics, Held, Kind, Tensors, by_kind, by_number};
use super::nothing::{Nothing, has_elements};
use super::starts::bound;
use super::table::family_of;
use super::visit::{OpReader, Walk, visit_ref};
use super::{Recorded, quantized};
use crate::burn::data::*;

/// Where the tensors and scalars of ops live while they run.
pub trait Env<B: BackendIr> {
    /// Returns the handle of a tensor.
    ///
    /// A tensor with [`TensorStatus::ReadWrite`](burn_ir::TensorStatus::ReadWrite) is at its last use: its handle is
    /// moved out, so that the kernel may write in place. Otherwise the handle is cloned.
    fn take(&mut self, tensor: &TensorIr) -> B::Handle;

    /// Stores the handle of a tensor that an op has made.
    fn put(&mut self, tensor: &TensorIr, handle: B::Handle);

    /// Returns the value of a scalar, which may be a slot whose value differs from step to step.
    fn scalar(&self, scalar: &ScalarIr) -> Scalar;

    /// Returns the device on which new tensors are made.
    fn device(&self) -> &B::Device;
}

/// Why an op could not run.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// No implementation of the op exists.
    #[error("cannot execute {op}: {reason}")]
    Unsupported {
        /// The name of the op; for a custom op, its id.
        op: String,
        /// The reason, and what to do instead.
        reason: &'static str,
    },
    /// A tensor cannot be quantized in blocks of that size. Burn's Flex checks it where debug assertions are on.
    #[error(
        "{elements} element(s) are no whole number of blocks, and the scheme has block size {block}: pad the tensor, or \
         take another size"
    )]
    Blocks {
        /// The elements of the tensor.
        elements: usize,
        /// The elements of a block.
        block: usize,
    },
    /// A custom op has made something else than it says.
    #[error("operation `{op}` was to make {expected}, and has made {found}")]
    Results {
        /// Its id.
        op: &'static str,
        /// Types and shapes of what it has made.
        found: String,
        /// Types and shapes of what it says.
        expected: String,
    },
}

burn_dist_mesh::debug_by_message!(ExecuteError);

/// Runs any recorded operation, as [`execute`] does for one of Burn's.
///
/// # Errors
/// As [`execute`]; [`ExecuteError::Results`] for a custom operation that makes something else than it says.
pub fn execute_recorded<B: BackendIr, E: Env<B>>(
    op: &Recorded,
    env: &mut E,
) -> Result<(), ExecuteError> {
    match op.burn() {
        Some(op) => execute(op, env),
        None => run(op, op.family_of(), env),
    }
}

/// Executes `op`: takes its inputs from `env`, in the order of the visitor, and puts its outputs there.
///
/// `Drop` takes its tensor whatever its status and drops it; `Init` does nothing, because its tensor is put into the
/// environment by whoever has the data. No kernel runs for results without elements.
///
/// # Errors
/// [`ExecuteError::Unsupported`] for a custom op that is no activation, for `ctc_loss_backward` on a backend without a
/// kernel for it, for an op without a meaning (an int random op among the float ops), and for one without a value (the
/// largest of no elements). No tensor has been taken in that case.
///
/// # Panics
/// Where the kernel of `B` panics: for shapes and dtypes that the op does not allow.
pub fn execute<B: BackendIr, E: Env<B>>(op: &OperationIr, env: &mut E) -> Result<(), ExecuteError> {
    if quantized::applies(op) {
        return quantized::run(&mut Context::of(Kind::Float, env), op);
    }
    let of = family_of(op);
    match op {
        // Whatever its tensor is.
        OperationIr::Init(_) | OperationIr::Drop(_) => run_kernel(of, env),
        op => run(op, of, env),
    }
}

fn run<B: BackendIr, E: Env<B>>(
    op: &impl Walk,
    (kind, family): (Kind, Family<'_>),
    env: &mut E,
) -> Result<(), ExecuteError> {
    if has_empty(op) && run_on_nothing(op, &family, env)? {
        return Ok(());
    }
    run_kernel((kind, family), env)
}

#[inline]
pub(super) fn run_kernel<B: BackendIr, E: Env<B>>(
    (kind, family): (Kind, Family<'_>),
    env: &mut E,
) -> Result<(), ExecuteError> {
    family.run(&mut Context::of(kind, env))
}

/// Returns whether a tensor of `op` has no elements.
#[inline]
fn has_empty(op: &impl Walk) -> bool {
    struct Any(bool);
    impl OpReader<'_> for Any {
        #[inline]
        fn input(&mut self, tensor: &TensorIr) {
            self.0 |= !has_elements(tensor);
        }
        #[inline]
        fn output(&mut self, tensor: &TensorIr) {
            self.0 |= !has_elements(tensor);
        }
    }
    let mut any = Any(false);
    visit_ref(op, &mut any);
    any.0
}

/// The operands of an operation.
#[derive(Default)]
struct Seen {
    /// True for each input that has elements.
    inputs: Vec<bool>,
    outputs: Vec<TensorIr>,
}

impl OpReader<'_> for Seen {
    fn input(&mut self, tensor: &TensorIr) {
        self.inputs.push(has_elements(tensor));
    }
    fn output(&mut self, tensor: &TensorIr) {
        self.outputs.push(tensor.clone());
    }
}

/// Runs an operation that [has such a tensor](has_empty) without its kernel, and returns whether it did: if its results
/// have no elements, or are known.
///
/// # Errors
/// [`ExecuteError::Unsupported`] for an operation without a value, before it has taken a tensor.
#[cold]
fn run_on_nothing<B: BackendIr, E: Env<B>>(
    op: &impl Walk,
    family: &Family<'_>,
    env: &mut E,
) -> Result<bool, ExecuteError> {
    let mut seen = Seen::default();
    visit_ref(op, &mut seen);
    let Seen { inputs, outputs } = seen;
    let is_quantized = |out: &TensorIr| matches!(out.dtype, DType::QFloat(_));
    if outputs.iter().any(is_quantized) {
        return Ok(false);
    }
    let made = match family.operation().of_nothing() {
        _ if !outputs.iter().any(has_elements) => Nothing::Zeros,
        Some(of) if inputs.iter().skip(of.first).any(|has| !has) => of.made,
        _ => return Ok(false),
    };
    let kept = match made {
        Nothing::Undefined => {
            return Err(ExecuteError::Unsupported {
                op: op.kind().into(),
                reason: "it has no value over no elements: ask for the number of elements first",
            });
        }
        Nothing::First => Some(0),
        Nothing::Bias { input, .. } => Some(input),
        Nothing::Zeros | Nothing::Ones | Nothing::Full(_) => None,
    };
    let mut taken = Taken::<B, E> {
        env,
        next: 0,
        kept,
        found: None,
    };
    visit_ref(op, &mut taken);
    let mut found = taken.found;
    for out in &outputs {
        let cx = &mut Context::of(Kind::of(out.dtype), env);
        match (made, found.take()) {
            _ if !has_elements(out) => {
                let handle = empty::<B>(out.shape.clone(), out.dtype, cx.env.device());
                cx.env.put(out, handle);
            }
            (Nothing::First, Some((_, handle))) => cx.env.put(out, handle),
            (Nothing::Bias { dim, .. }, Some((bias, handle))) => {
                stretched(cx, &bias, handle, dim, out);
            }
            _ => full(cx, made, out),
        }
    }
    Ok(true)
}

/// Takes all inputs, and keeps one.
struct Taken<'e, B: BackendIr, E: Env<B>> {
    env: &'e mut E,
    next: usize,
    kept: Option<usize>,
    found: Option<(TensorIr, B::Handle)>,
}

impl<B: BackendIr, E: Env<B>> OpReader<'_> for Taken<'_, B, E> {
    fn input(&mut self, tensor: &TensorIr) {
        let handle = self.env.take(tensor);
        if self.kept == Some(self.next) {
            self.found = Some((tensor.clone(), handle));
        }
        self.next += 1;
    }
    fn output(&mut self, _: &TensorIr) {}
}

/// Makes a result that is the same number everywhere.
fn full<B: BackendIr, E: Env<B>>(cx: &mut Context<'_, B, E>, made: Nothing, out: &TensorIr) {
    let (shape, dtype) = (out.shape.clone(), out.dtype);
    match made {
        Nothing::Full(value) => by_number!(cx.kind, K => {
            let value = Scalar::from(value);
            let made = <K as Arithmetics<B>>::full(shape, value, cx.env.device(), dtype);
            <K as Held<B>>::put(cx, out, made)
        }),
        Nothing::Ones => by_kind!(cx.kind, K => {
            let made = <K as Tensors<B>>::ones(shape, cx.env.device(), dtype);
            <K as Held<B>>::put(cx, out, made)
        }),
        _ => by_kind!(cx.kind, K => {
            let made = <K as Tensors<B>>::zeros(shape, cx.env.device(), dtype);
            <K as Held<B>>::put(cx, out, made)
        }),
    }
}

/// Makes a result that is a bias, stretched over all but one dim.
fn stretched<B: BackendIr, E: Env<B>>(
    cx: &mut Context<'_, B, E>,
    bias: &TensorIr,
    handle: B::Handle,
    dim: usize,
    out: &TensorIr,
) {
    let shape = bias.shape.clone();
    let bias_of = B::float_tensor(TensorHandle { handle, shape });
    let value = match bias.dtype == out.dtype {
        true => bias_of,
        false => B::float_cast(bias_of, out.dtype.into()),
    };
    let mut line = vec![1; out.shape.num_dims()];
    line[dim] = out.shape[dim];
    let value = B::float_expand(B::float_reshape(value, line.into()), out.shape.clone());
    cx.put_float(out, value);
}

/// The environment, seen through the tensor kinds of the backend.
pub(super) struct Context<'e, B: BackendIr, E: Env<B>> {
    /// The kind of the operation's tensors.
    pub kind: Kind,
    pub env: &'e mut E,
    backend: PhantomData<B>,
}

impl<'e, B: BackendIr, E: Env<B>> Context<'e, B, E> {
    fn of(kind: Kind, env: &'e mut E) -> Self {
        let backend = PhantomData;
        Self { kind, env, backend }
    }
}

impl<B: BackendIr, E: Env<B>> Context<'_, B, E> {
    #[inline]
    fn handle(&mut self, tensor: &TensorIr) -> TensorHandle<B::Handle> {
        TensorHandle {
            handle: self.env.take(tensor),
            shape: tensor.shape.clone(),
        }
    }

    /// Takes a tensor of a kind.
    #[inline]
    pub(super) fn take<K: Tensors<B>>(&mut self, tensor: &TensorIr) -> K::Tensor {
        K::of_handle(self.handle(tensor))
    }

    #[inline]
    pub(super) fn float(&mut self, tensor: &TensorIr) -> FloatTensor<B> {
        B::float_tensor(self.handle(tensor))
    }

    /// Takes a float tensor, cast to `dtype` if it has another one.
    #[inline]
    pub(super) fn float_as(&mut self, tensor: &TensorIr, dtype: DType) -> FloatTensor<B> {
        let value = self.float(tensor);
        if tensor.dtype == dtype {
            value
        } else {
            B::float_cast(value, dtype.into())
        }
    }

    #[inline]
    pub(super) fn int(&mut self, tensor: &TensorIr) -> IntTensor<B> {
        B::int_tensor(self.handle(tensor))
    }

    #[inline]
    pub(super) fn bool(&mut self, tensor: &TensorIr) -> BoolTensor<B> {
        B::bool_tensor(self.handle(tensor))
    }

    #[inline]
    pub(super) fn quantized(&mut self, tensor: &TensorIr) -> QuantizedTensor<B> {
        B::quantized_tensor(self.handle(tensor))
    }

    #[inline]
    pub(super) fn float_if(&mut self, tensor: &Option<TensorIr>) -> Option<FloatTensor<B>> {
        tensor.as_ref().map(|tensor| self.float(tensor))
    }

    #[inline]
    pub(super) fn bool_if(&mut self, tensor: &Option<TensorIr>) -> Option<BoolTensor<B>> {
        tensor.as_ref().map(|tensor| self.bool(tensor))
    }

    #[inline]
    pub(super) fn put_float(&mut self, out: &TensorIr, value: FloatTensor<B>) {
        self.env.put(out, B::float_tensor_handle(value));
    }

    /// Stores ints with the dtype that the op promises: kernels that make indices choose a dtype of their own.
    #[inline]
    pub(super) fn put_int(&mut self, out: &TensorIr, value: IntTensor<B>) {
        let value = if value.dtype() == out.dtype {
            value
        } else {
            B::int_cast(value, out.dtype.into())
        };
        self.env.put(out, B::int_tensor_handle(value));
    }

    /// Stores bools with the dtype that the op promises: some kernels that index leave their storage type behind.
    #[inline]
    pub(super) fn put_bool(&mut self, out: &TensorIr, value: BoolTensor<B>) {
        let value = if value.dtype() == out.dtype {
            value
        } else {
            bool_of_int::<B>(int_of_bool::<B>(value), out.dtype)
        };
        self.env.put(out, B::bool_tensor_handle(value));
    }

    #[inline]
    pub(super) fn put_quantized(&mut self, out: &TensorIr, value: QuantizedTensor<B>) {
        self.env.put(out, B::quantized_tensor_handle(value));
    }

    #[inline]
    pub(super) fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        self.env.scalar(scalar)
    }

    /// Returns ranges with the values of slots.
    pub(super) fn ranges(&self, ranges: &[Slice]) -> SmallVec<[Slice; 6]> {
        bound(ranges, |slot| self.env.scalar(slot))
    }
}

/// Makes a tensor with whatever is in its memory; `dtype` is not quantized.
fn empty<B: BackendIr>(shape: Shape, dtype: DType, device: &B::Device) -> B::Handle {
    match Kind::of(dtype) {
        Kind::Float => B::float_tensor_handle(B::float_empty(shape, device, dtype.into())),
        Kind::Int => B::int_tensor_handle(B::int_empty(shape, device, dtype.into())),
        Kind::Bool => B::bool_tensor_handle(B::bool_empty(shape, device, dtype.into())),
    }
}

/// Returns whether a tensor has nothing to copy; a quantized one has scales.
fn is_empty(shape: &Shape, dtype: DType) -> bool {
    shape.as_slice().contains(&0) && !matches!(dtype, DType::QFloat(_))
}

/// Moves host data to `device`, as the kind of tensor that its dtype says. Of a tensor without elements nothing is
/// moved: CubeCL 0.10 refuses such a copy on CUDA.
pub fn from_data<B: BackendIr>(data: TensorData, device: &B::Device) -> B::Handle {
    match data.dtype() {
        dtype if is_empty(data.shape(), dtype) => empty::<B>(data.shape().clone(), dtype, device),
        DType::QFloat(_) => B::quantized_tensor_handle(B::q_from_data(data, device)),
        DType::Bool(_) => B::bool_tensor_handle(B::bool_from_data(data, device)),
        dtype if dtype.is_float() => B::float_tensor_handle(B::float_from_data(data, device)),
        _ => B::int_tensor_handle(B::int_from_data(data, device)),
    }
}

/// Reads a tensor back to the host.
///
/// Backends on the host complete at once; others complete when the device has. A tensor without elements is not asked
/// for: CubeCL 0.10 refuses such a copy on CUDA.
///
/// # Errors
/// What the backend reports, for example a kernel that failed before.
pub fn into_data<B: BackendIr>(
    handle: B::Handle,
    shape: Shape,
    dtype: DType,
) -> DynFut<Result<TensorData, ExecutionError>> {
    if is_empty(&shape, dtype) {
        let data = TensorData::from_bytes_vec(Vec::new(), shape, dtype);
        return Box::pin(core::future::ready(Ok(data)));
    }
    let handle = TensorHandle { handle, shape };
    match dtype {
        DType::QFloat(_) => Box::pin(B::q_into_data(B::quantized_tensor(handle))),
        DType::Bool(_) => Box::pin(B::bool_into_data(B::bool_tensor(handle))),
        dtype if dtype.is_float() => Box::pin(B::float_into_data(B::float_tensor(handle))),
        _ => Box::pin(B::int_into_data(B::int_tensor(handle))),
    }
}
