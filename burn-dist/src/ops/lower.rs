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

use super::Recorded;
use super::custom::Custom;
use super::rules::{FactorKind, Lowering, OpRule, Rule};
use crate::layout::{DimLayout, Layout};
use build::Emit;
pub(super) use build::base;
use burn_dist_plan::op::{LocalView, TensorIndex};
use burn_ir::*;
pub(crate) use index::indices;

/// One operation as one rank sees it: the operation, with global shapes, and how it is split.
#[derive(Clone, Copy)]
pub(crate) struct Local<'a> {
    pub op: &'a OperationIr,
    pub view: &'a LocalView<'a>,
}

impl<'a> std::ops::Deref for Local<'a> {
    type Target = LocalView<'a>;

    fn deref(&self) -> &LocalView<'a> {
        self.view
    }
}

/// Pushes the local operations of a rank onto `out`, as [`Op::lower`](burn_dist_plan::op::Op::lower) says.
pub(super) fn lower(
    op: &OperationIr,
    view: &LocalView<'_>,
    temps: &mut dyn FnMut() -> TensorIndex,
    out: &mut Vec<Recorded>,
) {
    localize(&Local { op, view }, &mut Emit { temps, out });
}

/// As [`lower`], of a custom operation: it runs on the blocks of its inputs, but where a rank holds nothing.
pub(super) fn custom(
    op: &Custom,
    view: &LocalView<'_>,
    temps: &mut dyn FnMut() -> TensorIndex,
    out: &mut Vec<Recorded>,
) {
    let emit = &mut Emit { temps, out };
    let mut local = op.clone();
    for (index, result) in local.outputs.iter_mut().enumerate() {
        result.shape = view.output_shape(index).into();
        result.status = TensorStatus::NotInit;
    }
    let mut outputs = local.outputs.iter();
    if outputs.all(|result| result.shape.num_elements() == 0) || view.has_no_terms() {
        local
            .outputs
            .into_iter()
            .for_each(|result| emit.zeros(result));
        return;
    }
    for (index, input) in local.inputs.iter_mut().enumerate() {
        let shape = view.input_shape(index);
        match view.rule {
            OpRule::Factors(rule) if rule.inputs[index].shape_only => {
                let operand = &rule.inputs[index];
                let shape = match view.assignment {
                    Some(assignment) => rule
                        .input_layout(operand, assignment)
                        .local_shape(view.mesh, view.rank),
                    None => operand.shape.clone(),
                };
                *input = emit.shape_only(input, shape);
            }
            _ => {
                input.shape = shape.into();
                input.status = TensorStatus::ReadOnly;
            }
        }
    }
    local.definition = op.definition.localize(view);
    emit.out.push(Recorded::Custom(Box::new(local)));
}

/// Emits the local operations of `local.rank`.
fn localize(local: &Local, emit: &mut Emit) {
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
        OpRule::Reshape | OpRule::Create | OpRule::Replicated(_) => same::same(local, emit),
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
        let empty = |layout: &std::sync::Arc<Layout>| layout.local_numel(self.mesh, self.rank) == 0;
        sums && self.inputs[first..].iter().any(empty)
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
