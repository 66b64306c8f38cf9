//! More ops than one per variant: larger and odder shapes, where a split can go wrong.

use crate::burn::test::padding;
use crate::samples::{BOOL, FLOAT, INT, samples};
use burn_backend::{DType, tensor::IndexingUpdateOp};
use burn_ir::*;
use std::cell::Cell;

#[cfg_attr(burn_021, path = "samples/line_021.rs")]
mod line;

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(1 << 32) };
}

fn id() -> TensorId {
    NEXT.with(|next| {
        next.set(next.get() + 1);
        TensorId::new(next.get())
    })
}

fn tensor(dims: &[usize], dtype: DType) -> TensorIr {
    TensorIr {
        status: TensorStatus::ReadOnly,
        ..TensorIr::uninit(id(), dims.into(), dtype)
    }
}

fn float(dims: &[usize]) -> TensorIr {
    tensor(dims, FLOAT)
}

fn int(dims: &[usize]) -> TensorIr {
    tensor(dims, INT)
}

/// The maximum of a vector.
pub(super) fn max_of(size: usize) -> OperationIr {
    numeric(NumericOperationIr::Max(ReduceOpIr::create(
        float(&[size]),
        id,
    )))
}

fn numeric(op: NumericOperationIr) -> OperationIr {
    OperationIr::NumericFloat(FLOAT, op)
}

/// One op per variant, and then the odd ones.
pub(super) fn all() -> Vec<OperationIr> {
    let mut ops = samples();
    ops.extend(base());
    ops.extend(index());
    ops.extend(arithmetic());
    ops.extend(modules().into_iter().map(OperationIr::Module));
    ops.extend(convolutions().into_iter().map(OperationIr::Module));
    ops.extend(line::all());
    ops
}

fn base() -> Vec<OperationIr> {
    use BaseOperationIr::*;
    let whole = burn_backend::Slice::new(0, None, 1);
    let reshape =
        |from: &[usize], to: &[usize]| Reshape(ShapeOpIr::reshape(float(from), to.into(), id));
    let expand =
        |from: &[usize], to: &[usize]| Expand(ShapeOpIr::expand(float(from), to.into(), id));
    let repeat =
        |from: &[usize], times| RepeatDim(RepeatDimOpIr::create(float(from), 1, times, id));
    let ops = vec![
        reshape(&[4, 6], &[24]),
        reshape(&[24], &[2, 3, 4]),
        reshape(&[12, 5], &[3, 4, 5]),
        reshape(&[3, 1, 7], &[21, 1]),
        Reshape(ShapeOpIr {
            input: float(&[0, 3]),
            out: TensorIr::uninit(id(), [3, 0].into(), FLOAT),
        }),
        expand(&[1, 7], &[5, 7]),
        expand(&[7], &[3, 7]),
        expand(&[1, 1], &[4, 6]),
        repeat(&[5, 1], 7),
        repeat(&[5, 3], 2),
        Permute(PermuteOpIr::create(
            float(&[5, 1, 7, 4]),
            vec![3, 0, 2, 1],
            id,
        )),
        Flip(FlipOpIr::create(float(&[5, 4]), vec![1], id)),
        Slice(SliceOpIr::create(
            float(&[5, 8]),
            vec![whole, burn_backend::Slice::new(2, Some(7), 1)],
            id,
        )),
        Slice(SliceOpIr::create(
            float(&[5, 6]),
            vec![burn_backend::Slice::new(0, Some(5), 1)],
            id,
        )),
        Slice(SliceOpIr::create(
            float(&[5, 6]),
            vec![burn_backend::Slice::new(0, None, -1)],
            id,
        )),
        SliceAssign(SliceAssignOpIr::create(
            float(&[5, 8]),
            vec![whole, burn_backend::Slice::new(2, Some(7), 1)],
            float(&[5, 5]),
            id,
        )),
        Cat(CatOpIr::create(
            vec![float(&[7, 2]), float(&[7, 0]), float(&[7, 3])],
            1,
            id,
        )),
        MaskWhere(MaskWhereOpIr::create(
            float(&[5, 7]),
            tensor(&[5, 1], BOOL),
            float(&[1, 7]),
            id,
        )),
        MaskFill(MaskFillOpIr::create(
            float(&[5, 7]),
            tensor(&[1, 7], BOOL),
            ScalarIr::Float(2.0),
            id,
        )),
        Cast(CastOpIr::create(tensor(&[5, 3], DType::F16), FLOAT, id)),
        Zeros(CreationOpIr::create([7, 5].into(), FLOAT, id)),
    ];
    ops.into_iter().map(OperationIr::BaseFloat).collect()
}

