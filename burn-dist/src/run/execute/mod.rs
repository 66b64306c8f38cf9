//! Runs one recorded op on the inner backend.
//!
//! [`execute`] takes its tensors from an [`Env`] and puts the results back; what a tensor id means (a slot of a plan, a
//! key of a map) is the environment's business. Beyond the kernel, an op costs the moves of its handles and the clones
//! of their shapes: no lock, no map, no boxing.
//!
//! Closes gaps of burn-router's runner: updates other than add in scatter and select, quantization, casts of ints and
//! bools, nd gathers and scatters of bools, matrix products of mixed float dtypes. Goes around a fault of Burn's in
//! reshapes (`flat_between`) and those of Flex in reductions ([`flex`]).
//!
//! Left out on purpose: custom ops other than activations (who records them intercepts them), random numbers by global
//! index ([`random`](super::random)), and any decision: a plan has made it before.

mod activation;
mod base;
mod boolean;
mod custom;
mod data;
mod flex;
mod float;
mod index;
mod int;
mod module;
mod numeric;
mod quantized;

#[cfg(test)]
mod tests;

pub(super) use base::flat_between;
pub use data::{from_data, into_data};

use burn_backend::{
    DType, Scalar, TensorMetadata,
    tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor},
};
use burn_ir::{BackendIr, OperationIr, ScalarIr, TensorHandle, TensorIr, TensorStatus};
use core::marker::PhantomData;

use crate::ops::Recorded;
use crate::ops::rules::Activation;

/// Where the tensors and scalars of ops live while they run.
pub trait Env<B: BackendIr> {
    /// Returns the handle of a tensor.
    ///
    /// A tensor with [`TensorStatus::ReadWrite`] is at its last use: its handle is moved out, so that the kernel may
    /// write in place. Otherwise the handle is cloned.
    fn take(&mut self, tensor: &TensorIr) -> B::Handle;

    /// Stores the handle of a tensor that an op has made.
    fn put(&mut self, tensor: &TensorIr, handle: B::Handle);

    /// Returns the value of a scalar, which may be a slot whose value differs from step to step.
    fn scalar(&self, scalar: &ScalarIr) -> Scalar;

    /// Returns the device on which new tensors are made.
    fn device(&self) -> &B::Device;
}

/// Why an op could not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// No implementation of the op exists.
    #[error("cannot execute {op}: {reason}")]
    Unsupported {
        /// The name of the op; for a custom op, its id.
        op: String,
        /// What is missing, and the way out.
        reason: &'static str,
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

/// As [`execute`], of whatever was recorded.
///
/// # Errors
/// As [`execute`]; [`ExecuteError::Results`] for a custom operation that makes something else than it says.
pub fn execute_recorded<B: BackendIr, E: Env<B>>(
    op: &Recorded,
    env: &mut E,
) -> Result<(), ExecuteError> {
    match op {
        Recorded::Burn(op) => execute(op, env),
        Recorded::Custom(op) => custom::execute(op, env),
        Recorded::Mark(_) => unreachable!("what a program says of a value is no step"),
    }
}

/// Executes `op`: takes its inputs from `env`, in the order of the visitor, and puts its outputs there.
///
/// `Drop` takes its tensor whatever its status and drops it; `Init` does nothing, because its tensor is put into the
/// environment by whoever has the data.
///
/// # Errors
/// [`ExecuteError::Unsupported`] for a custom op that is no activation, for `ctc_loss_backward` on a backend without a
/// kernel for it, and for an op without a meaning (an int random op among the float ops). No tensor has been taken in
/// that case.
///
/// # Panics
/// Where the kernel of `B` panics: for shapes and dtypes that the op does not allow.
#[allow(
    unreachable_patterns,
    reason = "another crate may turn on families of burn-ir"
)]
pub fn execute<B: BackendIr, E: Env<B>>(op: &OperationIr, env: &mut E) -> Result<(), ExecuteError> {
    let cx = &mut Context {
        env,
        backend: PhantomData,
    };
    match op {
        OperationIr::BaseFloat(op) if quantized::applies(op) => return quantized::base(cx, op),
        OperationIr::BaseFloat(op) => base::float(cx, op),
        OperationIr::BaseInt(op) => base::int(cx, op),
        OperationIr::BaseBool(op) => base::bool(cx, op),
        OperationIr::NumericFloat(DType::QFloat(_), op) => return quantized::numeric(cx, op),
        OperationIr::NumericFloat(_, op) => return numeric::float(cx, op),
        OperationIr::NumericInt(_, op) => return numeric::int(cx, op),
        OperationIr::Bool(op) => boolean::execute(cx, op),
        OperationIr::Int(op) => int::execute(cx, op),
        OperationIr::Float(_, op) => float::execute(cx, op),
        OperationIr::Module(op) => return module::execute(cx, op),
        OperationIr::Init(_) => {}
        OperationIr::Custom(op) => match Activation::parse(&op.id) {
            Some(activation) => activation::execute(cx, activation, op),
            None => {
                return Err(ExecuteError::Unsupported {
                    op: op.id.clone(),
                    reason: "it is a custom op, which must be run by the code that records it",
                });
            }
        },
        OperationIr::Drop(tensor) => {
            if tensor.status == TensorStatus::ReadWrite {
                drop(cx.env.take(tensor));
            } else {
                drop(cx.env.take(&TensorIr {
                    status: TensorStatus::ReadWrite,
                    ..tensor.clone()
                }));
            }
        }
        op => {
            return Err(ExecuteError::Unsupported {
                op: format!("{op:?}"),
                reason: "only a feature of burn-ir brings it, and no backend runs it one by one",
            });
        }
    }
    Ok(())
}

