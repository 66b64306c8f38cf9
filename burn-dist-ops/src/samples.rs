//! One op per variant of [`OperationIr`], and data to run it on: what tests about "every op" iterate over.
//!
//! Shapes are small and uneven, dims that differ in meaning differ in size. Every sample can be executed.

use super::visit::kind_name;
use crate::burn::test;
use burn_backend::{
    DType, Distribution, ops::AttentionModuleOptions, quantization::QuantScheme,
    tensor::IndexingUpdateOp,
};
use burn_ir::*;
use burn_std::BoolStore;
use std::cell::Cell;

mod data;
#[cfg_attr(burn_021, path = "samples/line_021.rs")]
mod line;
mod module;

pub(crate) use data::inputs;

/// Dtype of the float samples.
pub(crate) const FLOAT: DType = DType::F32;
/// Dtype of the int samples, indices included.
pub(crate) const INT: DType = DType::I64;
/// Dtype of the bool samples.
pub(crate) const BOOL: DType = DType::Bool(BoolStore::Native);

/// A quantization scheme that the samples use: symmetric 8 bit, one scale per tensor.
pub(crate) fn scheme() -> QuantScheme {
    test::scheme()
}

/// Makes the tensors of samples, with ids of their own.
struct Make {
    next: Cell<u64>,
}

impl Make {
    fn id(&self) -> TensorId {
        let id = self.next.get();
        self.next.set(id + 1);
        TensorId::new(id)
    }
    fn tensor(&self, dims: &[usize], dtype: DType) -> TensorIr {
        TensorIr {
            status: TensorStatus::ReadOnly,
            ..TensorIr::uninit(self.id(), dims.into(), dtype)
        }
    }
    fn out(&self, dims: &[usize], dtype: DType) -> TensorIr {
        TensorIr::uninit(self.id(), dims.into(), dtype)
    }
    fn float(&self, dims: &[usize]) -> TensorIr {
        self.tensor(dims, FLOAT)
    }
    fn int(&self, dims: &[usize]) -> TensorIr {
        self.tensor(dims, INT)
    }
    fn bool(&self, dims: &[usize]) -> TensorIr {
        self.tensor(dims, BOOL)
    }
}

/// Returns at least one op per variant, ops with optional tensors both with and without them.
///
/// Inputs are read-only and distinct, ids are unique over all samples. The only combination left out is an int random
/// op in the family of float ops, which means nothing.
pub(crate) fn samples() -> Vec<OperationIr> {
    let make = &Make { next: Cell::new(0) };
    let mut ops = Vec::new();
    ops.extend(base(make, FLOAT).into_iter().map(OperationIr::BaseFloat));
    ops.extend(base(make, INT).into_iter().map(OperationIr::BaseInt));
    ops.extend(base(make, BOOL).into_iter().map(OperationIr::BaseBool));
    let numeric_float = numeric(make, FLOAT).into_iter();
    ops.extend(numeric_float.map(|op| OperationIr::NumericFloat(FLOAT, op)));
    let numeric_int = numeric(make, INT).into_iter();
    ops.extend(numeric_int.map(|op| OperationIr::NumericInt(INT, op)));
    ops.extend(bool_ops(make).into_iter().map(OperationIr::Bool));
    ops.extend(int_ops(make).into_iter().map(OperationIr::Int));
    let float = float_ops(make).into_iter();
    ops.extend(float.map(|op| OperationIr::Float(FLOAT, op)));
    ops.extend(module::ops(make).into_iter().map(OperationIr::Module));
    ops.push(OperationIr::Init(InitOperationIr::create(
        [2, 3].into(),
        FLOAT,
        || make.id(),
    )));
    ops.push(OperationIr::Custom(CustomOpIr::new(
        "sample",
        &[make.float(&[2, 3]), make.int(&[4])],
        &[make.out(&[3], FLOAT), make.out(&[2], INT)],
    )));
    ops.push(OperationIr::Drop(make.float(&[2, 3])));
    ops.extend(line::activations(make));
    ops
}

