//! Propagation: picks a layout for every value of a window and inserts the redistributions, as a program over slots common to all ranks.

use std::collections::HashMap;
use std::sync::Arc;

use burn_backend::DType;
use burn_ir::{BaseOperationIr, FloatOperationIr, NumericOperationIr, OperationIr};

use super::choose::{Choice, Options, keep_cheaper, passing, simplify};
use super::task::Slot;
use super::values::{OpIndex, SlotInfo, Source, Value, Version};
use super::window::{InputState, ValueIndex, Window};
use super::{PlanError, PlanOptions};
use crate::layout::redistribute::{self, Step};
use crate::layout::{Layout, Partial};
use crate::mesh::{AxisIndex, AxisRole, MeshShape};
use crate::parallel::ParamSpec;
use crate::record::visit::{OpReader, kind_name, visit_ref};
use crate::rules::{self, Assignment, FactorKind, OpRule, PartialRule, Rule};

/// Chains of deferred operations are cut at this length: long ones are real work.
const DEFERRED_DEPTH_MAX: u32 = 24;
/// A gathered parameter is given up if its next use is at least this many operations away, and gathered again then.
const GATHERED_REACH_OPS: OpIndex = 96;
/// Moving a parameter off the axes it is pinned to costs as much as this many times the bytes.
const PIN_FACTOR: f64 = 1e4;
/// Added to the cost of a candidate that ignores the input layout a module asks for.
const FORCED: f64 = 1e15;
/// Cost per local byte of the result: breaks ties in favour of less local work.
const LOCAL_WORK: f64 = 1e-3;

/// One step of all ranks.
#[derive(Clone, Debug)]
pub(super) enum Common {
    Load {
        value: ValueIndex,
        slot: Slot,
    },
    Upload {
        value: ValueIndex,
        slot: Slot,
    },
    Random {
        op: OpIndex,
        stream: u64,
        slot: Slot,
    },
    Local(Box<LocalStep>),
    Move {
        step: Box<Step>,
        from: Slot,
        to: Slot,
        reason: Reason,
        path: Option<Arc<str>>,
    },
    Store {
        slot: Slot,
        value: ValueIndex,
    },
    Read {
        slot: Slot,
        read: u32,
    },
}

/// An operation to be localised for every rank.
#[derive(Clone, Debug)]
pub(super) struct LocalStep {
    /// Tensor ids are slots, shapes global.
    pub op: OperationIr,
    pub rule: Arc<OpRule>,
    pub assignment: Option<Assignment>,
    pub inputs: Vec<Layout>,
    pub outputs: Vec<Layout>,
    pub path: Option<Arc<str>>,
}

/// Why a redistribution is there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reason {
    /// An operation needs the operand in this layout.
    Operand(&'static str),
    /// A partial value outlives its window.
    Survivor,
    /// The user asked for it, or a parameter's `input` / `output` does.
    Constraint(&'static str),
    /// The host reads it.
    Read,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operand(kind) => write!(f, "operand of {kind}"),
            Self::Survivor => write!(f, "partial value outlives its window"),
            Self::Constraint(what) => write!(f, "{what}"),
            Self::Read => write!(f, "read by the host"),
        }
    }
}

/// The common program of a window.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub steps: Vec<Common>,
    pub slots: Vec<SlotInfo>,
    pub values: Vec<Value>,
    pub outputs: Vec<(ValueIndex, Arc<Layout>, Option<Arc<ParamSpec>>)>,
    pub reads: Vec<(Slot, ValueIndex)>,
    pub num_streams: u64,
}

/// What is known about an operation beyond its rule and operands.
struct Hints {
    /// An input that must have a layout, because the module asks for it.
    forced: Option<(usize, Layout)>,
    /// The layout that the result is wanted in.
    mirror: Option<Layout>,
}

/// How an operation uses indices.
#[derive(Clone, Copy, PartialEq)]
enum Indexing {
    Read,
    Write,
}

/// Returns the dim of its first input that an operation reads or writes by index.
fn indexed_dim(op: &OperationIr) -> Option<(Indexing, usize)> {
    let (OperationIr::BaseFloat(op) | OperationIr::BaseInt(op)) = op else {
        return None;
    };
    match op {
        BaseOperationIr::Gather(desc) => Some((Indexing::Read, desc.dim)),
        BaseOperationIr::Select(desc) => Some((Indexing::Read, desc.dim)),
        BaseOperationIr::Scatter(desc) => Some((Indexing::Write, desc.dim)),
        BaseOperationIr::SelectAssign(desc) => Some((Indexing::Write, desc.dim)),
        _ => None,
    }
}

