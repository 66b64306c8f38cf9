//! Every op against burn-router's interpreter, and the ops that it lacks against plain arithmetic.

#[cfg_attr(burn_021, path = "execute/line_021.rs")]
mod line;
mod nothing;
mod places;
mod views;

use crate::burn::data::*;
use crate::burn::test::{BEYOND, interpreted, scales};
use crate::execute::*;
use crate::samples::{BOOL, FLOAT, INT, inputs, quantized, samples, scheme};
use crate::visit::{family_name, kind_name};
use burn_backend::ops::{FloatTensorOps, IntTensorOps, QTensorOps};
use burn_backend::{Backend, DType, Scalar, tensor::IndexingUpdateOp};
use burn_flex::Flex;
use burn_ir::*;
use burn_std::future::block_on;
use std::collections::HashMap;

type Handle = <Flex as BackendIr>::Handle;

/// Tensors by id, scalars as they are.
#[derive(Default)]
pub(crate) struct Map {
    handles: HashMap<TensorId, Handle>,
    device: <Flex as burn_backend::BackendTypes>::Device,
}

impl Env<Flex> for Map {
    fn take(&mut self, tensor: &TensorIr) -> Handle {
        let handle = match tensor.status {
            TensorStatus::ReadWrite => self.handles.remove(&tensor.id),
            _ => self.handles.get(&tensor.id).cloned(),
        };
        handle.unwrap_or_else(|| panic!("no tensor {}", tensor.id))
    }
    fn put(&mut self, tensor: &TensorIr, handle: Handle) {
        self.handles.insert(tensor.id, handle);
    }
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        (*scalar).into()
    }
    fn device(&self) -> &<Flex as burn_backend::BackendTypes>::Device {
        &self.device
    }
}

impl Map {
    pub(crate) fn set(&mut self, tensor: &TensorIr, data: TensorData) {
        let handle = from_data::<Flex>(data, &self.device);
        self.put(tensor, handle);
    }
    pub(crate) fn read(&mut self, tensor: &TensorIr) -> TensorData {
        let tensor = TensorIr {
            status: TensorStatus::ReadOnly,
            ..tensor.clone()
        };
        let handle = self.take(&tensor);
        block_on(into_data::<Flex>(handle, tensor.shape, tensor.dtype)).unwrap()
    }
}

/// Runs `op` on `data` and returns its outputs, after checking that they are what the op promises.
fn run(op: &OperationIr, data: &[TensorData]) -> Vec<TensorData> {
    let mut env = Map::default();
    for (tensor, data) in op.inputs().zip(data) {
        env.set(tensor, data.clone());
    }
    execute::<Flex, _>(op, &mut env).unwrap();
    op.outputs()
        .map(|out| {
            let data = env.read(out);
            assert_eq!(*data.shape(), out.shape, "{op:?}");
            match (data.dtype(), out.dtype) {
                // Reading unpacks the values into another storage.
                (DType::QFloat(_), DType::QFloat(_)) => {}
                (data, out) => assert_eq!(data, out, "{op:?}"),
            }
            data
        })
        .collect()
}

/// Returns whether burn-router's interpreter cannot do an operation, or does not do it on data alone.
fn beyond_interpreter(op: &OperationIr) -> bool {
    BEYOND.contains(&(family_name(op), kind_name(op)))
}

