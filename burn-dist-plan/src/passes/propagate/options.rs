//! How the factors of an operation may be split, and in which combinations.

use crate::layout::{DimLayout, Factor, Layout, Partial};
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};
use crate::rule::{FactorKind, Operand, PartialRule, Rule, nowhere_empty};

/// An assignment is looked for among at most this many combinations; operations have few factors with more than one
/// option.
const COMBINATIONS_MAX: usize = 4096;

/// The ways in which the factors of a rule may be split.
#[derive(Clone, Debug)]
pub(super) struct Options<'a> {
    rule: &'a Rule,
    mesh: &'a MeshShape,
    /// The splits of each factor; the first is "whole".
    per_factor: Vec<Vec<DimLayout>>,
}

/// Returns `dim` with `gone` joined and all else where it is; `None` if what is joined is not cut evenly, so that what
/// remains has no factors of its own.
///
/// `72{ep, fsdp}` without ep=2 is `(2 . 36{fsdp})`: every rank has a piece of each half.
fn without(dim: &DimLayout, gone: &[AxisIndex], mesh: &MeshShape) -> Option<DimLayout> {
    let mut factors: Vec<Factor> = Vec::with_capacity(dim.factors.len() + 1);
    for factor in &dim.factors {
        let mut rest = factor.clone();
        while let Some(at) = rest.axes.iter().position(|axis| gone.contains(axis)) {
            let after = rest.axes.split_off(at + 1);
            let joined = rest.axes.pop().expect("the position is there");
            if after.is_empty() {
                continue;
            }
            let before = mesh.group_size(&rest.axes);
            let parts = mesh.size(joined);
            if !rest.size.is_multiple_of(before * parts) {
                return None;
            }
            let size = rest.size / (before * parts);
            if !rest.axes.is_empty() {
                rest.size = before;
                factors.push(rest);
            }
            factors.push(Factor::whole(parts));
            rest = Factor { size, axes: after };
        }
        factors.push(rest);
    }
    let mut dim = DimLayout { factors };
    dim.merge_whole_factors();
    Some(dim)
}

/// Returns whether a factor of a kind may be split that way.
pub(super) fn allows(kind: FactorKind, dim: &DimLayout, mesh: &MeshShape) -> bool {
    match kind {
        FactorKind::Map => true,
        FactorKind::Reduce(ReduceOp::Sum | ReduceOp::Mean) => true,
        FactorKind::Reduce(_) | FactorKind::Index => nowhere_empty(dim, mesh),
        FactorKind::Whole => dim.is_whole(),
    }
}

impl<'a> Options<'a> {
    pub(super) fn new(rule: &'a Rule, mesh: &'a MeshShape) -> Self {
        let factors = rule.factors.iter();
        Self {
            rule,
            mesh,
            per_factor: factors
                .map(|factor| vec![DimLayout::whole(factor.size)])
                .collect(),
        }
    }

    /// Offers `dim` (and what remains of it when its minor axes are gathered) for `factor`, if the rule allows such a
    /// split. What is split along another factor has its splits.
    fn offer(&mut self, factor: u8, dim: &DimLayout) {
        let (rule, mesh) = (self.rule, self.mesh);
        let factor = rule.factors[factor as usize].along.unwrap_or(factor);
        let of_rule = rule.factors[factor as usize];
        let mut dim = dim.clone();
        loop {
            let Some(position) = dim.factors.iter().rposition(|f| !f.axes.is_empty()) else {
                return;
            };
            let allowed = allows(of_rule.kind, &dim, mesh);
            let options = &mut self.per_factor[factor as usize];
            if let Some(split) = of_rule.split_as(&dim, mesh).filter(|_| allowed)
                && !options.contains(&split)
            {
                options.push(split);
            }
            dim.factors[position].axes.pop();
            dim.merge_whole_factors();
        }
    }

    /// Offers what remains of a dim of an operand where another operand has some of its axes in a dim of another factor:
    /// one of the two makes way, and what is split over further axes may stay where it is.
    pub(super) fn offer_rests(&mut self, operands: &[(&Operand, Layout)]) {
        // For each axis and factor that it splits, two operands where it does, if there are two: one of them is another
        // than the one that is looked at.
        let mut places: Vec<(AxisIndex, u8, [Option<*const Operand>; 2])> = Vec::new();
        for (operand, layout) in operands {
            let operand_at = Some(std::ptr::from_ref(*operand));
            for (factor, dim) in operand.dims.iter().zip(&layout.dims) {
                for (factor, axis) in factor.iter().flat_map(|f| dim.axes().map(|a| (*f, a))) {
                    let known = places
                        .iter_mut()
                        .find(|(of, place, _)| (*of, *place) == (axis, factor));
                    match known {
                        Some((.., [one, two])) if *one != operand_at => *two = operand_at,
                        Some(_) => {}
                        None => places.push((axis, factor, [operand_at, None])),
                    }
                }
            }
        }
        for (operand, layout) in operands {
            for (factor, dim) in operand.dims.iter().zip(&layout.dims) {
                let Some(factor) = factor else {
                    continue;
                };
                let own = std::ptr::from_ref(*operand);
                let is_elsewhere = |axis: &AxisIndex| {
                    places.iter().any(|(of, place, others)| {
                        let mut others = others.iter().flatten();
                        of == axis && place != factor && others.any(|other| *other != own)
                    })
                };
                let gone: Vec<AxisIndex> = dim.axes().filter(is_elsewhere).collect();
                if let (false, Some(rest)) = (gone.is_empty(), without(dim, &gone, self.mesh)) {
                    self.offer(*factor, &rest);
                }
            }
        }
    }

