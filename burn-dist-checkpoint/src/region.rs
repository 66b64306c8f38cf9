//! Parts of tensors: boxes, and the runs of elements that they are made of.

use burn_dist_mesh::{MeshShape, Rank};
use burn_dist_plan::layout::Layout;
use std::fmt;
use std::ops::Range;

/// A box of the elements of a tensor, in row-major order.
///
/// The box lies in a *grid*: the tensor's shape, or one that follows from it by writing a dim as a product of factors.
/// So what a rank holds under any [`Layout`] is one region, also where a factor inside a dim is split.
///
/// Law: the elements of `Region::of(layout, mesh, rank)` are `layout.elements(mesh, rank)`, in that order.
///
/// ```
/// use burn_dist_checkpoint::Region;
/// let columns = Region::new(vec![2, 6], vec![0, 2], vec![2, 3])?;
/// assert_eq!(columns.ranges().collect::<Vec<_>>(), [2..5, 8..11]);
/// # Ok::<(), burn_dist_checkpoint::RegionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    // All three of one length. The product of the sizes of `grid` that are not 0 fits a usize, and every range lies
    // within its size.
    grid: Vec<usize>,
    start: Vec<usize>,
    extent: Vec<usize>,
}

/// Numbers that are no box of any tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Not one start and one extent for each dim.
    #[error("a box in {dims} dims has {starts} starts and {extents} extents")]
    Dims {
        /// Of the grid.
        dims: usize,
        /// Starts given.
        starts: usize,
        /// Extents given.
        extents: usize,
    },
    /// The tensor has more elements than can be counted.
    #[error("the shape {grid:?} has more elements than fit 64 bits")]
    TooLarge {
        /// The shape.
        grid: Vec<usize>,
    },
    /// The box ends outside of the tensor.
    #[error("{extent} elements from {start} on end outside of dim {dim}, which has {size}")]
    Outside {
        /// The dim.
        dim: usize,
        /// Its size.
        size: usize,
        /// Where the box starts.
        start: usize,
        /// How many it takes.
        extent: usize,
    },
}

impl Region {
    /// Creates a box of `extent` elements from `start` on along each dim of `grid`.
    ///
    /// # Errors
    /// [`RegionError`] if these are no box.
    pub fn new(
        grid: Vec<usize>,
        start: Vec<usize>,
        extent: Vec<usize>,
    ) -> Result<Self, RegionError> {
        if grid.len() != start.len() || grid.len() != extent.len() {
            return Err(RegionError::Dims {
                dims: grid.len(),
                starts: start.len(),
                extents: extent.len(),
            });
        }
        let mut sizes = grid.iter().filter(|&&size| size > 0);
        let count = sizes.try_fold(1usize, |n, &size| n.checked_mul(size));
        if count.is_none() {
            return Err(RegionError::TooLarge { grid });
        }
        for (dim, ((&size, &start), &extent)) in grid.iter().zip(&start).zip(&extent).enumerate() {
            if start.checked_add(extent).is_none_or(|end| end > size) {
                return Err(RegionError::Outside {
                    dim,
                    size,
                    start,
                    extent,
                });
            }
        }
        Ok(Self {
            grid,
            start,
            extent,
        })
    }

    /// Returns all of a tensor.
    ///
    /// # Errors
    /// [`RegionError::TooLarge`].
    pub fn whole(shape: &[usize]) -> Result<Self, RegionError> {
        Self::new(shape.to_vec(), vec![0; shape.len()], shape.to_vec())
    }

    /// Returns some elements of a tensor of `numel`, by their row-major indices.
    ///
    /// # Errors
    /// [`RegionError::Outside`].
    pub fn range(numel: usize, elements: Range<usize>) -> Result<Self, RegionError> {
        Self::new(vec![numel], vec![elements.start], vec![elements.len()])
    }

    /// Returns what a rank holds under a layout.
    ///
    /// # Errors
    /// [`RegionError::TooLarge`].
    pub fn of(layout: &Layout, mesh: &MeshShape, rank: Rank) -> Result<Self, RegionError> {
        let factors = || layout.dims.iter().flat_map(|dim| &dim.factors);
        let ranges: Vec<Range<usize>> = factors().map(|factor| factor.range(mesh, rank)).collect();
        Self::new(
            factors().map(|factor| factor.size).collect(),
            ranges.iter().map(|range| range.start).collect(),
            ranges.iter().map(Range::len).collect(),
        )
    }

    /// Returns the shape that the box lies in.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// Returns where the box starts along each dim of the grid.
    pub fn start(&self) -> &[usize] {
        &self.start
    }

    /// Returns the size of the box along each dim of the grid.
    pub fn extent(&self) -> &[usize] {
        &self.extent
    }

    /// Returns the number of elements in the box.
    pub fn numel(&self) -> usize {
        match self.extent.contains(&0) {
            true => 0,
            false => self.extent.iter().product(),
        }
    }

    /// Whether the box is all of the tensor.
    pub fn is_whole(&self) -> bool {
        self.grid == self.extent
    }