fn index() -> Vec<OperationIr> {
    use BaseOperationIr::*;
    let add = IndexingUpdateOp::Add;
    let scatter = |tensor: &[usize], dim, indices: &[usize], update| {
        Scatter(ScatterOpIr::create(
            float(tensor),
            dim,
            int(indices),
            float(indices),
            update,
            id,
        ))
    };
    let assign = |tensor: &[usize], dim, value: &[usize], update| {
        let indices = int(&[value[dim]]);
        SelectAssign(SelectAssignOpIr::create(
            float(tensor),
            dim,
            indices,
            float(value),
            update,
            id,
        ))
    };
    let ops = vec![
        // The log probability of a target: one index per row.
        Gather(GatherOpIr::create(float(&[5, 11]), 1, int(&[5, 1]), id)),
        Gather(GatherOpIr::create(float(&[5, 7]), 0, int(&[4, 7]), id)),
        Gather(GatherOpIr::create(
            float(&[5, 7, 3]),
            1,
            int(&[5, 2, 3]),
            id,
        )),
        Gather(GatherOpIr::create(
            float(&[2, 5]),
            1,
            tensor(&[2, 7], DType::I32),
            id,
        )),
        scatter(&[5, 11], 1, &[5, 1], add),
        scatter(&[5, 7], 0, &[4, 7], add),
        scatter(&[3, 7], 1, &[3, 13], add),
        scatter(&[5, 7], 1, &[5, 1], IndexingUpdateOp::Assign),
        scatter(&[5, 7], 1, &[5, 3], IndexingUpdateOp::Max),
        Select(SelectOpIr::create(float(&[11, 3]), 0, int(&[7]), id)),
        Select(SelectOpIr::create(
            float(&[3, 11]),
            1,
            tensor(&[5], DType::U8),
            id,
        )),
        assign(&[11, 3], 0, &[7, 3], add),
        assign(&[3, 5, 4], 1, &[3, 13, 4], add),
        assign(&[5, 3], 0, &[1, 3], IndexingUpdateOp::Assign),
        GatherNd(GatherNdOpIr::create(float(&[5, 4, 3]), int(&[7, 1]), id)),
        ScatterNd(ScatterNdOpIr::create(
            float(&[5, 6]),
            int(&[7, 1]),
            float(&[7, 6]),
            add,
            id,
        )),
        ScatterNd(ScatterNdOpIr::create(
            float(&[5, 6]),
            int(&[1, 1]),
            float(&[1, 6]),
            IndexingUpdateOp::Assign,
            id,
        )),
    ];
    let mut ops: Vec<_> = ops.into_iter().map(OperationIr::BaseFloat).collect();
    ops.push(OperationIr::BaseInt(Select(SelectOpIr::create(
        int(&[7, 5]),
        0,
        int(&[4]),
        id,
    ))));
    ops.push(OperationIr::BaseBool(Gather(GatherOpIr::create(
        tensor(&[3, 5], BOOL),
        1,
        int(&[3, 2]),
        id,
    ))));
    ops
}

