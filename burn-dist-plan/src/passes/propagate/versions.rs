//! Versions of values: getting one in a layout, and where partial values go.

use std::sync::Arc;

use super::Propagator;
use super::operands::Tensors;
use super::split::Split;
use super::view::OperandView;
use crate::PlanError;
use crate::ir::{Move, OnNodes, Op, ProgramStep, Reason, Slot, SlotInfo, ValueIndex, Version};
use crate::layout::redistribute::{Step, StepKind};
use crate::layout::{DimLayout, Layout, Partial, simplify};
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};
use crate::rule::Rule;
use crate::{Accumulation, Reshard, ShardStrategy};

/// Returns `dim` with one more axis, where `like` has it; `None` if the axes that `dim` has split it in another way than
/// they do `like`.
fn cut_as(
    dim: &DimLayout,
    like: &DimLayout,
    axis: AxisIndex,
    mesh: &MeshShape,
) -> Option<DimLayout> {
    let of = |axes: &[AxisIndex]| {
        let mut of = like.clone();
        for factor in &mut of.factors {
            factor.axes.retain(|axis| axes.contains(axis));
        }
        of.merge_whole_factors();
        of
    };
    let simple = |dim: DimLayout| {
        let mut layout = Layout::replicated(&[dim.size()]);
        layout.dims[0] = dim;
        simplify(layout, mesh)
    };
    let mut axes: Vec<AxisIndex> = dim.axes().collect();
    let is_alike = simple(of(&axes)) == simple(dim.clone());
    axes.push(axis);
    is_alike.then(|| of(&axes))
}

/// Returns the shard axes that split a layout, in order.
pub(super) fn shard_axes(mesh: &MeshShape, layout: &Layout) -> Vec<AxisIndex> {
    let shards = |axis: &AxisIndex| mesh.role(*axis).shards();
    let mut axes: Vec<AxisIndex> = layout.sharded_axes().filter(shards).collect();
    axes.sort();
    axes
}

