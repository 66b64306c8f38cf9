//! Reads and writes at indices, some of which may point to other ranks.

use super::build::{Emit, base, read};
use super::{Local, same};
use crate::layout::DimLayout;
use crate::ops::dtype::to_burn;
use crate::ops::name;
use crate::ops::rules::{OpRule, Rule};
use burn_backend::DType;
use burn_dist_plan::op::Indexed;
use burn_ir::*;
use std::ops::Range;

/// Returns the indices and the result of an operation that reads or writes at indices along one dim.
pub(crate) fn indices(op: &OperationIr) -> Option<(&TensorIr, &TensorIr)> {
    use OperationIr::{BaseBool, BaseFloat, BaseInt, Module};
    match op {
        BaseFloat(op) | BaseInt(op) | BaseBool(op) => match op {
            BaseOperationIr::Gather(op) => Some((&op.indices, &op.out)),
            BaseOperationIr::Scatter(op) => Some((&op.indices, &op.out)),
            BaseOperationIr::Select(op) => Some((&op.indices, &op.out)),
            BaseOperationIr::SelectAssign(op) => Some((&op.indices, &op.out)),
            _ => None,
        },
        Module(ModuleOperationIr::Embedding(op)) => Some((&op.indices, &op.out)),
        Module(ModuleOperationIr::EmbeddingBackward(op)) => Some((&op.indices, &op.out)),
        _ => None,
    }
}

impl Local<'_> {
    /// Returns what the operation does globally, if it reads or writes at indices along one dim.
    pub(in crate::ops) fn indexed(&self) -> Option<Indexed> {
        use OperationIr::{BaseBool, BaseFloat, BaseInt, Module};
        let (tensor, dim) = match self.op {
            BaseFloat(op) | BaseInt(op) | BaseBool(op) => match op {
                BaseOperationIr::Gather(op) => (&op.tensor, op.dim),
                BaseOperationIr::Scatter(op) => (&op.tensor, op.dim),
                BaseOperationIr::Select(op) => (&op.tensor, op.dim),
                BaseOperationIr::SelectAssign(op) => (&op.tensor, op.dim),
                _ => return None,
            },
            Module(ModuleOperationIr::Embedding(op)) => (&op.weights, 0),
            Module(ModuleOperationIr::EmbeddingBackward(op)) => (&op.weights, 0),
            _ => return None,
        };
        let split = match self.rule {
            OpRule::Factors(rule) => {
                let is_backward =
                    matches!(self.op, Module(ModuleOperationIr::EmbeddingBackward(_)));
                let operand = match is_backward {
                    true => &rule.outputs[0],
                    false => &rule.inputs[0],
                };
                self.split(&operand.dims, dim)
            }
            _ => None,
        };
        let inputs = self.op.inputs();
        let inputs: Vec<String> = inputs
            .map(|t| format!("{} {:?}", t.dtype.name(), t.shape.to_vec()))
            .collect();
        Some(Indexed {
            op: format!("{}({})", name(self.op), inputs.join(", ")),
            shape: tensor.shape.to_vec(),
            dim,
            start: split.map_or(0, |split| self.range(split).start),
        })
    }
}

/// Indices into the range of this rank, and where they would have pointed elsewhere (there they point to the first
/// element instead).
struct Here {
    indices: TensorIr,
    elsewhere: TensorIr,
}

