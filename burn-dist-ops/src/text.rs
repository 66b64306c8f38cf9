//! The text form of operations, for tests: Burn's own are written as `Debug` says them, but for their tensors, which are
//! written as the planner writes those of any operation.
//!
//! ```text
//! [%2: f32 [3]] = burn `NumericFloat(F32, Add(BinaryOpIr { lhs: %, rhs: %, out: % }))` [%0: f32 [3], %1: f32 [3]]
//! ```
//!
//! An operation of Burn's, or of another crate, is read as the one of that text that was written before; no two have
//! one text. Reading it field by field would be a fifth of what this crate compiles to.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn_dist_plan::form::{Failed, Form, Reader, Writer, read_tensor, write_tensor};
use burn_dist_plan::op::Tensor;
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use burn_std::DType;

use super::custom::Custom;
use super::dtype::to_burn;
use super::float8::Float8;
use super::int8::{Int8, Int8Op};
use super::recorded::{Marked, Recorded, tensor};
use super::visit::{OpVisitor, visit_mut};

/// The mark of a tensor in the text of an operation of Burn's.
const TENSOR: &str = "%";

/// The operations of Burn's that were written, without their tensors, by their texts.
static BURN: Mutex<BTreeMap<String, OperationIr>> = Mutex::new(BTreeMap::new());

/// The operations of other crates that were written, by their texts.
static CUSTOM: Mutex<BTreeMap<String, Custom>> = Mutex::new(BTreeMap::new());

/// A tensor of an operation.
struct Operand(TensorIr);

impl Form for Operand {
    fn write(&self, to: &mut Writer<'_>) {
        write_tensor(tensor(&self.0), to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        read_tensor(from, |found: Tensor<'_>| {
            Self(TensorIr {
                id: TensorId::new(found.id.into()),
                shape: found.shape.to_vec().into(),
                status: match found.last_use {
                    true => TensorStatus::ReadWrite,
                    false => TensorStatus::ReadOnly,
                },
                dtype: to_burn(found.dtype),
            })
        })
    }
}

/// Replaces all tensors of an operation by one.
struct Blank(TensorIr);

impl OpVisitor for Blank {
    fn input(&mut self, tensor: &mut TensorIr) {
        tensor.clone_from(&self.0);
    }

    fn output(&mut self, tensor: &mut TensorIr) {
        tensor.clone_from(&self.0);
    }
}

/// Gives an operation its tensors, in order.
struct Fill<I> {
    inputs: I,
    outputs: I,
    lacks_one: bool,
}

impl<I: Iterator<Item = TensorIr>> OpVisitor for Fill<I> {
    fn input(&mut self, tensor: &mut TensorIr) {
        match self.inputs.next() {
            Some(found) => *tensor = found,
            None => self.lacks_one = true,
        }
    }

    fn output(&mut self, tensor: &mut TensorIr) {
        match self.outputs.next() {
            Some(found) => *tensor = found,
            None => self.lacks_one = true,
        }
    }
}

/// The tensor that [`TENSOR`] stands for.
fn blank() -> TensorIr {
    TensorIr::uninit(TensorId::new(0), Vec::<usize>::new().into(), DType::F32)
}

/// Returns the text of an operation of Burn's, without its tensors.
fn write_burn(op: &OperationIr) -> String {
    let mut op = op.clone();
    visit_mut(&mut op, &mut Blank(blank()));
    let text = format!("{op:?}").replace(&format!("{:?}", blank()), TENSOR);
    let mut written = BURN.lock().unwrap_or_else(PoisonError::into_inner);
    match written.get(&text) {
        Some(known) => assert!(*known == op, "{op:?} and {known:?} have one text"),
        None => drop(written.insert(text.clone(), op)),
    }
    text
}

/// Returns the operation of Burn's of which a text was written, with blank tensors.
fn read_burn(text: &str) -> Option<OperationIr> {
    let written = BURN.lock().unwrap_or_else(PoisonError::into_inner);
    written.get(text).cloned()
}

