//! Operations of which a tensor has no elements: they make what Flex makes, and their kernels see none of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_dist_plan::rule::{OpRule, Operand};

use super::*;
use crate::rules::rule;
use crate::table::family_of;
use crate::visit::{OpVisitor, visit_mut};

/// Tensors of which no kernel may look at those without elements, and none at all for a result without: they are
/// handles of another kind, which a kernel cannot open.
#[derive(Default)]
struct Guarded {
    map: Map,
    makes_nothing: bool,
    taken: usize,
}

impl Env<Flex> for Guarded {
    fn take(&mut self, tensor: &TensorIr) -> Handle {
        self.taken += 1;
        let handle = self.map.take(tensor);
        match self.makes_nothing || tensor.shape.num_elements() == 0 {
            true => closed(),
            false => handle,
        }
    }
    fn put(&mut self, tensor: &TensorIr, handle: Handle) {
        self.map.put(tensor, handle);
    }
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        self.map.scalar(scalar)
    }
    fn device(&self) -> &<Flex as burn_backend::BackendTypes>::Device {
        self.map.device()
    }
}

/// A quantized tensor: operations on others do not take it.
fn closed() -> Handle {
    let data = crate::burn::test::quantized(vec![1], [1].into(), scheme(), 1.0);
    from_data::<Flex>(data, &Default::default())
}

fn outputs(op: &OperationIr, env: &mut Map) -> Vec<TensorData> {
    op.outputs().map(|out| env.read(out)).collect()
}

/// Runs an operation without its kernel touching nothing.
fn ours(op: &OperationIr, data: &[TensorData]) -> Result<Vec<TensorData>, ExecuteError> {
    let mut env = Guarded::default();
    for (tensor, data) in op.inputs().zip(data) {
        env.map.set(tensor, data.clone());
    }
    env.makes_nothing = op.outputs().all(|out| out.shape.num_elements() == 0);
    match execute::<Flex, _>(op, &mut env) {
        Ok(()) => assert_eq!(env.taken, op.inputs().count(), "{op:?}"),
        Err(error) => {
            assert_eq!(env.taken, 0, "{op:?}");
            return Err(error);
        }
    }
    Ok(outputs(op, &mut env.map))
}

/// Runs the kernel of an operation, whatever it makes of nothing.
fn flex(op: &OperationIr, data: &[TensorData]) -> Vec<TensorData> {
    let mut env = Map::default();
    for (tensor, data) in op.inputs().zip(data) {
        env.set(tensor, data.clone());
    }
    run_kernel::<Flex, _>(family_of(op), &mut env).unwrap();
    outputs(op, &mut env)
}

/// Gives a factor of an operation another size, in every operand that has it.
struct Resized<'a> {
    factor: u8,
    size: usize,
    inputs: std::slice::Iter<'a, Operand>,
    outputs: std::slice::Iter<'a, Operand>,
}

impl Resized<'_> {
    fn resize(&self, operand: &Operand, tensor: &mut TensorIr) {
        let dims = operand.dims.iter().enumerate();
        for (dim, _) in dims.filter(|(_, factor)| **factor == Some(self.factor)) {
            tensor.shape[dim] = self.size;
        }
    }
}

impl OpVisitor for Resized<'_> {
    fn input(&mut self, tensor: &mut TensorIr) {
        let operand = self.inputs.next().unwrap();
        self.resize(operand, tensor);
    }
    fn output(&mut self, tensor: &mut TensorIr) {
        let operand = self.outputs.next().unwrap();
        self.resize(operand, tensor);
    }
}

/// Empties the first dim of every tensor.
struct First;

impl OpVisitor for First {
    fn input(&mut self, tensor: &mut TensorIr) {
        tensor.shape[0] = 0;
    }
    fn output(&mut self, tensor: &mut TensorIr) {
        tensor.shape[0] = 0;
    }
}

