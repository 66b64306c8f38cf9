//! Concatenations: a rank puts together the pieces that fall into its part.

use super::Toy;
use crate::ir::{LocalView, NewTensor, Op, Steps, TensorIndex};
use crate::layout::{DimLayout, Layout, runs};

/// Lowers a concatenation that is split along the dim along which it joins its inputs, which are whole.
pub(super) fn lower(
    op: &Toy,
    view: &LocalView<'_>,
    (dim, split): (usize, &DimLayout),
    steps: &mut Steps<Toy>,
) {
    let tensor = |id: TensorIndex, shape: Vec<usize>| NewTensor {
        id,
        shape,
        dtype: op.out.dtype,
    };
    let mut along = Layout::replicated(&[split.size()]);
    along.dims[0] = split.clone();
    let mut pieces = Vec::new();
    for run in runs(&along, view.mesh, view.rank).iter() {
        let mut start = 0;
        for (index, input) in op.inputs.iter().enumerate() {
            let end = start + input.shape[dim];
            let here = run.start.max(start)..run.end.min(end);
            if !here.is_empty() {
                let whole = tensor(input.id, view.input_shape(index));
                let mut shape = whole.shape.clone();
                shape[dim] = here.len();
                let piece = tensor(steps.temp(), shape);
                let range = here.start - start..here.end - start;
                steps.push(Toy::slice(whole, dim, range, piece.clone()));
                pieces.push(piece);
            }
            start = end;
        }
    }
    let out = tensor(op.out.id, view.output_shape(0));
    steps.push(match pieces.is_empty() {
        true => Toy::zeros(out),
        false => Toy::concatenate(pieces, dim, out),
    });
}