/// Returns one op for each use of a quantized tensor that keeps it quantized, makes it so, or searches in it.
pub(crate) fn quantized() -> Vec<OperationIr> {
    let m = &Make { next: Cell::new(0) };
    let id = || m.id();
    let q = |dims: &[usize]| m.tensor(dims, DType::QFloat(scheme()));
    use BaseOperationIr::*;
    let base = vec![
        Reshape(ShapeOpIr::reshape(q(&[4, 8]), [8, 4].into(), id)),
        Expand(ShapeOpIr::expand(q(&[1, 8]), [3, 8].into(), id)),
        SwapDims(SwapDimsOpIr::create(q(&[4, 8]), 0, 1, id)),
        Permute(PermuteOpIr::create(q(&[2, 3, 4]), vec![2, 0, 1], id)),
        Flip(FlipOpIr::create(q(&[4, 8]), vec![1], id)),
        Slice(SliceOpIr::create(
            q(&[4, 8]),
            vec![burn_backend::Slice::new(1, Some(3), 1)],
            id,
        )),
        Select(SelectOpIr::create(q(&[4, 8]), 0, m.int(&[3]), id)),
        Gather(GatherOpIr::create(q(&[4, 8]), 1, m.int(&[4, 2]), id)),
        Cast(CastOpIr::create(
            m.float(&[4, 8]),
            DType::QFloat(scheme()),
            id,
        )),
        Cast(CastOpIr::create(q(&[4, 8]), FLOAT, id)),
    ];
    let search = |dims: &[usize]| ReduceDimOpIr::create_arg(q(dims), 1, 1, INT, id);
    let numeric = [
        NumericOperationIr::ArgMax(search(&[4, 8])),
        NumericOperationIr::ArgMin(search(&[4, 8])),
    ];
    let base = base.into_iter().map(OperationIr::BaseFloat);
    let dtype = DType::QFloat(scheme());
    base.chain(
        numeric
            .into_iter()
            .map(|op| OperationIr::NumericFloat(dtype, op)),
    )
    .collect()
}

/// A scalar of the kind that ops on `dtype` take.
fn scalar(dtype: DType) -> ScalarIr {
    match dtype {
        DType::Bool(_) => ScalarIr::Bool(true),
        dtype if dtype.is_float() => ScalarIr::Float(0.75),
        _ => ScalarIr::Int(2),
    }
}

