//! The splits that the operands and hints of an operation offer, and how long each takes.

use std::sync::Arc;

use super::moves::Moves;
use super::options::{Options, passing};
use super::split::Split;
use super::view::OpView;
use crate::Accumulation;
use crate::cost::work_ns;
use crate::layout::{DimLayout, Layout, Partial, simplify};
use crate::mesh::{AxisIndex, DType, MeshShape, ReduceOp};
use crate::rule::{Assignment, FactorKind, OpRule, Operand, PartialRule, Rule};

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The work of a rank, and what it passes on meanwhile.
    Work,
    /// Writing the results.
    Results,
    /// Adding up the terms of the results, one day.
    Terms,
    /// Bringing the result to where it is wanted.
    Wanted,
    /// Having the operand of this position in the layout that is needed.
    Operand(usize),
}

/// A split on offer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    pub split: Split,
    /// Parameters, or views of them, that it moves off the axes that a style splits them over.
    pub moved: u32,
    /// Nanoseconds of what takes time, in the order in which they are added up.
    pub times: Vec<(Part, f64)>,
}

/// All that an operation is offered: one split at least.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offers {
    pub splits: Vec<Offer>,
    /// The data axes over which each rank has rows of its own to sum, with the factor that they split.
    pub terms: Vec<(AxisIndex, u8)>,
}

impl Offers {
    /// Returns what an operation is offered whose rule has factors, or that is a reshape.
    pub(super) fn new(view: &OpView, moves: &mut Moves<'_>) -> Self {
        match view.rule.as_ref() {
            OpRule::Factors(rule) => Offering { rule, view, moves }.offers(),
            _ => Self::of_reshape(view, moves),
        }
    }

    /// As many axes of an operand as the reshape allows stay: all subsets of them are on offer, the whole set first.
    fn of_reshape(view: &OpView, moves: &mut Moves<'_>) -> Self {
        let mut splits = Vec::new();
        let (mesh, operand) = (moves.mesh(), &view.inputs[0]);
        for source in &view.hints.sources {
            let axes: Vec<AxisIndex> = source.sharded_axes().collect();
            for dropped in 0u32..(1 << axes.len()) {
                let gone = (0..).zip(&axes);
                let gone = gone.filter(|(bit, _)| dropped & (1 << bit) != 0);
                let gone: Vec<AxisIndex> = gone.map(|(_, axis)| *axis).collect();
                let mut from = source.clone();
                if !gone.is_empty() {
                    let partial = std::mem::take(&mut from.partial);
                    from = from.without_axes(&gone);
                    from.partial = partial;
                }
                let Some(to) = from.reshape(mesh, &view.hints.shape) else {
                    continue;
                };
                let to = simplify(to, mesh);
                let made = to.local_numel_max(mesh) * operand.dtype.size();
                let from = Arc::new(from);
                let cost = moves.cost(operand, &from, false);
                splits.push(Offer {
                    moved: cost.moved,
                    times: vec![
                        (Part::Operand(0), cost.ns),
                        (Part::Results, work_ns(0.0, made as f64)),
                    ],
                    split: Split {
                        assignment: None,
                        inputs: vec![from],
                        outputs: vec![Arc::new(to)],
                    },
                });
            }
        }
        if splits.is_empty() {
            let whole = view.hints.sources.iter().map(Layout::shape).take(1);
            let whole = whole.map(|shape| Layout::replicated(&shape));
            let made = Layout::replicated(&view.hints.shape);
            splits.push(Offer {
                split: Split::of_layouts(whole, [made]),
                moved: 0,
                times: Vec::new(),
            });
        }
        Self {
            splits,
            terms: Vec::new(),
        }
    }
}

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
    let sizes = dim.factors.iter();
    sizes.map(|factor| factor.local_size_max(mesh)).product()
}

/// Returns whether partial values like that are terms of a sum, one per rank of data axes.
pub(super) fn are_terms_of_rows(partial: &[Partial], mesh: &MeshShape) -> bool {
    let is_data = |p: &Partial| mesh.role(p.axis).splits_data();
    partial.iter().any(is_data) && partial.iter().all(|p| p.op == ReduceOp::Sum)
}

