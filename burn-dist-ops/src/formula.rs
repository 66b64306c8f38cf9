//! Formulas: what an operation computes of each element of its operands, written as mathematics writes it.
//!
//! A family says what its operations compute beside their rules. The types are those in which Flex computes: of 16-bit
//! floats, whole functions in f32 ([`Value::wide`]) and single operations in f32, rounded. Where Flex does something
//! that a formula cannot say, there is none.

use std::cell::{Cell, RefCell};
use std::ops::{Add, Div, Mul, Neg, Sub};

use burn_dist_plan::region::{
    Binary, Fold, Formula, Instruction, Number, Pointwise, Register, ScalarOf, Typed, Unary,
};
use burn_ir::{BinaryOpIr, ReduceDimOpIr, ScalarIr, ScalarOpIr, TensorIr, UnaryOpIr};

use super::dtype::of_burn;
use burn_dist_mesh::{BoolStore, DType};

/// Returns what an operation computes of its operands, which broadcast to the shape of its result; what the closure
/// makes is cast to the type of the result. `None` for types that regions do not compute in, for operands whose types
/// do not go together, and for tensors without elements, which need no kernel.
pub(super) fn formula<const N: usize>(
    operands: [&TensorIr; N],
    out: &TensorIr,
    compute: impl for<'s> Fn(&'s Sketch, [Value<'s>; N]) -> Value<'s>,
) -> Option<Pointwise> {
    let written = written(&operands, &[out], &mut |sketch, values| {
        let values = <[Value<'_>; N]>::try_from(values).expect("there is one for each operand");
        Some(vec![compute(sketch, values)])
    });
    written.ok()
}

/// The reason why there is no formula.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unwritten {
    /// Regions do not compute in a type, a tensor has no elements, or nothing was to be written.
    Left,
    /// It has another number of results than the operation.
    Results(usize),
    /// Values of different types meet.
    Mixed,
    /// Operands and results do not broadcast to one shape.
    Shapes,
}

/// Writes what is computed of the operands: one value for each result, or `None` if no formula says it.
type Compute<'a> = dyn for<'s> FnMut(&'s Sketch, Vec<Value<'s>>) -> Option<Vec<Value<'s>>> + 'a;

/// Returns what an operation computes of its operands, as [`formula`] does: one value for each result.
pub(super) fn written(
    operands: &[&TensorIr],
    outs: &[&TensorIr],
    compute: &mut Compute<'_>,
) -> Result<Pointwise, Unwritten> {
    let has = |tensor: &&TensorIr| is_computed(of_burn(tensor.dtype)) && has_elements(tensor);
    if !operands.iter().chain(outs).all(has) {
        return Err(Unwritten::Left);
    }
    let types: Vec<DType> = operands.iter().map(|of| of_burn(of.dtype)).collect();
    let made: Vec<DType> = outs.iter().map(|out| of_burn(out.dtype)).collect();
    let sketch = Sketch::new(&types, &made);
    let values = types.iter().enumerate().map(|(index, dtype)| Value {
        sketch: &sketch,
        register: index as Register,
        dtype: *dtype,
    });
    let results = compute(&sketch, values.collect()).ok_or(Unwritten::Left)?;
    if results.len() != outs.len() {
        return Err(Unwritten::Results(results.len()));
    }
    let results = results.into_iter().zip(&made);
    let results = results.map(|(result, dtype)| result.to(*dtype).register);
    let results = results.collect();
    if !broadcast(operands.iter().chain(outs)) {
        return Err(Unwritten::Shapes);
    }
    sketch.finish(results).ok_or(Unwritten::Mixed)
}

/// Returns whether tensors broadcast to one shape, dims aligned at the last.
fn broadcast<'a>(tensors: impl Iterator<Item = &'a &'a TensorIr>) -> bool {
    let mut whole: Vec<usize> = Vec::new();
    for tensor in tensors {
        let sizes = tensor.shape.iter().rev();
        for (dim, &size) in sizes.enumerate() {
            match whole.get_mut(dim) {
                None => whole.push(size),
                Some(1) => whole[dim] = size,
                Some(known) if *known == size || size == 1 => {}
                Some(_) => return false,
            }
        }
    }
    true
}

/// Returns the formula of a function of single elements.
pub(super) fn map(
    op: &UnaryOpIr,
    compute: impl for<'s> Fn(Value<'s>) -> Value<'s>,
) -> Option<Pointwise> {
    formula([&op.input], &op.out, |_, [x]| compute(x))
}

