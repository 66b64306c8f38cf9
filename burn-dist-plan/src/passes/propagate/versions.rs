//! Versions of values: getting one in a layout, and where partial values go.

use std::sync::Arc;

use super::Propagator;
use super::options::merge_whole;
use crate::PlanError;
use crate::ir::{Move, OnNodes, Op, ProgramStep, Reason, Slot, SlotInfo, ValueIndex, Version};
use crate::layout::redistribute::{self, Step, StepKind};
use crate::layout::{DimLayout, Layout, Partial, simplify};
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};
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
        merge_whole(&mut of);
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

impl<O: Op> Propagator<'_, O> {
    pub(super) fn add_version(&mut self, value: ValueIndex, layout: Arc<Layout>) -> Slot {
        let layout = self.layouts.share(layout);
        let slot = self.slots.len() as Slot;
        let run = self.run;
        let info = &mut self.values[value as usize];
        info.forget(run);
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
        self.note_decided(value);
        slot
    }

    /// Notes that a value has a version: if that decides, others that it is tied to may follow it.
    pub(super) fn note_decided(&mut self, value: ValueIndex) {
        if self.value(value).decides() && !self.value(value).versions.is_empty() {
            let first = &mut self.tied[self.facts.tied_to[value as usize] as usize];
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
        if is_maximum || (is_small && !self.facts.of_layer[value as usize]) {
            return target;
        }
        let activation = self.facts.gradient_of[value as usize];
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
        let steps = redistribute::plan(&self.network, &from, layout, elem_bytes)?;
        let current = self.redistribute(value, slot, steps, reason);
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
        let given_up = next.is_none_or(|next| self.visits.gives_up(reshard, now, next));
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
        let now = self.now;
        if let Some(version) = info
            .versions_at(now)
            .find(|version| !version.layout.has_partial())
        {
            return Ok(version.slot);
        }
        let preferred = info.preferred.clone();
        let keeps =
            info.owner.policy.accumulation == Accumulation::PerStep && reason == Reason::Survivor;
        let unreduced = info
            .versions_at(now)
            .next()
            .filter(|version| keeps && self.is_gradient(value, &version.layout.partial));
        if let Some((slot, layout)) = unreduced.map(|v| (v.slot, v.layout.clone())) {
            self.accumulated.kept += 1;
            return match self.model_sums(&layout) {
                None => Ok(slot),
                Some(reduced) => self.require(value, &reduced, reason),
            };
        }
        let partial = info.versions_at(now).next().map(|v| v.layout.clone());
        match partial {
            Some(layout) => {
                let target = self.resolved(value, &layout);
                self.require(value, &target, reason)
            }
            None => self.materialize(value, &preferred),
        }
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
        steps: Vec<Step>,
        reason: Reason,
    ) -> Slot {
        let mut current = slot;
        let last = steps.len().saturating_sub(1);
        for (number, step) in steps.into_iter().enumerate() {
            let to = self.add_version(value, Arc::new(step.to.clone()));
            if number < last && matches!(step.kind, StepKind::AllToAll { .. }) {
                let version = self.values[value as usize].versions.last_mut();
                version.expect("it was just added").until = Some(self.now);
            }
            self.steps.push(ProgramStep::Move(Move {
                step: self.redistributions.share(step),
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
