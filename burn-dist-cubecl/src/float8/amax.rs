//! Absolute maxima. In bits without a sign, floats are in the order of integers and NaN is larger than all: a maximum of
//! integers is exact in any order, and NaN survives it.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::tiles::Tiles;
use crate::dialect::{Buffer, Client, array, part, shared};
use crate::element::{Element, widen};
use crate::launch::{Elements, assert_counted, cubes};

/// How many cubes read one tensor, at most.
const CUBES: usize = 1024;
/// How many rows a unit reads, where there are enough columns for all.
const ROWS: usize = 128;
/// How many words a unit reads at once.
pub(super) const WORDS: usize = 4;
/// Units of a cube.
const UNITS: u32 = 256;

/// Returns the largest absolute value of what is read at once: of whole words, or of one element.
#[cube]
fn largest<N: Size>(
    input: &Buffer<Vector<u32, N>>,
    item: usize,
    #[comptime] element: Element,
) -> u32 {
    let words = N::value();
    let per_word = comptime!(element.per_word());
    let mut max = 0u32;
    if comptime!(words == 1) {
        let word = part(input[item / per_word], 0usize);
        max = widen(word, (item % per_word) as u32, element) & 0x7fff_ffffu32;
    } else {
        let read = input[item];
        #[unroll]
        for word in 0..words {
            #[unroll]
            for index in 0..per_word {
                let value = widen(part(read, word), index as u32, element) & 0x7fff_ffffu32;
                max = select(value > max, value, max);
            }
        }
    }
    max
}

/// The maxima of pieces of rows. A row has `items`, and pieces of `length` of them; a cube takes one.
#[cube(launch)]
pub(crate) fn amax_rows<N: Size>(
    input: &Buffer<Vector<u32, N>>,
    out: &mut Buffer<u32>,
    items: usize,
    length: usize,
    #[comptime] element: Element,
    #[comptime] units: u32,
) {
    if CUBE_POS < out.len() {
        let pieces = items.div_ceil(length);
        let start = CUBE_POS / pieces * items;
        let first = start + CUBE_POS % pieces * length;
        let end = start + items;
        let last = select(first + length < end, first + length, end);

        let mut max = 0u32;
        let mut item = first + UNIT_POS as usize;
        while item < last {
            let value = largest::<N>(input, item, element);
            max = select(value > max, value, max);
            item += comptime!(units as usize);
        }
        let mut shared = shared::<u32>(comptime!(units as usize));
        shared[UNIT_POS as usize] = max;
        let mut half = comptime!(units / 2).runtime();
        while half > 0u32 {
            sync_cube();
            if UNIT_POS < half {
                let other = shared[(UNIT_POS + half) as usize];
                let own = shared[UNIT_POS as usize];
                shared[UNIT_POS as usize] = select(other > own, other, own);
            }
            half /= 2u32;
        }
        if UNIT_POS == 0 {
            out[CUBE_POS] = shared[0];
        }
    }
}

/// The maxima of columns of stacks of rows. A matrix has `height` rows of `items`, and stacks of `length` rows; a unit
/// takes the columns of one item.
#[cube(launch)]
pub(crate) fn amax_columns<N: Size>(
    input: &Buffer<Vector<u32, N>>,
    out: &mut Buffer<u32>,
    height: usize,
    items: usize,
    length: usize,
    #[comptime] element: Element,
) {
    let words = N::value();
    let per_word = comptime!(element.per_word());
    let per_item = comptime!(if words == 1 { 1 } else { words * per_word });
    let columns = items * per_item;
    if ABSOLUTE_POS * per_item < out.len() {
        let item = ABSOLUTE_POS % items;
        let stack = ABSOLUTE_POS / items;
        let stacks = height.div_ceil(length);
        let start = stack / stacks * height;
        let first = start + stack % stacks * length;
        let end = start + height;
        let last = select(first + length < end, first + length, end);

        let mut maxima = Array::<u32>::new(per_item);
        #[unroll]
        for column in 0..per_item {
            maxima[column] = 0u32;
        }
        for row in first..last {
            if comptime!(words == 1) {
                let value = largest::<N>(input, row * items + item, element);
                maxima[0] = select(value > maxima[0], value, maxima[0]);
            } else {
                let read = input[row * items + item];
                #[unroll]
                for column in 0..per_item {
                    let word = part(read, comptime!(column / per_word));
                    let index = comptime!((column % per_word) as u32);
                    let value = widen(word, index, element) & 0x7fff_ffffu32;
                    maxima[column] = select(value > maxima[column], value, maxima[column]);
                }
            }
        }
        #[unroll]
        for column in 0..per_item {
            out[stack * columns + item * per_item + column] = maxima[column];
        }
    }
}

