//! Types that values are computed in, and how they are stored.

use burn_dist_mesh::{BoolStore, DType};
use burn_dist_plan::region::Number;

use super::halves::{Half, rounded_bf16, rounded_f16};

/// The type that a value is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    /// A byte that is 0 or 1.
    Bool,
}

/// How a value is stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stored {
    /// The type that it is computed in.
    Plain,
    /// A float of 16 bits, which f32 is rounded to after every instruction.
    Half(Half),
    /// A bool in four bytes.
    WideBool,
}

/// A value's type, where it is computed with and where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub lane: Lane,
    pub stored: Stored,
}

impl Lane {
    /// Returns the bytes of a value.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    pub(super) const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

impl Kind {
    /// Returns what values of a type are; `None` of quantized ones.
    pub(super) const fn of(dtype: DType) -> Option<Self> {
        let (lane, stored) = match dtype {
            DType::F64 => (Lane::F64, Stored::Plain),
            DType::F32 | DType::Flex32 => (Lane::F32, Stored::Plain),
            DType::F16 => (Lane::F32, Stored::Half(Half::F16)),
            DType::BF16 => (Lane::F32, Stored::Half(Half::BF16)),
            DType::I64 => (Lane::I64, Stored::Plain),
            DType::I32 => (Lane::I32, Stored::Plain),
            DType::I16 => (Lane::I16, Stored::Plain),
            DType::I8 => (Lane::I8, Stored::Plain),
            DType::U64 => (Lane::U64, Stored::Plain),
            DType::U32 => (Lane::U32, Stored::Plain),
            DType::U16 => (Lane::U16, Stored::Plain),
            DType::U8 => (Lane::U8, Stored::Plain),
            DType::Bool(BoolStore::Native | BoolStore::U8) => (Lane::Bool, Stored::Plain),
            DType::Bool(BoolStore::U32) => (Lane::Bool, Stored::WideBool),
            DType::Quantized(_) => return None,
        };
        Some(Self { lane, stored })
    }

    /// Returns the bytes of an element in memory.
    pub(super) const fn stored_size(self) -> usize {
        match self.stored {
            Stored::Plain => self.lane.size(),
            Stored::Half(_) => 2,
            Stored::WideBool => 4,
        }
    }

    /// Returns the half that values are rounded to.
    pub(super) const fn half(self) -> Option<Half> {
        match self.stored {
            Stored::Half(half) => Some(half),
            Stored::Plain | Stored::WideBool => None,
        }
    }
}

/// A number as a value of each type: saturated to integers as Rust's `as` does, nonzero to true, and rounded once.
macro_rules! number_as {
    ($($name:ident: $type:ty),*) => {
        $(pub(super) fn $name(number: Number) -> $type {
            match number {
                Number::Float(value) => value as $type,
                Number::Int(value) => value as $type,
                Number::UInt(value) => value as $type,
            }
        })*
    };
}
number_as! {
    as_f32: f32, as_f64: f64, as_i8: i8, as_i16: i16, as_i32: i32, as_i64: i64, as_u8: u8, as_u16: u16, as_u32: u32,
    as_u64: u64
}

pub(super) fn as_bool(number: Number) -> u8 {
    u8::from(match number {
        Number::Float(value) => value != 0.0,
        Number::Int(value) => value != 0,
        Number::UInt(value) => value != 0,
    })
}

/// A number rounded to a half; integers through f32.
pub(super) fn as_half(number: Number, half: Half) -> f32 {
    match (number, half) {
        (Number::Float(value), _) => half_of_double(value, half),
        (Number::Int(_) | Number::UInt(_), Half::F16) => rounded_f16(as_f32(number)),
        (Number::Int(_) | Number::UInt(_), Half::BF16) => rounded_bf16(as_f32(number)),
    }
}

/// Returns the bits of a number as a value that is computed in 32 bits: as a float, rounded to the type, as an integer,
/// or as a bool of 0 or 1.
///
/// # Panics
/// If values of the type are computed in other bits.
pub fn number_bits(number: Number, dtype: DType) -> u32 {
    let kind = Kind::of(dtype);
    let kind = kind.unwrap_or_else(|| panic!("{dtype} is a block of numbers"));
    match (kind.half(), kind.lane) {
        (Some(half), _) => as_half(number, half).to_bits(),
        (None, Lane::F32) => as_f32(number).to_bits(),
        (None, Lane::I32) => as_i32(number) as u32,
        (None, Lane::U32) => as_u32(number),
        (None, Lane::Bool) => as_bool(number).into(),
        (None, _) => panic!("{dtype} is not computed in 32 bits"),
    }
}

/// A number rounded once.
pub(super) fn half_of_double(value: f64, half: Half) -> f32 {
    match half {
        Half::F16 => half::f16::from_f64(value).to_f32(),
        Half::BF16 => half::bf16::from_f64(value).to_f32(),
    }
}
