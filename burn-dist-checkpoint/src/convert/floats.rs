//! Floats from one type to another: rounded to nearest, ties to even.

use burn_dist_mesh::DType;
use half::{bf16, f16};

/// The types that floats are converted to.
pub(super) const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// Turns elements of one type into another; returns whether the type has a place for all that are finite.
///
/// Both are floats, the second one of 64, 32 or 16 bits (`bf16` too). Equal types are copied, bit by bit.
pub fn convert(from: DType, to: DType, source: &[u8], target: &mut [u8]) -> bool {
    if from == to {
        target.copy_from_slice(source);
        return true;
    }
    match from {
        // Exact in 64 bits, so that it is rounded once.
        DType::F64 => to_all(source, f64::from_le_bytes, to, target),
        DType::F16 => to_all(source, |b| f16::from_le_bytes(b).to_f64(), to, target),
        DType::BF16 => to_all(source, |b| bf16::from_le_bytes(b).to_f64(), to, target),
        _ => to_all(source, |b| f64::from(f32::from_le_bytes(b)), to, target),
    }
}

fn to_all<const N: usize>(
    source: &[u8],
    value: impl Fn([u8; N]) -> f64,
    to: DType,
    target: &mut [u8],
) -> bool {
    match to {
        DType::F64 => each(source, target, value, |v| (v.to_le_bytes(), v.is_finite())),
        DType::F16 => each(source, target, value, |v| {
            let v = f16::from_f32(odd(v));
            (v.to_le_bytes(), v.is_finite())
        }),
        DType::BF16 => each(source, target, value, |v| {
            let v = bf16::from_f32(odd(v));
            (v.to_le_bytes(), v.is_finite())
        }),
        _ => each(source, target, value, |v| {
            let v = v as f32;
            (v.to_le_bytes(), v.is_finite())
        }),
    }
}

fn each<const N: usize, const M: usize>(
    source: &[u8],
    target: &mut [u8],
    value: impl Fn([u8; N]) -> f64,
    make: impl Fn(f64) -> ([u8; M], bool),
) -> bool {
    let (source, _) = source.as_chunks::<N>();
    let (target, _) = target.as_chunks_mut::<M>();
    let mut is_fine = true;
    for (from, to) in source.iter().zip(target) {
        let value = value(*from);
        let (bytes, is_finite) = make(value);
        *to = bytes;
        is_fine &= is_finite || !value.is_finite();
    }
    is_fine
}

/// Returns a float of 32 bits that rounds to the same one of 16 bits: where it is not exact, its last bit is set, so
/// that it is never in the middle of two.
fn odd(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) == value || value.is_nan() {
        return near;
    }
    // Toward zero.
    let bits = near.to_bits() - u32::from(f64::from(near).abs() > value.abs());
    f32::from_bits(bits | 1)
}
