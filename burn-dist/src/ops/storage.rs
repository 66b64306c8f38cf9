//! Which memory the result of an operation takes, by the rules of burn-flex 0.21: a tensor is a shared buffer with
//! strides and an offset; a kernel overwrites an operand that nobody else holds and that lies in its buffer from the
//! start, in order.

use burn_backend::{DType, Slice};
use burn_dist_plan::storage::{Operand, Place, Storage, Strided};
use burn_ir::{
    BaseOperationIr, BoolOperationIr, FloatOperationIr, NumericOperationIr, OperationIr,
};

use super::rules::Activation;
use super::visit::kind_name;

/// Returns whether the result of an operation looks at the memory of its first input.
pub(crate) fn is_view(op: &OperationIr) -> bool {
    let (OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op)) = op
    else {
        return false;
    };
    matches!(
        op,
        BaseOperationIr::Reshape(_)
            | BaseOperationIr::SwapDims(_)
            | BaseOperationIr::Permute(_)
            | BaseOperationIr::Expand(_)
            | BaseOperationIr::Slice(_)
    )
}

/// Returns the view that a slice is; `None` where the kernel copies: negative steps.
fn sliced(at: &Strided, ranges: &[Slice], shape: &[usize]) -> Option<Strided> {
    let mut out = at.clone();
    for (dim, slice) in ranges.iter().enumerate().take(shape.len()) {
        let step = usize::try_from(slice.step).ok()?;
        let size = at.shape[dim] as isize;
        let start = match slice.start < 0 {
            true => (size + slice.start).max(0),
            false => slice.start.min(size),
        };
        out = out.sliced(dim, start as usize, step, shape[dim]);
    }
    Some(out)
}

/// Returns where the first result of `op` is; further ones are in buffers of their own.
pub(super) fn place(storage: Storage, op: &OperationIr, inputs: &[Operand<'_>]) -> Place {
    let shape = op
        .outputs()
        .next()
        .map_or(Vec::new(), |out| out.shape.to_vec());
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
                BaseOperationIr::Slice(op) => match sliced(at, &op.ranges, &shape) {
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
