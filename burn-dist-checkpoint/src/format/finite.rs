//! Values that are not finite: NaN and infinities.

use burn_dist_mesh::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A warning that tensors have values that are not finite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonFinite {
    /// The first tensor that has some, by its key.
    pub key: String,
    /// How many there are in all tensors.
    pub elements: u64,
}

/// Text form: `12 NaN or infinite values, first in model.output.weight`.
impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.elements == 1 { "" } else { "s" };
        let Self { key, elements } = self;
        write!(f, "{elements} NaN or infinite value{s}, first in {key}")
    }
}

impl NonFinite {
    /// Returns what several parts have together.
    pub fn sum(parts: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let add = |one: Self, other: Self| Self {
            key: one.key.min(other.key),
            elements: one.elements + other.elements,
        };
        parts.into_iter().flatten().reduce(add)
    }

    /// Returns what the elements of a tensor have, of which these are the bytes.
    pub fn among(key: &str, dtype: DType, bytes: &[u8]) -> Option<Self> {
        let mut tally = Tally::new(dtype);
        tally.add(bytes);
        tally.end(key)
    }
}

/// Counts as bytes come, wherever they are cut.
pub(crate) struct Tally {
    dtype: DType,
    elements: u64,
    /// The first bytes of an element.
    rest: Vec<u8>,
}

impl Tally {
    pub(crate) fn new(dtype: DType) -> Self {
        Self {
            dtype,
            elements: 0,
            rest: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let size = self.dtype.size().max(1);
        let missing = match self.rest.len() {
            0 => 0,
            rest => (size - rest).min(bytes.len()),
        };
        let (end, bytes) = bytes.split_at(missing);
        self.rest.extend_from_slice(end);
        if self.rest.len() == size {
            self.elements += count(self.dtype, &self.rest);
            self.rest.clear();
        }
        let (whole, rest) = bytes.split_at(bytes.len() / size * size);
        self.elements += count(self.dtype, whole);
        self.rest.extend_from_slice(rest);
    }

    pub(crate) fn end(self, key: &str) -> Option<NonFinite> {
        let Self { elements, .. } = self;
        let key = key.to_owned();
        (elements > 0).then_some(NonFinite { key, elements })
    }
}

/// Returns how many elements are not finite: their exponent has all bits. What is no float has none.
fn count(dtype: DType, bytes: &[u8]) -> u64 {
    fn of<const N: usize>(bytes: &[u8], is_not: impl Fn([u8; N]) -> bool) -> u64 {
        let (elements, _) = bytes.as_chunks::<N>();
        elements.iter().filter(|element| is_not(**element)).count() as u64
    }
    fn has<const MASK: u16>(bytes: [u8; 2]) -> bool {
        u16::from_le_bytes(bytes) & MASK == MASK
    }
    const F64: u64 = 0x7ff0_0000_0000_0000;
    const F32: u32 = 0x7f80_0000;
    match dtype {
        DType::F64 => of(bytes, |bytes| u64::from_le_bytes(bytes) & F64 == F64),
        DType::F32 | DType::Flex32 => of(bytes, |bytes| u32::from_le_bytes(bytes) & F32 == F32),
        DType::F16 => of(bytes, has::<0x7c00>),
        DType::BF16 => of(bytes, has::<0x7f80>),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Samples of each type that has such values: some of them, with finite ones around, the largest among them.
    fn samples() -> Vec<(DType, Vec<u8>)> {
        const SPECIAL: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let f64s = [
            f64::MAX,
            SPECIAL[0],
            -0.0,
            SPECIAL[1],
            5e-324,
            SPECIAL[2],
            f64::MIN,
        ];
        let f32s = [
            f32::MAX,
            f32::NAN,
            -0.0,
            f32::INFINITY,
            1e-45,
            f32::NEG_INFINITY,
            f32::MIN,
        ];
        let f16s = f32s.map(|value| f16::from_f32(value.clamp(-65504.0, 65504.0)));
        let f16s = [
            f16s[0],
            f16::NAN,
            f16s[2],
            f16::INFINITY,
            f16s[4],
            f16::NEG_INFINITY,
            f16s[6],
        ];
        let bf16s = [
            bf16::MAX,
            bf16::NAN,
            bf16::NEG_ZERO,
            bf16::INFINITY,
            bf16::ONE,
            bf16::NEG_INFINITY,
            bf16::MIN,
        ];
        let f32s: Vec<u8> = f32s.iter().flat_map(|value| value.to_le_bytes()).collect();
        vec![
            (
                DType::F64,
                f64s.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
            (DType::F32, f32s.clone()),
            (DType::Flex32, f32s),
            (
                DType::F16,
                f16s.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
            (
                DType::BF16,
                bf16s.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
        ]
    }

    #[test]
    fn values_that_are_not_finite_are_counted_wherever_bytes_are_cut() {
        for (dtype, bytes) in samples() {
            for step in 1..=bytes.len() {
                let mut tally = Tally::new(dtype);
                bytes.chunks(step).for_each(|part| tally.add(part));
                let found = tally.end("w").map(|found| found.elements);
                assert_eq!(found, Some(3), "{dtype} by {step}");
            }
            let finite = &bytes[..dtype.size()];
            assert_eq!(NonFinite::among("w", dtype, finite), None);
        }
        // Bits of other types mean other things.
        for dtype in [DType::I32, DType::U8, DType::I64, DType::U16] {
            assert_eq!(NonFinite::among("w", dtype, &[0xff; 16]), None);
        }
    }

    #[test]
    fn parts_add_up() {
        let of = |key: &str, elements| {
            let key = key.to_owned();
            Some(NonFinite { key, elements })
        };
        let all = NonFinite::sum([None, of("b", 2), of("a", 1), None]);
        assert_eq!(all, of("a", 3));
        assert_eq!(NonFinite::sum([None, None]), None);
        let text = all.unwrap().to_string();
        assert_eq!(text, "3 NaN or infinite values, first in a");
    }
}
