//! The space of a run as rows: dims that every operand passes through evenly are one.

use super::error::RegionError;
use super::memory::{FEW, Operand};
use super::program::{Extent, Program};
use smallvec::SmallVec;

/// The space as rows of elements, and how operands pass through it.
#[derive(Debug)]
pub(super) struct Geometry {
    /// The sizes that make up rows.
    pub outer: SmallVec<[usize; FEW]>,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub len: usize,
    /// How operands pass through it.
    pub operands: Vec<Passage>,
}

/// How an operand passes through the space.
#[derive(Debug)]
pub(super) struct Passage {
    /// The element of the first row.
    pub offset: isize,
    /// Elements apart along each outer dim.
    pub outer: SmallVec<[isize; FEW]>,
    /// Elements apart in a row.
    pub last: isize,
    /// True if rows are one after the other, so that any number of them is one slice: rows of elements, or rows of one.
    pub in_order: bool,
}

impl Geometry {
    pub(super) fn new(program: &Program, operands: &[Operand<'_>]) -> Result<Self, RegionError> {
        let stride = |index: usize, dim| program.stride(index, &operands[index], dim);
        // Each with its size and, where it is several in one, the innermost of them, whose strides it has.
        let mut dims: SmallVec<[(usize, usize); FEW]> = SmallVec::new();
        let keeps_last = program.has_rows || program.needs_rows;
        for (dim, &size) in program.space.iter().enumerate() {
            let is_own = keeps_last && dim + 1 == program.space.len();
            if size == 1 && !is_own {
                continue;
            }
            let is_even = |outer| {
                let is_even = |index| stride(index, outer) == stride(index, dim) * size as isize;
                (0..operands.len()).all(is_even)
            };
            match dims.last_mut() {
                Some((before, outer)) if !is_own && is_even(*outer) => {
                    (*before, *outer) = (*before * size, dim);
                }
                _ => dims.push((size, dim)),
            }
        }
        let last = dims.pop();
        let len = last.map_or(1, |(size, _)| size);
        let outer: SmallVec<[usize; FEW]> = dims.iter().map(|(size, _)| *size).collect();
        let rows = outer.iter().product();
        let passages = operands.iter().enumerate().map(|(index, operand)| {
            let extent = program.values[index].extent;
            let of_row = if extent == Extent::Element { len } else { 1 };
            let mut expected = of_row as isize;
            let last = last.map_or(0, |(_, dim)| stride(index, dim));
            let mut in_order = of_row == 1 || last == 1;
            for (size, dim) in dims.iter().rev() {
                in_order &= stride(index, *dim) == expected;
                expected *= *size as isize;
            }
            Passage {
                offset: operand.offset as isize,
                outer: dims.iter().map(|(_, dim)| stride(index, *dim)).collect(),
                last,
                in_order,
            }
        });
        let geometry = Self {
            operands: passages.collect(),
            outer,
            rows,
            len,
        };
        geometry.check(program, operands)?;
        Ok(geometry)
    }

    /// Checks that every element lies inside.
    fn check(&self, program: &Program, operands: &[Operand<'_>]) -> Result<(), RegionError> {
        for (index, (passage, operand)) in self.operands.iter().zip(operands).enumerate() {
            let value = &program.values[index];
            let (mut least, mut most) = (passage.offset, passage.offset);
            let last = (self.len, passage.last);
            let outer = self
                .outer
                .iter()
                .copied()
                .zip(passage.outer.iter().copied());
            if self.rows == 0 || (self.len == 0 && value.extent == Extent::Element) {
                continue;
            }
            for (size, stride) in outer.chain([last]) {
                let reach = stride.saturating_mul(size.max(1) as isize - 1);
                least = least.saturating_add(reach.min(0));
                most = most.saturating_add(reach.max(0));
            }
            let size = value.kind.stored_size();
            let bytes = operand.memory.bytes();
            if least < 0 || (most as usize + 1).saturating_mul(size) > bytes.len() {
                return Err(RegionError::Memory {
                    what: format!(
                        "operand {index} has elements {least} to {most} of {size} bytes in {} bytes",
                        bytes.len()
                    ),
                });
            }
            if !bytes.as_ptr().addr().is_multiple_of(size) {
                return Err(RegionError::Memory {
                    what: format!("operand {index} of {size} bytes an element lies unaligned"),
                });
            }
        }
        Ok(())
    }
}

impl Passage {
    /// Calls with the place of each of some rows, in order.
    pub(super) fn each_row(
        &self,
        outer: &[usize],
        first: usize,
        rows: usize,
        mut f: impl FnMut(usize, isize),
    ) {
        // The index of the first row.
        let mut index = [0usize; 16];
        let mut many = Vec::new();
        let index: &mut [usize] = match outer.len() <= index.len() {
            true => &mut index[..outer.len()],
            false => {
                many.resize(outer.len(), 0);
                &mut many
            }
        };
        let mut rest = first;
        let mut at = self.offset;
        for dim in (0..outer.len()).rev() {
            index[dim] = rest % outer[dim];
            rest /= outer[dim];
            at += index[dim] as isize * self.outer[dim];
        }
        for row in 0..rows {
            f(row, at);
            for dim in (0..outer.len()).rev() {
                index[dim] += 1;
                at += self.outer[dim];
                if index[dim] < outer[dim] {
                    break;
                }
                index[dim] = 0;
                at -= self.outer[dim] * outer[dim] as isize;
            }
        }
    }
}
