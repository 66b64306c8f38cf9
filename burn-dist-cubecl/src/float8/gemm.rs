//! Products of values in 8 bits: tiles in shared memory, added up in f32. For every device, and the fastest on none.

use burn_dist_plan::policy::Fp8;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::bits;
use super::form::Form;
use super::quantize::{Places, places, scale_of};
use super::tiles::Tiles;
use crate::dialect::{Buffer, Client, Kind, Shared, array, kind, shared};
use crate::element::{Element, INFINITY, NAN, widen};
use crate::launch::{Elements, assert_counted};

/// Rows and columns of the result that a cube makes, of which a unit makes a square.
const TILE: usize = 64;
/// The square of a unit.
const SQUARE: usize = 4;
/// How much of the inner dim is read at once.
const DEPTH: usize = 16;
/// Units along each dim of a cube.
const UNITS: usize = TILE / SQUARE;

/// An operand in 8 bits: a matrix, or several below each other that are taken as one.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The values.
    pub values: &'a Handle,
    /// The scales that they were multiplied with.
    pub scales: &'a Handle,
    /// Which of them share a scale.
    pub tiles: Tiles,
    /// The format.
    pub format: Fp8,
    /// True if what is added up lies along the last dim, and otherwise it does along all others.
    pub is_last_inner: bool,
}

impl Operand<'_> {
    /// Returns the size of the dim that is added up, and of the other one.
    fn sizes(&self) -> (usize, usize) {
        let (rows, columns) = (self.tiles.count * self.tiles.height, self.tiles.width);
        match self.is_last_inner {
            true => (columns, rows),
            false => (rows, columns),
        }
    }
}

/// The operand as a kernel knows it when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub format: Fp8,
    pub form: Form,
    pub is_last_inner: bool,
}

/// Returns where an element lies.
#[cube]
fn place(inner: usize, outer: usize, places: &Places, #[comptime] stored: Stored) -> usize {
    if comptime!(stored.is_last_inner) {
        outer * places.width + inner
    } else {
        inner * places.width + outer
    }
}

/// Returns where the scales of the inner dim change next.
#[cube]
fn next_change(inner: usize, places: &Places, #[comptime] stored: Stored) -> usize {
    if comptime!(stored.is_last_inner) {
        let next = (inner / places.tile_width + 1) * places.tile_width;
        select(next < places.width, next, places.width)
    } else {
        let row = inner % places.height;
        let next = (row / places.tile_height + 1) * places.tile_height;
        inner - row + select(next < places.height, next, places.height)
    }
}

/// Returns a value.
#[cube]
fn value(words: &Buffer<u32>, index: usize, #[comptime] stored: Stored) -> f32 {
    match comptime!(stored.form) {
        Form::Grid => f32::reinterpret(words[index]),
        Form::Bytes => {
            let code = (words[index / 4] >> ((index % 4) as u32 * 8u32)) & 0xffu32;
            f32::reinterpret(bits::decode(code, stored.format))
        }
    }
}

/// Reads a tile of an operand, with zeros around it.
#[cube]
fn read(
    words: &Buffer<u32>,
    tile: &mut Shared<f32>,
    from: usize,
    end: usize,
    outer_from: usize,
    outer_end: usize,
    places: &Places,
    #[comptime] stored: Stored,
) {
    #[unroll]
    for step in 0..comptime!(TILE * DEPTH / (UNITS * UNITS)) {
        let index = UNIT_POS as usize + step * comptime!(UNITS * UNITS);
        // Neighbouring units read neighbours.
        let (along_inner, along_outer) = if comptime!(stored.is_last_inner) {
            (index % DEPTH, index / DEPTH)
        } else {
            (index / TILE, index % TILE)
        };
        let (inner, outer) = (from + along_inner, outer_from + along_outer);
        let mut read = 0.0f32;
        if inner < end && outer < outer_end {
            read = value(words, place(inner, outer, places, stored), stored);
        }
        tile[along_inner * TILE + along_outer] = read;
    }
}