/// What is offered to an operation whose rule has factors.
struct Offering<'a, 'm> {
    rule: &'a Rule,
    view: &'a OpView,
    moves: &'a mut Moves<'m>,
}

impl Offering<'_, '_> {
    fn offers(&mut self) -> Offers {
        let offers = self.assignments().into_iter();
        Offers {
            splits: offers.map(|assignment| self.offer(assignment)).collect(),
            terms: self.terms(),
        }
    }

    /// Returns the assignments of factors that operands and hints offer.
    fn assignments(&self) -> Vec<Assignment> {
        let (rule, view, mesh) = (self.rule, self.view, self.moves.mesh());
        let OpView { result, hints, .. } = view;
        let mut options = Options::new(rule, mesh);
        let mut partials: Vec<Option<&[Partial]>> = Vec::with_capacity(rule.inputs.len());
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
            let versions = input.versions.iter();
            let mut offered: Vec<Layout> = match hints.on_pieces {
                true => versions.map(|version| version.as_ref().clone()).collect(),
                false => versions.map(|version| version.gathered()).collect(),
            };
            let mut partial = None;
            // A value that exists without partial axes is used that way; a partial one passes only if no one else
            // needs it resolved.
            if let (Some(resolved), Some(first)) = (&input.resolved, input.versions.first()) {
                if input.single_use && !operand.shape_only {
                    partial = Some(&*first.partial);
                }
                offered.push(resolved.clone());
            }
            partials.push(partial);
            if hints.joins_rows {
                continue;
            }
            for layout in &offered {
                options.offer_layout(&operand.dims, layout);
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
                options.offer_layout(&dims, own);
            }
        }
        // What no operand decides is best made as what the result meets: the gradient of a sum, say, spread over what
        // was summed.
        let out = &rule.outputs[0].dims;
        let is_open = |factor: &u8| !decided[usize::from(*factor)];
        let open: Vec<Option<u8>> = out.iter().map(|factor| factor.filter(is_open)).collect();
        if let (true, Some(tied)) = (open.iter().any(Option::is_some), &result.tied) {
            options.offer_layout(&open, tied);
        }
        let wanted = [&hints.batch, &hints.mirror].into_iter().flatten();
        for layout in wanted.chain(hints.home.as_deref()) {
            options.offer_layout(out, layout);
        }
        options.offer_rests(&all_offered);
        let mut kept = passing(rule, &partials);
        if result.accumulation == Accumulation::PerMicrobatch
            && rule.partial == PartialRule::JointLinear
            && rule.inputs.len() > 1
            && result.is_backward
            && are_terms_of_rows(&kept, mesh)
        {
            kept.retain(|partial| mesh.role(partial.axis).splits_model());
        }
        let taken: Vec<AxisIndex> = kept.iter().map(|p| p.axis).collect();
        let only_sums = kept.iter().all(|p| p.op == ReduceOp::Sum);
        let mut assignments = Vec::new();
        options.combinations(&taken, |factors| {
            let mut splits = rule.factors.iter().zip(factors);
            let indexed = splits.any(|(of, dim)| of.kind == FactorKind::Index && !dim.is_whole());
            if only_sums || !indexed {
                assignments.push(Assignment {
                    factors: factors.to_vec(),
                    kept: kept.clone(),
                });
            }
        });
        if assignments.is_empty() {
            assignments.push(rule.unsplit());
        }
        assignments
    }

    /// Returns the data axes over which each rank has rows of its own to sum, with the factor they split: those that
    /// split no operand in another way. Sums by index are left out: of a large table, few rows are gathered.
    fn terms(&self) -> Vec<(AxisIndex, u8)> {
        let (rule, mesh) = (self.rule, self.moves.mesh());
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
                let data = |axis: &AxisIndex| mesh.role(*axis).splits_data();
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
        let in_one_way =
            |(axis, _): &&(AxisIndex, u8)| factors_of(*axis) == 1 && !others.contains(axis);
        terms.iter().filter(in_one_way).copied().collect()
    }

    /// Returns a split with what takes time of it: the work of a rank, the operands brought where they are needed, and
    /// the reduction of a new partial result.
    fn offer(&mut self, assignment: Assignment) -> Offer {
        let (rule, view, mesh) = (self.rule, self.view, self.moves.mesh());
        let split = Split::new(rule, assignment.clone());
        let mut times = Vec::with_capacity(3 + rule.inputs.len());
        if let Some(mirror) = &view.hints.mirror {
            let gap = self.gap(&split, mirror, view.result.dtypes[0]);
            times.push((Part::Wanted, gap));
        }
        let shares = rule.factors.iter().zip(&assignment.factors);
        let share: f64 = shares
            .map(|(factor, dim)| match factor.size {
                0 => 1.0,
                // All of it comes by.
                _ if factor.along.is_some() => 1.0,
                size => local_size_max(dim, mesh) as f64 / size as f64,
            })
            .product();
        let work = work_ns(view.hints.flops.get() * share, 0.0);
        times.push((Part::Work, work + self.passing_ns(&assignment, work)));
        for (layout, dtype) in split.outputs.iter().zip(&view.result.dtypes) {
            let local = (layout.local_numel_max(mesh) * dtype.size()) as f64;
            times.push((Part::Results, work_ns(0.0, local)));
            // A new partial has to be reduced some day: the bytes of a reduce-scatter, which others may share.
            for partial in &layout.partial {
                if !assignment.kept.contains(partial) {
                    let members = mesh.size(partial.axis) as f64;
                    let received = local * (members - 1.0) / members;
                    let ns = self.moves.network.bytes_ns(partial.axis, received);
                    times.push((Part::Terms, ns));
                }
            }
        }
        let mut moved = 0;
        let inputs = rule.inputs.iter().zip(&view.inputs).zip(&split.inputs);
        for (position, ((operand, input), layout)) in inputs.enumerate() {
            if operand.shape_only {
                // The gradient of these weights: best made where they are.
                if let Some(weights) = input.versions.first() {
                    let gap = self.gap(&split, &weights.gathered(), input.dtype);
                    times.push((Part::Wanted, gap));
                }
                continue;
            }
            let cost = self.moves.cost(input, layout, view.hints.on_pieces);
            moved += cost.moved;
            times.push((Part::Operand(position), cost.ns));
        }
        Offer {
            split,
            moved,
            times,
        }
    }

    /// Returns what it takes to pass blocks from rank to rank beside so much work, and to put together what is made of
    /// each.
    fn passing_ns(&self, assignment: &Assignment, work_ns_of_rank: f64) -> f64 {
        let (rule, mesh) = (self.rule, self.moves.mesh());
        let dtypes = self.view.inputs.iter().map(|input| input.dtype);
        let inputs = rule.inputs.iter().zip(dtypes);
        let outputs = rule.outputs.iter();
        let outputs = outputs.zip(self.view.result.dtypes.iter().copied());
        let passed = rule.passed(assignment).map(|(factor, _)| {
            let axes: Vec<AxisIndex> = assignment.factors[usize::from(factor)].axes().collect();
            let members = mesh.group_size(&axes) as f64;
            let (mut moved, mut joined) = (0.0, 0.0);
            let sides = inputs.clone().map(|of| (of, false));
            for ((operand, dtype), is_output) in sides.chain(outputs.clone().map(|of| (of, true))) {
                let layout = match is_output {
                    true => rule.output_layout(operand, assignment),
                    false => rule.input_layout(operand, assignment),
                };
                let bytes = (layout.local_numel_max(mesh) * dtype.size()) as f64;
                match operand.dims.contains(&Some(factor)) {
                    true => moved += bytes,
                    false if is_output => joined += bytes,
                    false => {}
                }
            }
            let others = members - 1.0;
            let network = &self.moves.network;
            let transfer = network.transfer_ns(&axes, others as u64, others * moved);
            let beside = work_ns_of_rank * others / members;
            (transfer - beside).max(0.0) + work_ns(0.0, others * joined)
        });
        passed.sum()
    }

    /// Returns what it costs to bring the result of a split to `target` once its partial axes are resolved.
    fn gap(&mut self, split: &Split, target: &Layout, dtype: DType) -> f64 {
        let (made, target) = (split.outputs[0].resolved(), target.resolved());
        if made.shape() != target.shape() {
            return 0.0;
        }
        self.moves.ns(&made.into(), &target.into(), dtype.size())
    }
}