/// Collects the tensors of an operation.
#[derive(Default)]
struct Tensors {
    inputs: Vec<(ValueIndex, Vec<usize>, DType)>,
    outputs: Vec<(ValueIndex, Vec<usize>, DType)>,
}

impl OpReader for Tensors {
    fn input(&mut self, t: &burn_ir::TensorIr) {
        self.inputs
            .push((t.id.value() as ValueIndex, t.shape.to_vec(), t.dtype));
    }

    fn output(&mut self, t: &burn_ir::TensorIr) {
        self.outputs
            .push((t.id.value() as ValueIndex, t.shape.to_vec(), t.dtype));
    }
}

fn tensors(op: &OperationIr) -> Tensors {
    let mut tensors = Tensors::default();
    visit_ref(op, &mut tensors);
    tensors
}

/// Number of values that are split over an axis along a dim.
type Votes = HashMap<(AxisIndex, Option<usize>), u32>;

pub(super) struct Propagator<'a> {
    mesh: &'a MeshShape,
    options: &'a PlanOptions,
    window: &'a Window,
    values: Vec<Value>,
    slots: Vec<SlotInfo>,
    steps: Vec<Common>,
    rules: Vec<Option<Arc<OpRule>>>,
    streams: HashMap<OpIndex, u64>,
    /// The slot into which a value from outside is loaded, else [`Slot::MAX`].
    loaded: Vec<Slot>,
    /// How often values of a shape were split over an axis along a dim (`None`: not at all): where to scatter a partial of that shape.
    votes: HashMap<Vec<usize>, Votes>,
    /// Layouts in which tensors of a shape were read by index along a dim: the gradient of that read is best made in the same.
    mirrors: HashMap<(Vec<usize>, usize), Layout>,
    /// Results of modules whose output layout has more dims: it applies once they are reshaped.
    unflattened: HashMap<ValueIndex, Arc<ParamSpec>>,
    costs: HashMap<(Arc<Layout>, Layout, usize), f64>,
    /// Module path of the last parameter used.
    path: Option<Arc<str>>,
    now: OpIndex,
}

/// Plans the layouts of a window.
pub(super) fn propagate(
    window: &Window,
    mesh: &MeshShape,
    options: &PlanOptions,
) -> Result<Program, PlanError> {
    let mut propagator = Propagator::new(window, mesh, options);
    for index in 0..window.ops.len() {
        propagator.now = index as OpIndex;
        propagator.operation(index as OpIndex)?;
    }
    propagator.finish()
}

