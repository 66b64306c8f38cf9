//! Matrices that rest in 8 bits: bytes with their scales, of which values are made where they are used.
//!
//! A program sees a tensor that a scheme of Burn's ([`scheme()`]) quantizes, of its own shape. From recording on it is
//! a tensor of bytes with one dim more ([`packed_shape`](burn_dist_kernels::int8::packed_shape)): whoever splits,
//! gathers, keeps or counts it does so as with any other. A block lies along its last dim, which is never split, so the
//! bytes of an element, and its value, are the same in every layout.
//!
//! It is made by a cast, and dequantized. Nothing else takes it.
//!
//! `on_bytes` makes these operations of what is recorded; `packing` has their rules and runs them.

use burn_backend::DType;
use burn_backend::quantization::QuantScheme;
use burn_ir::TensorIr;

use super::scheme;

/// A step between floats and the bytes of a matrix that rests in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int8Op {
    /// Makes its bytes of floats.
    Pack,
    /// Makes floats of its bytes, to be computed with: what rests in pieces is gathered before.
    Unpack,
    /// Makes floats of its bytes that rest as these do.
    UnpackAtRest,
}

/// An operation on a matrix that rests in 8 bits.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Int8 {
    /// The operation: pack, unpack.
    pub op: Int8Op,
    pub(crate) input: TensorIr,
    pub(crate) out: TensorIr,
}

/// Returns Burn's scheme for tensors that rest in 8 bits; a line of Burn without such scales has none.
pub fn scheme() -> Option<QuantScheme> {
    scheme::packed()
}

/// Returns whether tensors of a type rest in 8 bits, as bytes with their scales.
pub fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::QFloat(of) if scheme() == Some(of))
}

impl Int8Op {
    /// All of them: of two names, the longer one first.
    #[cfg(any(test, feature = "text-form"))]
    pub(super) const ALL: [Self; 3] = [Self::UnpackAtRest, Self::Unpack, Self::Pack];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pack => "int8_pack",
            Self::Unpack => "int8_unpack",
            Self::UnpackAtRest => "int8_unpack_at_rest",
        }
    }
}
