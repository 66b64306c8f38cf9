//! Operations of which a tensor has no elements, as the part of a rank may have none: what they make is known, and no
//! kernel runs.
//!
//! Backends do not agree on kernels over nothing. A launch without threads is an error of CUDA's, which CubeCL 0.10
//! reports to whoever reads next, and the identities of reductions are left to whatever a kernel makes of them.
//!
//! Left out on purpose: quantized results, which are whole on every rank and which Burn makes from data alone; and
//! custom operations with results that have elements, since only their kernels know them.

use burn_backend::{DType, Scalar};
use burn_ir::{BackendIr, TensorHandle, TensorIr};

use super::create::Create;
use super::execute::{Context, Env, ExecuteError, empty};
use super::family::Family;
use super::kinds::{Arithmetics, Held, Kind, Tensors, by_kind, by_number};
use super::visit::{OpReader, Walk, visit_ref};

/// The elements that an operation makes of inputs that have none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Nothing {
    /// Zeros: sums of no terms.
    Zeros,
    /// Ones: products of no factors.
    Ones,
    /// A number.
    Full(f64),
    /// The term of a sum that is left: input `input`, a bias, with a number for each index of dim `dim`.
    Bias { input: usize, dim: usize },
    /// Its first input: nothing is written into it.
    First,
    /// No value: the largest of no elements.
    Undefined,
}

/// An operation that makes something of nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OfNothing {
    /// The first of the inputs any of which leaves nothing to compute with, if it has no elements.
    pub first: usize,
    /// The elements that are made then.
    pub made: Nothing,
}

impl OfNothing {
    /// Returns what is made if any of the inputs from `first` on has no elements.
    pub(super) fn from(first: usize, made: Nothing) -> Option<Self> {
        Some(Self { first, made })
    }
}

#[inline]
fn has_elements(tensor: &TensorIr) -> bool {
    !tensor.shape.as_slice().contains(&0)
}

/// Returns whether a tensor of `op` has no elements.
#[inline]
pub(super) fn is_in(op: &impl Walk) -> bool {
    struct Any(bool);
    impl OpReader for Any {
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

/// The tensors that an operation reads and makes.
#[derive(Default)]
struct Seen {
    /// True for each input that has elements.
    inputs: Vec<bool>,
    outputs: Vec<TensorIr>,
}

impl OpReader for Seen {
    fn input(&mut self, tensor: &TensorIr) {
        self.inputs.push(has_elements(tensor));
    }
    fn output(&mut self, tensor: &TensorIr) {
        self.outputs.push(tensor.clone());
    }
}

/// Runs an operation that [has such a tensor](is_in) without its kernel, and returns whether it did: if its results have
/// no elements, or are known.
///
/// # Errors
/// [`ExecuteError::Unsupported`] for an operation without a value, before it has taken a tensor.
#[cold]
pub(super) fn run<B: BackendIr, E: Env<B>>(
    op: &impl Walk,
    family: &Family<'_>,
    env: &mut E,
) -> Result<bool, ExecuteError> {
    if let Family::Create(Create::Init(_) | Create::Drop(_)) = family {
        return Ok(false);
    }
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

impl<B: BackendIr, E: Env<B>> OpReader for Taken<'_, B, E> {
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