impl<O: Op> Propagator<'_, O> {
    pub(super) fn add_version(&mut self, value: ValueIndex, layout: Arc<Layout>) -> Slot {
        let layout = self.pools.layouts.share(layout);
        let slot = self.program.slots.len() as Slot;
        let info = &mut self.values[value as usize];
        info.forget(self.now);
        self.program.slots.push(SlotInfo {
            layout: layout.clone(),
            dtype: info.dtype,
            value,
        });
        info.versions.push(Version {
            layout,
            slot,
            until: None,
        });
        self.note_decided(value);
        slot
    }

    /// Returns a value as the choice of a split sees it.
    pub(super) fn operand(&self, value: ValueIndex) -> OperandView {
        let info = self.value(value);
        let versions: Vec<Arc<Layout>> = info
            .versions_at(self.now)
            .map(|version| version.layout.clone())
            .collect();
        let has_terms = versions.iter().all(|layout| layout.has_partial());
        let first = versions.first().filter(|_| has_terms);
        let tag = info.tag.as_ref();
        let tag = tag.or(self.state.facts.view_of[value as usize].as_ref());
        OperandView {
            dtype: info.dtype,
            is_free: info.is_free(),
            decides: info.decides(),
            single_use: info.single_use(),
            resolved: first.map(|layout| self.resolved(value, layout)),
            own: self.own_layout(value),
            pinned: tag.map_or(Vec::new(), |tag| tag.layout.axes_used()),
            versions,
        }
    }

    /// Returns the axes over which a value rests that rests at all.
    pub(super) fn rest_axes(&self, value: ValueIndex) -> Vec<AxisIndex> {
        self.value(value).owner.rest_axes(self.mesh)
    }

    /// Returns whether the operands of an elementwise operation, split by `assignment`, are at rest: so are those among
    /// them that already exist that way; where none does (partial gradients), the split says so if it is where a
    /// parameter of that shape would rest.
    pub(super) fn rests(&self, rule: &Rule, tensors: &Tensors<'_>, split: &Split) -> bool {
        let mut unknown = false;
        let mut resting = false;
        let inputs = rule.inputs.iter().zip(&tensors.inputs).zip(&split.inputs);
        for ((operand, input), needed) in inputs {
            let shard_axes = shard_axes(self.mesh, needed);
            if operand.shape_only || shard_axes.is_empty() {
                continue;
            }
            let mut split = false;
            let mut terms = false;
            for version in self.value(input.id).versions_at(self.now) {
                if version.layout.dims == needed.dims {
                    split = true;
                    if version.layout.at_rest.is_empty() {
                        return false;
                    }
                    resting = true;
                }
                let mut partial = version.layout.partial.iter();
                terms |= partial.any(|partial| shard_axes.contains(&partial.axis));
            }
            if !split && terms {
                let rest = needed
                    .without_axes(&shard_axes)
                    .at_rest_over(self.mesh, &self.rest_axes(input.id));
                unknown |= rest.dims == needed.dims;
            }
        }
        resting || unknown
    }

    /// Notes that a value has a version: if that decides, others that it is tied to may follow it.
    pub(super) fn note_decided(&mut self, value: ValueIndex) {
        if self.value(value).decides() && !self.value(value).versions.is_empty() {
            let first = &mut self.tied[self.state.facts.tied_to[value as usize] as usize];
            *first = Some(first.map_or(value, |first| first.min(value)));
        }
    }

    /// Returns where a partial value goes when it is resolved for its own sake: what updates a parameter to where that
    /// rests, however small it is. Else over model and context axes to the dim along which the activation is split that
    /// it is the gradient of, over axes that shard to where a parameter of its shape rests, over others everywhere; if
    /// it is small and no gradient, everywhere. So is what its unit replicates over shard axes, and a maximum, which
    /// others are computed with.
    pub(super) fn resolved(&self, value: ValueIndex, layout: &Layout) -> Layout {
        if let Some(home) = &self.value(value).home {
            return home.as_ref().clone();
        }
        let dtype = self.value(value).dtype;
        let rest_axes = self.rest_axes(value);
        let mut target = layout.clone();
        target.partial.clear();
        let bytes = layout.local_numel_max(self.mesh) * dtype.size();
        let is_small = bytes < self.options.scatter_bytes_min;
        let is_maximum = layout.partial.iter().any(|p| p.op == ReduceOp::Max);
        if is_maximum || (is_small && !self.state.facts.of_layer[value as usize]) {
            return target;
        }
        let activation = self.state.facts.gradient_of[value as usize];
        let split = activation.and_then(|x| Some(&self.value(x).versions.first()?.layout));
        let split = split.filter(|split| split.shape() == layout.shape());
        let mut rest = false;
        for partial in &layout.partial {
            let role = self.mesh.role(partial.axis);
            let dims = split.map_or(&[][..], |split| &split.dims);
            let along = |dim: &DimLayout| dim.axes().any(|axis| axis == partial.axis);
            let dim = dims.iter().position(along);
            match dim {
                Some(dim) if role.splits_model() || role.splits_sequences() => {
                    let split = &dims[dim];
                    if let Some(cut) = cut_as(&target.dims[dim], split, partial.axis, self.mesh) {
                        target.dims[dim] = cut;
                    } else if let [factor] = target.dims[dim].factors.as_mut_slice() {
                        factor.axes.push(partial.axis);
                    }
                }
                _ => rest |= role.shards() && rest_axes.contains(&partial.axis),
            }
        }
        target.normalize(self.mesh);
        if rest {
            let resting = target.at_rest_over(self.mesh, &rest_axes);
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
    pub(super) fn require(
        &mut self,
        value: ValueIndex,
        layout: &Arc<Layout>,
        reason: Reason,
    ) -> Result<Slot, PlanError> {
        let info = self.value(value);
        let is_it = |version: &&Version| &version.layout == layout;
        let found = info.versions_at(self.now).find(is_it);
        if let Some(slot) = found.map(|version| version.slot) {
            self.refresh(value, slot);
            return Ok(slot);
        }
        if info.is_free() && (info.versions.is_empty() || !layout.has_partial()) {
            return self.materialize(value, layout);
        }
        let elem_bytes = info.dtype.size();
        let versions = info.versions_at(self.now);
        let versions = versions.map(|version| (version.layout.clone(), version.slot));
        let mut versions: Vec<(Arc<Layout>, Slot)> = versions.collect();
        let mut best = 0;
        if versions.len() > 1 {
            let mut least = f64::INFINITY;
            for (index, (from, _)) in versions.iter().enumerate() {
                let ns = self.moves.ns(from, layout, elem_bytes);
                if ns < least {
                    (least, best) = (ns, index);
                }
            }
        }
        if versions.is_empty() {
            return Err(PlanError::NoVersion { value });
        }
        let (from, slot) = versions.swap_remove(best);
        let steps = self.moves.plan(&from, layout, elem_bytes)?;
        let current = self.redistribute(value, slot, &steps, reason);
        self.refresh(value, current);
        Ok(current)
    }

    /// Gives up a gathered parameter after this operation if its next use is in another visit of its unit and its
    /// policy says so; those of stages stay.
    pub(super) fn refresh(&mut self, value: ValueIndex, slot: Slot) {
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
        let mut rests_over = info.versions[0].layout.at_rest.iter();
        // A stage visits its units once per microbatch, and in the order of a schedule: it gathers them once.
        let staged = info.tag.as_ref().is_some_and(|tag| tag.stage.is_some());
        let kept =
            staged || rests_over.any(|axis| info.owner.strategy_over(*axis) != ShardStrategy::Full);
        let reshard = match kept {
            true => Reshard::Never,
            false => info.owner.policy.reshard,
        };
        let given_up = next.is_none_or(|next| self.state.visits.gives_up(reshard, now, next));
        for version in &mut info.versions {
            if version.slot == slot && version.layout.at_rest.is_empty() {
                version.until = given_up.then_some(now);
            }
        }
    }

    /// Returns the slot of the version that stays: the first without partial axes; a partial one is resolved. A
    /// parameter that does not rest goes back to where it lives, even if its update was computed in pieces.
    pub(super) fn settled(&mut self, value: ValueIndex, reason: Reason) -> Result<Slot, PlanError> {
        let info = self.value(value);
        let is_whole = |version: &&Version| !version.layout.has_partial();
        if let Some(version) = info.versions_at(self.now).find(is_whole) {
            return Ok(version.slot);
        }
        let Some(version) = info.versions_at(self.now).next() else {
            let preferred = info.preferred.clone();
            return self.materialize(value, &preferred);
        };
        let (slot, layout) = (version.slot, version.layout.clone());
        let keeps =
            info.owner.policy.accumulation == Accumulation::PerStep && reason == Reason::Survivor;
        let target = match keeps && self.is_gradient(value, &layout.partial) {
            false => self.resolved(value, &layout),
            true => {
                self.program.accumulated.kept += 1;
                match self.model_sums(&layout) {
                    None => return Ok(slot),
                    Some(reduced) => reduced,
                }
            }
        };
        self.require(value, &target.into(), reason)
    }

    /// Returns the layout with terms over model axes summed, if there are any: those are the business of a single pass.
    fn model_sums(&self, layout: &Layout) -> Option<Layout> {
        let mut reduced = layout.clone();
        let data = |p: &Partial| self.mesh.role(p.axis).splits_data();
        reduced.partial.retain(data);
        (reduced != *layout).then_some(reduced)
    }

    /// Emits the steps of a redistribution that starts at `slot`; every layout on the way is a version from then on, but
    /// for those between two steps of an all_to_all: only the operation at hand sees them.
    pub(super) fn redistribute(
        &mut self,
        value: ValueIndex,
        slot: Slot,
        steps: &[(Arc<Step>, Arc<Layout>)],
        reason: Reason,
    ) -> Slot {
        let mut current = slot;
        let last = steps.len().saturating_sub(1);
        for (number, (step, layout)) in steps.iter().enumerate() {
            let to = self.add_version(value, layout.clone());
            if number < last && matches!(step.kind, StepKind::AllToAll { .. }) {
                let version = self.values[value as usize].versions.last_mut();
                version.expect("it was just added").until = Some(self.now);
            }
            self.program.steps.push(ProgramStep::Move(Move {
                step: step.clone(),
                on_nodes: OnNodes::default(),
                from: current,
                to,
                reason: reason.clone(),
                path: self.path.clone(),
                at: self.now,
            }));
            current = to;
        }
        current
    }
}
