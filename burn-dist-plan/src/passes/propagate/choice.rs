//! Which split of an operation is the cheapest.

use std::sync::Arc;

use crate::mesh::DType;

use super::Propagator;
use super::operands::{Hints, Tensors};
use super::options::{Choice, Cost, Options, keep_cheaper, passing};
use crate::cost::work_ns;
use crate::ir::{Op, ValueIndex};
use crate::layout::redistribute;
use crate::layout::{DimLayout, Layout, Partial};
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};
use crate::rule::{Assignment, FactorKind, Operand, PartialRule, Rule};
use crate::{Accumulation, ContextParallel};

/// Returns whether a factor that is dim 0 of an operand may be its batch: if it is dim 0 of the result too, or a view
/// moves it, or dim 0 of all operands is summed. Dim 0 of a weight is none of these.
fn are_rows(rule: &Rule, factor: u8) -> bool {
    let output = &rule.outputs[0].dims;
    let is_first = |dims: &[Option<u8>]| dims.first() == Some(&Some(factor));
    let moves = rule.partial == PartialRule::Move && rule.inputs[0].dims.len() == output.len();
    let mut inputs = rule.inputs.iter();
    is_first(output)
        || moves
        || (!output.contains(&Some(factor))
            && matches!(rule.factors[factor as usize].kind, FactorKind::Reduce(_))
            && inputs.all(|input| !input.dims.contains(&Some(factor)) || is_first(&input.dims)))
}

/// Returns how much of a dim the rank holds that holds the most.
fn local_size_max(dim: &DimLayout, mesh: &MeshShape) -> usize {
    dim.factors
        .iter()
        .map(|factor| factor.local_size_max(mesh))
        .product()
}

