//! One operation as one rank sees it.

use std::ops::Range;
use std::sync::Arc;

use crate::layout::{DimLayout, Layout, Spaced};
use crate::mesh::{AxisIndex, BoolStore, MeshShape, Rank, ReduceOp};
use crate::rule::{Assignment, FactorKind, OpRule};

/// One operation as one rank sees it: its rule, how that is split, and the layouts of its operands.
#[derive(Clone, Copy, Debug)]
pub struct LocalView<'a> {
    /// The rule of the operation.
    pub rule: &'a OpRule,
    /// How the factors of the rule are split; `None` if nothing is.
    pub assignment: Option<&'a Assignment>,
    /// The layout of every input, in order. Those of inputs of which only the shape is read are ignored.
    pub inputs: &'a [Arc<Layout>],
    /// The layout of every output, in order.
    pub outputs: &'a [Arc<Layout>],
    /// The mesh.
    pub mesh: &'a MeshShape,
    /// The rank.
    pub rank: Rank,
    /// How the device stores bools: masks are made in the lowering.
    pub bool_store: BoolStore,
}

/// What an operation at indices does globally, for the message should one of them be out of range: the rank itself
/// knows a part of the dim.
#[derive(Clone, Debug, PartialEq)]
pub struct Indexed {
    /// The operation with its global shapes.
    pub op: String,
    /// Global shape of the tensor that is read or written.
    pub shape: Vec<usize>,
    /// Along which dim.
    pub dim: usize,
    /// Where the rank's part of the dim starts: its indices count from there.
    pub start: usize,
}

impl LocalView<'_> {
    /// Returns the factors of the rule with their splits.
    pub fn splits(&self) -> impl Iterator<Item = (FactorKind, &DimLayout)> {
        let rule = match self.rule {
            OpRule::Factors(rule) => Some(rule),
            _ => None,
        };
        rule.zip(self.assignment)
            .into_iter()
            .flat_map(|(rule, assignment)| {
                let kinds = rule.factors.iter().map(|factor| factor.kind);
                kinds.zip(&assignment.factors)
            })
    }

    /// Returns the split of the factor of dim `dim` of an operand, if it is split.
    pub fn split(&self, dims: &[Option<u8>], dim: usize) -> Option<&DimLayout> {
        let split = &self.assignment?.factors[dims[dim]? as usize];
        (!split.is_whole()).then_some(split)
    }

    /// Returns whether this rank holds no term of a split sum, so that its part of the result is zero.
    ///
    /// # Panics
    /// If a maximum, minimum or product is split such that a rank holds no element of it: there is no value to give.
    pub fn has_no_terms(&self) -> bool {
        for (kind, split) in self.splits().filter(|(_, split)| !split.is_whole()) {
            let ranges = split
                .factors
                .iter()
                .map(|factor| factor.range(self.mesh, self.rank));
            if split.size() == 0 || !ranges.into_iter().any(|range| range.is_empty()) {
                continue;
            }
            match kind {
                FactorKind::Reduce(ReduceOp::Sum | ReduceOp::Mean) | FactorKind::Index => {
                    return true;
                }
                FactorKind::Reduce(op) => {
                    panic!(
                        "{op:?} over no elements on rank {}; the planner does not offer such a split",
                        self.rank.0
                    )
                }
                FactorKind::Map | FactorKind::Whole => {}
            }
        }
        false
    }

    /// Returns whether the rank is the first one along all of `axes`.
    pub fn is_first(&self, axes: impl IntoIterator<Item = AxisIndex>) -> bool {
        axes.into_iter()
            .all(|axis| self.mesh.coord(self.rank, axis) == 0)
    }

    /// Whether the rank is the first one among those that hold different terms of the split sums of this operation.
    pub fn holds_first_terms(&self) -> bool {
        let sums = self
            .splits()
            .filter(|(kind, _)| matches!(kind, FactorKind::Reduce(_)));
        self.is_first(sums.flat_map(|(_, split)| split.axes()))
    }

    /// Returns the contiguous range of a split index dim that the rank holds.
    ///
    /// # Panics
    /// If the dim is split as a product of factors.
    pub fn range(&self, split: &DimLayout) -> Range<usize> {
        let [factor] = split.factors.as_slice() else {
            panic!("an index dim is split as one range; the planner does not offer products");
        };
        factor.range(self.mesh, self.rank)
    }

    /// Returns where along dim `dim` of input `index` the elements lie that `rank` holds.
    ///
    /// # Panics
    /// If they are not [spaced](crate::rule::RuleBuilder::spaced), as those of a factor are of which that is asked.
    pub fn spaced_on(&self, rank: Rank, index: usize, dim: usize) -> Spaced {
        let spaced = self.inputs[index].dims[dim].spaced(self.mesh, rank);
        spaced.expect("the planner offers no other split of such a factor")
    }

    /// Returns the local shape of input `index`.
    pub fn input_shape(&self, index: usize) -> Vec<usize> {
        self.inputs[index].local_shape(self.mesh, self.rank)
    }

    /// Returns the local shape of output `index`.
    pub fn output_shape(&self, index: usize) -> Vec<usize> {
        self.outputs[index].local_shape(self.mesh, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Op;
    use crate::layout::Factor;
    use crate::toy::{Builder, Kind};

    /// The last two of six ranks have none of four rows to add up; a sum that is not split is whole on all.
    #[test]
    fn a_rank_without_rows_has_no_terms() {
        let mut b = Builder::new("dp=6");
        let x = b.data(&[4, 3]);
        b.op(Kind::SumDim(0), &[x], &[1, 3]);
        let rule = b.window.ops[0].rule();
        let OpRule::Factors(factors) = &rule else {
            panic!("{rule:?}")
        };
        let mut rows = factors.unsplit();
        let summed = factors.inputs[0].dims[0].expect("rows are added up");
        let axes = b.mesh.axis_indices().collect();
        rows.factors[usize::from(summed)].factors = vec![Factor { size: 4, axes }];
        for (assignment, expected) in [
            (rows, [false, false, false, false, true, true]),
            (factors.unsplit(), [false; 6]),
        ] {
            let has_none = b.mesh.ranks().map(|rank| {
                let view = LocalView {
                    rule: &rule,
                    assignment: Some(&assignment),
                    inputs: &[],
                    outputs: &[],
                    mesh: &b.mesh,
                    rank,
                    bool_store: BoolStore::Native,
                };
                view.has_no_terms()
            });
            assert_eq!(has_none.collect::<Vec<_>>(), expected);
        }
    }
}
