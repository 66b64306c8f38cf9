//! Tensors put together from others. A rank makes its part from the pieces that fall into it, and does not look at the
//! others.

use std::ops::Range;

use burn_dist_plan::runs;
use burn_std::Slice;

use super::Recorded;
use super::family::prelude::*;
use super::nothing::has_elements;
use super::places::STEPS_IN_PLACE;
use super::starts::is_dense;
use super::view::{sliced, takes_whole, whole_ranges};
use burn_dist_plan::layout::{DimLayout, Layout};

family! {
    Join |cx, op| by_kind(K: Tensors) {
        /// Parts without elements are left out: nothing is to be copied of them.
        Cat(CatOpIr) K = {
            let mut parts = Vec::with_capacity(op.tensors.len());
            for tensor in &op.tensors {
                match has_elements(tensor) {
                    true => parts.push(cx.take::<K>(tensor)),
                    false => drop(cx.env.take(tensor)),
                }
            }
            K::cat(parts, op.dim)
        },
        SliceAssign(SliceAssignOpIr) K = {
            let (tensor, value) = (cx.take::<K>(&op.tensor), cx.take::<K>(&op.value));
            K::slice_assign(tensor, &cx.ranges(&op.ranges), value)
        },
    }
}

impl Operation for Join<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let rule = match self {
            // The dim stays whole in the inputs.
            Self::Cat(op) => {
                let names = |tensor: &TensorIr| dims_but(tensor, op.dim, Name::Whole);
                let inputs: Vec<_> = op.tensors.iter().map(names).collect();
                let all: Vec<usize> = (0..inputs.len()).collect();
                RuleBuilder::named(shapes, inputs, vec![dims(&op.out)]).joint_linear(&all)
            }
            // A dim assigned in steps, or from a slot on, stays whole.
            Self::SliceAssign(op) => {
                let value = sliced(&op.tensor, &op.value, &op.ranges);
                let mut names = dims(&op.tensor);
                for (name, range) in names.iter_mut().zip(&op.ranges) {
                    if range.step != 1 {
                        *name = Name::Whole;
                    }
                }
                RuleBuilder::named(shapes, vec![names.clone(), value], vec![names])
                    .joint_linear(&[0, 1])
            }
        };
        rule.lowering(Lowering::Special).build()
    }

    fn lower(&self, local: &Local<'_>, rule: &Rule, emit: &mut Emit<'_>) {
        match self {
            Self::Cat(op) => cat(local, rule, op, emit),
            Self::SliceAssign(op) => slice_assign(local, rule, op, emit),
        }
    }

    fn localize(&self, op: &mut Recorded, _: &Local<'_>) {
        if let Some(BaseOperationIr::SliceAssign(op)) = base_mut(op) {
            whole_ranges(&mut op.ranges, &op.tensor, &op.value);
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            joins: match self {
                Self::Cat(op) => Some(op.dim),
                Self::SliceAssign(_) => None,
            },
            assigns: matches!(self, Self::SliceAssign(_)),
            ..Traits::default()
        }
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Move
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        match self {
            Self::Cat(_) => None,
            Self::SliceAssign(_) => OfNothing::from(1, Nothing::First),
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        let first = &inputs[0];
        let shares = match self {
            Self::Cat(op) => op.tensors.len() == 1,
            // Made contiguous first, which is then its own.
            Self::SliceAssign(op) => {
                let in_steps = !op.ranges.iter().all(is_dense);
                first.at.is_plain()
                    && first.alone
                    && first.buffer == first.at.elements()
                    && (STEPS_IN_PLACE || !in_steps)
            }
        };
        match shares {
            true => Place::Shares(0, first.at.clone()),
            false => Place::New(Strided::contiguous(shape)),
        }
    }
}

/// Joins what the rank holds of the inputs.
fn cat(local: &Local, rule: &Rule, op: &CatOpIr, emit: &mut Emit) {
    let Some(split) = local.split(&rule.outputs[0].dims, op.dim) else {
        return local.same(emit);
    };
    let mut pieces = Vec::new();
    for run in held(local, split) {
        let mut start = 0;
        for index in 0..op.tensors.len() {
            let size = op.tensors[index].shape[op.dim];
            if let Some(here) = intersection(&run, &(start..start + size)) {
                let input = local.local_input(index);
                let range = here.start - start..here.end - start;
                pieces.push(cut(emit, &input, op.dim, range));
            }
            start += size;
        }
    }
    let out = local.local_outputs().remove(0);
    match <[TensorIr; 1]>::try_from(pieces) {
        Ok([piece]) => rename(emit, piece, out),
        Err(tensors) => {
            let dtype = out.dtype;
            let dim = op.dim;
            let cat = CatOpIr { tensors, dim, out };
            emit.push(base(dtype, BaseOperationIr::Cat(cat)));
        }
    }
}

