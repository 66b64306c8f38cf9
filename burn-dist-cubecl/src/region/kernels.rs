//! The kernels: each unrolls a formula, whose values are bits.

#![allow(
    clippy::needless_range_loop,
    reason = "CubeCL unrolls loops over ranges alone"
)]

use burn_dist_plan::region::{Extent, Fold, LANES_OF_A_SUM, ROWS_OF_A_SUM};
use cubecl::prelude::*;

use super::code::{Code, Kind, LEN, ROWS, Source, Step, Store, What};
use super::draws::drawn;
use super::steps::{element, made, neutral, pair, rounded, stored_bits};
use crate::dialect::{Buffer, Buffers, Shared, read, shared, write};

/// Units that fold a row.
pub(super) const LANES: usize = LANES_OF_A_SUM;
/// Rows of a cube.
pub(super) const ROWS_AT_ONCE: usize = 4;

/// Returns where the rows of each operand begin, and how far their numbers are from the first of each draw.
#[cube]
fn begins(numbers: &Sequence<u32>, row: usize, #[comptime] code: &Code) -> Sequence<usize> {
    let mut begins = Sequence::<usize>::new();
    let operands = comptime!(code.places.operands);
    let outer = comptime!(code.places.outer);
    #[unroll]
    for operand in 0..operands {
        let mut begin = 0usize;
        let mut rest = row;
        #[unroll]
        for step in 0..outer {
            // The inner dims first.
            let dim = comptime!(outer - 1 - step);
            let stride = *numbers.index(comptime!(code.places.stride(operand, dim)));
            if comptime!(dim == 0) {
                begin += rest * stride as usize;
            } else {
                let size = *numbers.index(comptime!(code.places.size(dim))) as usize;
                begin += rest % size * stride as usize;
                rest /= size;
            }
        }
        begins.push(begin);
    }
    begins
}

/// Returns an element of an operand, or draws it.
#[cube]
fn load(
    inputs: &Buffers,
    begins: &Sequence<usize>,
    numbers: &Sequence<u32>,
    column: usize,
    #[comptime] code: &Code,
    #[comptime] index: usize,
) -> u32 {
    match comptime!(code.values[index].source.clone()) {
        Source::Operand { buffer, stored } => {
            let begin = *begins.index(buffer);
            let apart = *numbers.index(comptime!(code.places.last(buffer))) as usize;
            let is_of_elements = comptime!(code.values[index].extent == Extent::Elements);
            let at = if comptime!(is_of_elements) {
                begin + column * apart
            } else {
                begin
            };
            let word = read(inputs, buffer, at / comptime!(stored.per_word));
            element(word, at, stored)
        }
        Source::Drawn {
            draw,
            law,
            numbers: own,
        } => {
            let apart = *numbers.index(comptime!(code.places.last(draw))) as usize;
            let apart = *begins.index(draw) + column * apart;
            let bits = drawn(apart, numbers, own, law);
            rounded(bits, numbers, comptime!(code.values[index].kind))
        }
        _ => panic!("no operand"),
    }
}

/// Returns the values, those of rows that are known once some folds are made with what is new of them.
#[cube]
fn of_rows(
    known: &Sequence<u32>,
    inputs: &Buffers,
    begins: &Sequence<usize>,
    numbers: &Sequence<u32>,
    #[comptime] code: &Code,
    #[comptime] phase: usize,
) -> Sequence<u32> {
    let mut values = Sequence::<u32>::new();
    let count = comptime!(code.values.len());
    #[unroll]
    for index in 0..count {
        let value = comptime!(code.values[index].clone());
        let is_new = comptime!(value.phase == phase && value.extent == Extent::Rows);
        match comptime!((value.source.clone(), is_new)) {
            (Source::Operand { .. }, true) => {
                values.push(load(inputs, begins, numbers, 0usize, code, index));
            }
            (Source::Step(step), true) => {
                if comptime!(matches!(step.what, What::Fold(_))) {
                    values.push(*known.index(index));
                } else {
                    let value = made(&values, numbers, step);
                    values.push(value);
                }
            }
            _ => {
                if comptime!(phase == 0) {
                    values.push(0u32.runtime());
                } else {
                    values.push(*known.index(index));
                }
            }
        }
    }
    values
}

