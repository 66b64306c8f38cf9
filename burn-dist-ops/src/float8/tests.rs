//! The operations of float8 training against their definitions, whole and split.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_dist_plan::op::{Op, Steps};
use burn_dist_plan::rule::oracle::{self, Case, Values};
use burn_flex::Flex;
use burn_ir::TensorId;

use super::*;
use crate::dtype::of_burn;
use crate::execute::execute_recorded;
use crate::tests::execute::Map;

fn tensor(id: u64, shape: &[usize], dtype: DType) -> TensorIr {
    TensorIr::uninit(TensorId::new(id), shape.to_vec().into(), dtype)
}

fn op(op: Float8Op, inputs: &[(&[usize], DType)], out: (&[usize], DType)) -> Recorded {
    let inputs = (0..).zip(inputs);
    let inputs = inputs.map(|(id, (shape, dtype))| TensorIr {
        status: TensorStatus::ReadOnly,
        ..tensor(id, shape, *dtype)
    });
    Recorded::Float8(Box::new(Float8 {
        op,
        inputs: inputs.collect(),
        outputs: vec![tensor(100, out.0, out.1)],
    }))
}

/// Runs one operation.
fn run(op: &Recorded, inputs: &[Vec<f64>]) -> Vec<f64> {
    let mut env = Map::default();
    for (tensor, values) in op.reads().zip(inputs) {
        let data = TensorData::new(values.clone(), tensor.shape.clone());
        env.set(tensor, data.convert_dtype(tensor.dtype));
    }
    execute_recorded::<Flex, _>(op, &mut env).expect("it runs");
    let out = op.makes().next().expect("a result").clone();
    let data = env.read(&out);
    assert_eq!((data.shape().clone(), data.dtype()), (out.shape, out.dtype));
    data.iter::<f64>().collect()
}

fn numbers(count: usize, salt: usize) -> Vec<f64> {
    let number = |i: usize| ((i * 37 + salt * 101) % 257) as f64 / 64.0 - 2.0;
    (0..count).map(number).collect()
}

const F8: DType = DType::U8;
const F32: DType = DType::F32;
const OF: [ScaleOf; 6] = [
    ScaleOf::Tensor,
    ScaleOf::Row,
    ScaleOf::Column,
    ScaleOf::RowTile,
    ScaleOf::ColumnTile,
    ScaleOf::Block,
];

#[test]
fn scales_are_of_the_definition() {
    for (format, max) in [(Fp8::E4M3, 448.0), (Fp8::E5M2, 57344.0)] {
        assert_eq!(scale(format, false, max), 1.0);
        assert_eq!(scale(format, false, 2.0), max / 2.0);
        assert_eq!(
            scale(format, false, 0.0),
            (f64::from(max) / f64::from(1e-12f32)) as f32
        );
        assert!(scale(format, false, 0.0).is_finite() && scale(format, true, 0.0).is_finite());
        for power_of_two in [false, true] {
            assert!(scale(format, power_of_two, f32::NAN).is_nan());
            assert_eq!(scale(format, power_of_two, f32::INFINITY), 0.0);
            assert!(scale(format, power_of_two, f32::MAX) > 0.0);
        }
        let mut amax = 1e-3;
        while amax < 1e6 {
            let (free, power) = (scale(format, false, amax), scale(format, true, amax));
            assert_eq!(power.to_bits() & 0x7f_ffff, 0, "a power of two");
            assert!(power <= free && free < 2.0 * power, "{power}, {free}");
            amax *= 1.37;
        }
    }
}

#[test]
fn amax_is_the_largest_and_keeps_nan() {
    let x = [1.0, -7.0, 0.5, -0.25, 3.0, 2.0];
    let amax = |of: ScaleOf, x: &[f64]| {
        let shape = of.shape(&[2, 3]);
        run(
            &op(Float8Op::Amax(of), &[(&[2, 3], F32)], (&shape, F32)),
            &[x.to_vec()],
        )
    };
    assert_eq!(amax(ScaleOf::Tensor, &x), [7.0]);
    assert_eq!(amax(ScaleOf::Row, &x), [7.0, 3.0]);
    assert_eq!(amax(ScaleOf::Column, &x), [1.0, 7.0, 2.0]);
    for at in 0..6 {
        let mut x = x;
        x[at] = f64::NAN;
        assert!(amax(ScaleOf::Tensor, &x)[0].is_nan());
        x[at] = f64::NEG_INFINITY;
        assert_eq!(amax(ScaleOf::Tensor, &x), [f64::INFINITY]);
    }
}

