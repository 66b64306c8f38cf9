//! Burn 0.22.

use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn_backend::tensor::{FloatTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{Backend, DType, DataError, Element, Shape, TensorData, TensorMetadata};
use burn_ir::{BackendIr, OperationIr, QuantizationParametersIr, TensorIr};

use super::with_bias;

/// True if Flex's remainder of floats is that of regions.
pub(crate) const REMAINDER_IS_EXACT: bool = true;

/// Data of the host.
pub mod data {
    pub use burn_backend::TensorData;
}

/// Returns the parameters of a quantization.
pub(crate) fn quantization<B: Backend>(
    scales: FloatTensor<B>,
    global: Option<FloatTensor<B>>,
) -> QuantizationParametersPrimitive<B> {
    QuantizationParametersPrimitive { scales, global }
}

/// Returns how many elements share a scale, if those of a whole tensor do not.
pub(crate) fn block_elements(scheme: &QuantScheme) -> Option<usize> {
    Some(scheme.block_size()?.num_elements())
}

/// Returns the name of the activation that a custom operation carries: none does.
pub(crate) fn carried(_: &OperationIr) -> Option<&'static str> {
    None
}

/// Returns the scale that the others are relative to.
pub(crate) fn global_scale(parameters: &QuantizationParametersIr) -> Option<&TensorIr> {
    parameters.global.as_ref()
}

/// Returns [`global_scale`], to change it.
pub(crate) fn global_scale_mut(parameters: &mut QuantizationParametersIr) -> Option<&mut TensorIr> {
    parameters.global.as_mut()
}

/// Returns the elements of data, which are of this type.
///
/// # Errors
/// If they are of another type.
pub(crate) fn into_vec<T: Element>(data: TensorData) -> Result<Vec<T>, DataError> {
    data.try_into_vec()
}

/// Writes at indices along a dim, with every update.
pub(crate) trait Write: BackendIr {
    /// Writes floats to elements, each with an index along `dim`.
    fn float_write(
        dim: usize,
        data: FloatTensor<Self>,
        indices: IntTensor<Self>,
        values: FloatTensor<Self>,
        update: IndexingUpdateOp,
    ) -> FloatTensor<Self> {
        Self::float_scatter(dim, data, indices, values, update)
    }

    /// Writes ints to elements, each with an index along `dim`.
    fn int_write(
        dim: usize,
        data: IntTensor<Self>,
        indices: IntTensor<Self>,
        values: IntTensor<Self>,
        update: IndexingUpdateOp,
    ) -> IntTensor<Self> {
        Self::int_scatter(dim, data, indices, values, update)
    }

    /// Writes floats to the rows of `dim`.
    fn float_write_rows(
        data: FloatTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
        values: FloatTensor<Self>,
        update: IndexingUpdateOp,
    ) -> FloatTensor<Self> {
        Self::float_select_assign(data, dim, indices, values, update)
    }

    /// Writes ints to the rows of `dim`.
    fn int_write_rows(
        data: IntTensor<Self>,
        dim: usize,
        indices: IntTensor<Self>,
        values: IntTensor<Self>,
        update: IndexingUpdateOp,
    ) -> IntTensor<Self> {
        Self::int_select_assign(data, dim, indices, values, update)
    }
}

impl<B: BackendIr> Write for B {}

/// Pools of maxima, with the places where they were.
#[allow(clippy::too_many_arguments, reason = "they are Burn's")]
pub(crate) trait MaxPool: BackendIr {
    /// Returns the maxima of windows over 1 dim, and their places.
    fn max_pool1d_places(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        places: DType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let pool = Self::max_pool1d_with_indices(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            places.into(),
        );
        (pool.output, pool.indices)
    }

    /// Returns places in the type in which a backward takes them: any.
    fn own_places1d(_: &FloatTensor<Self>, places: IntTensor<Self>) -> IntTensor<Self> {
        places
    }

    /// Returns the maxima of windows over 2 dims, and their places.
    fn max_pool2d_places(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        places: DType,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let pool = Self::max_pool2d_with_indices(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            places.into(),
        );
        (pool.output, pool.indices)
    }

    /// Returns places in the type in which a backward takes them: any.
    fn own_places2d(_: &FloatTensor<Self>, places: IntTensor<Self>) -> IntTensor<Self> {
        places
    }
}

impl<B: BackendIr> MaxPool for B {}

/// Returns the shape `[N]` if a reshape between these shapes must pass through it: none must.
pub fn flat_between(_: &Shape, _: &Shape) -> Option<Shape> {
    None
}

/// True if the gradient of a layer's weight is a sum over the batch where that has one matrix too.
pub(crate) const SUMS_OF_ONE: bool = false;

/// True if programs record linear layers as such: dispatch has none, and what stands for them is recorded.
pub(crate) const RECORDS_LAYERS: bool = false;

