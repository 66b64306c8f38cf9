//! The part of one rank: ranges, local shapes, elements.

use super::{DimLayout, Factor, Layout};
use burn_dist_mesh::{MeshShape, Rank};
use std::ops::Range;

/// Returns the part of `range` that member `index` of `parts` holds: chunks of `ceil(n / parts)`, later ones shorter or
/// empty.
///
/// ```
/// use burn_dist_layout::chunk;
/// let chunks: Vec<_> = (0..4).map(|i| chunk(0..5, 4, i)).collect();
/// assert_eq!(chunks, [0..2, 2..4, 4..5, 5..5]);
/// ```
pub fn chunk(range: Range<usize>, parts: usize, index: usize) -> Range<usize> {
    let size = range.len().div_ceil(parts);
    let start = (range.start + index * size).min(range.end);
    start..(start + size).min(range.end)
}

impl Factor {
    /// Returns the elements of this factor that a rank holds, as a range of the global factor.
    ///
    /// Later chunks are shorter or empty: 7 over 3 ranks are 3, 3 and 1.
    pub fn range(&self, mesh: &MeshShape, rank: Rank) -> Range<usize> {
        self.axes.iter().fold(0..self.size, |range, &axis| {
            chunk(range, mesh.size(axis), mesh.coord(rank, axis))
        })
    }

    /// Returns the largest number of elements of this factor that any rank holds.
    pub fn local_size_max(&self, mesh: &MeshShape) -> usize {
        // Chunk 0 is the longest at every level of the nesting.
        self.axes
            .iter()
            .fold(self.size, |size, &axis| size.div_ceil(mesh.size(axis)))
    }
}

/// Elements of a dim at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spaced {
    /// The first one.
    pub start: usize,
    /// The distance of neighbours.
    pub step: usize,
    /// How many there are.
    pub len: usize,
}

impl DimLayout {
    /// Returns whether every rank holds elements at equal distances: a range of the major factor, and of those behind
    /// it, if there are any, one element each.
    pub fn is_spaced(&self, mesh: &MeshShape) -> bool {
        let mut minor = self.factors.iter().skip(1);
        minor.all(|f| f.local_size_max(mesh) == 1 && f.size == mesh.group_size(&f.axes))
    }

    /// Returns the elements of the dim that a rank holds, if they are at equal distances.
    ///
    /// ```
    /// use burn_dist_layout::{Layout, Spaced};
    /// use burn_dist_mesh::{MeshShape, Rank};
    /// let mesh = MeshShape::parse("cp=4")?;
    /// let on_rank_1 = |text| Layout::parse(text, &mesh, Some(&[12])).map(|of| of.dims[0].spaced(&mesh, Rank(1)));
    /// assert_eq!(on_rank_1("[{cp}]")?, Some(Spaced { start: 3, step: 1, len: 3 }));
    /// assert_eq!(on_rank_1("[(3 . 4{cp})]")?, Some(Spaced { start: 1, step: 4, len: 3 }));
    /// assert_eq!(on_rank_1("[(2 . 4{cp} . 2)]").ok(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spaced(&self, mesh: &MeshShape, rank: Rank) -> Option<Spaced> {
        if !self.is_spaced(mesh) {
            return None;
        }
        let (major, minor) = self.factors.split_first()?;
        let range = major.range(mesh, rank);
        let (start, step) = minor
            .iter()
            .fold((range.start, 1), |(start, step), factor| {
                let index = factor.range(mesh, rank).start;
                (start * factor.size + index, step * factor.size)
            });
        Some(Spaced {
            start,
            step,
            len: range.len(),
        })
    }
}

impl Layout {
    /// Returns the shape of the block that a rank holds: per dim, the product of the local sizes of its factors.
    pub fn local_shape(&self, mesh: &MeshShape, rank: Rank) -> Vec<usize> {
        self.dims
            .iter()
            .map(|dim| {
                let sizes = dim.factors.iter().map(|f| f.range(mesh, rank).len());
                sizes.product()
            })
            .collect()
    }

    /// Returns the number of elements that a rank holds.
    pub fn local_numel(&self, mesh: &MeshShape, rank: Rank) -> usize {
        self.factors().map(|f| f.range(mesh, rank).len()).product()
    }

    /// Returns the largest number of elements that any rank holds.
    pub fn local_numel_max(&self, mesh: &MeshShape) -> usize {
        self.factors().map(|f| f.local_size_max(mesh)).product()
    }

    /// Returns the global row-major indices of the elements that a rank holds, in the row-major order of its local
    /// block.
    ///
    /// This defines what a layout means; everything else about placement follows from it. For a partial value it says
    /// of which elements the rank holds a term.
    pub fn elements(&self, mesh: &MeshShape, rank: Rank) -> impl Iterator<Item = usize> + use<> {
        // Per factor, minor to major: its range and the distance of neighbours in the global tensor.
        let mut stride = 1;
        let mut digits: Vec<(Range<usize>, usize)> = Vec::new();
        for factor in self
            .dims
            .iter()
            .rev()
            .flat_map(|dim| dim.factors.iter().rev())
        {
            digits.push((factor.range(mesh, rank), stride));
            stride *= factor.size;
        }
        let count: usize = digits.iter().map(|(range, _)| range.len()).product();
        (0..count).map(move |local| {
            let mut rest = local;
            let mut global = 0;
            for (range, stride) in &digits {
                global += (range.start + rest % range.len()) * stride;
                rest /= range.len();
            }
            global
        })
    }

    /// Returns whether every rank holds as many elements, of every factor.
    pub fn is_even(&self, mesh: &MeshShape) -> bool {
        self.factors()
            .all(|f| f.size.is_multiple_of(mesh.group_size(&f.axes)))
    }

    pub(crate) fn factors(&self) -> impl Iterator<Item = &Factor> {
        self.dims.iter().flat_map(|dim| &dim.factors)
    }
}