#[cube(launch)]
pub(crate) fn products<O: Float>(
    first: &Buffer<u32>,
    second: &Buffer<u32>,
    first_scales: &Buffer<u32>,
    second_scales: &Buffer<u32>,
    bias: &Buffer<u32>,
    out: &mut Buffer<O>,
    first_places: &Places,
    second_places: &Places,
    rows: usize,
    inner: usize,
    columns: usize,
    #[comptime] stored: [Stored; 2],
    #[comptime] bias_element: Option<Element>,
    #[define(O)] _kind: Kind,
) {
    let row_from = CUBE_POS_Y as usize * TILE;
    let column_from = CUBE_POS_X as usize * TILE;
    let unit_row = UNIT_POS_Y as usize * SQUARE;
    let unit_column = UNIT_POS_X as usize * SQUARE;
    let mut first_tile = shared::<f32>(comptime!(TILE * DEPTH));
    let mut second_tile = shared::<f32>(comptime!(TILE * DEPTH));

    let mut sums = Array::<f32>::new(comptime!(SQUARE * SQUARE));
    let mut part = Array::<f32>::new(comptime!(SQUARE * SQUARE));
    #[unroll]
    for index in 0..comptime!(SQUARE * SQUARE) {
        sums[index] = 0.0f32;
    }
    // From one change of scales to the next.
    let mut from = 0usize;
    while from < inner {
        let first_end = next_change(from, first_places, comptime!(stored[0]));
        let second_end = next_change(from, second_places, comptime!(stored[1]));
        let end = select(first_end < second_end, first_end, second_end);
        #[unroll]
        for index in 0..comptime!(SQUARE * SQUARE) {
            part[index] = 0.0f32;
        }
        let mut step = from;
        while step < end {
            read(
                first,
                &mut first_tile,
                step,
                end,
                row_from,
                rows,
                first_places,
                comptime!(stored[0]),
            );
            read(
                second,
                &mut second_tile,
                step,
                end,
                column_from,
                columns,
                second_places,
                comptime!(stored[1]),
            );
            sync_cube();
            for depth in 0..DEPTH {
                #[unroll]
                for row in 0..SQUARE {
                    let x = first_tile[depth * TILE + unit_row + row];
                    #[unroll]
                    for column in 0..SQUARE {
                        let y = second_tile[depth * TILE + unit_column + column];
                        part[row * SQUARE + column] += x * y;
                    }
                }
            }
            sync_cube();
            step += DEPTH;
        }
        let mut inverses = Array::<u32>::new(SQUARE);
        #[unroll]
        for column in 0..SQUARE {
            let outer = column_from + unit_column + column;
            let at = place(from, outer, second_places, comptime!(stored[1]));
            inverses[column] = 0u32;
            if outer < columns {
                inverses[column] = bits::inverse(second_scales[scale_of(second_places, at)]);
            }
        }
        #[unroll]
        for row in 0..SQUARE {
            let outer = row_from + unit_row + row;
            let at = place(from, outer, first_places, comptime!(stored[0]));
            let mut x = 0u32;
            if outer < rows {
                x = bits::inverse(first_scales[scale_of(first_places, at)]);
            }
            #[unroll]
            for column in 0..SQUARE {
                let y = inverses[column];
                let index = comptime!(row * SQUARE + column);
                let scaled = part[index] * (f32::reinterpret(x) * f32::reinterpret(y));
                // What is scaled by zero is no number, whatever a device makes of it.
                let is_nan = x >= INFINITY || y >= INFINITY;
                sums[index] += f32::reinterpret(select(is_nan, NAN, u32::reinterpret(scaled)));
            }
        }
        from = end;
    }
    #[unroll]
    for row in 0..SQUARE {
        #[unroll]
        for column in 0..SQUARE {
            let (at_row, at_column) = (
                row_from + unit_row + row,
                column_from + unit_column + column,
            );
            if at_row < rows && at_column < columns {
                let mut sum = sums[row * SQUARE + column];
                if comptime!(bias_element.is_some()) {
                    let element = comptime!(bias_element.unwrap_or(Element::F32));
                    let per_word = comptime!(element.per_word());
                    let word = bias[at_column / per_word];
                    let bits = widen(word, (at_column % per_word) as u32, element);
                    sum += f32::reinterpret(bits);
                }
                out[at_row * columns + at_column] = O::cast_from(sum);
            }
        }
    }
}

/// Returns the product of two operands: sums in f32 of what shares scales, divided by these, and the bias.
///
/// # Panics
/// If the operands do not fit each other, or of 2^32 elements or more.
pub fn product<C: Client>(
    client: &C,
    [first, second]: [Operand<'_>; 2],
    bias: Option<&Elements>,
    form: Form,
    out: Element,
) -> Handle {
    let ((inner, rows), (other, columns)) = (first.sizes(), second.sizes());
    assert_eq!(inner, other, "operands share the dim that is added up");
    assert_counted(rows * columns);
    assert_counted(first.tiles.num_elements().max(second.tiles.num_elements()));
    let bytes = match out {
        Element::F32 => 4,
        Element::F16 | Element::Bf16 => 2,
    };
    let made = client
        .cubecl()
        .empty((rows * columns * bytes).next_multiple_of(4));
    if rows * columns == 0 {
        return made;
    }
    let words = |elements: usize| match form {
        Form::Bytes => elements.div_ceil(4),
        Form::Grid => elements,
    };
    let stored = |operand: &Operand<'_>| Stored {
        format: operand.format,
        form,
        is_last_inner: operand.is_last_inner,
    };
    let float = match out {
        Element::F32 => FloatKind::F32,
        Element::F16 => FloatKind::F16,
        Element::Bf16 => FloatKind::BF16,
    };
    let (bias_at, bias_words) = match bias {
        Some(bias) => (&bias.handle, columns.div_ceil(bias.element.per_word())),
        // It is not read.
        None => (first.scales, first.tiles.num_scales()),
    };
    products::launch(
        client.cubecl(),
        CubeCount::Static(columns.div_ceil(TILE) as u32, rows.div_ceil(TILE) as u32, 1),
        CubeDim::new_2d(UNITS as u32, UNITS as u32),
        array(first.values, words(first.tiles.num_elements())),
        array(second.values, words(second.tiles.num_elements())),
        array(first.scales, first.tiles.num_scales()),
        array(second.scales, second.tiles.num_scales()),
        array(bias_at, bias_words),
        array(&made, rows * columns),
        places!(first.tiles),
        places!(second.tiles),
        rows,
        inner,
        columns,
        [stored(&first), stored(&second)],
        bias.map(|bias| bias.element),
        kind(float),
    );
    made.offset_end(
        (rows * columns * bytes).next_multiple_of(4) as u64 - (rows * columns * bytes) as u64,
    )
}