/// Returns the values, those of an element among them that are needed.
#[cube]
fn of_element(
    known: &Sequence<u32>,
    inputs: &Buffers,
    begins: &Sequence<usize>,
    numbers: &Sequence<u32>,
    column: usize,
    #[comptime] code: &Code,
    #[comptime] needed: Vec<bool>,
) -> Sequence<u32> {
    let mut values = Sequence::<u32>::new();
    let count = comptime!(code.values.len());
    #[unroll]
    for index in 0..count {
        let is_needed = comptime!(needed[index]);
        match comptime!((code.values[index].source.clone(), is_needed)) {
            (Source::Operand { .. } | Source::Drawn { .. }, true) => {
                values.push(load(inputs, begins, numbers, column, code, index));
            }
            (Source::Step(step), true) => {
                let value = made(&values, numbers, step);
                values.push(value);
            }
            _ => values.push(*known.index(index)),
        }
    }
    values
}

/// A unit makes as many elements as are in a word of each result, or as many values of rows, where the space has rows
/// of one.
#[cube(launch)]
pub(super) fn elements(
    inputs: &Buffers,
    outputs: &mut Buffers,
    numbers: &Sequence<u32>,
    #[comptime] code: Code,
) {
    let len = *numbers.index(LEN) as usize;
    let total = *numbers.index(ROWS) as usize * len;
    let per_unit = comptime!(code.per_unit);
    let first = ABSOLUTE_POS * per_unit;
    if first < total {
        let results = comptime!(
            code.stores
                .iter()
                .map(|store| store.value)
                .collect::<Vec<_>>()
        );
        let needed = comptime!(code.elements_of(&results));
        let mut parts = Sequence::<Sequence<u32>>::new();
        #[unroll]
        for part in 0..per_unit {
            // What fills the last word is no element.
            let at = select(first + part < total, first + part, total - 1);
            let row = at / len;
            let begins = begins(numbers, row, &code);
            let none = Sequence::<u32>::new();
            let rows = of_rows(&none, inputs, &begins, numbers, &code, 0usize);
            let values = of_element(
                &rows,
                inputs,
                &begins,
                numbers,
                at % len,
                &code,
                comptime!(needed.clone()),
            );
            parts.push(values);
        }
        let count = comptime!(code.stores.len());
        #[unroll]
        for output in 0..count {
            let store = comptime!(code.stores[output]);
            let per_word = comptime!(store.stored.per_word);
            #[unroll]
            for word in 0..comptime!(per_unit / per_word) {
                let mut bits = 0u32;
                #[unroll]
                for part in 0..per_word {
                    let values = parts.index(comptime!(word * per_word + part));
                    let value = stored_bits(*values.index(store.value), store.stored);
                    bits |= value << comptime!((part * 32 / per_word) as u32);
                }
                if first + comptime!(word * per_word) < total {
                    write(outputs, output, first / per_word + word, bits);
                }
            }
        }
    }
}

