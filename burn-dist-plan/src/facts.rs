//! The facts of a window: what its values and operations are to training, found once, from definition and use, and read
//! by every pass. They follow a window that a pass rewrites (`follow.rs`).
//!
//! A **cast** changes none of it: a value and its casts are one class, whose uses are those of all of them. But a
//! parameter is gathered and computed with as a cast, which is thereby no part of its update.
//!
//! - A **parameter** is what a program marks as one. What *replaces* it is that parameter too: of the values that
//!   outlive the window and of which it is a term (by elementwise operations that add to it, or scale it by what is no
//!   gradient), the one it takes the fewest operations to get to, if it was made of gradients, or if the parameter
//!   itself dies. So are casts of a parameter, and what is made of parameters and constants alone and lives on (an
//!   average of weights). An activation that a parameter is added to is none: it does not outlive the step.
//! - A **backward** begins at the one that is made for the loss. What is computed of it is backward, until it is part
//!   of a parameter.
//! - What an update is made of by elementwise operations, of values of which pieces are enough for all who use them,
//!   belongs to that update: **gradients**, and **state** of the optimizer, which outlives the window. So do factors:
//!   what is stretched where it meets a gradient, and sums along a dim of what belongs to the update.
//! - A gradient that no update uses is matched with its parameter through the operation that made it: it shares the
//!   gradient of the layer's result with the gradient of the layer's input, which names the weight, or the indices with
//!   the read of a table. So is the gradient of a layer's input with that input: it names the weight.
//!
//! Where evidence does not decide, a value is an activation, or unknown if it comes from outside, and passes do what is
//! safe. A wrong fact may cost speed or memory, never a value: layouts, order and recomputation change none.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ir::{ParamSpec, Phase, Role, ValueIndex};
use crate::layout::Policy;
use crate::rule::OpRule;

mod adjoint;
mod finder;
pub(crate) mod flow;
mod follow;
mod parameters;
mod seen;
pub(crate) mod stages;
#[cfg(test)]
mod tests;
pub(crate) mod visits;
mod walk;

pub(crate) use finder::Finder;
pub(crate) use visits::Visits;

/// The origin of an operation of a window that was rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// The operation of this number, on other values or in another type maybe.
    Kept(u32),
    /// It stands for the operation of this number, and makes what that made, or what was made of that.
    Replaced(u32),
    /// It was added: a cast, or what has to be known for one.
    Added,
    /// It was added for the operation of this number: it is of its visit, and of its part of the step.
    For(u32),
}

impl Edit {
    /// Returns the number of the operation that it was.
    pub(crate) fn before(self) -> Option<usize> {
        match self {
            Self::Kept(before) | Self::Replaced(before) => Some(before as usize),
            Self::Added | Self::For(_) => None,
        }
    }
}

/// The facts of the values and operations of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The role of each value.
    pub roles: Vec<Role>,
    /// The parameter that each value is a view of, or a cast of a view, itself left out.
    pub view_of: Vec<Option<Arc<ParamSpec>>>,
    /// The parameter in whose update each value has its only use, the new parameter included.
    pub update_of: Vec<Option<Arc<ParamSpec>>>,
    /// True if each value comes from the one that is made for a loss, and is not part of a parameter.
    pub backward: Vec<bool>,
    /// True if each value is the gradient of what a layer is linear in, or a sum of such, and of use in pieces.
    pub of_layer: Vec<bool>,
    /// True if each value is a gradient of a parameter, a state, or made for the update of a parameter; so is what such
    /// a value is a reshape of.
    pub updating: Vec<bool>,
    /// True if each value is updating, outlives the window or is read.
    pub lasting: Vec<bool>,
    /// The activation that each value is the gradient of, if that is the input or the result of a layer; where a layer
    /// takes a cast, what that is a cast of.
    pub gradient_of: Vec<Option<ValueIndex>>,
    /// The value that each is a reshape of.
    pub reshape_of: Vec<Option<ValueIndex>>,
    /// The first of the values of its shape that each value is tied to: one is made of the other elementwise, or they
    /// meet so, or both are tied to a third.
    pub tied_to: Vec<ValueIndex>,
    /// The rule of each operation.
    pub rules: Vec<Arc<OpRule>>,
    /// The phase of each operation.
    pub phases: Vec<Phase>,
    /// Number of the microbatch that each operation works on: of the loss it leads to, or comes from.
    pub microbatches: Vec<u32>,
    /// The operation that makes the one for each loss: its backward is recorded from there on.
    pub ones: Vec<u32>,
    /// True if each operation of the backward comes after it: it needs the gradients of parameters, and makes none, or
    /// what is made of them so. Norms of gradients do, what is read with them, and gradients that are scaled by them.
    pub after_backward: Vec<bool>,
}

impl Facts {
    /// Returns what is known of a value as a parameter.
    pub fn parameter(&self, value: ValueIndex) -> Option<&Arc<ParamSpec>> {
        self.roles[value as usize].parameter()
    }

    /// Returns the value that holds the same elements in the same order, and is no reshape.
    pub fn first_shape(&self, value: ValueIndex) -> ValueIndex {
        first_shape(&self.reshape_of, value)
    }

    /// Returns the policies of the parameters that values are, or are to update, each once, in the order of values.
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        let mut policies: Vec<Arc<Policy>> = Vec::new();
        let mut known: HashSet<&Policy> = HashSet::new();
        // Parameters share theirs: most are known by where they are.
        let mut seen: HashSet<*const Policy> = HashSet::new();
        for spec in self.roles.iter().filter_map(Role::belongs_to) {
            if seen.insert(Arc::as_ptr(&spec.policy)) && known.insert(&spec.policy) {
                policies.push(spec.policy.clone());
            }
        }
        policies
    }
}

fn first_shape(reshape_of: &[Option<ValueIndex>], mut value: ValueIndex) -> ValueIndex {
    while let Some(from) = reshape_of[value as usize] {
        value = from;
    }
    value
}
