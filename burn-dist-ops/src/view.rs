//! Operations that move elements by their place alone.

use burn_backend::Slice;

use super::Recorded;
use super::dtype::of_burn;
use super::family::prelude::*;
use super::formula::{formula, is_computed};
use super::starts::is_slot;
use crate::burn::flat_between;

family! {
    View |cx, op| by_kind(K: Tensors) {
        Reshape(ShapeOpIr) K = {
            let tensor = cx.take::<K>(&op.input);
            let tensor = match flat_between(&op.input.shape, &op.out.shape) {
                Some(flat) => K::reshape(tensor, flat),
                None => tensor,
            };
            K::reshape(tensor, op.out.shape.clone())
        },
        Expand(ShapeOpIr) K = K::expand(cx.take::<K>(&op.input), op.out.shape.clone()),
        SwapDims(SwapDimsOpIr) K = K::swap_dims(cx.take::<K>(&op.input), op.dim1, op.dim2),
        Permute(PermuteOpIr) K = K::permute(cx.take::<K>(&op.input), &op.axes),
        Flip(FlipOpIr) K = K::flip(cx.take::<K>(&op.input), &op.axes),
        Unfold(UnfoldOpIr) K = K::unfold(cx.take::<K>(&op.input), op.dim, op.size, op.step),
        Slice(SliceOpIr) K = K::slice(cx.take::<K>(&op.tensor), &cx.ranges(&op.ranges)),
        RepeatDim(RepeatDimOpIr) K = K::repeat_dim(cx.take::<K>(&op.tensor), op.dim, op.times),
    }
}

impl Operation for View<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let (input, out) = match self {
            // It regroups the factors of a layout.
            Self::Reshape(_) => return OpRule::Reshape,
            // An expanded dim is a factor of the output alone.
            Self::Expand(_) => {
                let rule = RuleBuilder::notation(shapes, "... -> ...");
                return rule.broadcast().moves().build();
            }
            Self::SwapDims(op) => {
                let mut out = dims(&op.input);
                out.swap(op.dim1, op.dim2);
                (dims(&op.input), out)
            }
            // Dim `i` of the output is dim `axes[i]` of the input.
            Self::Permute(op) => (
                dims(&op.input),
                op.axes.iter().map(|&dim| Name::Dim(dim)).collect(),
            ),
            // A flipped dim would trade places between ranks.
            Self::Flip(op) => {
                let mut names = dims(&op.input);
                op.axes.iter().for_each(|&dim| names[dim] = Name::Whole);
                (names.clone(), names)
            }
            // Windows over one dim.
            Self::Unfold(op) => {
                let input = dims_but(&op.input, op.dim, Name::Whole);
                let mut out = input.clone();
                out.push(Name::Whole);
                (input, out)
            }
            // Dims taken whole may be split.
            Self::Slice(op) => {
                let names = sliced(&op.tensor, &op.out, &op.ranges);
                (names.clone(), names)
            }
            // A single element is expanded.
            Self::RepeatDim(op) => {
                let names = match op.tensor.shape[op.dim] {
                    1 => dims(&op.tensor),
                    _ => dims_but(&op.tensor, op.dim, Name::Whole),
                };
                let rule = RuleBuilder::named(shapes, vec![names.clone()], vec![names]);
                return rule.broadcast().moves().build();
            }
        };
        RuleBuilder::named(shapes, vec![input], vec![out])
            .moves()
            .build()
    }

    fn localize(&self, op: &mut Recorded, local: &Local<'_>) {
        match base_mut(op) {
            Some(BaseOperationIr::Slice(op)) => whole_ranges(&mut op.ranges, &op.tensor, &op.out),
            Some(BaseOperationIr::RepeatDim(op)) if op.tensor.shape[op.dim] == 1 => {
                op.times = local.outputs[0].local_shape(local.mesh, local.rank)[op.dim];
            }
            _ => {}
        }
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Move
    }

    fn is_view(&self) -> bool {
        !matches!(self, Self::Flip(_) | Self::RepeatDim(_))
    }

    fn traits(&self) -> Traits {
        let turned = |ndim: usize| (0..ndim.saturating_sub(2)).chain([ndim - 1, ndim - 2]);
        let turns = match self {
            Self::SwapDims(op) => {
                let (dims, last) = ([op.dim1, op.dim2], op.input.shape.num_dims());
                last >= 2 && (dims == [last - 2, last - 1] || dims == [last - 1, last - 2])
            }
            Self::Permute(op) => {
                op.axes.len() >= 2 && op.axes.iter().copied().eq(turned(op.axes.len()))
            }
            _ => false,
        };
        Traits {
            turns,
            ..Traits::default()
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        let at = inputs[0].at;
        let place = match self {
            Self::Reshape(_) => at.is_plain().then(|| Strided::contiguous(shape)),
            Self::SwapDims(op) => {
                let axes = (0..shape.len()).map(|axis| match axis {
                    axis if axis == op.dim1 => op.dim2,
                    axis if axis == op.dim2 => op.dim1,
                    axis => axis,
                });
                Some(at.permuted(axes))
            }
            Self::Permute(op) => Some(at.permuted(op.axes.iter().copied())),
            Self::Flip(op) => Some(at.flipped(&op.axes)),
            Self::Expand(_) => Some(at.expanded(shape)),
            Self::Slice(op) => look(at, &op.ranges, shape),
            Self::RepeatDim(op) => (op.times == 1).then(|| at.clone()),
            Self::Unfold(op) => Some(unfolded(at, op.dim, op.step, shape)),
        };
        place.map_or_else(
            || Place::New(Strided::contiguous(shape)),
            |at| Place::Shares(0, at),
        )
    }

    /// Looks at memory in another order have none, and what repeats elements.
    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Reshape(op) => is_computed(of_burn(op.out.dtype)).then_some(Pointwise::Reshape),
            Self::Expand(op) => formula([&op.input], &op.out, |_, [x]| x),
            Self::RepeatDim(op) if op.tensor.shape[op.dim] == 1 => {
                formula([&op.tensor], &op.out, |_, [x]| x)
            }
            Self::RepeatDim(_) | Self::SwapDims(_) | Self::Permute(_) | Self::Flip(_) => None,
            Self::Unfold(_) | Self::Slice(_) => None,
        }
    }
}