fn base(m: &Make, dtype: DType) -> Vec<BaseOperationIr> {
    use BaseOperationIr::*;
    let t = |dims: &[usize]| m.tensor(dims, dtype);
    let id = || m.id();
    let slices = || {
        vec![
            burn_backend::Slice::new(1, Some(4), 1),
            burn_backend::Slice::new(0, None, 1),
            burn_backend::Slice::new(0, Some(6), 2),
        ]
    };
    let update = IndexingUpdateOp::Add;
    let mut ops = vec![
        Reshape(ShapeOpIr::reshape(t(&[2, 3, 4]), [6, 4].into(), id)),
        SwapDims(SwapDimsOpIr::create(t(&[2, 3, 4]), 0, 2, id)),
        Permute(PermuteOpIr::create(t(&[2, 3, 4]), vec![2, 0, 1], id)),
        Flip(FlipOpIr::create(t(&[2, 3, 4]), vec![0, 2], id)),
        Expand(ShapeOpIr::expand(t(&[3, 1, 4]), [3, 5, 4].into(), id)),
        Unfold(UnfoldOpIr::create(t(&[3, 7]), 1, 3, 2, id)),
        Slice(SliceOpIr::create(t(&[5, 3, 6]), slices(), id)),
        SliceAssign(SliceAssignOpIr::create(
            t(&[5, 3, 6]),
            slices(),
            t(&[3, 3, 3]),
            id,
        )),
        Select(SelectOpIr::create(t(&[3, 5, 2]), 1, m.int(&[4]), id)),
        SelectAssign(SelectAssignOpIr::create(
            t(&[3, 5, 2]),
            1,
            m.int(&[4]),
            t(&[3, 4, 2]),
            update,
            id,
        )),
        MaskWhere(MaskWhereOpIr::create(
            t(&[3, 4]),
            m.bool(&[3, 4]),
            t(&[3, 4]),
            id,
        )),
        MaskFill(MaskFillOpIr::create(
            t(&[3, 4]),
            m.bool(&[3, 4]),
            scalar(dtype),
            id,
        )),
        Gather(GatherOpIr::create(t(&[3, 5]), 1, m.int(&[3, 4]), id)),
        Scatter(ScatterOpIr::create(
            t(&[3, 5]),
            1,
            m.int(&[3, 4]),
            t(&[3, 4]),
            update,
            id,
        )),
        ScatterNd(ScatterNdOpIr::create(
            t(&[4, 5, 3]),
            m.int(&[2, 4, 2]),
            t(&[2, 4, 3]),
            update,
            id,
        )),
        GatherNd(GatherNdOpIr::create(t(&[4, 5, 3]), m.int(&[2, 4, 2]), id)),
        Equal(BinaryOpIr::create_comparison(
            t(&[3, 4]),
            t(&[3, 4]),
            BOOL,
            id,
        )),
        EqualElem(ScalarOpIr::create_comparison(
            t(&[3, 4]),
            scalar(dtype),
            BOOL,
            id,
        )),
        RepeatDim(RepeatDimOpIr::create(t(&[2, 3]), 1, 3, id)),
        Cat(CatOpIr::create(
            vec![t(&[2, 3]), t(&[2, 1]), t(&[2, 4])],
            1,
            id,
        )),
        Cast(CastOpIr::create(t(&[3, 4]), narrower(dtype), id)),
        Empty(CreationOpIr::create([2, 3].into(), dtype, id)),
        Ones(CreationOpIr::create([2, 3].into(), dtype, id)),
        Zeros(CreationOpIr::create([2, 3].into(), dtype, id)),
    ];
    ops.extend(line::base(m, dtype));
    ops
}

/// Another dtype of the same kind.
fn narrower(dtype: DType) -> DType {
    match dtype {
        DType::F32 => DType::F16,
        DType::I64 => DType::I32,
        other => other,
    }
}

