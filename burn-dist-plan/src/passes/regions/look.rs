//! Operations as the pass sees them: the space that each computes over, and how its operands lie in that.

use crate::ir::op::Tensor;
use crate::ir::region::{Fold, Formula, Instruction, Pointwise, ScalarOf, Typed};
use crate::ir::{Op, Slot};
use crate::mesh::DType;
use crate::options::RegionKernels;

/// The tensor that another one shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Base {
    /// A slot that is there before the region, with its shape.
    Slot(Slot, Vec<usize>),
    /// A value of a region in the making.
    Node(u32),
    /// Random numbers that a task draws, and that are not in memory yet.
    Drawn(usize),
    /// The constant that the operation of a task makes.
    Constant(usize),
}

/// A tensor as its readers see it: something in another shape, with dims that repeat.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    pub base: Base,
    /// The shape of what it shows: like `full`, with size one where that repeats.
    pub shape: Vec<usize>,
    /// Its own shape.
    pub full: Vec<usize>,
}

impl Look {
    /// Returns the look of a slot at itself.
    pub(super) fn plain(tensor: Tensor<'_>) -> Self {
        Self {
            base: Base::Slot(tensor.id, tensor.shape.to_vec()),
            shape: tensor.shape.to_vec(),
            full: tensor.shape.to_vec(),
        }
    }

    /// Returns what shows the same elements in another shape, if only dims of size one come or go; of a value of a
    /// region, in any shape.
    pub(super) fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        let is_value = matches!(self.base, Base::Node(_)) && self.shape == self.full;
        let any = || Self {
            base: self.base.clone(),
            shape: shape.to_vec(),
            full: shape.to_vec(),
        };
        self.squeezed(shape).or_else(|| is_value.then(any))
    }

    fn squeezed(&self, shape: &[usize]) -> Option<Self> {
        let mut shown = self.full.iter().zip(&self.shape);
        let mut shown = std::iter::from_fn(|| shown.by_ref().find(|(full, _)| **full != 1));
        let mut seen = Vec::with_capacity(shape.len());
        for &size in shape {
            seen.push(match size {
                1 => 1,
                _ => {
                    let (full, shown) = shown.next()?;
                    if *full != size {
                        return None;
                    }
                    *shown
                }
            });
        }
        shown.next().is_none().then(|| Self {
            base: self.base.clone(),
            shape: seen,
            full: shape.to_vec(),
        })
    }

    /// Returns what shows it stretched to a shape, dims aligned at the last.
    pub(super) fn expanded(&self, full: &[usize]) -> Self {
        Self {
            base: self.base.clone(),
            shape: aligned(&self.shape, full.len()).collect(),
            full: full.to_vec(),
        }
    }
}

/// A shape with dims of size one before it, so that there are so many.
fn aligned(shape: &[usize], ndim: usize) -> impl Iterator<Item = usize> + '_ {
    let missing = ndim.saturating_sub(shape.len());
    std::iter::repeat_n(1, missing).chain(shape.iter().copied())
}

/// Returns the dims of a shape that are not of size one.
pub(super) fn core(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|size| *size != 1).collect()
}

/// Returns the number of elements of a space.
pub(super) fn size(core: &[usize]) -> usize {
    core.iter().product()
}

/// Returns the space of which the dims of two are products of neighbours, with as few dims as can be: `[6, 4]` and
/// `[2, 12]` are `[2, 3, 4]`. `None` if there is none.
pub(super) fn refined(one: &[usize], other: &[usize]) -> Option<Vec<usize>> {
    let ends = |dims: &[usize]| {
        let mut end = 1;
        let mut ends = Vec::with_capacity(dims.len());
        for size in dims.iter().rev() {
            end *= size;
            ends.push(end);
        }
        ends
    };
    if size(one) != size(other) {
        return None;
    }
    let mut all = [ends(one), ends(other)].concat();
    all.sort_unstable();
    all.dedup();
    let mut before = 1;
    let mut dims = Vec::with_capacity(all.len());
    for end in all {
        if end % before != 0 {
            return None;
        }
        dims.push(end / before);
        before = end;
    }
    dims.reverse();
    Some(dims)
}

/// How an operation folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folds {
    /// It does not: where a row ends is nothing to it.
    Nothing,
    /// The elements of rows; or it does not, and where rows end matters.
    Rows,
    /// All rows, element by element.
    OverRows,
    /// All elements.
    OverAll,
    /// All values, each of which is one row.
    OverAllRows,
}

impl Folds {
    /// Returns whether the elements of an operation may be the rows of a region.
    pub(super) fn takes_rows(self) -> bool {
        matches!(self, Self::Nothing | Self::OverAllRows)
    }
}

/// An operation, as far as the pass may do something with it.
pub(super) enum Seen {
    /// Nothing.
    Outside,
    /// It makes the same number everywhere.
    Constant(Formula, Vec<ScalarOf>),
    /// It shows its operand, stretched.
    Expand,
    /// It shows its operand in another shape.
    Reshape,
    /// It adds up elements along these dims.
    Sum(Vec<usize>),
    /// It computes.
    Computes(Computes),
}

/// An operation that a region may compute.
pub(super) struct Computes {
    pub formula: Formula,
    pub scalars: Vec<ScalarOf>,
    pub folds: Folds,
    /// The space, with all dims that operands and results have.
    pub space: Vec<usize>,
    /// The operand that its result is, but for one element of each row.
    pub changes: Option<usize>,
}

impl Computes {
    /// Returns the dims of the space that are not of size one.
    pub(super) fn core(&self) -> Vec<usize> {
        core(&self.space)
    }