/// Finds the indices into `split` that fall into the range of the rank.
fn here(local: &Local, split: &DimLayout, indices: TensorIr, emit: &mut Emit) -> Here {
    let Range { start, end } = local.range(split);
    let indices = wide(indices, emit);
    let shape = indices.shape.to_vec();
    let bool = to_burn(crate::mesh::DType::Bool(local.bool_store));
    let compare = |bound: usize, emit: &mut Emit| {
        let out = emit.tensor(indices.shape.to_vec(), bool);
        let op = ScalarOpIr {
            lhs: read(&indices),
            rhs: ScalarIr::Int(bound as i64),
            out: out.clone(),
        };
        (op, out)
    };
    let int = |op| OperationIr::NumericInt(indices.dtype, op);
    let below = (start > 0).then(|| {
        let (op, out) = compare(start, emit);
        emit.push(int(NumericOperationIr::LowerElem(op)));
        out
    });
    let above = (end < split.size()).then(|| {
        let (op, out) = compare(end, emit);
        emit.push(int(NumericOperationIr::GreaterEqualElem(op)));
        out
    });
    let elsewhere = match (below, above) {
        (Some(below), Some(above)) => {
            let out = emit.temp(&below, shape.clone());
            emit.push(OperationIr::Bool(BoolOperationIr::Or(BinaryOpIr {
                lhs: read(&below),
                rhs: read(&above),
                out: out.clone(),
            })));
            out
        }
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => unreachable!("a split range lacks something, or the rank holds nothing"),
    };
    // Mask before shifting, so that unsigned indices do not wrap.
    let safe = emit.temp(&indices, shape.clone());
    emit.mask_fill(
        &indices,
        &elsewhere,
        ScalarIr::Int(start as i64),
        safe.clone(),
    );
    let shifted = match start {
        0 => safe,
        _ => {
            let out = emit.temp(&safe, shape);
            emit.push(int(NumericOperationIr::SubScalar(ScalarOpIr {
                lhs: read(&safe),
                rhs: ScalarIr::Int(start as i64),
                out: out.clone(),
            })));
            out
        }
    };
    Here {
        indices: read(&shifted),
        elsewhere: read(&elsewhere),
    }
}

/// Widens small indices: bounds of the dim may not fit their type.
fn wide(indices: TensorIr, emit: &mut Emit) -> TensorIr {
    if indices.dtype.size() >= 4 {
        return indices;
    }
    let out = emit.tensor(indices.shape.to_vec(), DType::I32);
    let cast = CastOpIr {
        input: read(&indices),
        out: out.clone(),
    };
    emit.push(OperationIr::BaseInt(BaseOperationIr::Cast(cast)));
    read(&out)
}

/// Stretches a mask over the indices of dim `dim` to `shape`.
fn along(mask: &TensorIr, dim: usize, shape: &[usize], emit: &mut Emit) -> TensorIr {
    let mut column = vec![1; shape.len()];
    column[dim] = shape[dim];
    let mask = emit.reshape(mask, column);
    emit.expand(&mask, shape.to_vec())
}

/// `gather(tensor, indices)`: elements on other ranks read as zero.
pub(super) fn gather(local: &Local, rule: &Rule, op: &GatherOpIr, emit: &mut Emit) {
    let Some(split) = local.split(&rule.inputs[0].dims, op.dim) else {
        return same::same(local, emit);
    };
    let here = here(local, split, local.local_input(1), emit);
    let out = local.local_outputs().remove(0);
    let found = emit.temp(&out, out.shape.to_vec());
    let gather = GatherOpIr {
        tensor: local.local_input(0),
        dim: op.dim,
        indices: here.indices,
        out: found.clone(),
    };
    emit.push(base(out.dtype, BaseOperationIr::Gather(gather)));
    emit.mask_into(&found, &here.elsewhere, out);
}

/// `select(tensor, indices)`: rows on other ranks read as zero.
pub(super) fn select(local: &Local, rule: &Rule, op: &SelectOpIr, emit: &mut Emit) {
    let Some(split) = local.split(&rule.inputs[0].dims, op.dim) else {
        return same::same(local, emit);
    };
    let here = here(local, split, local.local_input(1), emit);
    let out = local.local_outputs().remove(0);
    let found = emit.temp(&out, out.shape.to_vec());
    let select = SelectOpIr {
        tensor: local.local_input(0),
        dim: op.dim,
        indices: here.indices,
        out: found.clone(),
    };
    emit.push(base(out.dtype, BaseOperationIr::Select(select)));
    let elsewhere = along(&here.elsewhere, op.dim, &out.shape.to_vec(), emit);
    emit.mask_into(&found, &elsewhere, out);
}