/// Assigns what falls into the rank's part, run by run; where nothing does, the tensor is the result.
fn slice_assign(local: &Local, rule: &Rule, op: &SliceAssignOpIr, emit: &mut Emit) {
    let sizes = op.tensor.shape.to_vec();
    // Per dim: what is assigned of the local tensor, from where in the local value.
    let mut parts: Vec<Vec<(Slice, Option<Range<usize>>)>> = Vec::with_capacity(sizes.len());
    let mut in_pieces = false;
    for (dim, &size) in sizes.iter().enumerate() {
        let assigned = op.ranges.get(dim).copied().unwrap_or(Slice::full());
        let split = local.split(&rule.outputs[0].dims, dim);
        if takes_whole(&op.ranges, dim, size, op.value.shape[dim]) {
            parts.push(vec![(Slice::full(), None)]);
            continue;
        }
        let Some(split) = split else {
            parts.push(vec![(assigned, None)]);
            continue;
        };
        in_pieces = true;
        let assigned = assigned.to_range(size);
        let mut start = 0;
        let mut of_dim = Vec::new();
        for run in held(local, split) {
            if let Some(here) = intersection(&run, &assigned) {
                let to = start + here.start - run.start..start + here.end - run.start;
                let from = here.start - assigned.start..here.end - assigned.start;
                of_dim.push((slice(&to), Some(from)));
            }
            start += run.len();
        }
        parts.push(of_dim);
    }
    if !in_pieces {
        return local.same(emit);
    }
    let mut assignments: Vec<Vec<(Slice, Option<Range<usize>>)>> = vec![Vec::new()];
    for of_dim in parts {
        let longer = assignments.iter().flat_map(|chosen| {
            of_dim.iter().map(|part| {
                let mut longer = chosen.clone();
                longer.push(part.clone());
                longer
            })
        });
        assignments = longer.collect();
    }
    let out = local.local_outputs().remove(0);
    let mut tensor = local.local_input(0);
    let count = assignments.len();
    if count == 0 {
        return rename(emit, tensor, out);
    }
    for (index, assignment) in assignments.into_iter().enumerate() {
        let mut value = local.local_input(1);
        for (dim, (_, from)) in assignment.iter().enumerate() {
            if let Some(from) = from {
                value = cut(emit, &value, dim, from.clone());
            }
        }
        let next = match index + 1 == count {
            true => out.clone(),
            false => emit.temp(&out, out.shape.to_vec()),
        };
        let op = SliceAssignOpIr {
            tensor,
            ranges: assignment.into_iter().map(|(to, _)| to).collect(),
            value,
            out: next.clone(),
        };
        emit.push(base(next.dtype, BaseOperationIr::SliceAssign(op)));
        tensor = read(&next);
    }
}

/// The positions of a split dim that the rank holds, in local order.
fn held(local: &Local, split: &DimLayout) -> Vec<Range<usize>> {
    let layout = Layout {
        dims: vec![split.clone()],
        partial: Vec::new(),
        at_rest: Vec::new(),
    };
    let runs = runs(&layout, local.mesh, local.rank);
    runs.iter().cloned().collect()
}

fn intersection(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let range = a.start.max(b.start)..a.end.min(b.end);
    (!range.is_empty()).then_some(range)
}

fn slice(range: &Range<usize>) -> Slice {
    Slice::new(range.start as isize, Some(range.end as isize), 1)
}

/// Returns the tensor without what lies outside of `range` along `dim`.
fn cut(emit: &mut Emit, tensor: &TensorIr, dim: usize, range: Range<usize>) -> TensorIr {
    if range.len() == tensor.shape[dim] {
        return read(tensor);
    }
    let mut shape = tensor.shape.to_vec();
    shape[dim] = range.len();
    let out = emit.temp(tensor, shape);
    let mut ranges = vec![Slice::full(); tensor.shape.num_dims()];
    ranges[dim] = slice(&range);
    let op = SliceOpIr {
        tensor: read(tensor),
        ranges,
        out: out.clone(),
    };
    emit.push(base(tensor.dtype, BaseOperationIr::Slice(op)));
    read(&out)
}

/// Gives a tensor the name of the result.
fn rename(emit: &mut Emit, input: TensorIr, out: TensorIr) {
    let op = ShapeOpIr { input, out };
    emit.push(base(op.out.dtype, BaseOperationIr::Reshape(op)));
}
