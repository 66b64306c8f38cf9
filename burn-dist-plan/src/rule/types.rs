//! Factors, rules and assignments.

use burn_dist_mesh::{MeshShape, ReduceOp};

use crate::layout::{DimLayout, Factor, Layout, Partial, chunk};

/// The kind of one factor of an operation: what may be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FactorKind {
    /// Runs independently per element and appears in the result: may be split freely.
    Map,
    /// Appears in the operands only; a split leaves every rank with one term, combined by the operation.
    Reduce(ReduceOp),
    /// Must be whole on every rank.
    Whole,
    /// The dim of a tensor that indices point into (`gather`, `select`, `embedding`, scatter targets). A split works on
    /// the indices that fall into the rank's range and masks the others. If the factor does not appear in the result,
    /// the result is partial (sum); if it does (scatter), the result is split alike.
    Index,
}

/// The part of a factor that a rank may have: what it computes can depend on where that lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Any elements.
    Any,
    /// Elements at equal distances: [`DimLayout::spaced`].
    Spaced,
    /// Neighbours.
    Range,
}

/// One factor of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FactorRule {
    /// Number of elements.
    pub size: usize,
    /// Its kind.
    pub kind: FactorKind,
    /// How many neighbours are split together: 1 where any split is right. An operand has a dim of elements for it, or
    /// one of blocks, the last of which may have fewer elements.
    pub block: usize,
    /// The part of it that a rank may have.
    pub held: Held,
    /// The factor that it is split with, if it is: over the same axes, and not by itself. The operation then passes the
    /// blocks of what has this factor on from rank to rank ([`Shift`](crate::ir::Shift)), and a result that has it gets
    /// the terms of all ranks.
    pub along: Option<u8>,
}

impl FactorRule {
    /// Returns the split of the factor that is that of `dim`, a dim of elements or of blocks, if it cuts no block and
    /// leaves each rank what it may have: the layout of a dim of elements.
    ///
    /// A factor whose last block has fewer elements is split by none.
    pub fn split_as(&self, dim: &DimLayout, mesh: &MeshShape) -> Option<DimLayout> {
        let may_be_held = match self.held {
            Held::Any => true,
            Held::Spaced => dim.is_spaced(mesh),
            Held::Range => dim.factors.len() == 1,
        };
        // Along another factor, it is not split by itself.
        if !may_be_held || (self.along.is_some() && !dim.is_whole()) {
            return None;
        }
        if self.block == 1 {
            return Some(dim.clone());
        }
        if dim.is_whole() {
            return Some(DimLayout::whole(self.size));
        }
        if !self.size.is_multiple_of(self.block) {
            return None;
        }
        let blocks = self.size / self.block;
        let of_blocks = match dim.size() == blocks {
            true => dim.clone(),
            false => dim.in_blocks(self.block, mesh)?,
        };
        let mut factors = of_blocks.factors;
        let last = factors.last_mut()?;
        // As `simplify` writes it.
        match last.size.is_multiple_of(mesh.group_size(&last.axes)) {
            true => last.size *= self.block,
            false => factors.push(Factor::whole(self.block)),
        }
        Some(DimLayout { factors })
    }

    /// Returns the layout of a dim of blocks of a factor with this split.
    fn blocks(&self, split: &DimLayout) -> DimLayout {
        let mut factors = split.factors.clone();
        let is_one = factors.len() == 1;
        if let Some(last) = factors.last_mut() {
            last.size = last.size.div_ceil(self.block);
            if last.size == 1 && last.axes.is_empty() && !is_one {
                factors.pop();
            }
        }
        DimLayout { factors }
    }
}

/// The factors of one operand or result, dim by dim; `None` is a dim that is whole because it has no factor (broadcast,
/// size one).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Operand {
    /// Index into [`Rule::factors`] for each dim.
    pub dims: Vec<Option<u8>>,
    /// Global sizes of the dims.
    pub shape: Vec<usize>,
    /// Only the shape is read (the weights of `embedding_backward`): the tensor is never moved, nor needed at run time.
    pub shape_only: bool,
    /// True if a partial value of this input may pass, as [`Rule::partial`] says. Under a joint one, all inputs with
    /// this mark are partial together; the others (masks, indices) never are.
    pub passes: bool,
}