/// Units fold a row: lane i takes the elements i, i + 16, ... in order. What comes of a row is of the next phase, and
/// elements are computed again for each fold, and for the results.
#[cube(launch)]
pub(super) fn rows(
    inputs: &Buffers,
    outputs: &mut Buffers,
    numbers: &Sequence<u32>,
    #[comptime] code: Code,
) {
    let len = *numbers.index(LEN) as usize;
    let rows = *numbers.index(ROWS) as usize;
    let unit = UNIT_POS as usize;
    let lane = unit % LANES;
    let asked = CUBE_POS * ROWS_AT_ONCE + unit / LANES;
    let is_row = asked < rows;
    // All units of a cube meet at barriers.
    let row = select(is_row, asked, rows - 1);
    let begins = begins(numbers, row, &code);
    let mut lanes = shared::<u32>(comptime!(LANES * ROWS_AT_ONCE));
    let known = through(
        inputs,
        &begins,
        numbers,
        &mut lanes,
        lane,
        len,
        &code,
        comptime!(code.phases()),
    );
    let of_rows = comptime!(code.stores_of(Extent::Rows));
    #[unroll]
    for at in 0..comptime!(of_rows.len()) {
        let output = comptime!(of_rows[at]);
        let store = comptime!(code.stores[output]);
        if is_row && lane == 0 {
            let value = stored_bits(*known.index(store.value), store.stored);
            write(outputs, output, row, value);
        }
    }
    let of_elements = comptime!(code.stores_of(Extent::Elements));
    if comptime!(!of_elements.is_empty()) {
        let results = comptime!(
            of_elements
                .iter()
                .map(|output| code.stores[*output].value)
                .collect::<Vec<_>>()
        );
        let needed = comptime!(code.elements_of(&results));
        let mut column = lane;
        while column < len {
            let values = of_element(
                &known,
                inputs,
                &begins,
                numbers,
                column,
                &code,
                comptime!(needed.clone()),
            );
            #[unroll]
            for at in 0..comptime!(of_elements.len()) {
                let output = comptime!(of_elements[at]);
                let store = comptime!(code.stores[output]);
                if is_row {
                    let value = stored_bits(*values.index(store.value), store.stored);
                    write(outputs, output, row * len + column, value);
                }
            }
            column += LANES;
        }
    }
}

/// Returns the values of a row that are known once the folds of some phases are made.
#[cube]
fn through(
    inputs: &Buffers,
    begins: &Sequence<usize>,
    numbers: &Sequence<u32>,
    lanes: &mut Shared<u32>,
    lane: usize,
    len: usize,
    #[comptime] code: &Code,
    #[comptime] phases: usize,
) -> Sequence<u32> {
    if comptime!(phases == 0) {
        let none = Sequence::<u32>::new();
        of_rows(&none, inputs, begins, numbers, code, 0usize)
    } else {
        let before = comptime!(phases - 1);
        let known = through(inputs, begins, numbers, lanes, lane, len, code, before);
        let folds = comptime!(code.folds(before));
        let mut made = Sequence::<u32>::new();
        #[unroll]
        for at in 0..comptime!(folds.len()) {
            let index = comptime!(folds[at]);
            let sum = fold(
                &known, inputs, begins, numbers, lanes, lane, len, code, index,
            );
            made.push(sum);
        }
        let known = with_folds(&known, &made, folds);
        of_rows(&known, inputs, begins, numbers, code, phases)
    }
}

/// Returns values with what folds have made.
#[cube]
fn with_folds(
    known: &Sequence<u32>,
    made: &Sequence<u32>,
    #[comptime] folds: Vec<usize>,
) -> Sequence<u32> {
    let mut values = Sequence::<u32>::new();
    #[unroll]
    for index in 0..known.len() {
        match comptime!(folds.iter().position(|fold| *fold == index)) {
            Some(at) => values.push(*made.index(at)),
            None => values.push(*known.index(index)),
        }
    }
    values
}

/// Returns the elements of a row, folded.
#[cube]
fn fold(
    known: &Sequence<u32>,
    inputs: &Buffers,
    begins: &Sequence<usize>,
    numbers: &Sequence<u32>,
    lanes: &mut Shared<u32>,
    lane: usize,
    len: usize,
    #[comptime] code: &Code,
    #[comptime] index: usize,
) -> u32 {
    match comptime!(code.values[index].source.clone()) {
        Source::Step(step) => {
            let (fold, kind, of) = comptime!(parts(&step));
            let needed = comptime!(code.elements_of(&[of]));
            let mut sum = neutral(numbers, fold, kind);
            let mut column = lane;
            while column < len {
                let values = of_element(
                    known,
                    inputs,
                    begins,
                    numbers,
                    column,
                    code,
                    comptime!(needed.clone()),
                );
                sum = pair(sum, *values.index(of), numbers, fold, kind);
                column += LANES;
            }
            lanes[UNIT_POS as usize] = sum;
            sync_cube();
            let first = UNIT_POS as usize - lane;
            let sum = tree(&*lanes, numbers, first, 0usize, 1usize, fold, kind);
            sync_cube();
            rounded(sum, numbers, kind)
        }
        _ => panic!("no fold"),
    }
}