fn numeric(m: &Make, dtype: DType) -> Vec<NumericOperationIr> {
    use NumericOperationIr::*;
    let t = |dims: &[usize]| m.tensor(dims, dtype);
    let id = || m.id();
    // Broadcast, as the ops allow it.
    let binary = || BinaryOpIr::create(t(&[3, 4]), t(&[1, 4]), id);
    let with_scalar = || ScalarOpIr::create(t(&[3, 4]), scalar(dtype), id);
    let compare = || BinaryOpIr::create_comparison(t(&[3, 4]), t(&[3, 4]), BOOL, id);
    let compare_scalar = || ScalarOpIr::create_comparison(t(&[3, 4]), scalar(dtype), BOOL, id);
    let reduce = || ReduceOpIr::create(t(&[3, 5]), id);
    let reduce_dim = || ReduceDimOpIr::create(t(&[3, 5, 2]), 1, 1, id);
    let with_indices = || ReduceDimWithIndicesOpIr::create(t(&[3, 5]), 1, INT, id);
    let along = || DimOpIr::create(t(&[3, 5]), 1, id);
    let mut ops = vec![
        Add(binary()),
        AddScalar(with_scalar()),
        Sub(binary()),
        SubScalar(with_scalar()),
        Div(binary()),
        DivScalar(with_scalar()),
        Rem(binary()),
        RemScalar(with_scalar()),
        Mul(binary()),
        MulScalar(with_scalar()),
        Abs(UnaryOpIr::create(t(&[3, 4]), id)),
        Full(FullOpIr::create([2, 3].into(), dtype, scalar(dtype), id)),
        MeanDim(reduce_dim()),
        Mean(reduce()),
        Sum(reduce()),
        SumDim(reduce_dim()),
        Prod(reduce()),
        ProdDim(reduce_dim()),
        Greater(compare()),
        GreaterElem(compare_scalar()),
        GreaterEqual(compare()),
        GreaterEqualElem(compare_scalar()),
        Lower(compare()),
        LowerElem(compare_scalar()),
        LowerEqual(compare()),
        LowerEqualElem(compare_scalar()),
        ArgMax(ReduceDimOpIr::create_arg(t(&[3, 5]), 1, 1, INT, id)),
        ArgTopK(ReduceDimOpIr::create_arg(t(&[3, 5]), 1, 2, INT, id)),
        TopK(ReduceDimOpIr::create(t(&[3, 5]), 1, 2, id)),
        ArgMin(ReduceDimOpIr::create_arg(t(&[3, 5]), 1, 1, INT, id)),
        Max(reduce()),
        MaxDimWithIndices(with_indices()),
        MinDimWithIndices(with_indices()),
        Min(reduce()),
        MaxDim(reduce_dim()),
        MinDim(reduce_dim()),
        MaxAbs(reduce()),
        MaxAbsDim(reduce_dim()),
        Clamp(ClampOpIr::create(
            t(&[3, 4]),
            scalar(dtype),
            match dtype {
                FLOAT => ScalarIr::Float(0.8),
                _ => ScalarIr::Int(3),
            },
            id,
        )),
        Powi(BinaryOpIr {
            lhs: t(&[3, 4]),
            rhs: m.int(&[3, 4]),
            out: m.out(&[3, 4], dtype),
        }),
        PowiScalar(ScalarOpIr::create(t(&[3, 4]), ScalarIr::Int(2), id)),
        CumSum(along()),
        CumProd(along()),
        CumMin(along()),
        CumMax(along()),
    ];
    ops.extend(line::numeric(m, dtype));
    if dtype == INT {
        ops.push(IntRandom(RandomOpIr::create(
            [3, 4].into(),
            INT,
            Distribution::Uniform(0.0, 9.0),
            id,
        )));
    }
    ops
}

fn bool_ops(m: &Make) -> Vec<BoolOperationIr> {
    use BoolOperationIr::*;
    let t = || m.bool(&[3, 4]);
    let id = || m.id();
    let mut ops = vec![
        IntoFloat(CastOpIr::create(t(), FLOAT, id)),
        IntoInt(CastOpIr::create(t(), INT, id)),
        Not(UnaryOpIr::create(t(), id)),
        And(BinaryOpIr::create(t(), t(), id)),
        Or(BinaryOpIr::create(t(), t(), id)),
    ];
    ops.extend(line::bools(m));
    ops
}

fn int_ops(m: &Make) -> Vec<IntOperationIr> {
    use IntOperationIr::*;
    let t = || m.int(&[3, 4]);
    let id = || m.id();
    let binary = || BinaryOpIr::create(t(), t(), id);
    let with_scalar = || ScalarOpIr::create(t(), scalar(INT), id);
    vec![
        IntoFloat(CastOpIr::create(t(), FLOAT, id)),
        BitwiseAnd(binary()),
        BitwiseAndScalar(with_scalar()),
        BitwiseOr(binary()),
        BitwiseOrScalar(with_scalar()),
        BitwiseXor(binary()),
        BitwiseXorScalar(with_scalar()),
        BitwiseNot(UnaryOpIr::create(t(), id)),
        BitwiseLeftShift(binary()),
        BitwiseLeftShiftScalar(with_scalar()),
        BitwiseRightShift(binary()),
        BitwiseRightShiftScalar(with_scalar()),
        Matmul(MatmulOpIr::create(m.int(&[2, 3, 4]), m.int(&[2, 4, 5]), id)),
    ]
}

