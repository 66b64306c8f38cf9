//! Scalar functions of the finite field, and regions of them.
//!
//! The functions have nothing of those that they stand for, but that each is another one: a formula that reads the
//! wrong value, or computes the wrong function, gives something else.

use super::interpret::{Array, PRIME, inverse};
use crate::ir::RegionTask;
use crate::ir::region::{Binary, Extent, Fold, Instruction, Keep, Number, ScalarOf, Typed, Unary};

/// The number that a scalar slot has in all tests.
pub(super) fn scalar(slot: u64) -> u64 {
    slot + 2
}

pub(super) fn unary(unary: Unary, x: u64) -> u64 {
    let made = match unary {
        Unary::Exp => x * x + 1,
        Unary::Neg => PRIME - x,
        Unary::Abs => x,
        Unary::Recip => inverse(x),
        // Different for each.
        other => x * x + (other as u64 + 3) * x + 5,
    };
    made % PRIME
}

pub(super) fn binary(binary: Binary, x: u64, y: u64) -> u64 {
    let made = match binary {
        Binary::Add => x + y,
        Binary::Sub => x + PRIME - y,
        Binary::Mul => x * y,
        Binary::Div => x * inverse(y),
        Binary::Min => x.min(y),
        Binary::Max => x.max(y),
        Binary::Equal => u64::from(x == y),
        Binary::NotEqual => u64::from(x != y),
        Binary::Less => u64::from(x < y),
        Binary::LessEqual => u64::from(x <= y),
        Binary::Greater => u64::from(x > y),
        Binary::GreaterEqual => u64::from(x >= y),
        // Different for each.
        other => x * x + (other as u64 + 2) * y,
    };
    made % PRIME
}

fn fold(fold: Fold, values: impl Iterator<Item = u64>) -> u64 {
    let folded = values.reduce(|x, y| match fold {
        Fold::Sum => (x + y) % PRIME,
        Fold::Prod => x * y % PRIME,
        Fold::Max => x.max(y),
        Fold::Min => x.min(y),
    });
    folded.expect("a region has elements")
}

fn number(number: Number) -> u64 {
    match number {
        Number::Float(value) => value as u64,
        Number::Int(value) => value as u64,
        Number::UInt(value) => value,
    }
}

/// Runs a region, one instruction after the other over the whole space. A value of rows is there for every element.
pub(super) fn run_region(task: &RegionTask, inputs: &[Array], draws: &[Array]) -> Vec<Array> {
    let region = &task.region;
    let extents = region.extents();
    let (rows, row_len) = (region.rows(), region.row_len());
    let elements = rows * row_len;
    let operands = inputs.iter().enumerate().map(|(index, input)| {
        let as_seen = input.clone().reshaped(&region.operand_shape(index));
        as_seen.expanded(&region.space).data
    });
    let mut values: Vec<Vec<u64>> = operands.collect();
    for Typed { instruction, .. } in &region.formula.instructions {
        let of = |register: u32, at: usize| values[register as usize][at];
        let each = |f: &dyn Fn(usize) -> u64| (0..elements).map(f).collect::<Vec<u64>>();
        let made = match *instruction {
            Instruction::Constant(of) => vec![number(of); elements],
            Instruction::Scalar(index) => {
                let value = match task.scalars[index as usize] {
                    ScalarOf::Number(of) => number(of),
                    ScalarOf::Slot(slot) => scalar(slot),
                };
                vec![value; elements]
            }
            Instruction::Draw(draw) => draws[draw as usize].data.clone(),
            Instruction::Cast(x) => values[x as usize].clone(),
            Instruction::Unary(f, x) => each(&|at| unary(f, of(x, at))),
            Instruction::Binary(f, x, y) => each(&|at| binary(f, of(x, at), of(y, at))),
            Instruction::Powi(x, y) => each(&|at| binary(Binary::Pow, of(x, at), of(y, at))),
            Instruction::Select {
                mask,
                on_true,
                on_false,
            } => each(&|at| match of(mask, at) {
                0 => of(on_false, at),
                _ => of(on_true, at),
            }),
            Instruction::Fold(f, x) => {
                let rows = values[x as usize].chunks(row_len);
                let folded = rows.flat_map(|row| vec![fold(f, row.iter().copied()); row_len]);
                folded.collect()
            }
            Instruction::AddAt { to, index, value } => each(&|at| {
                let added = match of(index, at) % row_len as u64 == (at % row_len) as u64 {
                    true => of(value, at),
                    false => 0,
                };
                binary(Binary::Add, of(to, at), added)
            }),
        };
        values.push(made);
    }
    let results = region.formula.results.iter().zip(&region.keeps).enumerate();
    let kept = results.map(|(index, (&result, keep))| {
        let value = &values[result as usize];
        let of_rows = || value.iter().step_by(row_len).copied();
        let data = match (*keep, extents[result as usize]) {
            (Keep::Each(Extent::Elements), _) => value.clone(),
            (Keep::Each(Extent::Rows), Extent::Rows) => of_rows().collect(),
            (Keep::Each(Extent::Rows) | Keep::OverAll(_, Extent::Rows), Extent::Elements) => {
                panic!("{task:?} keeps elements as rows")
            }
            (Keep::OverRows(f), _) => (0..row_len)
                .map(|column| fold(f, value[column..].iter().step_by(row_len).copied()))
                .collect(),
            (Keep::OverAll(f, Extent::Elements), _) => vec![fold(f, value.iter().copied())],
            (Keep::OverAll(f, Extent::Rows), Extent::Rows) => vec![fold(f, of_rows())],
        };
        let out = &task.outputs[index];
        let made = Array {
            shape: region.result_shape(index),
            data,
        };
        made.reshaped(&out.shape)
    });
    kept.collect()
}
