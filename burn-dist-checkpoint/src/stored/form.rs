//! How a tensor of a file holds a parameter.

use std::fmt;
use std::ops::Range;

/// Rows and columns of this many are turned at once, so that they stay in the processor's cache.
const TILE: usize = 32;

/// How a tensor holds what a parameter holds.
///
/// ```
/// use burn_dist_checkpoint::hf::Form;
/// let form = Form::Rotary { head_dim: 6 };
/// assert_eq!(form.to_string(), "rotary(6)");
/// // `a0 b0 a1 b1 a2 b2` is stored as `a0 a1 a2 b0 b1 b2`.
/// assert_eq!([0, 1, 2, 3, 4, 5].map(|column| form.row(column)), [0, 3, 1, 4, 2, 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Alike.
    Same,
    /// `[output, input]`, where Burn's linear layer has `[input, output]`.
    Transposed,
    /// Transposed, and within each head the first elements of all pairs stand before the second ones. A vector (a
    /// bias) has its elements in that order.
    Rotary {
        /// Elements of a head: an even number.
        head_dim: usize,
    },
    /// Matrices side by side, `[number, input, output]`, each transposed in a tensor of its own. `*` in the name of the
    /// tensors stands for the number of each.
    Stacked,
}

impl Form {
    /// Returns the shape of the tensor that holds a parameter of this shape; of stacked ones, that of each.
    pub fn stored_shape(self, shape: &[usize]) -> Vec<usize> {
        match self {
            Self::Same => shape.to_vec(),
            Self::Transposed | Self::Rotary { .. } => shape.iter().rev().copied().collect(),
            Self::Stacked => shape.iter().skip(1).rev().copied().collect(),
        }
    }

    /// Returns the tensors that hold a parameter of this shape: the name, form and shape of what each holds. It is one
    /// but for [`Form::Stacked`].
    pub fn members(self, name: &str, shape: &[usize]) -> Vec<(String, Form, Vec<usize>)> {
        match (self, shape) {
            (Self::Stacked, [num, matrix @ ..]) => {
                let member = |number: usize| {
                    let name = name.replacen('*', &number.to_string(), 1);
                    (name, Self::Transposed, matrix.to_vec())
                };
                (0..*num).map(member).collect()
            }
            _ => vec![(name.to_string(), self, shape.to_vec())],
        }
    }

    /// Returns the row of the tensor that holds this output of the parameter.
    pub fn row(self, column: usize) -> usize {
        match self {
            Self::Same | Self::Transposed | Self::Stacked => column,
            Self::Rotary { head_dim } => {
                let (head, within) = (column / head_dim, column % head_dim);
                head * head_dim + within % 2 * (head_dim / 2) + within / 2
            }
        }
    }

    /// Returns whether a parameter of this shape can have the form: any can be held alike, the others are for matrices
    /// and vectors, of whole heads if they are rotary, or of several matrices if they are stacked.
    pub fn fits(self, shape: &[usize]) -> bool {
        match (self, shape) {
            (Self::Same, _) | (Self::Transposed, [_] | [_, _]) | (Self::Stacked, [_, _, _]) => true,
            (Self::Rotary { head_dim }, [outputs] | [_, outputs]) => {
                head_dim > 0 && head_dim.is_multiple_of(2) && outputs.is_multiple_of(head_dim)
            }
            _ => false,
        }
    }

    /// Returns inputs and outputs of a parameter that is not held alike.
    pub(crate) fn matrix(self, shape: &[usize]) -> Option<(usize, usize)> {
        match (self, shape) {
            (Self::Transposed, &[inputs, outputs]) => Some((inputs, outputs)),
            (Self::Rotary { .. }, &[outputs]) => Some((1, outputs)),
            (Self::Rotary { .. }, &[inputs, outputs]) => Some((inputs, outputs)),
            _ => None,
        }
    }

    /// Returns of how many outputs a block has a multiple that can be [packed](Form::pack) by itself.
    pub(crate) fn step(self) -> usize {
        match self {
            Self::Same | Self::Transposed | Self::Stacked => 1,
            Self::Rotary { head_dim } => head_dim,
        }
    }

    /// Turns some outputs of a parameter into rows of a tensor. `parameter` is `[inputs, outputs]` of elements of
    /// `size` bytes, and `columns` are whole [steps](Form::step) of its outputs.
    pub(crate) fn pack(
        self,
        (inputs, outputs): (usize, usize),
        columns: Range<usize>,
        size: usize,
        parameter: &[u8],
        rows: &mut [u8],
    ) {
        let pack = match size {
            1 => Self::pack_elements::<1>,
            2 => Self::pack_elements::<2>,
            4 => Self::pack_elements::<4>,
            _ => Self::pack_elements::<8>,
        };
        pack(self, (inputs, outputs), columns, parameter, rows);
    }

    fn pack_elements<const N: usize>(
        self,
        (inputs, outputs): (usize, usize),
        columns: Range<usize>,
        parameter: &[u8],
        rows: &mut [u8],
    ) {
        let (from, _) = parameter.as_chunks::<N>();
        let (to, _) = rows.as_chunks_mut::<N>();
        for input in (0..inputs).step_by(TILE) {
            for tile in columns.clone().step_by(TILE) {
                for output in tile..columns.end.min(tile + TILE) {
                    let row = (self.row(output) - columns.start) * inputs;
                    for input in input..inputs.min(input + TILE) {
                        to[row + input] = from[input * outputs + output];
                    }
                }
            }
        }
    }
}

/// Text form: `same`, `transposed`, `rotary(64)`, `stacked`.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::Transposed => f.write_str("transposed"),
            Self::Rotary { head_dim } => write!(f, "rotary({head_dim})"),
            Self::Stacked => f.write_str("stacked"),
        }
    }
}
