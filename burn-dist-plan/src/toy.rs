//! A language of a few operations, for tests of the planner: short to write down, quick to run.
//!
//! [`Builder`] writes windows, [`interpret`] runs a window on one device and its plan on all ranks of a mesh. Long, as
//! an implementation of [`Op`] is: a match over the same operations for each of its functions.

mod builder;
mod field;
mod interpret;
mod join;
mod pointwise;
mod ring;

pub(crate) use ring::Astray;

use std::cell::Cell;
use std::ops::Range;

pub(crate) use builder::{Builder, nodes_of, options};
pub(crate) use interpret::{planned, whole};

use crate::ir::op::{Traits, Wire};
use crate::ir::region::{Binary, Pointwise, Unary};
use crate::ir::{
    Adjoint, Float8Op, FloatClass, Indexed, Indexing, Layer, LocalView, Mark, NewTensor, Op,
    Product, Side, Steps, Tensor, TensorIndex, Work,
};
use crate::mesh::{DType, ReduceOp};
use crate::rule::{FactorKind, Lowering, Name, OpRule, RuleBuilder, Shapes, dims, dims_but};
use crate::storage::{Operand, Place, Storage, Strided};

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) enum Kind {
    Add,
    Sub,
    Mul,
    Exp,
    /// Multiplies with the scalar of a slot, which is its number and two.
    Scale(u64),
    /// Multiplies with itself so many times, each of them an instruction.
    Power(u32),
    /// `[.., m, k] x [.., k, n]`.
    Matmul,
    /// Swaps the last two dims.
    Transpose,
    /// Adds up the elements along a dim, which stays with size 1.
    SumDim(usize),
    /// Adds up all elements; every dim stays with size 1.
    Sum,
    Reshape,
    /// Stretches dims of size 1.
    Expand,
    /// The elements of a range along a dim.
    Slice(usize, Range<usize>),
    /// `x w`, and the gradients of both: of `(w, g)`, and of `(x, g)`.
    Linear,
    LinearX,
    LinearW,
    /// The rows of a table at indices, which count modulo `size`; zeros for those outside of `rows`, the ones that the
    /// operand holds.
    Lookup {
        size: usize,
        rows: Range<usize>,
    },
    /// A table with rows added to it at indices, as above; without `base`, they are added to zeros.
    SumAt {
        size: usize,
        rows: Range<usize>,
        base: bool,
    },
    /// Rows with a value added to an element of each: `(x, index, value)`, where indices count modulo the length of rows.
    AddAt,
    /// One behind the other along a dim: each rank puts together what falls into its part.
    Concat(usize),
    Cast,
    /// `x` of `(like, x)`, of one shape: that is all that is read of `like`.
    Like,
    /// Of float8 training, in the field: see `interpret`.
    Float8(Float8Op),
    /// `x (y^T y)` of `(x, y)`, `[q, e]` and `[k, e]`: every row of `x` meets every row of `y`, in blocks that go
    /// round.
    Meet,
    /// `y (x^T x)` of the same, where the sums go round too.
    MeetBack,
    /// A copy of `(x, y)`'s first, whose ranks shift what they should not.
    Astray(Astray),
    Random,
    /// A function of one element, or of two, as the interpreter has it.
    Unary(Unary),
    Binary(Binary),
    /// The largest element along a dim, which stays with size 1.
    MaxDim(usize),
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
    /// The same once more, of an operation with two results.
    pub also: Option<Value>,
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
    pub(crate) fn tensor(&self) -> Tensor<'_> {
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
            also: None,
        }
    }

    fn made(&self) -> impl Iterator<Item = &Value> {
        std::iter::once(&self.out).chain(&self.also)
    }

    fn shapes(&self) -> Shapes<'_> {
        Shapes {
            inputs: self.inputs.iter().map(|input| &input.shape[..]).collect(),
            outputs: self.made().map(|out| &out.shape[..]).collect(),
        }
    }
}

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

