//! From a global operation to the local operations of one rank.
//!
//! Most operations are the same on local shapes. The rest is here too: sums whose constant terms must be added once,
//! means that divide by the global count, reads and writes at indices that may lie on other ranks, the pieces of a
//! joined tensor that fall into a rank's part, ranks that hold nothing.
//!
//! A scalar of the operation is copied as it is, since it may stand for a slot; scalars made here are literals. Every
//! tensor is read-only, last uses are found by a later pass.

mod build;
mod index;
mod pieces;
mod same;

use crate::layout::{DimLayout, Layout};
use crate::mesh::{AxisIndex, MeshShape, Rank, ReduceOp};
use crate::rules::{Assignment, FactorKind, Lowering, OpRule, Rule};
use build::Emit;
use burn_ir::*;
use burn_std::BoolStore;
pub(crate) use index::indices;
use std::ops::Range;

/// One operation as one rank sees it.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// The operation, with global shapes.
    pub op: &'a OperationIr,
    /// Its rule.
    pub rule: &'a OpRule,
    /// How the factors of the rule are split; `None` if nothing is.
    pub assignment: Option<&'a Assignment>,
    /// The layout of every input, in the order of the visitor. Those of inputs of which only the shape is read are
    /// ignored.
    pub inputs: &'a [Layout],
    /// The layout of every output, in the order of the visitor.
    pub outputs: &'a [Layout],
    /// The mesh.
    pub mesh: &'a MeshShape,
    /// The rank.
    pub rank: Rank,
    /// How the device stores bools: masks are made here.
    pub bool_store: BoolStore,
}

/// Pushes the local operations of `local.rank` onto `out`; `temps` makes ids for intermediate tensors.
///
/// # Shapes
/// Inputs and outputs have the local shapes of their layouts.
///
/// # Communication
/// None: the layouts of inputs and outputs are those that the rule gives for the assignment, partial results included.
///
/// # Panics
/// If a maximum, minimum or product is split such that a rank holds no element of it: there is no value to give.
pub fn localize(local: &Local, temps: &mut dyn FnMut() -> TensorId, out: &mut Vec<OperationIr>) {
    let emit = &mut Emit { temps, out };
    let outputs: Vec<TensorIr> = local.local_outputs();
    let nothing = outputs
        .iter()
        .all(|output| output.shape.num_elements() == 0);
    if !outputs.is_empty() && (nothing || local.has_no_terms() || local.sums_nothing()) {
        outputs.into_iter().for_each(|output| emit.zeros(output));
        return;
    }
    match local.rule {
        OpRule::Factors(rule) => match rule.lowering {
            Lowering::Same => same::same(local, emit),
            Lowering::MeanAsSum => mean(local, emit),
            Lowering::Special => special(local, rule, emit),
        },
        OpRule::Reshape | OpRule::Create | OpRule::Replicated(_) | OpRule::Custom => {
            same::same(local, emit)
        }
    }
}

