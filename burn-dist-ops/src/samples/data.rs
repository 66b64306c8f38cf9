//! Data to run samples on.

use crate::burn::test::quantized;
use crate::visit::kind_name;
use burn_backend::{DType, TensorData};
use burn_ir::*;
use std::ops::Range;

/// Returns data for every input of `op`, in the order of the visitor, such that `op` is defined on it.
///
/// Floats are in `[0.1, 0.9)` (`acosh`: above 1), ints are small and positive, indices are in range.
pub(crate) fn inputs(op: &OperationIr, seed: u64) -> Vec<TensorData> {
    let mut random = SplitMix(seed);
    op.inputs()
        .enumerate()
        .map(|(index, tensor)| match tensor.dtype {
            DType::Bool(_) => {
                let values = random.many(tensor, |r| r.next() & 1 == 1);
                TensorData::new(values, tensor.shape.clone())
            }
            DType::QFloat(scheme) => {
                let values = random.many(tensor, |r| r.between(&(-127..128)) as i8);
                quantized(values, tensor.shape.clone(), scheme, 0.03)
            }
            dtype if dtype.is_float() => {
                let low = if kind_name(op) == "acosh" { 1.1 } else { 0.1 };
                let values = random.many(tensor, |r| low + 0.8 * r.unit());
                TensorData::new(values, tensor.shape.clone()).convert_dtype(dtype)
            }
            dtype => {
                let range = int_range(op, index);
                let values = random.many(tensor, |r| r.between(&range));
                TensorData::new(values, tensor.shape.clone()).convert_dtype(dtype)
            }
        })
        .collect()
}

/// The values that the int tensor `index` of `op` may have.
fn int_range(op: &OperationIr, index: usize) -> Range<i64> {
    let up_to = |size: usize| 0..size as i64;
    let indexed = |dim: usize| up_to(op.inputs().next().map_or(0, |t| t.shape[dim]));
    match op {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base)
            if index == 1 =>
        {
            match base {
                BaseOperationIr::Gather(op) => indexed(op.dim),
                BaseOperationIr::Scatter(op) => indexed(op.dim),
                BaseOperationIr::Select(op) => indexed(op.dim),
                BaseOperationIr::SelectAssign(op) => indexed(op.dim),
                // The samples index the first two dims, of which the first is smaller.
                BaseOperationIr::GatherNd(_) | BaseOperationIr::ScatterNd(_) => indexed(0),
                _ => 1..5,
            }
        }
        OperationIr::Module(op) => match op {
            ModuleOperationIr::Embedding(_) | ModuleOperationIr::EmbeddingBackward(_) => indexed(0),
            ModuleOperationIr::MaxPool1dWithIndicesBackward(op) => up_to(op.x.shape[2]),
            ModuleOperationIr::MaxPool2dWithIndicesBackward(op) => {
                up_to(op.x.shape[2] * op.x.shape[3])
            }
            ModuleOperationIr::CtcLoss(_) | ModuleOperationIr::CtcLossBackward(_) => match index {
                1 => 1..4, // Targets: the classes but the blank one.
                2 => 5..8, // Input lengths: long enough for two equal targets.
                _ => 1..3, // Target lengths.
            },
            _ => 1..5,
        },
        _ => 1..5,
    }
}

/// A small generator for test data (Steele et al., OOPSLA 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
    fn between(&mut self, range: &Range<i64>) -> i64 {
        range.start + (self.next() % (range.end - range.start) as u64) as i64
    }
    fn many<T>(&mut self, tensor: &TensorIr, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..tensor.shape.num_elements())
            .map(|_| one(self))
            .collect()
    }
}
