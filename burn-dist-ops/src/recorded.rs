//! One recorded operation, as the planner sees it.

use std::ops::Range;

use burn_backend::Distribution;
use burn_dist_plan::PlanError;
use burn_dist_plan::float8::{Float8Op, Product};
use burn_dist_plan::op::{
    FloatClass, Indexed, LocalView, Mark, NewTensor, Op, Side, Steps, Tensor, TensorIndex, Traits,
    Wire,
};
use burn_dist_plan::region::Pointwise;
use burn_dist_plan::rule::{OpRule, Shapes};
use burn_dist_plan::storage::{Operand, Place, Storage, Strided};
use burn_ir::{
    BackendIr, BaseOperationIr, BinaryOpIr, CastOpIr, CatOpIr, CreationOpIr, FullOpIr, LinearOpIr,
    LinearWeightBackwardOpIr, LinearXBackwardOpIr, ModuleOperationIr, NumericOperationIr,
    OperationIr, ScalarIr, ShapeOpIr, SliceOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::Slice;
use smallvec::SmallVec;

use super::custom::Custom;
use super::dtype::{of_burn, to_burn};
use super::emit::base;
use super::family::prelude::{Context, Env, ExecuteError, Operation, Run};
use super::family::{Family, Packing};
use super::float8::Float8;
use super::int8::Int8;
use super::kinds::Kind;
use super::table::family_of;
use super::visit::{
    CUSTOM_NUMBER, FLOAT8_NUMBER, INT8_NUMBER, MARK_NUMBER, OpReader, OpVisitor, UNKNOWN, Walk,
    family_name, kind_name, kind_number, visit_mut,
};
use super::{index, lower, rules};
use crate::burn::{RECORDS_LAYERS, carried};
use burn_dist_mesh::{DType, ReduceOp};

/// A recorded operation.
#[derive(Clone, Debug, PartialEq, Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are Burn's: a box each would cost an allocation per operation"
)]
pub enum Recorded {
    /// One of Burn's.
    Burn(OperationIr),
    /// A mark on a value.
    Mark(Box<Marked>),
    /// One of another crate.
    Custom(Box<Custom>),
    /// One that the planner puts in the place of a linear layer's; no program records it.
    Float8(Box<Float8>),
    /// One on a matrix that rests in 8 bits.
    Int8(Box<Int8>),
}

/// A mark of the program on a value; the output is the value from then on.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Marked {
    /// The mark.
    pub mark: Mark,
    /// The value.
    pub input: TensorIr,
    /// The value from then on.
    pub out: TensorIr,
}

impl From<OperationIr> for Recorded {
    #[inline]
    fn from(op: OperationIr) -> Self {
        Self::Burn(op)
    }
}

impl Walk for Recorded {
    #[inline]
    fn walk_mut<V: OpVisitor>(&mut self, visitor: &mut V) {
        match self {
            Self::Burn(op) => op.walk_mut(visitor),
            Self::Mark(marked) => {
                visitor.input(&mut marked.input);
                visitor.output(&mut marked.out);
            }
            Self::Custom(op) => {
                op.inputs.iter_mut().for_each(|input| visitor.input(input));
                op.outputs.iter_mut().for_each(|out| visitor.output(out));
            }
            Self::Float8(op) => {
                op.inputs.iter_mut().for_each(|input| visitor.input(input));
                op.outputs.iter_mut().for_each(|out| visitor.output(out));
            }
            Self::Int8(op) => {
                visitor.input(&mut op.input);
                visitor.output(&mut op.out);
            }
        }
    }

    #[inline]
    fn walk_ref<'a, R: OpReader<'a>>(&'a self, reader: &mut R) {
        match self {
            Self::Burn(op) => op.walk_ref(reader),
            Self::Mark(marked) => {
                reader.input(&marked.input);
                reader.output(&marked.out);
            }
            Self::Custom(op) => {
                op.inputs.iter().for_each(|input| reader.input(input));
                op.outputs.iter().for_each(|out| reader.output(out));
            }
            Self::Float8(op) => {
                op.inputs.iter().for_each(|input| reader.input(input));
                op.outputs.iter().for_each(|out| reader.output(out));
            }
            Self::Int8(op) => {
                reader.input(&op.input);
                reader.output(&op.out);
            }
        }
    }

    #[inline]
    fn kind(&self) -> &'static str {
        match self {
            Self::Burn(op) => op.kind(),
            Self::Mark(_) => "mark",
            Self::Custom(op) => op.definition.id(),
            Self::Float8(op) => op.op.name(),
            Self::Int8(op) => op.op.name(),
        }
    }
}

