//! Reshapes that move no data: regrouping factors.
//!
//! A reshape keeps the row-major order of the elements. Each rank may therefore reshape its local block alone if the
//! factors of the old dims can be dealt out to the new dims, splitting or fusing a factor only where the split over the
//! mesh stays exactly the same.

use super::{DimLayout, Factor, Layout, chunk};
use burn_dist_mesh::{AxisIndex, MeshShape};
use std::collections::VecDeque;
use std::ops::Range;

impl Layout {
    /// Returns the layout after reshaping the global tensor to `to` without data movement, or `None` if there is none.
    ///
    /// Each rank reshapes its local block to the local shape of the result. Partial axes and axes at rest carry over.
    /// Law: the [`Layout::elements`] of every rank are those of the result.
    ///
    /// ```
    /// use burn_dist_layout::Layout;
    /// use burn_dist_mesh::MeshShape;
    /// let mesh = MeshShape::parse("dp=2,tp=2")?;
    /// let heads = Layout::parse("[{dp}, {tp}, -]", &mesh, Some(&[4, 8, 16]))?;
    /// let merged = heads.reshape(&mesh, &[4, 128]).expect("heads are the major factor");
    /// assert_eq!(merged.display(&mesh).to_string(), "[{dp}, (8{tp} . 16)]");
    /// assert_eq!(merged.reshape(&mesh, &[4, 8, 16]), Some(heads));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reshape(&self, mesh: &MeshShape, to: &[usize]) -> Option<Layout> {
        let shape = self.shape();
        if shape == to {
            return Some(self.clone());
        }
        let numel = self.numel();
        if numel != to.iter().product::<usize>() {
            return None;
        }
        let groups = if numel == 0 {
            self.deal_empty(to)
        } else {
            let factors: Vec<_> = self.factors().cloned().collect();
            regroup(mesh, &factors, to)?
        };
        let mut layout = Layout {
            dims: groups
                .into_iter()
                .map(|factors| DimLayout { factors })
                .collect(),
            partial: self.partial.clone(),
            at_rest: self.at_rest.clone(),
        };
        layout.tidy();
        Some(layout)
    }

    /// No rank holds anything, so any layout of `to` is right: keeps the axes on a dim of size 0.
    fn deal_empty(&self, to: &[usize]) -> Vec<Vec<Factor>> {
        let empty = to.iter().position(|&size| size == 0);
        let mut dims: Vec<_> = to.iter().map(|&size| vec![Factor::whole(size)]).collect();
        if let Some(empty) = empty {
            dims[empty][0].axes = self.sharded_axes().collect();
        }
        dims
    }
}

impl DimLayout {
    /// Returns the layout of the dim that has one element for every `block` of this one, if no block is cut: the major
    /// part of the dim as a product of blocks and their elements.
    pub fn in_blocks(&self, block: usize, mesh: &MeshShape) -> Option<DimLayout> {
        if !self.size().is_multiple_of(block) {
            return None;
        }
        let sizes = [self.size() / block, block];
        let mut dims = regroup(mesh, &self.factors, &sizes)?.into_iter();
        let (blocks, elements) = (dims.next()?, dims.next()?);
        let is_whole = elements.iter().all(|factor| factor.axes.is_empty());
        is_whole.then_some(DimLayout { factors: blocks })
    }
}

/// Deals a row-major list of factors out to dims of these sizes; `None` if some split would have to change.
///
/// The products are equal and not 0.
pub(super) fn regroup(
    mesh: &MeshShape,
    factors: &[Factor],
    sizes: &[usize],
) -> Option<Vec<Vec<Factor>>> {
    let factors = fuse_neighbours(factors, |a, b| a.axes.is_empty() && b.axes.is_empty());
    // Factors as they are keep their meaning for the reader, such as (batch . sequence). Only if that fails take
    // everything apart, deal out the pieces and fuse what goes together, which allows [4{tp}, 6] -> [6{tp}, 4].
    deal(mesh, factors.clone(), sizes).or_else(|| {
        let pieces: Vec<_> = factors
            .iter()
            .flat_map(|factor| take_apart(mesh, factor))
            .collect();
        let pieces = fuse_neighbours(&pieces, |a, b| a.axes.is_empty() && b.axes.is_empty());
        let dims = deal(mesh, pieces, sizes)?;
        let fused = dims
            .into_iter()
            .map(|dim| fuse_neighbours(&dim, |a, b| fuses(mesh, a, b)));
        Some(fused.collect())
    })
}

/// Deals out as [`regroup`] does, with exactly one factor for each size.
pub(super) fn regroup_single(
    mesh: &MeshShape,
    factors: &[Factor],
    sizes: &[usize],
) -> Option<Vec<Factor>> {
    let groups = regroup(mesh, factors, sizes)?;
    groups
        .into_iter()
        .map(|group| {
            let mut fused = fuse_neighbours(&group, |a, b| fuses(mesh, a, b));
            (fused.len() == 1).then(|| fused.swap_remove(0))
        })
        .collect()
}

fn fuse(major: &Factor, minor: &Factor) -> Factor {
    Factor {
        size: major.size * minor.size,
        axes: [major.axes.as_slice(), &minor.axes].concat(),
    }
}

