//! Which part of a step each operation is, in the order in which they are recorded.

use std::sync::Arc;

use super::seen::Seen;
use crate::ir::{ParamSpec, Phase, Role};

/// The part of an operation in a step.
pub(super) struct OfOp {
    pub phase: Phase,
    pub microbatch: u32,
    /// See [`Facts::after_backward`](super::Facts::after_backward).
    pub is_late: bool,
}

/// A walk over the operations of a window that tells what each is to a step.
pub(super) struct Walk<'a> {
    pub roles: &'a [Role],
    pub update_of: &'a [Option<Arc<ParamSpec>>],
    pub updating: &'a [bool],
    /// How many losses there were so far.
    pub losses: u32,
    /// True if each value is made after a backward.
    pub late: Vec<bool>,
}

impl Walk<'_> {
    /// Tells what the next operation is. `backward` has the number of the loss that each value comes from.
    pub(super) fn operation(&mut self, op: &Seen, backward: &[u32]) -> OfOp {
        let updates = op.outputs().any(|out| {
            let is_new = matches!(self.roles[out], Role::Parameter(_) | Role::State(_));
            is_new && self.update_of[out].is_some()
        });
        let tensors = op.inputs().filter(|_| updates).chain(op.outputs());
        let from = tensors.map(|tensor| backward[tensor]).max().unwrap_or(0);
        let phase = match from {
            _ if updates => Phase::Update,
            0 => Phase::Forward,
            _ => Phase::Backward,
        };
        let makes_gradients = op.outputs().all(|out| self.updating[out]);
        // A parameter of which gradients are taken anew is none of them.
        let needs_gradients = |input: usize| {
            let is_needed = self.late[input] || (self.updating[input] && !makes_gradients);
            is_needed && backward[input] > 0
        };
        let (is_late, comes_after) = match op.traits.is_cast {
            true => {
                let late = op.inputs().next().is_some_and(|from| self.late[from]);
                (late && phase == Phase::Backward, late)
            }
            false => {
                let is_late = phase == Phase::Backward && op.inputs().any(needs_gradients);
                (is_late, is_late || phase == Phase::Update)
            }
        };
        op.outputs().for_each(|out| self.late[out] = comes_after);
        self.losses = self.losses.max(from);
        OfOp {
            phase,
            microbatch: match from {
                0 => self.losses,
                from => from - 1,
            },
            is_late,
        }
    }
}
