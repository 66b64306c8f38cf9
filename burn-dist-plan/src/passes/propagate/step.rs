//! One operation: how it is split, what it takes to have its operands so, and the step that it becomes.

use std::sync::Arc;

use super::Propagator;
use super::choice::{choose, needed};
use super::operands::{Hints, Tensors, module_path, tensors};
use super::options::Cost;
use crate::PlanError;
use crate::cost::work_ns;
use crate::ir::flops::flops;
use crate::ir::{
    Adjoint, Indexing, Layer, LocalStep, Op, OpIndex, Origin, ProgramStep, Reason, Slot, Source,
    ValueIndex,
};
use crate::layout::{Layout, simplify};
use crate::mesh::AxisIndex;
use crate::rule::{Assignment, OpRule, PartialRule, Rule};

impl<O: Op> Propagator<'_, O> {
    /// Makes an operation the one at hand.
    pub(super) fn enter(&mut self, index: OpIndex) {
        self.now = index;
        for input in self.window.ops[index as usize].inputs() {
            if let Some(tag) = &self.values[input.id as usize].tag {
                self.path = Some(module_path(&tag.path));
            }
        }
    }

    /// Whether an operation takes sums, not terms of sums.
    pub(super) fn reduces_first(&self, index: OpIndex) -> bool {
        self.reduces_first.get(index as usize) == Some(&true)
    }

    /// Plans the operation at hand.
    pub(super) fn operation(&mut self, index: OpIndex) -> Result<(), PlanError> {
        let window = self.window;
        let op = &window.ops[index as usize];
        let tensors = tensors(op);
        if let Some(mark) = op.mark() {
            return self.mark(mark, &tensors);
        }
        let mut rule = op.rule();
        if let OpRule::Factors(factors) = &mut rule
            && self.reduces_first(index)
        {
            factors.partial = PartialRule::Resolve;
        }
        let rule = self.rules_known.share(rule);
        self.rules[index as usize] = Some(rule.clone());
        let origin = self.origin(&rule, &tensors);
        let few_rows = self.few_rows(op, &tensors, origin);
        for (value, ..) in &tensors.outputs {
            let value = &mut self.values[*value as usize];
            value.origin = origin;
            value.few_rows = few_rows;
        }
        for (value, ..) in &tensors.inputs {
            self.values[*value as usize].met |= origin.is_none();
        }
        if let Some((preferred, depth)) = self.deferrable(op, &rule, &tensors, origin) {
            for (out, ..) in &tensors.outputs {
                let resting = self.resting(op, *out, &preferred);
                let value = &mut self.values[*out as usize];
                value.source = Source::Deferred { op: index, depth };
                value.preferred = Arc::new(resting.unwrap_or_else(|| preferred.clone()));
            }
            return Ok(());
        }
        match rule.as_ref() {
            OpRule::Factors(factors) => self.factors(index, &rule, factors, &tensors, origin)?,
            OpRule::Reshape => self.reshape(index, &rule, &tensors, origin)?,
            OpRule::Create => {
                // Only reached where deferring is off: made whole, where it stands.
                let layout = Layout::replicated(&tensors.outputs[0].1);
                self.make(index, &rule, None, &[], vec![layout], &tensors)?;
            }
            OpRule::Replicated(_) => {
                let mut slots = Vec::new();
                let mut layouts = Vec::new();
                for (value, shape, _) in &tensors.inputs {
                    let layout = Layout::replicated(shape);
                    slots.push(self.require(*value, &layout, Reason::Operand(op.name()))?);
                    layouts.push(layout);
                }
                let outputs = tensors
                    .outputs
                    .iter()
                    .map(|(_, shape, _)| Layout::replicated(shape))
                    .collect();
                self.emit(index, &rule, None, &slots, layouts, outputs, &tensors)?;
            }
        }
        self.bring_home(op, &tensors)
    }

    fn factors(
        &mut self,
        index: OpIndex,
        shared: &Arc<OpRule>,
        rule: &Rule,
        tensors: &Tensors,
        origin: Option<Origin>,
    ) -> Result<(), PlanError> {
        let op = &self.window.ops[index as usize];
        let (kind, traits) = (op.name(), op.traits());
        self.note_rows(rule, tensors, origin);
        let forced = match traits.layer {
            Some(Layer::Linear) => self.constrain_input(tensors)?,
            _ => None,
        };
        let indices = match traits.adjoint {
            Some(Adjoint::Read { indices, .. } | Adjoint::Written { indices }) => {
                Some(self.facts.first_shape(tensors.inputs[indices].0))
            }
            _ => None,
        };
        let mirror = match (traits.indexing, indices) {
            (Some((Indexing::Write, dim)), Some(indices))
                if self.value(tensors.inputs[0].0).is_free() =>
            {
                let mirror = self.mirrors.get(&(indices, dim));
                mirror
                    .filter(|layout| layout.shape() == tensors.inputs[0].1)
                    .cloned()
            }
            _ => None,
        };
        let is_data = origin == Some(Origin::Data);
        let home = self.updates(rule, tensors);
        let hints = Hints {
            forced,
            mirror,
            home: home.clone(),
            batch: is_data.then(|| self.preferred(op, rule, tensors, origin)),
            joins_rows: is_data && traits.joins == Some(0),
            flops: flops(op, shared),
        };
        let view = self.view(tensors, hints);
        let choice = choose(rule, &view, &mut self.moves);
        if rule.partial == PartialRule::JointLinear
            && tensors.inputs.len() > 1
            && self.is_gradient(tensors.outputs[0].0, &choice.assignment.kept)
        {
            self.accumulated.added += 1;
        }
        if let (Some((Indexing::Read, dim)), Some(indices)) = (traits.indexing, indices) {
            let layout = needed(rule, 0, &choice.assignment);
            self.mirrors.insert((indices, dim), layout);
        }
        let made = |home: &Arc<Layout>| {
            rule.output_layout(&rule.outputs[0], &choice.assignment)
                .dims
                == home.dims
        };
        let resting = rule.on_pieces()
            && (home.as_ref().is_some_and(made) || self.rests(rule, tensors, &choice.assignment));
        let mut slots = Vec::with_capacity(tensors.inputs.len());
        let mut layouts = Vec::with_capacity(tensors.inputs.len());
        for (position, (operand, (value, shape, _))) in
            rule.inputs.iter().zip(&tensors.inputs).enumerate()
        {
            if operand.shape_only {
                slots.push(Slot::MAX);
                layouts.push(Layout::replicated(shape));
                continue;
            }
            let mut layout = needed(rule, position, &choice.assignment);
            if resting {
                layout.at_rest = self.shard_axes(&layout);
            }
            slots.push(self.require(*value, &layout, Reason::Operand(kind))?);
            layouts.push(layout);
        }
        let mut outputs: Vec<Layout> = rule
            .outputs
            .iter()
            .map(|operand| rule.output_layout(operand, &choice.assignment))
            .collect();
        if resting {
            for output in &mut outputs {
                output.at_rest = self.shard_axes(output);
            }
        }
        self.emit(
            index,
            shared,
            Some(choice.assignment),
            &slots,
            layouts,
            outputs,
            tensors,
        )?;
        let passes_on = traits.is_cast || self.adds_parameters(rule, tensors);
        if passes_on && let Some(waiting) = self.unflattened.get_mut(&tensors.inputs[0].0) {
            waiting.is_applied = true;
            let tag = waiting.tag.clone();
            for (out, ..) in &tensors.outputs {
                self.wait_for_reshape(*out, tag.clone());
            }
        }
        if let Some(layer) = traits.layer {
            self.constrain_output(layer, tensors)?;
        }
        Ok(())
    }

    /// Returns true for an operation that adds parameters, or views of them, to its first input, and nothing else.
    fn adds_parameters(&self, rule: &Rule, tensors: &Tensors) -> bool {
        let is_parameter = |value: ValueIndex| {
            let view = self.facts.view_of[value as usize].is_some();
            view || self.facts.parameter(value).is_some()
        };
        let adds = rule.elementwise && rule.partial == PartialRule::JointLinear;
        let mut others = tensors.inputs.iter().skip(1);
        adds && tensors.inputs.len() > 1 && others.all(|(value, ..)| is_parameter(*value))
    }

    fn reshape(
        &mut self,
        index: OpIndex,
        rule: &Arc<OpRule>,
        tensors: &Tensors,
        origin: Option<Origin>,
    ) -> Result<(), PlanError> {
        let (value, in_shape, dtype) = &tensors.inputs[0];
        let (_, out_shape, _) = &tensors.outputs[0];
        if origin == Some(Origin::Data) {
            let to = self.preferred_reshape(tensors, origin);
            if let Some(from) = to.reshape(self.mesh, in_shape) {
                let from = simplify(from, self.mesh);
                let slot = self.require(*value, &from, Reason::Operand("reshape"))?;
                return self.emit(index, rule, None, &[slot], vec![from], vec![to], tensors);
            }
        }
        let info = self.value(*value);
        let mut sources: Vec<Layout> = Vec::new();
        if info.is_free() && info.versions.is_empty() {
            sources.push(info.preferred.gathered());
        } else {
            let single = info.single_use();
            let versions: Vec<Arc<Layout>> = info
                .versions_at(self.now)
                .map(|v| v.layout.clone())
                .collect();
            for layout in versions {
                let layout = layout.gathered();
                if layout.has_partial() && !single {
                    sources.push(self.resolved(*value, &layout));
                } else {
                    sources.push(layout);
                }
            }
        }
        let operand = self.operand(*value);
        // Keep as many axes as the reshape allows: the cheapest subset to give up, the fewest first.
        let mut best: Option<(Cost, Layout, Layout)> = None;
        for source in sources {
            let axes: Vec<AxisIndex> = source.dims.iter().flat_map(|dim| dim.axes()).collect();
            for dropped in 0u32..(1 << axes.len()) {
                let removed: Vec<AxisIndex> = axes
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| dropped & (1 << bit) != 0)
                    .map(|(_, &axis)| axis)
                    .collect();
                let mut from = source.clone();
                if !removed.is_empty() {
                    let partial = std::mem::take(&mut from.partial);
                    from = from.without_axes(&removed);
                    from.partial = partial;
                }
                let Some(to) = from.reshape(self.mesh, out_shape) else {
                    continue;
                };
                let to = simplify(to, self.mesh);
                let made = to.local_numel_max(self.mesh) * dtype.size();
                let mut cost = self.moves.cost(&operand, &from, false);
                cost.ns += work_ns(0.0, made as f64);
                if best.as_ref().is_none_or(|(c, ..)| cost < *c) {
                    best = Some((cost, from, to));
                }
            }
        }
        let (from, to) = match best {
            Some((_, from, to)) => (from, to),
            None => (
                Layout::replicated(&tensors.inputs[0].1),
                Layout::replicated(out_shape),
            ),
        };
        let slot = self.require(*value, &from, Reason::Operand("reshape"))?;
        self.emit(index, rule, None, &[slot], vec![from], vec![to], tensors)?;
        let Some(waiting) = self.unflattened.get_mut(value) else {
            return Ok(());
        };
        waiting.is_applied = true;
        let tag = waiting.tag.clone();
        self.constrain_result(&tag, tensors)
    }

    #[allow(clippy::too_many_arguments)] // The parts of one step, each from another place.
    pub(super) fn emit(
        &mut self,
        index: OpIndex,
        rule: &Arc<OpRule>,
        assignment: Option<Assignment>,
        inputs: &[Slot],
        input_layouts: Vec<Layout>,
        outputs: Vec<Layout>,
        tensors: &Tensors,
    ) -> Result<(), PlanError> {
        let mut slots = inputs.to_vec();
        for ((value, ..), layout) in tensors.outputs.iter().zip(&outputs) {
            slots.push(self.add_version(*value, Arc::new(layout.clone())));
        }
        let mut op = self.window.ops[index as usize].clone();
        crate::ir::rename(&mut op, inputs, &slots[inputs.len()..]);
        self.steps.push(ProgramStep::Local(Box::new(LocalStep {
            op,
            rule: rule.clone(),
            assignment: assignment.map(|assignment| self.assignments.share(assignment)),
            inputs: input_layouts
                .into_iter()
                .map(|layout| self.layouts.share(layout))
                .collect(),
            outputs: outputs
                .into_iter()
                .map(|layout| self.layouts.share(layout))
                .collect(),
            path: self.path.clone(),
            of: index,
            at: self.now,
        })));
        Ok(())
    }

    pub(super) fn make(
        &mut self,
        index: OpIndex,
        rule: &Arc<OpRule>,
        assignment: Option<Assignment>,
        inputs: &[Slot],
        outputs: Vec<Layout>,
        tensors: &Tensors,
    ) -> Result<(), PlanError> {
        if let Some(&stream) = self.streams.get(&index) {
            let slot = self.add_version(tensors.outputs[0].0, Arc::new(outputs[0].clone()));
            self.steps.push(ProgramStep::Random {
                op: index,
                stream,
                slot,
            });
            return Ok(());
        }
        self.emit(
            index,
            rule,
            assignment,
            inputs,
            Vec::new(),
            outputs,
            tensors,
        )
    }
}