impl<O: Op> Propagator<'_, O> {
    /// Returns the layout that input number `position` must have.
    pub(super) fn needed(&self, rule: &Rule, position: usize, assignment: &Assignment) -> Layout {
        let mut layout = rule.input_layout(&rule.inputs[position], assignment);
        if position > 0 && !rule.partial.is_joint() {
            layout.partial.clear();
        }
        layout
    }

    /// Returns the shard axes that split `layout`.
    pub(super) fn shard_axes(&self, layout: &Layout) -> Vec<AxisIndex> {
        let mut axes: Vec<AxisIndex> = layout
            .dims
            .iter()
            .flat_map(|dim| dim.axes())
            .filter(|&axis| self.mesh.role(axis).shards())
            .collect();
        axes.sort();
        axes
    }

    /// Returns the axes over which a value rests that rests at all.
    pub(super) fn rest_axes(&self, value: ValueIndex) -> Vec<AxisIndex> {
        self.value(value).owner.rest_axes(self.mesh)
    }

    /// Returns whether the operands of an elementwise operation, split by `assignment`, are at rest: so are those among
    /// them that already exist that way; where none does (partial gradients), the split says so if it is where a
    /// parameter of that shape would rest.
    pub(super) fn rests(&self, rule: &Rule, tensors: &Tensors, assignment: &Assignment) -> bool {
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
                let rest = needed
                    .without_axes(&shard_axes)
                    .at_rest_over(self.mesh, &self.rest_axes(*value));
                unknown |= rest.dims == needed.dims;
            }
        }
        resting || unknown
    }

    /// Picks how the operation is split.
    pub(super) fn choose(&mut self, rule: &Rule, tensors: &Tensors, hints: &Hints) -> Choice {
        let mut options = Options::new(rule);
        let mut partials: Vec<Option<Vec<Partial>>> = Vec::with_capacity(rule.inputs.len());
        let mut all_offered: Vec<(&Operand, Layout)> = Vec::with_capacity(rule.inputs.len());
        // By factor.
        let mut decided = vec![false; rule.factors.len()];
        for (operand, (value, ..)) in rule.inputs.iter().zip(&tensors.inputs) {
            if !operand.shape_only && self.value(*value).decides() {
                let factors = operand.dims.iter().flatten();
                factors.for_each(|factor| decided[usize::from(*factor)] = true);
            }
        }
        for (operand, (value, ..)) in rule.inputs.iter().zip(&tensors.inputs) {
            let info = self.value(*value);
            let mut offered: Vec<Layout> = Vec::new();
            let mut partial = None;
            if !info.is_free() || !info.versions.is_empty() {
                for version in info.versions_at(self.now) {
                    offered.push(if rule.on_pieces() {
                        version.layout.as_ref().clone()
                    } else {
                        version.layout.gathered()
                    });
                }
                // A value that exists without partial axes is used that way; a partial one passes only if no one else
                // needs it resolved.
                let resolved = info.versions_at(self.now).any(|v| !v.layout.has_partial());
                let first = info.versions_at(self.now).next();
                if let (false, Some(first)) = (resolved, first) {
                    let layout = first.layout.clone();
                    if info.single_use() && !operand.shape_only {
                        partial = Some(layout.partial.clone());
                    }
                    offered.push(self.resolved(*value, &layout));
                }
            }
            partials.push(partial);
            if hints.joins_rows {
                continue;
            }
            for layout in &offered {
                options.offer_layout(rule, self.mesh, &operand.dims, layout);
            }
            all_offered.extend(offered.into_iter().map(|layout| (operand, layout)));
            // What is undecided takes the layout that the others ask for; only where they ask for none has it a say.
            if let Some(own) = self.own_layout(*value) {
                let mut dims = operand.dims.clone();
                for (position, dim) in dims.iter_mut().enumerate() {
                    *dim = dim.filter(|&factor| {
                        !decided[usize::from(factor)] && (position > 0 || are_rows(rule, factor))
                    });
                }
                options.offer_layout(rule, self.mesh, &dims, &own);
            }
        }
        // What no operand decides is best made as what the result meets: the gradient of a sum, say, spread over what
        // was summed.
        let dims = rule.outputs[0].dims.iter();
        let open = dims.map(|factor| factor.filter(|factor| !decided[usize::from(*factor)]));
        let open: Vec<Option<u8>> = open.collect();
        let out = tensors.outputs[0].0;
        if open.iter().any(Option::is_some)
            && let Some(tied) = self.tied_layout(out)
        {
            options.offer_layout(rule, self.mesh, &open, &tied);
        }
        if let Some(batch) = &hints.batch {
            options.offer_layout(rule, self.mesh, &rule.outputs[0].dims, batch);
        }
        if let Some(mirror) = &hints.mirror {
            options.offer_layout(rule, self.mesh, &rule.outputs[0].dims, mirror);
        }
        if let Some(home) = &hints.home {
            options.offer_layout(rule, self.mesh, &rule.outputs[0].dims, home);
        }
        options.offer_rests(rule, self.mesh, &all_offered);
        let terms = self.terms(rule, tensors);
        let borrowed: Vec<Option<&[Partial]>> = partials.iter().map(|p| p.as_deref()).collect();
        let mut kept = passing(rule, &borrowed);
        if self.value(out).owner.policy.accumulation == Accumulation::PerMicrobatch
            && rule.partial == PartialRule::JointLinear
            && rule.inputs.len() > 1
            && self.is_gradient(out, &kept)
        {
            kept.retain(|partial| self.mesh.role(partial.axis).splits_model());
        }
        let taken: Vec<AxisIndex> = kept.iter().map(|p| p.axis).collect();
        let only_sums = kept.iter().all(|p| p.op == ReduceOp::Sum);
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
            let mut cost = self.broken(rule, &assignment, hints, &terms);
            cost.asked += u32::from(!self.is_in_context(rule, &assignment, out));
            if let Some(mirror) = &hints.mirror {
                cost.ns += self.gap(rule, &assignment, mirror, tensors.outputs[0].2);
            }
            let bound = best.as_ref().map_or(Cost::MAX, |best| best.cost);
            if self.add_cost(rule, tensors, &assignment, hints.flops, &mut cost, bound) {
                keep_cheaper(&mut best, Choice { assignment, cost });
            }
        }
        best.unwrap_or_else(|| Choice {
            assignment: rule.unsplit(),
            cost: Cost::default(),
        })
    }

    /// Whether what is split along another factor is as the policy of the result asks.
    fn is_in_context(&self, rule: &Rule, assignment: &Assignment, out: ValueIndex) -> bool {
        let asked = self.value(out).owner.policy.context;
        let mut tied = (0..).zip(&rule.factors).filter_map(|(index, factor)| {
            let with = &assignment.factors[usize::from(factor.along?)];
            (!with.is_whole()).then_some(&assignment.factors[index])
        });
        match asked {
            ContextParallel::Auto => true,
            ContextParallel::Ring => tied.all(|split| !split.is_whole()),
            ContextParallel::Gather => tied.all(|split| split.is_whole()),
        }
    }

    /// Returns what it takes to pass blocks from rank to rank beside so much work, and to put together what is made of
    /// each.
    fn passing_ns(
        &self,
        rule: &Rule,
        tensors: &Tensors,
        assignment: &Assignment,
        work_ns_of_rank: f64,
    ) -> f64 {
        let inputs = rule.inputs.iter().zip(&tensors.inputs);
        let outputs = rule.outputs.iter().zip(&tensors.outputs);
        let passed = rule.passed(assignment).map(|(factor, _)| {
            let axes: Vec<AxisIndex> = assignment.factors[usize::from(factor)].axes().collect();
            let members = self.mesh.group_size(&axes) as f64;
            let (mut moved, mut joined) = (0.0, 0.0);
            let sides = inputs.clone().map(|of| (of, false));
            for ((operand, (_, _, dtype)), is_output) in
                sides.chain(outputs.clone().map(|of| (of, true)))
            {
                let layout = match is_output {
                    true => rule.output_layout(operand, assignment),
                    false => rule.input_layout(operand, assignment),
                };
                let bytes = (layout.local_numel_max(self.mesh) * dtype.size()) as f64;
                match operand.dims.contains(&Some(factor)) {
                    true => moved += bytes,
                    false if is_output => joined += bytes,
                    false => {}
                }
            }
            let others = members - 1.0;
            let transfer = self
                .network
                .transfer_ns(&axes, others as u64, others * moved);
            let beside = work_ns_of_rank * others / members;
            (transfer - beside).max(0.0) + work_ns(0.0, others * joined)
        });
        passed.sum()
    }

    /// Returns the constraints that an assignment breaks by itself.
    fn broken(
        &self,
        rule: &Rule,
        assignment: &Assignment,
        hints: &Hints,
        terms: &[(AxisIndex, u8)],
    ) -> Cost {
        let forced = hints.forced.as_ref();
        let input = forced.filter(|(at, layout)| &self.needed(rule, *at, assignment) != layout);
        let home = hints.home.as_ref().filter(|_| assignment.kept.is_empty());
        let made = || rule.output_layout(&rule.outputs[0], assignment).dims;
        let output = home.filter(|home| made() != home.dims);
        let splits = |(axis, factor): &(AxisIndex, u8)| {
            let mut axes = assignment.factors[*factor as usize].axes();
            axes.any(|other| other == *axis)
        };
        Cost {
            asked: u32::from(input.is_some()) + u32::from(output.is_some()),
            gathered: terms.iter().filter(|term| !splits(term)).count() as u32,
            ..Cost::default()
        }
    }

    /// Returns the data axes over which each rank has rows of its own to sum, with the factor they split: those that
    /// split no operand in another way. Sums by index are left out: of a large table, few rows are gathered.
    fn terms(&self, rule: &Rule, tensors: &Tensors) -> Vec<(AxisIndex, u8)> {
        let mut terms: Vec<(AxisIndex, u8)> = Vec::new();
        if rule.factors.iter().any(|f| f.kind == FactorKind::Index) {
            return terms;
        }
        let mut others: Vec<AxisIndex> = Vec::new();
        for (operand, (value, ..)) in rule.inputs.iter().zip(&tensors.inputs) {
            let version = self.value(*value).versions_at(self.now).next();
            let Some(version) = version.filter(|_| !operand.shape_only) else {
                continue;
            };
            let layout = version.layout.gathered();
            for (factor, dim) in operand.dims.iter().zip(&layout.dims) {
                let summed = factor.filter(|factor| {
                    let kind = rule.factors[*factor as usize].kind;
                    matches!(kind, FactorKind::Reduce(ReduceOp::Sum | ReduceOp::Mean))
                });
                let data = |axis: &AxisIndex| self.mesh.role(*axis).splits_data();
                for axis in dim.axes().filter(data) {
                    match summed {
                        Some(factor) => terms.push((axis, factor)),
                        None => others.push(axis),
                    }
                }
            }
        }
        terms.sort();
        terms.dedup();
        let factors_of = |axis| terms.iter().filter(|term| term.0 == axis).count();
        let one_way: Vec<bool> = terms
            .iter()
            .map(|(axis, _)| factors_of(*axis) == 1 && !others.contains(axis))
            .collect();
        let mut one_way = one_way.into_iter();
        terms.retain(|_| one_way.next() == Some(true));
        terms
    }

    /// Adds what an assignment costs: the work of a rank, the operands brought where they are needed, and the reduction
    /// of a new partial result. Returns `false` as soon as it is not below `bound`.
    fn add_cost(
        &mut self,
        rule: &Rule,
        tensors: &Tensors,
        assignment: &Assignment,
        flops: f64,
        cost: &mut Cost,
        bound: Cost,
    ) -> bool {
        let split: f64 = rule
            .factors
            .iter()
            .zip(&assignment.factors)
            .map(|(factor, dim)| match factor.size {
                0 => 1.0,
                // All of it comes by.
                _ if factor.along.is_some() => 1.0,
                size => local_size_max(dim, self.mesh) as f64 / size as f64,
            })
            .product();
        let work = work_ns(flops * split, 0.0);
        cost.ns += work + self.passing_ns(rule, tensors, assignment, work);
        for (operand, (_, _, dtype)) in rule.outputs.iter().zip(&tensors.outputs) {
            let layout = rule.output_layout(operand, assignment);
            let local = (layout.local_numel_max(self.mesh) * dtype.size()) as f64;
            cost.ns += work_ns(0.0, local);
            // A new partial has to be reduced some day: the bytes of a reduce-scatter, which others may share.
            for partial in &layout.partial {
                if !assignment.kept.contains(partial) {
                    let members = self.mesh.size(partial.axis) as f64;
                    let received = local * (members - 1.0) / members;
                    cost.ns += self.network.bytes_ns(partial.axis, received);
                }
            }
        }
        for (position, (operand, (value, _, dtype))) in
            rule.inputs.iter().zip(&tensors.inputs).enumerate()
        {
            if *cost >= bound {
                return false;
            }
            if operand.shape_only {
                // The gradient of these weights: best made where they are.
                let weights = self.value(*value).versions_at(self.now).next();
                if let Some(weights) = weights.map(|version| version.layout.gathered()) {
                    cost.ns += self.gap(rule, assignment, &weights, *dtype);
                }
                continue;
            }
            let layout = self.needed(rule, position, assignment);
            let needed = self.require_cost(*value, &layout, rule.on_pieces());
            cost.moved += needed.moved;
            cost.ns += needed.ns;
        }
        true
    }

    /// Returns what it costs to bring the result of `assignment` to `target` once its partial axes are resolved.
    pub(super) fn gap(
        &mut self,
        rule: &Rule,
        assignment: &Assignment,
        target: &Layout,
        dtype: DType,
    ) -> f64 {
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
    pub(super) fn require_cost(
        &mut self,
        value: ValueIndex,
        layout: &Layout,
        elementwise: bool,
    ) -> Cost {
        let info = &self.values[value as usize];
        let elem_bytes = info.dtype.size();
        if info.is_free() && info.versions.is_empty() {
            return Cost::default();
        }
        let tag = info.tag.as_ref();
        let tag = tag.or(self.facts.view_of[value as usize].as_ref());
        let pinned = tag.map(|tag| tag.layout.axes_used());
        let versions: Vec<Arc<Layout>> = info
            .versions_at(self.now)
            .map(|version| version.layout.clone())
            .collect();
        let free = info.is_free();
        let mut best = Cost::MAX;
        for from in versions {
            let mut to = layout.clone();
            if elementwise && from.dims == to.dims {
                to.at_rest = from.at_rest.clone();
            }
            let (before, after) = (from.axes_used(), to.axes_used());
            let leaves = |axis: &AxisIndex| before.contains(axis) && !after.contains(axis);
            let cost = Cost {
                moved: u32::from(pinned.iter().flatten().any(leaves)),
                ns: self.cost(&from, &to, elem_bytes),
                ..Cost::default()
            };
            if cost < best {
                best = cost;
            }
        }
        if free {
            // It can be made again, where it is needed.
            let bytes = layout.local_numel_max(self.mesh) * elem_bytes;
            best.ns = best.ns.min(work_ns(0.0, bytes as f64));
        }
        best
    }

    pub(super) fn cost(&mut self, from: &Arc<Layout>, to: &Layout, elem_bytes: usize) -> f64 {
        if from.as_ref() == to {
            return 0.0;
        }
        let key = (from.clone(), to.clone(), elem_bytes);
        if let Some(cost) = self.costs.get(&key) {
            return *cost;
        }
        let cost = redistribute::cost(&self.network, from, to, elem_bytes);
        self.costs.insert(key, cost);
        cost
    }
}