/// Returns the name of an operation of another crate.
fn name(op: &Custom) -> String {
    format!("{} {:?}", op.definition.id(), op.definition)
}

impl Form for Recorded {
    fn write(&self, to: &mut Writer<'_>) {
        let operands = |tensors: Vec<&TensorIr>| -> Vec<Operand> {
            tensors.into_iter().cloned().map(Operand).collect()
        };
        operands(self.makes().collect()).write(to);
        to.put(" = ");
        match self {
            Self::Burn(op) => to.put(&format!("burn `{}`", write_burn(op))),
            Self::Mark(marked) => {
                to.put("mark ");
                marked.mark.write(to);
            }
            Self::Custom(op) => {
                let name = name(op);
                to.put("custom ");
                name.write(to);
                let mut written = CUSTOM.lock().unwrap_or_else(PoisonError::into_inner);
                let known = written.entry(name).or_insert_with(|| (**op).clone());
                let is_same = known.definition.is_same(op.definition.as_ref());
                assert!(is_same, "{op:?} and {known:?} have one text");
            }
            Self::Float8(op) => {
                to.put("float8 ");
                op.op.write(to);
            }
            Self::Int8(op) => to.put(op.op.name()),
        }
        to.put(" ");
        operands(self.reads().collect()).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let outputs: Vec<Operand> = Form::read(from)?;
        from.word("=")?;
        let made = |tensor: Operand| TensorIr {
            status: TensorStatus::NotInit,
            ..tensor.0
        };
        let outputs: Vec<TensorIr> = outputs.into_iter().map(made).collect();
        let inputs = |from: &mut Reader<'_>| -> Result<Vec<TensorIr>, Failed> {
            let inputs = Vec::<Operand>::read(from)?;
            Ok(inputs.into_iter().map(|tensor| tensor.0).collect())
        };
        if from.has("burn") {
            from.word("`")?;
            let mut op = from.token(
                "an operation of Burn's that was written before",
                |c| c != '`',
                read_burn,
            )?;
            from.word("`")?;
            let inputs = inputs(from)?;
            let mut fill = Fill {
                inputs: inputs.into_iter(),
                outputs: outputs.into_iter(),
                lacks_one: false,
            };
            visit_mut(&mut op, &mut fill);
            let is_filled = !fill.lacks_one && fill.inputs.len() + fill.outputs.len() == 0;
            return match is_filled {
                true => Ok(Self::Burn(op)),
                false => from.fail("as many tensors as the operation has"),
            };
        }
        if from.has("mark") {
            let mark = Form::read(from)?;
            let inputs = inputs(from)?;
            let (Ok([input]), Ok([out])) = (
                <[TensorIr; 1]>::try_from(inputs),
                <[TensorIr; 1]>::try_from(outputs),
            ) else {
                return from.fail("one tensor, marked");
            };
            return Ok(Self::Mark(Box::new(Marked { mark, input, out })));
        }
        if from.has("custom") {
            let name = String::read(from)?;
            let inputs = inputs(from)?;
            let written = CUSTOM.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(mut op) = written.get(&name).cloned() else {
                return from.fail("an operation that was written before");
            };
            (op.inputs, op.outputs) = (inputs, outputs);
            return Ok(Self::Custom(Box::new(op)));
        }
        for op in Int8Op::ALL {
            if !from.has(op.name()) {
                continue;
            }
            let inputs = inputs(from)?;
            let (Ok([input]), Ok([out])) = (
                <[TensorIr; 1]>::try_from(inputs),
                <[TensorIr; 1]>::try_from(outputs),
            ) else {
                return from.fail("one tensor, packed or unpacked");
            };
            return Ok(Self::Int8(Box::new(Int8 { op, input, out })));
        }
        from.word("float8")?;
        Ok(Self::Float8(Box::new(Float8 {
            op: Form::read(from)?,
            inputs: inputs(from)?,
            outputs,
        })))
    }
}
