//! Where results are: in the buffers that plans count on.

use burn_dist_plan::op::Op;
use burn_dist_plan::storage::{Operand, Place, Storage, Strided};
use burn_flex::FlexTensor;

use super::*;
use crate::Recorded;

fn tensor_of(handle: &Handle) -> &FlexTensor {
    match handle {
        HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => tensor,
        HandleKind::Quantized(_) => panic!("quantized tensors are not looked at"),
    }
}

fn strided(tensor: &FlexTensor) -> Strided {
    Strided {
        shape: tensor.layout().shape().to_vec(),
        strides: tensor.layout().strides().to_vec(),
        offset: tensor.layout().start_offset(),
    }
}

fn is_quantized(op: &OperationIr) -> bool {
    let mut tensors = op.inputs().chain(op.outputs());
    tensors.any(|tensor| matches!(tensor.dtype, DType::QFloat(_)))
}

/// Runs an operation at the last use of all its inputs, with input `permuted` stored in another order of its dims, and
/// says where its result is not where it should be.
fn compare(op: &OperationIr, permuted: Option<usize>) -> Option<String> {
    let mut env = Map::default();
    for (index, (tensor, data)) in op.inputs().zip(inputs(op, 1)).enumerate() {
        env.set(tensor, data);
        let shape = tensor.shape.num_dims();
        if permuted == Some(index) && shape > 1 {
            let reversed: Vec<usize> = (0..shape).rev().collect();
            let handle = env.handles.remove(&tensor.id).unwrap();
            let flex = tensor_of(&handle).clone();
            drop(handle);
            let flex = flex.permute(&reversed).to_contiguous().permute(&reversed);
            let handle = match tensor.dtype {
                DType::Bool(_) => Flex::bool_tensor_handle(flex),
                dtype if dtype.is_float() => Flex::float_tensor_handle(flex),
                _ => Flex::int_tensor_handle(flex),
            };
            env.put(tensor, handle);
        }
    }
    let before: Vec<(Strided, usize, *const u8)> = op
        .inputs()
        .map(|tensor| {
            let flex = tensor_of(&env.handles[&tensor.id]);
            let elements = flex.bytes().len() / tensor.dtype.size();
            (strided(flex), elements, flex.bytes().as_ptr())
        })
        .collect();
    let operands: Vec<Operand<'_>> = before
        .iter()
        .map(|(at, buffer, _)| Operand {
            at,
            alone: true,
            buffer: *buffer,
        })
        .collect();
    let mut last = op.clone();
    crate::visit_mut(&mut last, &mut LastUse);
    let predicted = Recorded::from(op.clone()).place(Storage::Buffers, 0, &operands);
    execute::<Flex, _>(&last, &mut env).unwrap();
    let out = op.outputs().next()?;
    let made = tensor_of(&env.handles[&out.id]);
    let shared = before
        .iter()
        .position(|(_, _, bytes)| *bytes == made.bytes().as_ptr());
    let found = match shared {
        Some(input) => Place::Shares(input, strided(made)),
        None => Place::New(strided(made)),
    };
    let kind = (family_name(op), kind_name(op));
    let text = || format!("{kind:?} ({permuted:?} permuted): {found:?}, not {predicted:?}");
    match (&found, &predicted) {
        // Memory that is counted on is there, with the same strides.
        (_, Place::Shares(..)) => (found != predicted).then(text),
        // A copy that is made of an input on the way may come to lie where the input was.
        (Place::Shares(..), Place::New(_)) => {
            (permuted.is_none() && COUNTED.contains(&kind.0)).then(text)
        }
        (Place::New(_), Place::New(_)) => None,
    }
    .filter(|_| !UNCOUNTED.contains(&kind.1))
}

/// Families whose results overwrite operands as plans say; of others, plans count new memory.
const COUNTED: &[&str] = &["base_float", "numeric_float", "float", "activation"];

/// Operations whose kernels overwrite an operand or not as a value says, or before something else is made of it.
const UNCOUNTED: &[&str] = &["powf_scalar", "powi", "cross", "repeat_dim"];

struct LastUse;

impl crate::OpVisitor for LastUse {
    fn input(&mut self, tensor: &mut TensorIr) {
        tensor.status = TensorStatus::ReadWrite;
    }
    fn output(&mut self, _: &mut TensorIr) {}
}

#[test]
fn every_result_is_where_plans_count_on() {
    let mut wrong = Vec::new();
    for op in samples() {
        if beyond_interpreter(&op) || is_quantized(&op) || op.inputs().next().is_none() {
            continue;
        }
        let inputs = op.inputs().count();
        wrong.extend(compare(&op, None));
        wrong.extend((0..inputs).filter_map(|input| compare(&op, Some(input))));
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
