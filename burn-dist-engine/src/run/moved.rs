//! Zeros, reshaped and concatenated tensors and rows by index, of tensors that are in memory: on all threads, in memory
//! that freed results have left.

use std::sync::Arc;

use burn_backend::{DType, Element};
use burn_dist_kernels::region::{
    Array, RegionError, add_rows, concat, copy, pick_rows, places_of, zeros,
};
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
        Moved::Rows { of, indices } => {
            let (of, indices) = (
                taken::<B>(of, env).to_contiguous(),
                taken::<B>(indices, env),
            );
            let (first, count) = (of.layout().start_offset(), of.layout().num_elements());
            let rows = &of.bytes()[first * size..][..count * size];
            let row_bytes = of.layout().shape()[1] * size;
            let pick = |to: &mut [_]| named(pick_rows(rows, row_bytes, &numbers(&indices), to));
            // SAFETY: all bytes are written, or it panics.
            unsafe { written::<B>(out, pool, pick) }
        }
        Moved::SumOfRows {
            added,
            indices,
            like,
        } => {
            env.take(like);
            let (added, indices) = (taken::<B>(added, env), taken::<B>(indices, env));
            let added = added.to_contiguous();
            let (rows, added) = (out.shape[0], elements::<f32>(&added));
            let add = |to: &mut [_]| {
                named(add_rows(rows, added, &numbers(&indices), places_of(to)));
            };
            // SAFETY: all bytes are written, or it panics.
            unsafe { written::<B>(out, pool, add) }
        }
    };
    env.put(out, handle);
    true
}

/// Checks what was done by indices.
///
/// # Panics
/// If an index names no row, as the backend's own operations do: who runs it says which one that is globally.
fn named(done: Result<(), RegionError>) {
    done.unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the numbers of a tensor of indices, in order.
fn numbers(indices: &FlexTensor) -> Vec<i64> {
    let indices = indices.to_contiguous();
    match indices.dtype() {
        DType::I32 => {
            let numbers = elements::<i32>(&indices).iter();
            numbers.map(|index| i64::from(*index)).collect()
        }
        _ => elements::<i64>(&indices).to_vec(),
    }
}

/// Returns the elements of a tensor that lie in order.
fn elements<T: Element + bytemuck::Pod>(tensor: &FlexTensor) -> &[T] {
    let layout = tensor.layout();
    &tensor.storage::<T>()[layout.start_offset()..][..layout.num_elements()]
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
    use burn_ir::{
        BaseOperationIr, CatOpIr, CreationOpIr, EmbeddingBackwardOpIr, EmbeddingOpIr,
        ModuleOperationIr, OperationIr, ShapeOpIr, TensorStatus,
    };
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

    /// Runs an operation here and by Flex, and checks that both make the same.
    fn assert_as_flex(op: &Recorded, mut env: Map, pool: &Arc<Pool>, what: &str) {
        let mut expected = env.clone();
        execute_recorded::<Flex, _>(op, &mut expected).unwrap();
        assert!(run::<Flex>(op, &mut env, pool), "{op:?}");
        let out = op.makes().next().expect("one tensor");
        let (made, expected) = (env.read(out), expected.read(out));
        assert_eq!(made.as_bytes(), expected.as_bytes(), "{op:?} {what}");
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
                assert_as_flex(&op, env, &pool, &format!("turned {turned}"));
            }
        }
    }

    /// An operation by index.
    fn by_index(
        backward: bool,
        [rows, columns]: [usize; 2],
        indices: [usize; 2],
        [dtype, of_indices]: [DType; 2],
    ) -> Recorded {
        let read = |id, shape: &[usize], dtype| tensor(id, shape, dtype, TensorStatus::ReadOnly);
        let weights = read(1, &[rows, columns], dtype);
        let made = [indices[0], indices[1], columns];
        let at = read(2, &indices, of_indices);
        let op = match backward {
            false => ModuleOperationIr::Embedding(EmbeddingOpIr {
                weights,
                indices: at,
                out: tensor(9, &made, dtype, TensorStatus::NotInit),
            }),
            true => ModuleOperationIr::EmbeddingBackward(EmbeddingBackwardOpIr {
                weights,
                out_grad: read(3, &made, dtype),
                indices: at,
                out: tensor(9, &[rows, columns], dtype, TensorStatus::NotInit),
            }),
        };
        Recorded::from(OperationIr::Module(op))
    }

    #[test]
    fn rows_by_index_are_those_of_flex() {
        let pool = Pool::exact();
        let types = [
            [DType::F32, DType::I64],
            [DType::F32, DType::I32],
            [DType::BF16, DType::I64],
        ];
        for sizes in [[1, 1], [7, 5], [333, 129], [40, 1000]] {
            for (indices, types) in [[1, 1], [3, 4], [2, 700]]
                .iter()
                .flat_map(|indices| types.map(|types| (*indices, types)))
            {
                for (backward, turned) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let op = by_index(backward, sizes, indices, types);
                    let mut env = Map::default();
                    for input in op.reads() {
                        match input.dtype.is_float() {
                            true => env.with(input, turned),
                            false => {
                                let row = |at: usize| ((at * 31 + 5) % sizes[0]) as f32;
                                env.with_values(input, turned, row);
                            }
                        }
                    }
                    let is_left = backward && types[0] != DType::F32;
                    assert_eq!(op.moved().is_none(), is_left, "{op:?}");
                    if is_left {
                        continue;
                    }
                    assert_as_flex(&op, env, &pool, &format!("turned {turned}"));
                }
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