impl Recorded {
    /// Returns the operation of Burn's that it is.
    pub fn burn(&self) -> Option<&OperationIr> {
        match self {
            Self::Burn(op) => Some(op),
            Self::Mark(_) | Self::Custom(_) | Self::Float8(_) | Self::Int8(_) => None,
        }
    }

    /// Returns the family that it belongs to, and the kind of its tensors.
    #[inline]
    pub(super) fn family_of(&self) -> (Kind, Family<'_>) {
        match self {
            Self::Burn(op) => family_of(op),
            Self::Mark(op) => (Kind::Float, Family::Mark(op)),
            Self::Custom(op) => (Kind::Float, Family::Custom(op)),
            Self::Float8(op) => (Kind::Float, Family::Float8(op)),
            Self::Int8(op) => (Kind::Float, Family::Packing(Packing::Int8(op))),
        }
    }

    /// Returns whether its result looks at the memory of its first input.
    pub fn is_view(&self) -> bool {
        self.family_of().1.operation().is_view()
    }

    /// Returns whether its results are never in the buffers of its operands.
    pub fn takes_new_memory(&self) -> bool {
        self.family_of().1.operation().makes()
    }

    /// Returns what a random operation draws.
    pub fn distribution(&self) -> Option<Distribution> {
        match self.family_of().1 {
            Family::Create(op) => op.distribution(),
            _ => None,
        }
    }

    fn shapes(&self) -> Shapes<'_> {
        rules::shapes(self.reads(), self.makes())
    }

    /// Returns the tensors that it reads, in Burn's terms.
    #[inline]
    pub fn reads(&self) -> impl Iterator<Item = &TensorIr> {
        let mut ends = Ends::default();
        self.walk_ref(&mut ends);
        ends.reads.into_iter()
    }

    /// Returns the tensors that it makes, in Burn's terms.
    #[inline]
    pub fn makes(&self) -> impl Iterator<Item = &TensorIr> {
        let mut ends = Ends::default();
        self.walk_ref(&mut ends);
        ends.makes.into_iter()
    }
}

/// The tensors of an operation. Burn's own iterators are boxed, and planning asks often.
#[derive(Default)]
struct Ends<'a> {
    reads: SmallVec<[&'a TensorIr; 8]>,
    makes: SmallVec<[&'a TensorIr; 4]>,
}

impl<'a> OpReader<'a> for Ends<'a> {
    #[inline]
    fn input(&mut self, tensor: &'a TensorIr) {
        self.reads.push(tensor);
    }

    #[inline]
    fn output(&mut self, tensor: &'a TensorIr) {
        self.makes.push(tensor);
    }
}

