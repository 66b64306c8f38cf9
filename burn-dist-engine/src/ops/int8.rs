//! Matrices that rest in 8 bits: bytes with their scales, of which values are made where they are used.
//!
//! A program sees a tensor that Burn's scheme [`scheme`](super::scheme::packed) quantizes, of its own shape. From
//! recording on it is a tensor of bytes with one dim more ([`packed_shape`]): whoever splits, gathers, keeps or counts
//! it does so as with any other. A block lies along its last dim, which is never split, so the bytes of an element, and
//! its value, are the same in every layout.
//!
//! It is made by a cast, and dequantized. Nothing else takes it.

use burn_backend::DType;
use burn_backend::quantization::QuantScheme;
use burn_dist_kernels::int8::{self, BLOCK, packed_shape};
use burn_dist_plan::op::Mark;
use burn_dist_plan::{ParamSpec, PlanError};
use burn_std::future::block_on;
use burn_std::{bf16, f16};

use super::execute::{from_data, into_data};
use super::family::prelude::*;
use super::recorded::{Marked, Recorded};
use super::scheme;
use super::visit::{OpReader, kind_name, visit_ref};
use crate::burn::data::*;
use crate::burn::into_vec;

/// What is done with a matrix that rests in 8 bits.
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
    pub(crate) op: Int8Op,
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

/// Returns a tensor of such a type as its bytes, and others as they are.
fn as_bytes(tensor: TensorIr) -> TensorIr {
    match is_packed(tensor.dtype) {
        true => TensorIr {
            shape: packed_shape(tensor.shape.as_slice()).into(),
            dtype: DType::U8,
            ..tensor
        },
        false => tensor,
    }
}

/// Returns an operation as it is recorded: those on tensors that rest in 8 bits are on bytes.
pub(crate) fn on_bytes(op: Recorded) -> Recorded {
    let (op, input, out) = match op {
        Recorded::Burn(OperationIr::BaseFloat(BaseOperationIr::Cast(cast)))
            if is_packed(cast.out.dtype) && cast.input.dtype.is_float() =>
        {
            (Int8Op::Pack, cast.input, cast.out)
        }
        Recorded::Burn(OperationIr::Float(_, FloatOperationIr::Dequantize(op)))
            if is_packed(op.input.dtype) =>
        {
            // In bf16, which has all values exactly, it is kept; what computes dequantizes to f32.
            let kept = op.out.dtype == DType::BF16;
            let unpack = if kept { Int8Op::UnpackAtRest } else { Int8Op::Unpack };
            (unpack, op.input, op.out)
        }
        Recorded::Mark(marked) if is_packed(marked.input.dtype) => {
            let Marked { mark, input, out } = *marked;
            let (input, out) = (as_bytes(input), as_bytes(out));
            let mark = match mark {
                Mark::Param(spec) => {
                    Mark::Param(ParamSpec::of_cast(&spec, out.shape.as_slice()))
                }
                Mark::Redistribute(layout) => {
                    Mark::Redistribute(layout.along_first_dims(out.shape.as_slice()).into())
                }
            };
            return Recorded::Mark(Box::new(Marked { mark, input, out }));
        }
        op => return op,
    };
    let (input, out) = (as_bytes(input), as_bytes(out));
    Recorded::Int8(Box::new(Int8 { op, input, out }))
}

/// Checks that nothing but what makes and unpacks tensors that rest in 8 bits takes them, and that there are bytes.
///
/// # Errors
/// [`PlanError::RestsInBytes`] and [`PlanError::NoBytes`].
pub(crate) fn check(op: &Recorded, has_bytes: bool) -> Result<(), PlanError> {
    struct Any(bool);
    impl OpReader<'_> for Any {
        fn input(&mut self, tensor: &TensorIr) {
            self.0 |= is_packed(tensor.dtype);
        }
        fn output(&mut self, tensor: &TensorIr) {
            self.input(tensor);
        }
    }
    match op {
        Recorded::Int8(_) if !has_bytes => Err(PlanError::NoBytes),
        Recorded::Burn(burn) => {
            let mut any = Any(false);
            visit_ref(op, &mut any);
            match any.0 && !matches!(burn, OperationIr::Drop(_)) {
                true => Err(PlanError::RestsInBytes {
                    op: kind_name(burn).into(),
                }),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

impl Operation for Int8 {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self.op {
            // What rests in pieces is packed in pieces.
            Int8Op::Pack => RuleBuilder::notation(shapes, "... o -> ... o -")
                .blocks('o', BLOCK)
                .elementwise()
                .build(),
            Int8Op::Unpack => RuleBuilder::notation(shapes, "... o - -> ... o")
                .blocks('o', BLOCK)
                .build(),
            Int8Op::UnpackAtRest => RuleBuilder::notation(shapes, "... o - -> ... o")
                .blocks('o', BLOCK)
                .elementwise()
                .build(),
        }
    }

    fn traits(&self) -> Traits {
        let unpacks = self.op != Int8Op::Pack;
        Traits {
            is_cast: unpacks,
            unpacks,
            ..Traits::default()
        }
    }

    fn makes(&self) -> bool {
        true
    }
}

impl Run for Int8 {
    fn run<B: BackendIr, E: Env<B>>(&self, cx: &mut Context<'_, B, E>) -> Result<(), ExecuteError> {
        let Self { op, input, out } = self;
        let handle = cx.env.take(input);
        let data = into_data::<B>(handle, input.shape.clone(), input.dtype);
        let data = block_on(data).expect("the device gives what it has made");
        let shape = out.shape.clone();
        let width = |tensor: &TensorIr| tensor.shape.as_slice().last().copied().unwrap_or(1);
        let made = match op {
            Int8Op::Pack => {
                let values = into_vec::<f32>(data.convert_dtype(DType::F32));
                let values = values.expect("it was converted");
                TensorData::new(int8::pack(&values, width(input)), shape)
            }
            Int8Op::Unpack | Int8Op::UnpackAtRest => {
                let (bytes, width) = (data.as_bytes(), width(out));
                match out.dtype {
                    DType::BF16 => {
                        // Values are exact in its bits.
                        let of = |value: f32| bf16::from_bits((value.to_bits() >> 16) as u16);
                        TensorData::new(int8::unpack(bytes, width, of), shape)
                    }
                    DType::F16 => {
                        TensorData::new(int8::unpack(bytes, width, f16::from_f32), shape)
                    }
                    dtype => {
                        let values = int8::unpack(bytes, width, |value| value);
                        TensorData::new(values, shape).convert_dtype(dtype)
                    }
                }
            }
        };
        cx.env.put(out, from_data::<B>(made, cx.env.device()));
        Ok(())
    }
}

impl Int8Op {
    /// All of them: of two names, the longer one first.
    pub(super) const ALL: [Self; 3] = [Self::UnpackAtRest, Self::Unpack, Self::Pack];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pack => "int8_pack",
            Self::Unpack => "int8_unpack",
            Self::UnpackAtRest => "int8_unpack_at_rest",
        }
    }
}

#[cfg(test)]
mod tests;
