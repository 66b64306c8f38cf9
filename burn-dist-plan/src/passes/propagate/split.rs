//! A split of an operation, and the layouts that it needs and makes.

use std::sync::Arc;

use crate::layout::Layout;
use crate::mesh::AxisIndex;
use crate::rule::{Assignment, Rule};

/// The layouts of the operands and results of an operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Split {
    /// How the factors of its rule are split, if it has some.
    pub assignment: Option<Arc<Assignment>>,
    /// Those that its operands need to have; one of which the shape alone is read is whole.
    pub inputs: Vec<Arc<Layout>>,
    /// Those that its results have.
    pub outputs: Vec<Arc<Layout>>,
}

impl Split {
    /// Returns the layouts that an assignment of the factors of a rule leads to.
    pub(super) fn new(rule: &Rule, assignment: Assignment) -> Self {
        let needed = |(position, operand): (usize, &crate::rule::Operand)| {
            if operand.shape_only {
                return Layout::replicated(&operand.shape);
            }
            let mut layout = rule.input_layout(operand, &assignment);
            if position > 0 && !rule.partial.is_joint() {
                layout.partial.clear();
            }
            layout
        };
        let inputs = rule.inputs.iter().enumerate().map(needed);
        let outputs = rule.outputs.iter();
        let outputs = outputs.map(|operand| rule.output_layout(operand, &assignment));
        Self {
            inputs: inputs.map(Arc::new).collect(),
            outputs: outputs.map(Arc::new).collect(),
            assignment: Some(Arc::new(assignment)),
        }
    }

    /// Returns one without factors.
    pub(super) fn of_layouts(
        inputs: impl IntoIterator<Item = Layout>,
        outputs: impl IntoIterator<Item = Layout>,
    ) -> Self {
        Self {
            assignment: None,
            inputs: inputs.into_iter().map(Arc::new).collect(),
            outputs: outputs.into_iter().map(Arc::new).collect(),
        }
    }

    /// Returns whether an axis splits a factor.
    pub(super) fn splits(&self, axis: AxisIndex, factor: u8) -> bool {
        let of_factors = self.assignment.as_ref();
        of_factors.is_some_and(|of| of.factors[usize::from(factor)].axes().any(|a| a == axis))
    }
}
