//! Host data in partial layouts, as [fuzz layouts](crate::DeviceMeshBuilder::fuzz_layouts) make them: every rank holds
//! a term, and the reduction of the terms is the value, bit for bit.
//!
//! | reduction | one rank | a second one | the others |
//! | --- | --- | --- | --- |
//! | sum of floats | `2x` | `-x` | `-0.0`, which leaves the sign of zeros |
//! | sum of integers | `x - n` | `n`, small | 0 |
//! | product of floats, of signed integers | `2x`, `-x` | `0.5`, `-1` | 1 |
//! | max, min | `x` | below (above) `x` | below (above) `x` |
//! | mean over a power of two `k` of ranks | `kx` | `-0.0`, 0 | `-0.0`, 0 |
//!
//! Which rank is which differs from element to element, so that mistakes do not cancel. Only exact terms are made:
//! partial results over any of the axes are one of the numbers of the row, zero or one. Where a number does not exist
//! (`2x` overflows, `x - n` is below zero), one rank holds `x` and the others the identity; of a mean, all hold `x`.

use burn_backend::DType;
use burn_std::BoolStore;
use half::{bf16, f16};

use crate::burn::data::*;
use crate::mesh::ReduceOp;
use crate::plan::task::TermOf;

/// Returns a rank's terms of the elements of `data`. Ranks of one group hold equal elements and call it with the same
/// seed.
pub(super) fn terms(data: TensorData, of: &[TermOf], seed: u64) -> TensorData {
    let (mut bytes, shape, dtype) = data.into_parts();
    match dtype {
        DType::F64 => replace::<f64>(&mut bytes, of, seed),
        DType::F32 => replace::<f32>(&mut bytes, of, seed),
        DType::F16 => replace::<f16>(&mut bytes, of, seed),
        DType::BF16 => replace::<bf16>(&mut bytes, of, seed),
        DType::I64 => replace::<i64>(&mut bytes, of, seed),
        DType::I32 => replace::<i32>(&mut bytes, of, seed),
        DType::I16 => replace::<i16>(&mut bytes, of, seed),
        DType::I8 => replace::<i8>(&mut bytes, of, seed),
        DType::U64 => replace::<u64>(&mut bytes, of, seed),
        DType::U32 => replace::<u32>(&mut bytes, of, seed),
        DType::U16 => replace::<u16>(&mut bytes, of, seed),
        DType::U8 => replace::<u8>(&mut bytes, of, seed),
        DType::Bool(BoolStore::Native | BoolStore::U8) => {
            replace::<Truth<u8>>(&mut bytes, of, seed)
        }
        DType::Bool(BoolStore::U32) => replace::<Truth<u32>>(&mut bytes, of, seed),
        DType::Flex32 | DType::QFloat(_) => {
            unreachable!("fuzz layouts leave these dtypes whole")
        }
    }
    TensorData::from_bytes(bytes, shape, dtype)
}

fn replace<T: Element>(elements: &mut [u8], of: &[TermOf], seed: u64) {
    let elements = elements.chunks_exact_mut(size_of::<T>());
    for (element, bytes) in elements.enumerate() {
        let mut value = T::read(bytes);
        // Means come before sums: each term of a mean is a sum of terms. The ranks are picked alike for all terms, so
        // either order of reductions gives the value.
        for of in of.iter().rev() {
            let pick = Pick::new(seed, element, of);
            value = value.term(of.op, pick);
        }
        value.write(bytes);
    }
}

/// The role of the rank for an element.
#[derive(Clone, Copy)]
struct Pick {
    role: Role,
    count: usize,
    /// A small number that the ranks agree on.
    noise: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    First,
    Second,
    Other,
}