/// Returns the formula of a function of pairs of elements.
pub(super) fn pair(
    op: &BinaryOpIr,
    compute: impl for<'s> Fn(Value<'s>, Value<'s>) -> Value<'s>,
) -> Option<Pointwise> {
    formula([&op.lhs, &op.rhs], &op.out, |_, [x, y]| compute(x, y))
}

/// Returns the formula of a function of an element and a scalar of its type: [rounded
/// twice](Sketch::arithmetic_scalar).
pub(super) fn with_scalar(
    op: &ScalarOpIr,
    compute: impl for<'s> Fn(Value<'s>, Value<'s>) -> Value<'s>,
) -> Option<Pointwise> {
    formula([&op.lhs], &op.out, |sketch, [x]| {
        compute(x, sketch.arithmetic_scalar(&op.rhs, x.dtype))
    })
}

/// Returns the formula of a comparison.
pub(super) fn compared(op: &BinaryOpIr, by: Binary) -> Option<Pointwise> {
    pair(op, |x, y| x.compared(by, y))
}

/// Returns the formula of a comparison with a number: of ints, as far as these go.
pub(super) fn compared_elem(op: &ScalarOpIr, by: Binary) -> Option<Pointwise> {
    formula([&op.lhs], &op.out, |sketch, [x]| {
        let x = match x.is_float() {
            true => x,
            false => x.bounded(),
        };
        x.compared(by, sketch.scalar(&op.rhs, x.dtype))
    })
}

/// Returns the formula of a reduction along a dim, if rows run along it.
pub(super) fn along_rows(
    op: &ReduceDimOpIr,
    compute: impl for<'s> Fn(Value<'s>) -> Value<'s>,
) -> Option<Pointwise> {
    match is_last(&op.input, op.axis) {
        true => formula([&op.input], &op.out, |_, [x]| compute(x)),
        false => None,
    }
}

/// Returns sums along dims: of each row, if they run along the last dim. Of 16-bit floats, others have none: Flex
/// rounds after each dim.
pub(super) fn sums(input: &TensorIr, out: &TensorIr, dims: &[usize]) -> Option<Pointwise> {
    let dtype = of_burn(input.dtype);
    match dims {
        [dim] if is_last(input, *dim) => formula([input], out, |_, [x]| x.sum()),
        _ if matches!(dtype, DType::F16 | DType::BF16) => None,
        _ => (is_computed(dtype) && has_elements(input)).then(|| {
            let mut dims = dims.to_vec();
            dims.sort_unstable();
            Pointwise::Sum { dims }
        }),
    }
}

/// Returns whether a dim is the last of a tensor.
pub(super) fn is_last(tensor: &TensorIr, dim: usize) -> bool {
    dim + 1 == tensor.shape.num_dims()
}

fn has_elements(tensor: &TensorIr) -> bool {
    tensor.shape.iter().all(|size| *size > 0)
}

/// Returns whether regions compute in a type: those that Flex has, each bool a byte.
pub(super) fn is_computed(dtype: DType) -> bool {
    use DType::*;
    match dtype {
        F64 | F32 | F16 | BF16 | I64 | I32 | I16 | I8 | U64 | U32 | U16 | U8 => true,
        Bool(BoolStore::Native | BoolStore::U8) => true,
        Bool(BoolStore::U32) | Flex32 | Quantized(_) => false,
    }
}

/// A formula that is being written.
#[derive(Debug)]
pub(super) struct Sketch {
    formula: RefCell<Formula>,
    scalars: RefCell<Vec<ScalarOf>>,
    /// The type of comparisons.
    bools: DType,
    /// True if operands of different types have met.
    is_mixed: Cell<bool>,
}

impl Sketch {
    fn new(operands: &[DType], made: &[DType]) -> Self {
        let formula = Formula {
            operands: operands.to_vec(),
            ..Formula::default()
        };
        Self {
            formula: RefCell::new(formula),
            scalars: RefCell::default(),
            bools: (made.iter().copied())
                .find(|dtype| matches!(dtype, DType::Bool(_)))
                .unwrap_or(DType::Bool(BoolStore::Native)),
            is_mixed: Cell::new(false),
        }
    }