/// Which partial inputs the operation may pass on as a partial result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartialRule {
    /// None: partial inputs are resolved first.
    Resolve,
    /// Moves elements without changing them (reshape, permute, slice, cat of one ...): every reduce op passes.
    Move,
    /// Linear in its first input alone (negation, scaling, sums): a sum passes.
    Linear,
    /// Linear in all its inputs together (add, sub, cat): a sum passes when all the inputs are partial over the axis.
    JointLinear,
    /// Moves elements of all its inputs: every reduce op passes when all the inputs are partial over the axis.
    JointMove,
}

impl PartialRule {
    /// Returns whether all inputs that pass are partial together.
    pub fn is_joint(self) -> bool {
        matches!(self, Self::JointLinear | Self::JointMove)
    }
}

/// How the local operation differs from the global one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lowering {
    /// The same operation on local shapes.
    Same,
    /// A mean: the local sum, divided by the *global* number of reduced elements.
    MeanAsSum,
    /// Described case by case, by kind of operation.
    Special,
}

/// The sharding rule of an operation in factor notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The factors.
    pub factors: Vec<FactorRule>,
    /// One entry per input, in the order of the operation.
    pub inputs: Vec<Operand>,
    /// One entry per output, in the order of the operation.
    pub outputs: Vec<Operand>,
    /// Which partial inputs pass.
    pub partial: PartialRule,
    /// How the local operation differs.
    pub lowering: Lowering,
    /// Elementwise over equal shapes: tensors at rest may stay at rest.
    pub elementwise: bool,
}

/// The rule of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpRule {
    /// Factor notation.
    Factors(Rule),
    /// A reshape: the layout is regrouped by [`Layout::reshape`].
    Reshape,
    /// Makes a tensor from nothing (zeros, ones, full, empty, random): any layout, without communication.
    Create,
    /// Runs on whole tensors on every rank, on purpose, for the stated reason.
    Replicated(&'static str),
}

impl Rule {
    /// Returns whether tensors at rest stay so: elementwise operations, the sum or maximum of all elements, which is that
    /// of those of the pieces, and what is computed block by block, of which no piece has a part.
    pub fn on_pieces(&self) -> bool {
        let summed = |factor: &FactorRule| {
            let kind = factor.kind;
            matches!(kind, FactorKind::Reduce(ReduceOp::Sum | ReduceOp::Max))
        };
        let of_one = self.inputs.len() == 1 && !self.factors.is_empty();
        let total = self.factors.iter().all(summed);
        let in_blocks = self.factors.iter().all(|factor| factor.block > 1);
        self.elementwise || (of_one && (total || in_blocks))
    }

    /// Returns whether the result has the dims of the operands, place by place, but for those with one element: it is a
    /// sum or a maximum along some dims of the one operand, or of the shape of an operand, beside which others are
    /// stretched. What is at rest may stay so where the result is for the same use: a split of a factor cuts all that
    /// have it alike, what has one element along that dim is whole, and of what is summed along it each rank has a
    /// term.
    pub fn keeps_dims(&self) -> bool {
        let [output] = self.outputs.as_slice() else {
            return false;
        };
        let is_free = |factor: &FactorRule| factor.block == 1 && factor.along.is_none();
        let is_map = |factor: &FactorRule| factor.kind == FactorKind::Map;
        let is_known = |factor: &FactorRule| {
            let sums = FactorKind::Reduce(ReduceOp::Sum);
            is_map(factor)
                || factor.kind == sums
                || factor.kind == FactorKind::Reduce(ReduceOp::Max)
        };
        // A dim without a factor has one element: others are needed whole.
        let is_split = |operand: &Operand| {
            let mut dims = operand.dims.iter().zip(&operand.shape);
            dims.all(|(factor, size)| factor.is_some() || *size == 1)
        };
        let mut operands = self.inputs.iter();
        let keeps = operands.all(|input| {
            let mut dims = input.dims.iter().zip(&output.dims);
            !input.shape_only
                && input.dims.len() == output.dims.len()
                && is_split(input)
                && dims.all(|(one, other)| one == other || one.is_none() || other.is_none())
        });
        let is_alike = |input: &Operand| input.dims == output.dims;
        let stretches = self.factors.iter().all(is_map) && self.inputs.iter().any(is_alike);
        let is_reduced = |input: &Operand| {
            let mut dims = input.dims.iter().zip(&output.dims);
            dims.all(|(one, other)| one.is_some() || other.is_none())
        };
        let reduces = matches!(self.inputs.as_slice(), [input] if is_reduced(input));
        keeps
            && is_split(output)
            && self
                .factors
                .iter()
                .all(|factor| is_free(factor) && is_known(factor))
            && (stretches || reduces)
    }
}

