//! An operation under every split that its rule allows, against the operation on whole tensors.
//!
//! Whatever the layouts say about a block must hold for the block that the local operations make. Tests of operations
//! call [`check`] with a function that runs them; values are exact in `f64` or compared within a tolerance.

use super::splits;
use super::{Assignment, OpRule, PartialRule, Rule};
use std::sync::Arc;

use crate::ir::LocalView;
use crate::layout::{DimLayout, Layout, Partial};
use crate::mesh::{BoolStore, DType, MeshShape, Rank, ReduceOp};

/// A tensor: its values in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// The elements; bools are 0 and 1.
    pub values: Vec<f64>,
}

/// An operation's inputs and what it makes of them on one device.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub op: String,
    /// Its rule.
    pub rule: OpRule,
    /// The values that it reads.
    pub inputs: Vec<Values>,
    /// The values that it makes.
    pub outputs: Vec<Values>,
    /// How far a float may be off, relative to itself or to one.
    pub tolerance: f64,
}

/// An operation under one split.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitOp {
    /// The operation.
    pub op: String,
    /// The layouts of its inputs and outputs.
    pub layouts: String,
    /// The mesh.
    pub mesh: String,
    /// Index of the output that is wrong.
    pub output: usize,
    /// The rank.
    pub rank: u32,
}

/// A split that gives another value than the operation on whole tensors.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// An element differs.
    #[error(
        "{} split as {} on {} gives {found} for element {element:?} of output {} on rank {}, and {expected} on one \
         device: its rule and what it does on a rank contradict each other",
        split.op, split.layouts, split.mesh, split.output, split.rank
    )]
    Element {
        /// Which split.
        split: Box<SplitOp>,
        /// Place of the element, per dim.
        element: Vec<usize>,
        /// The value of the rank, terms combined.
        found: f64,
        /// The value of one device.
        expected: f64,
    },
    /// The formula of an operation gives something else than its kernel.
    #[error(
        "the formula of {op} gives {found} for element {element} of output {output}, and its kernel {expected}: they \
         contradict each other"
    )]
    Formula {
        /// The operation.
        op: String,
        /// Which output.
        output: usize,
        /// Number of the element, row by row.
        element: usize,
        /// The value of the formula.
        found: f64,
        /// The value of the kernel.
        expected: f64,
    },
    /// A block has another size than its layout says.
    #[error(
        "{} split as {} on {} makes {found} elements of output {} on rank {}, and its layout has {expected} there",
        split.op, split.layouts, split.mesh, split.output, split.rank
    )]
    Size {
        /// Which split.
        split: Box<SplitOp>,
        /// Elements made.
        found: usize,
        /// Elements of the layout.
        expected: usize,
    },
    /// A factor that no split splits.
    #[error(
        "{op}: factor {factor} of its rule is never split on any mesh of the check: give it a larger size"
    )]
    NeverSplit {
        /// The operation.
        op: String,
        /// Number of the factor.
        factor: usize,
    },
}

burn_dist_mesh::debug_by_message!(Mismatch);

