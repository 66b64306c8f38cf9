//! An operation as facts are found of it: what it says of itself, asked once.

use std::sync::Arc;

use crate::ir::op::Traits;
use crate::ir::{Op, ValueIndex};
use crate::rule::{OpRule, PartialRule, Rule};

/// Returns whether an operation that is none on pieces is one on those of what it updates, if it is of an update.
pub(super) fn keeps_dims(traits: &Traits, rule: &OpRule) -> bool {
    let keeps = matches!(rule, OpRule::Factors(rule) if !rule.on_pieces() && rule.keeps_dims());
    keeps && !traits.is_cast && !traits.measures
}

/// An operation, and what it says of itself.
pub(super) struct Seen {
    pub traits: Traits,
    pub rule: Arc<OpRule>,
    /// All inputs; whether each has the shape of the first result.
    pub inputs: Vec<(ValueIndex, bool)>,
    /// The first result; one that has several results has the others here too.
    pub out: ValueIndex,
    others: Vec<ValueIndex>,
    /// True if it says something of a value, and computes nothing.
    pub is_mark: bool,
    /// True if it makes the one for a loss.
    pub begins_backward: bool,
}

impl Seen {
    pub(super) fn new<O: Op>(op: &O, rule: Arc<OpRule>) -> Self {
        let traits = op.traits();
        let mut outputs = op.outputs();
        let first = outputs.next();
        let shape = first.map(|out| out.shape);
        Self {
            rule,
            inputs: op
                .inputs()
                .map(|input| (input.id, Some(input.shape) == shape))
                .collect(),
            out: first.map_or(ValueIndex::MAX, |out| out.id),
            others: outputs.map(|out| out.id).collect(),
            is_mark: op.mark().is_some(),
            begins_backward: traits.makes_ones && op.outputs().all(|out| out.numel() == 1),
            traits,
        }
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().map(|(input, _)| *input as usize)
    }

    /// Returns the inputs that have the shape of the result.
    pub(super) fn alike(&self) -> impl DoubleEndedIterator<Item = ValueIndex> {
        let alike = self.inputs.iter().filter(|(_, is_alike)| *is_alike);
        alike.map(|(input, _)| *input)
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = usize> {
        let first = Some(self.out).filter(|out| *out != ValueIndex::MAX);
        let all = first.into_iter().chain(self.others.iter().copied());
        all.map(|out| out as usize)
    }

    fn has_one_result(&self) -> bool {
        self.out != ValueIndex::MAX && self.others.is_empty()
    }

    /// Returns its rule, if it is elementwise and has one result.
    pub(super) fn elementwise(&self) -> Option<&Rule> {
        match self.rule.as_ref() {
            OpRule::Factors(rule) if rule.elementwise && self.has_one_result() => Some(rule),
            _ => None,
        }
    }

    /// Returns whether it adds its inputs up: each is a term of the result, whatever the others are.
    pub(super) fn adds(&self) -> bool {
        let rule = self.elementwise();
        rule.is_some_and(|rule| rule.partial == PartialRule::JointLinear)
    }

    /// Returns what its result is a reshape of, if it is one.
    pub(super) fn reshapes(&self) -> Option<ValueIndex> {
        let (from, _) = self.inputs.first()?;
        (*self.rule == OpRule::Reshape && self.has_one_result()).then_some(*from)
    }
}
