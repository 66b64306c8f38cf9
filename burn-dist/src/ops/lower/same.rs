//! The same operation on local shapes.

use super::Local;
use super::build::Emit;
use crate::ops::rules::{OpRule, takes_whole};
use crate::ops::{OpVisitor, visit_mut};
use burn_ir::*;
use burn_std::Slice;

/// Emits the op with local shapes.
pub(super) fn same(local: &Local, emit: &mut Emit) {
    let op = localized(local, emit);
    emit.push(op);
}

/// Emits the op with local shapes, but without its bias.
pub(super) fn without_bias(local: &Local, emit: &mut Emit) {
    let mut op = localized(local, emit);
    if let OperationIr::Module(op) = &mut op
        && let Some(bias) = bias(op)
    {
        *bias = None;
    }
    emit.push(op);
}

/// The bias of the ops that have one.
fn bias(op: &mut ModuleOperationIr) -> Option<&mut Option<TensorIr>> {
    use ModuleOperationIr::*;
    match op {
        Linear(op) => Some(&mut op.bias),
        Conv1d(op) => Some(&mut op.bias),
        Conv2d(op) => Some(&mut op.bias),
        Conv3d(op) => Some(&mut op.bias),
        ConvTranspose1d(op) => Some(&mut op.bias),
        ConvTranspose2d(op) => Some(&mut op.bias),
        ConvTranspose3d(op) => Some(&mut op.bias),
        DeformableConv2d(op) => Some(&mut op.bias),
        _ => None,
    }
}

/// Returns the op with local shapes. Inputs of which only the shape is read become tensors without content.
fn localized(local: &Local, emit: &mut Emit) -> OperationIr {
    let mut op = local.op.clone();
    // Sizes first: they are told from the global shapes.
    sizes(&mut op, local);
    visit_mut(
        &mut op,
        &mut LocalShapes {
            local,
            emit,
            inputs: 0,
            outputs: 0,
        },
    );
    op
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
        if let OpRule::Factors(rule) = local.rule
            && rule.inputs[index].shape_only
        {
            let operand = &rule.inputs[index];
            let shape = match local.assignment {
                Some(assignment) => rule
                    .input_layout(operand, assignment)
                    .local_shape(local.mesh, local.rank),
                None => operand.shape.clone(),
            };
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

/// Localises the sizes that ops carry besides the shapes of their tensors.
fn sizes(op: &mut OperationIr, local: &Local) {
    let (OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op)) = op
    else {
        return;
    };
    match op {
        BaseOperationIr::Slice(op) => whole_ranges(&mut op.ranges, &op.tensor, &op.out),
        BaseOperationIr::SliceAssign(op) => whole_ranges(&mut op.ranges, &op.tensor, &op.value),
        BaseOperationIr::RepeatDim(op) if op.tensor.shape[op.dim] == 1 => {
            op.times = local.outputs[0].local_shape(local.mesh, local.rank)[op.dim];
        }
        _ => {}
    }
}

/// Ranges that take a dim whole keep doing so on the local dim.
fn whole_ranges(ranges: &mut [Slice], tensor: &TensorIr, part: &TensorIr) {
    for dim in 0..ranges.len() {
        if takes_whole(ranges, dim, tensor.shape[dim], part.shape[dim]) {
            ranges[dim] = Slice::new(0, None, 1);
        }
    }
}
