//! Which memory the result of an operation takes, as the inner backend sees it: another look at an operand's, an
//! operand's that it overwrites, or its own.
//!
//! A tensor is a shared buffer with strides and an offset; a kernel may overwrite an operand that nobody else holds.
//! Which operation does what, [`Op::place`](crate::ir::Op::place) says. Backends whose buffers cannot be seen follow
//! [`Storage::Opaque`]: views share, everything else is new.

/// How the inner backend stores tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// Shared buffers with strides, overwritten where nobody else looks: Flex.
    #[default]
    Buffers,
    /// Reshaped, permuted, expanded and sliced tensors share; everything else is new.
    Opaque,
}

/// How a tensor lies in its buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strided {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Elements from one place to the next, per dim.
    pub strides: Vec<isize>,
    /// Elements before the first.
    pub offset: usize,
}

impl Strided {
    /// Returns how a tensor lies that is alone in its buffer, in order.
    pub fn contiguous(shape: &[usize]) -> Self {
        let mut strides = vec![1isize; shape.len()];
        for dim in (0..shape.len().saturating_sub(1)).rev() {
            strides[dim] = strides[dim + 1] * shape[dim + 1] as isize;
        }
        Self {
            shape: shape.to_vec(),
            strides,
            offset: 0,
        }
    }

    /// Returns how a tensor lies that is alone in its buffer, with its dims in the order of those of `other`: the one with
    /// the largest stride first. The last dim comes last all the same, so that its elements lie next to each other.
    ///
    /// ```
    /// # use burn_dist_plan::storage::Strided;
    /// // Heads of queries between each other, as a linear layer makes them.
    /// let queries = Strided::contiguous(&[2, 64, 8, 32]).permuted([0, 2, 1, 3].into_iter());
    /// let values = Strided::in_order_of(&[2, 8, 64, 16], &queries);
    /// assert_eq!(values, Strided::contiguous(&[2, 64, 8, 16]).permuted([0, 2, 1, 3].into_iter()));
    /// ```
    pub fn in_order_of(shape: &[usize], other: &Self) -> Self {
        let mut order = other.order();
        order.retain(|dim| dim + 1 != shape.len());
        order.extend(shape.len().checked_sub(1));
        let mut strides = vec![1; shape.len()];
        let mut apart = 1;
        for dim in order.into_iter().rev() {
            strides[dim] = apart as isize;
            apart *= shape[dim];
        }
        Self {
            shape: shape.to_vec(),
            strides,
            offset: 0,
        }
    }

    /// Returns its dims, the one with the largest stride first. Of equal strides, in an order in which elements follow
    /// each other, a dim of size one is the inner one.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        let stride = |dim: usize| std::cmp::Reverse(self.strides[dim].unsigned_abs());
        order.sort_by_key(|dim| (stride(*dim), self.shape[*dim] == 1));
        order
    }

    /// Returns whether its elements follow each other in order.
    pub fn is_contiguous(&self) -> bool {
        self.strides == Self::contiguous(&self.shape).strides
    }

    /// Returns whether it lies in order from the start of its buffer.
    pub fn is_plain(&self) -> bool {
        self.offset == 0 && self.is_contiguous()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the view with its dims in another order.
    pub fn permuted(&self, axes: impl Iterator<Item = usize> + Clone) -> Self {
        Self {
            shape: axes.clone().map(|axis| self.shape[axis]).collect(),
            strides: axes.map(|axis| self.strides[axis]).collect(),
            offset: self.offset,
        }
    }

    /// Returns the view stretched to `shape`.
    pub fn expanded(&self, shape: &[usize]) -> Self {
        let new = shape.len().saturating_sub(self.shape.len());
        let stride = |dim: usize| match dim.checked_sub(new) {
            Some(old) if self.shape[old] == shape[dim] => self.strides[old],
            _ => 0,
        };
        Self {
            shape: shape.to_vec(),
            strides: (0..shape.len()).map(stride).collect(),
            offset: self.offset,
        }
    }

    /// Returns the view that runs backwards along `axes`.
    pub fn flipped(&self, axes: &[usize]) -> Self {
        let mut out = self.clone();
        for &axis in axes.iter().filter(|axis| self.shape[**axis] > 1) {
            out.offset = out
                .offset
                .wrapping_add_signed((self.shape[axis] as isize - 1) * self.strides[axis]);
            out.strides[axis] = -self.strides[axis];
        }
        out
    }

    /// Returns the view of every `step`-th element along `dim` from `start` on, `size` of them.
    pub fn sliced(&self, dim: usize, start: usize, step: usize, size: usize) -> Self {
        let mut out = self.clone();
        out.shape[dim] = size;
        out.offset = out
            .offset
            .wrapping_add_signed(start as isize * self.strides[dim]);
        out.strides[dim] = self.strides[dim] * step as isize;
        out
    }
}

/// An operand, as the rules look at it.
pub struct Operand<'a> {
    /// How it lies in its buffer.
    pub at: &'a Strided,
    /// Elements of its whole buffer.
    pub buffer: usize,
    /// True if this operation is the last that uses the buffer, and nobody else may hold it.
    pub alone: bool,
}

/// Where a result is.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In the buffer of that input.
    Shares(usize, Strided),
    /// In a buffer of its own.
    New(Strided),
}

#[cfg(test)]
mod tests {
    use super::Strided;

    /// So a result goes back to the order of what it was made of without a copy.
    #[test]
    fn what_lies_as_a_permuted_tensor_is_in_order_where_that_was() {
        let back = [0, 3, 1, 2, 4];
        for sizes in 0..32 {
            let size = |dim: usize| [1, 3][sizes >> dim & 1];
            let stored: Vec<usize> = (0..5).map(size).collect();
            let seen = Strided::contiguous(&stored).permuted([0, 2, 3, 1, 4].into_iter());
            let made = Strided::in_order_of(&seen.shape, &seen);
            assert!(made.permuted(back.into_iter()).is_contiguous(), "{made:?}");
        }
    }
}
