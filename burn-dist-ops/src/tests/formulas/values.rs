//! Results of formulas against those of Flex's own kernels.

use std::mem::MaybeUninit;

use burn_backend::DType;
use burn_dist_kernels::region::{Memory, Operand, Output, run};
use burn_dist_plan::region::{
    Extent, Fold, Formula, Instruction, Keep, Number, Pointwise, Region, ScalarOf,
};
use burn_ir::*;
use burn_std::BoolStore;

use super::super::execute::Map;
use super::{all, named, pointwise};
use crate::burn::data::*;
use crate::dtype::{of_burn, to_burn};
use crate::execute::execute;
use crate::samples::{BOOL, FLOAT, INT, inputs};
use crate::visit::kind_name;
use crate::{OpVisitor, visit_mut};

/// Gives the tensors of an operation other types.
struct Retype {
    float: DType,
    int: DType,
    bool: DType,
}

impl Retype {
    fn retype(&self, tensor: &mut TensorIr) {
        tensor.dtype = match tensor.dtype {
            FLOAT => self.float,
            INT => self.int,
            BOOL => self.bool,
            other => other,
        };
    }
}

impl OpVisitor for Retype {
    fn input(&mut self, tensor: &mut TensorIr) {
        self.retype(tensor);
    }
    fn output(&mut self, tensor: &mut TensorIr) {
        self.retype(tensor);
    }
}

/// Types that operations compute in.
fn types() -> Vec<Retype> {
    use DType::*;
    let bools = [BOOL, DType::Bool(BoolStore::U8)];
    let ints = [I64, I32, I16, I8, U64, U32, U16, U8];
    let floats = [F32, F64, F16, BF16, F32, F32, F32, F32];
    let types = floats.into_iter().zip(ints).enumerate();
    types
        .map(|(index, (float, int))| Retype {
            float,
            int,
            bool: bools[usize::from(index == 1)],
        })
        .collect()
}

/// Returns the region that an operation is alone.
fn region(op: &OperationIr, of: &Pointwise) -> Option<(Region, Vec<ScalarOf>)> {
    let shapes: Vec<Vec<usize>> = op.inputs().map(|tensor| tensor.shape.to_vec()).collect();
    let out = op.outputs().next()?;
    let (formula, scalars, keep) = match of {
        Pointwise::Formula { formula, scalars } => (formula.clone(), scalars.clone(), None),
        Pointwise::Reshape => return None,
        Pointwise::Sum { dims } => {
            let formula = Formula {
                operands: vec![of_burn(op.inputs().next()?.dtype)],
                instructions: Vec::new(),
                results: vec![0],
            };
            // Others are none of a region.
            let ndim = shapes[0].len();
            let keep = match dims.len() == ndim {
                true => Keep::OverAll(Fold::Sum, Extent::Elements),
                false if dims.iter().copied().eq(0..ndim - 1) => Keep::OverRows(Fold::Sum),
                false => return None,
            };
            (formula, Vec::new(), Some(keep))
        }
    };
    let mut all = shapes.clone();
    all.push(out.shape.to_vec());
    let ndim = all.iter().map(Vec::len).max()?;
    let aligned = |shape: &Vec<usize>| [vec![1; ndim - shape.len()], shape.clone()].concat();
    let all: Vec<Vec<usize>> = all.iter().map(aligned).collect();
    let whole = |dim: usize| all.iter().map(|shape| shape[dim]).max().unwrap_or(1);
    let dims: Vec<usize> = (0..ndim)
        .filter(|&dim| dim + 1 == ndim || whole(dim) > 1)
        .collect();
    let space: Vec<usize> = dims.iter().map(|dim| whole(*dim)).collect();
    let spans = |shape: &Vec<usize>| dims.iter().map(|&dim| shape[dim] == whole(dim)).collect();
    let is_of_rows = all[shapes.len()][ndim - 1] != whole(ndim - 1);
    let keep = keep.unwrap_or(Keep::Each(match is_of_rows {
        true => Extent::Rows,
        false => Extent::Elements,
    }));
    let region = Region {
        space,
        spans: all[..shapes.len()].iter().map(spans).collect(),
        formula,
        scalars: scalars.len() as u32,
        keeps: vec![keep],
    };
    Some((region, scalars))
}

