//! Units of a window: runs of operations that use the parameters of one module.
//!
//! FSDP gathers, frees and reduces by unit. A training step visits the units in order in forward, in reverse in
//! backward. Two models may have modules of one path: where their policies differ, they are different units.

use std::collections::HashMap;

use super::{Edit, Facts};
use crate::ir::{Op, Owner, ParamSpec, Window};
use crate::layout::Policy;
use crate::policy::Reshard;

/// A unit of a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unit {
    /// The owner that its first parameter names.
    pub owner: Owner,
    /// Its number among the units of this policy, in order of first use.
    pub number: u32,
}

/// Which unit each operation of a window works for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Visits {
    /// For each operation, and one more for the end, the number of its visit.
    pub of_op: Vec<u32>,
    /// For each visit the number of its unit, in order of first use.
    pub unit: Vec<u32>,
    /// In order of first use.
    pub units: Vec<Unit>,
}

/// The unit a parameter belongs to; without one, its own module.
fn unit_path(tag: &ParamSpec) -> &str {
    match &tag.unit {
        Some(unit) => unit,
        None => tag.path.rsplit_once('.').map_or("", |(module, _)| module),
    }
}

impl Visits {
    pub(crate) fn new<O: Op>(window: &Window<O>, facts: &Facts) -> Self {
        let mut units: HashMap<(&str, &Policy), u32> = HashMap::new();
        let mut of_policy: HashMap<&Policy, u32> = HashMap::new();
        let mut visits = Self {
            of_op: Vec::with_capacity(window.ops.len() + 1),
            unit: vec![u32::MAX],
            units: Vec::new(),
        };
        for op in &window.ops {
            // Making a parameter in another type is no visit, unless it is made where it is used.
            let traits = op.traits();
            let is_cast = (traits.is_cast && !traits.unpacks) || traits.measures;
            let tag = op.inputs().find_map(|input| facts.parameter(input.id));
            if let Some(tag) = tag.filter(|_| !is_cast) {
                let next = units.len() as u32;
                let policy = tag.policy.as_ref();
                let unit = *units.entry((unit_path(tag), policy)).or_insert(next);
                if unit == next {
                    let number = of_policy.entry(policy).or_default();
                    visits.units.push(Unit {
                        owner: Owner::from(tag.as_ref()),
                        number: *number,
                    });
                    *number += 1;
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

    /// Goes on with a window that was rewritten: what was added is of the visit that it comes in.
    pub(crate) fn follow(&mut self, edits: &[Edit]) {
        let before = std::mem::take(&mut self.of_op);
        for edit in edits {
            let now = self.of_op.last().copied().unwrap_or(0);
            self.of_op.push(match edit {
                Edit::Kept(at) | Edit::Replaced(at) | Edit::For(at) => before[*at as usize],
                Edit::Added => now,
            });
        }
        self.of_op.extend(before.last());
    }

    /// Returns the number of the visit that operation `op` (or the end of the window) belongs to.
    pub(crate) fn of(&self, op: u32) -> u32 {
        self.of_op[op as usize]
    }

    /// Returns the number of the unit that operation `op` works for, in order of first use; `None` in a window without
    /// parameters.
    pub(crate) fn unit(&self, op: u32) -> Option<u32> {
        let unit = self.unit.get(self.of(op) as usize).copied();
        unit.filter(|unit| *unit != u32::MAX)
    }

    /// Returns the unit that operation `op` works for, as the owner of what it makes.
    pub(crate) fn owner(&self, op: u32) -> Option<&Owner> {
        let unit = self.units.get(self.unit(op)? as usize)?;
        Some(&unit.owner)
    }

    /// Adds operations that do what `ops` do, `copies` times, each time `apart` visits later; those that come later than
    /// all of them move as far.
    ///
    /// Visits are numbers afterwards: of those that are added no unit is known.
    pub(crate) fn repeat(
        &mut self,
        ops: &[u32],
        comes_later: impl Fn(usize) -> bool,
        copies: u32,
        apart: u32,
    ) {
        for (op, visit) in self.of_op.iter_mut().enumerate() {
            if comes_later(op) {
                *visit += copies * apart;
            }
        }
        for copy in 1..=copies {
            for op in ops {
                self.of_op.push(self.of(*op) + copy * apart);
            }
        }
    }

    /// Returns whether a parameter gathered for the visit of operation `now` is freed until its use by operation
    /// `next`.
    pub(crate) fn gives_up(&self, reshard: Reshard, now: u32, next: u32) -> bool {
        if self.of(now) == self.of(next) {
            return false;
        }
        let unit = self
            .unit(now)
            .and_then(|unit| self.units.get(unit as usize));
        match reshard {
            Reshard::Always => true,
            Reshard::AllButLast => self.of(next) - self.of(now) > 2,
            Reshard::Every(n) => unit.is_some_and(|unit| (unit.number + 1).is_multiple_of(n.get())),
            Reshard::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three units in forward, and in reverse in backward: which parameters are freed after their forward.
    #[test]
    fn units_are_freed_as_the_policy_says() {
        let unit = |number| Unit {
            owner: Owner::default(),
            number,
        };
        let visits = Visits {
            of_op: (0..7).collect(),
            unit: vec![0, 1, 2, 2, 1, 0],
            units: (0..3).map(unit).collect(),
        };
        for (reshard, expected) in [
            ("always", [true, true, true]),
            ("last", [true, true, false]),
            ("every=1", [true, true, true]),
            ("every=2", [false, true, false]),
            ("every=3", [false, false, true]),
            ("never", [false, false, false]),
        ] {
            let policy: Reshard = reshard.parse().expect("a policy");
            let freed = [0, 1, 2].map(|unit| visits.gives_up(policy, unit, 5 - unit));
            assert_eq!(freed, expected, "{reshard}");
        }
    }
}