/// The environment, seen through the tensor kinds of the backend.
struct Context<'e, B: BackendIr, E: Env<B>> {
    env: &'e mut E,
    backend: PhantomData<B>,
}

impl<B: BackendIr, E: Env<B>> Context<'_, B, E> {
    #[inline]
    fn handle(&mut self, tensor: &TensorIr) -> TensorHandle<B::Handle> {
        TensorHandle {
            handle: self.env.take(tensor),
            shape: tensor.shape.clone(),
        }
    }

    #[inline]
    fn float(&mut self, tensor: &TensorIr) -> FloatTensor<B> {
        B::float_tensor(self.handle(tensor))
    }

    /// Takes a float tensor, cast to `dtype` if it has another one.
    #[inline]
    fn float_as(&mut self, tensor: &TensorIr, dtype: DType) -> FloatTensor<B> {
        let value = self.float(tensor);
        if tensor.dtype == dtype {
            value
        } else {
            B::float_cast(value, dtype.into())
        }
    }

    #[inline]
    fn int(&mut self, tensor: &TensorIr) -> IntTensor<B> {
        B::int_tensor(self.handle(tensor))
    }

    #[inline]
    fn bool(&mut self, tensor: &TensorIr) -> BoolTensor<B> {
        B::bool_tensor(self.handle(tensor))
    }

    #[inline]
    fn quantized(&mut self, tensor: &TensorIr) -> QuantizedTensor<B> {
        B::quantized_tensor(self.handle(tensor))
    }

    #[inline]
    fn float_if(&mut self, tensor: &Option<TensorIr>) -> Option<FloatTensor<B>> {
        tensor.as_ref().map(|tensor| self.float(tensor))
    }

    #[inline]
    fn bool_if(&mut self, tensor: &Option<TensorIr>) -> Option<BoolTensor<B>> {
        tensor.as_ref().map(|tensor| self.bool(tensor))
    }

    #[inline]
    fn put_float(&mut self, out: &TensorIr, value: FloatTensor<B>) {
        self.env.put(out, B::float_tensor_handle(value));
    }

    /// Stores ints with the dtype that the op promises: kernels that make indices choose a dtype of their own.
    #[inline]
    fn put_int(&mut self, out: &TensorIr, value: IntTensor<B>) {
        let value = if value.dtype() == out.dtype {
            value
        } else {
            B::int_cast(value, out.dtype.into())
        };
        self.env.put(out, B::int_tensor_handle(value));
    }

    /// Stores bools with the dtype that the op promises: some kernels that index leave their storage type behind.
    #[inline]
    fn put_bool(&mut self, out: &TensorIr, value: BoolTensor<B>) {
        let value = if value.dtype() == out.dtype {
            value
        } else {
            index::bool::to_bool::<B>(index::bool::to_int::<B>(value), out.dtype)
        };
        self.env.put(out, B::bool_tensor_handle(value));
    }

    #[inline]
    fn put_quantized(&mut self, out: &TensorIr, value: QuantizedTensor<B>) {
        self.env.put(out, B::quantized_tensor_handle(value));
    }

    #[inline]
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        self.env.scalar(scalar)
    }
}

/// Runs `kernel(input)`: `unary!(cx, op, float => bool, kernel)` for the fields `input` and `out` of `op`.
macro_rules! unary {
    ($cx:ident, $op:ident, $take:ident => $put:ident, $kernel:expr) => {{
        let input = $cx.$take(&$op.input);
        $cx.$put(&$op.out, $kernel(input));
    }};
}

/// Runs `kernel(lhs, rhs)` on the fields `lhs`, `rhs` and `out` of `op`.
macro_rules! binary {
    ($cx:ident, $op:ident, $take:ident => $put:ident, $kernel:expr) => {{
        let lhs = $cx.$take(&$op.lhs);
        let rhs = $cx.$take(&$op.rhs);
        $cx.$put(&$op.out, $kernel(lhs, rhs));
    }};
}

/// Runs `kernel(lhs, scalar)` on the fields `lhs`, `rhs` and `out` of `op`.
macro_rules! with_scalar {
    ($cx:ident, $op:ident, $take:ident => $put:ident, $kernel:expr) => {{
        let lhs = $cx.$take(&$op.lhs);
        let rhs = $cx.scalar(&$op.rhs);
        $cx.$put(&$op.out, $kernel(lhs, rhs));
    }};
}

/// Runs `kernel(lhs, rhs, bool dtype)`.
macro_rules! compare {
    ($cx:ident, $op:ident, $take:ident, $kernel:expr) => {{
        let lhs = $cx.$take(&$op.lhs);
        let rhs = $cx.$take(&$op.rhs);
        $cx.put_bool(&$op.out, $kernel(lhs, rhs, $op.out.dtype.into()));
    }};
}

/// Runs `kernel(lhs, scalar, bool dtype)`.
macro_rules! compare_scalar {
    ($cx:ident, $op:ident, $take:ident, $kernel:expr) => {{
        let lhs = $cx.$take(&$op.lhs);
        let rhs = $cx.scalar(&$op.rhs);
        $cx.put_bool(&$op.out, $kernel(lhs, rhs, $op.out.dtype.into()));
    }};
}

use {binary, compare, compare_scalar, unary, with_scalar};
