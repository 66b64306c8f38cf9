//! Rows of a batch: which of them some ranks hold together.

use super::{DimLayout, Factor, Layout};
use burn_dist_mesh::{AxisIndex, MeshShape, Rank};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Returns the layout of rows: dim 0 over the data axes, whole where it has fewer rows than parts.
pub fn by_rows(mesh: &MeshShape, shape: &[usize]) -> Layout {
    let mut layout = Layout::replicated(shape);
    if let Some(dim) = layout.dims.first_mut() {
        split(mesh, dim, &mesh.data_axes());
    }
    layout.normalize(mesh);
    layout
}

/// Returns the layout of a batch: rows over the data axes, and sequences (dim 1) over the context axes. Each is whole
/// where it is shorter than its parts are many.
///
/// Sequences are split in stripes: of p ranks, rank i has the elements i, p + i, 2 p + i and so on. Under a causal mask,
/// ranks then have equal work. Where p does not divide a sequence, ranks have ranges of it.
///
/// ```
/// use burn_dist_mesh::MeshShape;
/// use burn_dist_layout::of_batch;
/// let mesh = MeshShape::parse("fsdp=2,cp=2,tp=2")?;
/// let text = |shape: &[usize]| of_batch(&mesh, shape).display(&mesh).to_string();
/// assert_eq!(text(&[4, 16]), "[{fsdp}, (8 . 2{cp})]");
/// assert_eq!(text(&[4, 16, 3]), "[{fsdp}, (8 . 2{cp}), -]");
/// assert_eq!(text(&[4]), "[{fsdp}]");
/// assert_eq!(text(&[1, 15]), "[-, {cp}]");
/// # Ok::<(), burn_dist_mesh::MeshError>(())
/// ```
///
/// # Source
/// Brandon et al., "Striped Attention" (arXiv:2311.09431), section 3.
pub fn of_batch(mesh: &MeshShape, shape: &[usize]) -> Layout {
    let mut layout = by_rows(mesh, shape);
    if let Some(dim) = layout.dims.get_mut(1) {
        let axes = mesh.context_axes();
        let (size, parts) = (dim.size(), mesh.group_size(&axes));
        match parts > 1 && size > parts && size.is_multiple_of(parts) {
            true => dim.factors = vec![Factor::whole(size / parts), Factor { size: parts, axes }],
            false => split(mesh, dim, &axes),
        }
    }
    layout.normalize(mesh);
    layout
}

/// Splits a dim over axes, if it has an element for every part.
fn split(mesh: &MeshShape, dim: &mut DimLayout, axes: &[AxisIndex]) {
    let factor = &mut dim.factors[0];
    if factor.size >= mesh.group_size(axes) {
        factor.axes.extend(axes);
    }
}

/// Some rows (indices along dim 0) of a tensor: ascending ranges that do not touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    total: usize,
    ranges: Arc<[Range<usize>]>,
}

