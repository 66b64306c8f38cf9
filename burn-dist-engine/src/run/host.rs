//! Tensors on the host: parts cut out and put together by flat element ranges.

use std::ops::Range;

use burn_std::Bytes;

use super::terms;
use crate::burn::data::*;
use crate::layout::Rows;
use crate::mesh::{MeshShape, Rank};
use crate::ops::dtype::to_burn;
use crate::plan::runs;
use crate::plan::task::{ReadPlan, UploadTask};

/// Puts the parts of a tensor together.
pub(super) fn assemble(
    plan: &ReadPlan,
    mesh: &MeshShape,
    mut parts: Vec<(Rank, TensorData)>,
) -> TensorData {
    if plan.senders.len() == 1
        && let Some((_, data)) = parts.pop()
    {
        let (bytes, _, dtype) = data.into_parts();
        return TensorData::from_bytes(bytes, plan.shape.clone(), dtype);
    }
    let elem = plan.dtype.size();
    let elements: usize = plan.shape.iter().product();
    let mut whole = vec![0u8; elements * elem];
    for (rank, part) in parts {
        let bytes: &[u8] = part.bytes();
        let mut from = 0;
        for run in runs(&plan.layout, mesh, rank).iter() {
            let len = run.len() * elem;
            whole[run.start * elem..run.end * elem].copy_from_slice(&bytes[from..from + len]);
            from += len;
        }
    }
    TensorData::from_bytes_vec(whole, plan.shape.clone(), to_burn(plan.dtype))
}

/// Cuts a rank's part out of a host tensor, of which `data` is all, or the rows named.
pub(super) fn part(data: &TensorData, rows: Option<&Rows>, task: &UploadTask) -> TensorData {
    let elem = task.dtype.size();
    let bytes = match (&task.runs, rows) {
        (None, _) => data.bytes().clone(),
        (Some(runs), None) => Bytes::from_bytes_vec(cut(data.bytes(), runs, elem)),
        (Some(runs), Some(rows)) => {
            Bytes::from_bytes_vec(cut(data.bytes(), &here(runs, rows, data), elem))
        }
    };
    let part = TensorData::from_bytes(bytes, task.shape.clone(), data.dtype());
    match task.terms.as_slice() {
        [] => part,
        of => terms::terms(part, of, task.seed),
    }
}

/// Where runs of the whole tensor lie in the rows that are here. The parts of the ranks here are in them, and no part
/// goes from one range of rows to another.
fn here(runs: &[Range<usize>], rows: &Rows, data: &TensorData) -> Vec<Range<usize>> {
    let width: usize = data.shape().iter().skip(1).product();
    let place = |run: &Range<usize>| {
        let (row, column) = (run.start / width, run.start % width);
        let place = rows.place(row).expect("a rank's rows are on its process");
        let start = place * width + column;
        start..start + run.len()
    };
    runs.iter()
        .filter(|run| !run.is_empty())
        .map(place)
        .collect()
}

fn cut(bytes: &[u8], runs: &[Range<usize>], elem: usize) -> Vec<u8> {
    let total: usize = runs.iter().map(Range::len).sum();
    let mut part = Vec::with_capacity(total * elem);
    for run in runs {
        part.extend_from_slice(&bytes[run.start * elem..run.end * elem]);
    }
    part
}
