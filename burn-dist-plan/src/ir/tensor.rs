//! Tensors of operations.

use crate::mesh::DType;

/// Number of a value in a window, of a slot in a plan.
pub type TensorIndex = u32;

/// Number of a local tensor of a plan.
pub type Slot = TensorIndex;

/// A tensor that an operation reads or makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Number of the value or slot.
    pub id: TensorIndex,
    /// Shape, as the operation has it: global in a window, local in a plan.
    pub shape: &'a [usize],
    /// Element type.
    pub dtype: DType,
    /// True if nothing uses it afterwards: the operation may overwrite it.
    pub last_use: bool,
}

impl Tensor<'_> {
    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What the planner may change of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// Number of the value or slot.
    pub id: TensorIndex,
    /// Element type.
    pub dtype: DType,
    /// True if nothing uses it afterwards.
    pub last_use: bool,
}

/// Which side of an operation an operand is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It is read.
    Input,
    /// It is made.
    Output,
}

/// A tensor that the planner makes an operation for.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTensor {
    /// Number of the slot.
    pub id: TensorIndex,
    /// Local shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

impl NewTensor {
    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

impl From<Tensor<'_>> for NewTensor {
    fn from(tensor: Tensor<'_>) -> Self {
        Self {
            id: tensor.id,
            shape: tensor.shape.to_vec(),
            dtype: tensor.dtype,
        }
    }
}