impl Local<'_> {
    fn local_outputs(&self) -> Vec<TensorIr> {
        let outputs = self.op.outputs().zip(self.outputs);
        outputs
            .map(|(tensor, layout)| TensorIr {
                shape: layout.local_shape(self.mesh, self.rank).into(),
                status: TensorStatus::NotInit,
                ..tensor.clone()
            })
            .collect()
    }

    /// Returns input `index` with its local shape.
    fn local_input(&self, index: usize) -> TensorIr {
        let tensor = self.op.inputs().nth(index);
        TensorIr {
            shape: self.inputs[index].local_shape(self.mesh, self.rank).into(),
            status: TensorStatus::ReadOnly,
            ..tensor.expect("the op has this input").clone()
        }
    }

    /// Returns the factors of the rule with their splits.
    fn splits(&self) -> impl Iterator<Item = (FactorKind, &DimLayout)> {
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

    /// The split of the factor of dim `dim` of an operand, if it is split.
    fn split(&self, dims: &[Option<u8>], dim: usize) -> Option<&DimLayout> {
        let split = &self.assignment?.factors[dims[dim]? as usize];
        (!split.is_whole()).then_some(split)
    }

    /// Whether this rank holds no term of a split sum, so that its part of the result is zero.
    fn has_no_terms(&self) -> bool {
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

    /// Whether this is a sum of products, or of elements, of which there are none: of a batch without rows. Backends do
    /// not agree on what that is.
    fn sums_nothing(&self) -> bool {
        use ModuleOperationIr::*;
        let sums = match self.op {
            OperationIr::Float(_, FloatOperationIr::Matmul(_))
            | OperationIr::Int(IntOperationIr::Matmul(_)) => true,
            OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => matches!(
                op,
                NumericOperationIr::Sum(_) | NumericOperationIr::SumDim(_)
            ),
            OperationIr::Module(Linear(op)) => op.bias.is_none(),
            OperationIr::Module(op) => matches!(
                op,
                LinearXBackward(_)
                    | LinearWeightBackward(_)
                    | LinearBiasBackward(_)
                    | Conv1dXBackward(_)
                    | Conv1dWeightBackward(_)
                    | Conv1dBiasBackward(_)
                    | Conv2dXBackward(_)
                    | Conv2dWeightBackward(_)
                    | Conv2dBiasBackward(_)
                    | Conv3dXBackward(_)
                    | Conv3dWeightBackward(_)
                    | Conv3dBiasBackward(_)
            ),
            _ => false,
        };
        // Of those of a bias, the gradient of the result is the only factor; it comes last.
        let one_factor = matches!(
            self.op,
            OperationIr::Module(
                Conv1dBiasBackward(_) | Conv2dBiasBackward(_) | Conv3dBiasBackward(_)
            )
        );
        let first = match one_factor {
            true => self.inputs.len().saturating_sub(1),
            false => 0,
        };
        let empty = |layout: &Layout| layout.local_numel(self.mesh, self.rank) == 0;
        sums && self.inputs[first..].iter().any(empty)
    }

    /// Whether the rank is the first one along all of `axes`.
    fn is_first(&self, axes: impl IntoIterator<Item = AxisIndex>) -> bool {
        axes.into_iter()
            .all(|axis| self.mesh.coord(self.rank, axis) == 0)
    }

    /// Whether the rank is the first one among those that hold different terms of the split sums of this op.
    fn holds_first_terms(&self) -> bool {
        let sums = self
            .splits()
            .filter(|(kind, _)| matches!(kind, FactorKind::Reduce(_)));
        self.is_first(sums.flat_map(|(_, split)| split.axes()))
    }

    /// The contiguous range of a split index dim that the rank holds.
    fn range(&self, split: &DimLayout) -> Range<usize> {
        let [factor] = split.factors.as_slice() else {
            panic!("an index dim is split as one range; the planner does not offer products");
        };
        factor.range(self.mesh, self.rank)
    }
}

/// The mean as the local terms of a sum over all ranks.
fn mean(local: &Local, emit: &mut Emit) {
    let is_split = |(kind, split): (FactorKind, &DimLayout)| {
        let mut axes = split.axes();
        matches!(kind, FactorKind::Reduce(_)) && axes.any(|axis| local.mesh.size(axis) > 1)
    };
    if !local.splits().any(is_split) {
        return same::same(local, emit);
    }
    let OperationIr::NumericFloat(dtype, op) = local.op else {
        panic!("means of floats are lowered to sums, found {:?}", local.op);
    };
    let (input, output) = (local.local_input(0), local.local_outputs().remove(0));
    let terms = emit.temp(&output, output.shape.to_vec());
    let global_shape = local.inputs[0].shape();
    let (global, here) = match op {
        NumericOperationIr::MeanDim(op) => (global_shape[op.axis], input.shape[op.axis]),
        _ => (global_shape.iter().product(), input.shape.num_elements()),
    };
    // Half precision sums overflow early. The local mean is taken in higher precision by the backends, so scale that
    // instead.
    let scale_mean = dtype.size() < 4;
    let reduced = match op {
        NumericOperationIr::MeanDim(op) => {
            let reduce = ReduceDimOpIr {
                input,
                out: terms.clone(),
                axis: op.axis,
                accumulator_len: op.accumulator_len,
            };
            match scale_mean {
                true => NumericOperationIr::MeanDim(reduce),
                false => NumericOperationIr::SumDim(reduce),
            }
        }
        _ => {
            let reduce = ReduceOpIr {
                input,
                out: terms.clone(),
            };
            match scale_mean {
                true => NumericOperationIr::Mean(reduce),
                false => NumericOperationIr::Sum(reduce),
            }
        }
    };
    emit.push(OperationIr::NumericFloat(*dtype, reduced));
    let scaled = |factor: f64| ScalarOpIr {
        lhs: build::read(&terms),
        rhs: ScalarIr::Float(factor),
        out: output,
    };
    let scaled = match scale_mean {
        true => NumericOperationIr::MulScalar(scaled(here as f64 / global as f64)),
        false => NumericOperationIr::DivScalar(scaled(global as f64)),
    };
    emit.push(OperationIr::NumericFloat(*dtype, scaled));
}

fn special(local: &Local, rule: &Rule, emit: &mut Emit) {
    match local.op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            match op {
                BaseOperationIr::Gather(op) => index::gather(local, rule, op, emit),
                BaseOperationIr::Select(op) => index::select(local, rule, op, emit),
                BaseOperationIr::Scatter(op) => index::scatter(local, rule, op, emit),
                BaseOperationIr::SelectAssign(op) => index::select_assign(local, rule, op, emit),
                BaseOperationIr::ScatterNd(op) => index::scatter_nd(local, op, emit),
                BaseOperationIr::Cat(op) => pieces::cat(local, rule, op, emit),
                BaseOperationIr::SliceAssign(op) => pieces::slice_assign(local, rule, op, emit),
                _ => unreachable_lowering(local),
            }
        }
        OperationIr::Module(op) => match op {
            ModuleOperationIr::Embedding(_) => index::embedding(local, rule, emit),
            ModuleOperationIr::EmbeddingBackward(_) => index::embedding_backward(local, rule, emit),
            // The bias is a term of its own, which one rank adds.
            _ if local.is_first(local.outputs[0].partial.iter().map(|p| p.axis)) => {
                same::same(local, emit)
            }
            _ => same::without_bias(local, emit),
        },
        _ => unreachable_lowering(local),
    }
}

fn unreachable_lowering(local: &Local) -> ! {
    panic!(
        "a rule asks for a special lowering that does not exist: {:?}",
        local.op
    )
}

#[cfg(test)]
mod oracle;
