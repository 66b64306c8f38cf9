//! Which memory the result of an operation takes, as the inner backend sees it: another look at an operand's, an
//! operand's that it overwrites, or its own.
//!
//! The rules are those of burn-flex 0.21: a tensor is a shared buffer with strides and an offset; a kernel overwrites
//! an operand that nobody else holds and that lies in its buffer from the start, in order. Backends whose buffers
//! cannot be seen follow [`Storage::Opaque`]: views share, everything else is new.

use burn_backend::{DType, Slice};
use burn_ir::{BaseOperationIr, BoolOperationIr, FloatOperationIr, NumericOperationIr};
use burn_ir::{OperationIr, TensorIr, TensorStatus};

use super::memory::is_view;
use crate::record::visit::kind_name;
use crate::rules::Activation;

/// How the inner backend stores tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// Shared buffers with strides, overwritten where nobody else looks: Flex.
    #[default]
    Buffers,
    /// Reshaped, permuted, expanded and sliced tensors share; everything else is new.
    Opaque,
}

/// How a tensor lies in its buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Strided {
    shape: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
}

impl Strided {
    pub fn contiguous(shape: &[usize]) -> Self {
        let mut strides = vec![1isize; shape.len()];
        for dim in (0..shape.len().saturating_sub(1)).rev() {
            strides[dim] = strides[dim + 1] * shape[dim + 1] as isize;
        }
        Self {
            shape: shape.to_vec(),
            strides,
            offset: 0,
        }
    }

    pub fn is_contiguous(&self) -> bool {
        self.strides == Self::contiguous(&self.shape).strides
    }

    pub fn is_plain(&self) -> bool {
        self.offset == 0 && self.is_contiguous()
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn permuted(&self, axes: impl Iterator<Item = usize> + Clone) -> Self {
        Self {
            shape: axes.clone().map(|axis| self.shape[axis]).collect(),
            strides: axes.map(|axis| self.strides[axis]).collect(),
            offset: self.offset,
        }
    }

    fn expanded(&self, shape: &[usize]) -> Self {
        let new = shape.len().saturating_sub(self.shape.len());
        let stride = |dim: usize| match dim.checked_sub(new) {
            Some(old) if self.shape[old] == shape[dim] => self.strides[old],
            _ => 0,
        };
        Self {
            shape: shape.to_vec(),
            strides: (0..shape.len()).map(stride).collect(),
            offset: self.offset,
        }
    }

    fn flipped(&self, axes: &[usize]) -> Self {
        let mut out = self.clone();
        for &axis in axes.iter().filter(|axis| self.shape[**axis] > 1) {
            out.offset = out
                .offset
                .wrapping_add_signed((self.shape[axis] as isize - 1) * self.strides[axis]);
            out.strides[axis] = -self.strides[axis];
        }
        out
    }

    /// `None` where the kernel copies: negative steps.
    fn sliced(&self, ranges: &[Slice], shape: &[usize]) -> Option<Self> {
        let mut out = self.clone();
        out.shape = shape.to_vec();
        for (dim, slice) in ranges.iter().enumerate().take(shape.len()) {
            if slice.step < 0 {
                return None;
            }
            let size = self.shape[dim] as isize;
            let start = match slice.start < 0 {
                true => (size + slice.start).max(0),
                false => slice.start.min(size),
            };
            out.offset = out.offset.wrapping_add_signed(start * self.strides[dim]);
            out.strides[dim] = self.strides[dim] * slice.step;
        }
        Some(out)
    }
}

/// An operand, as the rules look at it.
pub(super) struct Operand<'a> {
    pub at: &'a Strided,
    /// Elements of its whole buffer.
    pub buffer: usize,
    /// Whether this operation is the last that uses the buffer, and nobody else may hold it.
    pub alone: bool,
}

/// Where a result is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// In the buffer of that input.
    Shares(usize, Strided),
    /// In a buffer of its own.
    New(Strided),
}

