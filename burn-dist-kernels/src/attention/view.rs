//! Arrays that lie in memory in any order.

use burn_dist_plan::storage::Strided;

/// An array of `N` dims: elements of a slice, that many apart along each dim. A stride of zero repeats.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T, const N: usize> {
    data: &'a [T],
    shape: [usize; N],
    strides: [usize; N],
}

/// A result: elements of its last dim lie next to each other, its other dims in any order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T, const N: usize> {
    /// The elements, as they lie in memory.
    pub data: Vec<T>,
    /// Its sizes.
    pub shape: [usize; N],
    /// Elements apart along each dim.
    pub strides: [usize; N],
}

/// A result that several threads write, each its own rows.
pub(super) struct Unwritten<T, const N: usize> {
    data: Vec<T>,
    start: *mut T,
    shape: [usize; N],
    strides: [usize; N],
}

// SAFETY: threads write to what `start` points at by [`Unwritten::write`] alone, whose callers have rows of their own.
unsafe impl<T: Send, const N: usize> Sync for Unwritten<T, N> {}

impl<T: Copy, const N: usize> Unwritten<T, N> {
    /// Makes room for a result whose dims lie in the order of those of another tensor ([`Strided::in_order_of`]).
    pub(super) fn new(shape: [usize; N], strides: [usize; N]) -> Self {
        let other = Strided {
            shape: shape.to_vec(),
            strides: strides.map(|stride| stride as isize).to_vec(),
            offset: 0,
        };
        let at = Strided::in_order_of(&shape, &other);
        let mut strides = [0; N];
        for (stride, of) in strides.iter_mut().zip(at.strides) {
            *stride = of as usize;
        }
        let mut data = Vec::with_capacity(shape.iter().product());
        Self {
            start: data.as_mut_ptr(),
            data,
            shape,
            strides,
        }
    }

    /// Writes rows, the first of which is number `first`, of the matrix at an index of the first dims.
    ///
    /// # Panics
    /// If they are not rows of the result.
    ///
    /// # Safety
    /// No other thread writes these rows.
    pub(super) unsafe fn write(&self, index: &[usize], first: usize, rows: &[T]) {
        let [num_rows, width] = [self.shape[N - 2], self.shape[N - 1]];
        if width == 0 {
            return;
        }
        let mut inside = index.iter().zip(self.shape).all(|(at, size)| *at < size);
        inside &= index.len() + 2 == N && rows.len().is_multiple_of(width);
        assert!(
            inside && first + rows.len() / width <= num_rows,
            "rows of a result"
        );
        let steps = index.iter().zip(self.strides);
        let matrix: usize = steps.map(|(at, stride)| at * stride).sum();
        for (row, from) in (first..).zip(rows.chunks_exact(width)) {
            let to = matrix + row * self.strides[N - 2];
            // SAFETY: strides are those of an array that `data` has room for, and the index is inside: so is the row, of
            // which elements lie next to each other. Nobody else writes it.
            unsafe {
                let to = self.start.add(to);
                to.copy_from_nonoverlapping(from.as_ptr(), width);
            }
        }
    }

    /// Returns the result.
    ///
    /// # Safety
    /// All rows are written.
    pub(super) unsafe fn written(mut self) -> Array<T, N> {
        // SAFETY: as the caller says; `data` has room for as many.
        unsafe { self.data.set_len(self.shape.iter().product()) };
        Array {
            data: self.data,
            shape: self.shape,
            strides: self.strides,
        }
    }
}

impl<T, const N: usize> Array<T, N> {
    /// Views it.
    pub fn view(&self) -> View<'_, T, N> {
        View::new(&self.data, self.shape, self.strides)
    }
}

/// A matrix out of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a, T> {
    pub data: &'a [T],
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

/// How many elements from the first to the last, both included.
fn extent(shape: &[usize], strides: &[usize]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    let last = shape
        .iter()
        .zip(strides)
        .map(|(size, stride)| (size - 1) * stride);
    last.sum::<usize>() + 1
}

impl<'a, T, const N: usize> View<'a, T, N> {
    /// Views a slice.
    ///
    /// # Panics
    /// If an element lies outside.
    pub fn new(data: &'a [T], shape: [usize; N], strides: [usize; N]) -> Self {
        let extent = extent(&shape, &strides);
        assert!(
            extent <= data.len(),
            "{shape:?} with strides {strides:?} takes {extent} elements of {}",
            data.len()
        );
        Self {
            data,
            shape,
            strides,
        }
    }

    /// Views elements in order.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn contiguous(data: &'a [T], shape: [usize; N]) -> Self {
        let mut strides = [1; N];
        for dim in (1..N).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        Self::new(data, shape, strides)
    }

    /// Returns its sizes.
    pub fn shape(&self) -> [usize; N] {
        self.shape
    }

    /// Returns how many elements apart elements are along each dim.
    pub fn strides(&self) -> [usize; N] {
        self.strides
    }

    /// Returns the matrix of the last two dims at an index of the others.
    pub(super) fn matrix(&self, index: &[usize]) -> Matrix<'a, T> {
        assert_eq!(index.len() + 2, N);
        let [rows, columns] = [self.shape[N - 2], self.shape[N - 1]];
        let [row_stride, column_stride] = [self.strides[N - 2], self.strides[N - 1]];
        let offset: usize = index
            .iter()
            .zip(self.strides)
            .map(|(at, stride)| at * stride)
            .sum();
        let data = match rows * columns {
            0 => &[],
            _ => &self.data[offset..],
        };
        Matrix {
            data,
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }
}

impl<'a, T> Matrix<'a, T> {
    /// Views rows one after the other.
    pub(super) fn of(data: &'a [T], rows: usize, columns: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    pub(super) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    pub(super) fn rows(self, range: std::ops::Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows);
        let data = match range.is_empty() || self.columns == 0 {
            true => &[],
            false => &self.data[range.start * self.row_stride..],
        };
        Self {
            data,
            rows: range.len(),
            ..self
        }
    }

    /// Returns whether the last element lies inside.
    pub(super) fn fits(&self) -> bool {
        extent(
            &[self.rows, self.columns],
            &[self.row_stride, self.column_stride],
        ) <= self.data.len()
    }

    /// Returns a row whose elements lie next to each other.
    pub(super) fn row(&self, row: usize) -> &'a [T] {
        assert!(
            self.column_stride == 1 || self.columns < 2,
            "a row lies in order"
        );
        match self.columns {
            0 => &[],
            columns => &self.data[row * self.row_stride..][..columns],
        }
    }

    /// Returns a row, in scratch memory if its elements do not lie next to each other.
    pub(super) fn row_in<'r>(&self, row: usize, scratch: &'r mut Vec<T>) -> &'r [T]
    where
        T: Copy,
        'a: 'r,
    {
        if self.column_stride == 1 {
            return self.row(row);
        }
        scratch.clear();
        scratch.extend((0..self.columns).map(|column| *self.at(row, column)));
        scratch
    }

    /// Returns an element.
    pub(super) fn at(&self, row: usize, column: usize) -> &T {
        &self.data[row * self.row_stride + column * self.column_stride]
    }
}
