//! Burn 0.21, and repairs of its faults that would be wrong values: reshapes of some views, and reductions of Flex that
//! take some views for their whole buffer.

use burn_backend::quantization::{QuantLevel, QuantScheme, QuantizationParametersPrimitive};
use burn_backend::tensor::{FloatTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{Backend, DType, DataError, Element, Shape, TensorData, TensorMetadata};
use burn_dist_door::Activation;
use burn_flex::{FlexTensor, Layout};
use burn_ir::{BackendIr, OperationIr, QuantizationParametersIr, TensorIr};

use super::downcast;

/// True if Flex's remainder of floats is that of regions; here it rounds a sum before it.
pub(crate) const REMAINDER_IS_EXACT: bool = false;

/// Data of the host, and its parts by the names that they have from 0.22 on.
pub mod data {
    pub use burn_backend::TensorData;
    pub use burn_dist_door::DataParts;
}

/// Returns the parameters of a quantization. There is no scale beyond these.
pub(crate) fn quantization<B: Backend>(
    scales: FloatTensor<B>,
    _: Option<FloatTensor<B>>,
) -> QuantizationParametersPrimitive<B> {
    QuantizationParametersPrimitive { scales }
}

/// Returns how many elements share a scale, if those of a whole tensor do not.
pub(crate) fn block_elements(scheme: &QuantScheme) -> Option<usize> {
    match scheme.level {
        QuantLevel::Tensor => None,
        QuantLevel::Block(size) => Some(size.num_elements()),
    }
}

/// Returns the name of the activation that a custom operation carries.
pub(crate) fn carried(op: &OperationIr) -> Option<&'static str> {
    Activation::of(op).map(|activation| activation.name())
}

/// Returns the scale that the others are relative to: there is none.
pub(crate) fn global_scale(_: &QuantizationParametersIr) -> Option<&TensorIr> {
    None
}

/// Returns [`global_scale`], to change it.
pub(crate) fn global_scale_mut(_: &mut QuantizationParametersIr) -> Option<&mut TensorIr> {
    None
}

/// Returns the elements of data, which are of this type.
///
/// # Errors
/// If they are of another type.
pub(crate) fn into_vec<T: Element>(data: TensorData) -> Result<Vec<T>, DataError> {
    data.into_vec()
}

/// Writes at indices along a dim, with every update.
///
/// Backends offer addition only along one dim, but every update for nd scatters. So the other updates become nd
/// scatters. Where an index repeats, `Assign` keeps one of the values, as the backend's nd scatter does.
pub(crate) trait Write: BackendIr {
    /// Writes floats to elements, each with an index along `dim`.
    fn float_write(
        dim: usize,
        data: FloatTensor<Self>,
        indices: IntTensor<Self>,
        values: FloatTensor<Self>,
        update: IndexingUpdateOp,
    ) -> FloatTensor<Self> {
        if update == IndexingUpdateOp::Add {
            return Self::float_scatter_add(dim, data, indices, values);
        }
        let count = indices.shape().num_elements();
        let values = Self::float_reshape(values, [count].into());
        Self::float_scatter_nd(data, coordinates::<Self>(dim, indices), values, update)
    }

    /// Writes ints to elements, each with an index along `dim`.
    fn int_write(
        dim: usize,
        data: IntTensor<Self>,
        indices: IntTensor<Self>,
        values: IntTensor<Self>,
        update: IndexingUpdateOp,
    ) -> IntTensor<Self> {
        if update == IndexingUpdateOp::Add {
            return Self::int_scatter_add(dim, data, indices, values);
        }
        let count = indices.shape().num_elements();
        let values = Self::int_reshape(values, [count].into());
        Self::int_scatter_nd(data, coordinates::<Self>(dim, indices), values, update)
    }

    /// Writes floats to the rows of `dim`.
    fn float_write_rows(
        data: FloatTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
        values: FloatTensor<Self>,
        update: IndexingUpdateOp,
    ) -> FloatTensor<Self> {
        if update == IndexingUpdateOp::Add {
            return Self::float_select_add(data, dim, indices, values);
        }
        let rows = |tensor| match dim {
            0 => tensor,
            _ => Self::float_swap_dims(tensor, 0, dim),
        };
        let indices = places::<Self>(indices);
        rows(Self::float_scatter_nd(
            rows(data),
            indices,
            rows(values),
            update,
        ))
    }