/// Returns what the formula of an operation makes of data; `None` if it has none, or computes nothing.
fn by_formula(op: &OperationIr, data: &[TensorData]) -> Option<TensorData> {
    let (region, scalars) = region(op, &pointwise(op)?)?;
    let strides: Vec<Vec<isize>> = (0..data.len())
        .map(|index| {
            let spanned = region.space.iter().zip(&region.spans[index]);
            let mut stride = 1;
            let strides = spanned.rev().map(|(size, spans)| {
                let own = stride;
                stride *= if *spans { *size as isize } else { 1 };
                own
            });
            let mut strides: Vec<isize> = strides.collect();
            strides.reverse();
            strides
        })
        .collect();
    let mut operands: Vec<Operand<'_>> = (data.iter().zip(&strides))
        .map(|(data, strides)| Operand {
            memory: Memory::Shared(data.bytes()),
            offset: 0,
            strides,
        })
        .collect();
    let numbers: Vec<Number> = (scalars.iter())
        .map(|scalar| match scalar {
            ScalarOf::Number(number) => *number,
            ScalarOf::Slot(slot) => panic!("no run knows slot {slot}"),
        })
        .collect();
    let out = op.outputs().next()?;
    let bytes = out.shape.num_elements() * out.dtype.size();
    let mut made = vec![MaybeUninit::<u64>::uninit(); bytes.div_ceil(8)];
    let place: &mut [MaybeUninit<u8>] = bytes_of(&mut made, bytes);
    let mut outputs = [Output::New(place)];
    let ran = run(&region, &mut operands, &numbers, &mut outputs);
    ran.unwrap_or_else(|error| panic!("{op:?}: {error}"));
    // SAFETY: the run has written all bytes.
    let made = unsafe { std::slice::from_raw_parts(made.as_ptr().cast::<u8>(), bytes) }.to_vec();
    Some(TensorData::from_bytes_vec(
        made,
        out.shape.clone(),
        out.dtype,
    ))
}

fn bytes_of(words: &mut [MaybeUninit<u64>], bytes: usize) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the same memory, of which each byte is one that may be uninitialised.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), bytes) }
}

/// Returns the data of tensors in the type that they have: bools are made as those of Burn's default.
fn typed(op: &OperationIr, data: Vec<TensorData>) -> Vec<TensorData> {
    let tensors = data.into_iter().zip(op.inputs());
    tensors
        .map(|(data, tensor)| {
            let (bytes, shape, _) = data.into_parts();
            TensorData::from_bytes(bytes, shape, tensor.dtype)
        })
        .collect()
}

/// Returns what Flex makes of data.
fn by_flex(op: &OperationIr, data: &[TensorData]) -> TensorData {
    let mut env = Map::default();
    for (tensor, data) in op.inputs().zip(data) {
        env.set(tensor, data.clone());
    }
    execute::<burn_flex::Flex, _>(op, &mut env).unwrap();
    env.read(op.outputs().next().expect("a result"))
}

/// The largest error of a function of the library, in units in the last place, and of one rounding.
const LIBRARY: f64 = 1.0;
const ROUNDING: f64 = 0.5;
/// Two sums of up to 64 positive terms, in two orders: a rounding of each partial sum, to one side as often as to the
/// other, and half a unit of a sum is up to one of what it is compared in.
const SUMS: f64 = 2.0 * 8.0;

/// Returns the largest error of a function of ours, in units in the last place, as the guide of regions states it.
fn stated(name: &str, dtype: DType) -> Option<f64> {
    let of_f32 = match name {
        "exp" => 0.91,
        "sigmoid" => 1.97,
        "tanh" => 1.37,
        "erf" => 1.14,
        "log" | "log1p" | "sin" | "cos" | "tan" | "powf" | "powf_scalar" => 0.51,
        "sinh" | "cosh" | "asin" | "acos" | "atan" | "asinh" | "acosh" | "atanh" | "atan2" => 1.0,
        _ => return None,
    };
    Some(match dtype {
        DType::F64 => 1.5,
        _ => of_f32,
    })
}

