//! A product: what a call says of it, and how it is computed.

use crate::number::Number;
use software_meeting::{Check, How, Memory, NotThere};
use std::ffi::c_void;

/// A matrix by columns, which lie `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) number: Number,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) stride: usize,
}

impl Layout {
    /// Bytes from its first element to its last.
    fn bytes(&self) -> usize {
        match self.rows * self.columns {
            0 => 0,
            _ => (self.stride * (self.columns - 1) + self.rows) * self.number.bytes(),
        }
    }

    fn is_whole(&self) -> bool {
        self.stride >= self.rows
    }
}

/// What a description says: pointers are 0 if it does not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Description {
    pub(crate) turns_first: bool,
    pub(crate) turns_second: bool,
    pub(crate) adds_bias: bool,
    pub(crate) bias: u64,
    /// Factors of the operands.
    pub(crate) scales: [u64; 2],
}

/// A product that is put on a stream: `to = alpha * first * second + bias`.
pub(crate) struct Product {
    pub(crate) of: Description,
    pub(crate) alpha: f32,
    pub(crate) first: (u64, Layout),
    pub(crate) second: (u64, Layout),
    pub(crate) to: (u64, Layout),
}

/// Whether there is such a product: sizes that fit, and elements that NVIDIA's library multiplies.
pub(crate) fn is_one(of: &Description, first: &Layout, second: &Layout, to: &Layout) -> bool {
    let small = |of: &Layout| of.number.bytes() == 1;
    let sizes = |of: &Layout, turns: bool| match turns {
        true => (of.columns, of.rows),
        false => (of.rows, of.columns),
    };
    let (m, k) = sizes(first, of.turns_first);
    let (other_k, n) = sizes(second, of.turns_second);
    // In 8 bits, the first is turned and the second is not, one of both is in e4m3, and sizes are multiples of 16.
    let is_small = small(first) || small(second);
    let fits_small = small(first)
        && small(second)
        && of.turns_first
        && !of.turns_second
        && [first.number, second.number] != [Number::E5m2; 2]
        && [m, n, k].iter().all(|size| size.is_multiple_of(16));
    let is_alike = first.number == second.number && !small(first);
    let has_bias = !of.adds_bias || (of.bias != 0 && to.number != Number::F32);
    (m, n, k) == (to.rows, to.columns, other_k)
        && [first, second, to].iter().all(|of| of.is_whole())
        && !small(to)
        && (if is_small { fits_small } else { is_alike })
        && has_bias
}

/// What the driver calls when the stream has come to a product.
///
/// # Safety
/// The first pointer is to a [`Product`], and the last is the check's.
pub(crate) unsafe extern "C" fn run(
    product: *const c_void,
    check: Check,
    context: *const c_void,
) -> u32 {
    // SAFETY: the caller's promise.
    let product = unsafe { &*product.cast::<Product>() };
    product.compute(&Memory { check, context }).is_err().into()
}

impl Product {
    /// Computes it, by sums in f64, one after the other.
    fn compute(&self, memory: &Memory) -> Result<(), NotThere> {
        let Product {
            of,
            first,
            second,
            to,
            ..
        } = self;
        let scale = |at: u64| match at {
            0 => Ok(1.0),
            at => memory
                .get(at, 4, How::Read)
                .map(|bytes| Number::F32.get(&bytes, 0)),
        };
        let factor = f64::from(self.alpha)
            * f64::from(scale(of.scales[0])?)
            * f64::from(scale(of.scales[1])?);
        let a = memory.get(first.0, first.1.bytes(), How::Read)?;
        let b = memory.get(second.0, second.1.bytes(), How::Read)?;
        let Layout {
            rows: m,
            columns: n,
            number,
            stride,
        } = to.1;
        let bias = match of.adds_bias {
            true => memory.get(of.bias, m * number.bytes(), How::Read)?,
            false => Vec::new(),
        };
        let at = |layout: &Layout, turns: bool, row: usize, column: usize| match turns {
            true => row * layout.stride + column,
            false => column * layout.stride + row,
        };
        let k = if of.turns_first {
            first.1.rows
        } else {
            first.1.columns
        };
        for column in 0..n {
            let mut made = Vec::with_capacity(m * number.bytes());
            for row in 0..m {
                let term = |k| {
                    let x = first.1.number.get(&a, at(&first.1, of.turns_first, row, k));
                    let y = second
                        .1
                        .number
                        .get(&b, at(&second.1, of.turns_second, k, column));
                    f64::from(x) * f64::from(y)
                };
                let mut sum = factor * (0..k).map(term).sum::<f64>();
                if of.adds_bias {
                    sum += f64::from(number.get(&bias, row));
                }
                number.put(&mut made, sum as f32).ok_or(NotThere)?;
            }
            memory.write(to.0 + (column * stride * number.bytes()) as u64, &made)?;
        }
        Ok(())
    }
}