fn arithmetic() -> Vec<OperationIr> {
    use NumericOperationIr::*;
    let binary = |lhs: &[usize], rhs: &[usize]| BinaryOpIr::create(float(lhs), float(rhs), id);
    let reduce = |shape: &[usize]| ReduceOpIr::create(float(shape), id);
    let reduce_dim = |shape: &[usize], dim| ReduceDimOpIr::create(float(shape), dim, 1, id);
    let mut ops: Vec<_> = vec![
        Add(binary(&[5, 1], &[1, 7])),
        Add(binary(&[5, 7], &[5, 7])),
        Sub(binary(&[1], &[6])),
        Mul(binary(&[3, 4, 1], &[1, 4, 5])),
        Div(binary(&[5, 7], &[1, 1])),
        Sum(reduce(&[5, 7])),
        Sum(reduce(&[1])),
        Mean(reduce(&[5, 7])),
        MeanDim(reduce_dim(&[5, 7], 1)),
        SumDim(reduce_dim(&[5, 7], 0)),
        SumDim(reduce_dim(&[5, 0], 1)),
        MaxDim(reduce_dim(&[5, 7], 1)),
        MaxAbs(reduce(&[7, 4])),
        Min(reduce(&[6, 4])),
        ProdDim(reduce_dim(&[7, 2], 0)),
        CumSum(DimOpIr::create(float(&[5, 7]), 0, id)),
    ]
    .into_iter()
    .map(numeric)
    .collect();
    let half = |shape: &[usize]| tensor(shape, DType::F16);
    ops.push(OperationIr::NumericFloat(
        DType::F16,
        Mean(ReduceOpIr::create(half(&[13]), id)),
    ));
    ops.push(OperationIr::NumericFloat(
        DType::F16,
        MeanDim(ReduceDimOpIr::create(half(&[7, 5]), 0, 1, id)),
    ));
    let matmul = |lhs: &[usize], rhs: &[usize]| {
        let op = MatmulOpIr::create(float(lhs), float(rhs), id);
        OperationIr::Float(FLOAT, FloatOperationIr::Matmul(op))
    };
    ops.extend([
        matmul(&[5, 7], &[7, 3]),
        matmul(&[1, 5, 7], &[3, 7, 2]),
        matmul(&[3, 1, 5, 2], &[1, 4, 2, 3]),
        matmul(&[3, 5, 1], &[3, 1, 7]),
    ]);
    ops
}

fn modules() -> Vec<ModuleOperationIr> {
    use ModuleOperationIr::*;
    let attention = |is_causal, mask: Option<&[usize]>| {
        let (query, key, value) = (
            float(&[3, 2, 5, 4]),
            float(&[3, 2, 5, 4]),
            float(&[3, 2, 5, 7]),
        );
        let options = AttentionOptionsIr {
            scale: None,
            softcap: None,
            is_causal,
        };
        let bias = mask.map(float);
        Attention(AttentionOpIr::create(
            query, key, value, None, bias, options, id,
        ))
    };
    vec![
        Linear(LinearOpIr::create(
            float(&[5, 7]),
            float(&[7, 11]),
            Some(float(&[11])),
            id,
        )),
        Linear(LinearOpIr::create(
            float(&[3, 5, 6]),
            float(&[6, 1]),
            Some(float(&[1])),
            id,
        )),
        LinearXBackward(LinearXBackwardOpIr::create(
            float(&[7, 11]),
            float(&[3, 5, 11]),
            id,
        )),
        LinearWeightBackward(LinearWeightBackwardOpIr::create(
            float(&[3, 5, 7]),
            float(&[3, 5, 4]),
            id,
        )),
        LinearBiasBackward(LinearBiasBackwardOpIr::create(float(&[5, 7]), id)),
        Embedding(EmbeddingOpIr {
            weights: float(&[13, 5]),
            indices: int(&[3, 7]),
            out: TensorIr::uninit(id(), [3, 7, 5].into(), FLOAT),
        }),
        EmbeddingBackward(EmbeddingBackwardOpIr {
            weights: float(&[13, 5]),
            out_grad: float(&[3, 7, 5]),
            indices: int(&[3, 7]),
            out: TensorIr::uninit(id(), [13, 5].into(), FLOAT),
        }),
        attention(true, None),
        attention(false, Some(&[1, 1, 5, 5])),
        attention(false, Some(&[3, 2, 5, 5])),
    ]
}

/// Convolutions with groups, and gradients whose space is not covered evenly.
fn convolutions() -> Vec<ModuleOperationIr> {
    use ModuleOperationIr::*;
    let options = |groups| Conv1dOptionsIr {
        stride: [1],
        padding: padding([0]),
        dilation: [1],
        groups,
    };
    let (x, y) = (|| float(&[3, 4, 5]), || float(&[3, 6, 4]));
    let weight = || float(&[6, 2, 2]);
    vec![
        Conv1d(Conv1dOpIr::create(
            x(),
            weight(),
            Some(float(&[6])),
            options(2),
            id,
        )),
        Conv1dXBackward(Conv1dXBackwardOpIr::create(
            x(),
            weight(),
            y(),
            options(2),
            id,
        )),
        Conv1dWeightBackward(Conv1dWeightBackwardOpIr::create(
            x(),
            weight(),
            y(),
            options(2),
            id,
        )),
        Conv1d(Conv1dOpIr::create(
            float(&[5, 3, 4]),
            float(&[7, 3, 1]),
            Some(float(&[7])),
            options(1),
            id,
        )),
    ]
}