/// Returns by how many units in the last place of the larger one what a formula makes and what Flex does may differ:
/// the sum of the errors of both. Zero of what IEEE defines.
fn units(op: &OperationIr, dtype: DType) -> f64 {
    let name = kind_name(op);
    let library = match (name, dtype) {
        (_, DType::F64) => 1.5,
        // Hyperbolic functions of C's library; a sigmoid is an exponential, a sum and a quotient.
        ("sinh" | "cosh" | "tanh" | "asinh" | "acosh" | "atanh" | "log1p" | "sigmoid", _) => {
            2.0 * LIBRARY
        }
        _ => LIBRARY,
    };
    if let Some(own) = stated(name, dtype) {
        return (own + library).min(3.0);
    }
    match name {
        // Products of few factors in the library, a function of ours.
        "powi" | "powi_scalar" => 3.0,
        // Composed of some of those, and a few roundings.
        "gelu" | "gelu_backward" | "log_sigmoid" | "log_sigmoid_backward" | "custom" => 8.0,
        "sum" | "sum_dim" | "sum_dims" | "mean" | "mean_dim" | "prod" | "prod_dim" => SUMS,
        // An exponential over a sum of some: a difference before, a quotient after, on both sides.
        "softmax" | "softmin" => 0.91 + LIBRARY + SUMS + 4.0 * ROUNDING,
        // Sums of squares of what is left of a sum.
        "log_softmax" | "layer_norm" | "batch_norm" => 4.0 * SUMS,
        _ => 0.0,
    }
}

/// The least normal number of the smallest type.
const LEAST: f64 = 6.103515625e-5;

/// Returns how large the terms are that results are sums of: their errors are those of the sum, however small it is.
fn scale(op: &OperationIr) -> f64 {
    match kind_name(op) {
        "layer_norm" | "batch_norm" | "log_softmax" => 1.0,
        _ => LEAST,
    }
}

/// Returns how far two results are apart, in units in the last place of the larger one, or of the least that counts;
/// NaN is equal to NaN.
fn apart(found: &TensorData, expected: &TensorData, least: f64) -> f64 {
    let bits = match found.dtype() {
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F32 => 24,
        DType::F64 => 53,
        _ => {
            return if found.bytes() == expected.bytes() {
                0.0
            } else {
                f64::INFINITY
            };
        }
    };
    let pairs = found.iter::<f64>().zip(expected.iter::<f64>());
    let apart = pairs.map(|(a, b)| {
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
            return 0.0;
        }
        if a == b && a != 0.0 {
            return 0.0;
        }
        if a.is_nan() || b.is_nan() || a.is_infinite() || b.is_infinite() {
            return f64::INFINITY;
        }
        let largest = a.abs().max(b.abs()).max(least);
        let unit = 2f64.powi(largest.log2().floor() as i32 + 1 - bits);
        // Zeros of both signs are some way apart.
        ((a - b).abs() / unit).max(0.1)
    });
    apart.fold(0.0, f64::max)
}

/// Runs every operation that has a formula in every type, by it and by Flex, and returns those that differ.
fn differences(
    data: impl Fn(&OperationIr, u64) -> Option<Vec<TensorData>>,
) -> (usize, Vec<String>) {
    let (mut compared, mut differences) = (0, Vec::new());
    for sample in all() {
        for mut types in types() {
            let mut op = sample.clone();
            visit_mut(&mut op, &mut types);
            for seed in 0..2 {
                let Some(data) = data(&op, seed) else {
                    continue;
                };
                let data = typed(&op, data);
                let Some(found) = by_formula(&op, &data) else {
                    continue;
                };
                let expected = by_flex(&op, &data);
                assert_eq!(
                    (found.shape(), found.dtype()),
                    (expected.shape(), expected.dtype())
                );
                let units_apart = apart(&found, &expected, scale(&op));
                // Numbers of 16 bits that are not quite the same may be rounded away from each other.
                let units = units(&op, found.dtype());
                let allowed = match found.dtype() {
                    DType::F16 | DType::BF16 => units.min(1.0),
                    _ => units,
                };
                compared += 1;
                if units_apart > allowed {
                    let types: Vec<DType> = op.inputs().map(|tensor| tensor.dtype).collect();
                    differences.push(format!(
                        "{} of {types:?}: {units_apart} units apart, {allowed} allowed: {found:?}, not {expected:?} of \
                         {data:?}",
                        named(&op),
                    ));
                    break;
                }
            }
        }
    }
    (compared, differences)
}

fn check((compared, differences): (usize, Vec<String>), at_least: usize) {
    let text = differences.join("\n");
    assert!(
        differences.is_empty(),
        "{} differ:\n{text}",
        differences.len()
    );
    assert!(compared > at_least, "compared only {compared}");
}