/// Returns whether a slice of a dim of `size` elements into `sliced` elements takes all of them in order.
pub(super) fn takes_whole(ranges: &[Slice], dim: usize, size: usize, sliced: usize) -> bool {
    size == sliced && ranges.get(dim).is_none_or(|range| range.step == 1)
}

/// Returns the names of a tensor of which `part` is sliced: dims taken whole are factors.
pub(super) fn sliced(tensor: &TensorIr, part: &TensorIr, ranges: &[Slice]) -> Vec<Name> {
    let mut names = dims(tensor);
    for (dim, name) in names.iter_mut().enumerate() {
        if !takes_whole(ranges, dim, tensor.shape[dim], part.shape[dim]) {
            *name = Name::Whole;
        }
    }
    names
}

/// Ranges that take a dim whole keep doing so on the local dim.
pub(super) fn whole_ranges(ranges: &mut [Slice], tensor: &TensorIr, part: &TensorIr) {
    for dim in 0..ranges.len() {
        if takes_whole(ranges, dim, tensor.shape[dim], part.shape[dim]) {
            ranges[dim] = Slice::new(0, None, 1);
        }
    }
}

/// Returns the view that a slice is; `None` where the kernel copies: negative steps. A start that is a slot is any but
/// 0, as 1 is.
fn look(at: &Strided, ranges: &[Slice], shape: &[usize]) -> Option<Strided> {
    let mut out = at.clone();
    for (dim, slice) in ranges.iter().enumerate().take(shape.len()) {
        if is_slot(slice) {
            out = out.sliced(dim, 1, 1, shape[dim]);
            continue;
        }
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

/// Returns the view with windows over a dim, each as a new last dim.
fn unfolded(at: &Strided, dim: usize, step: usize, shape: &[usize]) -> Strided {
    let mut strides = at.strides.clone();
    strides.push(at.strides[dim]);
    strides[dim] *= step as isize;
    Strided {
        shape: shape.to_vec(),
        strides,
        offset: at.offset,
    }
}
