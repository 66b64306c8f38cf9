//! The operations of a recorded program, as the planner knows them.
//!
//! The planner is generic over [`Op`]: it reads operands, asks for rules, emits local operations, and names none of
//! them. A front end implements the trait once for what it records.

use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use super::float8::{Float8Op, Product};
use super::param::ParamSpec;
use super::region::Pointwise;
use crate::layout::Layout;
use crate::mesh::{DType, ReduceOp};
use crate::rule::OpRule;
use crate::storage::{Operand, Place, Storage};

mod local;
mod steps;

pub use super::tensor::{NewTensor, Side, Tensor, TensorIndex, Wire};
pub use super::traits::{Adjoint, FloatClass, Indexing, Layer, Traits, Work};
pub use local::{Indexed, LocalView};
pub(crate) use steps::Emitted;
pub use steps::{Launched, Shift, Steps};

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

    /// Returns what it computes, as a formula over its operands with the shapes that they have; `None` if its elements
    /// cannot be computed one by one, or row by row.
    fn pointwise(&self) -> Option<Pointwise> {
        None
    }

    /// Returns whether it is a product whose operands are in 8 bits, however the backend stores them.
    fn multiplies_float8(&self) -> bool;

    /// Returns where the backend puts a result.
    fn place(&self, backend: Storage, result: usize, inputs: &[Operand<'_>]) -> Place;

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

    /// Makes a product of a linear layer, of its two operands as [`Product`] names them; `None` if the language records
    /// every layer as that. On the tensors of one rank it has the bits of what is recorded in its place: the product of
    /// two matrices, one of them turned perhaps, and the sum over all dims before the last two of a weight's gradient.
    fn layer(product: Product, operands: [NewTensor; 2], out: NewTensor) -> Option<Self>;

    /// Makes an operation of float8 training.
    fn float8(op: Float8Op, inputs: Vec<NewTensor>, outputs: Vec<NewTensor>) -> Self;
}