/// Returns where the first result of `op` is; further ones are in buffers of their own.
pub(super) fn place(
    storage: Storage,
    op: &OperationIr,
    out: &TensorIr,
    inputs: &[Operand<'_>],
) -> Place {
    let shape = out.shape.to_vec();
    let new = || Place::New(Strided::contiguous(&shape));
    let Some(first) = inputs.first() else {
        return new();
    };
    let at = first.at;
    if storage == Storage::Opaque {
        return match is_view(op) {
            true => Place::Shares(0, Strided::contiguous(&shape)),
            false => new(),
        };
    }
    match op {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => {
            match base {
                BaseOperationIr::Reshape(_) if at.is_plain() => {
                    Place::Shares(0, Strided::contiguous(&shape))
                }
                BaseOperationIr::SwapDims(op) => {
                    let axes = (0..shape.len()).map(|axis| match axis {
                        axis if axis == op.dim1 => op.dim2,
                        axis if axis == op.dim2 => op.dim1,
                        axis => axis,
                    });
                    Place::Shares(0, at.permuted(axes))
                }
                BaseOperationIr::Permute(op) => {
                    Place::Shares(0, at.permuted(op.axes.iter().copied()))
                }
                BaseOperationIr::Flip(op) => Place::Shares(0, at.flipped(&op.axes)),
                BaseOperationIr::Expand(_) => Place::Shares(0, at.expanded(&shape)),
                BaseOperationIr::Slice(op) => match at.sliced(&op.ranges, &shape) {
                    Some(at) => Place::Shares(0, at),
                    None => new(),
                },
                BaseOperationIr::Cast(op) if op.input.dtype == op.out.dtype => {
                    Place::Shares(0, at.clone())
                }
                BaseOperationIr::RepeatDim(op) if op.times == 1 => Place::Shares(0, at.clone()),
                BaseOperationIr::Cat(op) if op.tensors.len() == 1 => Place::Shares(0, at.clone()),
                // Made contiguous first, which is then its own.
                BaseOperationIr::SliceAssign(_)
                    if at.is_plain() && first.alone && first.buffer == at.elements() =>
                {
                    Place::Shares(0, at.clone())
                }
                _ => new(),
            }
        }
        OperationIr::Bool(BoolOperationIr::Not(_)) if at.is_plain() && first.alone => {
            Place::Shares(0, at.clone())
        }
        OperationIr::Bool(BoolOperationIr::And(_) | BoolOperationIr::Or(_)) => both(inputs, &shape),
        OperationIr::Custom(_) => match Activation::of(op) {
            Some(_) if inputs.len() == 1 => mapped(first),
            Some(_) => pairwise(inputs, &shape, false),
            None => new(),
        },
        OperationIr::NumericFloat(dtype, numeric) => match numeric {
            NumericOperationIr::Add(_)
            | NumericOperationIr::Sub(_)
            | NumericOperationIr::Mul(_)
            | NumericOperationIr::Div(_) => pairwise(inputs, &shape, *dtype == DType::F32),
            NumericOperationIr::Rem(_) => pairwise(inputs, &shape, false),
            NumericOperationIr::Abs(_) | NumericOperationIr::Clamp(_) => mapped(first),
            numeric if is_scalar(numeric) => in_order(first),
            _ => new(),
        },
        OperationIr::NumericInt(_, numeric) => match numeric {
            NumericOperationIr::Add(_)
            | NumericOperationIr::Sub(_)
            | NumericOperationIr::Mul(_) => pairwise(inputs, &shape, false),
            numeric if is_scalar(numeric) => in_order(first),
            _ => new(),
        },
        OperationIr::Float(_, FloatOperationIr::Powf(_) | FloatOperationIr::ArcTan2(_)) => {
            pairwise(inputs, &shape, false)
        }
        OperationIr::Float(..) => match kind_name(op) {
            "exp" | "log" | "log1p" | "erf" | "sqrt" | "cos" | "cosh" | "sin" | "sinh" | "tan"
            | "tanh" | "acos" | "acosh" | "asin" | "asinh" | "atan" | "atanh" | "round"
            | "floor" | "ceil" | "trunc" | "recip" => mapped(first),
            // A power overwrites its operand or not as its exponent says, which a plan does not know.
            _ => new(),
        },
        _ => new(),
    }
}

fn is_scalar(op: &NumericOperationIr) -> bool {
    matches!(
        op,
        NumericOperationIr::AddScalar(_)
            | NumericOperationIr::SubScalar(_)
            | NumericOperationIr::MulScalar(_)
            | NumericOperationIr::DivScalar(_)
            | NumericOperationIr::RemScalar(_)
    )
}

/// A function of single elements, with a scalar.
fn in_order(input: &Operand<'_>) -> Place {
    match input.alone && input.at.is_plain() {
        true => Place::Shares(0, input.at.clone()),
        false => Place::New(Strided::contiguous(&input.at.shape)),
    }
}

/// A function of single elements; of a permuted tensor it is permuted alike.
fn mapped(input: &Operand<'_>) -> Place {
    let at = input.at;
    let fills = at.offset == 0
        && input.buffer == at.elements()
        && at.strides.iter().all(|stride| *stride >= 0);
    match input.alone && at.is_plain() {
        true => Place::Shares(0, at.clone()),
        false if fills => Place::New(at.clone()),
        false => Place::New(Strided::contiguous(&at.shape)),
    }
}

/// A function of pairs of elements that may overwrite the left operand.
fn pairwise(inputs: &[Operand<'_>], shape: &[usize], broadcasts: bool) -> Place {
    let new = Place::New(Strided::contiguous(shape));
    let [lhs, rhs, ..] = inputs else { return new };
    if !(lhs.alone && lhs.at.shape == shape && lhs.at.is_plain()) {
        return new;
    }
    let right = rhs.at.expanded(shape);
    if right.is_contiguous() || broadcasts && is_broadcast(&right) {
        return Place::Shares(0, lhs.at.clone());
    }
    new
}

/// As [`pairwise`], of either operand.
fn both(inputs: &[Operand<'_>], shape: &[usize]) -> Place {
    let new = Place::New(Strided::contiguous(shape));
    let [lhs, rhs, ..] = inputs else { return new };
    let (left, right) = (lhs.at.expanded(shape), rhs.at.expanded(shape));
    if !left.is_contiguous() || !right.is_contiguous() {
        return new;
    }
    if lhs.alone && left.offset == 0 {
        return Place::Shares(0, left);
    }
    match rhs.alone && right.offset == 0 {
        true => Place::Shares(1, right),
        false => new,
    }
}

/// Whether an operand is one row for all, or one number for each row.
fn is_broadcast(at: &Strided) -> bool {
    let Some((&last, outer)) = at.strides.split_last() else {
        return false;
    };
    if at.shape.contains(&0) {
        return false;
    }
    if last == 1 {
        let sizes = at.shape.iter();
        if outer
            .iter()
            .zip(sizes)
            .all(|(stride, size)| *stride == 0 || *size == 1)
        {
            return true;
        }
    }
    if last != 0 {
        return false;
    }
    let rows = at.strides.iter().rposition(|stride| *stride != 0);
    let rows = rows.map_or(0, |dim| dim + 1);
    at.strides[..rows] == Strided::contiguous(&at.shape[..rows]).strides
}

/// Returns whether the results of an operation are never in the buffers of its operands: products, reductions, whole
/// modules.
pub(crate) fn makes(op: &OperationIr) -> bool {
    const NAMES: [&str; 16] = [
        "matmul",
        "cross",
        "sum",
        "sum_dim",
        "mean",
        "mean_dim",
        "prod",
        "prod_dim",
        "max",
        "max_dim",
        "min",
        "min_dim",
        "gather",
        "select",
        "scatter",
        "select_assign",
    ];
    matches!(op, OperationIr::Module(_)) || NAMES.contains(&kind_name(op))
}

/// Returns whether an operation moves an operand out: nobody uses it afterwards.
pub(super) fn is_taken(tensor: &TensorIr) -> bool {
    tensor.status == TensorStatus::ReadWrite
}