/// Runs a case on `view.rank`: takes the blocks of the inputs (`None` of those of which only the shape is read) and
/// returns those of the outputs.
pub trait Run: FnMut(&LocalView<'_>, Vec<Option<Values>>) -> Vec<Vec<f64>> {}
impl<F: FnMut(&LocalView<'_>, Vec<Option<Values>>) -> Vec<Vec<f64>>> Run for F {}

/// Returns the meshes of the check: one axis of 2 and of 3, two axes.
pub fn meshes() -> Vec<MeshShape> {
    let texts = [
        "a:model=2",
        "a:model=3",
        "a:model=2,b:model=2",
        "a:model=2,b:model=3",
    ];
    let parse = |text| MeshShape::parse(text).expect("a mesh");
    texts.map(parse).to_vec()
}

/// Checks a case under all splits of a family: every factor whole, over one axis, over two, and as a product; with
/// partial inputs where the rule lets them pass. Returns under how many.
///
/// # Errors
/// [`Mismatch`] for the first split that gives something else.
pub fn check(case: &Case, mut run: impl Run) -> Result<usize, Mismatch> {
    let mut count = 0;
    let mut ever: Vec<bool> = Vec::new();
    for mesh in meshes() {
        match &case.rule {
            OpRule::Factors(rule) => {
                ever.resize(rule.factors.len(), false);
                count += case.check_factors(rule, &mesh, &mut ever, &mut run)?;
            }
            OpRule::Replicated(_) => {
                let whole = |side: &[Values]| -> Vec<Layout> {
                    side.iter().map(|v| Layout::replicated(&v.shape)).collect()
                };
                let (inputs, outputs) = (whole(&case.inputs), whole(&case.outputs));
                case.check_split(&mesh, None, &inputs, &outputs, &mut run)?;
                count += 1;
            }
            OpRule::Reshape | OpRule::Create => count += case.check_layouts(&mesh, &mut run)?,
        }
    }
    match ever.iter().position(|split| !split) {
        Some(factor) => Err(Mismatch::NeverSplit {
            op: case.op.clone(),
            factor,
        }),
        None => Ok(count),
    }
}

impl Case {
    /// Checks layouts of one tensor that lead to layouts of another.
    fn check_layouts(&self, mesh: &MeshShape, run: &mut impl Run) -> Result<usize, Mismatch> {
        let out = &self.outputs[0].shape;
        let mut count = 0;
        let from = match self.inputs.first() {
            // Reshape: whatever layout can be regrouped.
            Some(input) => splits::layouts(&input.shape, mesh),
            None => splits::layouts(out, mesh),
        };
        for layout in from {
            let (inputs, outputs) = match self.inputs.is_empty() {
                true => (Vec::new(), vec![layout]),
                false => match layout.reshape(mesh, out) {
                    Some(reshaped) => (vec![layout], vec![reshaped]),
                    None => continue,
                },
            };
            self.check_split(mesh, None, &inputs, &outputs, run)?;
            count += 1;
        }
        Ok(count)
    }

    fn check_factors(
        &self,
        rule: &Rule,
        mesh: &MeshShape,
        ever: &mut [bool],
        run: &mut impl Run,
    ) -> Result<usize, Mismatch> {
        let mut count = 0;
        let mut check = |assignment: &Assignment| {
            let inputs = rule.inputs.iter().map(|o| rule.input_layout(o, assignment));
            let outputs = rule
                .outputs
                .iter()
                .map(|o| rule.output_layout(o, assignment));
            let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
            count += 1;
            self.check_split(mesh, Some(assignment), &inputs, &outputs, run)
        };
        for factors in splits::assignments(rule, mesh) {
            for (ever, factor) in ever.iter_mut().zip(&factors) {
                *ever |= !factor.is_whole();
            }
            let used: Vec<_> = factors.iter().flat_map(DimLayout::axes).collect();
            let free = mesh.axis_indices().filter(|axis| !used.contains(axis));
            let free: Vec<_> = free.collect();
            let mut assignment = Assignment {
                factors,
                kept: Vec::new(),
            };
            check(&assignment)?;
            let ops: &[ReduceOp] = match rule.partial {
                PartialRule::Resolve => &[],
                PartialRule::Linear | PartialRule::JointLinear => &[ReduceOp::Sum],
                PartialRule::Move | PartialRule::JointMove => &[ReduceOp::Sum, ReduceOp::Max],
            };
            let mut groups: Vec<_> = free.iter().map(|&axis| vec![axis]).collect();
            if free.len() > 1 {
                groups.push(free);
            }
            // No partial bools: they have no sum.
            if self
                .inputs
                .first()
                .is_some_and(|input| input.dtype.is_bool())
            {
                groups.clear();
            }
            for axes in groups {
                for &op in ops {
                    assignment.kept = axes.iter().map(|&axis| Partial { axis, op }).collect();
                    check(&assignment)?;
                }
            }
        }
        Ok(count)
    }

    /// Runs the operation under this split on every rank and compares.
    ///
    /// # Errors
    /// [`Mismatch`] for the first element that differs.
    pub fn check_split(
        &self,
        mesh: &MeshShape,
        assignment: Option<&Assignment>,
        inputs: &[Layout],
        outputs: &[Layout],
        run: &mut impl Run,
    ) -> Result<(), Mismatch> {
        let layouts = || {
            let text = |layouts: &[Layout]| {
                let texts = layouts.iter().map(|l| l.display(mesh).to_string());
                texts.collect::<Vec<_>>().join(", ")
            };
            format!("{} -> {}", text(inputs), text(outputs))
        };
        let split = |output: usize, rank: Rank| {
            Box::new(SplitOp {
                op: self.op.clone(),
                layouts: layouts(),
                mesh: mesh.to_string(),
                output,
                rank: rank.0,
            })
        };
        let shared = |layouts: &[Layout]| -> Vec<Arc<Layout>> {
            layouts.iter().cloned().map(Arc::new).collect()
        };
        let (before, after) = (shared(inputs), shared(outputs));
        let ranks: Vec<Vec<Vec<f64>>> = mesh
            .ranks()
            .map(|rank| {
                let view = LocalView {
                    rule: &self.rule,
                    assignment,
                    inputs: &before,
                    outputs: &after,
                    mesh,
                    rank,
                    bool_store: BoolStore::Native,
                };
                run(&view, self.blocks(&view))
            })
            .collect();
        for (output, (layout, whole)) in outputs.iter().zip(&self.outputs).enumerate() {
            let axes: Vec<_> = layout.partial.iter().map(|p| p.axis).collect();
            let op = layout.partial.first().map(|p| p.op);
            for rank in mesh.ranks() {
                let terms = mesh.group_of(rank, &axes);
                let terms = terms.iter().map(|term| &ranks[term.0 as usize][output]);
                let here = combine(terms, op);
                let elements: Vec<usize> = layout.elements(mesh, rank).collect();
                if here.len() != elements.len() {
                    return Err(Mismatch::Size {
                        split: split(output, rank),
                        found: here.len(),
                        expected: elements.len(),
                    });
                }
                for (&found, element) in here.iter().zip(elements) {
                    let expected = whole.values[element];
                    if !self.is_close(found, expected, whole.dtype) {
                        return Err(Mismatch::Element {
                            split: split(output, rank),
                            element: place(element, &whole.shape),
                            found,
                            expected,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// The blocks of a rank; of inputs of which only the shape is read, none: using them fails.
    fn blocks(&self, view: &LocalView<'_>) -> Vec<Option<Values>> {
        let is_read = |index: usize| match &self.rule {
            OpRule::Factors(rule) => !rule.inputs[index].shape_only,
            _ => true,
        };
        let inputs = self.inputs.iter().enumerate();
        inputs
            .map(|(index, input)| {
                let layout = &view.inputs[index];
                is_read(index).then(|| Values {
                    shape: view.input_shape(index),
                    dtype: input.dtype,
                    values: layout
                        .elements(view.mesh, view.rank)
                        .map(|element| term(input, element, layout, view))
                        .collect(),
                })
            })
            .collect()
    }

    /// Compares what the formula of the operation gives on whole tensors with what its kernel does.
    ///
    /// # Errors
    /// [`Mismatch::Formula`] for the first element that differs.
    pub fn check_formula(&self, outputs: &[Values]) -> Result<(), Mismatch> {
        for (output, (found, whole)) in outputs.iter().zip(&self.outputs).enumerate() {
            let pairs = found.values.iter().zip(&whole.values);
            let differ =
                |(found, expected): &(&f64, &f64)| !self.is_close(**found, **expected, whole.dtype);
            let apart = pairs.enumerate().find(|(_, pair)| differ(pair));
            if let Some((element, (&found, &expected))) = apart {
                return Err(Mismatch::Formula {
                    op: self.op.clone(),
                    output,
                    element,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Ints and bools are exact; floats are sums in another order.
    fn is_close(&self, value: f64, expected: f64, dtype: DType) -> bool {
        let tolerance = match dtype.is_float() {
            true => self.tolerance,
            false => 0.0,
        };
        value == expected
            || (value.is_nan() && expected.is_nan())
            || (value - expected).abs() <= tolerance * expected.abs().max(1.0)
    }
}

/// The place of an element, per dim.
fn place(mut element: usize, shape: &[usize]) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for (at, &size) in place.iter_mut().zip(shape).rev() {
        *at = element % size;
        element /= size;
    }
    place
}

/// The value of an element on a rank: for a partial layout a term, uneven over the ranks, such that the terms combine
/// to the value.
fn term(input: &Values, element: usize, layout: &Layout, view: &LocalView<'_>) -> f64 {
    let value = input.values[element];
    let Some(partial) = layout.partial.first() else {
        return value;
    };
    let axes: Vec<_> = layout.partial.iter().map(|p| p.axis).collect();
    let index = view.mesh.group_index(view.rank, &axes);
    let size = view.mesh.group_size(&axes);
    match partial.op {
        ReduceOp::Sum => {
            let unit = if input.dtype.is_float() { 0.125 } else { 1.0 };
            let share = |index: usize| unit * ((element * 7 + index * 5) % 11) as f64 - unit;
            match index {
                0 => value - (1..size).map(share).sum::<f64>(),
                index => share(index),
            }
        }
        // One rank has the value, the others something smaller.
        ReduceOp::Max if index == (element * 5 + 1) % size => value,
        ReduceOp::Max => value - 1.0 - index as f64,
        op => unreachable!("the check makes no terms of {op:?}"),
    }
}

fn combine<'a>(mut terms: impl Iterator<Item = &'a Vec<f64>>, op: Option<ReduceOp>) -> Vec<f64> {
    let mut all = terms.next().cloned().unwrap_or_default();
    for other in terms {
        for (value, other) in all.iter_mut().zip(other) {
            *value = match op {
                Some(ReduceOp::Max) => value.max(*other),
                Some(ReduceOp::Min) => value.min(*other),
                Some(ReduceOp::Prod) => *value * other,
                // No rule makes partial means.
                _ => *value + other,
            };
        }
    }
    all
}