impl<'a> Propagator<'a> {
    fn new(window: &'a Window, mesh: &'a MeshShape, options: &'a PlanOptions) -> Self {
        let empty = Value {
            shape: Vec::new(),
            dtype: DType::F32,
            source: Source::Versions,
            versions: Vec::new(),
            preferred: Arc::new(Layout::replicated(&[])),
            tag: None,
            uses: Vec::new(),
            survives: false,
        };
        let mut values = vec![empty; window.dies.len()];
        let mut streams = HashMap::new();
        for (index, op) in window.ops.iter().enumerate() {
            if random_parts(op).is_some() {
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
        let mut this = Self {
            mesh,
            options,
            window,
            values,
            slots: Vec::new(),
            steps: Vec::new(),
            rules: vec![None; window.ops.len()],
            streams,
            loaded: vec![Slot::MAX; window.dies.len()],
            votes: HashMap::new(),
            mirrors: HashMap::new(),
            unflattened: HashMap::new(),
            costs: HashMap::new(),
            path: None,
            now: 0,
        };
        for input in &window.inputs {
            let value = &mut this.values[input.value as usize];
            value.shape = input.shape.clone();
            value.dtype = input.dtype;
            match &input.state {
                InputState::Placed { layout, tag } => {
                    value.tag = tag.clone();
                    value.preferred = layout.clone();
                    let slot = this.add_version(input.value, layout.clone());
                    this.loaded[input.value as usize] = slot;
                    this.steps.push(Common::Load {
                        value: input.value,
                        slot,
                    });
                }
                InputState::Host { preferred } => {
                    value.preferred = preferred.clone();
                    if options.fuzz.is_some() {
                        let slot = this.add_version(input.value, preferred.clone());
                        this.steps.push(Common::Upload {
                            value: input.value,
                            slot,
                        });
                    } else {
                        value.source = Source::Host;
                    }
                }
            }
        }
        this
    }

    fn value(&self, value: ValueIndex) -> &Value {
        &self.values[value as usize]
    }

    fn add_version(&mut self, value: ValueIndex, layout: Arc<Layout>) -> Slot {
        let slot = self.slots.len() as Slot;
        let info = &mut self.values[value as usize];
        self.slots.push(SlotInfo {
            layout: layout.clone(),
            dtype: info.dtype,
            value,
        });
        info.versions.push(Version {
            layout,
            slot,
            until: None,
        });
        slot
    }

    // ---------------------------------------------------------------- operations

    fn operation(&mut self, index: OpIndex) -> Result<(), PlanError> {
        let window = self.window;
        let op = &window.ops[index as usize];
        if matches!(op, OperationIr::Init(_) | OperationIr::Drop(_)) {
            return Ok(());
        }
        let tensors = tensors(op);
        for (value, ..) in &tensors.inputs {
            if let Some(tag) = &self.values[*value as usize].tag {
                self.path = Some(module_path(&tag.path));
            }
        }
        if let OperationIr::Custom(custom) = op {
            return self.custom(custom.id.as_str(), &tensors);
        }
        let rule = Arc::new(rules::rule(op));
        self.rules[index as usize] = Some(rule.clone());
        if let Some((preferred, depth)) = self.deferrable(&rule, &tensors) {
            for (value, ..) in &tensors.outputs {
                let value = &mut self.values[*value as usize];
                value.source = Source::Deferred { op: index, depth };
                value.preferred = Arc::new(preferred.clone());
            }
            return Ok(());
        }
        match rule.as_ref() {
            OpRule::Factors(factors) => self.factors(index, &rule, factors, &tensors),
            OpRule::Reshape => self.reshape(index, &rule, &tensors),
            OpRule::Create => {
                // Only reached where deferring is off: made whole, where it stands.
                let layout = Layout::replicated(&tensors.outputs[0].1);
                self.make(index, &rule, None, &[], vec![layout], &tensors)
            }
            OpRule::Replicated(_) | OpRule::Custom => {
                let mut slots = Vec::new();
                let mut layouts = Vec::new();
                for (value, shape, _) in &tensors.inputs {
                    let layout = Layout::replicated(shape);
                    slots.push(self.require(*value, &layout, Reason::Operand(kind_name(op)))?);
                    layouts.push(layout);
                }
                let outputs = tensors
                    .outputs
                    .iter()
                    .map(|(_, shape, _)| Layout::replicated(shape))
                    .collect();
                self.emit(index, &rule, None, &slots, layouts, outputs, &tensors)
            }
        }
    }

    /// Returns the preferred layout and chain length of the results if the operation can wait until it is known where they are used: all its inputs are
    /// free, or they are whole everywhere and smaller than the result (an expansion).
    fn deferrable(&self, rule: &OpRule, tensors: &Tensors) -> Option<(Layout, u32)> {
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
                .reshape(self.mesh, out_shape)
                .map_or_else(|| Layout::replicated(out_shape), |l| simplify(l, self.mesh)),
            OpRule::Replicated(_) | OpRule::Custom => return None,
        };
        Some((preferred, depth))
    }

    /// Follows the preferred layouts of free inputs through a rule: the first input that prefers a split of a factor decides.
    fn preferred(&self, rule: &Rule, tensors: &Tensors) -> Layout {
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

    fn factors(
        &mut self,
        index: OpIndex,
        shared: &Arc<OpRule>,
        rule: &Rule,
        tensors: &Tensors,
    ) -> Result<(), PlanError> {
        let op = &self.window.ops[index as usize];
        let kind = kind_name(op);
        let forced = match kind {
            "linear" => self.constrain_input(tensors)?,
            _ => None,
        };
        let mirror = match indexed_dim(op) {
            Some((Indexing::Write, dim)) if self.value(tensors.inputs[0].0).is_free() => self
                .mirrors
                .get(&(tensors.inputs[0].1.clone(), dim))
                .cloned(),
            _ => None,
        };
        let hints = Hints { forced, mirror };
        let choice = self.choose(rule, tensors, &hints);
        if let Some((Indexing::Read, dim)) = indexed_dim(op) {
            let layout = self.needed(rule, 0, &choice.assignment);
            self.mirrors
                .insert((tensors.inputs[0].1.clone(), dim), layout);
        }
        let resting = rule.elementwise && self.rests(rule, tensors, &choice.assignment);
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
        if rule.elementwise {
            self.inherit_tag(tensors);
        }
        // burn-router records an embedding as a select on its weights.
        if matches!(kind, "linear" | "embedding" | "select") {
            self.constrain_output(kind, tensors)?;
        }
        Ok(())
    }

    /// Returns the layout that input number `position` must have.
    fn needed(&self, rule: &Rule, position: usize, assignment: &Assignment) -> Layout {
        let mut layout = rule.input_layout(&rule.inputs[position], assignment);
        if position > 0 && rule.partial != PartialRule::JointLinear {
            layout.partial.clear();
        }
        layout
    }

    /// Returns the shard axes that split `layout`.
    fn shard_axes(&self, layout: &Layout) -> Vec<AxisIndex> {
        let mut axes: Vec<AxisIndex> = layout
            .dims
            .iter()
            .flat_map(|dim| dim.axes())
            .filter(|&axis| self.mesh.role(axis) == AxisRole::Shard)
            .collect();
        axes.sort();
        axes
    }

    /// Returns whether the operands of an elementwise operation, split by `assignment`, are at rest: so are those among them that already exist that
    /// way; where none does (partial gradients), the split says so if it is where a parameter of that shape would rest.
    fn rests(&self, rule: &Rule, tensors: &Tensors, assignment: &Assignment) -> bool {
        let mut unknown = false;
        let mut resting = false;
        for (position, (operand, (value, ..))) in
            rule.inputs.iter().zip(&tensors.inputs).enumerate()
        {
            if operand.shape_only {
                continue;
            }
            let needed = self.needed(rule, position, assignment);
            let shard_axes = self.shard_axes(&needed);
            if shard_axes.is_empty() {
                continue;
            }
            let mut split = false;
            let mut terms = false;
            for version in self.value(*value).versions_at(self.now) {
                if version.layout.dims == needed.dims {
                    split = true;
                    if version.layout.at_rest.is_empty() {
                        return false;
                    }
                    resting = true;
                }
                terms |= version
                    .layout
                    .partial
                    .iter()
                    .any(|partial| shard_axes.contains(&partial.axis));
            }
            if !split && terms {
                let rest = needed.without_axes(&shard_axes).at_rest(self.mesh);
                unknown |= rest.dims == needed.dims;
            }
        }
        resting || unknown
    }

    /// Picks how the operation is split.
    fn choose(&mut self, rule: &Rule, tensors: &Tensors, hints: &Hints) -> Choice {
        let mut options = Options::new(rule);
        let mut partials: Vec<Option<Vec<Partial>>> = Vec::with_capacity(rule.inputs.len());
        for (operand, (value, ..)) in rule.inputs.iter().zip(&tensors.inputs) {
            let info = self.value(*value);
            let mut offered: Vec<Layout> = Vec::new();
            let mut partial = None;
            if info.is_free() && info.versions.is_empty() {
                offered.push(info.preferred.as_ref().clone());
            } else {
                for version in info.versions_at(self.now) {
                    offered.push(if rule.elementwise {
                        version.layout.as_ref().clone()
                    } else {
                        version.layout.gathered()
                    });
                }
                // A value that exists without partial axes is used that way; a partial one passes only if no one else needs it resolved.
                let resolved = info.versions_at(self.now).any(|v| !v.layout.has_partial());
                let first = info.versions_at(self.now).next();
                if let (false, Some(first)) = (resolved, first) {
                    let layout = first.layout.clone();
                    if info.single_use() && !operand.shape_only {
                        partial = Some(layout.partial.clone());
                    }
                    offered.push(self.resolved(&layout, info.dtype));
                }
            }
            partials.push(partial);
            for layout in &offered {
                options.offer_layout(rule, self.mesh, &operand.dims, layout);
            }
        }
        if let Some(mirror) = &hints.mirror {
            options.offer_layout(rule, self.mesh, &rule.outputs[0].dims, mirror);
        }
        let borrowed: Vec<Option<&[Partial]>> = partials.iter().map(|p| p.as_deref()).collect();
        let kept = passing(rule, &borrowed);
        let taken: Vec<AxisIndex> = kept.iter().map(|p| p.axis).collect();
        let only_sums = kept.iter().all(|p| p.op == crate::layout::ReduceOp::Sum);
        let mut best: Option<Choice> = None;
        let mut candidates: Vec<Assignment> = Vec::new();
        options.combinations(&taken, |factors| {
            let indexed = rule
                .factors
                .iter()
                .zip(factors)
                .any(|(factor, dim)| factor.kind == FactorKind::Index && !dim.is_whole());
            if indexed && !only_sums {
                return;
            }
            candidates.push(Assignment {
                factors: factors.to_vec(),
                kept: kept.clone(),
            });
        });
        for assignment in candidates {
            let bound = best.as_ref().map_or(f64::INFINITY, |best| best.cost);
            let mut cost = self.assignment_cost(rule, tensors, &assignment, bound);
            if let Some(mirror) = &hints.mirror {
                cost += self.gap(rule, &assignment, mirror, tensors.outputs[0].2);
            }
            if let Some((position, layout)) = &hints.forced
                && &self.needed(rule, *position, &assignment) != layout
            {
                cost += FORCED;
            }
            keep_cheaper(&mut best, Choice { assignment, cost });
        }
        best.unwrap_or_else(|| Choice {
            assignment: rule.unsplit(),
            cost: 0.0,
        })
    }

    fn assignment_cost(
        &mut self,
        rule: &Rule,
        tensors: &Tensors,
        assignment: &Assignment,
        bound: f64,
    ) -> f64 {
        let mut cost = 0.0;
        for (operand, (_, _, dtype)) in rule.outputs.iter().zip(&tensors.outputs) {
            let layout = rule.output_layout(operand, assignment);
            let local = (layout.local_numel_max(self.mesh) * dtype.size()) as f64;
            cost += local * LOCAL_WORK;
            // A new partial has to be reduced some day: what a reduce-scatter of it costs.
            for partial in &layout.partial {
                if !assignment.kept.contains(partial) {
                    let members = self.mesh.size(partial.axis) as f64;
                    cost += local * (members - 1.0) / members;
                }
            }
        }
        for (position, (operand, (value, _, dtype))) in
            rule.inputs.iter().zip(&tensors.inputs).enumerate()
        {
            if cost >= bound {
                return f64::INFINITY;
            }
            if operand.shape_only {
                // The gradient of these weights: best made where they are.
                let weights = self.value(*value).versions_at(self.now).next();
                if let Some(weights) = weights.map(|version| version.layout.gathered()) {
                    cost += self.gap(rule, assignment, &weights, *dtype);
                }
                continue;
            }
            let layout = self.needed(rule, position, assignment);
            cost += self.require_cost(*value, &layout, rule.elementwise);
        }
        cost
    }

    /// Returns what it costs to bring the result of `assignment` to `target` once its partial axes are resolved.
    fn gap(&mut self, rule: &Rule, assignment: &Assignment, target: &Layout, dtype: DType) -> f64 {
        let mut made = rule.output_layout(&rule.outputs[0], assignment);
        made.partial.clear();
        let mut target = target.clone();
        target.partial.clear();
        if made.shape() != target.shape() {
            return 0.0;
        }
        self.cost(&Arc::new(made), &target, dtype.size())
    }

    /// Returns what it would cost to have `value` in `layout` (up to what is at rest, for elementwise operations).
    fn require_cost(&mut self, value: ValueIndex, layout: &Layout, elementwise: bool) -> f64 {
        let info = &self.values[value as usize];
        let elem_bytes = info.dtype.size();
        if info.is_free() && info.versions.is_empty() {
            return 0.0;
        }
        let pinned = info.tag.as_ref().map(|tag| tag.layout.axes_used());
        let versions: Vec<Arc<Layout>> = info
            .versions_at(self.now)
            .map(|version| version.layout.clone())
            .collect();
        let free = info.is_free();
        let mut best = f64::INFINITY;
        for from in versions {
            let mut to = layout.clone();
            if elementwise && from.dims == to.dims {
                to.at_rest = from.at_rest.clone();
            }
            let mut cost = self.cost(&from, &to, elem_bytes);
            if let Some(pinned) = &pinned {
                let used = to.axes_used();
                if pinned.iter().any(|axis| !used.contains(axis)) {
                    cost *= PIN_FACTOR;
                }
            }
            best = best.min(cost);
        }
        if free { best.min(1.0) } else { best }
    }

    fn cost(&mut self, from: &Arc<Layout>, to: &Layout, elem_bytes: usize) -> f64 {
        if from.as_ref() == to {
            return 0.0;
        }
        let key = (from.clone(), to.clone(), elem_bytes);
        if let Some(cost) = self.costs.get(&key) {
            return *cost;
        }
        let cost = redistribute::cost(self.mesh, from, to, elem_bytes);
        self.costs.insert(key, cost);
        cost
    }

    fn reshape(
        &mut self,
        index: OpIndex,
        rule: &Arc<OpRule>,
        tensors: &Tensors,
    ) -> Result<(), PlanError> {
        let (value, _, dtype) = &tensors.inputs[0];
        let (_, out_shape, _) = &tensors.outputs[0];
        let info = self.value(*value);
        let mut sources: Vec<Layout> = Vec::new();
        if info.is_free() && info.versions.is_empty() {
            sources.push(info.preferred.as_ref().clone());
        } else {
            let single = info.single_use();
            let versions: Vec<Arc<Layout>> = info
                .versions_at(self.now)
                .map(|v| v.layout.clone())
                .collect();
            for layout in versions {
                let layout = layout.gathered();
                if layout.has_partial() && !single {
                    sources.push(self.resolved(&layout, *dtype));
                } else {
                    sources.push(layout);
                }
            }
        }
        // Keep as many axes as the reshape allows: the cheapest subset to give up, the fewest first.
        let mut best: Option<(f64, Layout, Layout)> = None;
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
                let work = (to.local_numel_max(self.mesh) * dtype.size()) as f64 * LOCAL_WORK;
                let cost = self.require_cost(*value, &from, false) + work;
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
        match self.unflattened.get(value).cloned() {
            Some(tag) => self.constrain_result(&tag, tensors),
            None => Ok(()),
        }
    }

    /// Handles our own operations, by name.
    fn custom(&mut self, id: &str, tensors: &Tensors) -> Result<(), PlanError> {
        let custom = super::custom::CustomOp::parse(id, &tensors.inputs[0].1, self.mesh)?;
        let (value, shape, _) = &tensors.inputs[0];
        let (out, ..) = &tensors.outputs[0];
        let (layout, tag, what) = match custom {
            super::custom::CustomOp::Param(spec) => {
                let mut layout = spec.layout.clone();
                layout.normalize(self.mesh);
                if spec.at_rest {
                    layout = layout.at_rest(self.mesh);
                }
                (layout, Some(Arc::new(spec)), "parameter placed")
            }
            super::custom::CustomOp::Redistribute(text) => {
                let layout = Layout::parse(&text, self.mesh, Some(shape))?;
                (layout, None, "redistribute")
            }
        };
        let slot = self.require(*value, &layout, Reason::Constraint(what))?;
        let layout = Arc::new(layout);
        let result = &mut self.values[*out as usize];
        result.tag = tag;
        result.preferred = layout.clone();
        result.versions.push(Version {
            layout,
            slot,
            until: None,
        });
        Ok(())
    }

    /// Brings the first input of a linear layer into the layout its weight asks for.
    fn constrain_input(&mut self, tensors: &Tensors) -> Result<Option<(usize, Layout)>, PlanError> {
        let tag = self.value(tensors.inputs[1].0).tag.clone();
        let Some((tag, text)) = tag.as_ref().and_then(|t| Some((t, t.input.as_ref()?))) else {
            return Ok(None);
        };
        let (value, shape, _) = &tensors.inputs[0];
        let current = match self.value(*value).versions_at(self.now).next() {
            Some(version) => version.layout.gathered(),
            None => self.value(*value).preferred.gathered(),
        };
        let target = self.constrained(&current, text.as_str(), shape, tag)?;
        self.require(
            *value,
            &target,
            Reason::Constraint("input layout of the module"),
        )?;
        Ok(Some((0, target)))
    }

    /// Brings the result of a linear layer or an embedding into the layout its weight asks for.
    fn constrain_output(&mut self, kind: &str, tensors: &Tensors) -> Result<(), PlanError> {
        let weight = if kind == "linear" { 1 } else { 0 };
        let Some(tag) = self.value(tensors.inputs[weight].0).tag.clone() else {
            return Ok(());
        };
        self.constrain_result(&tag, tensors)
    }

    /// As [`Self::constrain_output`]; a module that works on flattened tokens gives its output by a reshape, which is then where the layout applies.
    fn constrain_result(
        &mut self,
        tag: &Arc<ParamSpec>,
        tensors: &Tensors,
    ) -> Result<(), PlanError> {
        let Some(text) = &tag.output else {
            return Ok(());
        };
        let (value, shape, _) = &tensors.outputs[0];
        if text.ndim() != shape.len() && !self.unflattened.contains_key(&tensors.inputs[0].0) {
            self.unflattened.insert(*value, tag.clone());
            return Ok(());
        }
        let current = self.values[*value as usize].versions[0]
            .layout
            .as_ref()
            .clone();
        let target = self.constrained(&current, text.as_str(), shape, tag)?;
        self.require(
            *value,
            &target,
            Reason::Constraint("output layout of the module"),
        )?;
        let info = &mut self.values[*value as usize];
        info.versions
            .retain(|version| version.layout.as_ref() == &target);
        Ok(())
    }

    /// Returns `current` with its splits over model axes replaced by what `text` says; data axes stay as they are.
    fn constrained(
        &self,
        current: &Layout,
        text: &str,
        shape: &[usize],
        tag: &ParamSpec,
    ) -> Result<Layout, PlanError> {
        let wanted = Layout::parse(text, self.mesh, Some(shape)).map_err(|source| {
            PlanError::ModuleLayout {
                path: tag.path.clone(),
                text: text.to_string(),
                source,
            }
        })?;
        let model: Vec<AxisIndex> = self.mesh.model_axes();
        let mut layout = current.without_axes(&model);
        layout.partial.retain(|p| !model.contains(&p.axis));
        let used = layout.axes_used();
        for (dim, wanted) in layout.dims.iter_mut().zip(&wanted.dims) {
            let axes: Vec<AxisIndex> = wanted.axes().filter(|axis| !used.contains(axis)).collect();
            if let (false, [factor]) = (axes.is_empty(), dim.factors.as_mut_slice()) {
                factor.axes.extend(axes);
            }
        }
        layout.normalize(self.mesh);
        Ok(layout)
    }

    /// An updated parameter is still that parameter: the result of an elementwise operation of its shape.
    fn inherit_tag(&mut self, tensors: &Tensors) {
        let (out, out_shape, out_dtype) = &tensors.outputs[0];
        let tag = tensors
            .inputs
            .iter()
            .filter(|(_, shape, dtype)| shape == out_shape && dtype == out_dtype)
            .find_map(|(value, ..)| self.value(*value).tag.clone());
        if let (Some(tag), 1) = (tag, tensors.outputs.len()) {
            self.values[*out as usize].tag = Some(tag);
        }
    }

    // ---------------------------------------------------------------- emitting

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
        for ((value, shape, _), layout) in tensors.outputs.iter().zip(&outputs) {
            if !layout.has_partial() && !self.values[*value as usize].is_free() {
                self.vote(shape, layout);
            }
        }
        let mut slots = inputs.to_vec();
        for ((value, ..), layout) in tensors.outputs.iter().zip(&outputs) {
            slots.push(self.add_version(*value, Arc::new(layout.clone())));
        }
        let mut op = self.window.ops[index as usize].clone();
        super::rename::rename(&mut op, inputs, &slots[inputs.len()..]);
        self.steps.push(Common::Local(Box::new(LocalStep {
            op,
            rule: rule.clone(),
            assignment,
            inputs: input_layouts,
            outputs,
            path: self.path.clone(),
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

    fn vote(&mut self, shape: &[usize], layout: &Layout) {
        let votes = self.votes.entry(shape.to_vec()).or_default();
        for axis in self.mesh.axis_indices() {
            let dim = layout
                .dims
                .iter()
                .position(|dim| dim.axes().any(|a| a == axis));
            *votes.entry((axis, dim)).or_insert(0) += 1;
        }
    }

    /// Returns where a partial value goes when it is resolved for its own sake: over shard axes to where a parameter of its shape rests, over the others
    /// to the dim along which most values of its shape are split, else everywhere.
    fn resolved(&self, layout: &Layout, dtype: DType) -> Layout {
        let mut target = layout.clone();
        target.partial.clear();
        let bytes = layout.local_numel_max(self.mesh) * dtype.size();
        if bytes < self.options.scatter_bytes_min {
            return target;
        }
        let shape = layout.shape();
        let mut rest = false;
        for partial in &layout.partial {
            if self.mesh.role(partial.axis) == AxisRole::Shard {
                rest = true;
                continue;
            }
            let Some(votes) = self.votes.get(&shape) else {
                continue;
            };
            let winner = votes
                .iter()
                .filter(|((axis, _), _)| *axis == partial.axis)
                .max_by_key(|((_, dim), count)| (**count, std::cmp::Reverse(*dim)));
            if let Some(((_, Some(dim)), _)) = winner
                && let [factor] = target.dims[*dim].factors.as_mut_slice()
            {
                factor.axes.push(partial.axis);
            }
        }
        target.normalize(self.mesh);
        if rest {
            let resting = target.at_rest(self.mesh);
            // Only over axes that were partial: others are in use elsewhere.
            if resting
                .at_rest
                .iter()
                .all(|axis| layout.partial.iter().any(|p| p.axis == *axis))
            {
                target = resting;
            }
        }
        target
    }

    /// Returns a slot that holds `value` in `layout`, emitting what it takes.
    fn require(
        &mut self,
        value: ValueIndex,
        layout: &Layout,
        reason: Reason,
    ) -> Result<Slot, PlanError> {
        let now = self.now;
        let info = self.value(value);
        let found = info
            .versions_at(now)
            .find(|version| version.layout.as_ref() == layout)
            .map(|version| version.slot);
        if let Some(slot) = found {
            self.refresh(value, slot);
            return Ok(slot);
        }
        if info.is_free() && (info.versions.is_empty() || !layout.has_partial()) {
            return self.materialize(value, layout);
        }
        let elem_bytes = info.dtype.size();
        let versions: Vec<(Arc<Layout>, Slot)> = info
            .versions_at(now)
            .map(|version| (version.layout.clone(), version.slot))
            .collect();
        let mut best: Option<(f64, Arc<Layout>, Slot)> = None;
        for (from, slot) in versions {
            let cost = self.cost(&from, layout, elem_bytes);
            if best.as_ref().is_none_or(|(c, ..)| cost < *c) {
                best = Some((cost, from, slot));
            }
        }
        let (_, from, slot) = best.ok_or(PlanError::NoVersion { value })?;
        let steps = redistribute::plan(self.mesh, &from, layout, elem_bytes)?;
        let mut current = slot;
        for step in steps {
            let to = self.add_version(value, Arc::new(step.to.clone()));
            self.steps.push(Common::Move {
                step: Box::new(step),
                from: current,
                to,
                reason: reason.clone(),
                path: self.path.clone(),
            });
            current = to;
        }
        self.refresh(value, current);
        Ok(current)
    }

    /// Gives up a gathered parameter after this operation if its next use is far away.
    fn refresh(&mut self, value: ValueIndex, slot: Slot) {
        let now = self.now;
        let info = &mut self.values[value as usize];
        let resting = info
            .versions
            .first()
            .is_some_and(|version| !version.layout.at_rest.is_empty());
        if !resting {
            return;
        }
        let next = info.next_use(now);
        for version in &mut info.versions {
            if version.slot == slot && version.layout.at_rest.is_empty() {
                let far = next.is_none_or(|next| next - now > GATHERED_REACH_OPS);
                version.until = far.then_some(now);
            }
        }
    }

    /// Computes a free value in `layout`: every rank makes just its part.
    fn materialize(&mut self, value: ValueIndex, layout: &Layout) -> Result<Slot, PlanError> {
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
        let kind = kind_name(&self.window.ops[op as usize]);
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
                        None => made.dims[dim] = super::choose::whole(shape[dim]),
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
        let mut current = slot;
        for step in steps {
            let to = self.add_version(value, Arc::new(step.to.clone()));
            self.steps.push(Common::Move {
                step: Box::new(step),
                from: current,
                to,
                reason: Reason::Operand(kind),
                path: self.path.clone(),
            });
            current = to;
        }
        Ok(current)
    }

    // ---------------------------------------------------------------- the end of the window

    fn finish(mut self) -> Result<Program, PlanError> {
        self.now = self.window.ops.len() as OpIndex;
        let mut reads = Vec::new();
        for &value in &self.window.reads {
            let slot = self.settled(value, Reason::Read)?;
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
            outputs.push((
                value,
                self.slots[slot as usize].layout.clone(),
                self.value(value).tag.clone(),
            ));
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
        })
    }

    /// Returns the slot of the version that stays: the first without partial axes; a partial one is resolved.
    fn settled(&mut self, value: ValueIndex, reason: Reason) -> Result<Slot, PlanError> {
        let info = self.value(value);
        let now = self.now;
        if let Some(version) = info
            .versions_at(now)
            .find(|version| !version.layout.has_partial())
        {
            return Ok(version.slot);
        }
        let (dtype, preferred) = (info.dtype, info.preferred.clone());
        let partial = info.versions_at(now).next().map(|v| v.layout.clone());
        match partial {
            Some(layout) => {
                let target = self.resolved(&layout, dtype);
                self.require(value, &target, reason)
            }
            None => self.materialize(value, &preferred),
        }
    }
}

fn module_path(param: &str) -> Arc<str> {
    match param.rsplit_once('.') {
        Some((module, _)) => module.into(),
        None => param.into(),
    }
}

/// Returns the tensor and distribution of a random operation.
pub(super) fn random_parts(
    op: &OperationIr,
) -> Option<(&burn_ir::TensorIr, burn_backend::Distribution)> {
    match op {
        OperationIr::Float(_, FloatOperationIr::Random(desc))
        | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(desc))
        | OperationIr::NumericFloat(_, NumericOperationIr::IntRandom(desc)) => {
            Some((&desc.out, desc.distribution))
        }
        _ => None,
    }
}
