//! A language of a few operations, for tests of the planner: short to write down, quick to run.
//!
//! [`Builder`] writes windows, [`interpret`] runs a window on one device and its plan on all ranks of a mesh.

mod builder;
mod interpret;

use std::ops::Range;

pub(crate) use builder::{Builder, options};
pub(crate) use interpret::{planned, whole};

use crate::mesh::{DType, ReduceOp};
use crate::op::{
    Adjoint, FloatClass, Indexed, Layer, LocalView, Mark, NewTensor, Op, Side, Tensor, TensorIndex,
    Traits, Wire, Work,
};
use crate::rule::{Name, OpRule, RuleBuilder, Shapes, dims, dims_but};
use crate::storage::{Operand, Place, Storage, Strided};

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum Kind {
    Add,
    Sub,
    Mul,
    Exp,
    /// `[.., m, k] x [.., k, n]`.
    Matmul,
    /// Swaps the last two dims.
    Transpose,
    /// Adds up the elements along a dim, which stays with size 1.
    SumDim(usize),
    Reshape,
    /// Stretches dims of size 1.
    Expand,
    /// The elements of a range along a dim.
    Slice(usize, Range<usize>),
    /// `x w`, and the gradients of both: of `(w, g)`, and of `(x, g)`.
    Linear,
    LinearX,
    LinearW,
    Cast,
    Random,
    /// The same number everywhere.
    Full(i64),
    Mark(Mark),
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Toy {
    pub kind: Kind,
    pub inputs: Vec<Value>,
    pub out: Value,
}

/// A tensor of an operation.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Value {
    pub id: TensorIndex,
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub last_use: bool,
}

impl From<NewTensor> for Value {
    fn from(tensor: NewTensor) -> Self {
        Self {
            id: tensor.id,
            shape: tensor.shape,
            dtype: tensor.dtype,
            last_use: false,
        }
    }
}

impl Value {
    fn tensor(&self) -> Tensor<'_> {
        Tensor {
            id: self.id,
            shape: &self.shape,
            dtype: self.dtype,
            last_use: self.last_use,
        }
    }
}

impl Toy {
    fn new(kind: Kind, inputs: impl IntoIterator<Item = NewTensor>, out: NewTensor) -> Self {
        Self {
            kind,
            inputs: inputs.into_iter().map(Value::from).collect(),
            out: out.into(),
        }
    }
}

