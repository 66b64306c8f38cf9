//! Which split of an operation is the cheapest.

use std::sync::Arc;

use crate::mesh::DType;

use super::moves::Moves;
use super::options::{Choice, Cost, Options, keep_cheaper, passing};
use super::view::OpView;
use crate::cost::work_ns;
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

/// Returns the layout that input number `position` must have.
pub(super) fn needed(rule: &Rule, position: usize, assignment: &Assignment) -> Layout {
    let mut layout = rule.input_layout(&rule.inputs[position], assignment);
    if position > 0 && !rule.partial.is_joint() {
        layout.partial.clear();
    }
    layout
}

/// Returns whether partial values like that are terms of a sum, one per rank of data axes.
pub(super) fn are_terms_of_rows(partial: &[Partial], mesh: &MeshShape) -> bool {
    let is_data = |p: &Partial| mesh.role(p.axis).splits_data();
    partial.iter().any(is_data) && partial.iter().all(|p| p.op == ReduceOp::Sum)
}

/// Picks how an operation is split: the cheapest of the splits that its operands, what it is tied to and its hints offer.
pub(super) fn choose(rule: &Rule, view: &OpView, moves: &mut Moves<'_>) -> Choice {
    let mesh = moves.mesh;
    Chooser {
        rule,
        view,
        mesh,
        moves,
    }
    .choose()
}

struct Chooser<'a, 'm> {
    rule: &'a Rule,
    view: &'a OpView,
    mesh: &'a MeshShape,
    moves: &'a mut Moves<'m>,
}