#[test]
fn every_formula_computes_what_flex_does() {
    check(differences(|op, seed| Some(inputs(op, seed))), 1500);
}

/// Numbers at the ends of a type, and what is no number.
fn special(dtype: DType, seed: u64) -> Vec<f64> {
    let limits = match dtype {
        DType::F16 => [65504.0, 2f64.powi(-24), 2f64.powi(-14)],
        DType::BF16 | DType::F32 => [f32::MAX.into(), 2f64.powi(-133), f32::MIN_POSITIVE.into()],
        _ => [f64::MAX, 2f64.powi(-1074), f64::MIN_POSITIVE],
    };
    let [most, least, normal] = limits;
    let mut all = vec![
        0.0,
        -0.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        most,
        -most,
        least,
        -least,
        normal,
        0.5,
        1.5,
        2.5,
        -0.5,
        -2.5,
        1.0,
        -1.0,
        3.0,
        100.0,
        -100.0,
        20000.0,
        1e-3,
        -7.0,
    ];
    let turned = seed as usize * 7 % all.len();
    all.rotate_left(turned);
    all
}

/// Returns special values for the floats of an operation on single elements; `None` for others.
fn special_inputs(op: &OperationIr, seed: u64) -> Option<Vec<TensorData>> {
    let folds = |of: Pointwise| match of {
        Pointwise::Formula { formula, .. } => {
            let mut instructions = formula.instructions.iter();
            instructions.any(|typed| matches!(typed.instruction, Instruction::Fold(..)))
        }
        Pointwise::Reshape | Pointwise::Sum { .. } => true,
    };
    if folds(pointwise(op)?) {
        return None;
    }
    let data = inputs(op, seed);
    let special = data
        .into_iter()
        .zip(op.inputs())
        .enumerate()
        .map(|(index, (data, tensor))| {
            if !tensor.dtype.is_float() {
                return data;
            }
            let values = special(tensor.dtype, 3 * seed + 5 * index as u64);
            let values = values.into_iter().cycle().take(tensor.shape.num_elements());
            TensorData::new(values.collect::<Vec<f64>>(), tensor.shape.clone())
                .convert_dtype(tensor.dtype)
        });
    Some(special.collect())
}

#[test]
fn what_is_no_number_is_as_flex_has_it() {
    check(differences(special_inputs), 500);
}

#[test]
fn casts_of_every_type_to_every_type() {
    use DType::*;
    let types = [
        F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL,
    ];
    let mut differences = Vec::new();
    for from in types {
        for to in types {
            let tensor = |id: u64, dtype| TensorIr {
                status: TensorStatus::ReadOnly,
                ..TensorIr::uninit(TensorId::new(id), [46].into(), dtype)
            };
            let cast = BaseOperationIr::Cast(CastOpIr {
                input: tensor(0, from),
                out: tensor(1, to),
            });
            let op = match from {
                BOOL => OperationIr::BaseBool(cast),
                from if from.is_float() => OperationIr::BaseFloat(cast),
                _ => OperationIr::BaseInt(cast),
            };
            let data = match from {
                BOOL => {
                    let bools = (0..46).map(|index| index % 3 == 0);
                    TensorData::new(bools.collect::<Vec<bool>>(), [46])
                }
                from if from.is_float() => {
                    let values = special(from, 0).into_iter().cycle().take(46);
                    TensorData::new(values.collect::<Vec<f64>>(), [46]).convert_dtype(from)
                }
                _ => {
                    // Those with all bits, with the first one alone, and some between.
                    let byte = |index: usize| match index / from.size() % 4 {
                        0 => 0xff,
                        1 => 0,
                        2 => [0, 0x80][usize::from(index % from.size() == from.size() - 1)],
                        _ => (index * 37 % 251) as u8,
                    };
                    let bytes = (0..46 * from.size()).map(byte).collect();
                    TensorData::from_bytes_vec(bytes, [46], from)
                }
            };
            let data = [data];
            let found = by_formula(&op, &data).unwrap_or_else(|| data[0].clone());
            let expected = by_flex(&op, &data);
            if apart(&found, &expected, LEAST) > 0.0 {
                differences.push(format!(
                    "{from:?} to {to:?}: {found:?}, not {expected:?} of {data:?}"
                ));
            }
        }
    }
    check((types.len(), differences), 0);
    assert_eq!(to_burn(of_burn(F32)), F32);
}