#[test]
fn every_op_equals_the_interpreter() {
    let mut compared = 0;
    for op in samples().into_iter().filter(|op| !beyond_interpreter(op)) {
        for seed in 0..3 {
            let data = inputs(&op, seed);
            let ours = run(&op, &data);
            for (theirs, ours) in interpreted(&op, &data).into_iter().zip(ours) {
                // Kernels that make indices choose their dtype, which ours then casts.
                let theirs = match theirs.dtype() == ours.dtype() {
                    true => theirs,
                    false => theirs.convert_dtype(ours.dtype()),
                };
                assert_eq!(ours.as_bytes(), theirs.as_bytes(), "{op:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 600, "compared only {compared} tensors");
}

fn tensor(id: u64, dims: &[usize], dtype: DType) -> TensorIr {
    TensorIr {
        status: TensorStatus::ReadOnly,
        ..TensorIr::uninit(TensorId::new(id), dims.into(), dtype)
    }
}

fn floats<const N: usize>(values: [f32; N], dims: &[usize]) -> TensorData {
    TensorData::new(values.to_vec(), dims)
}

fn ints<const N: usize>(values: [i64; N], dims: &[usize]) -> TensorData {
    TensorData::new(values.to_vec(), dims)
}

fn bools<const N: usize>(values: [i64; N], dims: &[usize]) -> TensorData {
    TensorData::new(values.map(|v| v != 0).to_vec(), dims)
}

const UPDATES: [IndexingUpdateOp; 5] = [
    IndexingUpdateOp::Assign,
    IndexingUpdateOp::Add,
    IndexingUpdateOp::Mul,
    IndexingUpdateOp::Min,
    IndexingUpdateOp::Max,
];

fn combine(update: IndexingUpdateOp, old: f32, new: f32) -> f32 {
    match update {
        IndexingUpdateOp::Assign => new,
        IndexingUpdateOp::Add => old + new,
        IndexingUpdateOp::Mul => old * new,
        IndexingUpdateOp::Min => old.min(new),
        IndexingUpdateOp::Max => old.max(new),
    }
}

/// A kind of tensor, with test data as floats.
struct Case {
    dtype: DType,
    kind: fn(BaseOperationIr) -> OperationIr,
}

const CASES: [Case; 3] = [
    Case {
        dtype: FLOAT,
        kind: OperationIr::BaseFloat,
    },
    Case {
        dtype: INT,
        kind: OperationIr::BaseInt,
    },
    Case {
        dtype: BOOL,
        kind: OperationIr::BaseBool,
    },
];

impl Case {
    fn data(&self, values: &[f32], dims: &[usize]) -> TensorData {
        let values = values.iter().map(|v| match self.dtype {
            BOOL => f32::from(u8::from(*v != 0.0)),
            _ => *v,
        });
        TensorData::new(values.collect::<Vec<f32>>(), dims).convert_dtype(self.dtype)
    }
    /// Returns the result of an update: bools saturate.
    fn update(&self, update: IndexingUpdateOp, old: f32, new: f32) -> f32 {
        let bit = |v: f32| f32::from(u8::from(v != 0.0));
        match self.dtype {
            BOOL => bit(combine(update, bit(old), bit(new))),
            _ => combine(update, old, new),
        }
    }
}

/// Every kind of tensor with every update along every dim.
fn every_update() -> impl Iterator<Item = (&'static Case, IndexingUpdateOp, usize)> {
    CASES.iter().flat_map(|case| {
        UPDATES
            .iter()
            .flat_map(move |update| (0..3).map(move |dim| (case, *update, dim)))
    })
}

const DIMS: [usize; 3] = [2, 3, 2];

/// Applies `new`, of two elements along `dim`, to a tensor of shape [`DIMS`]; `row` gives the row along `dim` that an
/// element (named by its flat index and its row in `new`) updates. Returns the data before, of the update and after.
fn reference(
    case: &Case,
    update: IndexingUpdateOp,
    dim: usize,
    row: impl Fn(usize, usize) -> i64,
) -> [TensorData; 3] {
    let mut new_dims = DIMS;
    new_dims[dim] = 2;
    let count = new_dims.iter().product::<usize>();
    let old: Vec<f32> = (0..12).map(|i| (i % 4) as f32).collect();
    let new: Vec<f32> = (0..count).map(|i| ((i * 5 + 1) % 3) as f32).collect();
    let before = case.data(&old, &DIMS);
    let mut after: Vec<f32> = before.iter::<f32>().collect();
    for (n, value) in new.iter().enumerate() {
        let mut at = [0; 3];
        let mut rest = n;
        for d in (0..3).rev() {
            at[d] = rest % new_dims[d];
            rest /= new_dims[d];
        }
        at[dim] = row(n, at[dim]) as usize;
        let flat = (at[0] * DIMS[1] + at[1]) * DIMS[2] + at[2];
        after[flat] = case.update(update, after[flat], *value);
    }
    [before, case.data(&new, &new_dims), case.data(&after, &DIMS)]
}

/// Two rows along `dim`: the same one where the update allows it.
fn rows(update: IndexingUpdateOp, dim: usize) -> [i64; 2] {
    let last = DIMS[dim] as i64 - 1;
    match update {
        IndexingUpdateOp::Assign => [last, 0],
        _ => [last, last],
    }
}

#[test]
fn scatter_does_every_update_along_every_dim() {
    for (case, update, dim) in every_update() {
        // Lines take turns in the order of the rows, so that the indices are more than one line repeated.
        let rows = rows(update, dim);
        let mut index_dims = DIMS;
        index_dims[dim] = 2;
        let stride: usize = index_dims[dim + 1..].iter().product();
        let line = |n: usize| n % stride + n / (2 * stride);
        let row = |n: usize, along: usize| rows[(along + line(n)) % 2];
        let [before, new, after] = reference(case, update, dim, row);
        let count = index_dims.iter().product::<usize>();
        let indices: Vec<i64> = (0..count).map(|n| row(n, n / stride % 2)).collect();

        let op = (case.kind)(BaseOperationIr::Scatter(ScatterOpIr {
            tensor: tensor(0, &DIMS, case.dtype),
            dim,
            indices: tensor(1, &index_dims, INT),
            value: tensor(2, &index_dims, case.dtype),
            update,
            out: tensor(3, &DIMS, case.dtype),
        }));
        let got = run(&op, &[before, TensorData::new(indices, index_dims), new]);
        assert_eq!(got, [after], "{update:?} along {dim} of {:?}", case.dtype);
    }
}

#[test]
fn select_assign_does_every_update_along_every_dim() {
    for (case, update, dim) in every_update() {
        let rows = rows(update, dim);
        let [before, new, after] = reference(case, update, dim, |_, along| rows[along]);
        let op = (case.kind)(BaseOperationIr::SelectAssign(SelectAssignOpIr {
            tensor: tensor(0, &DIMS, case.dtype),
            dim,
            indices: tensor(1, &[2], INT),
            value: tensor(2, new.shape(), case.dtype),
            update,
            out: tensor(3, &DIMS, case.dtype),
        }));
        let got = run(&op, &[before, ints(rows, &[2]), new]);
        assert_eq!(got, [after], "{update:?} along {dim} of {:?}", case.dtype);
    }
}

#[test]
fn nd_indexing_of_bools() {
    let indices = ints([0, 1, 1, 0], &[2, 2]);
    let gather = OperationIr::BaseBool(BaseOperationIr::GatherNd(GatherNdOpIr {
        data: tensor(0, &[2, 2], BOOL),
        indices: tensor(1, &[2, 2], INT),
        out: tensor(2, &[2], BOOL),
    }));
    let got = run(&gather, &[bools([0, 1, 0, 1], &[2, 2]), indices.clone()]);
    assert_eq!(got, [bools([1, 0], &[2])]);

    let scatter = |reduction| {
        let op = OperationIr::BaseBool(BaseOperationIr::ScatterNd(ScatterNdOpIr {
            data: tensor(0, &[2, 2], BOOL),
            indices: tensor(1, &[2, 2], INT),
            values: tensor(2, &[2], BOOL),
            reduction,
            out: tensor(3, &[2, 2], BOOL),
        }));
        let data = bools([0, 1, 1, 1], &[2, 2]);
        run(&op, &[data, indices.clone(), bools([0, 0], &[2])]).remove(0)
    };
    assert_eq!(
        scatter(IndexingUpdateOp::Assign),
        bools([0, 0, 0, 1], &[2, 2])
    );
    assert_eq!(scatter(IndexingUpdateOp::Add), bools([0, 1, 1, 1], &[2, 2]));
    assert_eq!(scatter(IndexingUpdateOp::Mul), bools([0, 0, 0, 1], &[2, 2]));
}

#[test]
fn casts_between_all_kinds() {
    let dtypes = [
        DType::F32,
        DType::F16,
        DType::F64,
        DType::I64,
        DType::I32,
        DType::U8,
        BOOL,
    ];
    for from in dtypes {
        for to in dtypes {
            let op = CastOpIr {
                input: tensor(0, &[3], from),
                out: tensor(1, &[3], to),
            };
            let op = BaseOperationIr::Cast(op);
            let op = match from {
                BOOL => OperationIr::BaseBool(op),
                from if from.is_float() => OperationIr::BaseFloat(op),
                _ => OperationIr::BaseInt(op),
            };
            let data = |values, dtype| ints(values, &[3]).convert_dtype(dtype);
            let values = match from == BOOL || to == BOOL {
                true => [0, 1, 1],
                false => [0, 1, 7],
            };
            assert_eq!(
                run(&op, &[data(values, from)]),
                [data(values, to)],
                "{from:?} -> {to:?}"
            );
        }
    }
}

#[test]
fn a_matmul_of_mixed_dtypes_has_that_of_its_output() {
    let op = OperationIr::Float(
        FLOAT,
        FloatOperationIr::Matmul(MatmulOpIr {
            lhs: tensor(0, &[1, 2], DType::BF16),
            rhs: tensor(1, &[2, 1], DType::F32),
            out: tensor(2, &[1, 1], DType::F32),
        }),
    );
    let lhs = floats([1.0, 2.0], &[1, 2]).convert_dtype(DType::BF16);
    let got = run(&op, &[lhs, floats([3.0, 0.5], &[2, 1])]);
    assert_eq!(got, [floats([4.0], &[1, 1])]);
}

#[test]
fn quantize_and_dequantize_are_inverse_up_to_a_step() {
    let quantize = OperationIr::Float(
        FLOAT,
        FloatOperationIr::Quantize(QuantizeOpIr {
            tensor: tensor(0, &[2, 4], FLOAT),
            qparams: scales(tensor(1, &[1], FLOAT)),
            scheme: scheme(),
            out: tensor(2, &[2, 4], DType::QFloat(scheme())),
        }),
    );
    let dequantize = OperationIr::Float(
        FLOAT,
        FloatOperationIr::Dequantize(DequantizeOpIr {
            input: tensor(2, &[2, 4], DType::QFloat(scheme())),
            out: tensor(3, &[2, 4], FLOAT),
        }),
    );
    let values = [0.0, 0.51, -0.26, 1.24, -1.24, 0.11, 0.7, -0.99];
    let scale = 0.01;
    let mut env = Map::default();
    for (tensor, data) in quantize
        .inputs()
        .zip([floats(values, &[2, 4]), floats([scale], &[1])])
    {
        env.set(tensor, data);
    }
    for op in [&quantize, &dequantize] {
        execute::<Flex, _>(op, &mut env).unwrap();
    }
    let got = env.read(dequantize.outputs().next().unwrap());
    for (got, want) in got.iter::<f32>().zip(values) {
        assert!((got - want).abs() <= scale / 2.0 + 1e-6, "{got} for {want}");
    }

    // A quantized tensor also survives the way to the host and back.
    let quantized = quantize.outputs().next().unwrap();
    let data = env.read(quantized);
    assert!(matches!(data.dtype(), DType::QFloat(_)));
    env.set(quantized, data);
    execute::<Flex, _>(&dequantize, &mut env).unwrap();
    assert_eq!(env.read(dequantize.outputs().next().unwrap()), got);
}

#[test]
fn argtopk_names_the_largest() {
    for (dtype, family) in [(FLOAT, "numeric_float"), (INT, "numeric_int")] {
        let op = NumericOperationIr::ArgTopK(ReduceDimOpIr::create_arg(
            tensor(0, &[2, 4], dtype),
            1,
            2,
            INT,
            || TensorId::new(1),
        ));
        let op = match family {
            "numeric_float" => OperationIr::NumericFloat(dtype, op),
            _ => OperationIr::NumericInt(dtype, op),
        };
        let data = ints([3, 9, -1, 4, 0, -5, 8, 7], &[2, 4]).convert_dtype(dtype);
        assert_eq!(run(&op, &[data]), [ints([1, 3, 2, 3], &[2, 2])]);
    }
}

#[test]
fn random_ops_fill_their_shape() {
    Flex::seed(&Default::default(), 1);
    for op in samples().iter().filter(|op| kind_name(op) == "random") {
        let got = run(op, &[]).remove(0);
        let values: Vec<f64> = got.iter::<f64>().collect();
        assert_eq!(values.len(), 12);
        assert!(values.iter().any(|v| *v != values[0]));
    }
}

#[test]
fn a_last_use_moves_the_handle_out() {
    let add = |lhs, rhs| {
        let mut op = BinaryOpIr {
            lhs: tensor(0, &[2], FLOAT),
            rhs: tensor(0, &[2], FLOAT),
            out: tensor(1, &[2], FLOAT),
        };
        (op.lhs.status, op.rhs.status) = (lhs, rhs);
        OperationIr::NumericFloat(FLOAT, NumericOperationIr::Add(op))
    };
    let mut env = Map::default();
    env.set(&tensor(0, &[2], FLOAT), floats([1.0, 2.0], &[2]));
    execute::<Flex, _>(
        &add(TensorStatus::ReadOnly, TensorStatus::ReadOnly),
        &mut env,
    )
    .unwrap();
    assert_eq!(env.handles.len(), 2);
    // The second operand is the last use: the first has been read by then.
    execute::<Flex, _>(
        &add(TensorStatus::ReadOnly, TensorStatus::ReadWrite),
        &mut env,
    )
    .unwrap();
    assert_eq!(env.handles.len(), 1);
    assert_eq!(env.read(&tensor(1, &[2], FLOAT)), floats([2.0, 4.0], &[2]));
}

#[test]
fn drop_takes_whatever_the_status() {
    for status in [TensorStatus::ReadOnly, TensorStatus::ReadWrite] {
        let mut env = Map::default();
        let dropped = TensorIr {
            status,
            ..tensor(0, &[2], FLOAT)
        };
        env.set(&dropped, floats([1.0, 2.0], &[2]));
        execute::<Flex, _>(&OperationIr::Drop(dropped), &mut env).unwrap();
        assert!(env.handles.is_empty());
    }
}

#[test]
fn unsigned_ints_survive_the_device() {
    for dtype in [DType::U8, DType::U32, DType::I16, DType::U64] {
        let mut env = Map::default();
        let data = ints([1, 2, 200], &[3]).convert_dtype(dtype);
        env.set(&tensor(0, &[3], dtype), data.clone());
        assert_eq!(env.read(&tensor(0, &[3], dtype)), data);
    }
}

/// The op by its function, on tensors made from the same data.
fn on_flex(op: &OperationIr, data: &[TensorData]) -> TensorData {
    let device = Default::default();
    let q = || Flex::q_from_data(data[0].clone(), &device);
    let float = |i: usize| Flex::float_from_data(data[i].clone(), &device);
    let indices = || Flex::int_from_data(data[1].clone(), &device);
    let quantized = |q| block_on(Flex::q_into_data(q));
    let floats = |x| block_on(Flex::float_into_data(x));
    let ints = |x| block_on(Flex::int_into_data(x));
    let result = match op {
        OperationIr::BaseFloat(op) => match op {
            BaseOperationIr::Reshape(op) => quantized(Flex::q_reshape(q(), op.out.shape.clone())),
            BaseOperationIr::Expand(op) => quantized(Flex::q_expand(q(), op.out.shape.clone())),
            BaseOperationIr::SwapDims(op) => quantized(Flex::q_swap_dims(q(), op.dim1, op.dim2)),
            BaseOperationIr::Permute(op) => quantized(Flex::q_permute(q(), &op.axes)),
            BaseOperationIr::Flip(op) => quantized(Flex::q_flip(q(), &op.axes)),
            BaseOperationIr::Slice(op) => quantized(Flex::q_slice(q(), &op.ranges)),
            BaseOperationIr::Select(op) => quantized(Flex::q_select(q(), op.dim, indices())),
            BaseOperationIr::Gather(op) => quantized(Flex::q_gather(op.dim, q(), indices())),
            BaseOperationIr::Cast(op) => match op.out.dtype {
                DType::QFloat(scheme) => quantized(Flex::quantize_dynamic(float(0), &scheme)),
                dtype => floats(Flex::dequantize(q(), dtype.into())),
            },
            op => panic!("no oracle of {op:?}"),
        },
        OperationIr::NumericFloat(_, NumericOperationIr::ArgMax(op)) => {
            ints(Flex::q_argmax(q(), op.axis, op.out.dtype.into()))
        }
        OperationIr::NumericFloat(_, NumericOperationIr::ArgMin(op)) => {
            ints(Flex::q_argmin(q(), op.axis, op.out.dtype.into()))
        }
        op => floats(line::activation(op, &float)),
    };
    result.unwrap()
}

#[test]
fn quantized_ops_and_activations_are_the_backends_own() {
    let activations = samples().into_iter().filter(line::is_activation);
    let ops: Vec<_> = quantized().into_iter().chain(activations).collect();
    assert_eq!(ops.len(), 12 + line::ACTIVATIONS);
    for op in ops {
        for seed in 0..3 {
            let data = inputs(&op, seed);
            let ours = run(&op, &data).pop().unwrap();
            let theirs = on_flex(&op, &data);
            assert_eq!(ours.as_bytes(), theirs.as_bytes(), "{op:?}");
        }
    }
}

#[test]
fn what_cannot_run_says_so_and_takes_nothing() {
    let input = tensor(0, &[2], FLOAT);
    let custom = OperationIr::Custom(CustomOpIr::new(
        "ring_attention",
        &[TensorIr {
            status: TensorStatus::ReadWrite,
            ..input.clone()
        }],
        &[],
    ));
    let mut env = Map::default();
    env.set(&input, floats([1.0, 2.0], &[2]));
    let error = execute::<Flex, _>(&custom, &mut env).unwrap_err();
    assert!(error.to_string().contains("ring_attention"), "{error}");
    assert_eq!(env.handles.len(), 1);

    let random = RandomOpIr {
        out: tensor(1, &[2], INT),
        distribution: burn_backend::Distribution::Default,
    };
    let random = OperationIr::NumericFloat(FLOAT, NumericOperationIr::IntRandom(random));
    let error = execute::<Flex, _>(&random, &mut env).unwrap_err();
    assert!(error.to_string().contains("random"), "{error}");

    let ctc = samples()
        .into_iter()
        .find(|op| kind_name(op) == "ctc_loss_backward");
    let error = execute::<Flex, _>(&ctc.unwrap(), &mut env).unwrap_err();
    assert!(error.to_string().contains("ctc_loss_backward"), "{error}");
}
