//! Sums of rows in the one order of burn-dist's reductions.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::dialect::{Buffer, Client, array};
use crate::element::{Element, narrow, widen};
use crate::launch::{Elements, assert_counted, cubes};

/// Returns the bits in f32 of the sum of an element of the rows from `start` to `end`: a balanced tree, split at the
/// largest power of two. Every sum is rounded to the type of the elements.
#[cube]
fn sum(
    rows: &Buffer<u32>,
    index: usize,
    width: usize,
    #[comptime] start: usize,
    #[comptime] end: usize,
    #[comptime] element: Element,
) -> u32 {
    let per_word = comptime!(element.per_word());
    if comptime!(end - start == 1) {
        let at = start * width + index;
        widen(rows[at / per_word], (at % per_word) as u32, element)
    } else {
        let middle = comptime!(start + (end - start).next_power_of_two() / 2);
        let left = sum(rows, index, width, start, middle, element);
        let right = sum(rows, index, width, middle, end, element);
        let sum = u32::reinterpret(f32::reinterpret(left) + f32::reinterpret(right));
        let rounded = narrow(sum, element);
        widen(rounded, 0u32, element)
    }
}

/// A unit makes one word.
#[cube(launch)]
pub(crate) fn fold(
    rows: &Buffer<u32>,
    out: &mut Buffer<u32>,
    width: usize,
    #[comptime] count: usize,
    #[comptime] element: Element,
) {
    if ABSOLUTE_POS < out.len() {
        let per_word = comptime!(element.per_word());
        let mut word = 0u32;
        #[unroll]
        for part in 0..per_word {
            let index = ABSOLUTE_POS * per_word + part;
            if index < width {
                let bits = narrow(sum(rows, index, width, 0usize, count, element), element);
                word |= bits << comptime!(part as u32 * 16);
            }
        }
        out[ABSOLUTE_POS] = word;
    }
}

/// Adds up `count` rows of `width` elements: the bits are those that communicators give.
///
/// # Panics
/// Without a row, or of 2^32 elements or more.
pub fn fold_rows<C: Client>(client: &C, rows: &Elements, count: usize, width: usize) -> Handle {
    assert!(count > 0, "there are rows");
    assert_counted(count * width);
    let per_word = rows.element.per_word();
    let words = width.div_ceil(per_word);
    let out = client.cubecl().empty(words * size_of::<u32>());
    if width > 0 {
        fold::launch(
            client.cubecl(),
            cubes(words.div_ceil(64)),
            CubeDim::new_1d(64),
            array(&rows.handle, (count * width).div_ceil(per_word)),
            array(&out, words),
            width,
            count,
            rows.element,
        );
    }
    // What fills the last word is no element.
    out.offset_end((words * 4 - width * 4 / per_word) as u64)
}
