//! The operations of a recorded program, as the planner knows them.
//!
//! The planner is generic over [`Op`]: it reads operands, asks for rules, emits local operations, and names none of
//! them. A front end implements the trait once for what it records.

use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use crate::float8::Float8Op;
use crate::layout::Layout;
use crate::mesh::{DType, ReduceOp};
use crate::param::ParamSpec;
use crate::rule::OpRule;
use crate::storage::{Operand, Place, Storage};

mod local;
mod steps;

pub use local::{Indexed, LocalView};
pub(crate) use steps::Emitted;
pub use steps::{Launched, Shift, Steps};

/// Number of a value in a window, of a slot in a plan.
pub type TensorIndex = u32;

/// A tensor that an operation reads or makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Number of the value or slot.
    pub id: TensorIndex,
    /// Shape, as the operation has it: global in a window, local in a plan.
    pub shape: &'a [usize],
    /// Element type.
    pub dtype: DType,
    /// Whether nothing uses it afterwards: the operation may overwrite it.
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
    /// Whether nothing uses it afterwards.
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

impl From<Tensor<'_>> for NewTensor {
    fn from(tensor: Tensor<'_>) -> Self {
        Self {
            id: tensor.id,
            shape: tensor.shape.to_vec(),
            dtype: tensor.dtype,
        }
    }
}

/// How an operation uses indices into the first of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Reads there.
    Read,
    /// Writes there.
    Write,
}

/// A layer whose module may ask for the layouts of its input and its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// `y = x W`: the weight is input 1, and the layout of input 0 may be asked for too.
    Linear,
    /// Rows of a table: the weight is input 0.
    Lookup,
}

/// What an operation is to the layers of a model, as far as it tells whose gradient is whose. The numbers are those of
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjoint {
    /// A layer that is linear in `weight`, applied to `x`.
    Forward {
        /// What it is applied to.
        x: usize,
        /// What it is linear in.
        weight: usize,
    },
    /// The gradient of a layer's input.
    Input {
        /// What the layer is linear in.
        weight: usize,
        /// The gradient of the layer's result.
        gradient: usize,
    },
    /// The gradient of a layer's weight.
    Weight {
        /// What the layer is applied to.
        x: usize,
        /// The gradient of the layer's result.
        gradient: usize,
    },
    /// The gradient of a weight that is an operand, if only for its shape.
    Named {
        /// That operand.
        weight: usize,
    },
    /// A read of a table at indices.
    Read {
        /// The table.
        table: usize,
        /// The indices.
        indices: usize,
    },
    /// A sum at indices: the gradient of such a read.
    Written {
        /// The indices.
        indices: usize,
    },
}

/// What an operation costs a model, when it is told whether to make its result again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A linear layer, a convolution or attention in one operation.
    Layer,
    /// A product of two matrices.
    Product,
    /// Anything else.
    Other,
}

/// How an operation picks its float type in mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatClass {
    /// Products: in 16 bits if any operand is.
    Compute,
    /// Moves elements: in the type of what it moves; a parameter moves in the type of its unit.
    Move,
    /// Combines elements: in 16 bits if all operands are.
    Follow,
    /// Loses too much in 16 bits: in f32.
    Single,
    /// Makes values from nothing, which take the type of their use.
    Create,
    /// As recorded.
    Recorded,
}

/// What is known of an operation beyond its rule, named once by whoever defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// The dim of the first input that it reads or writes at indices, if every index is along that one dim.
    pub indexing: Option<(Indexing, usize)>,
    /// The dim along which it joins its inputs.
    pub joins: Option<usize>,
    /// The layer that it is.
    pub layer: Option<Layer>,
    /// What tells whose gradient is whose.
    pub adjoint: Option<Adjoint>,
    /// Whether it makes ones: if it makes one element, a backward begins there.
    pub makes_ones: bool,
    /// Whether it makes the gradient of what a layer is linear in: its weight or its bias.
    pub makes_weight_gradient: bool,
    /// Whether it is the same values in another type.
    pub is_cast: bool,
    /// Whether it is such a cast to 8 bits, with a scale.
    pub quantizes: bool,
    /// Whether it finds out what a cast of its input needs to know: that is no use of a parameter by its unit.
    pub measures: bool,
    /// The input that is in f32 whatever type it computes in: what another operation found out over many elements.
    pub statistic_input: Option<usize>,
    /// The output that is in f32 whatever type it computes in.
    pub statistic_output: Option<usize>,
    /// Whether its steps may shift blocks between ranks.
    pub shifts: bool,
    /// Whether it draws random numbers.
    pub is_random: bool,
    /// Whether its result looks at the memory of its first input.
    pub is_view: bool,
    /// Whether it writes the second input over a part of the first.
    pub assigns: bool,
    /// Whether its result is a maximum over a dim: what it is taken from is about to be exponentiated.
    pub is_maximum: bool,
    /// Whether it takes its second input from its first.
    pub is_difference: bool,
    /// See [`FloatClass`].
    pub float_class: FloatClass,
    /// See [`Work`].
    pub work: Work,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            indexing: None,
            joins: None,
            layer: None,
            adjoint: None,
            makes_ones: false,
            makes_weight_gradient: false,
            is_cast: false,
            quantizes: false,
            measures: false,
            statistic_input: None,
            statistic_output: None,
            shifts: false,
            is_random: false,
            is_view: false,
            assigns: false,
            is_maximum: false,
            is_difference: false,
            float_class: FloatClass::Recorded,
            work: Work::Other,
        }
    }
}