fn look() {
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

/// Returns how often this thread has looked at an operand or a result of an operation so far.
pub(crate) fn looks() -> u64 {
    LOOKS.with(Cell::get)
}

impl Op for Toy {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Add => "add",
            Kind::Sub => "sub",
            Kind::Mul => "mul",
            Kind::Exp => "exp",
            Kind::Scale(_) => "scale",
            Kind::Power(_) => "power",
            Kind::Matmul => "matmul",
            Kind::Transpose => "transpose",
            Kind::SumDim(_) => "sum_dim",
            Kind::Sum => "sum",
            Kind::Linear => "linear",
            Kind::LinearX => "linear_x",
            Kind::LinearW => "linear_w",
            Kind::Reshape => "reshape",
            Kind::Expand => "expand",
            Kind::Slice(..) => "slice",
            Kind::Lookup { .. } => "lookup",
            Kind::SumAt { .. } => "sum_at",
            Kind::AddAt => "add_at",
            Kind::Concat(_) => "concat",
            Kind::Cast => "cast",
            Kind::Like => "like",
            Kind::Float8(op) => op.name(),
            Kind::Meet => "meet",
            Kind::MeetBack => "meet_back",
            Kind::Astray(_) => "astray",
            Kind::Random => "random",
            Kind::Unary(_) => "unary",
            Kind::Binary(_) => "binary",
            Kind::MaxDim(_) => "max_dim",
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
        self.inputs.iter().map(Value::tensor).inspect(|_| look())
    }

    fn outputs(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.made().map(Value::tensor).inspect(|_| look())
    }

    fn rewire(&mut self, mut edit: impl FnMut(Side, &mut Wire)) {
        let sides = self.inputs.iter_mut().map(|input| (Side::Input, input));
        let made = std::iter::once(&mut self.out).chain(&mut self.also);
        for (side, value) in sides.chain(made.map(|out| (Side::Output, out))) {
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
        let shapes = self.shapes();
        let ndim = self.out.shape.len();
        let elementwise = || RuleBuilder::uniform(&shapes, "...").elementwise();
        match &self.kind {
            Kind::Add | Kind::Sub => elementwise().joint_linear(&[0, 1]).build(),
            Kind::Mul | Kind::Scale(_) => elementwise().linear().build(),
            Kind::Exp | Kind::Cast | Kind::Power(_) | Kind::Unary(_) | Kind::Binary(_) => {
                elementwise().build()
            }
            Kind::Like => elementwise().shape_only(0).build(),
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
            Kind::MaxDim(dim) => {
                let out = dims_but(ndim, *dim, Name::Whole);
                RuleBuilder::named(&shapes, vec![dims(ndim)], vec![out])
                    .contract(ReduceOp::Max)
                    .build()
            }
            Kind::Sum => {
                RuleBuilder::named(&shapes, vec![dims(ndim)], vec![vec![Name::Whole; ndim]])
                    .contract(ReduceOp::Sum)
                    .linear()
                    .build()
            }
            Kind::Reshape => OpRule::Reshape,
            Kind::Expand => RuleBuilder::notation(&shapes, "... -> ...")
                .broadcast()
                .moves()
                .build(),
            Kind::Concat(dim) => {
                let names = dims_but(ndim, *dim, Name::Whole);
                let all: Vec<usize> = (0..self.inputs.len()).collect();
                RuleBuilder::named(&shapes, vec![names; all.len()], vec![dims(ndim)])
                    .joint_linear(&all)
                    .lowering(Lowering::Special)
                    .build()
            }
            Kind::Slice(dim, _) => {
                let names = dims_but(ndim, *dim, Name::Whole);
                RuleBuilder::named(&shapes, vec![names.clone()], vec![names])
                    .moves()
                    .build()
            }
            Kind::Lookup { .. } => RuleBuilder::notation(&shapes, "v d, n -> n d")
                .kind('v', FactorKind::Index)
                .linear()
                .lowering(Lowering::Special)
                .build(),
            Kind::SumAt { .. } => RuleBuilder::notation(&shapes, "v d, n, n d -> v d")
                .kind('v', FactorKind::Index)
                .kind('n', FactorKind::Reduce(ReduceOp::Sum))
                .joint_linear(&[0, 2])
                .lowering(Lowering::Special)
                .build(),
            Kind::AddAt => RuleBuilder::notation(&shapes, "... -, ... -, ... - -> ... -")
                .joint_linear(&[0, 2])
                .build(),
            Kind::Float8(op) => op.rule(&shapes),
            Kind::Meet | Kind::Astray(_) => RuleBuilder::notation(&shapes, "q -, k - -> q -")
                .along('k', 'q')
                .build(),
            Kind::MeetBack => RuleBuilder::notation(&shapes, "q -, k - -> k -")
                .kind('q', FactorKind::Reduce(ReduceOp::Sum))
                .along('k', 'q')
                .build(),
            Kind::Random | Kind::Full(_) => OpRule::Create,
            Kind::Mark(_) => OpRule::Replicated("a mark"),
        }
    }

    fn traits(&self) -> Traits {
        if let Kind::Float8(op) = &self.kind {
            return op.traits();
        }
        Traits {
            is_cast: self.kind == Kind::Cast,
            shifts: matches!(self.kind, Kind::Meet | Kind::MeetBack | Kind::Astray(_)),
            is_random: self.kind == Kind::Random,
            is_view: matches!(self.kind, Kind::Reshape | Kind::Transpose | Kind::Slice(..)),
            turns: self.kind == Kind::Transpose,
            adds_up: matches!(self.kind, Kind::SumDim(_) | Kind::Sum),
            is_maximum: matches!(self.kind, Kind::MaxDim(_)),
            is_difference: matches!(self.kind, Kind::Sub | Kind::Binary(Binary::Sub)),
            makes_ones: self.kind == Kind::Full(1),
            makes_weight_gradient: self.kind == Kind::LinearW,
            indexing: match self.kind {
                Kind::Lookup { .. } => Some((Indexing::Read, 0)),
                Kind::SumAt { .. } => Some((Indexing::Write, 0)),
                _ => None,
            },
            joins: match self.kind {
                Kind::Concat(dim) => Some(dim),
                _ => None,
            },
            layer: match self.kind {
                Kind::Linear => Some(Layer::Linear),
                Kind::Lookup { .. } => Some(Layer::Lookup),
                _ => None,
            },
            adjoint: match self.kind {
                Kind::Linear => Some(Adjoint::Forward { x: 0, weight: 1 }),
                Kind::LinearX => Some(Adjoint::Input {
                    weight: 0,
                    gradient: 1,
                }),
                Kind::LinearW => Some(Adjoint::Weight { x: 0, gradient: 1 }),
                Kind::Lookup { .. } => Some(Adjoint::Read {
                    table: 0,
                    indices: 1,
                }),
                Kind::SumAt { .. } => Some(Adjoint::Written { indices: 1 }),
                _ => None,
            },
            float_class: match self.kind {
                Kind::Matmul | Kind::Linear | Kind::LinearX | Kind::LinearW => FloatClass::Compute,
                Kind::Transpose
                | Kind::Reshape
                | Kind::Expand
                | Kind::Slice(..)
                | Kind::Concat(_) => FloatClass::Move,
                Kind::Add | Kind::Sub | Kind::Mul | Kind::Scale(_) => FloatClass::Follow,
                Kind::Exp
                | Kind::Power(_)
                | Kind::Unary(_)
                | Kind::Binary(_)
                | Kind::MaxDim(_)
                | Kind::SumDim(_)
                | Kind::Sum => FloatClass::Single,
                Kind::Random | Kind::Full(_) => FloatClass::Create,
                Kind::Cast
                | Kind::Like
                | Kind::Float8(_)
                | Kind::Mark(_)
                | Kind::Meet
                | Kind::MeetBack
                | Kind::Astray(_)
                | Kind::Lookup { .. }
                | Kind::AddAt
                | Kind::SumAt { .. } => FloatClass::Recorded,
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

    fn lower(&self, view: &LocalView<'_>, steps: &mut Steps<Self>) {
        if let (Kind::Meet | Kind::MeetBack | Kind::Astray(_), OpRule::Factors(rule)) =
            (&self.kind, view.rule)
            && let Some(split) = view.split(&rule.inputs[1].dims, 0)
        {
            return ring::lower(self, view, &split.axes().collect::<Vec<_>>(), steps);
        }
        if let (Kind::Concat(dim), OpRule::Factors(rule)) = (&self.kind, view.rule)
            && let Some(split) = view.split(&rule.outputs[0].dims, *dim)
        {
            return join::lower(self, view, (*dim, split), steps);
        }
        let mut local = self.clone();
        for (index, input) in local.inputs.iter_mut().enumerate() {
            input.shape = view.input_shape(index);
        }
        local.out.shape = view.output_shape(0);
        if let Some(also) = &mut local.also {
            also.shape = view.output_shape(1);
        }
        if let (Kind::Lookup { rows, .. } | Kind::SumAt { rows, .. }, OpRule::Factors(rule)) =
            (&mut local.kind, view.rule)
            && let Some(split) = view.split(&rule.inputs[0].dims, 0)
        {
            *rows = view.range(split);
        }
        if let Kind::SumAt { base, .. } = &mut local.kind {
            *base = view.holds_first_terms();
        }
        match view.has_no_terms() || local.out.shape.contains(&0) {
            true => {
                for out in local.made() {
                    steps.push(Self::zeros(NewTensor::from(out.tensor())));
                }
            }
            false => {
                if let (Kind::Like, [like, _]) = (&local.kind, &mut local.inputs[..]) {
                    // It is nowhere.
                    like.id = steps.temp();
                    steps.push(Self::zeros(NewTensor::from(like.tensor())));
                }
                steps.push(local);
            }
        }
    }

    fn indexed(&self, _: &LocalView<'_>) -> Option<Indexed> {
        None
    }

    fn pointwise(&self) -> Option<Pointwise> {
        pointwise::pointwise(self)
    }

    fn multiplies_float8(&self) -> bool {
        matches!(&self.kind, Kind::Float8(op) if op.is_product())
    }

    fn product_flops(&self) -> Option<f64> {
        if let Kind::Float8(op) = &self.kind {
            return op.product_flops(&self.shapes());
        }
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

    fn place(&self, _: Storage, result: usize, inputs: &[Operand<'_>]) -> Place {
        let out = self.made().nth(result).unwrap_or(&self.out);
        let new = Place::New(Strided::contiguous(&out.shape));
        match (&self.kind, inputs.first()) {
            _ if result > 0 => new,
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

    fn concatenate(inputs: Vec<NewTensor>, dim: usize, out: NewTensor) -> Self {
        Self::new(Kind::Concat(dim), inputs, out)
    }

    fn add(left: NewTensor, right: NewTensor, out: NewTensor) -> Self {
        Self::new(Kind::Add, [left, right], out)
    }

    fn cast(input: NewTensor, out: NewTensor) -> Self {
        Self::new(Kind::Cast, [input], out)
    }

    fn layer(product: Product, operands: [NewTensor; 2], out: NewTensor) -> Option<Self> {
        let kind = match product {
            Product::Forward => Kind::Linear,
            Product::Input => Kind::LinearX,
            Product::Weight => Kind::LinearW,
        };
        Some(Self::new(kind, operands, out))
    }

    fn float8(op: Float8Op, inputs: Vec<NewTensor>, outputs: Vec<NewTensor>) -> Self {
        let mut outputs = outputs.into_iter();
        let out = outputs.next().expect("an operation has a result");
        Self {
            also: outputs.next().map(Value::from),
            ..Self::new(Kind::Float8(op), inputs, out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::oracle::{self, Case, Values};
    use interpret::{Array, run};

    fn value(id: TensorIndex, shape: &[usize]) -> Value {
        Value {
            id,
            shape: shape.to_vec(),
            dtype: DType::F32,
            last_use: false,
        }
    }

    fn toy(kind: Kind, inputs: &[&[usize]], out: &[usize]) -> Toy {
        let inputs = inputs.iter().enumerate();
        Toy {
            kind,
            inputs: inputs
                .map(|(id, shape)| value(id as TensorIndex, shape))
                .collect(),
            out: value(100, out),
            also: None,
        }
    }

    /// Checks one operation on small numbers, which no modulus wraps.
    fn check(op: &Toy) -> Result<usize, oracle::Mismatch> {
        let array = |index: usize, value: &Value| Array {
            data: (0..value.shape.iter().product())
                .map(|at: usize| ((at * 7 + index * 3) % 5) as u64)
                .collect(),
            shape: value.shape.clone(),
        };
        let inputs = op.inputs.iter().enumerate();
        let inputs: Vec<Array> = inputs.map(|(index, input)| array(index, input)).collect();
        let describe = |array: &Array| Values {
            shape: array.shape.clone(),
            dtype: DType::F32,
            values: array.to_f64(),
        };
        let case = Case {
            op: op.name().into(),
            rule: op.rule(),
            inputs: inputs.iter().map(describe).collect(),
            outputs: vec![describe(&run(op, &inputs, &mut 0))],
            tolerance: 1e-9,
        };
        oracle::check(&case, |view, blocks| {
            let mut steps = Steps::new(1000);
            op.lower(view, &mut steps);
            // Terms are fractions, and may be negative: the field has both.
            let blocks: Vec<Array> = blocks
                .into_iter()
                .map(|block| block.expect("all are read"))
                .map(|block| Array::of_f64(&block.values, &block.shape))
                .collect();
            let [op] = steps.ops().collect::<Vec<_>>()[..] else {
                panic!("one operation, not {steps:?}")
            };
            let inputs = &blocks[..op.inputs.len()];
            vec![run(op, inputs, &mut 0).to_f64()]
        })
    }

    #[test]
    fn every_split_gives_what_one_device_gives() {
        let square: &[usize] = &[6, 6];
        for op in [
            toy(Kind::Add, &[square, square], square),
            toy(Kind::Sub, &[square, square], square),
            toy(Kind::Mul, &[square, square], square),
            toy(Kind::Exp, &[square], square),
            toy(Kind::Scale(3), &[square], square),
            toy(Kind::Matmul, &[&[4, 6], &[6, 8]], &[4, 8]),
            toy(Kind::Linear, &[&[2, 4, 6], &[6, 8]], &[2, 4, 8]),
            toy(Kind::LinearX, &[&[6, 8], &[2, 4, 8]], &[2, 4, 6]),
            toy(Kind::LinearW, &[&[2, 4, 6], &[2, 4, 8]], &[6, 8]),
            toy(Kind::Transpose, &[&[4, 6]], &[6, 4]),
            toy(Kind::SumDim(1), &[&[4, 6]], &[4, 1]),
            toy(Kind::Unary(Unary::Sqrt), &[square], square),
            toy(Kind::Binary(Binary::Div), &[square, square], square),
            toy(Kind::MaxDim(1), &[&[4, 6]], &[4, 1]),
            toy(Kind::Reshape, &[&[4, 6]], &[24]),
            toy(Kind::Expand, &[&[4, 1]], &[4, 6]),
            toy(Kind::Slice(1, 2..5), &[&[4, 6]], &[4, 3]),
            toy(Kind::Cast, &[square], square),
            toy(
                Kind::Lookup {
                    size: 6,
                    rows: 0..6,
                },
                &[&[6, 4], &[5]],
                &[5, 4],
            ),
            toy(
                Kind::SumAt {
                    size: 6,
                    rows: 0..6,
                    base: true,
                },
                &[&[6, 4], &[5], &[5, 4]],
                &[6, 4],
            ),
            toy(Kind::AddAt, &[&[6, 4], &[6, 1], &[6, 1]], &[6, 4]),
        ] {
            let checked = check(&op).unwrap_or_else(|error| panic!("{error}"));
            assert!(checked > 10, "{op:?}: {checked}");
        }
    }

    /// A rule that contradicts what its operation does is found, with the split and the element.
    #[test]
    fn a_wrong_rule_is_found() {
        // It says that the slice lies along dim 0, and takes it along dim 1.
        let op = toy(Kind::Slice(1, 0..6), &[&[6, 8]], &[6, 6]);
        let mut case = Case {
            op: "slice".into(),
            rule: toy(Kind::Slice(0, 0..6), &[&[6, 8]], &[6, 8]).rule(),
            inputs: vec![Values {
                shape: vec![6, 8],
                dtype: DType::F32,
                values: (0..48).map(f64::from).collect(),
            }],
            outputs: Vec::new(),
            tolerance: 0.0,
        };
        let whole = Array::of_f64(&case.inputs[0].values, &[6, 8]);
        case.outputs.push(Values {
            shape: vec![6, 6],
            dtype: DType::F32,
            values: run(&op, &[whole], &mut 0).to_f64(),
        });
        let error = oracle::check(&case, |_, blocks| {
            let block = blocks.into_iter().next().flatten().expect("one input");
            vec![block.values]
        });
        let error = error.expect_err("it is wrong");
        let text = error.to_string();
        assert!(text.starts_with("slice split as ["), "{text}");
        let oracle::Mismatch::Element {
            element, expected, ..
        } = error
        else {
            panic!("{text}")
        };
        let [row, column] = element[..] else {
            panic!("a place in a matrix: {text}")
        };
        assert_eq!(expected, case.outputs[0].values[6 * row + column], "{text}");
    }
}