impl Op for Toy {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Add => "add",
            Kind::Sub => "sub",
            Kind::Mul => "mul",
            Kind::Exp => "exp",
            Kind::Matmul => "matmul",
            Kind::Transpose => "transpose",
            Kind::SumDim(_) => "sum_dim",
            Kind::Linear => "linear",
            Kind::LinearX => "linear_x",
            Kind::LinearW => "linear_w",
            Kind::Reshape => "reshape",
            Kind::Expand => "expand",
            Kind::Slice(..) => "slice",
            Kind::Cast => "cast",
            Kind::Random => "random",
            Kind::Full(_) => "full",
            Kind::Mark(_) => "mark",
        }
    }

    fn family(&self) -> &'static str {
        "toy"
    }

    fn kind(&self) -> u16 {
        self.name().len() as u16
    }

    fn inputs(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.inputs.iter().map(Value::tensor)
    }

    fn outputs(&self) -> impl Iterator<Item = Tensor<'_>> {
        std::iter::once(self.out.tensor())
    }

    fn rewire(&mut self, mut edit: impl FnMut(Side, &mut Wire)) {
        let sides = self.inputs.iter_mut().map(|input| (Side::Input, input));
        for (side, value) in sides.chain([(Side::Output, &mut self.out)]) {
            let mut wire = Wire {
                id: value.id,
                dtype: value.dtype,
                last_use: value.last_use,
            };
            edit(side, &mut wire);
            (value.id, value.dtype, value.last_use) = (wire.id, wire.dtype, wire.last_use);
        }
    }

    fn compute_in(&mut self, _: DType) {}

    fn rule(&self) -> OpRule {
        let shapes = Shapes {
            inputs: self.inputs.iter().map(|input| &input.shape[..]).collect(),
            outputs: vec![&self.out.shape],
        };
        let ndim = self.out.shape.len();
        let elementwise = || RuleBuilder::uniform(&shapes, "...").elementwise();
        match &self.kind {
            Kind::Add | Kind::Sub => elementwise().joint_linear(&[0, 1]).build(),
            Kind::Mul => elementwise().linear().build(),
            Kind::Exp | Kind::Cast => elementwise().build(),
            Kind::Matmul => RuleBuilder::notation(&shapes, "... i k, ... k j -> ... i j")
                .broadcast()
                .contract(ReduceOp::Sum)
                .linear()
                .build(),
            Kind::Linear => RuleBuilder::notation(&shapes, "... i, i o -> ... o")
                .contract(ReduceOp::Sum)
                .linear()
                .build(),
            Kind::LinearX => RuleBuilder::notation(&shapes, "i o, ... o -> ... i")
                .contract(ReduceOp::Sum)
                .build(),
            Kind::LinearW => RuleBuilder::notation(&shapes, "... i, ... o -> i o")
                .contract(ReduceOp::Sum)
                .build(),
            Kind::Transpose => RuleBuilder::notation(&shapes, "... i j -> ... j i")
                .moves()
                .build(),
            Kind::SumDim(dim) => {
                let out = dims_but(ndim, *dim, Name::Whole);
                RuleBuilder::named(&shapes, vec![dims(ndim)], vec![out])
                    .contract(ReduceOp::Sum)
                    .linear()
                    .build()
            }
            Kind::Reshape => OpRule::Reshape,
            Kind::Expand => RuleBuilder::notation(&shapes, "... -> ...")
                .broadcast()
                .moves()
                .build(),
            Kind::Slice(dim, _) => {
                let names = dims_but(ndim, *dim, Name::Whole);
                RuleBuilder::named(&shapes, vec![names.clone()], vec![names])
                    .moves()
                    .build()
            }
            Kind::Random | Kind::Full(_) => OpRule::Create,
            Kind::Mark(_) => OpRule::Replicated("a mark"),
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            is_cast: self.kind == Kind::Cast,
            is_random: self.kind == Kind::Random,
            is_view: matches!(self.kind, Kind::Reshape | Kind::Transpose | Kind::Slice(..)),
            is_difference: self.kind == Kind::Sub,
            makes_ones: self.kind == Kind::Full(1),
            makes_weight_gradient: self.kind == Kind::LinearW,
            layer: (self.kind == Kind::Linear).then_some(Layer::Linear),
            adjoint: match self.kind {
                Kind::Linear => Some(Adjoint::Forward { x: 0, weight: 1 }),
                Kind::LinearX => Some(Adjoint::Input {
                    weight: 0,
                    gradient: 1,
                }),
                Kind::LinearW => Some(Adjoint::Weight { x: 0, gradient: 1 }),
                _ => None,
            },
            float_class: match self.kind {
                Kind::Matmul | Kind::Linear | Kind::LinearX | Kind::LinearW => FloatClass::Compute,
                Kind::Transpose | Kind::Reshape | Kind::Expand | Kind::Slice(..) => {
                    FloatClass::Move
                }
                Kind::Add | Kind::Sub | Kind::Mul => FloatClass::Follow,
                Kind::Exp | Kind::SumDim(_) => FloatClass::Single,
                Kind::Random | Kind::Full(_) => FloatClass::Create,
                Kind::Cast | Kind::Mark(_) => FloatClass::Recorded,
            },
            work: match self.kind {
                Kind::Matmul => Work::Product,
                Kind::Linear => Work::Layer,
                _ => Work::Other,
            },
            ..Traits::default()
        }
    }

    fn mark(&self) -> Option<&Mark> {
        match &self.kind {
            Kind::Mark(mark) => Some(mark),
            _ => None,
        }
    }

    fn lower(&self, view: &LocalView<'_>, _: &mut dyn FnMut() -> TensorIndex, out: &mut Vec<Self>) {
        let mut local = self.clone();
        for (index, input) in local.inputs.iter_mut().enumerate() {
            input.shape = view.input_shape(index);
        }
        local.out.shape = view.output_shape(0);
        match view.has_no_terms() || local.out.shape.contains(&0) {
            true => out.push(Self::zeros(NewTensor::from(local.out.tensor()))),
            false => out.push(local),
        }
    }

    fn indexed(&self, _: &LocalView<'_>) -> Option<Indexed> {
        None
    }

    fn product_flops(&self) -> Option<f64> {
        let is_product = matches!(
            self.kind,
            Kind::Matmul | Kind::Linear | Kind::LinearX | Kind::LinearW
        );
        let terms = match self.kind {
            Kind::LinearW => self.inputs[0].shape.iter().rev().skip(1).product(),
            _ => *self.inputs.first()?.shape.last()?,
        };
        let elements: usize = self.out.shape.iter().product();
        is_product.then_some((2 * terms * elements) as f64)
    }

    fn place(&self, _: Storage, inputs: &[Operand<'_>]) -> Place {
        let new = Place::New(Strided::contiguous(&self.out.shape));
        match (&self.kind, inputs.first()) {
            (Kind::Reshape, Some(input)) if input.at.is_plain() => {
                Place::Shares(0, Strided::contiguous(&self.out.shape))
            }
            (Kind::Transpose, Some(input)) => {
                let mut order: Vec<usize> = (0..self.out.shape.len()).collect();
                order.rotate_left(1);
                Place::Shares(0, input.at.permuted(order.into_iter()))
            }
            (Kind::Slice(dim, range), Some(input)) => {
                Place::Shares(0, input.at.sliced(*dim, range.start, 1, range.len()))
            }
            (Kind::Exp, Some(input)) if input.alone && input.at.is_plain() => {
                Place::Shares(0, input.at.clone())
            }
            _ => new,
        }
    }

    fn zeros(out: NewTensor) -> Self {
        Self::new(Kind::Full(0), [], out)
    }

    fn identity(op: ReduceOp, out: NewTensor) -> Self {
        Self::new(Kind::Full((op == ReduceOp::Prod).into()), [], out)
    }

    fn reshape(input: NewTensor, out: NewTensor) -> Self {
        Self::new(Kind::Reshape, [input], out)
    }

    fn slice(input: NewTensor, dim: usize, range: Range<usize>, out: NewTensor) -> Self {
        Self::new(Kind::Slice(dim, range), [input], out)
    }

    fn cast(input: NewTensor, out: NewTensor) -> Self {
        Self::new(Kind::Cast, [input], out)
    }
}