/// Checks that `ops` are known: of the families that burn-ir has without features, and no custom ones of others.
///
/// # Errors
/// [`PlanError::UnknownOperation`] or [`PlanError::UnknownCustom`] for the first one that is not.
pub fn check_known(ops: &[Recorded]) -> Result<(), PlanError> {
    for op in ops {
        match op {
            Recorded::Burn(op) if family_name(op) == UNKNOWN => {
                return Err(PlanError::UnknownOperation {
                    op: format!("{op:?}"),
                });
            }
            Recorded::Burn(burn @ OperationIr::Custom(op)) if carried(burn).is_none() => {
                return Err(PlanError::UnknownCustom { id: op.id.clone() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns a tensor in the planner's terms.
pub(super) fn tensor(tensor: &TensorIr) -> Tensor<'_> {
    Tensor {
        id: tensor.id.value() as TensorIndex,
        shape: tensor.shape.as_slice(),
        dtype: of_burn(tensor.dtype),
        last_use: tensor.status == TensorStatus::ReadWrite,
    }
}

/// Returns the description of a tensor that an operation reads.
fn read(tensor: NewTensor) -> TensorIr {
    TensorIr {
        status: TensorStatus::ReadOnly,
        ..made(tensor)
    }
}

/// Returns the description of a tensor that an operation makes.
fn made(tensor: NewTensor) -> TensorIr {
    TensorIr {
        id: TensorId::new(tensor.id.into()),
        shape: tensor.shape.into(),
        status: TensorStatus::NotInit,
        dtype: to_burn(tensor.dtype),
    }
}

/// Lets a closure change the operands of an operation.
struct Rewire<F>(F);

impl<F: FnMut(Side, &mut Wire)> Rewire<F> {
    #[inline]
    fn edit(&mut self, side: Side, tensor: &mut TensorIr) {
        let dtype = of_burn(tensor.dtype);
        let mut wire = Wire {
            id: tensor.id.value() as TensorIndex,
            dtype,
            last_use: tensor.status == TensorStatus::ReadWrite,
        };
        (self.0)(side, &mut wire);
        tensor.id = TensorId::new(wire.id.into());
        if wire.dtype != dtype {
            tensor.dtype = to_burn(wire.dtype);
        }
        tensor.status = match (side, wire.last_use) {
            (Side::Output, _) => TensorStatus::NotInit,
            (Side::Input, true) => TensorStatus::ReadWrite,
            (Side::Input, false) => TensorStatus::ReadOnly,
        };
    }
}

impl<F: FnMut(Side, &mut Wire)> OpVisitor for Rewire<F> {
    #[inline]
    fn input(&mut self, tensor: &mut TensorIr) {
        self.edit(Side::Input, tensor);
    }

    #[inline]
    fn output(&mut self, tensor: &mut TensorIr) {
        self.edit(Side::Output, tensor);
    }
}

impl Op for Recorded {
    fn name(&self) -> &'static str {
        match self {
            Self::Burn(op) => name(op),
            Self::Mark(marked) => match marked.mark {
                Mark::Param(_) => "param",
                Mark::Redistribute(_) => "redistribute",
            },
            Self::Custom(op) => op.definition.id(),
            Self::Float8(op) => op.op.name(),
            Self::Int8(op) => op.op.name(),
        }
    }

    fn family(&self) -> &'static str {
        match self {
            Self::Burn(op) => family_name(op),
            Self::Mark(_) | Self::Custom(_) => "custom",
            Self::Float8(_) => "float8",
            Self::Int8(_) => "int8",
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Burn(op) => kind_number(op),
            Self::Mark(_) => MARK_NUMBER,
            Self::Custom(_) => CUSTOM_NUMBER,
            Self::Float8(_) => FLOAT8_NUMBER,
            Self::Int8(_) => INT8_NUMBER,
        }
    }

    fn inputs(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.reads().map(tensor)
    }

    fn outputs(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.makes().map(tensor)
    }

    fn rewire(&mut self, edit: impl FnMut(Side, &mut Wire)) {
        visit_mut(self, &mut Rewire(edit));
    }

    fn compute_in(&mut self, dtype: DType) {
        if let Self::Burn(OperationIr::Float(of, _) | OperationIr::NumericFloat(of, _)) = self
            && *of == burn_std::DType::F32
        {
            *of = to_burn(dtype);
        }
    }

    fn rule(&self) -> OpRule {
        match self.burn() {
            Some(op) => rules::rule(op),
            None => self.family_of().1.operation().rule(&self.shapes()),
        }
    }

    fn traits(&self) -> Traits {
        let (kind, family) = self.family_of();
        let op = family.operation();
        Traits {
            is_view: op.is_view(),
            float_class: match kind {
                Kind::Float => op.float_class(),
                Kind::Int | Kind::Bool => FloatClass::Recorded,
            },
            ..op.traits()
        }
    }

    fn mark(&self) -> Option<&Mark> {
        match self {
            Self::Burn(_) | Self::Custom(_) | Self::Float8(_) | Self::Int8(_) => None,
            Self::Mark(marked) => Some(&marked.mark),
        }
    }

    fn lower(&self, view: &LocalView<'_>, steps: &mut Steps<Self>) {
        lower::lower(self, view, steps);
    }

    fn indexed(&self, view: &LocalView<'_>) -> Option<Indexed> {
        index::indexed(self.burn()?, view)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Custom(op) => op.pointwise(),
            _ => self.family_of().1.operation().pointwise(),
        }
    }

    fn multiplies_float8(&self) -> bool {
        matches!(self, Self::Float8(op) if op.op.is_product())
    }

    fn product_flops(&self) -> Option<f64> {
        self.family_of().1.operation().flops(&self.shapes())
    }

    fn remade_flops(&self) -> f64 {
        let (_, family) = self.family_of();
        family.operation().remade_flops(&self.shapes())
    }

    fn place(&self, backend: Storage, result: usize, inputs: &[Operand<'_>]) -> Place {
        let shape = self
            .makes()
            .nth(result)
            .map_or(&[][..], |out| out.shape.as_slice());
        let (kind, family) = self.family_of();
        let op = family.operation();
        let other = op.lies_as(result).and_then(|input| inputs.get(input));
        match (backend, result, other) {
            (Storage::Opaque, 0, _) if op.is_view() => Place::Shares(0, Strided::contiguous(shape)),
            (Storage::Buffers, _, Some(other)) => Place::New(Strided::in_order_of(shape, other.at)),
            (Storage::Buffers, 0, _) if !inputs.is_empty() => op.place(kind, inputs, shape),
            _ => Place::New(Strided::contiguous(shape)),
        }
    }

    fn zeros(out: NewTensor) -> Self {
        let out = made(out);
        base(out.dtype, BaseOperationIr::Zeros(CreationOpIr { out })).into()
    }

    fn identity(op: ReduceOp, out: NewTensor) -> Self {
        let out = made(out);
        let dtype = out.dtype;
        match op {
            ReduceOp::Sum if dtype.is_float() => {
                let value = ScalarIr::Float(-0.0);
                let full = NumericOperationIr::Full(FullOpIr { out, value });
                OperationIr::NumericFloat(dtype, full).into()
            }
            ReduceOp::Sum => base(dtype, BaseOperationIr::Zeros(CreationOpIr { out })).into(),
            ReduceOp::Prod => base(dtype, BaseOperationIr::Ones(CreationOpIr { out })).into(),
            ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max => {
                unreachable!("every rank keeps the value")
            }
        }
    }

    fn reshape(input: NewTensor, out: NewTensor) -> Self {
        let (input, out) = (read(input), made(out));
        base(
            out.dtype,
            BaseOperationIr::Reshape(ShapeOpIr { input, out }),
        )
        .into()
    }

    fn slice(input: NewTensor, dim: usize, range: Range<usize>, out: NewTensor) -> Self {
        let span =
            |range: Range<usize>| Slice::new(range.start as isize, Some(range.end as isize), 1);
        let mut ranges: Vec<Slice> = input.shape.iter().map(|&size| span(0..size)).collect();
        ranges[dim] = span(range);
        let (tensor, out) = (read(input), made(out));
        let slice = SliceOpIr {
            tensor,
            ranges,
            out,
        };
        base(slice.out.dtype, BaseOperationIr::Slice(slice)).into()
    }

    fn concatenate(inputs: Vec<NewTensor>, dim: usize, out: NewTensor) -> Self {
        let tensors = inputs.into_iter().map(read).collect();
        let out = made(out);
        let cat = CatOpIr { tensors, dim, out };
        base(cat.out.dtype, BaseOperationIr::Cat(cat)).into()
    }

    fn add(left: NewTensor, right: NewTensor, out: NewTensor) -> Self {
        let (lhs, rhs, out) = (read(left), read(right), made(out));
        let dtype = out.dtype;
        let add = NumericOperationIr::Add(BinaryOpIr { lhs, rhs, out });
        match dtype.is_float() {
            true => OperationIr::NumericFloat(dtype, add),
            false => OperationIr::NumericInt(dtype, add),
        }
        .into()
    }

    fn cast(input: NewTensor, out: NewTensor) -> Self {
        let (input, out) = (read(input), made(out));
        OperationIr::BaseFloat(BaseOperationIr::Cast(CastOpIr { input, out })).into()
    }

    fn layer(product: Product, operands: [NewTensor; 2], out: NewTensor) -> Option<Self> {
        if RECORDS_LAYERS {
            return None;
        }
        let ([first, second], out) = (operands.map(read), made(out));
        let layer = match product {
            Product::Forward => ModuleOperationIr::Linear(LinearOpIr {
                x: first,
                weight: second,
                bias: None,
                out,
            }),
            Product::Input => ModuleOperationIr::LinearXBackward(LinearXBackwardOpIr {
                weight: first,
                output_grad: second,
                out,
            }),
            Product::Weight => ModuleOperationIr::LinearWeightBackward(LinearWeightBackwardOpIr {
                x: first,
                output_grad: second,
                out,
            }),
        };
        Some(OperationIr::Module(layer).into())
    }

    fn float8(op: Float8Op, inputs: Vec<NewTensor>, outputs: Vec<NewTensor>) -> Self {
        let inputs = inputs.into_iter().map(read).collect();
        let outputs = outputs.into_iter().map(made).collect();
        Self::Float8(Box::new(Float8 {
            op,
            inputs,
            outputs,
        }))
    }
}

impl Operation for Marked {
    fn rule(&self, _: &Shapes<'_>) -> OpRule {
        OpRule::Replicated("says where a value is and computes nothing")
    }
}

impl Run for Marked {
    fn run<B: BackendIr, E: Env<B>>(&self, _: &mut Context<'_, B, E>) -> Result<(), ExecuteError> {
        unreachable!("what a program says of a value is no step")
    }
}

/// Returns the name of an operation for people: [`kind_name`], and of an activation, its own.
pub fn name(op: &OperationIr) -> &'static str {
    carried(op).unwrap_or_else(|| kind_name(op))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recording moves one operation: what is added to Burn's language makes it no larger.
    #[test]
    fn a_recorded_operation_is_as_large_as_burns() {
        assert_eq!(size_of::<Recorded>(), size_of::<OperationIr>());
    }
}