    /// Writes ints to the rows of `dim`.
    fn int_write_rows(
        data: IntTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
        values: IntTensor<Self>,
        update: IndexingUpdateOp,
    ) -> IntTensor<Self> {
        if update == IndexingUpdateOp::Add {
            return Self::int_select_add(data, dim, indices, values);
        }
        let rows = |tensor| match dim {
            0 => tensor,
            _ => Self::int_swap_dims(tensor, 0, dim),
        };
        let indices = places::<Self>(indices);
        rows(Self::int_scatter_nd(
            rows(data),
            indices,
            rows(values),
            update,
        ))
    }
}

impl<B: BackendIr> Write for B {}

/// Returns indices of rows as an nd scatter takes them, which writes whole slices of the first dim: one to a place.
fn places<B: BackendIr>(indices: IntTensor<B>) -> IntTensor<B> {
    let count = indices.shape().num_elements();
    B::int_reshape(indices, [count, 1].into())
}

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

/// Pools of maxima, with the places where they were.
#[allow(clippy::too_many_arguments, reason = "they are Burn's")]
pub(crate) trait MaxPool: BackendIr {
    /// Returns the maxima of windows over 1 dim, and their places, in a type that the backend chooses.
    fn max_pool1d_places(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        _: DType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let pool =
            Self::max_pool1d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode);
        (pool.output, pool.indices)
    }

    /// Returns places in the type in which a backward takes them: that in which the backend's own forward makes them
    /// (Flex: i64), which need not be that of the program's ints. Pooling one element tells which it is.
    fn own_places1d(x: &FloatTensor<Self>, places: IntTensor<Self>) -> IntTensor<Self> {
        let device = Self::float_device(x);
        let one = Self::float_zeros([1; 3].into(), &device, x.dtype().into());
        let [kernel, step, edge, dilated] = [1, 1, 0, 1];
        let pool = Self::max_pool1d_with_indices(one, kernel, step, edge, dilated, false);
        let own = pool.indices.dtype();
        match places.dtype() == own {
            true => places,
            false => Self::int_cast(places, own.into()),
        }
    }

    /// Returns the maxima of windows over 2 dims, and their places, in a type that the backend chooses.
    fn max_pool2d_places(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        _: DType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let pool =
            Self::max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode);
        (pool.output, pool.indices)
    }

    /// Returns places in the type in which a backward takes them: that in which the backend's own forward makes them
    /// (Flex: i64), which need not be that of the program's ints. Pooling one element tells which it is.
    fn own_places2d(x: &FloatTensor<Self>, places: IntTensor<Self>) -> IntTensor<Self> {
        let device = Self::float_device(x);
        let one = Self::float_zeros([1; 4].into(), &device, x.dtype().into());
        let [kernel, step, edge, dilated] = [[1; 2], [1; 2], [0; 2], [1; 2]];
        let pool = Self::max_pool2d_with_indices(one, kernel, step, edge, dilated, false);
        let own = pool.indices.dtype();
        match places.dtype() == own {
            true => places,
            false => Self::int_cast(places, own.into()),
        }
    }
}

impl<B: BackendIr> MaxPool for B {}

/// Returns the shape `[N]` if a reshape between these shapes must pass through it.
///
/// Where the last dim has size 1 and dims are added, `split_strides` of burn-std 0.21 derives all strides from that
/// one. For a tensor that is not contiguous (a dim was repeated or swapped) they are wrong, and backends that reshape
/// by strides read other elements, or beyond the buffer. Splits make such dims on ranks where one device has none. On
/// before `[N]` these backends copy such a tensor; for a contiguous one both steps are views.
pub fn flat_between(from: &Shape, to: &Shape) -> Option<Shape> {
    let ends_in_one = from.iter().next_back() == Some(&1);
    (from.num_dims() > 1 && ends_in_one && to.num_dims() > from.num_dims())
        .then(|| Shape::from([from.num_elements()]))
}

/// True if the gradient of a layer's weight is a sum over the batch where that has one matrix too.
pub(crate) const SUMS_OF_ONE: bool = true;

/// True if programs record linear layers as such.
pub(crate) const RECORDS_LAYERS: bool = true;

/// Returns `x W (+ b)`.
pub(crate) fn linear<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    B::linear(x, weight, bias)
}

/// Returns the gradient of a layer's `x`.
pub(crate) fn linear_x_backward<B: Backend>(
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    B::linear_x_backward(weight, gradient)
}

/// Returns the gradient of a layer's weight.
pub(crate) fn linear_weight_backward<B: Backend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    B::linear_weight_backward(x, gradient)
}