    /// Whether two boxes of one grid have no element in common.
    pub(crate) fn is_disjoint(&self, other: &Region) -> bool {
        let ends = |region: &Region, dim: usize| region.start[dim] + region.extent[dim];
        (0..self.grid.len())
            .any(|dim| self.start[dim] >= ends(other, dim) || other.start[dim] >= ends(self, dim))
    }

    /// Returns the row-major indices of its elements as ascending ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let runs = self.runs();
        (0..runs.count).map(move |index| runs.get(index))
    }

    /// Returns part `index` of `parts` along the first dim that has that many, such that it is contiguous in the box:
    /// the part, and which elements of the box it is.
    pub(crate) fn part(&self, parts: usize, index: usize) -> (Region, Range<usize>) {
        let first = self.extent.iter().position(|&extent| extent > 1);
        let Some(dim) = first.filter(|_| self.numel() > 0) else {
            let end = if index == 0 { self.numel() } else { 0 };
            return (self.clone(), 0..end);
        };
        let inner: usize = self.extent[dim + 1..].iter().product();
        let range = burn_dist_plan::layout::chunk(0..self.extent[dim], parts, index);
        let mut part = self.clone();
        part.start[dim] += range.start;
        part.extent[dim] = range.len();
        (part, range.start * inner..range.end * inner)
    }

    pub(crate) fn runs(&self) -> Runs {
        Runs::new(self)
    }
}

/// As text: `[0:4, 2:8]`, and no brackets around nothing.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.start.iter().zip(&self.extent);
        let ranges: Vec<String> = ranges
            .map(|(start, extent)| format!("{start}:{}", start + extent))
            .collect();
        write!(f, "[{}]", ranges.join(","))
    }
}

/// The elements of a region as runs of equal length, ascending.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    /// Extent and distance in elements of the dims that separate runs, inner first.
    outer: Vec<(usize, usize)>,
    base: usize,
    /// Elements of a run.
    pub len: usize,
    /// How many runs there are.
    pub count: usize,
}

impl Runs {
    fn new(region: &Region) -> Self {
        if region.numel() == 0 {
            return Self {
                outer: Vec::new(),
                base: 0,
                len: 0,
                count: 0,
            };
        }
        let (mut outer, mut base, mut stride, mut len) = (Vec::new(), 0, 1, 1);
        for dim in (0..region.grid.len()).rev() {
            let (size, extent) = (region.grid[dim], region.extent[dim]);
            base += region.start[dim] * stride;
            if outer.is_empty() && len == stride {
                len *= extent;
            } else if extent > 1 {
                outer.push((extent, stride));
            }
            stride *= size;
        }
        Self {
            count: outer.iter().map(|&(extent, _)| extent).product(),
            outer,
            base,
            len,
        }
    }

    /// Returns the elements of a run.
    pub fn get(&self, index: usize) -> Range<usize> {
        let (mut start, mut rest) = (self.base, index);
        for &(extent, stride) in &self.outer {
            start += rest % extent * stride;
            rest /= extent;
        }
        start..start + self.len
    }

    /// Returns the first run from `from` on that ends after `element`; `count` if there is none.
    fn seek(&self, from: usize, element: usize) -> usize {
        let ends_before = |index: usize| self.get(index).end <= element;
        let (mut low, mut step) = (from, 1);
        // The next one, mostly: look ahead in growing steps before halving.
        while low + step <= self.count && ends_before(low + step - 1) {
            low += step;
            step *= 2;
        }
        let mut high = (low + step).min(self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match ends_before(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

/// Elements that two regions share and that follow each other in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Position of the first within the source region.
    pub source: usize,
    /// Position of the first within the target region.
    pub target: usize,
    /// How many.
    pub len: usize,
}

/// Returns what `source` has of the elements `within` of `target`, ascending in both.
pub(crate) fn overlap<'a>(
    source: &'a Runs,
    target: &'a Runs,
    within: Range<usize>,
) -> impl Iterator<Item = Copy> + 'a {
    let (mut s, mut t) = (0, within.start.checked_div(target.len).unwrap_or(0));
    let first = match t < target.count {
        true => target.get(t).start,
        false => 0,
    };
    s = source.seek(s, first);
    std::iter::from_fn(move || {
        while s < source.count && t < target.count && t * target.len < within.end {
            let (from, mut to) = (source.get(s), target.get(t));
            let begin = to.start;
            // The first and the last run may be cut by `within`.
            to.end = to.end.min(begin + (within.end - t * target.len));
            to.start += within.start.saturating_sub(t * target.len);
            let (low, high) = (from.start.max(to.start), from.end.min(to.end));
            let (source_run, target_run) = (s, t);
            if low >= high {
                match from.end <= to.start {
                    true => s = source.seek(s, to.start),
                    false => t = target.seek(t + 1, from.start),
                }
                continue;
            }
            if from.end <= high {
                s += 1;
            }
            if to.end <= high {
                t += 1;
            }
            return Some(Copy {
                source: source_run * source.len + (low - from.start),
                target: target_run * target.len + (low - begin),
                len: high - low,
            });
        }
        None
    })
}

#[cfg(test)]
mod tests;