/// How the factors of a rule are split: one [`DimLayout`] per factor, and the partial axes that pass through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The split of each factor of the rule.
    pub factors: Vec<DimLayout>,
    /// Partial axes of the inputs kept in the result.
    pub kept: Vec<Partial>,
}

impl Rule {
    /// Returns the assignment that splits nothing.
    pub fn unsplit(&self) -> Assignment {
        Assignment {
            factors: self
                .factors
                .iter()
                .map(|f| DimLayout::whole(f.size))
                .collect(),
            kept: Vec::new(),
        }
    }

    /// Returns the factors whose blocks are passed from rank to rank under `assignment`, with those that they are split
    /// [along](FactorRule::along).
    pub fn passed(&self, assignment: &Assignment) -> impl Iterator<Item = (u8, u8)> {
        let splits = (0..).zip(&self.factors).zip(&assignment.factors);
        splits.filter_map(|((index, factor), split)| {
            let along = factor.along.filter(|_| !split.is_whole())?;
            Some((index, along))
        })
    }

    /// Returns the layout that `operand` (an input) must have under `assignment`.
    pub fn input_layout(&self, operand: &Operand, assignment: &Assignment) -> Layout {
        let partial = match operand.passes {
            true => assignment.kept.clone(),
            false => Vec::new(),
        };
        self.layout(operand, assignment, partial)
    }

    /// Returns the layout of `operand` (an output) under `assignment`: reduced factors leave partial axes.
    pub fn output_layout(&self, operand: &Operand, assignment: &Assignment) -> Layout {
        let mut partial = assignment.kept.clone();
        let summed_on_the_way = |index: usize| {
            let mut passed = self.passed(assignment);
            passed.any(|(factor, along)| {
                usize::from(along) == index && operand.dims.contains(&Some(factor))
            })
        };
        for (index, factor) in self.factors.iter().enumerate() {
            if operand.dims.contains(&Some(index as u8)) || summed_on_the_way(index) {
                continue;
            }
            let op = match factor.kind {
                FactorKind::Reduce(op) => op,
                FactorKind::Index => ReduceOp::Sum,
                FactorKind::Map | FactorKind::Whole => continue,
            };
            for split in &assignment.factors[index].factors {
                partial.extend(split.axes.iter().map(|&axis| Partial { axis, op }));
            }
        }
        partial.sort();
        self.layout(operand, assignment, partial)
    }

    fn layout(&self, operand: &Operand, assignment: &Assignment, partial: Vec<Partial>) -> Layout {
        let dims = operand
            .dims
            .iter()
            .zip(&operand.shape)
            .map(|(factor, &size)| match factor {
                Some(index) => {
                    let split = &assignment.factors[*index as usize];
                    match self.factors[*index as usize] {
                        factor if factor.size == size => split.clone(),
                        factor => factor.blocks(split),
                    }
                }
                None => DimLayout::whole(size),
            })
            .collect();
        Layout {
            dims,
            partial,
            at_rest: Vec::new(),
        }
    }
}