fn float_ops(m: &Make) -> Vec<FloatOperationIr> {
    use FloatOperationIr::*;
    let t = |dims: &[usize]| m.float(dims);
    let id = || m.id();
    let unary = || UnaryOpIr::create(t(&[3, 4]), id);
    let binary = || BinaryOpIr::create(t(&[3, 4]), t(&[3, 4]), id);
    let mut ops = vec![
        Exp(unary()),
        Log(unary()),
        Log1p(unary()),
        Erf(unary()),
        PowfScalar(ScalarOpIr::create(t(&[3, 4]), scalar(FLOAT), id)),
        Sqrt(unary()),
        Cos(unary()),
        Cosh(unary()),
        Sin(unary()),
        Sinh(unary()),
        Tan(unary()),
        Tanh(unary()),
        ArcCos(unary()),
        ArcCosh(unary()),
        ArcSin(unary()),
        ArcSinh(unary()),
        ArcTan(unary()),
        ArcTanh(unary()),
        ArcTan2(binary()),
        Round(unary()),
        Floor(unary()),
        Ceil(unary()),
        Trunc(unary()),
        IntoInt(CastOpIr::create(t(&[3, 4]), INT, id)),
        Matmul(MatmulOpIr::create(t(&[2, 3, 4]), t(&[2, 4, 5]), id)),
        Cross(CrossOpIr::create(t(&[4, 3]), t(&[4, 3]), 1, id)),
        Random(RandomOpIr::create(
            [3, 4].into(),
            FLOAT,
            Distribution::Default,
            id,
        )),
        Recip(unary()),
        IsNan(UnaryOpIr::create_comparison(t(&[3, 4]), BOOL, id)),
        IsInf(UnaryOpIr::create_comparison(t(&[3, 4]), BOOL, id)),
        Quantize(QuantizeOpIr::create(
            t(&[4, 8]),
            test::scales(t(&[1])),
            scheme(),
            id,
        )),
        Dequantize(DequantizeOpIr::create(
            m.tensor(&[4, 8], DType::QFloat(scheme())),
            FLOAT,
            id,
        )),
        GridSample2d(GridSample2dOpIr::create(
            t(&[2, 3, 4, 5]),
            t(&[2, 3, 6, 2]),
            GridSampleOptionsIr {
                mode: InterpolateModeIr::Bilinear,
                padding_mode: GridSamplePaddingModeIr::Zeros,
                align_corners: false,
            },
            id,
        )),
        Powf(binary()),
    ];
    ops.extend(line::floats(m));
    ops
}

/// Options of an attention op without extras.
fn plain_attention() -> AttentionOptionsIr {
    AttentionModuleOptions::default().into()
}

#[cfg(test)]
mod tests {
    use super::super::visit::{FAMILIES, family_name};
    use super::*;
    use crate::burn::data::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_variant_has_a_sample() {
        let samples = samples();
        let have: BTreeSet<_> = samples
            .iter()
            .map(|op| (family_name(op), kind_name(op)))
            .collect();
        let meaningless = ("numeric_float", "random");
        for (family, kinds) in FAMILIES {
            for kind in *kinds {
                let wanted = (*family, *kind);
                assert!(
                    have.contains(&wanted) || wanted == meaningless,
                    "no sample of {wanted:?}"
                );
            }
        }
    }

    #[test]
    fn data_fits_the_inputs() {
        for op in samples() {
            let all: Vec<TensorData> = inputs(&op, 1);
            for (data, tensor) in all.iter().zip(op.inputs()) {
                assert_eq!(*data.shape(), tensor.shape);
                assert_eq!(data.dtype(), tensor.dtype);
            }
        }
    }
}
