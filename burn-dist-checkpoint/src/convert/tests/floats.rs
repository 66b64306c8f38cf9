//! Floats of other types.

use super::{KINDS, content, convert, expected, samples, with_floats};
use crate::convert::{ConvertError, Kind, floats};
use crate::storage::Storage;
use crate::storage::memory::MemoryStorage;
use burn_dist_mesh::DType;
use std::path::Path;

#[test]
fn floats_change_their_type_and_nothing_else_does() {
    let storage = samples();
    for (dtype, to) in [(DType::BF16, "hf/bf16"), (DType::F16, "hf/f16")] {
        convert(&storage, ("burn/model.mpk", to), Kind::Hf, |c| {
            c.dtype = Some(dtype)
        })
        .unwrap();
        let found = content(&storage, to, Kind::Hf, None);
        assert_eq!(found, expected(dtype, DType::I32));
    }
    convert(&storage, ("burn/half.mpk", "a.bpk"), Kind::Bpk, |c| {
        c.dtype = Some(DType::F32)
    })
    .unwrap();
    assert_eq!(
        content(&storage, "a.bpk", Kind::Bpk, None),
        expected(DType::F32, DType::I16)
    );
}

#[test]
fn numbers_beyond_the_range_of_a_type_are_errors() {
    let largest = half::f16::MAX.to_f32();
    let mut values = vec![0.5; 40];
    // What rounds to a number is one; what is not finite is so in all types.
    values.extend([
        largest,
        -largest,
        65519.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-9,
    ]);
    let to_f16 = |storage: &MemoryStorage, kind, to| {
        convert(storage, ("from", to), kind, |c| c.dtype = Some(DType::F16))
    };
    to_f16(&with_floats(&values), Kind::Mpk, "to/a.mpk").unwrap();
    values[33] = 65520.0;
    let storage = with_floats(&values);
    for (kind, to) in KINDS.into_iter().zip(["run", "hf", "to/a.mpk", "to/a.bpk"]) {
        let error = to_f16(&storage, kind, to).unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(error, ConvertError::Range { .. }),
            "{kind}: {said}"
        );
        assert_eq!(
            said,
            "x has values beyond the range of f16: choose another type"
        );
        // At most an empty folder.
        for folder in [to, "to"] {
            let left = storage.list(Path::new(folder)).unwrap_or_default();
            assert_eq!(left, [""; 0], "{kind}");
        }
        assert!(storage.open(Path::new(to)).is_err(), "{kind}");
    }
    values[33] = f32::MAX;
    let storage = with_floats(&values);
    let error = convert(&storage, ("from", "to/a"), Kind::Hf, |c| {
        c.dtype = Some(DType::BF16)
    });
    assert!(matches!(error.unwrap_err(), ConvertError::Range { .. }));
}

#[test]
fn floats_are_rounded_once_to_nearest() {
    let round = |from: DType, to: DType, source: &[u8]| {
        let mut target = vec![0; source.len() / from.size() * to.size()];
        assert!(floats::convert(from, to, source, &mut target));
        target
    };
    // Just above the middle of two bf16, which rounding to f32 first would make the middle, and then even.
    let value = 1.0 + f64::from(half::bf16::EPSILON) / 2.0 + 1e-12;
    let expected = half::bf16::from_f32(1.0 + half::bf16::EPSILON.to_f32()).to_le_bytes();
    assert_eq!(
        round(DType::F64, DType::BF16, &value.to_le_bytes()),
        expected
    );
    let below = 1.0 + f64::from(half::f16::EPSILON) / 2.0 - 1e-12;
    let expected = half::f16::ONE.to_le_bytes();
    assert_eq!(
        round(DType::F64, DType::F16, &below.to_le_bytes()),
        expected
    );
    let mut target = [0; 2];
    let large = f64::MAX.to_le_bytes();
    assert!(!floats::convert(
        DType::F64,
        DType::BF16,
        &large,
        &mut target
    ));
    assert!(!floats::convert(
        DType::F64,
        DType::F32,
        &large,
        &mut [0; 4]
    ));
    for bits in 0..=u16::MAX {
        let (half, brain) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        if half.is_nan() || brain.is_nan() {
            continue;
        }
        let wide = round(DType::F16, DType::F32, &bits.to_le_bytes());
        assert_eq!(wide, half.to_f32().to_le_bytes());
        assert_eq!(round(DType::F32, DType::F16, &wide), bits.to_le_bytes());
        let wide = round(DType::BF16, DType::F32, &bits.to_le_bytes());
        assert_eq!(wide, (u32::from(bits) << 16).to_le_bytes());
        assert_eq!(round(DType::F32, DType::BF16, &wide), bits.to_le_bytes());
    }
}
