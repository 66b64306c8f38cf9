//! Matrices in 8 bits: rows in blocks of 32 elements that share a scale, a power of two.
//!
//! ```text
//! block   scale: 1 byte, e for 2^(e - 127)   32 elements: signed, -127 to 127
//! x ~ q * scale    scale: the smallest power of two of which 127 are the block's largest absolute value or more
//! ```
//!
//! A value is off by half a scale at most, so by less than a 127th of its block's largest (or by 2^-101). Scales are
//! powers of two, so a value that was packed is exact in f32 and in bf16, and packing it again gives the same bytes. A
//! block with a value that is not finite is NaN. The last block of a row is filled up with zeros.
//!
//! # Source
//! MXINT8 of the OCP Microscaling formats, version 1.0. Differs: the scale is the smallest that saturates nothing.

/// The elements that share a scale: neighbours along the last dim.
pub const BLOCK: usize = 32;

/// The bytes of a block: its scale, and its elements.
pub const BLOCK_BYTES: usize = 1 + BLOCK;

/// The scale of a block that is NaN.
const NAN: u8 = u8::MAX;

/// The smallest exponent of a scale: what is far below it is zero.
const EXPONENT_MIN: i32 = -100;

const BIAS: i32 = 127;

/// Returns the shape of the bytes of a tensor: `[.., width]` becomes `[.., blocks, BLOCK_BYTES]`.
pub fn packed_shape(shape: &[usize]) -> Vec<usize> {
    let (width, rows) = shape
        .split_last()
        .map_or((1, &[][..]), |(w, rows)| (*w, rows));
    let dims = rows.iter().copied();
    dims.chain([width.div_ceil(BLOCK), BLOCK_BYTES]).collect()
}

/// Returns 2 to the power of an exponent of normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + BIAS) as u32) << 23)
}

/// Returns the exponent of the scale for a largest absolute value: `None` if that is not finite.
fn exponent(amax: f32) -> Option<i32> {
    if !amax.is_finite() {
        return None;
    }
    let bits = amax.to_bits();
    // 127 = 1.984375 * 2^6: what is 1.984375 times its power of two or less needs a scale 2^6 below that.
    let (exponent, fraction) = ((bits >> 23) as i32 - BIAS, bits & 0x7f_ffff);
    let scale = exponent - 6 + i32::from(fraction > 0x7e_0000);
    Some(scale.max(EXPONENT_MIN))
}

/// Packs rows of `width` elements.
pub fn pack(values: &[f32], width: usize) -> Vec<u8> {
    let rows = values.len() / width.max(1);
    let mut bytes = Vec::with_capacity(rows * width.div_ceil(BLOCK) * BLOCK_BYTES);
    for block in values
        .chunks(width.max(1))
        .flat_map(|row| row.chunks(BLOCK))
    {
        // A maximum that keeps NaN.
        let amax = block.iter().fold(0f32, |max, value| match value.abs() {
            value if value > max || value.is_nan() => value,
            _ => max,
        });
        let Some(exponent) = exponent(amax) else {
            bytes.push(NAN);
            bytes.resize(bytes.len() + BLOCK, 0);
            continue;
        };
        bytes.push((exponent + BIAS) as u8);
        let inverse = power_of_two(-exponent);
        let elements = block
            .iter()
            .map(|value| (value * inverse).round_ties_even() as i8);
        bytes.extend(elements.map(i8::cast_unsigned));
        bytes.resize(bytes.len() + BLOCK - block.len(), 0);
    }
    bytes
}

/// Returns what [`pack`] has packed, as `of` makes it of f32.
pub fn unpack<T>(bytes: &[u8], width: usize, of: impl Fn(f32) -> T) -> Vec<T> {
    let row_bytes = width.div_ceil(BLOCK).max(1) * BLOCK_BYTES;
    let mut values = Vec::with_capacity(bytes.len() / row_bytes * width);
    for row in bytes.chunks(row_bytes) {
        let mut rest = width;
        for block in row.chunks(BLOCK_BYTES) {
            let Some((scale, elements)) = block.split_first() else {
                continue;
            };
            let scale = match *scale {
                NAN => f32::NAN,
                scale => power_of_two(i32::from(scale) - BIAS),
            };
            let count = elements.len().min(rest);
            let elements = elements[..count].iter();
            values.extend(elements.map(|bits| of(f32::from(bits.cast_signed()) * scale)));
            rest -= count;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(values: &[f32], width: usize) -> Vec<f32> {
        unpack(&pack(values, width), width, |value| value)
    }

    /// Values of all magnitudes, from a generator that is written down here.
    fn values(count: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        let value = |_| {
            let magnitude = (next() * 60.0) as i32 - 30;
            (next() - 0.5) * power_of_two(magnitude)
        };
        (0..count).map(value).collect()
    }

    #[test]
    fn a_value_is_off_by_less_than_a_127th_of_its_blocks_largest() {
        for width in [1, 31, 32, 33, 96, 100] {
            let before = values(width * 7);
            let after = there_and_back(&before, width);
            assert_eq!(after.len(), before.len());
            let rows = before.chunks(width).zip(after.chunks(width));
            for (before, after) in rows.flat_map(|(a, b)| a.chunks(BLOCK).zip(b.chunks(BLOCK))) {
                let amax = before.iter().fold(0f32, |max, value| max.max(value.abs()));
                let bound = amax / 127.0;
                for (x, y) in before.iter().zip(after) {
                    assert!((x - y).abs() < bound, "{x} became {y} beside {amax}");
                }
            }
        }
    }

    #[test]
    fn packing_again_gives_the_same_bytes() {
        let bytes = pack(&values(96 * 50), 96);
        let values = unpack(&bytes, 96, |value| value);
        assert_eq!(pack(&values, 96), bytes);
        // In bf16 too, which are the upper 16 bits.
        assert!(values.iter().all(|value| value.to_bits() & 0xffff == 0));
    }

    #[test]
    fn the_largest_is_never_cut() {
        for largest in [127.0, 127.1, 126.9, 64.0, 63.5, 1.0, 3e38, 1e-20] {
            let made = there_and_back(&[largest, -largest], 2);
            assert!(
                (made[0] - largest).abs() <= largest / 127.0,
                "{largest}: {made:?}"
            );
            assert_eq!(made[1], -made[0]);
        }
        assert_eq!(pack(&[127.0], 1)[..2], [127, 127]);
        assert_eq!(pack(&[127.5], 1)[..2], [128, 64]);
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_is_seen() {
        assert_eq!(there_and_back(&[0.0; 40], 40), [0.0; 40]);
        assert_eq!(there_and_back(&[f32::MIN_POSITIVE], 1), [0.0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 64];
            values[40] = bad;
            let made = there_and_back(&values, 64);
            assert!(made[..32].iter().all(|value| *value == 1.0));
            assert!(made[32..].iter().all(|value| value.is_nan()));
        }
    }

    #[test]
    fn rows_are_packed_one_by_one() {
        assert_eq!(packed_shape(&[3, 40]), [3, 2, BLOCK_BYTES]);
        let values = values(3 * 40);
        let rows: Vec<u8> = values.chunks(40).flat_map(|row| pack(row, 40)).collect();
        assert_eq!(pack(&values, 40), rows);
        // So are blocks: a split along the last dim that cuts none has the same bytes.
        let block = |at: usize| pack(&values[at..at + 32], 32);
        assert_eq!(rows[..BLOCK_BYTES], block(0));
        assert_eq!(rows[2 * BLOCK_BYTES..3 * BLOCK_BYTES], block(40));
    }
}