    fn finish(self, results: Vec<Register>) -> Option<Pointwise> {
        let mut formula = self.formula.into_inner();
        formula.results = results;
        (!self.is_mixed.get()).then_some(Pointwise::Formula {
            formula,
            scalars: self.scalars.into_inner(),
        })
    }

    /// Writes an instruction down, once.
    fn write(&self, instruction: Instruction, dtype: DType) -> Value<'_> {
        let mut formula = self.formula.borrow_mut();
        let typed = Typed { instruction, dtype };
        let known = formula.instructions.iter().position(|of| *of == typed);
        let index = known.unwrap_or_else(|| {
            formula.instructions.push(typed);
            formula.instructions.len() - 1
        });
        Value {
            sketch: self,
            register: (formula.operands.len() + index) as Register,
            dtype,
        }
    }

    /// Returns a number that every run computes with.
    pub(super) fn number(&self, number: f64, dtype: DType) -> Value<'_> {
        let number = match is_float(dtype) {
            true => Number::Float(number),
            false => Number::Int(number as i64),
        };
        self.write(Instruction::Constant(number), dtype)
    }

    /// Returns a scalar of the operation, rounded to a type.
    pub(super) fn scalar(&self, scalar: &ScalarIr, dtype: DType) -> Value<'_> {
        let of = match *scalar {
            // The planner keeps `UInt` for scalar slots.
            ScalarIr::UInt(slot) => ScalarOf::Slot(slot),
            ScalarIr::Float(value) => ScalarOf::Number(Number::Float(value)),
            ScalarIr::Int(value) => ScalarOf::Number(Number::Int(value)),
            ScalarIr::Bool(value) => ScalarOf::Number(Number::Int(value.into())),
        };
        let index = {
            let mut scalars = self.scalars.borrow_mut();
            let known = scalars.iter().position(|known| *known == of);
            known.unwrap_or_else(|| {
                scalars.push(of);
                scalars.len() - 1
            })
        };
        self.write(Instruction::Scalar(index as u32), dtype)
    }

    /// Returns a scalar of the operation as Flex's arithmetic takes it: to 16 bits it is rounded twice, first to f32.
    pub(super) fn arithmetic_scalar(&self, scalar: &ScalarIr, dtype: DType) -> Value<'_> {
        self.scalar(scalar, wide(dtype)).to(dtype)
    }
}

/// Returns the type in which functions of elements of a type are computed.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

/// A value of a formula: an operand, or what is made of others by operators and methods.
///
/// Floats of 16 bits are rounded after every operation; [`Value::wide`] goes on in f32, which the last result is
/// rounded from.
#[derive(Clone, Copy, Debug)]
pub struct Value<'s> {
    sketch: &'s Sketch,
    register: Register,
    pub(super) dtype: DType,
}

impl<'s> Value<'s> {
    /// Returns the same value in another type.
    pub(super) fn to(self, dtype: DType) -> Self {
        match self.dtype == dtype {
            true => self,
            false => self.sketch.write(Instruction::Cast(self.register), dtype),
        }
    }

    /// Returns the same value in another of Burn's types.
    pub fn cast(self, dtype: burn_std::DType) -> Self {
        self.to(of_burn(dtype))
    }

    /// Returns the same value in the type in which functions of it are computed: of 16-bit floats, f32.
    pub fn wide(self) -> Self {
        self.to(wide(self.dtype))
    }

    /// Returns the same value in the type in which it meets bounds: of 16-bit floats f32, of ints, as far as they go.
    pub(super) fn bounded(self) -> Self {
        match self.dtype {
            DType::I32 | DType::I16 | DType::I8 | DType::U32 | DType::U16 | DType::U8 => {
                self.to(DType::I64)
            }
            _ => self.wide(),
        }
    }

    /// Returns whether it is a float.
    pub fn is_float(self) -> bool {
        is_float(self.dtype)
    }

    /// Returns whether it is a bool.
    pub(super) fn is_bool(self) -> bool {
        matches!(self.dtype, DType::Bool(_))
    }

    /// Returns whether it differs from zero.
    pub(super) fn truth(self) -> Self {
        match self.is_bool() {
            true => self,
            false => self.compared(Binary::NotEqual, self.number(0.0)),
        }
    }

    /// Returns a number of its type.
    pub fn number(self, number: f64) -> Self {
        self.sketch.number(number, self.dtype)
    }

