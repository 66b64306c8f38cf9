//! Values that come from nothing or from the host: computed where, and in the parts in which, they are used.

use super::Propagator;
use super::operands::{Tensors, tensors};
use super::options::{simplify, whole};
use super::program::{Common, Reason};
use super::values::Source;
use crate::layout::Layout;
use crate::layout::redistribute;
use crate::mesh::AxisIndex;
use crate::plan::PlanError;
use crate::plan::op_name;
use crate::plan::task::Slot;
use crate::plan::window::ValueIndex;
use crate::rules::{FactorKind, OpRule, Rule};
use std::sync::Arc;

/// Chains of deferred operations are cut at this length: long ones are real work.
const DEFERRED_DEPTH_MAX: u32 = 24;

impl Propagator<'_> {
    /// Returns the preferred layout and chain length of the results if the operation can wait until it is known where they are used: all its inputs are
    /// free, or they are whole everywhere and smaller than the result (an expansion).
    pub(super) fn deferrable(&self, rule: &OpRule, tensors: &Tensors) -> Option<(Layout, u32)> {
        if !self.options.defer || tensors.outputs.len() != 1 {
            return None;
        }
        let (_, out_shape, _) = &tensors.outputs[0];
        let mut depth = 0;
        let mut free = 0;
        let mut placed_elements = 0;
        for (value, shape, _) in &tensors.inputs {
            let value = self.value(*value);
            match value.source {
                Source::Host => free += 1,
                Source::Deferred { depth: d, .. } => {
                    free += 1;
                    depth = depth.max(d + 1);
                }
                Source::Versions => {
                    if !value
                        .versions_at(self.now)
                        .any(|version| version.layout.is_replicated())
                    {
                        return None;
                    }
                    placed_elements += shape.iter().product::<usize>();
                }
            }
        }
        if depth > DEFERRED_DEPTH_MAX {
            return None;
        }
        if placed_elements > 0 {
            let grows = placed_elements < out_shape.iter().product::<usize>();
            let expands = tensors.inputs.len() == 1;
            if !grows || !(free > 0 || expands) {
                return None;
            }
        }
        let preferred = match rule {
            OpRule::Create => Layout::replicated(out_shape),
            OpRule::Factors(rule) => self.preferred(rule, tensors),
            OpRule::Reshape => self
                .value(tensors.inputs[0].0)
                .preferred
                .gathered()
                .reshape(self.mesh, out_shape)
                .map_or_else(|| Layout::replicated(out_shape), |l| simplify(l, self.mesh)),
            OpRule::Replicated(_) | OpRule::Custom => return None,
        };
        Some((preferred, depth))
    }

    /// Follows the preferred layouts of free inputs through a rule: the first input that prefers a split of a factor decides.
    pub(super) fn preferred(&self, rule: &Rule, tensors: &Tensors) -> Layout {
        let mut assignment = rule.unsplit();
        let mut used: Vec<AxisIndex> = Vec::new();
        for (operand, (value, ..)) in rule.inputs.iter().zip(&tensors.inputs) {
            if operand.shape_only {
                continue;
            }
            let preferred = self.value(*value).preferred.gathered();
            for (factor, dim) in operand.dims.iter().zip(&preferred.dims) {
                let Some(factor) = *factor else { continue };
                let axes: Vec<AxisIndex> = dim.axes().collect();
                let slot = &mut assignment.factors[factor as usize];
                if rule.factors[factor as usize].kind == FactorKind::Map
                    && !axes.is_empty()
                    && slot.is_whole()
                    && !axes.iter().any(|axis| used.contains(axis))
                {
                    used.extend(axes);
                    *slot = dim.clone();
                }
            }
        }
        rule.output_layout(&rule.outputs[0], &assignment)
    }

    /// Computes a free value in `layout`: every rank makes just its part.
    pub(super) fn materialize(
        &mut self,
        value: ValueIndex,
        layout: &Layout,
    ) -> Result<Slot, PlanError> {
        let (op, shape) = match self.value(value).source {
            Source::Host => {
                let slot = self.add_version(value, Arc::new(layout.clone()));
                self.steps.push(Common::Upload { value, slot });
                return Ok(slot);
            }
            Source::Deferred { op, .. } => (op, self.value(value).shape.clone()),
            Source::Versions => return Err(PlanError::NoVersion { value }),
        };
        let rule = match &self.rules[op as usize] {
            Some(rule) => rule.clone(),
            None => return Err(PlanError::NoVersion { value }),
        };
        let tensors = tensors(&self.window.ops[op as usize]);
        let mut made = layout.clone();
        made.partial.clear();
        made.at_rest.clear();
        let kind = op_name(&self.window.ops[op as usize]);
        match rule.as_ref() {
            OpRule::Create => {
                self.make(op, &rule, None, &[], vec![made.clone()], &tensors)?;
            }
            OpRule::Factors(factors) => {
                let mut assignment = factors.unsplit();
                for (dim, factor) in factors.outputs[0].dims.iter().enumerate() {
                    let splittable =
                        factor.filter(|f| factors.factors[*f as usize].kind == FactorKind::Map);
                    match splittable {
                        Some(factor) => {
                            assignment.factors[factor as usize] = made.dims[dim].clone()
                        }
                        None => made.dims[dim] = whole(shape[dim]),
                    }
                }
                let mut slots = Vec::new();
                let mut layouts = Vec::new();
                for (position, (operand, (input, in_shape, _))) in
                    factors.inputs.iter().zip(&tensors.inputs).enumerate()
                {
                    if operand.shape_only {
                        slots.push(Slot::MAX);
                        layouts.push(Layout::replicated(in_shape));
                        continue;
                    }
                    let needed = self.needed(factors, position, &assignment);
                    slots.push(self.require(*input, &needed, Reason::Operand(kind))?);
                    layouts.push(needed);
                }
                self.emit(
                    op,
                    &rule,
                    Some(assignment),
                    &slots,
                    layouts,
                    vec![made.clone()],
                    &tensors,
                )?;
            }
            OpRule::Reshape => {
                let (input, in_shape, _) = &tensors.inputs[0];
                let needed = match made.reshape(self.mesh, in_shape) {
                    Some(needed) => simplify(needed, self.mesh),
                    None => {
                        made = Layout::replicated(&shape);
                        Layout::replicated(in_shape)
                    }
                };
                let slot = self.require(*input, &needed, Reason::Operand(kind))?;
                self.emit(
                    op,
                    &rule,
                    None,
                    &[slot],
                    vec![needed],
                    vec![made.clone()],
                    &tensors,
                )?;
            }
            OpRule::Replicated(_) | OpRule::Custom => return Err(PlanError::NoVersion { value }),
        }
        let slot = self
            .value(value)
            .versions
            .last()
            .map(|version| version.slot)
            .ok_or(PlanError::NoVersion { value })?;
        if &made == layout {
            return Ok(slot);
        }
        // What the operation could not split, a local slice does.
        let steps = redistribute::plan(self.mesh, &made, layout, self.value(value).dtype.size())?;
        Ok(self.redistribute(value, slot, steps, Reason::Operand(kind)))
    }
}
