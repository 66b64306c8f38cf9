//! Runs of a tensor that a rank holds.

use std::ops::Range;
use std::sync::Arc;

use super::Layout;
use burn_dist_mesh::{MeshShape, Rank};

/// Returns the flat ranges of the global tensor that a rank holds, in local order.
pub fn runs(layout: &Layout, mesh: &MeshShape, rank: Rank) -> Arc<[Range<usize>]> {
    // Factors as dims of their own: (global size, range held).
    let factors = layout.factors();
    let mut dims: Vec<_> = factors.map(|f| (f.size, f.range(mesh, rank))).collect();
    if dims.iter().any(|(_, range)| range.is_empty()) {
        return Arc::new([]);
    }
    // The innermost dims held whole join into one run.
    let mut inner = 1;
    while let Some((size, range)) = dims.last() {
        if range.len() != *size {
            break;
        }
        inner *= size;
        dims.pop();
    }
    let (run_start, run_len) = match dims.pop() {
        Some((size, range)) => {
            let run = (range.start * inner, range.len() * inner);
            inner *= size;
            run
        }
        None => return std::iter::once(0..inner).collect(),
    };
    let mut starts = vec![0usize];
    let mut stride = inner;
    let mut strides = vec![0; dims.len()];
    for (index, (size, _)) in dims.iter().enumerate().rev() {
        strides[index] = stride;
        stride *= size;
    }
    for ((_, range), stride) in dims.iter().zip(strides) {
        starts = starts
            .iter()
            .flat_map(|&start| range.clone().map(move |index| start + index * stride))
            .collect();
    }
    starts
        .into_iter()
        .map(|start| start + run_start..start + run_start + run_len)
        .collect()
}
