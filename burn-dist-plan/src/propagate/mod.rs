//! Propagation: picks a layout for every value of a window and inserts the redistributions, as a program over slots
//! common to all ranks.
//!
//! | file | idea |
//! | --- | --- |
//! | `options`, `choice` | the ways an operation may be split, and the cheapest of them |
//! | `versions` | the layouts in which a value exists, getting it in another one, where partial values go |
//! | `free` | constants, random values and host data: placed by their use |
//! | `module`, `owners` | what parameters ask for, and which parameter a gradient belongs to |
//! | `program`, `values`, `operands`, `pool` | the data all of that works on |

mod choice;
mod free;
mod module;
mod operands;
mod options;
mod owners;
mod pool;
mod program;
mod values;
mod versions;

use std::collections::HashMap;
use std::sync::Arc;

use crate::mesh::DType;
use crate::op::{Adjoint, Indexing, Layer, Op};

use crate::cost::{Network, work_ns};
use crate::explain::Accumulated;
use crate::facts::Facts;
use crate::flops::flops;
use crate::layout::redistribute::Step;
use crate::layout::{Layout, by_rows};
use crate::mesh::{AxisIndex, AxisRole, MeshShape};
use crate::param::ParamSpec;
use crate::rule::{Assignment, FactorKind, OpRule, PartialRule, Rule};
use crate::task::Slot;
use crate::units::Visits;
use crate::window::{Entry, InputState, Origin, ValueIndex, Window};
use crate::{PlanError, PlanOptions};
use operands::{Hints, Tensors, module_path, tensors};
use options::{Cost, simplify};
use pool::Pool;
use values::{SlotInfo, Source, Value};

pub(super) use program::{Common, LocalStep, Move, OnNodes, Outlives, Program, Reason};
pub(super) use values::OpIndex;

/// An output layout that waits for its module's result to be reshaped.
struct Unflattened {
    tag: Arc<ParamSpec>,
    /// Whether it was.
    is_applied: bool,
}

pub(super) struct Propagator<'a, O> {
    mesh: &'a MeshShape,
    options: &'a PlanOptions,
    window: &'a Window<O>,
    values: Vec<Value>,
    facts: &'a Facts,
    slots: Vec<SlotInfo>,
    steps: Vec<Common<O>>,
    rules: Vec<Option<Arc<OpRule>>>,
    streams: HashMap<OpIndex, u64>,
    /// The slot into which a value from outside is loaded, else [`Slot::MAX`].
    loaded: Vec<Slot>,
    /// Layouts in which tensors were read at indices along a dim, by these: the gradient of that read is best made in
    /// the same.
    mirrors: HashMap<(ValueIndex, usize), Layout>,
    /// Results of modules whose output layout has more dims: it applies once they are reshaped.
    unflattened: HashMap<ValueIndex, Unflattened>,
    network: Network<'a>,
    layouts: Pool<Layout>,
    rules_known: Pool<OpRule>,
    assignments: Pool<Assignment>,
    redistributions: Pool<Step>,
    /// Nanoseconds of redistributions.
    costs: HashMap<(Arc<Layout>, Layout, usize), f64>,
    visits: &'a Visits,
    /// Operations (casts) that take sums, not terms of sums; empty if there are none.
    reduces_first: &'a [bool],
    accumulated: Accumulated,
    /// Rows of the batch, as far as known.
    rows: usize,
    /// Module path of the last parameter used.
    path: Option<Arc<str>>,
    now: OpIndex,
}

/// Plans the layouts of a window.
pub(super) fn propagate<'a, O: Op>(
    window: &'a Window<O>,
    mesh: &'a MeshShape,
    options: &'a PlanOptions,
    facts: &'a Facts,
    visits: &'a Visits,
    reduces_first: &'a [bool],
) -> Result<Program<O>, PlanError> {
    let mut propagator = Propagator::new(window, mesh, options, facts, visits);
    propagator.reduces_first = reduces_first;
    for index in 0..window.ops.len() {
        propagator.now = index as OpIndex;
        propagator.operation(index as OpIndex)?;
    }
    propagator.finish()
}

