//! Units of a window: runs of operations that use the parameters of one module.
//!
//! FSDP gathers, frees and reduces by unit. A training step visits the units in order in forward, in reverse in
//! backward.

use std::collections::HashMap;

use crate::facts::Facts;
use crate::op::Op;
use crate::param::ParamSpec;
use crate::window::Window;
use crate::{Reshard, ShardStrategy};

/// Which unit each operation of a window works for.
#[derive(Clone, Debug)]
pub(super) struct Visits {
    /// For each operation, and one more for the end, the number of its visit.
    of_op: Vec<u32>,
    /// For each visit the number of its unit, in order of first use.
    unit: Vec<u32>,
    /// For each unit what its first parameter says of shard axes.
    strategies: Vec<Option<ShardStrategy>>,
}

/// The unit a parameter belongs to; without one, its own module.
fn unit_path(tag: &ParamSpec) -> &str {
    match &tag.unit {
        Some(unit) => unit,
        None => tag.path.rsplit_once('.').map_or("", |(module, _)| module),
    }
}

impl Visits {
    pub fn new<O: Op>(window: &Window<O>, facts: &Facts) -> Self {
        let mut units: HashMap<&str, u32> = HashMap::new();
        let mut visits = Self {
            of_op: Vec::with_capacity(window.ops.len() + 1),
            unit: vec![u32::MAX],
            strategies: Vec::new(),
        };
        for op in &window.ops {
            // Making a parameter in another type is no visit.
            let is_cast = op.traits().is_cast;
            let tag = op.inputs().find_map(|input| facts.parameter(input.id));
            if let Some(tag) = tag.filter(|_| !is_cast) {
                let next = units.len() as u32;
                let unit = *units.entry(unit_path(tag)).or_insert(next);
                if unit == next {
                    visits.strategies.push(tag.own_strategy());
                }
                match visits.unit.last_mut() {
                    // What comes before the first parameter belongs to its unit.
                    Some(first) if *first == u32::MAX => *first = unit,
                    Some(current) if *current == unit => {}
                    _ => visits.unit.push(unit),
                }
            }
            visits.of_op.push(visits.unit.len() as u32 - 1);
        }
        visits.of_op.push(visits.unit.len() as u32);
        visits
    }

    /// Returns the number of the visit that operation `op` (or the end of the window) belongs to.
    pub fn of(&self, op: u32) -> u32 {
        self.of_op[op as usize]
    }

    /// Returns the number of the unit that operation `op` works for, in order of first use; `None` in a window without
    /// parameters.
    pub fn unit(&self, op: u32) -> Option<u32> {
        let unit = self.unit.get(self.of(op) as usize).copied();
        unit.filter(|unit| *unit != u32::MAX)
    }

    /// Returns what the unit that operation `op` works for says of shard axes.
    pub fn strategy(&self, op: u32) -> Option<ShardStrategy> {
        let unit = *self.unit.get(self.of(op) as usize)?;
        self.strategies.get(unit as usize).copied().flatten()
    }

    /// Returns whether a parameter gathered for the visit of operation `now` is given up until its use by operation
    /// `next`.
    pub fn gives_up(&self, reshard: Reshard, now: u32, next: u32) -> bool {
        let (now, next) = (self.of(now), self.of(next));
        if now == next {
            return false;
        }
        let unit = self.unit.get(now as usize).copied().unwrap_or(u32::MAX);
        match reshard {
            Reshard::Always => true,
            Reshard::AllButLast => next - now > 2,
            Reshard::Every(n) => unit.wrapping_add(1).is_multiple_of(n.get()),
            Reshard::Never => false,
        }
    }
}
