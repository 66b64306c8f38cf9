//! Products of f32 matrices that are in memory: bit for bit Flex's, in memory that freed results have left.

use std::mem::MaybeUninit;
use std::sync::Arc;

use burn_backend::Shape;
use burn_dist_kernels::product::{Matrices, Sizes, product, sum_of_products};
use burn_dist_kernels::region::places_of;
use burn_flex::FlexTensor;
use burn_ir::BackendIr;

use super::bridge::{is_in_memory, taken, written};
use crate::burn::{REORDERS_TURNED, with_bias};
use crate::comm::Pool;
use crate::ops::Recorded;
use crate::ops::execute::Env;
use crate::ops::product::Factor;

/// Runs an operation that is products of f32 matrices in memory; returns `false` if it is not.
pub(super) fn run<B: BackendIr>(op: &Recorded, env: &mut impl Env<B>, pool: &Arc<Pool>) -> bool {
    if !is_in_memory::<B>() {
        return false;
    }
    let Some(of) = op.product() else {
        return false;
    };
    let ([rows, inner], [_, columns]) = (of.left.sizes(), of.right.sizes());
    let sizes = Sizes {
        batch: &of.batch,
        rows,
        inner,
        columns,
    };
    if REORDERS_TURNED && of.right.is_turned && of.right.is_reshaped && !sizes.is_divisible() {
        return false;
    }
    let [left, right] = [&of.left, &of.right].map(|factor| {
        let tensor = taken::<B>(factor.tensor, env);
        match factor.is_reshaped && !sizes.is_divisible() {
            true => tensor.to_contiguous(),
            false => tensor,
        }
    });
    let dims = of.batch.len();
    let [in_left, in_right] = [(&of.left, &left), (&of.right, &right)]
        .map(|(factor, tensor)| factor.batch_strides(tensor.layout().strides(), dims));
    let write = |to: &mut [MaybeUninit<u8>]| {
        let (left, right) = (
            matrices(&of.left, &left, &in_left),
            matrices(&of.right, &right, &in_right),
        );
        match of.is_sum {
            true => sum_of_products(sizes, left, right, places_of(to)),
            false => product(sizes, left, right, places_of(to)),
        }
    };
    // SAFETY: a product writes all elements.
    let handle = unsafe { written::<B>(of.out, pool, write) };
    drop((left, right));
    let handle = match of.bias {
        Some(bias) => {
            let tensor = |handle, shape: &Shape| {
                let shape = shape.clone();
                B::float_tensor(burn_ir::TensorHandle { handle, shape })
            };
            let bias = tensor(env.take(bias), &bias.shape);
            B::float_tensor_handle(with_bias::<B>(tensor(handle, &of.out.shape), bias))
        }
        None => handle,
    };
    env.put(of.out, handle);
    true
}

/// Returns where matrices lie; `batch` has their strides along the batch.
fn matrices<'a>(factor: &Factor<'_>, tensor: &'a FlexTensor, batch: &'a [isize]) -> Matrices<'a> {
    let layout = tensor.layout();
    let [rows, columns] = factor.own_strides(layout.strides());
    Matrices {
        values: tensor.storage(),
        offset: layout.start_offset(),
        batch,
        rows,
        columns,
    }
}

#[cfg(test)]
mod tests {
    use burn_flex::Flex;
    use burn_ir::{
        FloatOperationIr, LinearOpIr, LinearWeightBackwardOpIr, LinearXBackwardOpIr, MatmulOpIr,
        ModuleOperationIr, OperationIr, TensorStatus,
    };
    use burn_std::DType;

    use super::super::in_map::{Map, tensor};
    use super::*;
    use crate::ops::execute::execute_recorded;

    /// Every operation that has products, over a batch of matrices of a size.
    fn operations(batch: &[usize], [rows, inner, columns]: [usize; 3]) -> Vec<OperationIr> {
        let of = |last: [usize; 2]| [batch, &last].concat();
        let read = |id, shape: &[usize]| tensor(id, shape, DType::F32, TensorStatus::ReadOnly);
        let out = |shape: &[usize]| tensor(9, shape, DType::F32, TensorStatus::NotInit);
        let (x, weight) = (read(1, &of([rows, inner])), read(2, &[inner, columns]));
        let gradient = read(3, &of([rows, columns]));
        let module = |op| OperationIr::Module(op);
        let linear = |bias| {
            module(ModuleOperationIr::Linear(LinearOpIr {
                x: x.clone(),
                weight: weight.clone(),
                bias,
                out: out(&of([rows, columns])),
            }))
        };
        let mut one = of([inner, columns]);
        one.iter_mut()
            .take(1.min(batch.len()))
            .for_each(|size| *size = 1);
        let matmul = |rhs: &[usize]| {
            OperationIr::Float(
                DType::F32,
                FloatOperationIr::Matmul(MatmulOpIr {
                    lhs: x.clone(),
                    rhs: read(4, rhs),
                    out: out(&of([rows, columns])),
                }),
            )
        };
        vec![
            matmul(&of([inner, columns])),
            matmul(&one),
            linear(None),
            linear(Some(read(5, &[columns]))),
            module(ModuleOperationIr::LinearXBackward(LinearXBackwardOpIr {
                weight: weight.clone(),
                output_grad: gradient.clone(),
                out: out(&of([rows, inner])),
            })),
            module(ModuleOperationIr::LinearWeightBackward(
                LinearWeightBackwardOpIr {
                    x: x.clone(),
                    output_grad: gradient,
                    out: out(&[inner, columns]),
                },
            )),
        ]
    }

    #[test]
    fn products_are_bit_for_bit_those_of_flex() {
        let pool = Pool::exact();
        let batches: [&[usize]; 6] = [&[], &[1], &[3], &[8], &[1, 4], &[2, 3]];
        let sizes = [
            [5, 3, 4],
            [1, 7, 9],
            [64, 2, 33],
            [96, 40, 72],
            [130, 600, 20],
            [9, 5, 1],
        ];
        let mut run_here = 0;
        for (batch, size) in batches
            .iter()
            .flat_map(|batch| sizes.map(|size| (batch, size)))
        {
            for (op, turned) in operations(batch, size).into_iter().zip([0, 1, 2, 3, 1, 2]) {
                let mut env = Map::default();
                for (at, input) in op.inputs().enumerate() {
                    let is_matrix = input.shape.num_dims() > 1;
                    env.with(input, is_matrix && (turned >> at) & 1 == 1);
                }
                let out = op.outputs().next().unwrap().clone();
                let op = Recorded::from(op);
                let mut expected = env.clone();
                execute_recorded::<Flex, _>(&op, &mut expected).unwrap();
                if !run::<Flex>(&op, &mut env, &pool) {
                    let is_one = out.shape.num_elements() == 1;
                    assert!(is_one || REORDERS_TURNED || batch.len() > 1, "{op:?}");
                    continue;
                }
                run_here += 1;
                let (made, expected) = (env.read(&out), expected.read(&out));
                assert_eq!(made.as_bytes(), expected.as_bytes(), "{op:?}");
            }
        }
        assert!(run_here > 150, "{run_here} products of {}", 36 * 6);
    }
}