    /// Offers every dim of `layout`, as the layout of an operand with the factors `dims`.
    pub(super) fn offer_layout(&mut self, dims: &[Option<u8>], layout: &Layout) {
        for (factor, dim) in dims.iter().zip(&layout.dims) {
            if let Some(factor) = factor {
                self.offer(*factor, dim);
            }
        }
    }

    /// Calls `visit` with every combination in which no axis is used twice and none of `taken` is used.
    pub(super) fn combinations(&self, taken: &[AxisIndex], mut visit: impl FnMut(&[DimLayout])) {
        let mut chosen: Vec<DimLayout> = Vec::with_capacity(self.per_factor.len());
        let mut used: Vec<AxisIndex> = taken.to_vec();
        let mut count = 0;
        self.descend(&mut chosen, &mut used, &mut count, &mut visit);
    }

    fn descend(
        &self,
        chosen: &mut Vec<DimLayout>,
        used: &mut Vec<AxisIndex>,
        count: &mut usize,
        visit: &mut impl FnMut(&[DimLayout]),
    ) {
        if *count >= COMBINATIONS_MAX {
            return;
        }
        let Some(options) = self.per_factor.get(chosen.len()) else {
            *count += 1;
            visit(chosen);
            return;
        };
        let with = self.rule.factors[chosen.len()]
            .along
            .map(|with| chosen[usize::from(with)].clone());
        if let Some(split) = with.filter(|split| !split.is_whole()) {
            chosen.push(split);
            self.descend(chosen, used, count, visit);
            chosen.pop();
        }
        // Split options first: if the cap is ever reached, what was left out is the least sharded.
        for option in options.iter().skip(1).chain(options.first()) {
            if option.axes().any(|axis| used.contains(&axis)) {
                continue;
            }
            let before = used.len();
            used.extend(option.axes());
            chosen.push(option.clone());
            self.descend(chosen, used, count, visit);
            chosen.pop();
            used.truncate(before);
        }
    }
}

/// Returns the partial axes that may pass through the operation, given the partial axes of its inputs (`None`: the
/// input is free or shape-only): none if the result is larger than they are, for terms are added up before they are
/// spread.
pub(super) fn passing(rule: &Rule, inputs: &[Option<&[Partial]>]) -> Vec<Partial> {
    let numel = |operand: &Operand| operand.shape.iter().product::<usize>();
    let carriers = rule.inputs.iter().filter(|operand| operand.passes);
    if carriers.map(numel).sum::<usize>() < numel(&rule.outputs[0]) {
        return Vec::new();
    }
    let passes = |p: &&Partial| match rule.partial {
        PartialRule::Resolve => false,
        PartialRule::Move | PartialRule::JointMove => true,
        PartialRule::Linear | PartialRule::JointLinear => p.op == ReduceOp::Sum,
    };
    let has = |input: &Option<&[Partial]>, p: &Partial| input.is_some_and(|of| of.contains(p));
    let in_all = |p: &&Partial| inputs.iter().all(|input| has(input, p));
    let first = inputs.first().copied().flatten().unwrap_or(&[]).iter();
    let passing = first.filter(passes);
    let passing = passing.filter(|p| !rule.partial.is_joint() || in_all(p));
    passing.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Network;
    use crate::layout::redistribute;

    /// What remains of a dim of `size` that is split as `text` says, where `gone` make way.
    fn rest(text: &str, size: usize, gone: &[&str]) -> Option<String> {
        let mesh = MeshShape::parse("dp=2,ep=2,fsdp=2,cp=3").unwrap();
        let layout = Layout::parse(text, &mesh, Some(&[size])).unwrap();
        let gone: Vec<AxisIndex> = gone.iter().map(|name| mesh.axis(name).unwrap()).collect();
        let dim = without(&layout.dims[0], &gone, &mesh)?;
        let rest = Layout {
            dims: vec![dim],
            ..Layout::replicated(&[size])
        };
        // Nothing but what is gone is gathered: all else is where it was.
        let steps = redistribute::plan(&Network::unknown(&mesh), &layout, &rest, 4).unwrap();
        let moved = steps.iter().filter(|step| step.kind.collective().is_some());
        let moved: Vec<AxisIndex> = moved.flat_map(|step| step.kind.axes().to_vec()).collect();
        assert_eq!(moved, gone, "{text}");
        Some(rest.display(&mesh).to_string())
    }

    #[test]
    fn what_makes_way_takes_no_other_along() {
        let of = |text, size, gone: &[&str]| rest(text, size, gone).unwrap();
        assert_eq!(of("[{fsdp, ep}]", 24, &["ep"]), "[{fsdp}]");
        assert_eq!(of("[{ep, fsdp}]", 24, &["ep"]), "[(2 . 12{fsdp})]");
        assert_eq!(
            of("[{dp, ep, fsdp}]", 24, &["ep"]),
            "[(2{dp} . 2 . 6{fsdp})]"
        );
        assert_eq!(of("[{dp, ep, fsdp}]", 24, &["dp", "ep"]), "[(4 . 6{fsdp})]");
        assert_eq!(of("[(4{ep} . 6{cp})]", 24, &["ep"]), "[(4 . 6{cp})]");
        assert_eq!(of("[(4{ep} . 6{cp})]", 24, &["cp"]), "[(4{ep} . 6)]");
        assert_eq!(of("[{ep}]", 24, &["ep"]), "[-]");
        // 7 are cut into 4 and 3, which have no factor of their own.
        assert_eq!(rest("[{ep, fsdp}]", 7, &["ep"]), None);
    }
}
