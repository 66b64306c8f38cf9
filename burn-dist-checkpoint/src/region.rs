//! Parts of tensors: boxes, and the runs of elements that they are made of.

mod runs;
#[cfg(test)]
mod tests;

pub(crate) use runs::{Copy, overlap};

use burn_dist_layout::Layout;
use burn_dist_mesh::{MeshShape, Rank};
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
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Not one start and one extent for each dim.
    #[error("a box in {dims} dims has {starts} starts and {extents} extents")]
    Dims {
        /// Dims of the grid.
        dims: usize,
        /// Starts passed.
        starts: usize,
        /// Extents passed.
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

burn_dist_mesh::debug_by_message!(RegionError);

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

    /// Returns whether the box is all of the tensor.
    pub fn is_whole(&self) -> bool {
        self.grid == self.extent
    }

    /// Returns whether two boxes of one grid have no element in common.
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

    /// Returns what of the box is in each of `num` parts that follow each other, of `each` elements: the number of the
    /// part, and the box in it, in the order of the elements of this box.
    ///
    /// # Errors
    /// [`RegionError::TooLarge`].
    pub fn by_parts(&self, num: usize, each: usize) -> Result<Vec<(usize, Region)>, RegionError> {
        if self.numel() == 0 {
            return Ok(Vec::new());
        }
        let product = |at: &usize| self.grid[..*at].iter().product::<usize>() == num;
        if let Some(at) = (0..=self.grid.len()).find(product) {
            let dims = |range: Range<usize>| {
                let of = |list: &[usize]| list[range.clone()].to_vec();
                Self::new(of(&self.grid), of(&self.start), of(&self.extent))
            };
            let (which, within) = (dims(0..at)?, dims(at..self.grid.len())?);
            let numbers = which.ranges().flatten();
            return Ok(numbers.map(|number| (number, within.clone())).collect());
        }
        let mut parts = Vec::new();
        for range in self.ranges() {
            let mut from = range.start;
            while from < range.end {
                let (number, first) = (from / each, from / each * each);
                let to = range.end.min(first + each);
                parts.push((number, Self::range(each, from - first..to - first)?));
                from = to;
            }
        }
        Ok(parts)
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
        let range = burn_dist_layout::chunk(0..self.extent[dim], parts, index);
        let mut part = self.clone();
        part.start[dim] += range.start;
        part.extent[dim] = range.len();
        (part, range.start * inner..range.end * inner)
    }
}

/// Text form: `[0:4, 2:8]`, and no brackets around nothing.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.start.iter().zip(&self.extent);
        let ranges: Vec<String> = ranges
            .map(|(start, extent)| format!("{start}:{}", start + extent))
            .collect();
        write!(f, "[{}]", ranges.join(","))
    }
}
