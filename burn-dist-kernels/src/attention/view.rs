//! Arrays that lie in memory in any order.

/// An array of `N` dims: elements of a slice, that many apart along each dim. A stride of zero repeats.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T, const N: usize> {
    data: &'a [T],
    shape: [usize; N],
    strides: [usize; N],
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

    /// Returns an element.
    pub(super) fn at(&self, row: usize, column: usize) -> &T {
        &self.data[row * self.row_stride + column * self.column_stride]
    }
}