impl Pick {
    fn new(seed: u64, element: usize, of: &TermOf) -> Self {
        // The finaliser of SplitMix64 (Steele et al., 2014).
        let mut z = seed ^ (element as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let (index, count) = (of.index as u64, of.count as u64);
        let first = z % count;
        // Any of the others.
        let second = match count {
            1 => count,
            _ => (first + 1 + (z >> 20) % (count - 1)) % count,
        };
        Self {
            role: match index {
                index if index == first => Role::First,
                index if index == second => Role::Second,
                _ => Role::Other,
            },
            count: of.count,
            noise: 1 + (z >> 40) as u8 % 3,
        }
    }

    /// Returns the number of the rank's role.
    fn of<T>(self, first: T, second: T, other: T) -> T {
        match self.role {
            Role::First => first,
            Role::Second => second,
            Role::Other => other,
        }
    }
}

/// A number of a dtype.
trait Element: Copy {
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    /// Returns a term of the value.
    fn term(self, op: ReduceOp, pick: Pick) -> Self;
}

macro_rules! bytes {
    ($type:ty) => {
        fn read(bytes: &[u8]) -> Self {
            Self::from_ne_bytes(bytes.try_into().expect("an element's bytes"))
        }
        fn write(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! float {
    ($($type:ty, $from:expr, $to:expr;)*) => {$(
        impl Element for $type {
            bytes! { $type }

            fn term(self, op: ReduceOp, pick: Pick) -> Self {
                // Exact in f64, and checked to be so in the type itself.
                let (x, narrow): (f64, fn(f64) -> $type) = ($from(self), $to);
                let times = |factor: f64| {
                    let product: $type = narrow(x * factor);
                    (x != 0.0 && $from(product).is_finite()).then_some(product)
                };
                let (zero, one) = (narrow(-0.0), narrow(1.0));
                match op {
                    ReduceOp::Sum => match times(2.0) {
                        Some(twice) => pick.of(twice, narrow(-x), zero),
                        None => pick.of(self, zero, zero),
                    },
                    ReduceOp::Prod => match times(2.0) {
                        Some(twice) => pick.of(twice, narrow(0.5), one),
                        None => pick.of(self, one, one),
                    },
                    ReduceOp::Mean => match times(pick.count as f64) {
                        Some(all) if pick.count.is_power_of_two() => pick.of(all, zero, zero),
                        _ => self,
                    },
                    ReduceOp::Max | ReduceOp::Min => {
                        let away = match op {
                            ReduceOp::Max => -x.abs() - f64::from(pick.noise),
                            _ => x.abs() + f64::from(pick.noise),
                        };
                        let beyond: $type = narrow(x + away);
                        let found = $from(beyond);
                        let is_beyond = match op {
                            ReduceOp::Max => found < x,
                            _ => found > x,
                        };
                        match found.is_finite() && is_beyond {
                            true => pick.of(self, beyond, beyond),
                            false => self,
                        }
                    }
                }
            }
        }
    )*};
}

float! {
    f64, |x: f64| x, |x| x;
    f32, |x: f32| f64::from(x), |x| x as f32;
    f16, |x: f16| x.to_f64(), f16::from_f64;
    bf16, |x: bf16| x.to_f64(), bf16::from_f64;
}

macro_rules! int {
    ($($type:ty)*) => {$(
        impl Element for $type {
            bytes! { $type }

            fn term(self, op: ReduceOp, pick: Pick) -> Self {
                let noise = pick.noise as $type;
                match op {
                    ReduceOp::Sum => match self.checked_sub(noise) {
                        Some(less) => pick.of(less, noise, 0),
                        None => pick.of(self, 0, 0),
                    },
                    // Only signed types have another unit than 1.
                    ReduceOp::Prod => match (self.checked_neg(), (0 as $type).checked_sub(1)) {
                        (Some(negative), Some(minus_one)) => pick.of(negative, minus_one, 1),
                        _ => pick.of(self, 1, 1),
                    },
                    ReduceOp::Mean => {
                        let count = <$type>::try_from(pick.count).ok();
                        match count.and_then(|count| self.checked_mul(count)) {
                            Some(all) if pick.count.is_power_of_two() => pick.of(all, 0, 0),
                            _ => self,
                        }
                    }
                    ReduceOp::Max => {
                        let below = self.saturating_sub(noise);
                        pick.of(self, below, below)
                    }
                    ReduceOp::Min => {
                        let above = self.saturating_add(noise);
                        pick.of(self, above, above)
                    }
                }
            }
        }
    )*};
}

int! { i64 i32 i16 i8 u64 u32 u16 u8 }

/// A bool, stored as 0 or 1.
#[derive(Clone, Copy)]
struct Truth<T>(T);

macro_rules! truth {
    ($($type:ty)*) => {$(
        impl Element for Truth<$type> {
            fn read(bytes: &[u8]) -> Self {
                Self(<$type as Element>::read(bytes))
            }
            fn write(self, bytes: &mut [u8]) {
                self.0.write(bytes);
            }
            fn term(self, op: ReduceOp, pick: Pick) -> Self {
                match op {
                    ReduceOp::Min => pick.of(self, Self(1), Self(1)),
                    ReduceOp::Max => pick.of(self, Self(0), Self(0)),
                    ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod => {
                        unreachable!("fuzz layouts draw min and max for bools")
                    }
                }
            }
        }
    )*};
}

truth! { u8 u32 }
