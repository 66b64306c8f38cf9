//! A plain interpreter of regions: every value for every element, one after the other.

use burn_dist_mesh::{BoolStore, DType};
use burn_dist_plan::region::{
    Binary, Extent, Fold, Instruction, Keep, LANES_OF_A_SUM, Number, ROWS_OF_A_SUM, Region, Unary,
};

use crate::region::functions::{Double, Own, Single as Functions};
use crate::region::programs::Array;

/// Functions of f32 with the instruction of the processor that runs the test.
type Single = Functions<Own>;

/// A value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar {
    F32(f32),
    F64(f64),
    Int(i128),
    Bool(bool),
}
use Scalar::{Bool, F32, F64, Int};

fn is_bool(dtype: DType) -> bool {
    dtype.is_bool()
}

pub(super) fn read(dtype: DType, bytes: &[u8]) -> Scalar {
    match dtype {
        DType::F32 | DType::Flex32 => F32(f32::from_ne_bytes(bytes.try_into().unwrap())),
        DType::F64 => F64(f64::from_ne_bytes(bytes.try_into().unwrap())),
        DType::F16 => F32(half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32()),
        DType::BF16 => F32(half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32()),
        DType::I64 => Int(i64::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::I32 => Int(i32::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::I16 => Int(i16::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::I8 => Int(i8::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::U64 => Int(u64::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::U32 => Int(u32::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::U16 => Int(u16::from_ne_bytes(bytes.try_into().unwrap()).into()),
        DType::U8 => Int(bytes[0].into()),
        DType::Bool(_) => Bool(bytes.iter().any(|byte| *byte != 0)),
        DType::Quantized(_) => unreachable!(),
    }
}

pub(super) fn write(dtype: DType, value: Scalar, to: &mut Vec<u8>) {
    match (dtype, value) {
        (DType::F16, F32(x)) => to.extend(half::f16::from_f32(x).to_ne_bytes()),
        (DType::BF16, F32(x)) => to.extend(half::bf16::from_f32(x).to_ne_bytes()),
        (_, F32(x)) => to.extend(x.to_ne_bytes()),
        (_, F64(x)) => to.extend(x.to_ne_bytes()),
        (_, Int(x)) => to.extend(&x.to_ne_bytes()[..dtype.size()]),
        (DType::Bool(BoolStore::U32), Bool(x)) => to.extend(u32::from(x).to_ne_bytes()),
        (_, Bool(x)) => to.push(u8::from(x)),
    }
}

/// A whole number as an integer type has it.
fn wrapped(dtype: DType, x: i128) -> i128 {
    match dtype {
        DType::I64 => (x as i64).into(),
        DType::I32 => (x as i32).into(),
        DType::I16 => (x as i16).into(),
        DType::I8 => (x as i8).into(),
        DType::U64 => (x as u64).into(),
        DType::U32 => (x as u32).into(),
        DType::U16 => (x as u16).into(),
        DType::U8 => (x as u8).into(),
        other => unreachable!("{other}"),
    }
}

fn saturated(dtype: DType, x: f64) -> i128 {
    match dtype {
        DType::I64 => (x as i64).into(),
        DType::I32 => (x as i32).into(),
        DType::I16 => (x as i16).into(),
        DType::I8 => (x as i8).into(),
        DType::U64 => (x as u64).into(),
        DType::U32 => (x as u32).into(),
        DType::U16 => (x as u16).into(),
        DType::U8 => (x as u8).into(),
        other => unreachable!("{other}"),
    }
}

fn rounded(dtype: DType, x: f32) -> Scalar {
    F32(match dtype {
        DType::F16 => half::f16::from_f32(x).to_f32(),
        DType::BF16 => half::bf16::from_f32(x).to_f32(),
        _ => x,
    })
}

fn cast(dtype: DType, value: Scalar) -> Scalar {
    match (dtype, value) {
        (DType::Bool(_), F32(x)) => Bool(x != 0.0),
        (DType::Bool(_), F64(x)) => Bool(x != 0.0),
        (DType::Bool(_), Int(x)) => Bool(x != 0),
        (DType::Bool(_), Bool(x)) => Bool(x),
        (DType::F64, F32(x)) => F64(x.into()),
        (DType::F64, F64(x)) => F64(x),
        (DType::F64, Int(x)) => F64(x as f64),
        (DType::F64, Bool(x)) => F64(u8::from(x).into()),
        (DType::F16, F64(x)) => F32(half::f16::from_f64(x).to_f32()),
        (DType::BF16, F64(x)) => F32(half::bf16::from_f64(x).to_f32()),
        (float, F64(x)) if float.is_float() => F32(x as f32),
        (float, F32(x)) if float.is_float() => rounded(float, x),
        (float, Int(x)) if float.is_float() => rounded(float, x as f32),
        (float, Bool(x)) if float.is_float() => F32(u8::from(x).into()),
        (int, F32(x)) => Int(saturated(int, x.into())),
        (int, F64(x)) => Int(saturated(int, x)),
        (int, Int(x)) => Int(wrapped(int, x)),
        (_, Bool(x)) => Int(x.into()),
    }
}

fn number(dtype: DType, number: Number) -> Scalar {
    let value = match number {
        Number::Float(x) => F64(x),
        Number::Int(x) => Int(x.into()),
        Number::UInt(x) => Int(x.into()),
    };
    cast(dtype, value)
}

fn unary(dtype: DType, op: Unary, value: Scalar) -> Scalar {
    macro_rules! float {
        ($x:expr, $type:ty, $($function:ident: $name:expr),*) => {
            match op {
                Unary::Neg => -$x,
                Unary::Abs => $x.abs(),
                Unary::Sign => if $x == 0.0 || $x.is_nan() { 0.0 } else { $x.signum() },
                Unary::Sqrt => $x.sqrt(),
                Unary::Recip => 1.0 / $x,
                Unary::Round => $x.round_ties_even(),
                Unary::Floor => $x.floor(),
                Unary::Ceil => $x.ceil(),
                Unary::Trunc => $x.trunc(),
                Unary::Sinh => Double::sinh($x.into()) as $type,
                Unary::Cosh => Double::cosh($x.into()) as $type,
                Unary::ArcSin => Double::asin($x.into()) as $type,
                Unary::ArcCos => Double::acos($x.into()) as $type,
                Unary::ArcTan => Double::atan($x.into()) as $type,
                Unary::ArcSinh => Double::asinh($x.into()) as $type,
                Unary::ArcCosh => Double::acosh($x.into()) as $type,
                Unary::ArcTanh => Double::atanh($x.into()) as $type,
                $(Unary::$function => $name($x),)*
                other => unreachable!("{other:?}"),
            }
        };
    }
    let angle =
        |x: f32, small: fn(f32) -> f32, any: fn(f64) -> f64| match x.abs() < Single::ANGLE_MAX {
            true => small(x),
            false => any(x.into()) as f32,
        };
    match (op, value) {
        (Unary::IsNan, F32(x)) => Bool(x.is_nan()),
        (Unary::IsNan, F64(x)) => Bool(x.is_nan()),
        (Unary::IsInf, F32(x)) => Bool(x.is_infinite()),
        (Unary::IsInf, F64(x)) => Bool(x.is_infinite()),
        (_, F32(x)) => rounded(
            dtype,
            float!(
                x, f32, Exp: Single::exp, Log: Single::log, Log1p: Single::log1p, Tanh: Single::tanh, Erf: Single::erf,
                Sigmoid: Single::sigmoid, Sin: |x| angle(x, Single::sin, Double::sin),
                Cos: |x| angle(x, Single::cos, Double::cos), Tan: |x| angle(x, Single::tan, Double::tan)
            ),
        ),
        (_, F64(x)) => F64(float!(
            x, f64, Exp: Double::exp, Log: Double::log, Log1p: Double::log1p, Tanh: Double::tanh, Erf: Double::erf,
            Sigmoid: Double::sigmoid, Sin: Double::sin, Cos: Double::cos, Tan: Double::tan
        )),
        (Unary::Not, Bool(x)) => Bool(!x),
        (Unary::Not, Int(x)) => Int(wrapped(dtype, !x)),
        (Unary::Neg, Int(x)) => Int(wrapped(dtype, -x)),
        (Unary::Abs, Int(x)) => Int(wrapped(dtype, x.abs())),
        (Unary::Sign, Int(x)) => Int(x.signum()),
        other => unreachable!("{other:?}"),
    }
}

fn compared(op: Binary, order: Option<std::cmp::Ordering>) -> bool {
    match op {
        Binary::Equal => order.is_some_and(|order| order.is_eq()),
        Binary::NotEqual => order.is_none_or(|order| order.is_ne()),
        Binary::Less => order.is_some_and(|order| order.is_lt()),
        Binary::LessEqual => order.is_some_and(|order| order.is_le()),
        Binary::Greater => order.is_some_and(|order| order.is_gt()),
        Binary::GreaterEqual => order.is_some_and(|order| order.is_ge()),
        other => unreachable!("{other:?}"),
    }
}

fn power(base: i128, exponent: i128) -> i128 {
    base.wrapping_pow(exponent as i64 as u32)
}

fn binary(dtype: DType, op: Binary, left: Scalar, right: Scalar) -> Scalar {
    macro_rules! float {
        ($x:expr, $y:expr, $pow:expr, $atan2:expr) => {
            match op {
                Binary::Add => $x + $y,
                Binary::Sub => $x - $y,
                Binary::Mul => $x * $y,
                Binary::Div => $x / $y,
                Binary::Rem => {
                    let rest = $x % $y;
                    if rest != 0.0 && (rest < 0.0) != ($y < 0.0) {
                        rest + $y
                    } else {
                        rest
                    }
                }
                Binary::Pow => $pow($x, $y),
                Binary::ArcTan2 => $atan2($x, $y),
                Binary::Max => {
                    if $x.is_nan() || $x > $y {
                        $x
                    } else {
                        $y
                    }
                }
                Binary::Min => {
                    if $x.is_nan() || $x < $y {
                        $x
                    } else {
                        $y
                    }
                }
                other => unreachable!("{other:?}"),
            }
        };
    }
    if is_bool(dtype)
        && !matches!(
            op,
            Binary::And | Binary::Or | Binary::Xor | Binary::Min | Binary::Max
        )
    {
        return Bool(match (left, right) {
            (F32(x), F32(y)) => compared(op, x.partial_cmp(&y)),
            (F64(x), F64(y)) => compared(op, x.partial_cmp(&y)),
            (Int(x), Int(y)) => compared(op, Some(x.cmp(&y))),
            (Bool(x), Bool(y)) => compared(op, Some(x.cmp(&y))),
            other => unreachable!("{other:?}"),
        });
    }
    let bits = dtype.size() as u32 * 8;
    match (left, right) {
        (F32(x), F32(y)) => rounded(
            dtype,
            float!(
                x,
                y,
                Single::pow,
                |x: f32, y: f32| Double::atan2(x.into(), y.into()) as f32
            ),
        ),
        (F64(x), F64(y)) => F64(float!(x, y, Double::pow, Double::atan2)),
        (Bool(x), Bool(y)) => Bool(match op {
            Binary::And | Binary::Min => x && y,
            Binary::Or | Binary::Max => x || y,
            Binary::Xor => x != y,
            other => unreachable!("{other:?}"),
        }),
        (Int(x), Int(y)) => Int(wrapped(
            dtype,
            match op {
                Binary::Add => x + y,
                Binary::Sub => x - y,
                Binary::Mul => x.wrapping_mul(y),
                Binary::Div => x / y,
                Binary::Rem => {
                    let rest = x % y;
                    if rest != 0 && (rest < 0) != (y < 0) {
                        rest + y
                    } else {
                        rest
                    }
                }
                Binary::Pow => power(x, y),
                Binary::Min => x.min(y),
                Binary::Max => x.max(y),
                Binary::And => x & y,
                Binary::Or => x | y,
                Binary::Xor => x ^ y,
                Binary::ShiftLeft => x.wrapping_shl(y.rem_euclid(bits.into()) as u32),
                Binary::ShiftRight => x >> y.rem_euclid(bits.into()),
                other => unreachable!("{other:?}"),
            },
        )),
        other => unreachable!("{other:?}"),
    }
}

fn neutral(dtype: DType, fold: Fold) -> Scalar {
    let [least, most] = match dtype {
        DType::F64 => [F64(f64::NEG_INFINITY), F64(f64::INFINITY)],
        float if float.is_float() => [F32(f32::NEG_INFINITY), F32(f32::INFINITY)],
        DType::Bool(_) => [Bool(false), Bool(true)],
        int => {
            let bits = int.size() * 8;
            let signed = matches!(int, DType::I8 | DType::I16 | DType::I32 | DType::I64);
            match signed {
                true => [Int(-(1 << (bits - 1))), Int((1 << (bits - 1)) - 1)],
                false => [Int(0), Int((1 << bits) - 1)],
            }
        }
    };
    match fold {
        Fold::Sum => cast(dtype, Int(0)),
        Fold::Prod => cast(dtype, Int(1)),
        Fold::Max => least,
        Fold::Min => most,
    }
}

/// The type that a fold is computed in, until it is rounded.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

fn pair(dtype: DType, fold: Fold, left: Scalar, right: Scalar) -> Scalar {
    let op = match fold {
        Fold::Sum => Binary::Add,
        Fold::Prod => Binary::Mul,
        Fold::Max => Binary::Max,
        Fold::Min => Binary::Min,
    };
    binary(wide(dtype), op, left, right)
}

fn folded(dtype: DType, fold: Fold, row: &[Scalar]) -> Scalar {
    let mut lanes = [neutral(dtype, fold); LANES_OF_A_SUM];
    for (index, x) in row.iter().enumerate() {
        let lane = &mut lanes[index % LANES_OF_A_SUM];
        *lane = pair(dtype, fold, *lane, *x);
    }
    for apart in [8, 4, 2, 1] {
        for lane in 0..apart {
            lanes[lane] = pair(dtype, fold, lanes[lane], lanes[lane + apart]);
        }
    }
    cast(dtype, lanes[0])
}

fn folded_over(dtype: DType, fold: Fold, column: &[Scalar]) -> Scalar {
    let add = |sum, x: &Scalar| pair(dtype, fold, sum, *x);
    let blocks = column.chunks(ROWS_OF_A_SUM);
    let sums = blocks.map(|block| block.iter().fold(neutral(dtype, fold), add));
    let sums: Vec<Scalar> = sums.collect();
    cast(dtype, sums.iter().fold(neutral(dtype, fold), add))
}

/// Runs a region, and returns the bytes of its results.
pub(super) fn run(region: &Region, operands: &[Array], scalars: &[Number]) -> Vec<Vec<u8>> {
    let (len, outer) = region.space.split_last().unwrap();
    let rows: usize = outer.iter().product();
    // A row without elements has a value of its own all the same.
    let width = (*len).max(1);
    let mut registers: Vec<Vec<Scalar>> = Vec::new();
    for (array, spans) in operands.iter().zip(&region.spans) {
        let mut values = Vec::new();
        for row in 0..rows {
            for column in 0..width {
                let mut at = array.offset as isize;
                let mut rest = row;
                for dim in (0..outer.len()).rev() {
                    let index = rest % outer[dim];
                    rest /= outer[dim];
                    at += if spans[dim] {
                        index as isize * array.strides[dim]
                    } else {
                        0
                    };
                }
                let dim = outer.len();
                let is_there = *len > 0 || !spans[dim];
                at += if spans[dim] {
                    column as isize * array.strides[dim]
                } else {
                    0
                };
                let size = array.dtype.size();
                values.push(match is_there {
                    true => read(array.dtype, &array.bytes[at as usize * size..][..size]),
                    false => cast(array.dtype, Int(1)),
                });
            }
        }
        registers.push(values);
    }
    let formula = &region.formula;
    for typed in &formula.instructions {
        let dtype = typed.dtype;
        let of = |register: u32, at: usize| registers[register as usize][at];
        let each = |f: &dyn Fn(usize) -> Scalar| (0..rows * width).map(f).collect::<Vec<_>>();
        let made = match typed.instruction {
            Instruction::Draw(_) => panic!("what is drawn is an operand here"),
            Instruction::Constant(value) => each(&|_| number(dtype, value)),
            Instruction::Scalar(scalar) => each(&|_| number(dtype, scalars[scalar as usize])),
            Instruction::Cast(x) => each(&|at| cast(dtype, of(x, at))),
            Instruction::Unary(op, x) => each(&|at| unary(dtype, op, of(x, at))),
            Instruction::Binary(op, x, y) => each(&|at| binary(dtype, op, of(x, at), of(y, at))),
            Instruction::Powi(x, y) => each(&|at| match (of(x, at), of(y, at)) {
                (Int(x), Int(y)) => Int(wrapped(dtype, power(x, y))),
                (x, y) => binary(dtype, Binary::Pow, x, cast(wide(dtype), y)),
            }),
            Instruction::Select {
                mask,
                on_true,
                on_false,
            } => each(&|at| match of(mask, at) {
                Bool(true) => of(on_true, at),
                _ => of(on_false, at),
            }),
            Instruction::Fold(fold, x) => {
                let row_of = |row: usize| {
                    let row = &registers[x as usize][row * width..][..*len];
                    folded(dtype, fold, row)
                };
                (0..rows).flat_map(|row| vec![row_of(row); width]).collect()
            }
            Instruction::AddAt { to, index, value } => each(&|at| match of(index, at) {
                Int(index) if index == (at % width) as i128 => {
                    binary(dtype, Binary::Add, of(to, at), of(value, at))
                }
                Int(_) => of(to, at),
                other => unreachable!("{other:?}"),
            }),
        };
        registers.push(made);
    }
    let keeps = formula.results.iter().zip(&region.keeps);
    let made = keeps.map(|(register, keep)| {
        let dtype = formula.dtype(*register);
        let values = &registers[*register as usize];
        let rows_of = |f: &dyn Fn(&[Scalar]) -> Scalar| {
            (0..rows)
                .map(|row| f(&values[row * width..][..width]))
                .collect::<Vec<_>>()
        };
        let kept: Vec<Scalar> = match keep {
            Keep::Each(Extent::Elements) if *len == 0 => Vec::new(),
            Keep::Each(Extent::Elements) => values.clone(),
            Keep::Each(Extent::Rows) => rows_of(&|row| row[0]),
            Keep::OverRows(fold) => (0..*len)
                .map(|column| {
                    let column: Vec<Scalar> =
                        (0..rows).map(|row| values[row * width + column]).collect();
                    folded_over(dtype, *fold, &column)
                })
                .collect(),
            Keep::OverAll(fold, extent) => {
                let sums: Vec<Scalar> = match extent {
                    Extent::Rows => rows_of(&|row| row[0]),
                    Extent::Elements => rows_of(&|row| folded(dtype, *fold, &row[..*len])),
                };
                vec![folded_over(dtype, *fold, &sums)]
            }
        };
        let mut bytes = Vec::new();
        for value in kept {
            write(dtype, value, &mut bytes);
        }
        bytes
    });
    made.collect()
}