/// `embedding(weights, indices)`: rows on other ranks read as zero.
pub(super) fn embedding(local: &Local, rule: &Rule, emit: &mut Emit) {
    let Some(split) = local.split(&rule.inputs[0].dims, 0) else {
        return same::same(local, emit);
    };
    let here = here(local, split, local.local_input(1), emit);
    let out = local.local_outputs().remove(0);
    let found = emit.temp(&out, out.shape.to_vec());
    let embedding = EmbeddingOpIr {
        weights: local.local_input(0),
        indices: here.indices,
        out: found.clone(),
    };
    emit.push(OperationIr::Module(ModuleOperationIr::Embedding(embedding)));
    let mut column = here.elsewhere.shape.to_vec();
    column.push(1);
    let elsewhere = emit.reshape(&here.elsewhere, column);
    let elsewhere = emit.expand(&elsewhere, out.shape.to_vec());
    emit.mask_into(&found, &elsewhere, out);
}

/// `embedding_backward(weights, output_grad, indices)`: adds up the rows of the rank's range.
pub(super) fn embedding_backward(local: &Local, rule: &Rule, emit: &mut Emit) {
    let Some(split) = local.split(&rule.outputs[0].dims, 0) else {
        return same::same(local, emit);
    };
    let grad = local.local_input(1);
    let indices = local.local_input(2);
    let out = local.local_outputs().remove(0);
    let count = indices.shape.num_elements();
    let grad = emit.reshape(&grad, vec![count, out.shape[1]]);
    let indices = emit.reshape(&indices, vec![count]);
    let here = here(local, split, indices, emit);
    let elsewhere = along(&here.elsewhere, 0, &grad.shape.to_vec(), emit);
    let grad = emit.masked(&grad, &elsewhere);
    let zeros = emit.temp(&out, out.shape.to_vec());
    emit.zeros(zeros.clone());
    emit.select_add(read(&zeros), 0, here.indices, grad, out);
}

/// Returns the tensor that a write adds to: one rank of those with different terms adds to the tensor, the others to
/// zeros.
fn target(local: &Local, emit: &mut Emit) -> TensorIr {
    let tensor = local.local_input(0);
    if local.holds_first_terms() {
        return tensor;
    }
    let zeros = emit.temp(&tensor, tensor.shape.to_vec());
    emit.zeros(zeros.clone());
    read(&zeros)
}

/// `scatter(tensor, indices, value)`: values for other ranks add zero.
pub(super) fn scatter(local: &Local, rule: &Rule, op: &ScatterOpIr, emit: &mut Emit) {
    let tensor = target(local, emit);
    let (mut indices, mut value) = (local.local_input(1), local.local_input(2));
    if let Some(split) = local.split(&rule.inputs[0].dims, op.dim) {
        let here = here(local, split, indices, emit);
        value = emit.masked(&value, &here.elsewhere);
        indices = here.indices;
    }
    let scatter = ScatterOpIr {
        tensor,
        indices,
        value,
        out: local.local_outputs().remove(0),
        ..op.clone()
    };
    emit.push(base(op.out.dtype, BaseOperationIr::Scatter(scatter)));
}

/// `select_assign(tensor, indices, value)`: values for other ranks add zero.
pub(super) fn select_assign(local: &Local, rule: &Rule, op: &SelectAssignOpIr, emit: &mut Emit) {
    let tensor = target(local, emit);
    let (mut indices, mut value) = (local.local_input(1), local.local_input(2));
    if let Some(split) = local.split(&rule.inputs[0].dims, op.dim) {
        let here = here(local, split, indices, emit);
        let elsewhere = along(&here.elsewhere, op.dim, &value.shape.to_vec(), emit);
        value = emit.masked(&value, &elsewhere);
        indices = here.indices;
    }
    let assign = SelectAssignOpIr {
        tensor,
        indices,
        value,
        out: local.local_outputs().remove(0),
        ..op.clone()
    };
    emit.push(base(op.out.dtype, BaseOperationIr::SelectAssign(assign)));
}

/// `scatter_nd(data, indices, values)`.
pub(super) fn scatter_nd(local: &Local, op: &ScatterNdOpIr, emit: &mut Emit) {
    let scatter = ScatterNdOpIr {
        data: target(local, emit),
        indices: local.local_input(1),
        values: local.local_input(2),
        reduction: op.reduction,
        out: local.local_outputs().remove(0),
    };
    emit.push(base(op.out.dtype, BaseOperationIr::ScatterNd(scatter)));
}
