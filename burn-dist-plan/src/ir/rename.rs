//! Rewriting the operands of an operation.

use crate::ir::{Op, Side, Slot};

/// Makes `op` read `inputs` and write `outputs`, in order; last uses are found by a later pass.
pub(crate) fn rename<O: Op>(op: &mut O, inputs: &[Slot], outputs: &[Slot]) {
    let (mut inputs, mut outputs) = (inputs.iter(), outputs.iter());
    op.rewire(|side, wire| {
        let slots = match side {
            Side::Input => &mut inputs,
            Side::Output => &mut outputs,
        };
        wire.id = *slots.next().expect("one slot per operand");
        wire.last_use = false;
    });
}

/// Makes `op` read what `alias` says stands for its inputs.
pub(crate) fn redirect<O: Op>(op: &mut O, alias: &[Slot]) {
    op.rewire(|side, wire| {
        if let (Side::Input, Some(slot)) = (side, alias.get(wire.id as usize)) {
            wire.id = *slot;
        }
    });
}