/// Returns a matrix with as many dims as another tensor: those before the last two have size one.
fn matrix_of<B: Backend>(matrix: FloatTensor<B>, like: &FloatTensor<B>) -> FloatTensor<B> {
    let (shape, batch) = (matrix.shape(), like.shape().num_dims().saturating_sub(2));
    match batch {
        0 => matrix,
        _ => {
            let sizes = std::iter::repeat_n(1, batch).chain(shape.iter().copied());
            B::float_reshape(matrix, Shape::from(sizes.collect::<Vec<usize>>()))
        }
    }
}

/// Returns `x W (+ b)`, by the product that dispatch records.
pub(crate) fn linear<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let weight = matrix_of::<B>(weight, &x);
    let product = B::float_matmul(x, weight);
    match bias {
        Some(bias) => with_bias::<B>(product, bias),
        None => product,
    }
}

/// Returns the gradient of a layer's `x`, by the product that the backward of [`linear`]'s records.
pub(crate) fn linear_x_backward<B: Backend>(
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let weight = matrix_of::<B>(weight, &gradient);
    let ndim = weight.shape().num_dims();
    B::float_matmul(gradient, B::float_swap_dims(weight, ndim - 2, ndim - 1))
}

/// Returns the gradient of a layer's weight, by the product and the sum over the batch that the backward of [`linear`]'s
/// records. Sums of 16-bit products are found in f32.
pub(crate) fn linear_weight_backward<B: Backend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let ndim = x.shape().num_dims();
    let x = B::float_swap_dims(x, ndim - 2, ndim - 1);
    let product = B::float_matmul(x, gradient);
    let (shape, dtype) = (product.shape(), product.dtype());
    let batch: Vec<usize> = (0..ndim - 2).filter(|&dim| shape[dim] != 1).collect();
    let wide = |tensor| match dtype {
        DType::F16 | DType::BF16 => B::float_cast(tensor, DType::F32.into()),
        _ => tensor,
    };
    let sum = match &batch[..] {
        [] => product,
        [dim] => B::float_sum_dim(wide(product), *dim),
        dims => B::float_sum_dims(wide(product), dims),
    };
    let sum = match sum.dtype() == dtype {
        true => sum,
        false => B::float_cast(sum, dtype.into()),
    };
    match ndim {
        2 => sum,
        _ => B::float_reshape(sum, Shape::from(vec![shape[ndim - 2], shape[ndim - 1]])),
    }
}

/// Returns an input of a reduction over `dim` such that Flex reads what it shows: as it is.
pub(crate) fn reducible<T>(tensor: T, _: Option<usize>) -> T {
    tensor
}

/// Parts of tests that differ.
#[cfg(test)]
pub(crate) mod test {
    use burn_backend::quantization::{QuantScheme, QuantStore};
    use burn_backend::{DType, Shape};
    use burn_flex::Flex;
    use burn_ir::{
        BaseOperationIr, BinaryOpIr, FloatOperationIr, MatmulOpIr, ModuleOperationIr,
        NumericOperationIr, OperationIr, QuantizationParametersIr, ReduceDimOpIr, ShapeOpIr,
        SwapDimsOpIr, TensorId, TensorIr, TensorStatus,
    };
    use burn_router::TensorInterpreter;

    use super::data::*;

    /// Returns a scheme that Flex has: symmetric 8 bit, one scale per tensor.
    pub(crate) fn scheme() -> QuantScheme {
        QuantScheme::default().with_store(QuantStore::Native)
    }

    /// Returns the parameters of a quantization.
    pub(crate) fn scales(scales: TensorIr) -> QuantizationParametersIr {
        let global = None;
        QuantizationParametersIr { scales, global }
    }

    /// Returns quantized data with one scale.
    pub(crate) fn quantized(
        values: Vec<i8>,
        shape: Shape,
        scheme: QuantScheme,
        scale: f32,
    ) -> TensorData {
        TensorData::quantized(values, shape, scheme, &[scale], None)
    }

    /// Returns the padding of a convolution, the same at both ends.
    pub(crate) fn padding<const N: usize>(padding: [usize; N]) -> [(usize, usize); N] {
        padding.map(|at_end| (at_end, at_end))
    }

    /// Operations in the order in which a program records them.
    struct Recording {
        ops: Vec<OperationIr>,
        last_id: u64,
    }

    impl Recording {
        fn record(&mut self, make: impl FnOnce(TensorId) -> OperationIr) -> TensorIr {
            self.last_id += 1;
            let op = make(TensorId::new(self.last_id));
            let out = op.outputs().next().cloned().expect("a result");
            self.ops.push(op);
            let status = TensorStatus::ReadOnly;
            TensorIr { status, ..out }
        }

        fn reshape(&mut self, input: &TensorIr, dims: Vec<usize>) -> TensorIr {
            let (input, shape) = (input.clone(), Shape::from(dims));
            self.record(|id| {
                OperationIr::BaseFloat(BaseOperationIr::Reshape(ShapeOpIr::reshape(
                    input,
                    shape,
                    || id,
                )))
            })
        }

        /// A weight with `ndim` dims.
        fn weight(&mut self, weight: &TensorIr, ndim: usize) -> TensorIr {
            let ones = std::iter::repeat_n(1, ndim - weight.shape.num_dims());
            let dims = ones.chain(weight.shape.iter().copied()).collect();
            self.reshape(weight, dims)
        }

