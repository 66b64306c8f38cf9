//! Views that nothing reads any more, after a pass has put other operations in the place of those that did.

use crate::ir::{Op, Window};

/// Drops casts and views of `ops` that an operation of `window` read and nothing reads any more: they would be made for
/// nothing, and keep what they are made of. `dies` says of each value whether it ends with the window.
pub(super) fn drop_unread<O: Op>(ops: &mut Vec<(O, bool)>, window: &Window<O>, dies: &[bool]) {
    let mut was_read = vec![false; dies.len()];
    for input in window.ops.iter().flat_map(Op::inputs) {
        was_read[input.id as usize] = true;
    }
    let mut is_read: Vec<bool> = dies.iter().map(|dies| !dies).collect();
    for read in &window.reads {
        is_read[*read as usize] = true;
    }
    let mut keep = vec![true; ops.len()];
    for ((op, _), keep) in ops.iter().zip(&mut keep).rev() {
        let traits = op.traits();
        let only_shows = (traits.is_cast || traits.is_view) && op.mark().is_none();
        let mut outputs = op.outputs().map(|out| out.id as usize);
        *keep = !only_shows || outputs.any(|out| is_read[out] || !was_read[out]);
        if *keep {
            for input in op.inputs() {
                is_read[input.id as usize] = true;
            }
        }
    }
    let mut keep = keep.into_iter();
    ops.retain(|_| keep.next() == Some(true));
}
