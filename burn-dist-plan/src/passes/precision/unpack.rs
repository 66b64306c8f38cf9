//! Parameters that rest in 8 bits, unpacked in each visit that uses them.
//!
//! A program unpacks a parameter before a layer, and its backward uses what was unpacked. Kept until then, all of them
//! would be there at once, whole and several times as large as at rest. So what is used in another visit is made again
//! there, of what is gathered there in 8 bits.

use std::collections::HashMap;

use crate::facts::{Edit, Visits};
use crate::ir::{Op, Side, ValueIndex, Window};
use crate::passes::rewriting::{Rewriting, Rewritten};

/// Unpacks what is used in several visits in each of them; `None` if there is nothing of the kind.
pub(super) fn unpacked_by_visit<O: Op>(
    window: &Window<O>,
    visits: &Visits,
    reduces_first: &[bool],
) -> Option<Rewritten<O>> {
    // The operation that unpacks each value.
    let mut unpacks: HashMap<ValueIndex, u32> = HashMap::new();
    for (op, index) in window
        .ops
        .iter()
        .zip(0..)
        .filter(|(op, _)| op.traits().unpacks)
    {
        unpacks.extend(op.outputs().map(|out| (out.id, index)));
    }
    if unpacks.is_empty() {
        return None;
    }
    let mut num_values = window.dies.len();
    let mut again: HashMap<(ValueIndex, u32), ValueIndex> = HashMap::new();
    let mut made = Rewriting::new(window);
    for (op, index) in window.ops.iter().zip(0..) {
        let visit = visits.of(index);
        let mut op = op.clone();
        let mut renamed: HashMap<ValueIndex, ValueIndex> = HashMap::new();
        for input in op.inputs() {
            let Some(&of) = unpacks.get(&input.id) else {
                continue;
            };
            if visits.of(of) == visit {
                continue;
            }
            let value = again.entry((input.id, visit)).or_insert_with(|| {
                let unpack = with_result(&window.ops[of as usize], num_values as ValueIndex);
                num_values += 1;
                made.write(unpack, Edit::For(index), false);
                num_values as ValueIndex - 1
            });
            renamed.insert(input.id, *value);
        }
        op.rewire(|side, wire| {
            if let (Side::Input, Some(value)) = (side, renamed.get(&wire.id)) {
                wire.id = *value;
            }
        });
        let reduces_first = reduces_first.get(index as usize) == Some(&true);
        made.write(op, Edit::Kept(index), reduces_first);
    }
    if again.is_empty() {
        return None;
    }
    made.drop_unread(num_values);
    Some(made.finish(num_values))
}

/// Returns an operation that makes another value.
fn with_result<O: Op>(op: &O, value: ValueIndex) -> O {
    let mut op = op.clone();
    op.rewire(|side, wire| {
        if side == Side::Output {
            wire.id = value;
        }
    });
    op
}
