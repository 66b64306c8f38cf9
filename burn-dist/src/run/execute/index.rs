//! Scatter and select with every update, over the kernels that backends have.
//!
//! Backends offer addition only (for bools: or) along one dim, but every update for nd scatters. So the other updates
//! become nd scatters. Where an index repeats, `Assign` keeps one of the values, as the backend's nd scatter does.

use burn_backend::tensor::{BoolTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{DType, Shape, TensorMetadata};
use burn_ir::BackendIr;

/// Returns the coordinates `[N, ndim]` of the N elements that a scatter along `dim` writes.
///
/// Row `n` is the position of element `n` of `indices` (row-major), with its coordinate along `dim` replaced by its
/// value: `dim = 1`, `indices = [[4, 0]]` -> `[[0, 4], [0, 0]]`.
fn coordinates<B: BackendIr>(dim: usize, indices: IntTensor<B>) -> IntTensor<B> {
    let shape = indices.shape();
    let device = B::int_device(&indices);
    let dtype = indices.dtype();
    let column = Shape::from([shape.num_elements(), 1]);
    let mut indices = Some(indices);
    let columns = (0..shape.num_dims())
        .map(|d| {
            let along = if d == dim {
                indices.take().expect("dim occurs once among the dims")
            } else {
                let size = shape[d];
                let mut line = vec![1; shape.num_dims()];
                line[d] = size;
                let positions = B::int_arange(0..size as i64, &device, dtype.into());
                B::int_expand(B::int_reshape(positions, line.into()), shape.clone())
            };
            B::int_reshape(along, column.clone())
        })
        .collect();
    B::int_cat(columns, 1)
}

/// Defines the updates of one kind of numeric tensor.
macro_rules! numeric_updates {
    (
        $kind:ident, $tensor:ident: $scatter_add:ident $select_add:ident $scatter_nd:ident $gather_nd:ident
        $reshape:ident $swap_dims:ident
    ) => {
        pub(super) mod $kind {
            use super::*;
            use burn_backend::tensor::$tensor;

            pub(in super::super) fn scatter<B: BackendIr>(
                tensor: $tensor<B>,
                dim: usize,
                indices: IntTensor<B>,
                value: $tensor<B>,
                update: IndexingUpdateOp,
            ) -> $tensor<B> {
                if update == IndexingUpdateOp::Add {
                    return B::$scatter_add(dim, tensor, indices, value);
                }
                let count = indices.shape().num_elements();
                let values = B::$reshape(value, [count].into());
                B::$scatter_nd(tensor, coordinates::<B>(dim, indices), values, update)
            }

            pub(in super::super) fn select_assign<B: BackendIr>(
                tensor: $tensor<B>,
                dim: usize,
                indices: IntTensor<B>,
                value: $tensor<B>,
                update: IndexingUpdateOp,
            ) -> $tensor<B> {
                if update == IndexingUpdateOp::Add {
                    return B::$select_add(tensor, dim, indices, value);
                }
                // An nd scatter with one index per row writes whole slices of the first dim.
                let count = indices.shape().num_elements();
                let rows = B::int_reshape(indices, [count, 1].into());
                if dim == 0 {
                    return B::$scatter_nd(tensor, rows, value, update);
                }
                let tensor = B::$swap_dims(tensor, 0, dim);
                let value = B::$swap_dims(value, 0, dim);
                B::$swap_dims(B::$scatter_nd(tensor, rows, value, update), 0, dim)
            }

            pub(in super::super) fn scatter_nd<B: BackendIr>(
                data: $tensor<B>,
                indices: IntTensor<B>,
                values: $tensor<B>,
                update: IndexingUpdateOp,
            ) -> $tensor<B> {
                B::$scatter_nd(data, indices, values, update)
            }

            pub(in super::super) fn gather_nd<B: BackendIr>(
                data: $tensor<B>,
                indices: IntTensor<B>,
            ) -> $tensor<B> {
                B::$gather_nd(data, indices)
            }
        }
    };
}

numeric_updates! {
    float, FloatTensor: float_scatter_add float_select_add float_scatter_nd float_gather_nd
    float_reshape float_swap_dims
}

numeric_updates! {
    int, IntTensor: int_scatter_add int_select_add int_scatter_nd int_gather_nd
    int_reshape int_swap_dims
}

/// Updates of bools: `Add` and `Max` are or, `Mul` and `Min` are and.
pub(super) mod bool {
    use super::*;
    use burn_backend::Scalar;

    /// Bools as 0 and 1 in an int dtype that every backend has.
    pub(in super::super) fn to_int<B: BackendIr>(tensor: BoolTensor<B>) -> IntTensor<B> {
        B::bool_into_int(tensor, DType::I32.into())
    }

    /// Bools from ints: whatever differs from zero is true.
    pub(in super::super) fn to_bool<B: BackendIr>(
        tensor: IntTensor<B>,
        dtype: DType,
    ) -> BoolTensor<B> {
        B::int_not_equal_elem(tensor, Scalar::Int(0), dtype.into())
    }

    /// The update of ints that keeps 0 and 1 what they are.
    fn on_ints(update: IndexingUpdateOp) -> IndexingUpdateOp {
        match update {
            IndexingUpdateOp::Assign => IndexingUpdateOp::Assign,
            IndexingUpdateOp::Add | IndexingUpdateOp::Max => IndexingUpdateOp::Max,
            IndexingUpdateOp::Mul | IndexingUpdateOp::Min => IndexingUpdateOp::Min,
        }
    }

    pub(in super::super) fn scatter<B: BackendIr>(
        tensor: BoolTensor<B>,
        dim: usize,
        indices: IntTensor<B>,
        value: BoolTensor<B>,
        update: IndexingUpdateOp,
    ) -> BoolTensor<B> {
        let update = on_ints(update);
        if update == IndexingUpdateOp::Max {
            return B::bool_scatter_or(dim, tensor, indices, value);
        }
        let dtype = tensor.dtype();
        let (tensor, value) = (to_int::<B>(tensor), to_int::<B>(value));
        to_bool::<B>(
            int::scatter::<B>(tensor, dim, indices, value, update),
            dtype,
        )
    }

    pub(in super::super) fn select_assign<B: BackendIr>(
        tensor: BoolTensor<B>,
        dim: usize,
        indices: IntTensor<B>,
        value: BoolTensor<B>,
        update: IndexingUpdateOp,
    ) -> BoolTensor<B> {
        let update = on_ints(update);
        if update == IndexingUpdateOp::Max {
            return B::bool_select_or(tensor, dim, indices, value);
        }
        let dtype = tensor.dtype();
        let (tensor, value) = (to_int::<B>(tensor), to_int::<B>(value));
        let out = int::select_assign::<B>(tensor, dim, indices, value, update);
        to_bool::<B>(out, dtype)
    }

    pub(in super::super) fn scatter_nd<B: BackendIr>(
        data: BoolTensor<B>,
        indices: IntTensor<B>,
        values: BoolTensor<B>,
        update: IndexingUpdateOp,
    ) -> BoolTensor<B> {
        let dtype = data.dtype();
        let (data, values) = (to_int::<B>(data), to_int::<B>(values));
        to_bool::<B>(
            B::int_scatter_nd(data, indices, values, on_ints(update)),
            dtype,
        )
    }

    pub(in super::super) fn gather_nd<B: BackendIr>(
        data: BoolTensor<B>,
        indices: IntTensor<B>,
    ) -> BoolTensor<B> {
        let dtype = data.dtype();
        to_bool::<B>(B::int_gather_nd(to_int::<B>(data), indices), dtype)
    }
}
