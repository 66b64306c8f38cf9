//! Makes local operations and their intermediate tensors.

use burn_backend::DType;
use burn_backend::tensor::IndexingUpdateOp;
use burn_dist_plan::op::Steps;
use burn_ir::*;

use super::Recorded;

/// Receives the local operations.
pub(super) struct Emit<'a> {
    pub(super) steps: &'a mut Steps<Recorded>,
}

/// Returns a tensor as the input of another op.
pub(super) fn read(tensor: &TensorIr) -> TensorIr {
    TensorIr {
        status: TensorStatus::ReadOnly,
        ..tensor.clone()
    }
}

/// Wraps an op on tensors of any kind.
pub(super) fn base(dtype: DType, op: BaseOperationIr) -> OperationIr {
    match dtype {
        DType::Bool(_) => OperationIr::BaseBool(op),
        dtype if dtype.is_float() => OperationIr::BaseFloat(op),
        _ => OperationIr::BaseInt(op),
    }
}

/// Returns an op on tensors of any kind, to change it.
pub(super) fn base_mut(op: &mut Recorded) -> Option<&mut BaseOperationIr> {
    use OperationIr::*;
    match op {
        Recorded::Burn(BaseFloat(op) | BaseInt(op) | BaseBool(op)) => Some(op),
        _ => None,
    }
}

impl Emit<'_> {
    pub(super) fn push(&mut self, op: OperationIr) {
        self.steps.push(op.into());
    }

    /// Returns a new tensor, not yet made.
    pub(super) fn tensor(&mut self, shape: Vec<usize>, dtype: DType) -> TensorIr {
        let id = TensorId::new(self.steps.temp().into());
        TensorIr::uninit(id, shape.into(), dtype)
    }

    /// Returns a new tensor of the dtype of `like`, not yet made.
    pub(super) fn temp(&mut self, like: &TensorIr, shape: Vec<usize>) -> TensorIr {
        self.tensor(shape, like.dtype)
    }

    pub(super) fn zeros(&mut self, out: TensorIr) {
        let dtype = out.dtype;
        self.push(base(dtype, BaseOperationIr::Zeros(CreationOpIr { out })));
    }

    /// Returns a tensor that has a shape and nothing else: no more than one element of memory.
    pub(super) fn shape_only(&mut self, like: &TensorIr, shape: Vec<usize>) -> TensorIr {
        let one = self.temp(like, vec![1; shape.len()]);
        let empty = CreationOpIr { out: one.clone() };
        self.push(base(like.dtype, BaseOperationIr::Empty(empty)));
        self.expand(&one, shape)
    }

    pub(super) fn expand(&mut self, tensor: &TensorIr, shape: Vec<usize>) -> TensorIr {
        self.shaped(tensor, shape, BaseOperationIr::Expand)
    }

    pub(super) fn reshape(&mut self, tensor: &TensorIr, shape: Vec<usize>) -> TensorIr {
        self.shaped(tensor, shape, BaseOperationIr::Reshape)
    }

    fn shaped(
        &mut self,
        tensor: &TensorIr,
        shape: Vec<usize>,
        op: impl FnOnce(ShapeOpIr) -> BaseOperationIr,
    ) -> TensorIr {
        if tensor.shape.to_vec() == shape {
            return read(tensor);
        }
        let out = self.temp(tensor, shape);
        let shaped = ShapeOpIr {
            input: read(tensor),
            out: out.clone(),
        };
        self.push(base(tensor.dtype, op(shaped)));
        read(&out)
    }

    /// Returns `tensor` with zeros where `mask` holds.
    pub(super) fn masked(&mut self, tensor: &TensorIr, mask: &TensorIr) -> TensorIr {
        let out = self.temp(tensor, tensor.shape.to_vec());
        self.mask_into(tensor, mask, out.clone());
        read(&out)
    }

    /// Stores `tensor` with zeros where `mask` holds in `out`.
    pub(super) fn mask_into(&mut self, tensor: &TensorIr, mask: &TensorIr, out: TensorIr) {
        let value = match tensor.dtype.is_float() {
            true => ScalarIr::Float(0.0),
            false => ScalarIr::Int(0),
        };
        self.mask_fill(tensor, mask, value, out);
    }

    pub(super) fn mask_fill(
        &mut self,
        tensor: &TensorIr,
        mask: &TensorIr,
        value: ScalarIr,
        out: TensorIr,
    ) {
        let fill = MaskFillOpIr {
            tensor: read(tensor),
            mask: read(mask),
            value,
            out,
        };
        self.push(base(tensor.dtype, BaseOperationIr::MaskFill(fill)));
    }

    /// Adds `value` to the rows `indices` of dim `dim` of `tensor`.
    pub(super) fn select_add(
        &mut self,
        tensor: TensorIr,
        dim: usize,
        indices: TensorIr,
        value: TensorIr,
        out: TensorIr,
    ) {
        let op = SelectAssignOpIr {
            tensor,
            dim,
            indices,
            value,
            update: IndexingUpdateOp::Add,
            out,
        };
        self.push(base(op.out.dtype, BaseOperationIr::SelectAssign(op)));
    }
}