/// Returns a fold, the type of what it folds, and that.
fn parts(step: &Step) -> (Fold, Kind, usize) {
    match step.what {
        What::Fold(fold) => (fold, step.kind, step.reads[0]),
        _ => panic!("no fold"),
    }
}

/// Returns a lane with those that are folded into it: the ones 8 apart, 4, 2 and 1.
#[cube]
fn tree(
    lanes: &Shared<u32>,
    numbers: &Sequence<u32>,
    first: usize,
    #[comptime] lane: usize,
    #[comptime] apart: usize,
    #[comptime] fold: Fold,
    #[comptime] kind: Kind,
) -> u32 {
    if comptime!(apart == LANES) {
        lanes[first + lane]
    } else {
        let left = tree(
            lanes,
            numbers,
            first,
            lane,
            comptime!(apart * 2),
            fold,
            kind,
        );
        let right = tree(
            lanes,
            numbers,
            first,
            comptime!(lane + apart),
            comptime!(apart * 2),
            fold,
            kind,
        );
        pair(left, right, numbers, fold, kind)
    }
}

/// A unit folds one column of a block of rows.
#[cube(launch)]
pub(super) fn blocks(
    inputs: &Buffers,
    outputs: &mut Buffers,
    numbers: &Sequence<u32>,
    #[comptime] code: Code,
    #[comptime] fold: Fold,
    #[comptime] kind: Kind,
) {
    let len = *numbers.index(LEN) as usize;
    let rows = *numbers.index(ROWS) as usize;
    let block = ABSOLUTE_POS / len;
    let column = ABSOLUTE_POS % len;
    let first = block * ROWS_OF_A_SUM;
    if first < rows {
        let store = comptime!(code.stores[0]);
        let needed = comptime!(code.elements_of(&[store.value]));
        let end = select(first + ROWS_OF_A_SUM < rows, first + ROWS_OF_A_SUM, rows);
        let mut sum = neutral(numbers, fold, kind);
        for row in first..end {
            let begins = begins(numbers, row, &code);
            let none = Sequence::<u32>::new();
            let of_row = of_rows(&none, inputs, &begins, numbers, &code, 0usize);
            let values = of_element(
                &of_row,
                inputs,
                &begins,
                numbers,
                column,
                &code,
                comptime!(needed.clone()),
            );
            sum = pair(sum, *values.index(store.value), numbers, fold, kind);
        }
        write(outputs, 0usize, ABSOLUTE_POS, sum);
    }
}

/// A unit folds what blocks have made of a column.
#[cube(launch)]
pub(super) fn columns(
    sums: &Buffer<u32>,
    out: &mut Buffer<u32>,
    numbers: &Sequence<u32>,
    #[comptime] store: Store,
    #[comptime] fold: Fold,
    #[comptime] kind: Kind,
) {
    let len = *numbers.index(LEN) as usize;
    if ABSOLUTE_POS < len {
        let blocks = *numbers.index(ROWS) as usize;
        let mut sum = neutral(numbers, fold, kind);
        for block in 0..blocks {
            sum = pair(sum, sums[block * len + ABSOLUTE_POS], numbers, fold, kind);
        }
        let sum = rounded(sum, numbers, kind);
        out[ABSOLUTE_POS] = stored_bits(sum, store.stored);
    }
}