    /// Returns how many of those dims a result has: all, or all but the last; `None` if it has others.
    pub(super) fn dims(&self, out: Tensor<'_>) -> Option<usize> {
        let spans = self.spans(&Look::plain(out));
        let dims = spans.iter().take_while(|spans| **spans).count();
        let is_prefix = spans[dims..].iter().all(|spans| !spans);
        (is_prefix && dims + 1 >= spans.len()).then_some(dims)
    }

    /// Returns for each of those dims whether a tensor has it: it repeats along the others.
    pub(super) fn spans(&self, look: &Look) -> Vec<bool> {
        let dims = aligned(&look.shape, self.space.len()).zip(&self.space);
        let core = dims.filter(|(_, size)| **size != 1);
        core.map(|(shown, size)| shown == *size).collect()
    }
}

/// Looks at an operation, which is nothing of a region's if kernels do not compute it.
pub(super) fn see<O: Op>(op: &O, kernels: RegionKernels) -> Seen {
    let Some(pointwise) = op.pointwise() else {
        return Seen::Outside;
    };
    // Kernels know no blocks of numbers, and nothing is to be made where there are no elements.
    let mut tensors = op.inputs().chain(op.outputs());
    if tensors.any(|tensor| tensor.dtype.is_quantized() || tensor.shape.contains(&0)) {
        return Seen::Outside;
    }
    if let Some(compute) = kernels.compute
        && !is_computed(op, &pointwise, compute)
    {
        return Seen::Outside;
    }
    match pointwise {
        Pointwise::Reshape => Seen::Reshape,
        Pointwise::Sum { dims } => {
            let mut types = op.inputs().chain(op.outputs()).map(|tensor| tensor.dtype);
            let first = types.next();
            match types.all(|dtype| Some(dtype) == first) {
                true => Seen::Sum(dims),
                false => Seen::Outside,
            }
        }
        Pointwise::Formula { formula, scalars } => {
            if op.inputs().next().is_none() {
                return Seen::Constant(formula, scalars);
            }
            if formula.instructions.is_empty() && formula.results == [0] {
                return Seen::Expand;
            }
            let space = space(op);
            let mut instructions = formula.instructions.iter();
            let folds = match instructions.any(|typed| typed.instruction.knows_rows()) {
                // Where rows have one element, each operation knows its rows by their dim, and a region does not.
                true if space.last() == Some(&1) => return Seen::Outside,
                true => Folds::Rows,
                false => Folds::Nothing,
            };
            let changes = match formula.instructions[..] {
                [
                    Typed {
                        instruction: Instruction::AddAt { to, .. },
                        ..
                    },
                ] => Some(to as usize),
                _ => None,
            };
            let computes = Computes {
                changes: changes.filter(|to| *to < formula.operands.len()),
                formula,
                scalars,
                folds,
                space,
            };
            match op.outputs().all(|out| computes.dims(out).is_some()) {
                true => Seen::Computes(computes),
                false => Seen::Outside,
            }
        }
    }
}

/// Returns whether kernels compute an operation. What shows a tensor, or adds up its elements, is as a formula of it
/// would be.
fn is_computed<O: Op>(op: &O, pointwise: &Pointwise, compute: fn(&Formula) -> bool) -> bool {
    let alone = |instructions: Vec<Typed>| {
        let operands = op.inputs().take(1).map(|tensor| tensor.dtype).collect();
        let results = vec![instructions.len() as u32];
        compute(&Formula {
            operands,
            instructions,
            results,
        })
    };
    match pointwise {
        Pointwise::Formula { formula, .. } => compute(formula),
        Pointwise::Reshape => alone(Vec::new()),
        Pointwise::Sum { .. } => op.inputs().next().is_some_and(|tensor| {
            alone(vec![Typed {
                instruction: Instruction::Fold(Fold::Sum, 0),
                dtype: tensor.dtype,
            }])
        }),
    }
}

/// The shape that operands and results broadcast to.
fn space<O: Op>(op: &O) -> Vec<usize> {
    let tensors = || op.inputs().chain(op.outputs());
    let ndim = tensors()
        .map(|tensor| tensor.shape.len())
        .max()
        .unwrap_or(0);
    let mut space = vec![1; ndim];
    for tensor in tensors() {
        for (size, other) in space.iter_mut().zip(aligned(tensor.shape, ndim)) {
            *size = (*size).max(other);
        }
    }
    space
}

/// Returns a sum of the elements of a tensor along some dims, which is one of all rows, or of each; `None` if it is
/// neither.
pub(super) fn sum(space: &[usize], dims: &[usize], dtype: DType) -> Option<Computes> {
    let is_long = |dim: &usize| space[*dim] != 1;
    let long: Vec<usize> = (0..space.len()).filter(is_long).collect();
    let mut dims: Vec<usize> = dims.iter().copied().filter(is_long).collect();
    dims.sort_unstable();
    dims.dedup();
    let (last, rows) = long.split_last()?;
    // Where the last dim has size one, every value is a row.
    let folds = match last + 1 == space.len() {
        true if dims == [*last] => Folds::Rows,
        true if dims == long => Folds::OverAll,
        true if dims == rows && !rows.is_empty() => Folds::OverRows,
        false if dims == long => Folds::OverAllRows,
        _ => return None,
    };
    let fold = Typed {
        instruction: Instruction::Fold(Fold::Sum, 0),
        dtype,
    };
    let instructions = match folds {
        Folds::Rows => vec![fold],
        _ => Vec::new(),
    };
    Some(Computes {
        formula: Formula {
            operands: vec![dtype],
            results: vec![instructions.len() as u32],
            instructions,
        },
        scalars: Vec::new(),
        folds,
        space: space.to_vec(),
        changes: None,
    })
}
