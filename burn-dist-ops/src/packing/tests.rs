//! Packing and unpacking, whole and split.

use burn_dist_kernels::int8::packed_shape;
use burn_dist_plan::op::{Op, Steps};
use burn_dist_plan::rule::oracle::{self, Case, Values};
use burn_flex::Flex;
use burn_ir::{TensorId, TensorStatus};

use super::*;
use crate::Recorded;
use crate::dtype::of_burn;
use crate::execute::execute_recorded;
use crate::tests::execute::Map;

fn tensor(id: u64, shape: &[usize], dtype: DType) -> TensorIr {
    let status = match id {
        0 => TensorStatus::ReadOnly,
        _ => TensorStatus::NotInit,
    };
    TensorIr {
        status,
        ..TensorIr::uninit(TensorId::new(id), shape.to_vec().into(), dtype)
    }
}

fn recorded(op: Int8Op, shape: &[usize], values: DType) -> Recorded {
    let (values, bytes) = ((shape, values), (packed_shape(shape), DType::U8));
    let bytes = (bytes.0.as_slice(), bytes.1);
    let (input, out) = match op {
        Int8Op::Pack => (values, bytes),
        Int8Op::Unpack | Int8Op::UnpackAtRest => (bytes, values),
    };
    Recorded::Int8(Box::new(Int8 {
        op,
        input: tensor(0, input.0, input.1),
        out: tensor(1, out.0, out.1),
    }))
}

/// Runs one operation.
fn run(op: &Recorded, input: &[f64]) -> Vec<f64> {
    let mut env = Map::default();
    // A rank without a part of the output makes one without elements of nothing.
    if let Some(reads) = op.reads().next() {
        let data = TensorData::new(input.to_vec(), reads.shape.clone());
        env.set(reads, data.convert_dtype(reads.dtype));
    }
    execute_recorded::<Flex, _>(op, &mut env).expect("it runs");
    let out = op.makes().next().expect("a result").clone();
    let data = env.read(&out);
    assert_eq!((data.shape().clone(), data.dtype()), (out.shape, out.dtype));
    data.iter::<f64>().collect()
}

fn numbers(count: usize) -> Vec<f64> {
    let number = |i: usize| ((i * 37) % 257) as f64 / 64.0 - 2.0;
    (0..count).map(number).collect()
}

#[test]
fn values_have_the_type_that_is_asked_for() {
    let shape = [3, 40];
    let bytes = run(&recorded(Int8Op::Pack, &shape, DType::F32), &numbers(120));
    let unpack = |dtype| run(&recorded(Int8Op::Unpack, &shape, dtype), &bytes);
    let values = unpack(DType::F32);
    // Below 2 the scale is 2^-5, or 2^-6.
    let off = values.iter().zip(numbers(120)).map(|(a, b)| (a - b).abs());
    let off = off.fold(0.0, f64::max);
    assert!(off > 0.0 && off <= 1.0 / 64.0, "{off}");
    assert_eq!(unpack(DType::BF16), values);
    assert_eq!(unpack(DType::F16), values);
    let of_bf16 = numbers(120).into_iter();
    let of_bf16: Vec<f64> = of_bf16.map(|x| bf16::from_f64(x).to_f64()).collect();
    let pack = |dtype, values: &[f64]| run(&recorded(Int8Op::Pack, &shape, dtype), values);
    assert_eq!(pack(DType::BF16, &of_bf16), pack(DType::F32, &of_bf16));
}

/// Every split of every operation gives what the whole gives, and none cuts a block.
#[test]
fn every_split_is_the_whole() {
    for (shape, has_whole_blocks) in [
        (&[6, 192][..], true),
        (&[4, 64], true),
        (&[2, 3, 96], true),
        (&[3, 40], false),
        (&[5, 7], false),
    ] {
        let values = numbers(shape.iter().product());
        let bytes = run(&recorded(Int8Op::Pack, shape, DType::F32), &values);
        for (op, input) in [
            (Int8Op::Pack, &values),
            (Int8Op::Unpack, &bytes),
            (Int8Op::UnpackAtRest, &bytes),
        ] {
            let op = recorded(op, shape, DType::F32);
            let describe = |tensor: &TensorIr, values: Vec<f64>| Values {
                shape: tensor.shape.to_vec(),
                dtype: of_burn(tensor.dtype),
                values,
            };
            let case = Case {
                op: op.name().into(),
                rule: op.rule(),
                inputs: op
                    .reads()
                    .map(|tensor| describe(tensor, input.clone()))
                    .collect(),
                outputs: op
                    .makes()
                    .map(|out| describe(out, run(&op, input)))
                    .collect(),
                tolerance: 0.0,
            };
            let checked = oracle::check(&case, |view, blocks| {
                let mut steps = Steps::new(1000);
                op.lower(view, &mut steps);
                let [local] = steps.ops().collect::<Vec<_>>()[..] else {
                    panic!("one operation on a rank: {steps:?}")
                };
                let block = blocks.into_iter().next().flatten();
                vec![run(local, &block.map_or(Vec::new(), |block| block.values))]
            });
            let checked = match checked {
                Err(oracle::Mismatch::NeverSplit { factor: 1, .. }) if !has_whole_blocks => {
                    continue;
                }
                checked => checked.unwrap_or_else(|error| panic!("{shape:?}: {error}")),
            };
            assert!(has_whole_blocks, "{op:?} cuts a block of {shape:?}");
            // More than the splits of rows where a row has several whole blocks.
            let least = if shape.ends_with(&[192]) { 12 } else { 3 };
            assert!(checked > least, "{op:?}: {checked}");
        }
    }
}