    /// Returns a function of it.
    pub fn unary(self, function: Unary) -> Self {
        let instruction = Instruction::Unary(function, self.register);
        self.sketch.write(instruction, self.dtype)
    }

    /// Returns an answer to a question about it.
    pub(super) fn asked(self, question: Unary) -> Self {
        let instruction = Instruction::Unary(question, self.register);
        self.sketch.write(instruction, self.sketch.bools)
    }

    /// Returns a function of it and another value of its type.
    pub fn binary(self, function: Binary, other: Self) -> Self {
        self.written(function, other, self.dtype)
    }

    /// Returns how it compares with another value of its type, as a bool.
    pub fn compared(self, by: Binary, other: Self) -> Self {
        self.written(by, other, self.sketch.bools)
    }

    fn written(self, function: Binary, other: Self, dtype: DType) -> Self {
        if self.dtype != other.dtype {
            self.sketch.is_mixed.set(true);
        }
        let instruction = Instruction::Binary(function, self.register, other.register);
        self.sketch.write(instruction, dtype)
    }

    /// Returns it to the power of an integer.
    pub fn powi(self, exponent: Self) -> Self {
        let instruction = Instruction::Powi(self.register, exponent.register);
        self.sketch.write(instruction, self.dtype)
    }

    /// Returns one of two values, where it is a bool.
    pub fn select(self, on_true: Self, on_false: Self) -> Self {
        if on_true.dtype != on_false.dtype || !self.is_bool() {
            self.sketch.is_mixed.set(true);
        }
        let instruction = Instruction::Select {
            mask: self.register,
            on_true: on_true.register,
            on_false: on_false.register,
        };
        self.sketch.write(instruction, on_true.dtype)
    }

    /// Returns what each row, along the last dim, folds to: one value for the row.
    pub fn fold(self, fold: Fold) -> Self {
        let instruction = Instruction::Fold(fold, self.register);
        self.sketch.write(instruction, self.dtype)
    }

    /// Returns it with a value added to the element of each row that an index is of: both are one for each row.
    pub fn add_at(self, index: Self, value: Self) -> Self {
        if self.dtype != value.dtype {
            self.sketch.is_mixed.set(true);
        }
        let instruction = Instruction::AddAt {
            to: self.register,
            index: index.register,
            value: value.register,
        };
        self.sketch.write(instruction, self.dtype)
    }

    /// Returns the sum of each row; of 16-bit floats in f32, as the library accumulates.
    pub fn sum(self) -> Self {
        self.wide().fold(Fold::Sum)
    }

    /// Returns the mean of each row of floats, as [`Self::sum`] does the sum.
    pub(super) fn mean(self, of: &TensorIr) -> Self {
        let size = of.shape[of.shape.num_dims() - 1];
        self.sum() / size as f64
    }

    /// Returns it where it is the other or larger, or NaN; else the other.
    pub fn at_least(self, other: Self) -> Self {
        self.binary(Binary::Max, other)
    }

    /// Returns it where it is the other or smaller, or NaN; else the other.
    pub fn at_most(self, other: Self) -> Self {
        self.binary(Binary::Min, other)
    }

    /// Returns its exponential.
    pub fn exp(self) -> Self {
        self.unary(Unary::Exp)
    }

    /// Returns the logarithm of it and one.
    pub fn log1p(self) -> Self {
        self.unary(Unary::Log1p)
    }

    /// Returns it without its sign.
    pub fn abs(self) -> Self {
        self.unary(Unary::Abs)
    }
}

impl Neg for Value<'_> {
    type Output = Self;

    fn neg(self) -> Self {
        self.unary(Unary::Neg)
    }
}

/// Declares operators on values, and on values and numbers.
macro_rules! operators {
    ($( $trait:ident $name:ident, )*) => {$(
        impl $trait for Value<'_> {
            type Output = Self;

            fn $name(self, other: Self) -> Self {
                self.binary(Binary::$trait, other)
            }
        }

        impl $trait<f64> for Value<'_> {
            type Output = Self;

            fn $name(self, other: f64) -> Self {
                self.binary(Binary::$trait, self.number(other))
            }
        }

        impl<'s> $trait<Value<'s>> for f64 {
            type Output = Value<'s>;

            fn $name(self, other: Value<'s>) -> Value<'s> {
                other.number(self).binary(Binary::$trait, other)
            }
        }
    )*};
}

operators! {
    Add add,
    Sub sub,
    Mul mul,
    Div div,
}
