//! Recorded operations on tensors that rest in 8 bits, as operations on bytes.

use burn_backend::DType;
use burn_dist_kernels::int8::packed_shape;
use burn_dist_plan::op::Mark;
use burn_dist_plan::{ParamSpec, PlanError};
use burn_ir::{BaseOperationIr, FloatOperationIr, OperationIr, TensorIr};

use super::int8::{Int8, Int8Op, is_packed};
use super::recorded::{Marked, Recorded};
use super::visit::{OpReader, kind_name, visit_ref};

/// Returns a tensor of such a type as its bytes, and others as they are.
fn as_bytes(tensor: &TensorIr) -> TensorIr {
    match is_packed(tensor.dtype) {
        true => TensorIr {
            id: tensor.id,
            shape: packed_shape(tensor.shape.as_slice()).into(),
            status: tensor.status,
            dtype: DType::U8,
        },
        false => tensor.clone(),
    }
}

/// Returns what is recorded in the place of an operation on tensors that rest in 8 bits: one on bytes.
pub fn on_bytes(op: &Recorded) -> Option<Recorded> {
    let (op, input, out) = match op {
        Recorded::Burn(OperationIr::BaseFloat(BaseOperationIr::Cast(cast)))
            if is_packed(cast.out.dtype) && cast.input.dtype.is_float() =>
        {
            (Int8Op::Pack, &cast.input, &cast.out)
        }
        Recorded::Burn(OperationIr::Float(_, FloatOperationIr::Dequantize(op)))
            if is_packed(op.input.dtype) =>
        {
            // In bf16, which has all values exactly, it is kept; what computes dequantizes to f32.
            let kept = op.out.dtype == DType::BF16;
            let unpack = if kept {
                Int8Op::UnpackAtRest
            } else {
                Int8Op::Unpack
            };
            (unpack, &op.input, &op.out)
        }
        Recorded::Mark(marked) if is_packed(marked.input.dtype) => {
            let (input, out) = (as_bytes(&marked.input), as_bytes(&marked.out));
            let mark = match &marked.mark {
                Mark::Param(spec) => Mark::Param(ParamSpec::of_cast(spec, out.shape.as_slice())),
                Mark::Redistribute(layout) => {
                    Mark::Redistribute(layout.along_first_dims(out.shape.as_slice()).into())
                }
            };
            return Some(Recorded::Mark(Box::new(Marked { mark, input, out })));
        }
        _ => return None,
    };
    let (input, out) = (as_bytes(input), as_bytes(out));
    Some(Recorded::Int8(Box::new(Int8 { op, input, out })))
}

/// Checks that nothing but what makes and unpacks tensors that rest in 8 bits takes them, and that the ranks' backend
/// has tensors of bytes.
///
/// # Errors
/// [`PlanError::RestsInBytes`] and [`PlanError::NoBytes`], for the first operation that is not so.
pub fn check(ops: &[Recorded], has_bytes: bool) -> Result<(), PlanError> {
    struct Any(bool);
    impl OpReader<'_> for Any {
        fn input(&mut self, tensor: &TensorIr) {
            self.0 |= is_packed(tensor.dtype);
        }
        fn output(&mut self, tensor: &TensorIr) {
            self.input(tensor);
        }
    }
    for op in ops {
        match op {
            Recorded::Int8(_) if !has_bytes => return Err(PlanError::NoBytes),
            Recorded::Burn(burn) if !matches!(burn, OperationIr::Drop(_)) => {
                let mut any = Any(false);
                visit_ref(burn, &mut any);
                if any.0 {
                    let op = kind_name(burn).into();
                    return Err(PlanError::RestsInBytes { op });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