/// Quantises values as a layer does.
fn quantized(x: &[f64], shape: &[usize], of: ScaleOf, format: Fp8, exact: bool) -> [Vec<f64>; 2] {
    let scales = of.shape(shape);
    let amax = run(
        &op(Float8Op::Amax(of), &[(shape, F32)], (&scales, F32)),
        &[x.to_vec()],
    );
    let power_of_two = exact;
    let scale = Float8Op::Scale {
        format,
        power_of_two,
    };
    let scale = run(&op(scale, &[(&scales, F32)], (&scales, F32)), &[amax]);
    let at_rest = false;
    let quantize = Float8Op::Quantize {
        of,
        format,
        at_rest,
        ways: Ways::AsIs,
    };
    let inputs: [(&[usize], DType); 2] = [(shape, F32), (&scales, F32)];
    let bytes = run(
        &op(quantize, &inputs, (shape, F8)),
        &[x.to_vec(), scale.clone()],
    );
    [bytes, scale]
}

/// Counts warnings that say that float8 is emulated.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(
            &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                let is_emulated = format!("{value:?}").starts_with("float8 is emulated");
                self.0.fetch_add(is_emulated.into(), Ordering::Relaxed);
            },
        );
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_backend_that_emulates_is_named_once() {
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(count.clone()), || {
        let warned = Once::new();
        for _ in 0..3 {
            warn_once(&warned);
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// By rows and by columns are two results with the same values.
#[test]
fn a_cast_by_rows_and_columns_has_the_same_values_twice() {
    let quantize = Float8Op::Quantize {
        of: ScaleOf::Tensor,
        format: Fp8::E4M3,
        at_rest: false,
        ways: Ways::Both,
    };
    let inputs: [(&[usize], DType); 2] = [(&[2, 3], F32), (&[1], F32)];
    let mut both = op(quantize, &inputs, (&[2, 3], F8));
    let x = numbers(6, 1);
    let once = run(&both, &[x.clone(), vec![2.0]]);
    let Recorded::Float8(float8) = &mut both else {
        unreachable!("made above");
    };
    float8.outputs.push(tensor(101, &[2, 3], F8));
    assert_eq!(run(&both, &[x.clone(), vec![2.0]]), once);
    let Recorded::Float8(float8) = &mut both else {
        unreachable!("made above");
    };
    float8.outputs.swap(0, 1);
    assert_eq!(run(&both, &[x, vec![2.0]]), once);
}

#[test]
fn a_value_comes_back_within_half_a_unit() {
    for format in [Fp8::E4M3, Fp8::E5M2] {
        // Of a normal number.
        let unit = if format == Fp8::E4M3 {
            1.0 / 8.0
        } else {
            1.0 / 4.0
        };
        for (of, shape) in OF
            .into_iter()
            .flat_map(|of| [(of, vec![6, 32]), (of, vec![2, 130, 272])])
        {
            let x = numbers(shape.iter().product(), 1);
            let [bytes, scales] = quantized(&x, &shape, of, format, of != ScaleOf::Tensor);
            for (index, (value, bits)) in x.iter().zip(&bytes).enumerate() {
                let scale = scales[of.index(&shape, index)];
                let back = f64::from(reference::decode(format, *bits as u8)) / scale;
                // Relative to the value, or to the smallest normal number.
                let bound = unit / 2.0 * value.abs().max(2f64.powi(-6) / scale) * (1.0 + 1e-6);
                assert!(
                    (back - value).abs() <= bound,
                    "{value} as {back} in {format}"
                );
            }
        }
    }
}

/// Blocks and tiles are counted from the first element of each matrix, and the last may be smaller.
#[test]
fn blocks_are_those_of_the_definition() {
    let shape = [2, 130, 272];
    let place = |element: usize| (element / (130 * 272), element / 272 % 130, element % 272);
    let counts = |of: ScaleOf| {
        let scales = of.shape(&shape);
        let mut counts = vec![0; scales.iter().product()];
        for element in 0..shape.iter().product() {
            let (matrix, row, column) = place(element);
            let [rows, columns] = [scales[1], scales[2]];
            let (row, column) = match of {
                ScaleOf::RowTile => (row, column / 128),
                ScaleOf::ColumnTile => (row / 128, column),
                _ => (row / 128, column / 128),
            };
            let expected = (matrix * rows + row) * columns + column;
            assert_eq!(of.index(&shape, element), expected, "{of:?}: {element}");
            counts[expected] += 1;
        }
        counts
    };
    assert_eq!(ScaleOf::RowTile.shape(&shape), [2, 130, 3]);
    assert_eq!(counts(ScaleOf::RowTile)[..3], [128, 128, 16]);
    assert_eq!(ScaleOf::ColumnTile.shape(&shape), [2, 2, 272]);
    assert_eq!(counts(ScaleOf::ColumnTile)[271..273], [128, 2]);
    assert_eq!(ScaleOf::Block.shape(&shape), [2, 2, 3]);
    let block = [16384, 16384, 2048, 256, 256, 32];
    assert_eq!(counts(ScaleOf::Block), [block, block].concat());
}

/// Shapes of the operands and the result of a product: of `x [3, 4, 32]` and `w [32, 16]`, or with two blocks along
/// what is cut into blocks.
fn shapes(product: Product, in_blocks: bool) -> [Vec<usize>; 3] {
    let (x, w, y) = match (in_blocks, product) {
        (false, _) => (vec![3, 4, 32], vec![32, 16], vec![3, 4, 16]),
        (true, Product::Weight) => (vec![2, 256, 4], vec![4, 6], vec![2, 256, 6]),
        (true, _) => (vec![6, 256], vec![256, 256], vec![6, 256]),
    };
    match product {
        Product::Forward => [x, w, y],
        Product::Input => [w, y, x],
        Product::Weight => [x, y, w],
    }
}

/// Products with the scales of each scaling, with their operands quantised from numbers.
fn products() -> Vec<(Recorded, Vec<Vec<f64>>)> {
    use Product::*;
    use ScaleOf::*;
    let (tensor, formats) = ([Tensor, Tensor], [Fp8::E4M3, Fp8::E5M2]);
    let mut made = Vec::new();
    for (product, scales) in [
        (Forward, tensor),
        (Input, tensor),
        (Weight, tensor),
        (Forward, [Row, Column]),
        (Input, [Row, Row]),
        (Weight, [Column, Column]),
        (Forward, [RowTile, Block]),
        (Input, [Block, RowTile]),
        (Weight, [ColumnTile, ColumnTile]),
    ] {
        let in_blocks = scales.iter().any(|of| matches!(of, RowTile | ColumnTile));
        for has_bias in [false, true] {
            // Blocks are large, and a bias is added to what they give as to anything else.
            if has_bias && (product != Forward || in_blocks) {
                continue;
            }
            let [first, second, out] = shapes(product, in_blocks);
            let count = |shape: &[usize]| shape.iter().product();
            let [a, b] = [(&first, 0), (&second, 1)].map(|(shape, at): (&Vec<usize>, usize)| {
                let exact = scales[at] != Tensor;
                quantized(
                    &numbers(count(shape), at),
                    shape,
                    scales[at],
                    formats[at],
                    exact,
                )
            });
            let ([a, a_scale], [b, b_scale]) = (a, b);
            let scale_shapes = [scales[0].shape(&first), scales[1].shape(&second)];
            let mut inputs: Vec<(&[usize], DType)> = vec![
                (&first, F8),
                (&second, F8),
                (&scale_shapes[0], F32),
                (&scale_shapes[1], F32),
            ];
            let mut values = vec![a, b, a_scale, b_scale];
            if has_bias {
                let bias = &out[out.len() - 1..];
                inputs.push((bias, F32));
                values.push(numbers(bias[0], 5));
            }
            let op8 = Float8Op::Product {
                product,
                scales,
                formats,
            };
            made.push((op(op8, &inputs, (&out, F32)), values));
        }
    }
    made
}

/// The same products, of what is not in 8 bits yet.
fn products_of_rank(numbers: fn(usize, usize) -> Vec<f64>) -> Vec<(Recorded, Vec<Vec<f64>>)> {
    let of_rank = |(quantized, _): (Recorded, Vec<Vec<f64>>)| {
        let Recorded::Float8(float8) = &quantized else {
            panic!("a product")
        };
        let Float8Op::Product {
            product,
            scales,
            formats,
        } = float8.op
        else {
            panic!("a product")
        };
        let of_rank = Float8Op::ProductOfRank {
            product,
            scales,
            formats,
            power_of_two: scales[0] != ScaleOf::Tensor,
        };
        let operands = [Some((0, 0)), Some((1, 1)), Some((4, 5))]
            .into_iter()
            .flatten();
        let operands = operands.filter_map(|(at, salt)| Some((float8.inputs.get(at)?, salt)));
        let (inputs, values): (Vec<_>, Vec<_>) = operands
            .map(|(tensor, salt)| {
                let numbers = numbers(tensor.shape.num_elements(), salt);
                ((tensor.shape.as_slice(), F32), numbers)
            })
            .unzip();
        let out = (float8.out().shape.as_slice(), F32);
        (op(of_rank, &inputs, out), values)
    };
    products().into_iter().map(of_rank).collect()
}

/// Powers of two, which 8 bits hold with the scale of any of them.
fn powers(count: usize, salt: usize) -> Vec<f64> {
    let power = |i: usize| {
        let sign = if (i * 11 + salt).is_multiple_of(3) {
            -1.0
        } else {
            1.0
        };
        sign * 2f64.powi(((i * 37 + salt) % 5) as i32 - 2)
    };
    (0..count).map(power).collect()
}

#[test]
fn a_product_of_a_rank_is_one_step_after_the_other() {
    for ((op, inputs), (of_rank, numbers)) in products().into_iter().zip(products_of_rank(numbers))
    {
        assert_eq!(run(&of_rank, &numbers), run(&op, &inputs), "{of_rank:?}");
    }
}

/// The product of what the operands stand for, in f64.
fn expected(op: &Float8, inputs: &[Vec<f64>]) -> Vec<f64> {
    let Float8Op::Product {
        product,
        scales,
        formats,
    } = op.op
    else {
        panic!("a product")
    };
    let values = |at: usize| -> Vec<f64> {
        let shape = op.inputs[at].shape.as_slice();
        let values = inputs[at].iter().enumerate();
        let value = |(index, bits): (usize, &f64)| {
            let scale = inputs[2 + at][scales[at].index(shape, index)];
            f64::from(reference::decode(formats[at], *bits as u8)) / scale
        };
        values.map(value).collect()
    };
    let (a, b) = (values(0), values(1));
    let last = |tensor: &TensorIr| *tensor.shape.as_slice().last().expect("dims");
    let (x, y) = match product {
        Product::Forward => (&op.inputs[0], op.out()),
        Product::Input => (op.out(), &op.inputs[1]),
        Product::Weight => (&op.inputs[0], &op.inputs[1]),
    };
    let (i, o) = (last(x), last(y));
    let rows = x.shape.num_elements() / i;
    let mut out = vec![0.0; op.out().shape.num_elements()];
    for row in 0..rows {
        for i_at in 0..i {
            for o_at in 0..o {
                let (x, w, y) = (row * i + i_at, i_at * o + o_at, row * o + o_at);
                match product {
                    Product::Forward => out[y] += a[x] * b[w],
                    Product::Input => out[x] += a[w] * b[y],
                    Product::Weight => out[w] += a[x] * b[y],
                }
            }
        }
    }
    if let Some(bias) = inputs.get(4) {
        out.iter_mut()
            .enumerate()
            .for_each(|(index, out)| *out += bias[index % o]);
    }
    out
}

#[test]
fn products_are_those_of_what_their_operands_stand_for() {
    for (op, inputs) in products() {
        let Recorded::Float8(float8) = &op else {
            panic!("a product")
        };
        let found = run(&op, &inputs);
        for (found, expected) in found.iter().zip(expected(float8, &inputs)) {
            // At most 32 products of numbers up to 2 in f32, and three factors. Those in blocks are more and exact: the
            // numbers are multiples of 1/64, scales are powers of two, and 512 products of 2^-12 * 2^14 fit.
            assert!(
                (found - expected).abs() < 36.0 * 4.0 * 2f64.powi(-23),
                "{found}, {expected}"
            );
        }
    }
}

#[test]
fn results_have_the_type_of_the_layer() {
    for dtype in [DType::BF16, DType::F16] {
        for (mut op, inputs) in products() {
            let in_f32 = run(&op, &inputs);
            let Recorded::Float8(float8) = &mut op else {
                panic!("a product")
            };
            float8.outputs[0].dtype = dtype;
            for (found, wide) in run(&op, &inputs).iter().zip(in_f32) {
                let rounded = match dtype {
                    DType::BF16 => half::bf16::from_f32(wide as f32).to_f64(),
                    _ => half::f16::from_f32(wide as f32).to_f64(),
                };
                assert_eq!(*found, rounded);
            }
        }
    }
}

/// Every split of every operation gives what the whole gives.
#[test]
#[cfg_attr(burn_021, ignore = "long, and the same source on the current line")]
fn every_split_is_the_whole() {
    let mut cases = products();
    // Scales differ from rank to rank, and these numbers are exact with all of them.
    cases.extend(products_of_rank(powers));
    for of in OF {
        let shape: &[usize] = match of {
            ScaleOf::Tensor | ScaleOf::Row | ScaleOf::Column => &[6, 4, 8],
            ScaleOf::RowTile => &[6, 384],
            ScaleOf::ColumnTile => &[2, 384, 3],
            ScaleOf::Block => &[256, 384],
        };
        let count = shape.iter().product();
        let scales = of.shape(shape);
        let amax = op(Float8Op::Amax(of), &[(shape, F32)], (&scales, F32));
        cases.push((amax, vec![numbers(count, 3)]));
        for at_rest in [false, true] {
            let format = Fp8::E4M3;
            let quantize = Float8Op::Quantize {
                of,
                format,
                at_rest,
                ways: Ways::AsIs,
            };
            let inputs: [(&[usize], DType); 2] = [(shape, F32), (&scales, F32)];
            let scale = (0..scales.iter().product()).map(|at: usize| 1.0 + at as f64);
            let values = vec![numbers(count, 4), scale.collect()];
            cases.push((op(quantize, &inputs, (shape, F8)), values));
        }
    }
    let one: (&[usize], DType) = (&[1], F32);
    let stack = op(Float8Op::Stack, &[one; 3], (&[3], F32));
    cases.push((stack, vec![vec![3.0], vec![1.0], vec![2.0]]));
    let scale = Float8Op::Scale {
        format: Fp8::E4M3,
        power_of_two: true,
    };
    let scale = op(scale, &[(&[12, 1], F32)], (&[12, 1], F32));
    cases.push((scale, vec![(1..13).map(f64::from).collect()]));
    // The longest test of this crate: on all cores.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cases = &cases;
    std::thread::scope(|scope| {
        for core in 0..cores {
            let cases = cases.iter().skip(core).step_by(cores);
            scope.spawn(|| cases.for_each(|(op, inputs)| assert_splits_are_the_whole(op, inputs)));
        }
    });
}

fn assert_splits_are_the_whole(op: &Recorded, inputs: &[Vec<f64>]) {
    let describe = |tensor: &TensorIr, values: Vec<f64>| Values {
        shape: tensor.shape.to_vec(),
        dtype: of_burn(tensor.dtype),
        values,
    };
    let whole = run(op, inputs);
    let case = Case {
        op: op.name().into(),
        rule: op.rule(),
        inputs: op
            .reads()
            .zip(inputs)
            .map(|(tensor, values)| describe(tensor, values.clone()))
            .collect(),
        outputs: op.makes().map(|out| describe(out, whole.clone())).collect(),
        tolerance: 1e-5,
    };
    let checked = oracle::check(&case, |view, blocks| {
        let mut steps = Steps::new(1000);
        op.lower(view, &mut steps);
        let [local] = steps.ops().collect::<Vec<_>>()[..] else {
            panic!("one operation on a rank: {steps:?}")
        };
        let blocks = blocks
            .into_iter()
            .map(|block| block.expect("all are read").values);
        vec![run(local, &blocks.collect::<Vec<_>>())]
    });
    let checked = checked.unwrap_or_else(|error| panic!("{error}"));
    assert!(checked > 3, "{op:?}: {checked}");
}