/// Returns the absolute maximum of each rectangle in f32, zero of none. NaN if any is.
///
/// Maxima of rows or of columns come first, of pieces where there are few; then the maxima of these.
///
/// # Panics
/// If there are 2^32 elements or more.
pub fn amax<C: Client>(client: &C, input: &Elements, tiles: Tiles) -> Handle {
    assert_counted(tiles.num_elements());
    let scales = tiles.num_scales();
    if tiles.num_elements() == 0 {
        return client
            .cubecl()
            .create_from_slice(&vec![0; scales * size_of::<f32>()]);
    }
    let Tiles {
        count,
        height,
        width,
        tile_height,
        tile_width,
    } = tiles;
    let is_whole = tile_height >= height && tile_width >= width && count == 1;
    let (height, tile_height, width, tile_width) = match is_whole {
        // One row.
        true => (1, 1, height * width, height * width),
        false => (
            height,
            tile_height.min(height),
            width,
            tile_width.min(width),
        ),
    };
    if tile_height == 1 {
        // Enough pieces to keep a device busy, where rows alone are too few.
        let rows = count * height;
        let pieces = (CUBES / rows).clamp(1, tile_width.div_ceil(4096));
        if pieces > 1 && tile_width >= width {
            let length = width.div_ceil(pieces).next_multiple_of(WORDS * 2);
            let partial = rows_amax(client, input, rows, width, length);
            return rows_amax(
                client,
                &f32s(partial),
                rows,
                width.div_ceil(length),
                usize::MAX,
            );
        }
        return rows_amax(client, input, rows, width, tile_width);
    }
    let columns = columns_amax(client, input, count, height, width, tile_height);
    match tile_width {
        1 => columns,
        _ => {
            let rows = count * height.div_ceil(tile_height);
            rows_amax(client, &f32s(columns), rows, width, tile_width)
        }
    }
}

fn f32s(handle: Handle) -> Elements {
    Elements {
        handle,
        element: Element::F32,
    }
}

/// Returns how many elements are read at once, if all of `sizes` are multiples.
pub(super) fn elements_at_once(element: Element, sizes: &[usize]) -> usize {
    let vector = WORDS * element.per_word();
    match sizes.iter().all(|size| size.is_multiple_of(vector)) {
        true => vector,
        false => 1,
    }
}

/// Returns the maxima of pieces of `length` elements of each row.
fn rows_amax<C: Client>(
    client: &C,
    input: &Elements,
    rows: usize,
    width: usize,
    length: usize,
) -> Handle {
    let length = length.min(width);
    let at_once = match length == width {
        true => elements_at_once(input.element, &[width]),
        false => elements_at_once(input.element, &[width, length]),
    };
    let pieces = rows * width.div_ceil(length);
    let units = match length / at_once {
        ..=128 => 32,
        _ => UNITS,
    };
    let words = (rows * width).div_ceil(input.element.per_word());
    let out = client.cubecl().empty(pieces * size_of::<f32>());
    amax_rows::launch(
        client.cubecl(),
        cubes(pieces),
        CubeDim::new_1d(units),
        if at_once == 1 { 1 } else { WORDS },
        array(&input.handle, words),
        array(&out, pieces),
        width / at_once,
        length / at_once,
        input.element,
        units,
    );
    out
}

/// Returns the maxima of each column of `tile` rows.
fn columns_amax<C: Client>(
    client: &C,
    input: &Elements,
    count: usize,
    height: usize,
    width: usize,
    tile: usize,
) -> Handle {
    // Of high rectangles, that of pieces first.
    let length = match tile >= height {
        true => ROWS.min(height),
        false => tile,
    };
    let stacks = height.div_ceil(length);
    let at_once = elements_at_once(input.element, &[width]);
    let units = count * stacks * width / at_once;
    let words = (count * height * width).div_ceil(input.element.per_word());
    let out = client
        .cubecl()
        .empty(count * stacks * width * size_of::<f32>());
    amax_columns::launch(
        client.cubecl(),
        cubes(units.div_ceil(64)),
        CubeDim::new_1d(64),
        if at_once == 1 { 1 } else { WORDS },
        array(&input.handle, words),
        array(&out, count * stacks * width),
        height,
        width / at_once,
        length,
        input.element,
    );
    match tile >= height && stacks > 1 {
        true => columns_amax(client, &f32s(out), count, stacks, width, stacks),
        false => out,
    }
}
