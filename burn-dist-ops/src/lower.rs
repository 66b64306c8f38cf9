//! From a global operation to the local operations of one rank.
//!
//! Most operations are the same on local shapes. Where one differs, its family says how. Ranks that hold nothing make
//! nothing.
//!
//! A scalar of the operation is copied as it is, since it may stand for a slot; scalars made here are literals. Every
//! tensor is read-only, last uses are found by a later pass.

use burn_backend::DType;
use burn_dist_plan::op::{LocalView, Steps};
use burn_ir::*;

use super::Recorded;
use super::emit::Emit;
use super::family::Family;
use super::nothing::Nothing;
use super::rules::{Lowering, OpRule};
use super::visit::{OpVisitor, visit_mut};

/// One operation as one rank sees it: the operation, with global shapes, and how it is split.
pub(super) struct Local<'a> {
    pub op: &'a Recorded,
    pub view: &'a LocalView<'a>,
    family: Family<'a>,
}

impl<'a> std::ops::Deref for Local<'a> {
    type Target = LocalView<'a>;

    fn deref(&self) -> &LocalView<'a> {
        self.view
    }
}

/// Adds the steps of a rank, as [`Op::lower`](burn_dist_plan::op::Op::lower) says.
pub(super) fn lower(op: &Recorded, view: &LocalView<'_>, steps: &mut Steps<Recorded>) {
    Local::new(op, view).lower(&mut Emit { steps });
}

impl<'a> Local<'a> {
    pub(super) fn new(op: &'a Recorded, view: &'a LocalView<'a>) -> Self {
        let (_, family) = op.family_of();
        Self { op, view, family }
    }

    fn lower(&self, emit: &mut Emit) {
        if let Recorded::Custom(op) = self.op
            && op.shift(self.view, emit.steps)
        {
            return;
        }
        let outputs: Vec<TensorIr> = self.local_outputs();
        let nothing = outputs
            .iter()
            .all(|output| output.shape.num_elements() == 0);
        // Quantized values have scales, which zeros have not.
        let have_zeros = outputs
            .iter()
            .all(|output| !matches!(output.dtype, DType::QFloat(_)));
        if !outputs.is_empty()
            && have_zeros
            && (nothing || self.has_no_terms() || self.sums_nothing())
        {
            outputs.into_iter().for_each(|output| emit.zeros(output));
            return;
        }
        match self.rule {
            OpRule::Factors(rule) if rule.lowering != Lowering::Same => {
                self.family.operation().lower(self, rule, emit);
            }
            _ => self.same(emit),
        }
    }

    pub(super) fn local_outputs(&self) -> Vec<TensorIr> {
        let outputs = self.op.makes().zip(self.outputs);
        outputs
            .map(|(tensor, layout)| TensorIr {
                shape: layout.local_shape(self.mesh, self.rank).into(),
                status: TensorStatus::NotInit,
                ..tensor.clone()
            })
            .collect()
    }

    /// Returns input `index` with its local shape.
    pub(super) fn local_input(&self, index: usize) -> TensorIr {
        let tensor = self.op.reads().nth(index);
        TensorIr {
            shape: self.inputs[index].local_shape(self.mesh, self.rank).into(),
            status: TensorStatus::ReadOnly,
            ..tensor.expect("the op has this input").clone()
        }
    }

    /// Returns whether it is a sum without terms: of a batch without rows. Backends do not agree on what that is.
    fn sums_nothing(&self) -> bool {
        let of = self.family.operation().of_nothing();
        of.is_some_and(|of| {
            let mut inputs = self.inputs[of.first..].iter();
            of.made == Nothing::Zeros
                && inputs.any(|layout| layout.local_numel(self.mesh, self.rank) == 0)
        })
    }

    /// Emits the operation with local shapes.
    pub(super) fn same(&self, emit: &mut Emit) {
        let op = self.localized(emit);
        emit.steps.push(op);
    }

    /// Lowers a module as [`Self::same`] does, whose bias is a term of its own: one rank adds it, the others remove it.
    pub(super) fn same_with_one_bias(
        &self,
        emit: &mut Emit,
        bias: fn(&mut ModuleOperationIr) -> Option<&mut Option<TensorIr>>,
    ) {
        let mut op = self.localized(emit);
        let is_first = self.is_first(self.outputs[0].partial.iter().map(|p| p.axis));
        if let Recorded::Burn(OperationIr::Module(op)) = &mut op
            && !is_first
            && let Some(bias) = bias(op)
        {
            *bias = None;
        }
        emit.steps.push(op);
    }

    /// Returns the operation with local shapes. Inputs of which only the shape is read become tensors without content.
    pub(super) fn localized(&self, emit: &mut Emit) -> Recorded {
        let mut op = self.op.clone();
        // Sizes first: they are told from the global shapes.
        self.family.operation().localize(&mut op, self);
        let (inputs, outputs) = (0, 0);
        visit_mut(
            &mut op,
            &mut LocalShapes {
                local: self,
                emit,
                inputs,
                outputs,
            },
        );
        op
    }

    /// Returns the local shape of an input of which only the shape is read.
    fn shape_only(&self, index: usize) -> Option<Vec<usize>> {
        let OpRule::Factors(rule) = self.rule else {
            return None;
        };
        let operand = rule.inputs[index]
            .shape_only
            .then_some(&rule.inputs[index])?;
        Some(match self.assignment {
            Some(assignment) => rule
                .input_layout(operand, assignment)
                .local_shape(self.mesh, self.rank),
            None => operand.shape.clone(),
        })
    }
}

struct LocalShapes<'a, 'b, 'c> {
    local: &'a Local<'a>,
    emit: &'b mut Emit<'c>,
    inputs: usize,
    outputs: usize,
}

impl OpVisitor for LocalShapes<'_, '_, '_> {
    fn input(&mut self, tensor: &mut TensorIr) {
        let index = self.inputs;
        self.inputs += 1;
        let local = self.local;
        if let Some(shape) = local.shape_only(index) {
            *tensor = self.emit.shape_only(tensor, shape);
        } else {
            tensor.shape = local.inputs[index]
                .local_shape(local.mesh, local.rank)
                .into();
            tensor.status = TensorStatus::ReadOnly;
        }
    }

    fn output(&mut self, tensor: &mut TensorIr) {
        let layout = &self.local.outputs[self.outputs];
        self.outputs += 1;
        tensor.shape = layout.local_shape(self.local.mesh, self.local.rank).into();
        tensor.status = TensorStatus::NotInit;
    }
}
