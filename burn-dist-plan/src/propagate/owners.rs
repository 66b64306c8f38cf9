//! Which strategy of its own the unit has that a value belongs to.

use crate::ShardStrategy;
use crate::facts::Facts;
use crate::op::Op;
use crate::units::Visits;
use crate::window::Window;

/// Returns for each value the strategy of its unit: of the parameter it is or is to update, else of the unit whose
/// visit makes it.
pub(super) fn strategies<O: Op>(
    window: &Window<O>,
    facts: &Facts,
    visits: &Visits,
) -> Vec<Option<ShardStrategy>> {
    let mut found = vec![None; window.dies.len()];
    for (index, op) in window.ops.iter().enumerate() {
        for out in op.outputs() {
            found[out.id as usize] = visits.strategy(index as u32);
        }
    }
    for (value, found) in found.iter_mut().enumerate() {
        let of = facts.update_of[value].as_ref();
        if let Some(spec) = facts.roles[value].belongs_to().or(of) {
            *found = spec.own_strategy();
        }
    }
    found
}
