//! Which parameter or unit a value belongs to, whose policy counts for it.

use crate::facts::{Facts, Visits};
use crate::ir::{Op, Owner, Window};

/// Returns the owner of each value: the parameter it is or is to update, else the unit whose visit makes it, else none.
pub(super) fn owners<O: Op>(window: &Window<O>, facts: &Facts, visits: &Visits) -> Vec<Owner> {
    let mut found = vec![Owner::default(); window.dies.len()];
    for (index, op) in window.ops.iter().enumerate() {
        if let Some(owner) = visits.owner(index as u32) {
            for out in op.outputs() {
                found[out.id as usize] = owner.clone();
            }
        }
    }
    for (value, found) in found.iter_mut().enumerate() {
        let of = facts.update_of[value].as_ref();
        if let Some(spec) = facts.roles[value].belongs_to().or(of) {
            *found = Owner::from(spec.as_ref());
        }
    }
    found
}
