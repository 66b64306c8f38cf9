//! The family of operations that pack matrices into 8 bits and unpack them.

use burn_backend::DType;
use burn_dist_kernels::int8::{self, BLOCK};
use burn_std::future::block_on;
use burn_std::{bf16, f16};

use super::execute::{from_data, into_data};
use super::family::prelude::*;
use super::int8::{Int8, Int8Op};
use crate::burn::data::*;
use crate::burn::into_vec;

/// An operation on a matrix that rests in 8 bits.
pub(super) enum Packing<'a> {
    /// Packs or unpacks.
    Int8(&'a Int8),
}

impl Operation for Packing<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let Self::Int8(op) = self;
        match op.op {
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
        let Self::Int8(op) = self;
        let unpacks = op.op != Int8Op::Pack;
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

impl Run for Packing<'_> {
    fn run<B: BackendIr, E: Env<B>>(&self, cx: &mut Context<'_, B, E>) -> Result<(), ExecuteError> {
        let Self::Int8(Int8 { op, input, out }) = self;
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
                    DType::F16 => TensorData::new(int8::unpack(bytes, width, f16::from_f32), shape),
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

#[cfg(test)]
mod tests;