impl Rows {
    /// Returns the rows in any of `ranges`, of `total`.
    ///
    /// # Panics
    /// If a range ends beyond `total`.
    pub fn new(total: usize, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        sorted.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in sorted {
            assert!(range.end <= total, "rows {range:?} of {total}");
            match merged.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self {
            total,
            ranges: merged.into(),
        }
    }

    /// Returns all of `total` rows.
    pub fn all(total: usize) -> Self {
        Self::new(total, std::iter::once(0..total))
    }

    /// Returns the rows of `layout` that `ranks` hold together.
    pub fn held(layout: &Layout, mesh: &MeshShape, ranks: Range<u32>) -> Self {
        let total = layout.dims.first().map_or(1, |dim| dim.size());
        Self::new(total, ranks.map(|rank| rows_of(layout, mesh, Rank(rank))))
    }

    /// Returns how many rows the whole tensor has.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns how many these are.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Returns whether these are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns whether these are all rows of the tensor.
    pub fn is_all(&self) -> bool {
        self.len() == self.total
    }

    /// Returns the ranges.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Returns whether `row` is one of these.
    pub fn contains(&self, row: usize) -> bool {
        self.place(row).is_some()
    }

    /// Returns the indices, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// Returns how many of these come before `row`, if it is one of them.
    pub fn place(&self, row: usize) -> Option<usize> {
        let mut before = 0;
        for range in self.ranges.iter() {
            if range.contains(&row) {
                return Some(before + row - range.start);
            }
            before += range.len();
        }
        None
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self
            .ranges
            .iter()
            .map(|range| format!("{}..{}", range.start, range.end))
            .collect();
        match ranges.as_slice() {
            [] => write!(f, "no rows of {}", self.total),
            ranges => write!(f, "rows {} of {}", ranges.join(", "), self.total),
        }
    }
}

/// Returns the rows that a rank holds.
fn rows_of(layout: &Layout, mesh: &MeshShape, rank: Rank) -> Range<usize> {
    match layout.dims.is_empty() {
        true => 0..1,
        false => layout.dims[0].factors[0].range(mesh, rank),
    }
}

/// Returns the pieces of dim 0 that the `ranks` hold and ranks outside of them hold too: what has to be alike here and
/// there.
pub fn repeated(layout: &Layout, mesh: &MeshShape, ranks: Range<u32>) -> Vec<Range<usize>> {
    let of = |rank: u32| rows_of(layout, mesh, Rank(rank));
    let elsewhere: Vec<Range<usize>> = (0..mesh.num_ranks() as u32)
        .filter(|rank| !ranks.contains(rank))
        .map(of)
        .collect();
    let mut found: Vec<Range<usize>> = ranks.map(of).filter(|r| !r.is_empty()).collect();
    found.sort_by_key(|range| (range.start, range.end));
    found.dedup();
    found.retain(|range| elsewhere.contains(range));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let rows = Rows::new(9, [6..8, 0..2, 2..3, 5..5]);
        assert_eq!(rows.ranges(), [0..3, 6..8]);
        assert_eq!((rows.len(), rows.total(), rows.is_all()), (5, 9, false));
        assert_eq!(rows.iter().collect::<Vec<_>>(), [0, 1, 2, 6, 7]);
        assert_eq!(
            [2, 3, 6, 8].map(|row| rows.place(row)),
            [Some(2), None, Some(3), None]
        );
        assert_eq!(rows.to_string(), "rows 0..3, 6..8 of 9");
        assert_eq!(Rows::new(4, []).to_string(), "no rows of 4");
        assert!(Rows::all(4).is_all() && Rows::all(0).is_all());
    }

    #[test]
    fn processes_hold_what_their_ranks_do() {
        let held = |mesh: &str, batch: usize, ranks: Range<u32>| {
            let mesh: MeshShape = mesh.parse().unwrap();
            let layout = Layout::sharded(&[batch, 3], 0, &mesh.data_axes());
            let rows = Rows::held(&layout, &mesh, ranks.clone());
            (rows.to_string(), repeated(&layout, &mesh, ranks))
        };
        assert_eq!(held("fsdp=4", 8, 0..2), ("rows 0..4 of 8".into(), vec![]));
        assert_eq!(held("fsdp=4", 5, 2..4), ("rows 4..5 of 5".into(), vec![]));
        assert_eq!(held("fsdp=4", 5, 3..4), ("no rows of 5".into(), vec![]));
        let half = std::iter::once(0..4).collect::<Vec<_>>();
        assert_eq!(
            held("fsdp=2,tp=2", 8, 0..1),
            ("rows 0..4 of 8".into(), half)
        );
        assert_eq!(
            held("fsdp=2,tp=2", 8, 0..2),
            ("rows 0..4 of 8".into(), vec![])
        );
        // Processes that end in the middle of a row of the mesh: one part is in both.
        let middle = std::iter::once(2..4).collect::<Vec<_>>();
        assert_eq!(
            held("dp=3,tp=2", 6, 0..3),
            ("rows 0..4 of 6".into(), middle)
        );
        // The model axis is outside the data axis.
        let apart = held("dp=2,tp=2,fsdp=4", 8, 3..5).0;
        assert_eq!(apart, "rows 0..1, 3..4 of 8");
    }
}
