//! Values in 8 bits.

use burn_dist_plan::policy::Fp8;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::amax::{WORDS, elements_at_once};
use super::bits;
use super::form::Form;
use super::tiles::Tiles;
use crate::dialect::{Buffer, Client, array, insert, part};
use crate::element::{Element, INFINITY, NAN, widen};
use crate::launch::{Elements, assert_counted, cubes};

/// Returns the 8 bits of the product of a value and a scale, both as bits in f32.
///
/// The product is that of f32: a device may treat what is no number as it likes, and its subnormal ones are zero in 8
/// bits with any scale of a tensor.
#[cube]
pub(crate) fn quantize_one(value: u32, scale: u32, #[comptime] format: Fp8) -> u32 {
    let product = u32::reinterpret(f32::reinterpret(value) * f32::reinterpret(scale));
    let magnitude = value & 0x7fff_ffffu32;
    let is_nan =
        magnitude > INFINITY || scale > INFINITY || (magnitude == INFINITY && scale == 0u32);
    let product = select(magnitude == INFINITY, value, product);
    let bits = select(is_nan, NAN | (value & 0x8000_0000u32), product);
    bits::encode(bits, format)
}

/// How rectangles lie, as scalars of a kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Places {
    pub height: usize,
    pub width: usize,
    pub tile_height: usize,
    pub tile_width: usize,
    pub down: usize,
    pub across: usize,
}

/// The scalars of a kernel that say how rectangles lie. A macro, because in one version of CubeCL their type is one for
/// each runtime.
macro_rules! places {
    ($tiles:expr) => {{
        let tiles: $crate::float8::Tiles = $tiles;
        $crate::float8::quantize::PlacesLaunch::new(
            tiles.height,
            tiles.width,
            tiles.tile_height.min(tiles.height),
            tiles.tile_width.min(tiles.width),
            tiles.down(),
            tiles.across(),
        )
    }};
}
pub(super) use places;

/// Returns the number of the scale of an element.
#[cube]
pub(super) fn scale_of(places: &Places, index: usize) -> usize {
    let row = index / places.width;
    let column = index % places.width;
    let matrix = row / places.height;
    let down = matrix * places.down + row % places.height / places.tile_height;
    down * places.across + column / places.tile_width
}

/// A unit takes what it reads at once: `N` words, of which come `M` words.
#[cube(launch)]
pub(crate) fn quantize_words<N: Size, M: Size>(
    input: &Buffer<Vector<u32, N>>,
    scales: &Buffer<u32>,
    out: &mut Buffer<Vector<u32, M>>,
    places: &Places,
    #[comptime] element: Element,
    #[comptime] format: Fp8,
    #[comptime] form: Form,
    #[comptime] is_one_scale: bool,
    #[comptime] is_scale_each: bool,
) {
    if ABSOLUTE_POS < out.len() {
        let read = input[ABSOLUTE_POS];
        let per_word = comptime!(element.per_word());
        let count = comptime!(WORDS * per_word);
        let first = ABSOLUTE_POS * count;
        let mut at = 0usize;
        if comptime!(!is_one_scale) {
            at = scale_of(places, first);
        }
        let one = scales[at];
        let mut write = Vector::<u32, M>::empty();
        let words = comptime!(if form == Form::Bytes {
            count / 4
        } else {
            count
        });
        #[unroll]
        for word in 0..words {
            insert(&mut write, word, 0u32);
        }
        #[unroll]
        for index in 0..count {
            let value = widen(
                part(read, comptime!(index / per_word)),
                comptime!((index % per_word) as u32),
                element,
            );
            let mut scale = one;
            if comptime!(is_scale_each) {
                scale = scales[at + index];
            }
            let code = quantize_one(value, scale, format);
            match comptime!(form) {
                Form::Bytes => {
                    let to = comptime!(index / 4);
                    let word = part(write, to) | (code << comptime!((index % 4 * 8) as u32));
                    insert(&mut write, to, word);
                }
                Form::Grid => {
                    insert(&mut write, index, bits::decode(code, format));
                }
            }
        }
        out[ABSOLUTE_POS] = write;
    }
}

/// A unit makes one word.
#[cube(launch)]
pub(crate) fn quantize_elements(
    input: &Buffer<u32>,
    scales: &Buffer<u32>,
    out: &mut Buffer<u32>,
    places: &Places,
    elements: usize,
    #[comptime] element: Element,
    #[comptime] format: Fp8,
    #[comptime] form: Form,
) {
    if ABSOLUTE_POS < out.len() {
        let per_word = comptime!(element.per_word());
        let count = comptime!(if form == Form::Bytes { 4 } else { 1 });
        let mut write = 0u32;
        for part in 0..count {
            let index = ABSOLUTE_POS * count + part;
            if index < elements {
                let word = input[index / per_word];
                let value = widen(word, (index % per_word) as u32, element);
                let code = quantize_one(value, scales[scale_of(places, index)], format);
                match comptime!(form) {
                    Form::Bytes => {
                        write |= code << (part as u32 * 8u32);
                    }
                    Form::Grid => {
                        write = bits::decode(code, format);
                    }
                }
            }
        }
        out[ABSOLUTE_POS] = write;
    }
}

/// Returns values in 8 bits, each multiplied by the scale of its rectangle before.
///
/// # Panics
/// If there are 2^32 elements or more.
pub fn quantize<C: Client>(
    client: &C,
    input: &Elements,
    scales: &Handle,
    tiles: Tiles,
    format: Fp8,
    form: Form,
) -> Handle {
    let elements = tiles.num_elements();
    assert_counted(elements);
    let words = match form {
        Form::Bytes => elements.div_ceil(4),
        Form::Grid => elements,
    };
    let out = client.cubecl().empty(words * size_of::<u32>());
    if elements == 0 {
        return out;
    }
    let element = input.element;
    let num_scales = tiles.num_scales();
    let is_scale_each = tiles.tile_width == 1 && tiles.width > 1;
    let is_cut = tiles.tile_width < tiles.width && !is_scale_each;
    let at_once = match is_cut {
        true => elements_at_once(element, &[tiles.width, tiles.tile_width]),
        false => elements_at_once(element, &[tiles.width]),
    };
    let num_words = elements.div_ceil(element.per_word());
    match at_once {
        1 => quantize_elements::launch(
            client.cubecl(),
            cubes(words.div_ceil(64)),
            CubeDim::new_1d(64),
            array(&input.handle, num_words),
            array(scales, num_scales),
            array(&out, words),
            places!(tiles),
            elements,
            element,
            format,
            form,
        ),
        at_once => {
            let written = match form {
                Form::Bytes => at_once / 4,
                Form::Grid => at_once,
            };
            quantize_words::launch(
                client.cubecl(),
                cubes((elements / at_once).div_ceil(64)),
                CubeDim::new_1d(64),
                WORDS,
                written,
                array(&input.handle, num_words),
                array(scales, num_scales),
                array(&out, words),
                places!(tiles),
                element,
                format,
                form,
                num_scales == 1,
                is_scale_each,
            );
        }
    }
    // What fills the last word is no element.
    out.offset_end((words * 4 - elements * if form == Form::Bytes { 1 } else { 4 }) as u64)
}