/// Returns an input of a reduction over `dim` (over all dims if `None`) such that Flex reads what it shows: as it is
/// where that is the case, and on any other backend; else a copy.
///
/// `sum_dim` of f32 along a dim of stride 1 takes the results to be `shape[dim]` elements apart, and the sum, the
/// largest and the smallest of all f32 take a view for its buffer where both have as many elements.
pub(crate) fn reducible<T: 'static>(tensor: T, dim: Option<usize>) -> T {
    match downcast::<T, FlexTensor>(tensor) {
        Ok(tensor) => {
            let layout = tensor.layout();
            let shows_all = || tensor.bytes().len() == layout.num_elements() * size_of::<f32>();
            let misread = tensor.dtype() == DType::F32
                && !tensor.is_contiguous()
                && match dim {
                    Some(dim) => is_misread_along(layout, dim),
                    None => shows_all() && !is_permutation(layout),
                };
            let tensor = match misread {
                true => tensor.to_contiguous(),
                false => tensor,
            };
            downcast(tensor).unwrap_or_else(|_| unreachable!("it was a Flex tensor"))
        }
        Err(tensor) => tensor,
    }
}

fn is_misread_along(layout: &Layout, dim: usize) -> bool {
    let (shape, strides) = (layout.shape(), layout.strides());
    // One result is read from where it starts; of several, the places are wrong.
    strides[dim] == 1
        && shape[..dim].iter().product::<usize>() == 1
        && shape[dim + 1..].iter().product::<usize>() > 1
        && strides[dim + 1] != shape[dim] as isize
}

/// Returns whether a view shows each element of some range of its buffer once.
fn is_permutation(layout: &Layout) -> bool {
    let dims = layout.shape().iter().zip(layout.strides());
    let mut dims: Vec<(usize, usize)> = dims
        .filter(|(size, _)| **size != 1)
        .map(|(size, stride)| (stride.unsigned_abs(), *size))
        .collect();
    dims.sort_unstable();
    let mut next = 1;
    dims.into_iter().all(|(stride, size)| {
        let dense = stride == next;
        next *= size;
        dense
    })
}

/// Parts of tests that differ.
#[cfg(test)]
pub(crate) mod test {
    use burn_backend::quantization::QuantScheme;
    use burn_backend::{QTensorPrimitive, Shape};
    use burn_flex::{Flex, FlexQTensor};
    use burn_ir::{OperationIr, QuantizationParametersIr, TensorIr, TensorStatus};
    use burn_router::{Runner, RunnerClient};

    use super::data::*;

    /// Returns a scheme that Flex has: symmetric 8 bit, one scale per tensor.
    pub(crate) fn scheme() -> QuantScheme {
        <FlexQTensor as QTensorPrimitive>::default_scheme()
    }

    /// Returns the parameters of a quantization.
    pub(crate) fn scales(scales: TensorIr) -> QuantizationParametersIr {
        QuantizationParametersIr { scales }
    }

    /// Returns quantized data with one scale.
    pub(crate) fn quantized(
        values: Vec<i8>,
        shape: Shape,
        scheme: QuantScheme,
        scale: f32,
    ) -> TensorData {
        TensorData::quantized(values, shape, scheme, &[scale])
    }

    /// Returns the padding of a convolution, the same at both ends.
    pub(crate) fn padding<const N: usize>(padding: [usize; N]) -> [usize; N] {
        padding
    }

    /// Returns what burn-router's runner makes of data.
    pub(crate) fn interpreted(op: &OperationIr, data: &[TensorData]) -> Vec<TensorData> {
        let runner = Runner::<Flex>::new(Default::default());
        for (tensor, data) in op.inputs().zip(data) {
            runner.register_tensor_data_id(tensor.id, data.clone());
        }
        runner.register_op(op.clone());
        let read = |out: &TensorIr| {
            let status = TensorStatus::ReadOnly;
            let out = TensorIr {
                status,
                ..out.clone()
            };
            burn_std::future::block_on(runner.read_tensor_async(out)).unwrap()
        };
        op.outputs().map(read).collect()
    }

    /// Rules written out, by the names of operations that this line alone has.
    pub(crate) const RULES: &[(&str, &str)] = &[("rfft", "a-->a-,a-")];

    /// Operations that the runner cannot do, or does not do on data alone.
    pub(crate) const BEYOND: &[(&str, &str)] = &[
        ("base_int", "cast"),
        ("base_bool", "cast"),
        ("base_bool", "scatter_nd"),
        ("base_bool", "gather_nd"),
        ("float", "quantize"),
        ("float", "dequantize"),
        ("float", "random"),
        ("numeric_float", "argtopk"),
        ("numeric_int", "argtopk"),
        ("numeric_int", "random"),
        ("module", "ctc_loss_backward"),
        ("custom", "custom"),
        ("init", "init"),
        ("drop", "drop"),
    ];
}
