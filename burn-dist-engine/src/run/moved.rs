//! Zeros, reshaped and concatenated tensors that are in memory: on all threads, in memory that freed results have left.

use std::sync::Arc;

use burn_dist_kernels::region::{Array, RegionError, concat, copy, zeros};
use burn_flex::FlexTensor;
use burn_ir::BackendIr;

use super::bridge::{from_flex, is_in_memory, taken, written};
use crate::comm::Pool;
use crate::ops::Recorded;
use crate::ops::execute::Env;
use crate::ops::moved::Moved;

/// Runs an operation that fills a tensor in memory or moves elements there; returns `false` if it is another.
pub(super) fn run<B: BackendIr>(op: &Recorded, env: &mut impl Env<B>, pool: &Arc<Pool>) -> bool {
    if !is_in_memory::<B>() {
        return false;
    }
    let Some((moved, out)) = op.moved() else {
        return false;
    };
    let size = out.dtype.size();
    let inside = |copied: Result<(), RegionError>| {
        copied.unwrap_or_else(|error| panic!("a recorded tensor lies as its layout says: {error}"));
    };
    let handle = match moved {
        // SAFETY: zeros are written to all bytes.
        Moved::Zeros => unsafe { written::<B>(out, pool, zeros) },
        Moved::Reshape(from) => {
            let from = taken::<B>(from, env);
            match from.layout().is_contiguous() {
                true => from_flex::<B>(from.reshape(out.shape.clone()), out.dtype)
                    .expect("tensors of this backend are in memory"),
                // SAFETY: a copy without an error writes all bytes.
                false => unsafe {
                    written::<B>(out, pool, |to| inside(copy(&array(&from, size), to)))
                },
            }
        }
        Moved::Cat(parts, dim) => {
            let parts: Vec<_> = parts.iter().map(|part| taken::<B>(part, env)).collect();
            let arrays: Vec<_> = parts.iter().map(|part| array(part, size)).collect();
            // SAFETY: as above.
            unsafe { written::<B>(out, pool, |to| inside(concat(&arrays, dim, to))) }
        }
    };
    env.put(out, handle);
    true
}

/// Returns how a tensor with elements of so many bytes lies.
fn array(tensor: &FlexTensor, size: usize) -> Array<'_> {
    let layout = tensor.layout();
    Array {
        bytes: tensor.bytes(),
        size,
        offset: layout.start_offset(),
        shape: layout.shape().as_slice(),
        strides: layout.strides(),
    }
}

#[cfg(test)]
mod tests {
    use burn_flex::Flex;
    use burn_ir::{BaseOperationIr, CatOpIr, CreationOpIr, OperationIr, ShapeOpIr, TensorStatus};
    use burn_std::DType;

    use super::super::in_map::{Map, tensor};
    use super::*;
    use crate::ops::execute::execute_recorded;

    /// Every operation that moves elements, of tensors of a type.
    fn operations(dtype: DType, [rows, columns]: [usize; 2]) -> Vec<BaseOperationIr> {
        let read = |id, shape: &[usize]| tensor(id, shape, dtype, TensorStatus::ReadOnly);
        let out = |shape: &[usize]| tensor(9, shape, dtype, TensorStatus::NotInit);
        let cat = |dim: usize, others: [usize; 2]| {
            let mut shape = [rows, columns];
            shape[dim] = rows.max(columns) + others[dim];
            let mut parts = [[rows, columns]; 2];
            (parts[0][dim], parts[1][dim]) = (rows.max(columns), others[dim]);
            BaseOperationIr::Cat(CatOpIr {
                tensors: vec![read(1, &parts[0]), read(2, &parts[1])],
                dim,
                out: out(&shape),
            })
        };
        let reshape = |from: &[usize], to: &[usize]| {
            BaseOperationIr::Reshape(ShapeOpIr {
                input: read(1, from),
                out: out(to),
            })
        };
        vec![
            BaseOperationIr::Zeros(CreationOpIr {
                out: out(&[rows, columns]),
            }),
            reshape(&[rows, columns], &[columns, rows]),
            reshape(&[2, rows, columns], &[rows * columns, 2]),
            cat(0, [rows, columns]),
            cat(1, [3, 1]),
        ]
    }

    fn recorded(op: BaseOperationIr, dtype: DType) -> Recorded {
        Recorded::from(match dtype.is_float() {
            true => OperationIr::BaseFloat(op),
            false => OperationIr::BaseInt(op),
        })
    }

    #[test]
    fn elements_are_where_flex_has_them() {
        let pool = Pool::exact();
        let types = [DType::F32, DType::F64, DType::BF16, DType::I64, DType::I8];
        let sizes = [[1, 1], [3, 5], [1, 7], [64, 200], [333, 129]];
        for (dtype, size) in types
            .iter()
            .flat_map(|dtype| sizes.map(|size| (*dtype, size)))
        {
            for (op, turned) in operations(dtype, size)
                .into_iter()
                .flat_map(|op| [0, 1, 2, 3].map(|turned| (op.clone(), turned)))
            {
                let op = recorded(op, dtype);
                let mut env = Map::default();
                for (at, input) in op.reads().enumerate() {
                    env.with(input, (turned >> at) & 1 == 1);
                }
                let mut expected = env.clone();
                execute_recorded::<Flex, _>(&op, &mut expected).unwrap();
                assert!(run::<Flex>(&op, &mut env, &pool), "{op:?}");
                let out = op.makes().next().expect("one tensor");
                let (made, expected) = (env.read(out), expected.read(out));
                assert_eq!(made.as_bytes(), expected.as_bytes(), "{op:?} {turned}");
            }
        }
    }

    /// Tensors without elements, and bools, whose bytes a backend chooses, are left to Flex.
    #[test]
    fn others_are_left_alone() {
        let bools = DType::Bool(burn_std::BoolStore::Native);
        for (shape, dtype) in [(&[0, 3], DType::F32), (&[2, 3], bools)] {
            let out = tensor(9, shape, dtype, TensorStatus::NotInit);
            let op = OperationIr::BaseFloat(BaseOperationIr::Zeros(CreationOpIr { out }));
            assert!(Recorded::from(op).moved().is_none());
        }
    }
}