/// Returns whether every rank would hold at least one element of `dim`.
pub fn nowhere_empty(dim: &DimLayout, mesh: &MeshShape) -> bool {
    let is_everywhere = |factor: &Factor| {
        // The sizes of the chunks so far. A larger chunk can be the one with an empty part: 7 over 2 is 4 and 3, and
        // over 3 more, 4 is 2, 2, 0 while 3 is 1, 1, 1.
        let mut sizes = vec![factor.size];
        for &axis in &factor.axes {
            let parts = mesh.size(axis);
            let chunks =
                |size: usize| (0..parts).map(move |index| chunk(0..size, parts, index).len());
            sizes = sizes.into_iter().flat_map(chunks).collect();
            sizes.sort_unstable();
            sizes.dedup();
        }
        !sizes.contains(&0)
    };
    dim.factors.iter().all(is_everywhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A split that cuts no block is found, with the layout of a dim of blocks; one that cuts some is not.
    #[test]
    fn splits_of_blocks_are_those_that_cut_none() {
        let of = |dim: &DimLayout| Layout {
            dims: vec![dim.clone()],
            partial: Vec::new(),
            at_rest: Vec::new(),
        };
        let (mut found, mut cut) = (0, 0);
        for text in [
            "a:model=2",
            "a:model=3",
            "a:model=2,b:model=2",
            "a:model=2,b:model=3",
        ] {
            let mesh = MeshShape::parse(text).unwrap();
            for (size, block) in [(24, 4), (36, 4), (48, 2), (24, 12), (22, 4), (12, 12)] {
                let (kind, blocks) = (FactorKind::Map, size / block);
                let factor = FactorRule {
                    size,
                    kind,
                    block,
                    held: Held::Any,
                    along: None,
                };
                for layout in crate::rule::splits::layouts(&[size], &mesh) {
                    let dim = &layout.dims[0];
                    let is_cut = mesh.ranks().any(|rank| {
                        let here: Vec<usize> = layout.elements(&mesh, rank).collect();
                        let same = |element: &usize| {
                            let first = element / block * block;
                            (first..first + block).all(|other| here.contains(&other))
                        };
                        !here.iter().all(same)
                    });
                    let Some(split) = factor.split_as(dim, &mesh) else {
                        cut += 1;
                        assert!(is_cut || size % block != 0, "{dim:?} on {text}");
                        continue;
                    };
                    if dim.is_whole() {
                        assert_eq!(factor.blocks(&split).size(), size.div_ceil(block));
                        continue;
                    }
                    found += 1;
                    assert!(!is_cut, "{dim:?} on {text}");
                    let of_blocks = factor.blocks(&split);
                    assert_eq!((split.size(), of_blocks.size()), (size, blocks));
                    assert_eq!(factor.split_as(&of_blocks, &mesh), Some(split.clone()));
                    for rank in mesh.ranks() {
                        let here: Vec<usize> = of(&split).elements(&mesh, rank).collect();
                        assert!(layout.elements(&mesh, rank).eq(here.iter().copied()));
                        let mut heads: Vec<usize> = here.iter().map(|at| at / block).collect();
                        heads.dedup();
                        assert!(of(&of_blocks).elements(&mesh, rank).eq(heads));
                    }
                }
            }
        }
        assert!(found > 50 && cut > 50, "{found}, {cut}");
    }

    #[test]
    fn nowhere_empty_is_what_it_says() {
        for text in [
            "a:model=2",
            "a:model=3",
            "a:model=2,b:model=3",
            "a:model=3,b:model=2",
            "a:model=2,b:model=2,c:model=2",
        ] {
            let mesh = MeshShape::parse(text).unwrap();
            for size in 0..30 {
                let factor = Factor {
                    size,
                    axes: mesh.axis_indices().collect(),
                };
                let dim = DimLayout {
                    factors: vec![factor.clone()],
                };
                let held = mesh
                    .ranks()
                    .all(|rank| !factor.range(&mesh, rank).is_empty());
                assert_eq!(nowhere_empty(&dim, &mesh), held, "{size} over {text}");
            }
        }
    }
}
