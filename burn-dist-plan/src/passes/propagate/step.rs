//! One operation: how it is split, what it takes to have its operands so, and the step that it becomes.

use std::sync::Arc;

use super::Propagator;
use super::choice::{Reasons, choose};
use super::offers::Offers;
use super::operands::{Tensors, module_path, tensors};
use super::split::Split;
use super::versions::shard_axes;
use super::view::{Hints, OpView, ResultView};
use crate::PlanError;
use crate::ir::flops::flops;
use crate::ir::{
    Adjoint, Indexing, Layer, LocalStep, Op, OpIndex, Origin, ProgramStep, Reason, Slot, Source,
    ValueIndex,
};
use crate::layout::{Layout, simplify};
use crate::rule::{OpRule, PartialRule, Rule};

impl<'a, O: Op> Propagator<'a, O> {
    /// Returns an operation of the window.
    pub(super) fn op(&self, index: OpIndex) -> &'a O {
        &self.state.window.ops[index as usize]
    }

    /// Returns the rule of an operation; some take sums, not terms of sums.
    pub(super) fn rule(&mut self, index: OpIndex) -> Arc<OpRule> {
        let rule = &self.state.facts.rules[index as usize];
        match rule.as_ref() {
            OpRule::Factors(factors)
                if self.state.reduces_first.get(index as usize) == Some(&true) =>
            {
                let resolved = Rule {
                    partial: PartialRule::Resolve,
                    ..factors.clone()
                };
                self.pools.rules.share(OpRule::Factors(resolved))
            }
            _ => rule.clone(),
        }
    }

    /// Plans an operation.
    pub(super) fn operation(&mut self, index: OpIndex) -> Result<(), PlanError> {
        self.now = index;
        let op = self.op(index);
        let tensors = tensors(op);
        let specs = tensors.inputs.iter();
        let mut specs = specs.filter_map(|input| self.value(input.id).tag.as_ref());
        if let Some(spec) = specs.next_back() {
            let path = module_path(&spec.path);
            if self.path.as_deref() != Some(path) {
                self.path = Some(path.into());
            }
        }
        if let Some(mark) = op.mark() {
            return self.mark(mark, &tensors);
        }
        let rule = self.rule(index);
        let origin = self.origin(&rule, &tensors);
        let few_rows = self.few_rows(op, &tensors, origin);
        for out in &tensors.outputs {
            let value = &mut self.values[out.id as usize];
            value.origin = origin;
            value.few_rows = few_rows;
        }
        for input in &tensors.inputs {
            self.values[input.id as usize].met |= origin.is_none();
        }
        if let Some((preferred, depth)) = self.deferrable(op, &rule, &tensors, origin) {
            for out in &tensors.outputs {
                let resting = self.resting(op, out.id, &preferred);
                let value = &mut self.values[out.id as usize];
                value.source = Source::Deferred { op: index, depth };
                value.preferred = Arc::new(resting.unwrap_or_else(|| preferred.clone()));
            }
            return Ok(());
        }
        match rule.as_ref() {
            OpRule::Factors(factors) => self.factors(&rule, factors, &tensors, origin)?,
            OpRule::Reshape => self.reshape(&rule, &tensors, origin)?,
            OpRule::Create => {
                // Only reached where deferring is off: made whole, where it stands.
                let layout = Layout::replicated(tensors.outputs[0].shape);
                let split = self.pools.split(Split::of_layouts([], [layout]));
                self.make(index, &rule, split);
            }
            OpRule::Replicated(_) => {
                let whole = |tensor: &crate::ir::Tensor<'_>| Layout::replicated(tensor.shape);
                let inputs = tensors.inputs.iter().map(whole);
                let split = Split::of_layouts(inputs, tensors.outputs.iter().map(whole));
                let split = self.pools.split(split);
                self.compute(index, &rule, split, Reason::Operand(op.name()))?;
            }
        }
        self.bring_home(op, &tensors)
    }

    /// Returns how the operation at hand is split: equal views are split alike.
    fn choose(&mut self, view: OpView) -> Split {
        let outputs = self.op(self.now).outputs();
        let mut asked = outputs.filter(|out| self.asked == Some(out.id));
        let is_asked = asked.next().is_some();
        if let (Some(split), false) = (self.chosen.get(&view), is_asked) {
            return split.clone();
        }
        let mut offers = Offers::new(&view, &mut self.moves);
        let choice = choose(&view, &offers);
        if is_asked {
            let reasons = Reasons {
                choice: &choice,
                offers: &offers,
                mesh: self.mesh,
            };
            self.why = Some(reasons.to_string());
        }
        let taken = offers.splits.swap_remove(choice.taken.offer);
        let split = self.pools.split(taken.split);
        self.chosen.insert(view, split.clone());
        split
    }

    /// Returns an operation as the choice of a split sees it.
    fn view(&self, rule: &Arc<OpRule>, tensors: &Tensors<'_>, hints: Hints) -> OpView {
        let out = &tensors.outputs[0];
        let policy = &self.value(out.id).owner.policy;
        let inputs = tensors.inputs.iter();
        OpView {
            rule: rule.clone(),
            inputs: inputs.map(|input| self.operand(input.id)).collect(),
            result: ResultView {
                dtypes: tensors.outputs.iter().map(|out| out.dtype).collect(),
                tied: self.tied_layout(out.id),
                is_backward: self.state.facts.backward[out.id as usize],
                accumulation: policy.accumulation,
                context: policy.context,
            },
            hints,
        }
    }

    fn factors(
        &mut self,
        shared: &Arc<OpRule>,
        rule: &Rule,
        tensors: &Tensors<'_>,
        origin: Option<Origin>,
    ) -> Result<(), PlanError> {
        let op = self.op(self.now);
        let (kind, traits) = (op.name(), op.traits());
        self.note_rows(rule, tensors, origin);
        let forced = match traits.layer {
            Some(Layer::Linear) => self.constrain_input(tensors)?,
            _ => None,
        };
        let indices = match traits.adjoint {
            Some(Adjoint::Read { indices, .. } | Adjoint::Written { indices }) => {
                Some(self.state.facts.first_shape(tensors.inputs[indices].id))
            }
            _ => None,
        };
        let mirror = match (traits.indexing, indices) {
            (Some((Indexing::Write, dim)), Some(indices))
                if self.value(tensors.inputs[0].id).is_free() =>
            {
                let mirror = self.mirrors.get(&(indices, dim));
                mirror
                    .filter(|layout| layout.shape() == tensors.inputs[0].shape)
                    .cloned()
            }
            _ => None,
        };
        let is_data = origin == Some(Origin::Data);
        let on_pieces = self.on_pieces(rule, tensors);
        let home = self.updates(rule, tensors);
        let hints = Hints {
            forced,
            mirror,
            home: home.clone(),
            on_pieces,
            batch: is_data.then(|| self.preferred(op, rule, tensors, origin)),
            joins_rows: is_data && traits.joins == Some(0),
            flops: flops(op, shared).into(),
            ..Hints::default()
        };
        let mut split = self.choose(self.view(shared, tensors, hints));
        let kept = split.assignment.as_ref().map_or(&[][..], |of| &of.kept);
        if rule.partial == PartialRule::JointLinear
            && tensors.inputs.len() > 1
            && self.is_gradient(tensors.outputs[0].id, kept)
        {
            self.program.accumulated.added += 1;
        }
        if let (Some((Indexing::Read, dim)), Some(indices)) = (traits.indexing, indices) {
            let layout = split.inputs[0].as_ref().clone();
            self.mirrors.insert((indices, dim), layout);
        }
        let is_home = home.is_some_and(|home| split.outputs[0].dims == home.dims);
        if on_pieces && (is_home || self.rests(rule, tensors, &split)) {
            let inputs = rule.inputs.iter().zip(&mut split.inputs);
            let inputs = inputs.filter(|(operand, _)| !operand.shape_only);
            let inputs = inputs.map(|(_, layout)| layout);
            for layout in inputs.chain(&mut split.outputs) {
                let at_rest = shard_axes(self.mesh, layout);
                if layout.at_rest != at_rest {
                    let mut resting = layout.as_ref().clone();
                    resting.at_rest = at_rest;
                    *layout = self.pools.layouts.share(resting);
                }
            }
        }
        self.compute(self.now, shared, split, Reason::Operand(kind))?;
        let passes_on = traits.is_cast || self.adds_parameters(rule, tensors);
        if passes_on && let Some(waiting) = self.unflattened.get_mut(&tensors.inputs[0].id) {
            waiting.is_applied = true;
            let tag = waiting.tag.clone();
            for out in &tensors.outputs {
                self.wait_for_reshape(out.id, tag.clone());
            }
        }
        let weight = match traits.layer {
            Some(Layer::Linear) => 1,
            Some(Layer::Lookup) => 0,
            None => return Ok(()),
        };
        match self.value(tensors.inputs[weight].id).tag.clone() {
            Some(tag) => self.constrain_result(&tag, tensors),
            None => Ok(()),
        }
    }

    /// Returns the layouts that a reshape of a value may start from.
    fn sources(&self, value: ValueIndex) -> Vec<Layout> {
        let info = self.value(value);
        if info.is_free() && info.versions.is_empty() {
            return vec![info.preferred.gathered()];
        }
        let versions = info.versions_at(self.now);
        let sources = versions.map(|version| match version.layout.gathered() {
            layout if layout.has_partial() && !info.single_use() => self.resolved(value, &layout),
            layout => layout,
        });
        sources.collect()
    }

    /// Returns true for an operation that adds parameters, or views of them, to its first input, and nothing else.
    fn adds_parameters(&self, rule: &Rule, tensors: &Tensors<'_>) -> bool {
        let facts = &self.state.facts;
        let is_parameter = |value: ValueIndex| {
            facts.view_of[value as usize].is_some() || facts.parameter(value).is_some()
        };
        // A bias may have fewer dims, or stretch.
        let keeps_shape = tensors.inputs[0].shape == tensors.outputs[0].shape;
        let adds = keeps_shape && rule.partial == PartialRule::JointLinear;
        let mut others = tensors.inputs.iter().skip(1);
        adds && tensors.inputs.len() > 1 && others.all(|input| is_parameter(input.id))
    }

    fn reshape(
        &mut self,
        rule: &Arc<OpRule>,
        tensors: &Tensors<'_>,
        origin: Option<Origin>,
    ) -> Result<(), PlanError> {
        let (input, reason) = (&tensors.inputs[0], Reason::Operand("reshape"));
        if origin == Some(Origin::Data) {
            let to = self.preferred_reshape(tensors, origin);
            if let Some(from) = to.reshape(self.mesh, input.shape) {
                let split = Split::of_layouts([simplify(from, self.mesh)], [to]);
                let split = self.pools.split(split);
                return self.compute(self.now, rule, split, reason);
            }
        }
        let hints = Hints {
            sources: self.sources(input.id),
            shape: tensors.outputs[0].shape.to_vec(),
            ..Hints::default()
        };
        let split = self.choose(self.view(rule, tensors, hints));
        self.compute(self.now, rule, split, reason)?;
        let Some(waiting) = self.unflattened.get_mut(&input.id) else {
            return Ok(());
        };
        waiting.is_applied = true;
        let tag = waiting.tag.clone();
        self.constrain_result(&tag, tensors)
    }

    /// Brings the operands of an operation into the layouts that a split needs, and writes its step.
    pub(super) fn compute(
        &mut self,
        index: OpIndex,
        rule: &Arc<OpRule>,
        split: Split,
        reason: Reason,
    ) -> Result<(), PlanError> {
        let mut slots = Vec::with_capacity(split.inputs.len());
        let inputs = self.op(index).inputs().zip(&split.inputs);
        for (position, (input, layout)) in inputs.enumerate() {
            let is_shape = matches!(&**rule, OpRule::Factors(of) if of.inputs[position].shape_only);
            slots.push(match is_shape {
                true => Slot::MAX,
                false => self.require(input.id, layout, reason.clone())?,
            });
        }
        self.emit(index, rule, &slots, split);
        Ok(())
    }

    /// Writes the step of an operation that reads these slots.
    fn emit(&mut self, index: OpIndex, rule: &Arc<OpRule>, inputs: &[Slot], split: Split) {
        let of = self.op(index);
        let made = of.outputs().zip(&split.outputs);
        let made = made.map(|(out, layout)| self.add_version(out.id, layout.clone()));
        let made: Vec<Slot> = made.collect();
        let mut op = of.clone();
        crate::ir::rename(&mut op, inputs, &made);
        let step = LocalStep {
            op,
            rule: rule.clone(),
            assignment: split.assignment,
            inputs: split.inputs.into(),
            outputs: split.outputs.into(),
            path: self.path.clone(),
            of: index,
            at: self.now,
        };
        self.program.steps.push(ProgramStep::Local(Box::new(step)));
    }

    /// Makes what comes from nothing.
    pub(super) fn make(&mut self, index: OpIndex, rule: &Arc<OpRule>, split: Split) {
        let Some(&stream) = self.streams.get(&index) else {
            return self.emit(index, rule, &[], split);
        };
        let out = self.op(index).outputs().next();
        let out = out.expect("random numbers are a tensor").id;
        let slot = self.add_version(out, split.outputs[0].clone());
        let op = index;
        self.program
            .steps
            .push(ProgramStep::Random { op, stream, slot });
    }
}