impl<'a, O: Op> Propagator<'a, O> {
    fn new(
        window: &'a Window<O>,
        mesh: &'a MeshShape,
        options: &'a PlanOptions,
        facts: &'a Facts,
        visits: &'a Visits,
    ) -> Self {
        let empty = Value {
            shape: Vec::new(),
            dtype: DType::F32,
            source: Source::Versions,
            versions: Vec::new(),
            preferred: Arc::new(Layout::replicated(&[])),
            origin: None,
            few_rows: false,
            met: false,
            tag: None,
            home: None,
            strategy: None,
            uses: Vec::new(),
            survives: false,
        };
        let mut values = vec![empty; window.dies.len()];
        let mut streams = HashMap::new();
        for (index, op) in window.ops.iter().enumerate() {
            if op.traits().is_random {
                let stream = streams.len() as u64;
                streams.insert(index as OpIndex, stream);
            }
            let tensors = tensors(op);
            for (value, ..) in tensors.inputs {
                values[value as usize].uses.push(index as OpIndex);
            }
            for (value, shape, dtype) in tensors.outputs {
                let value = &mut values[value as usize];
                value.shape = shape;
                value.dtype = dtype;
            }
        }
        for (value, dies) in values.iter_mut().zip(&window.dies) {
            value.survives = !dies;
        }
        for &read in &window.reads {
            values[read as usize].survives = true;
        }
        for (value, strategy) in values
            .iter_mut()
            .zip(owners::strategies(window, facts, visits))
        {
            value.strategy = strategy;
        }
        let mut this = Self {
            mesh,
            options,
            window,
            facts,
            values,
            slots: Vec::new(),
            steps: Vec::new(),
            rules: vec![None; window.ops.len()],
            streams,
            loaded: vec![Slot::MAX; window.dies.len()],
            mirrors: HashMap::new(),
            unflattened: HashMap::new(),
            network: Network::new(mesh, &options.links, &options.topology),
            layouts: Pool::default(),
            rules_known: Pool::default(),
            assignments: Pool::default(),
            redistributions: Pool::default(),
            costs: HashMap::new(),
            visits,
            reduces_first: &[],
            accumulated: Accumulated::default(),
            rows: 0,
            path: None,
            now: 0,
        };
        for (value, param) in facts.update_of.iter().enumerate() {
            this.values[value].tag = facts.roles[value].parameter().cloned();
            this.values[value].home = param
                .as_ref()
                .map(|param| this.home(param))
                .filter(|home| !home.at_rest.is_empty())
                .map(Arc::new);
        }
        for input in &window.inputs {
            let value = &mut this.values[input.value as usize];
            value.shape = input.shape.clone();
            value.dtype = input.dtype;
            match &input.state {
                InputState::Placed {
                    layout,
                    role: _,
                    origin,
                } => {
                    value.origin = origin.filter(|_| options.defer);
                    value.few_rows = value.origin == Some(Origin::Data)
                        && by_rows(mesh, &input.shape).is_replicated();
                    value.preferred = layout.clone();
                    let slot = this.add_version(input.value, layout.clone());
                    this.loaded[input.value as usize] = slot;
                    this.steps.push(Common::Load {
                        value: input.value,
                        slot,
                    });
                }
                InputState::Host { preferred, entry } => {
                    value.preferred = preferred.clone();
                    match entry {
                        Entry::Free(origin) if options.fuzz.is_none() => {
                            value.source = Source::Host;
                            value.origin = Some(*origin);
                            value.few_rows = *origin == Origin::Data
                                && by_rows(mesh, &input.shape).is_replicated();
                        }
                        Entry::Free(_) | Entry::Rows => {
                            let slot = this.add_version(input.value, preferred.clone());
                            this.steps.push(Common::Upload {
                                value: input.value,
                                slot,
                            });
                        }
                    }
                }
            }
        }
        this
    }

    /// Notes how many rows of data an operation takes, or of a batch that was placed before. Data whose dim 0 is not
    /// the one of the result is a table that rows are combined with.
    fn note_rows(&mut self, rule: &Rule, tensors: &Tensors, origin: Option<Origin>) {
        let leading = rule.outputs[0].dims.first();
        for (operand, (value, shape, _)) in rule.inputs.iter().zip(&tensors.inputs) {
            let info = self.value(*value);
            let placed = match info.versions.first() {
                Some(version) => {
                    info.tag.is_none()
                        && info.home.is_none()
                        && !self.facts.of_layer[*value as usize]
                        && version.layout.at_rest.is_empty()
                        && version.layout.dims.first().is_some_and(|dim| {
                            dim.axes()
                                .any(|axis| self.mesh.role(axis) != AxisRole::Model)
                        })
                }
                None => false,
            };
            if info.few_rows || (!placed && info.origin != Some(Origin::Data)) {
                continue;
            }
            let is_table = |dim| origin != Some(Origin::Data) && leading != Some(dim);
            let is_rows = |factor: &u8| {
                let kind = rule.factors[*factor as usize].kind;
                matches!(kind, FactorKind::Map | FactorKind::Reduce(_))
            };
            let rows = match operand.dims.first() {
                Some(dim) if is_table(dim) => 0,
                Some(Some(factor)) if is_rows(factor) => shape[0],
                Some(None) => 1,
                _ => 0,
            };
            self.rows = self.rows.max(rows);
        }
    }