/// Fuses neighbours while `may` allows it; drops whole factors of size 1.
fn fuse_neighbours(factors: &[Factor], may: impl Fn(&Factor, &Factor) -> bool) -> Vec<Factor> {
    let mut out: Vec<Factor> = Vec::with_capacity(factors.len());
    for factor in factors {
        if factor.size == 1 && factor.axes.is_empty() {
            continue;
        }
        let mut factor = factor.clone();
        // A fused pair may fuse with the factor before it, which its major half alone did not.
        while let Some(last) = out.pop_if(|last| may(last, &factor)) {
            factor = fuse(&last, &factor);
        }
        out.push(factor);
    }
    if out.is_empty() {
        out.push(Factor::whole(1));
    }
    out
}

fn deal(mesh: &MeshShape, factors: Vec<Factor>, sizes: &[usize]) -> Option<Vec<Vec<Factor>>> {
    let mut queue = VecDeque::from(factors);
    let mut dims: Vec<Vec<Factor>> = Vec::with_capacity(sizes.len());
    for &size in sizes {
        let mut need = size;
        let mut dim = Vec::new();
        // A sharded factor of size 1 fits anywhere; a dim of size 1 is where it most likely came from.
        if size == 1 && queue.front().is_some_and(|factor| factor.size == 1) {
            dim.extend(queue.pop_front());
        }
        while need > 1 {
            let factor = queue.pop_front()?;
            if need.is_multiple_of(factor.size) {
                need /= factor.size;
                dim.push(factor);
            } else if factor.size.is_multiple_of(need) {
                let (major, minor) = split(mesh, &factor, need)?;
                dim.push(major);
                queue.push_front(minor);
                need = 1;
            } else {
                return None;
            }
        }
        if dim.is_empty() {
            dim.push(Factor::whole(1));
        }
        dims.push(dim);
    }
    // What is left are factors of size 1.
    if queue.iter().any(|factor| !factor.axes.is_empty()) {
        dims.last_mut()?.extend(queue);
    }
    Some(dims)
}

/// Splits a factor into a major one of this size and the rest, if some division of its axes keeps every rank's
/// part.
fn split(mesh: &MeshShape, factor: &Factor, major: usize) -> Option<(Factor, Factor)> {
    let minor = factor.size / major;
    (0..=factor.axes.len()).rev().find_map(|cut| {
        let (left, right) = factor.axes.split_at(cut);
        let left = Factor {
            size: major,
            axes: left.to_vec(),
        };
        let right = Factor {
            size: minor,
            axes: right.to_vec(),
        };
        fuses(mesh, &left, &right).then_some((left, right))
    })
}

/// Splits a factor into the smallest factors that keep every rank's part. Nothing is to be gained from splitting one
/// without axes.
fn take_apart(mesh: &MeshShape, factor: &Factor) -> Vec<Factor> {
    let mut pieces = Vec::new();
    let mut rest = factor.clone();
    while !rest.axes.is_empty() {
        let split = divisors(rest.size).find_map(|major| split(mesh, &rest, major));
        let Some((major, minor)) = split else { break };
        pieces.push(major);
        rest = minor;
    }
    pieces.push(rest);
    pieces
}

/// The divisors of a size in ascending order, without 1 and the size itself.
fn divisors(size: usize) -> impl Iterator<Item = usize> {
    let small = (2..)
        .take_while(move |d| d * d <= size)
        .filter(move |d| size.is_multiple_of(*d));
    let large: Vec<_> = small
        .clone()
        .map(|d| size / d)
        .filter(|d| d * d > size)
        .collect();
    small.chain(large.into_iter().rev())
}

/// Returns whether `(major . minor)` and the single factor with the axes of both give every rank the same elements.
fn fuses(mesh: &MeshShape, major: &Factor, minor: &Factor) -> bool {
    if minor.axes.is_empty() {
        let parts = mesh.group_size(&major.axes);
        if major.size.is_multiple_of(parts) {
            return true;
        }
    }
    let axes: Vec<AxisIndex> = [major.axes.as_slice(), &minor.axes].concat();
    let mut coords = vec![0; axes.len()];
    loop {
        let (left, right) = coords.split_at(major.axes.len());
        let rows = nested(mesh, major, left);
        let cols = nested(mesh, minor, right);
        let fused = axes
            .iter()
            .zip(&coords)
            .fold(0..major.size * minor.size, |range, (&axis, &coord)| {
                chunk(range, mesh.size(axis), coord)
            });
        if rows.len() * cols.len() != fused.len() {
            return false;
        }
        if !fused.is_empty() {
            let contiguous = cols.len() == minor.size || rows.len() == 1;
            if !contiguous || fused.start != rows.start * minor.size + cols.start {
                return false;
            }
        }
        if !advance(mesh, &axes, &mut coords) {
            return true;
        }
    }
}

fn nested(mesh: &MeshShape, factor: &Factor, coords: &[usize]) -> Range<usize> {
    factor
        .axes
        .iter()
        .zip(coords)
        .fold(0..factor.size, |range, (&axis, &coord)| {
            chunk(range, mesh.size(axis), coord)
        })
}

/// Steps to the next coordinates; false after the last ones.
fn advance(mesh: &MeshShape, axes: &[AxisIndex], coords: &mut [usize]) -> bool {
    for (coord, &axis) in coords.iter_mut().zip(axes).rev() {
        *coord += 1;
        if *coord < mesh.size(axis) {
            return true;
        }
        *coord = 0;
    }
    false
}
