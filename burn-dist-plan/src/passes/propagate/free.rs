//! Values that come from nothing or from the host: computed where, and in the parts in which, they are used.
//!
//! What is made of them alone is undecided ([`Origin`]) until an operation uses it together with something placed: then
//! it takes the layout that this asks for. Where that decides nothing, what is made of data is laid out as a batch, and what is made of constants is whole. So is what outlives its window, and what is made of that alone
//! later on.

use super::Propagator;
use super::operands::{Tensors, tensors};
use super::options::allows;
use super::split::Split;
use crate::PlanError;
use crate::ir::{Op, Origin, ProgramStep, Reason, Slot, Source, ValueIndex, is_product};
use crate::layout::{DimLayout, Layout, of_batch, simplify};
use crate::mesh::AxisIndex;
use crate::rule::{FactorKind, OpRule, PartialRule, Rule};
use std::sync::Arc;

/// Chains of deferred operations are cut at this length: long ones are real work.
const DEFERRED_DEPTH_MAX: u32 = 24;

impl<O: Op> Propagator<'_, O> {
    /// Returns what the results of an operation are made of, if the layout of none of its inputs is decided.
    pub(super) fn origin(&self, rule: &OpRule, tensors: &Tensors<'_>) -> Option<Origin> {
        if !self.options.defer || (tensors.inputs.is_empty() && *rule != OpRule::Create) {
            return None;
        }
        tensors
            .inputs
            .iter()
            .try_fold(Origin::Constants, |origin, input| {
                Some(origin.max(self.value(input.id).origin?))
            })
    }

    /// Returns the rows of data that has fewer of them than there are parts, if an operation makes nothing but another
    /// view or function of such data.
    pub(super) fn few_rows(
        &self,
        op: &O,
        tensors: &Tensors<'_>,
        origin: Option<Origin>,
    ) -> Option<usize> {
        let out = tensors.outputs.first()?;
        if origin != Some(Origin::Data) || op.traits().joins == Some(0) {
            return None;
        }
        let mut most = None;
        for input in &tensors.inputs {
            let info = self.value(input.id);
            let same = input.numel() == out.numel() || input.shape.first() == out.shape.first();
            if info.origin == Some(Origin::Data) {
                most = most.max(Some(info.few_rows.filter(|_| same)?));
            }
        }
        most
    }

    /// Returns the preferred layout and chain length of the results if the operation can wait until it is known where
    /// they are used: all its inputs are free, or they are whole everywhere and smaller than the result (an expansion).
    /// Products of data are real work, of which each rank does its part.
    pub(super) fn deferrable(
        &self,
        op: &O,
        rule: &OpRule,
        tensors: &Tensors<'_>,
        origin: Option<Origin>,
    ) -> Option<(Layout, u32)> {
        if !self.options.defer || tensors.outputs.len() != 1 {
            return None;
        }
        if origin != Some(Origin::Constants) && is_product(op) {
            return None;
        }
        let out = &tensors.outputs[0];
        let mut depth = 0;
        let mut free = 0;
        let mut placed_elements = 0;
        for input in &tensors.inputs {
            let value = self.value(input.id);
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
                    // It is whole for no other reason than the end of its window: any part of it is as free as before.
                    if value.origin.is_some() && self.loaded[input.id as usize] != Slot::MAX {
                        free += 1;
                        continue;
                    }
                    placed_elements += input.numel();
                }
            }
        }
        if depth > DEFERRED_DEPTH_MAX {
            return None;
        }
        if placed_elements > 0 {
            let grows = placed_elements < out.numel();
            let expands = tensors.inputs.len() == 1;
            if !grows || !(free > 0 || expands) {
                return None;
            }
        }
        let preferred = match rule {
            OpRule::Create => Layout::replicated(out.shape),
            OpRule::Factors(rule) => self.preferred(op, rule, tensors, origin),
            OpRule::Reshape => self.preferred_reshape(tensors, origin),
            OpRule::Replicated(_) => return None,
        };
        Some((preferred, depth))
    }

    /// Returns the layout of what is made of data where nothing decides.
    fn batch(&self, shape: &[usize]) -> Layout {
        match self.options.split_batches {
            true => of_batch(self.mesh, shape),
            false => Layout::replicated(shape),
        }
    }

    /// Returns the layout that a value has any part of which every rank can take, if nothing else decides.
    pub(super) fn own_layout(&self, value: ValueIndex) -> Option<Arc<Layout>> {
        let info = self.value(value);
        if info.is_free() {
            return Some(info.preferred.clone());
        }
        let mut versions = info.versions_at(self.now);
        let is_whole = versions.any(|version| version.layout.is_replicated());
        let is_data = is_whole && info.origin == Some(Origin::Data);
        is_data.then(|| self.batch(&info.shape).into())
    }

    /// Returns the layout of the first decided value that a value is tied to. What is at rest says nothing of others.
    pub(super) fn tied_layout(&self, value: ValueIndex) -> Option<Arc<Layout>> {
        let decided = self.tied[self.state.facts.tied_to[value as usize] as usize]?;
        let layout = &self.value(decided).versions.first()?.layout;
        (layout.at_rest.is_empty() && !layout.has_partial()).then(|| layout.clone())
    }

    /// Returns the layout that a value has, or would take by itself, if it is not decided.
    fn leaning(&self, value: ValueIndex) -> Layout {
        let info = self.value(value);
        if info.is_free() && info.versions.is_empty() {
            return info.preferred.gathered();
        }
        match info.versions_at(self.now).next() {
            Some(version) if !info.decides() => {
                let mut layout = version.layout.gathered();
                layout.partial.clear();
                layout
            }
            _ => Layout::replicated(&info.shape),
        }
    }

    /// Follows the preferred layouts of undecided inputs through a rule: the first input that prefers a split of a
    /// factor decides. Rows of an input that are not the rows of the result are no batch, unless a view moved them.
    /// Where that leads to no split, dim 0 of what is made of data is the batch; so it is where rows are put together.
    pub(super) fn preferred(
        &self,
        op: &O,
        rule: &Rule,
        tensors: &Tensors<'_>,
        origin: Option<Origin>,
    ) -> Layout {
        let mut assignment = rule.unsplit();
        let mut used: Vec<AxisIndex> = Vec::new();
        let output = &rule.outputs[0];
        for (operand, input) in rule.inputs.iter().zip(&tensors.inputs) {
            if operand.shape_only {
                continue;
            }
            let moves =
                rule.partial == PartialRule::Move && operand.dims.len() == output.dims.len();
            let preferred = self.leaning(input.id);
            for (position, (factor, dim)) in operand.dims.iter().zip(&preferred.dims).enumerate() {
                let Some(factor) = *factor else { continue };
                if position == 0 && !moves && output.dims[0] != Some(factor) {
                    continue;
                }
                let axes: Vec<AxisIndex> = dim.axes().collect();
                let slot = &mut assignment.factors[factor as usize];
                if rule.factors[factor as usize].kind == FactorKind::Map
                    && !axes.is_empty()
                    && slot.is_whole()
                    && !axes.iter().any(|axis| used.contains(axis))
                {
                    let Some(split) = rule.factors[factor as usize].split_as(dim, self.mesh) else {
                        continue;
                    };
                    used.extend(axes);
                    *slot = split;
                }
            }
        }
        let layout = rule.output_layout(output, &assignment);
        match origin {
            Some(Origin::Data) if self.value(tensors.outputs[0].id).few_rows.is_some() => layout,
            Some(Origin::Data) if used.is_empty() || op.traits().joins == Some(0) => {
                self.batch(&output.shape)
            }
            _ => layout,
        }
    }

    /// As [`Self::preferred`]: rows that are rows no more are no batch.
    pub(super) fn preferred_reshape(
        &self,
        tensors: &Tensors<'_>,
        origin: Option<Origin>,
    ) -> Layout {
        let out_shape = tensors.outputs[0].shape;
        let before = self.leaning(tensors.inputs[0].id);
        let followed = before.reshape(self.mesh, out_shape);
        let followed = followed.map(|layout| simplify(layout, self.mesh));
        let few_rows = self.value(tensors.outputs[0].id).few_rows;
        if origin != Some(Origin::Data) || few_rows.is_some() {
            return followed.unwrap_or_else(|| Layout::replicated(out_shape));
        }
        let split = |layout: &Layout| layout.dims.iter().position(|dim| !dim.is_whole());
        match (split(&before), followed) {
            (Some(0), Some(layout)) if split(&layout) == Some(0) => layout,
            (Some(1..), Some(layout)) => layout,
            _ => self.batch(out_shape),
        }
    }

    /// Computes a free value in `layout`: every rank makes just its part.
    pub(super) fn materialize(
        &mut self,
        value: ValueIndex,
        layout: &Arc<Layout>,
    ) -> Result<Slot, PlanError> {
        let elem_bytes = self.value(value).dtype.size();
        let op = match self.value(value).source {
            Source::Host => {
                let made = Arc::new(layout.resolved());
                let slot = self.add_version(value, made.clone());
                self.program.steps.push(ProgramStep::Upload { value, slot });
                // Terms are made as those of every other value.
                let steps = self.moves.plan(&made, layout, elem_bytes)?;
                return Ok(self.redistribute(value, slot, &steps, Reason::Constraint("terms")));
            }
            Source::Deferred { op, .. } => op,
            Source::Versions => return Err(PlanError::NoVersion { value }),
        };
        let rule = self.rule(op);
        let tensors = tensors(self.op(op));
        let reason = Reason::Operand(self.op(op).name());
        let mut made = layout.resolved();
        made.at_rest.clear();
        match rule.as_ref() {
            OpRule::Create => {
                let split = self.pools.split(Split::of_layouts([], [made.clone()]));
                self.make(op, &rule, split);
            }
            OpRule::Factors(factors) => {
                let mut assignment = factors.unsplit();
                for (dim, factor) in factors.outputs[0].dims.iter().enumerate() {
                    let split = factor.and_then(|factor| {
                        let of_rule = factors.factors[factor as usize];
                        let asked = &made.dims[dim];
                        let is_allowed = allows(of_rule.kind, asked, self.mesh);
                        let split = of_rule.split_as(asked, self.mesh);
                        Some((factor, split.filter(|_| is_allowed)?))
                    });
                    match split {
                        Some((factor, split)) => assignment.factors[factor as usize] = split,
                        None => made.dims[dim] = DimLayout::whole(made.dims[dim].size()),
                    }
                }
                let mut split = Split::new(factors, assignment);
                split.outputs = vec![Arc::new(made.clone())];
                let split = self.pools.split(split);
                self.compute(op, &rule, split, reason.clone())?;
            }
            OpRule::Reshape => {
                let input = &tensors.inputs[0];
                let needed = match made.reshape(self.mesh, input.shape) {
                    Some(needed) => simplify(needed, self.mesh),
                    None => {
                        made = Layout::replicated(&made.shape());
                        Layout::replicated(input.shape)
                    }
                };
                let split = self
                    .pools
                    .split(Split::of_layouts([needed], [made.clone()]));
                self.compute(op, &rule, split, reason.clone())?;
            }
            OpRule::Replicated(_) => return Err(PlanError::NoVersion { value }),
        }
        let versions = &self.value(value).versions;
        let slot = versions.last().ok_or(PlanError::NoVersion { value })?.slot;
        // What the operation could not split, a local slice does.
        let steps = self.moves.plan(&made.into(), layout, elem_bytes)?;
        Ok(self.redistribute(value, slot, &steps, reason))
    }
}
