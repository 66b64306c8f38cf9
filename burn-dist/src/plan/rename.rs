//! Rewriting the tensors of an operation.

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};

use super::task::Slot;
use crate::record::visit::{OpVisitor, visit_mut};

struct Rename<'a> {
    inputs: std::slice::Iter<'a, Slot>,
    outputs: std::slice::Iter<'a, Slot>,
}

impl OpVisitor for Rename<'_> {
    fn input(&mut self, tensor: &mut TensorIr) {
        let slot = self.inputs.next().expect("one slot per input");
        tensor.id = TensorId::new((*slot).into());
        tensor.status = TensorStatus::ReadOnly;
    }

    fn output(&mut self, tensor: &mut TensorIr) {
        let slot = self.outputs.next().expect("one slot per output");
        tensor.id = TensorId::new((*slot).into());
        tensor.status = TensorStatus::NotInit;
    }
}

/// Makes `op` read `inputs` and write `outputs`, in the visitor's order.
pub(super) fn rename(op: &mut OperationIr, inputs: &[Slot], outputs: &[Slot]) {
    visit_mut(
        op,
        &mut Rename {
            inputs: inputs.iter(),
            outputs: outputs.iter(),
        },
    );
}

struct Redirect<'a>(&'a [Slot]);

impl OpVisitor for Redirect<'_> {
    fn input(&mut self, tensor: &mut TensorIr) {
        if let Some(slot) = self.0.get(tensor.id.value() as usize) {
            tensor.id = TensorId::new((*slot).into());
        }
    }

    fn output(&mut self, _: &mut TensorIr) {}
}

/// Makes `op` read what `alias` says stands for its inputs.
pub(super) fn redirect(op: &mut OperationIr, alias: &[Slot]) {
    visit_mut(op, &mut Redirect(alias));
}