    fn value(&self, value: ValueIndex) -> &Value {
        &self.values[value as usize]
    }

    fn operation(&mut self, index: OpIndex) -> Result<(), PlanError> {
        let window = self.window;
        let op = &window.ops[index as usize];
        let tensors = tensors(op);
        for (value, ..) in &tensors.inputs {
            if let Some(tag) = &self.values[*value as usize].tag {
                self.path = Some(module_path(&tag.path));
            }
        }
        if let Some(mark) = op.mark() {
            return self.mark(mark, &tensors);
        }
        let mut rule = op.rule();
        if let OpRule::Factors(factors) = &mut rule
            && self.reduces_first.get(index as usize) == Some(&true)
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
        let choice = self.choose(rule, tensors, &hints);
        if rule.partial == PartialRule::JointLinear
            && tensors.inputs.len() > 1
            && self.is_gradient(tensors.outputs[0].0, &choice.assignment.kept)
        {
            self.accumulated.added += 1;
        }
        if let (Some((Indexing::Read, dim)), Some(indices)) = (traits.indexing, indices) {
            let layout = self.needed(rule, 0, &choice.assignment);
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
            let mut layout = self.needed(rule, position, &choice.assignment);
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
        if traits.is_cast
            && let Some(waiting) = self.unflattened.get_mut(&tensors.inputs[0].0)
        {
            waiting.is_applied = true;
            let tag = waiting.tag.clone();
            self.wait_for_reshape(tensors.outputs[0].0, tag);
        }
        if let Some(layer) = traits.layer {
            self.constrain_output(layer, tensors)?;
        }
        Ok(())
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
                let mut cost = self.require_cost(*value, &from, false);
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
    fn emit(
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
        crate::rename::rename(&mut op, inputs, &slots[inputs.len()..]);
        self.steps.push(Common::Local(Box::new(LocalStep {
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
            at: self.now,
        })));
        Ok(())
    }

    fn make(
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
            self.steps.push(Common::Random {
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

    fn finish(mut self) -> Result<Program<O>, PlanError> {
        self.now = self.window.ops.len() as OpIndex;
        self.check_applied()?;
        // What survives is no business of the last module used.
        self.path = None;
        let mut reads = Vec::new();
        for &value in &self.window.reads {
            let mut slot = self.settled(value, Reason::Read)?;
            if self.options.everyone_reads {
                let whole = Layout::replicated(&self.value(value).shape);
                slot = self.require(value, &whole, Reason::Read)?;
            }
            reads.push((slot, value));
        }
        let mut outputs = Vec::new();
        for (value, dies) in self.window.dies.iter().enumerate() {
            if *dies {
                continue;
            }
            let value = value as ValueIndex;
            if self.value(value).source == Source::Host && self.value(value).versions.is_empty() {
                continue;
            }
            let slot = self.settled(value, Reason::Survivor)?;
            if slot == self.loaded[value as usize] {
                continue; // Untouched: it stays where it was.
            }
            let info = self.value(value);
            outputs.push(Outlives {
                value,
                layout: self.slots[slot as usize].layout.clone(),
                role: self.facts.roles[value as usize].clone(),
                origin: info.origin.filter(|_| !info.met),
            });
            self.steps.push(Common::Store { slot, value });
        }
        for (index, (slot, _)) in reads.iter().enumerate() {
            self.steps.push(Common::Read {
                slot: *slot,
                read: index as u32,
            });
        }
        let num_streams = self.streams.len() as u64;
        Ok(Program {
            steps: self.steps,
            slots: self.slots,
            values: self.values,
            outputs,
            reads,
            num_streams,
            accumulated: self.accumulated,
            rows: self.rows,
        })
    }
}