/// Returns the operation with each of its factors in turn of size zero, and of size one.
fn resized(op: &OperationIr) -> Vec<[OperationIr; 2]> {
    match rule(op) {
        OpRule::Factors(rule) => (0..rule.factors.len() as u8)
            .map(|factor| {
                [0, 1].map(|size| {
                    let mut op = op.clone();
                    let (inputs, outputs) = (rule.inputs.iter(), rule.outputs.iter());
                    let mut resize = Resized {
                        factor,
                        size,
                        inputs,
                        outputs,
                    };
                    visit_mut(&mut op, &mut resize);
                    op
                })
            })
            .collect(),
        OpRule::Reshape | OpRule::Create => {
            let mut op = op.clone();
            visit_mut(&mut op, &mut First);
            vec![[op.clone(), op]]
        }
        OpRule::Replicated(_) => Vec::new(),
    }
}

/// Returns data for an operation: that of another one where shapes are equal, and zeros elsewhere.
fn data_like(op: &OperationIr, whole: &[TensorData]) -> Vec<TensorData> {
    let data = op.inputs().zip(whole);
    data.map(|(tensor, data)| match tensor.shape == *data.shape() {
        true => data.clone(),
        false => {
            let zeros = vec![0.0_f32; tensor.shape.num_elements()];
            TensorData::new(zeros, tensor.shape.clone()).convert_dtype(tensor.dtype)
        }
    })
    .collect()
}

/// Modules, of which Flex reads beyond its memory where there is nothing to read, are compared with themselves on
/// zeros: a sum of no terms is one of zeros.
#[test]
fn every_op_with_a_factor_of_size_zero_equals_flex() {
    let (mut equal, mut made, mut wrong) = (0, 0, Vec::new());
    for op in samples() {
        let whole = inputs(&op, 1);
        for [op, of_one] in resized(&op) {
            let has_elements = op.outputs().any(|out| out.shape.num_elements() > 0);
            let theirs = match family_name(&op) {
                "module" if has_elements => &of_one,
                _ => &op,
            };
            let theirs = match family_name(&op) == "module" && !has_elements {
                true => None,
                false => {
                    let data = data_like(theirs, &whole);
                    catch_unwind(AssertUnwindSafe(|| flex(theirs, &data))).ok()
                }
            };
            let data = data_like(&op, &whole);
            let ours = catch_unwind(AssertUnwindSafe(|| ours(&op, &data)));
            match (theirs, ours) {
                (Some(theirs), Ok(Ok(ours))) if are_equal(&theirs, &ours) => equal += 1,
                (None, Ok(Ok(_))) if !has_elements || ON_ONE_LINE.contains(&kind_name(&op)) => {
                    made += 1;
                }
                // A maximum over nothing, an index into nothing.
                (None, Ok(Err(_)) | Err(_)) if has_elements => {}
                (theirs, ours) => wrong.push(format!("{op:?}\n  {ours:?}, not {theirs:?}")),
            }
        }
    }
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} wrong:\n{}", wrong.join("\n"));
    assert!(equal > 300 && made > 60, "{equal} equal, {made} made");
}

/// Operations to which Flex gives a value of no elements on one of Burn's lines alone.
const ON_ONE_LINE: &[&str] = &["mean_dim", "max", "min", "max_abs"];

/// Returns whether results are equal, but for those without elements.
fn are_equal(theirs: &[TensorData], ours: &[TensorData]) -> bool {
    let equal = |(theirs, ours): (&TensorData, &TensorData)| {
        let nan = |data: &TensorData| {
            data.dtype().is_float() && data.iter::<f64>().all(|value| value.is_nan())
        };
        let is_equal = theirs.as_bytes() == ours.as_bytes() || (nan(theirs) && nan(ours));
        theirs.shape() == ours.shape() && theirs.dtype() == ours.dtype() && is_equal
    };
    let mut both = theirs.iter().zip(ours);
    both.all(|both| both.1.num_elements() == 0 || equal(both))
}
