//! The text form of operations, for tests: Burn's own are written as burn-ir says them, in TOML, but for their tensors,
//! which are written as the planner writes those of any operation.
//!
//! ```text
//! [%2: f32 [2, 8]] = burn `{ Module = { Linear = { out = "%", weight = "%", x = "%" } } }` [%1, %0]
//! ```
//!
//! An operation of another crate is named by what `Debug` says of it, and read as the one of that name that was written
//! before: a text cannot make what only a type of that crate can.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn_dist_plan::form::{Failed, Form, Reader, Writer, read_tensor, write_tensor};
use burn_dist_plan::op::Tensor;
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use burn_std::DType;
use serde::de::value::{Error, MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Error as _, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use toml::Value;

use super::custom::Custom;
use super::dtype::to_burn;
use super::float8::Float8;
use super::int8::{Int8, Int8Op};
use super::recorded::{Marked, Recorded, tensor};
use super::visit::{OpVisitor, visit_mut};

/// The mark of a tensor in the text of an operation of Burn's.
const TENSOR: &str = "%";

/// The operations of other crates that were written, by what is written of each.
static WRITTEN: Mutex<BTreeMap<String, Custom>> = Mutex::new(BTreeMap::new());

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

/// Replaces each value in `within` that is `old`.
fn replace(within: &mut Value, old: &Value, new: &Value) {
    if within == old {
        return within.clone_from(new);
    }
    match within {
        Value::Table(table) => table.iter_mut().for_each(|(_, it)| replace(it, old, new)),
        Value::Array(values) => values.iter_mut().for_each(|it| replace(it, old, new)),
        _ => {}
    }
}

/// Returns the blank tensor as a value, and what stands for it.
fn stands_for() -> [Value; 2] {
    let blank = Value::try_from(blank()).expect("a tensor is a table");
    [blank, TENSOR.into()]
}

/// Returns the text of an operation of Burn's, without its tensors.
fn write_burn(op: &OperationIr) -> String {
    let mut op = op.clone();
    visit_mut(&mut op, &mut Blank(blank()));
    let mut value = Value::try_from(&op).expect("an operation is a table");
    let [blank, stands] = stands_for();
    replace(&mut value, &blank, &stands);
    value.to_string()
}

/// Reads an operation of Burn's, with blank tensors.
fn read_burn(text: &str) -> Option<OperationIr> {
    let table: toml::Table = format!("op = {text}").parse().ok()?;
    let mut value = table.get("op")?.clone();
    let [blank, stands] = stands_for();
    replace(&mut value, &stands, &blank);
    OperationIr::deserialize(Written(value)).ok()
}

/// A value that each type reads in the one form that it is written in. TOML's own deserializer offers a type all forms,
/// and of all operations that is a fifth of what this crate compiles to.
struct Written(Value);

impl IntoDeserializer<'_, Error> for Written {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Written {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Boolean(value) => visitor.visit_bool(value),
            Value::Integer(value) => visitor.visit_i64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::String(value) => visitor.visit_string(value),
            Value::Array(_) | Value::Table(_) | Value::Datetime(_) => {
                Err(Error::custom("a single value is expected"))
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(self.fields()?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(variant) => visitor.visit_enum(variant.into_deserializer()),
            _ => visitor.visit_enum(MapAccessDeserializer::new(self.fields()?)),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(values) => {
                visitor.visit_seq(SeqDeserializer::new(values.into_iter().map(Written)))
            }
            _ => Err(Error::custom("a list is expected")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct map
        tuple_struct identifier ignored_any
    }
}

type Fields =
    std::iter::Map<toml::map::IntoIter<String, Value>, fn((String, Value)) -> (String, Written)>;

impl Written {
    /// Returns what stands under names.
    fn fields<'de>(self) -> Result<MapDeserializer<'de, Fields, Error>, Error> {
        let Value::Table(table) = self.0 else {
            return Err(Error::custom("a table is expected"));
        };
        let named: fn((String, Value)) -> (String, Written) =
            |(name, value)| (name, Written(value));
        Ok(MapDeserializer::new(table.into_iter().map(named)))
    }
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
                let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
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
            let mut op = from.token("an operation of Burn's", |c| c != '`', read_burn)?;
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
            let written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
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