        fn turn(&mut self, input: TensorIr) -> TensorIr {
            let last = input.shape.num_dims() - 1;
            self.record(|id| {
                OperationIr::BaseFloat(BaseOperationIr::SwapDims(SwapDimsOpIr::create(
                    input,
                    last - 1,
                    last,
                    || id,
                )))
            })
        }

        fn product(&mut self, lhs: TensorIr, rhs: TensorIr) -> TensorIr {
            self.record(|id| {
                let dtype = lhs.dtype;
                let product = MatmulOpIr::create(lhs, rhs, || id);
                OperationIr::Float(dtype, FloatOperationIr::Matmul(product))
            })
        }

        fn number(
            &mut self,
            dtype: DType,
            make: impl FnOnce(TensorId) -> NumericOperationIr,
        ) -> TensorIr {
            self.record(|id| OperationIr::NumericFloat(dtype, make(id)))
        }
    }

    /// Returns what a program records for an operation: for a layer, the products that dispatch makes of it.
    fn recorded(op: &OperationIr) -> Vec<OperationIr> {
        let ids = op
            .inputs()
            .chain(op.outputs())
            .map(|tensor| tensor.id.value());
        let mut recording = Recording {
            ops: Vec::new(),
            last_id: ids.max().unwrap_or(0),
        };
        match op {
            OperationIr::Module(ModuleOperationIr::Linear(op)) => {
                let ndim = op.x.shape.num_dims();
                let weight = recording.weight(&op.weight, ndim);
                let product = recording.product(op.x.clone(), weight);
                if let Some(bias) = &op.bias {
                    let bias = recording.weight(bias, ndim);
                    recording.number(product.dtype, |id| {
                        NumericOperationIr::Add(BinaryOpIr::create(product, bias, || id))
                    });
                }
            }
            OperationIr::Module(ModuleOperationIr::LinearXBackward(op)) => {
                let weight = recording.weight(&op.weight, op.output_grad.shape.num_dims());
                let weight = recording.turn(weight);
                recording.product(op.output_grad.clone(), weight);
            }
            OperationIr::Module(ModuleOperationIr::LinearWeightBackward(op)) => {
                let x = recording.turn(op.x.clone());
                let mut sum = recording.product(x, op.output_grad.clone());
                for dim in 0..sum.shape.num_dims() - 2 {
                    sum = recording.number(sum.dtype, |id| {
                        NumericOperationIr::SumDim(ReduceDimOpIr::create(sum, dim, 1, || id))
                    });
                }
                recording.reshape(&sum, op.out.shape.to_vec());
            }
            _ => recording.ops.push(op.clone()),
        }
        recording.ops
    }

    /// Returns what burn-router's interpreter makes of data.
    pub(crate) fn interpreted(op: &OperationIr, data: &[TensorData]) -> Vec<TensorData> {
        let mut interpreter = TensorInterpreter::<Flex>::new(Default::default());
        for (tensor, data) in op.inputs().zip(data) {
            interpreter.register_tensor_data_id(tensor.id, data.clone());
        }
        let recorded = recorded(op);
        for op in &recorded {
            interpreter.register_op(op.clone());
        }
        let mut read = |out: &TensorIr| {
            let status = TensorStatus::ReadOnly;
            let out = TensorIr {
                status,
                ..out.clone()
            };
            burn_std::future::block_on(interpreter.read_tensor_async(out)).unwrap()
        };
        let last = recorded.last().into_iter();
        last.flat_map(|op| op.outputs()).map(&mut read).collect()
    }

    /// Rules written out, by the names of operations that this line alone has.
    pub(crate) const RULES: &[(&str, &str)] = &[
        ("softmax", "ab-->ab-"),
        ("log_softmax", "a-b->a-b"),
        ("layer_norm", "ab-,-,-->ab-"),
        ("batch_norm", "abc,b,b,b,b->abc"),
        ("sum_dims", "BaC->-a-"),
        ("topk_with_indices", "a-->a-,a-"),
        ("sort_with_indices", "a-->a-,a-"),
        ("argsort", "a-->a-"),
        ("pad", "a-b->a-b"),
        ("all", "AB->-"),
        ("any_dim", "aCb->a-b"),
        ("prelu", "abc,-b-->abc"),
        ("unfold4d", "a---->a--"),
        ("adaptive_avg_pool3d", "ab---->ab---"),
        ("conv_transpose1d_weight_backward", "Ca-,ab-,Cb-->ab-"),
        ("conv_transpose1d_bias_backward", "B--,a,BaC->a"),
    ];

    /// Operations that the interpreter cannot do, or does not do on data alone.
    pub(crate) const BEYOND: &[(&str, &str)] = &[
        ("base_int", "cast"),
        ("base_bool", "cast"),
        ("base_bool", "scatter_nd"),
        ("base_bool", "gather_nd"),
        ("float", "quantize"),
        ("float", "dequantize"),
        ("float", "random"),
        ("numeric_int", "random"),
        ("module", "ctc_loss_backward"),
        ("custom", "custom"),
        ("init", "init"),
        ("drop", "drop"),
    ];
}
