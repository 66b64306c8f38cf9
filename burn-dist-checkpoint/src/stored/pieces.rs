//! Which elements of a tensor a region of its parameter is made of.

use super::Form;
use crate::region::{Region, RegionError};
use std::ops::Range;

/// So many columns of a parameter are put in the order of their rows at once.
pub(crate) const COLUMNS: usize = if cfg!(test) { 8 } else { 1 << 16 };

/// Elements that follow each other in the tensor, and every `stride` elements in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first, in the tensor.
    pub from: usize,
    /// How many.
    pub len: usize,
    /// The first, in the region.
    pub to: usize,
    /// The distance of the others there.
    pub stride: usize,
}

/// Gives every piece of a region to `each`: ascending in the tensor, as far as that is one box.
pub(super) fn for_each<E: From<RegionError>>(
    form: Form,
    shape: &[usize],
    region: &Region,
    each: &mut dyn FnMut(Piece) -> Result<(), E>,
) -> Result<(), E> {
    if region.numel() == 0 {
        return Ok(());
    }
    let runs = region.runs();
    let Some((inputs, outputs)) = form.matrix(shape) else {
        for index in 0..runs.count {
            let run = runs.get(index);
            each(Piece {
                from: run.start,
                len: run.len(),
                to: index * runs.len,
                stride: 1,
            })?;
        }
        return Ok(());
    };
    if let Some([rows, columns]) = split(region, inputs)? {
        return Block {
            rows,
            columns,
            to: 0,
        }
        .for_each(form, each);
    }
    for index in 0..runs.count {
        let (mut to, run) = (index * runs.len, runs.get(index));
        for (rows, columns) in boxes(run, outputs) {
            let numel = rows.len() * columns.len();
            Block {
                rows: Region::range(inputs, rows)?,
                columns: Region::range(outputs, columns)?,
                to,
            }
            .for_each(form, each)?;
            to += numel;
        }
    }
    Ok(())
}

/// Some rows and columns of a parameter, and where they start in the region.
struct Block {
    rows: Region,
    columns: Region,
    to: usize,
}

impl Block {
    fn for_each<E>(
        &self,
        form: Form,
        each: &mut dyn FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let inputs: usize = self.rows.grid().iter().product();
        let (stride, rows) = (self.columns.numel(), self.rows.runs());
        let mut order: Vec<(usize, usize)> = Vec::new();
        let mut columns = self.columns.ranges().flatten().enumerate();
        loop {
            let next = columns.by_ref().take(COLUMNS);
            order.extend(next.map(|(at, column)| (form.row(column), at)));
            if order.is_empty() {
                return Ok(());
            }
            order.sort_unstable();
            for (row, at) in order.drain(..) {
                for index in 0..rows.count {
                    let run = rows.get(index);
                    each(Piece {
                        from: row * inputs + run.start,
                        len: run.len(),
                        to: self.to + index * rows.len * stride + at,
                        stride,
                    })?;
                }
            }
        }
    }
}

/// Returns the rows and the columns of a region, if its grid tells them apart.
fn split(region: &Region, inputs: usize) -> Result<Option<[Region; 2]>, RegionError> {
    let grid = region.grid();
    let product = |at: &usize| grid[..*at].iter().product::<usize>() == inputs;
    let Some(at) = (0..=grid.len()).find(product) else {
        return Ok(None);
    };
    let part = |range: Range<usize>| {
        let of = |list: &[usize]| list[range.clone()].to_vec();
        Region::new(of(grid), of(region.start()), of(region.extent()))
    };
    Ok(Some([part(0..at)?, part(at..grid.len())?]))
}

/// Returns consecutive elements of a matrix as boxes of rows and columns, in their order.
fn boxes(run: Range<usize>, columns: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let (mut at, end) = (run.start, run.end);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (row, column) = (at / columns, at % columns);
        let rows = match (column, (end - at) / columns) {
            (0, count @ 1..) => row..row + count,
            _ => row..row + 1,
        };
        let stop = match rows.len() {
            1 => columns.min(column + end - at),
            _ => columns,
        };
        at += rows.len() * (stop - column);
        Some((rows, column..stop))
    })
}