impl Chooser<'_, '_> {
    fn choose(&mut self) -> Choice {
        let (rule, view) = (self.rule, self.view);
        let OpView { result, hints, .. } = view;
        let mut options = Options::new(rule);
        let mut partials: Vec<Option<Vec<Partial>>> = Vec::with_capacity(rule.inputs.len());
        let mut all_offered: Vec<(&Operand, Layout)> = Vec::with_capacity(rule.inputs.len());
        // By factor.
        let mut decided = vec![false; rule.factors.len()];
        for (operand, input) in rule.inputs.iter().zip(&view.inputs) {
            if !operand.shape_only && input.decides {
                let factors = operand.dims.iter().flatten();
                factors.for_each(|factor| decided[usize::from(*factor)] = true);
            }
        }
        for (operand, input) in rule.inputs.iter().zip(&view.inputs) {
            let mut offered: Vec<Layout> = Vec::new();
            let mut partial = None;
            for version in &input.versions {
                offered.push(if rule.on_pieces() {
                    version.as_ref().clone()
                } else {
                    version.gathered()
                });
            }
            // A value that exists without partial axes is used that way; a partial one passes only if no one else
            // needs it resolved.
            if let (Some(resolved), Some(first)) = (&input.resolved, input.versions.first()) {
                if input.single_use && !operand.shape_only {
                    partial = Some(first.partial.clone());
                }
                offered.push(resolved.clone());
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
            if let Some(own) = &input.own {
                let mut dims = operand.dims.clone();
                for (position, dim) in dims.iter_mut().enumerate() {
                    *dim = dim.filter(|&factor| {
                        !decided[usize::from(factor)] && (position > 0 || are_rows(rule, factor))
                    });
                }
                options.offer_layout(rule, self.mesh, &dims, own);
            }
        }
        // What no operand decides is best made as what the result meets: the gradient of a sum, say, spread over what
        // was summed.
        let dims = rule.outputs[0].dims.iter();
        let open = dims.map(|factor| factor.filter(|factor| !decided[usize::from(*factor)]));
        let open: Vec<Option<u8>> = open.collect();
        if open.iter().any(Option::is_some)
            && let Some(tied) = &result.tied
        {
            options.offer_layout(rule, self.mesh, &open, tied);
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
        let terms = self.terms();
        let borrowed: Vec<Option<&[Partial]>> = partials.iter().map(|p| p.as_deref()).collect();
        let mut kept = passing(rule, &borrowed);
        if result.accumulation == Accumulation::PerMicrobatch
            && rule.partial == PartialRule::JointLinear
            && rule.inputs.len() > 1
            && result.is_backward
            && are_terms_of_rows(&kept, self.mesh)
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
            let mut cost = self.broken(&assignment, &terms);
            cost.asked += u32::from(!self.is_in_context(&assignment));
            if let Some(mirror) = &hints.mirror {
                cost.ns += self.gap(&assignment, mirror, result.dtypes[0]);
            }
            let bound = best.as_ref().map_or(Cost::MAX, |best| best.cost);
            if self.add_cost(&assignment, &mut cost, bound) {
                keep_cheaper(&mut best, Choice { assignment, cost });
            }
        }
        best.unwrap_or_else(|| Choice {
            assignment: rule.unsplit(),
            cost: Cost::default(),
        })
    }

    /// Whether what is split along another factor is as the policy of the result asks.
    fn is_in_context(&self, assignment: &Assignment) -> bool {
        let rule = self.rule;
        let mut tied = (0..).zip(&rule.factors).filter_map(|(index, factor)| {
            let with = &assignment.factors[usize::from(factor.along?)];
            (!with.is_whole()).then_some(&assignment.factors[index])
        });
        match self.view.result.context {
            ContextParallel::Auto => true,
            ContextParallel::Ring => tied.all(|split| !split.is_whole()),
            ContextParallel::Gather => tied.all(|split| split.is_whole()),
        }
    }

    /// Returns what it takes to pass blocks from rank to rank beside so much work, and to put together what is made of
    /// each.
    fn passing_ns(&self, assignment: &Assignment, work_ns_of_rank: f64) -> f64 {
        let rule = self.rule;
        let dtypes = self.view.inputs.iter().map(|input| input.dtype);
        let inputs = rule.inputs.iter().zip(dtypes);
        let outputs = rule.outputs.iter();
        let outputs = outputs.zip(self.view.result.dtypes.iter().copied());
        let passed = rule.passed(assignment).map(|(factor, _)| {
            let axes: Vec<AxisIndex> = assignment.factors[usize::from(factor)].axes().collect();
            let members = self.mesh.group_size(&axes) as f64;
            let (mut moved, mut joined) = (0.0, 0.0);
            let sides = inputs.clone().map(|of| (of, false));
            for ((operand, dtype), is_output) in sides.chain(outputs.clone().map(|of| (of, true))) {
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
                .moves
                .network
                .transfer_ns(&axes, others as u64, others * moved);
            let beside = work_ns_of_rank * others / members;
            (transfer - beside).max(0.0) + work_ns(0.0, others * joined)
        });
        passed.sum()
    }

    /// Returns the constraints that an assignment breaks by itself.
    fn broken(&self, assignment: &Assignment, terms: &[(AxisIndex, u8)]) -> Cost {
        let (rule, hints) = (self.rule, &self.view.hints);
        let forced = hints.forced.as_ref();
        let input = forced.filter(|(at, layout)| &needed(rule, *at, assignment) != layout);
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
    fn terms(&self) -> Vec<(AxisIndex, u8)> {
        let rule = self.rule;
        let mut terms: Vec<(AxisIndex, u8)> = Vec::new();
        if rule.factors.iter().any(|f| f.kind == FactorKind::Index) {
            return terms;
        }
        let mut others: Vec<AxisIndex> = Vec::new();
        for (operand, input) in rule.inputs.iter().zip(&self.view.inputs) {
            let version = input.versions.first();
            let Some(version) = version.filter(|_| !operand.shape_only) else {
                continue;
            };
            let layout = version.gathered();
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
    fn add_cost(&mut self, assignment: &Assignment, cost: &mut Cost, bound: Cost) -> bool {
        let (rule, view) = (self.rule, self.view);
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
        let work = work_ns(view.hints.flops * split, 0.0);
        cost.ns += work + self.passing_ns(assignment, work);
        for (operand, dtype) in rule.outputs.iter().zip(&view.result.dtypes) {
            let layout = rule.output_layout(operand, assignment);
            let local = (layout.local_numel_max(self.mesh) * dtype.size()) as f64;
            cost.ns += work_ns(0.0, local);
            // A new partial has to be reduced some day: the bytes of a reduce-scatter, which others may share.
            for partial in &layout.partial {
                if !assignment.kept.contains(partial) {
                    let members = self.mesh.size(partial.axis) as f64;
                    let received = local * (members - 1.0) / members;
                    cost.ns += self.moves.network.bytes_ns(partial.axis, received);
                }
            }
        }
        for (position, (operand, input)) in rule.inputs.iter().zip(&view.inputs).enumerate() {
            if *cost >= bound {
                return false;
            }
            if operand.shape_only {
                // The gradient of these weights: best made where they are.
                if let Some(weights) = input.versions.first() {
                    cost.ns += self.gap(assignment, &weights.gathered(), input.dtype);
                }
                continue;
            }
            let layout = needed(rule, position, assignment);
            let needed = self.moves.cost(input, &layout, rule.on_pieces());
            cost.moved += needed.moved;
            cost.ns += needed.ns;
        }
        true
    }

    /// Returns what it costs to bring the result of `assignment` to `target` once its partial axes are resolved.
    fn gap(&mut self, assignment: &Assignment, target: &Layout, dtype: DType) -> f64 {
        let rule = self.rule;
        let mut made = rule.output_layout(&rule.outputs[0], assignment);
        made.partial.clear();
        let mut target = target.clone();
        target.partial.clear();
        if made.shape() != target.shape() {
            return 0.0;
        }
        self.moves.ns(&Arc::new(made), &target, dtype.size())
    }
}

#[cfg(test)]
mod tests;