/// What a program says of a value without computing anything: one input, one output of its shape and type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The value is a parameter: it rests where the spec says, and the planner honours the spec wherever it is used.
    Param(Arc<ParamSpec>),
    /// The value in another layout; its gradient comes back in the layout it came from.
    Redistribute(Arc<Layout>),
}

/// One operation of the recorded language.
///
/// Equality is structural, and equal operations hash alike: plans are kept by it.
pub trait Op: Clone + Debug + PartialEq + Hash + Send + Sync + 'static {
    /// Returns its name, for people.
    fn name(&self) -> &'static str;

    /// Returns the name of the family it belongs to, for people.
    fn family(&self) -> &'static str;

    /// Returns a number of its kind: processes tell each other what they run by it.
    fn kind(&self) -> u16;

    /// Returns the tensors that it reads, in order.
    fn inputs(&self) -> impl Iterator<Item = Tensor<'_>>;

    /// Returns the tensors that it makes, in order.
    fn outputs(&self) -> impl Iterator<Item = Tensor<'_>>;

    /// Lets `edit` change its operands: inputs first, then outputs, each in order.
    fn rewire(&mut self, edit: impl FnMut(Side, &mut Wire));

    /// Lets `edit` change the slots of its scalars, in order.
    fn rebind(&mut self, edit: impl FnMut(&mut u64));

    /// Says that it computes in `dtype`, for operations that carry a type besides those of their operands.
    fn compute_in(&mut self, dtype: DType);

    /// Returns its rule: what may be split, what becomes partial. [`Op::mark`] comes first.
    fn rule(&self) -> OpRule;

    /// Returns what is known of it besides.
    fn traits(&self) -> Traits;

    /// Returns what it says of a value, if it computes nothing.
    fn mark(&self) -> Option<&Mark>;

    /// Adds the steps of one rank.
    ///
    /// # Shapes
    /// Inputs and outputs have the local shapes of their layouts.
    ///
    /// # Communication
    /// The [shifts](Steps::launch) that it adds, if its traits say that it [may](Traits::shifts); all ranks of a group
    /// add the same. The layouts of inputs and outputs are those that the rule gives for the assignment, partial
    /// results included.
    fn lower(&self, view: &LocalView<'_>, steps: &mut Steps<Self>);

    /// Returns what it reads or writes at indices globally, for messages.
    fn indexed(&self, view: &LocalView<'_>) -> Option<Indexed>;

    /// Returns the flops of a product (of matrices, a convolution, attention) with the shapes that it has; `None` of
    /// any other operation.
    fn product_flops(&self) -> Option<f64>;

    /// Returns how many of the flops of a product make again what an operation before it has made: work of the
    /// hardware, and none that the model asks for.
    fn remade_flops(&self) -> f64 {
        0.0
    }

    /// Returns whether it is a product whose operands are in 8 bits, however the backend stores them.
    fn multiplies_float8(&self) -> bool;

    /// Returns where the backend puts its first result; further ones are in buffers of their own.
    fn place(&self, backend: Storage, inputs: &[Operand<'_>]) -> Place;

    /// Makes zeros.
    fn zeros(out: NewTensor) -> Self;

    /// Makes the identity of a sum or a product. That of a float sum is -0.0: `-0.0 + 0.0` is `0.0`, and a value must
    /// keep its sign.
    fn identity(op: ReduceOp, out: NewTensor) -> Self;

    /// Makes the same elements in another shape.
    fn reshape(input: NewTensor, out: NewTensor) -> Self;

    /// Makes the elements in `range` along `dim`.
    fn slice(input: NewTensor, dim: usize, range: Range<usize>, out: NewTensor) -> Self;

    /// Makes the elements of all inputs, one behind the other along `dim`.
    fn concatenate(inputs: Vec<NewTensor>, dim: usize, out: NewTensor) -> Self;

    /// Makes the sums of the elements of two tensors.
    fn add(left: NewTensor, right: NewTensor, out: NewTensor) -> Self;

    /// Makes the same values in the type of `out`.
    fn cast(input: NewTensor, out: NewTensor) -> Self;

    /// Makes an operation of float8 training.
    fn float8(op: Float8Op, inputs: Vec<NewTensor>, outputs: Vec<NewTensor>) -> Self;
}
