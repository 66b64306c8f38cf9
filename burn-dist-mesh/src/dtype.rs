//! Types of the elements of tensors.

use std::fmt;

/// How a tensor of bools is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BoolStore {
    /// One byte each, as the language has it.
    Native,
    /// One byte each.
    U8,
    /// Four bytes each.
    U32,
}

/// A quantized type: known to whoever computes with it, opaque to everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantized {
    /// Bytes of an element as it is stored; 0 where several share a byte.
    pub size: u8,
    /// Says which type it is, in the terms of who made it.
    pub code: [u8; 15],
}

/// The type of the elements of a tensor.
///
/// ```
/// use burn_dist_mesh::DType;
/// assert_eq!(DType::BF16.size(), 2);
/// assert!(DType::BF16.is_float() && !DType::BF16.is_bool());
/// assert_eq!(DType::BF16.to_string(), "bf16");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 32-bit float that may be computed with in fewer bits.
    Flex32,
    /// 16-bit float with 5 bits of exponent (IEEE 754 binary16).
    F16,
    /// 16-bit float with 8 bits of exponent.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 8-bit integer.
    U8,
    /// Bool.
    Bool(BoolStore),
    /// Quantized float.
    Quantized(Quantized),
}

impl DType {
    /// Returns the bytes of one element; 0 of quantized types in which several elements share a byte.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::Flex32 | Self::I32 | Self::U32 | Self::Bool(BoolStore::U32) => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool(BoolStore::Native | BoolStore::U8) => 1,
            Self::Quantized(quantized) => quantized.size as usize,
        }
    }

    /// Returns whether it is a float, and not a quantized one.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F64 | Self::F32 | Self::Flex32 | Self::F16 | Self::BF16
        )
    }

    /// Returns whether it is a bool, however it is stored.
    pub const fn is_bool(self) -> bool {
        matches!(self, Self::Bool(_))
    }

    /// Returns whether it is quantized.
    pub const fn is_quantized(self) -> bool {
        matches!(self, Self::Quantized(_))
    }

    /// Returns its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::Flex32 => "flex32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool(BoolStore::Native) => "bool",
            Self::Bool(BoolStore::U8) => "bool(u8)",
            Self::Bool(BoolStore::U32) => "bool(u32)",
            Self::Quantized(_) => "qfloat",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
