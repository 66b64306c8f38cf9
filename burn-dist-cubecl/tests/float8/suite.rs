//! What kernels promise, against the reference, on any device.

use burn_dist_cubecl::float8::{self, Form, Operand, Tiles};
use burn_dist_cubecl::{Client, Element, Elements, fold_rows};
use burn_dist_kernels::float8::reference;
use burn_dist_plan::float8::ScaleOf;
use burn_dist_plan::policy::Fp8;
use cubecl::server::Handle;
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

pub(crate) const FORMATS: [Fp8; 2] = [Fp8::E4M3, Fp8::E5M2];
const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

/// Puts values on a device, rounded to a type, and returns these.
pub(crate) fn upload<C: Client>(
    client: &C,
    element: Element,
    values: &[f32],
) -> (Elements, Vec<f32>) {
    let (mut bytes, rounded): (Vec<u8>, Vec<f32>) = match element {
        Element::F32 => {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            (bytes.collect(), values.to_vec())
        }
        Element::F16 => {
            let rounded: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            let bytes = rounded.iter().flat_map(|value| value.to_le_bytes());
            (
                bytes.collect(),
                rounded.iter().map(|value| value.to_f32()).collect(),
            )
        }
        Element::Bf16 => {
            let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            let bytes = rounded.iter().flat_map(|value| value.to_le_bytes());
            (
                bytes.collect(),
                rounded.iter().map(|value| value.to_f32()).collect(),
            )
        }
    };
    bytes.resize(bytes.len().next_multiple_of(4).max(4), 0);
    let handle = client.cubecl().create_from_slice(&bytes);
    (Elements { handle, element }, rounded)
}

/// Reads numbers of 32 bits.
pub(crate) fn words<C: Client>(client: &C, handle: &Handle, count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let bytes = client
        .cubecl()
        .read_one(handle.clone())
        .expect("the device gives what it has made");
    let words = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("4")));
    words.take(count).collect()
}

/// Reads values in 8 bits, whatever form they have.
pub(crate) fn codes<C: Client>(
    client: &C,
    handle: &Handle,
    count: usize,
    format: Fp8,
    form: Form,
) -> Vec<u8> {
    if count == 0 {
        return Vec::new();
    }
    match form {
        Form::Bytes => {
            let bytes = client
                .cubecl()
                .read_one(handle.clone())
                .expect("the device gives what it has made");
            bytes[..count].to_vec()
        }
        Form::Grid => {
            let values = words(client, handle, count).into_iter().map(f32::from_bits);
            let codes = values.map(|value| {
                let code = reference::encode(format, value);
                let back = reference::decode(format, code);
                assert!(
                    back.to_bits() == value.to_bits() || back.is_nan() && value.is_nan(),
                    "{value:e} is no value of {format}"
                );
                code
            });
            codes.collect()
        }
    }
}

fn amax(values: &[f32], tiles: Tiles) -> Vec<f32> {
    let mut maxima = vec![0.0; tiles.num_scales()];
    for (index, value) in values.iter().enumerate() {
        let max = &mut maxima[tiles.scale_of(index)];
        *max = reference::larger(*max, value.abs());
    }
    maxima
}

fn quantized(values: &[f32], scales: &[f32], tiles: Tiles, format: Fp8) -> Vec<u8> {
    let values = values.iter().enumerate();
    values
        .map(|(index, value)| reference::encode(format, value * scales[tiles.scale_of(index)]))
        .collect()
}

/// Equal but for what NaN is.
fn assert_bits(found: &[u32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let value = f32::from_bits(*found);
        let are_nan = value.is_nan() && expected.is_nan();
        assert!(
            are_nan || *found == expected.to_bits(),
            "{what}: {value:e} instead of {expected:e} at {index}"
        );
    }
}

fn assert_codes(found: &[u8], expected: &[u8], values: &[f32], format: Fp8, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let of = |code: u8| reference::decode(format, code);
        let are_nan = of(*found).is_nan() && of(*expected).is_nan();
        let value = values[index];
        assert!(
            are_nan || found == expected,
            "{what}: {value:e} ({:#x}) is {found:#x} instead of {expected:#x} in {format}",
            value.to_bits()
        );
    }
}

/// Casts values with one scale.
fn check_casts<C: Client>(
    client: &C,
    forms: &[Form],
    element: Element,
    values: &[f32],
    scale: f32,
) {
    let (input, values) = upload(client, element, values);
    let scales = client.cubecl().create_from_slice(&scale.to_le_bytes());
    for (format, &form) in FORMATS
        .into_iter()
        .flat_map(|f| forms.iter().map(move |form| (f, form)))
    {
        // As a row, and as rows that are read one by one.
        for width in [values.len(), 1] {
            let tiles = Tiles::of(ScaleOf::Tensor, &[values.len() / width, width]);
            let out = float8::quantize(client, &input, &scales, tiles, format, form);
            let found = codes(client, &out, values.len(), format, form);
            let expected = quantized(&values, &[scale], tiles, format);
            let what = format!("{element:?} as {form:?}, scale {scale:e}");
            assert_codes(&found, &expected, &values, format, &what);
        }
    }
}

/// All values of 16 bits, every place where rounding turns, and what is no number.
pub(crate) fn casts<C: Client>(client: &C, forms: &[Form]) {
    let scales = [
        1.0,
        0.0,
        3.0,
        448.0,
        1e-3,
        2f32.powi(-119),
        5.7e16,
        f32::NAN,
    ];
    let all = |of: fn(u16) -> f32| (0..=u16::MAX).map(of).collect::<Vec<f32>>();
    let [bf16s, f16s] = [
        all(|bits| bf16::from_bits(bits).to_f32()),
        all(|bits| f16::from_bits(bits).to_f32()),
    ];
    for scale in scales {
        check_casts(client, forms, Element::Bf16, &bf16s, scale);
        check_casts(client, forms, Element::F16, &f16s, scale);
    }
    let mut points = vec![0.0, f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE];
    points.extend([
        f32::from_bits(1),
        f32::from_bits(0x7f80_0001),
        f32::from_bits(u32::MAX >> 1),
    ]);
    for format in FORMATS {
        let values = (0..0x80).map(|code| reference::decode(format, code));
        let values: Vec<f32> = values.filter(|value| value.is_finite()).collect();
        let halfway = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let beyond = [1.01, 1.07, 2.0].map(|factor| format.max() * factor);
        for point in halfway.chain(values.iter().copied()).chain(beyond) {
            points.extend([point.next_down(), point, point.next_up()]);
        }
    }
    points.extend(points.clone().into_iter().map(|point| -point));
    points.resize(points.len().next_multiple_of(WIDTH), 0.0);
    for scale in scales {
        check_casts(client, forms, Element::F32, &points, scale);
    }
}

/// A multiple of what kernels read at once.
const WIDTH: usize = 8;

/// Scales of maxima of all sizes.
pub(crate) fn scales<C: Client>(client: &C) {
    let mut maxima: Vec<f32> = (0..1 << 16)
        .map(|upper| f32::from_bits(upper << 15))
        .collect();
    maxima
        .extend((0..1 << 12u32).map(|index: u32| f32::from_bits(index.wrapping_mul(524_287) >> 1)));
    maxima.extend([
        0.0,
        -0.0,
        -1.0,
        1e-12,
        1e-13,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ]);
    maxima.extend([1e-12f32.next_down(), 1e-12f32.next_up(), f32::from_bits(1)]);
    let (input, _) = upload(client, Element::F32, &maxima);
    for (format, power_of_two) in FORMATS.into_iter().flat_map(|f| [(f, false), (f, true)]) {
        let out = float8::scale(client, &input.handle, maxima.len(), format, power_of_two);
        let expected = maxima
            .iter()
            .map(|amax| reference::scale(format, power_of_two, *amax));
        let expected: Vec<f32> = expected.collect();
        assert_bits(&words(client, &out, maxima.len()), &expected, "scales");
    }
}

/// Numbers of many sizes.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..count)
        .map(|_| {
            let sign = if next() & 1 == 0 { 1.0 } else { -1.0 };
            sign * (next() as f32 / 2f32.powi(31)) * 2f32.powi(next() as i32 % 12 - 6)
        })
        .collect()
}

/// Maxima, scales and values in 8 bits of a tensor.
fn check_tensor<C: Client>(
    client: &C,
    forms: &[Form],
    element: Element,
    values: &[f32],
    tiles: Tiles,
) {
    let (input, values) = upload(client, element, values);
    let what = format!("{element:?}, {tiles:?}");
    let expected = amax(&values, tiles);
    let maxima = float8::amax(client, &input, tiles);
    assert_bits(
        &words(client, &maxima, tiles.num_scales()),
        &expected,
        &what,
    );
    for (format, power_of_two) in [(Fp8::E4M3, false), (Fp8::E5M2, true)] {
        let scales = float8::scale(client, &maxima, tiles.num_scales(), format, power_of_two);
        let expected = expected
            .iter()
            .map(|amax| reference::scale(format, power_of_two, *amax));
        let expected: Vec<f32> = expected.collect();
        assert_bits(
            &words(client, &scales, tiles.num_scales()),
            &expected,
            &what,
        );
        for &form in forms {
            let out = float8::quantize(client, &input, &scales, tiles, format, form);
            let found = codes(client, &out, values.len(), format, form);
            let expected = quantized(&values, &expected, tiles, format);
            assert_codes(&found, &expected, &values, format, &what);
        }
    }
}

/// All ways to share a scale.
fn all_tiles(shape: &[usize]) -> Vec<Tiles> {
    let mut tiles = [ScaleOf::Tensor, ScaleOf::Row, ScaleOf::Column]
        .map(|of| Tiles::of(of, shape))
        .to_vec();
    for (height, width) in [(1, 128), (128, 1), (128, 128), (3, 5), (8, 8)] {
        tiles.push(Tiles::blocks(shape, height, width));
    }
    tiles
}

/// Tensors of all kinds of shapes: of no element and of one, small and large, and no multiples of anything.
pub(crate) fn tensors<C: Client>(client: &C, forms: &[Form]) {
    let shapes: [&[usize]; 12] = [
        &[],
        &[0],
        &[1],
        &[0, 16],
        &[16, 0],
        &[1, 1],
        &[2, 0, 8],
        &[5, 7],
        &[3, 129, 136],
        &[2, 256, 64],
        &[300, 24],
        &[1, 20_000],
    ];
    for shape in shapes {
        let values = numbers(shape.iter().product(), 7);
        for (tiles, element) in all_tiles(shape)
            .into_iter()
            .flat_map(|tiles| ELEMENTS.map(|element| (tiles, element)))
        {
            check_tensor(client, forms, element, &values, tiles);
        }
    }
    // Many pieces, and what is left of them.
    for shape in [&[1024, 1040][..], &[3, 100_003]] {
        let values = numbers(shape.iter().product(), 8);
        let tiles = Tiles::of(ScaleOf::Tensor, shape);
        check_tensor(client, forms, Element::Bf16, &values, tiles);
        check_tensor(
            client,
            &forms[..1],
            Element::F32,
            &values,
            Tiles::of(ScaleOf::Row, shape),
        );
    }
}

/// One value that is no number is seen wherever it is.
pub(crate) fn specials<C: Client>(client: &C, forms: &[Form]) {
    let shape = [8, 40];
    for (index, special) in [
        (0, f32::NAN),
        (319, -f32::NAN),
        (77, f32::INFINITY),
        (200, f32::NEG_INFINITY),
    ] {
        let mut values = numbers(320, 9);
        values[index] = special;
        for tiles in all_tiles(&shape) {
            for element in ELEMENTS {
                check_tensor(client, forms, element, &values, tiles);
            }
        }
    }
}

/// Tensors at random.
pub(crate) fn random_tensors<C: Client>(client: &C, forms: &[Form], cases: u32) {
    let shape = prop::collection::vec(
        prop_oneof![1 => Just(0usize), 4 => 1..12usize, 4 => 1..200usize],
        1..4,
    )
    .prop_filter("small", |shape| shape.iter().product::<usize>() < 60_000);
    let drawn = (
        shape,
        0..8usize,
        prop::sample::select(&ELEMENTS[..]),
        any::<u64>(),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let run = runner.run(&drawn, |(shape, tiles, element, seed)| {
        let values = numbers(shape.iter().product(), seed);
        check_tensor(client, forms, element, &values, all_tiles(&shape)[tiles]);
        Ok(())
    });
    run.expect("kernels are the reference");
}

/// Reads elements as numbers.
fn values<C: Client>(client: &C, handle: &Handle, count: usize, element: Element) -> Vec<f32> {
    let bytes = client
        .cubecl()
        .read_one(handle.clone())
        .expect("the device gives what it has made");
    let halves = bytes
        .chunks_exact(2)
        .map(|half| u16::from_le_bytes(half.try_into().expect("2")));
    let values: Vec<f32> = match element {
        Element::F32 => {
            return words(client, handle, count)
                .into_iter()
                .map(f32::from_bits)
                .collect();
        }
        Element::F16 => halves.map(|half| f16::from_bits(half).to_f32()).collect(),
        Element::Bf16 => halves.map(|half| bf16::from_bits(half).to_f32()).collect(),
    };
    values[..count].to_vec()
}

/// An operand as it was made, on the device and on the host.
struct Made {
    values: Handle,
    scales: Handle,
    tiles: Tiles,
    format: Fp8,
    /// Not divided by their scales.
    decoded: Vec<f64>,
    scale_of: Vec<f64>,
}

/// Quantises numbers.
fn operand<C: Client>(
    client: &C,
    form: Form,
    numbers: &[f32],
    tiles: Tiles,
    format: Fp8,
    power_of_two: bool,
) -> Made {
    let (input, numbers) = upload(client, Element::F32, numbers);
    let scales: Vec<f32> = amax(&numbers, tiles)
        .into_iter()
        .map(|amax| reference::scale(format, power_of_two, amax))
        .collect();
    let codes = quantized(&numbers, &scales, tiles, format);
    let on_device = float8::scale(
        client,
        &float8::amax(client, &input, tiles),
        tiles.num_scales(),
        format,
        power_of_two,
    );
    Made {
        values: float8::quantize(client, &input, &on_device, tiles, format, form),
        scales: on_device,
        tiles,
        format,
        decoded: codes
            .iter()
            .map(|code| reference::decode(format, *code).into())
            .collect(),
        scale_of: (0..codes.len())
            .map(|index| scales[tiles.scale_of(index)].into())
            .collect(),
    }
}

/// Multiplies `[inner, rows]`, or what it is transposed, by `[inner, columns]`.
fn check_product<C: Client>(
    client: &C,
    form: Form,
    made: [&Made; 2],
    are_last_inner: [bool; 2],
    [rows, inner, columns]: [usize; 3],
    bias: Option<(&Elements, &[f32])>,
    out: Element,
) {
    let operand = |index: usize| Operand {
        values: &made[index].values,
        scales: &made[index].scales,
        tiles: made[index].tiles,
        format: made[index].format,
        is_last_inner: are_last_inner[index],
    };
    let found = float8::product(
        client,
        [operand(0), operand(1)],
        bias.map(|(bias, _)| bias),
        form,
        out,
    );
    let found = values(client, &found, rows * columns, out);
    let place = |operand: usize, outer: usize, index: usize| match are_last_inner[operand] {
        true => outer * inner + index,
        false => index * [rows, columns][operand] + outer,
    };
    // Half a unit of the result's last place, relative.
    let unit = match out {
        Element::F32 => 2f64.powi(-24),
        Element::F16 => 2f64.powi(-11),
        Element::Bf16 => 2f64.powi(-8),
    };
    let single = 2f64.powi(-24);
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let (mut sum, mut size) = (0.0, 0.0);
        for index in 0..inner {
            let (at, by) = (place(0, row, index), place(1, column, index));
            let term = made[0].decoded[at] / made[0].scale_of[at] * made[1].decoded[by]
                / made[1].scale_of[by];
            sum += term;
            size += term.abs();
        }
        let bias = bias.map_or(0.0, |(_, bias)| f64::from(bias[column]));
        sum += bias;
        // Products of 8 bits are exact in f32. A sum of n terms in f32 is off by n - 1 roundings of at most what all add
        // up to; there are sums of sums, an inverse of each scale, their product, one with it, and the bias.
        let roundings = (2 * inner + 8) as f64;
        let bound = roundings * single * (size + bias.abs());
        let bound = bound + unit * (sum.abs() + bound) + f64::from(f32::MIN_POSITIVE);
        // The smallest numbers of 16 bits are apart by this much.
        let bound = bound
            + if out == Element::F16 {
                2f64.powi(-25)
            } else {
                0.0
            };
        let found = f64::from(found[row * columns + column]);
        let is_bad = sum.is_nan() != found.is_nan() || (found - sum).abs() > bound;
        assert!(
            !is_bad,
            "{found} instead of {sum} at [{row}, {column}], within {bound}: {:?}, {:?}, {form:?}, {out:?}",
            made[0].tiles, made[1].tiles
        );
    }
}

/// Products of all layouts and scalings, and of sizes that no tile divides.
pub(crate) fn products<C: Client>(client: &C, forms: &[Form], outs: &[Element]) {
    let sizes = [
        [1, 1, 1],
        [16, 32, 16],
        [64, 64, 64],
        [65, 130, 67],
        [3, 300, 5],
        [130, 17, 66],
    ];
    for (&form, [rows, inner, columns]) in forms.iter().flat_map(|form| sizes.map(|s| (form, s))) {
        let shapes = |is_last_inner: bool, outer: usize| match is_last_inner {
            true => [outer, inner],
            false => [inner, outer],
        };
        let bias: Vec<f32> = numbers(columns, 3);
        let are_last_inner = [[true, false], [true, true], [false, false]];
        for (are_last_inner, scaling) in are_last_inner
            .into_iter()
            .flat_map(|l| [(l, 0), (l, 1), (l, 2)])
        {
            let made = [0, 1].map(|index| {
                let is_last_inner = are_last_inner[index];
                let shape = shapes(is_last_inner, [rows, columns][index]);
                let tiles = match (scaling, is_last_inner) {
                    (0, _) => Tiles::of(ScaleOf::Tensor, &shape),
                    (1, true) => Tiles::of(ScaleOf::Row, &shape),
                    (1, false) => Tiles::of(ScaleOf::Column, &shape),
                    (_, true) if index == 0 => Tiles::blocks(&shape, 1, 128),
                    (_, false) if index == 0 => Tiles::blocks(&shape, 128, 1),
                    _ => Tiles::blocks(&shape, 128, 128),
                };
                let format = [Fp8::E4M3, Fp8::E5M2][index * scaling.min(1)];
                operand(
                    client,
                    form,
                    &numbers(shape[0] * shape[1], 5 + index as u64),
                    tiles,
                    format,
                    scaling > 0,
                )
            });
            for &out in outs {
                let (on_device, rounded) = upload(client, out, &bias);
                let bias = (scaling != 1).then_some((&on_device, &rounded[..]));
                let sizes = [rows, inner, columns];
                check_product(
                    client,
                    form,
                    [&made[0], &made[1]],
                    are_last_inner,
                    sizes,
                    bias,
                    out,
                );
            }
        }
    }
}

/// What is no number makes all that it is a term of no number.
pub(crate) fn products_of_specials<C: Client>(client: &C, forms: &[Form]) {
    let shape = [20, 20];
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (&form, of) in forms
            .iter()
            .flat_map(|f| [(f, ScaleOf::Tensor), (f, ScaleOf::Row)])
        {
            let mut first = numbers(400, 1);
            first[47] = special;
            let first = operand(
                client,
                form,
                &first,
                Tiles::of(of, &shape),
                Fp8::E4M3,
                false,
            );
            let tiles = Tiles::of(of, &shape);
            let second = operand(client, form, &numbers(400, 2), tiles, Fp8::E4M3, false);
            let sizes = [20, 20, 20];
            check_product(
                client,
                form,
                [&first, &second],
                [true, true],
                sizes,
                None,
                Element::F32,
            );
        }
    }
}

/// Sums as a balanced tree, each rounded.
fn tree(terms: &[f32], round: &impl Fn(f32) -> f32) -> f32 {
    match terms {
        [one] => *one,
        _ => {
            let (left, right) = terms.split_at(terms.len().next_power_of_two() / 2);
            round(tree(left, round) + tree(right, round))
        }
    }
}

/// Sums of rows have the bits of reductions.
pub(crate) fn folds<C: Client>(client: &C) {
    for (count, width) in [
        (1, 5),
        (2, 64),
        (3, 7),
        (4, 33),
        (5, 1),
        (6, 130),
        (7, 8),
        (8, 0),
        (13, 100),
    ] {
        for element in ELEMENTS {
            let (rows, numbers) = upload(client, element, &numbers(count * width, 11));
            let found = fold_rows(client, &rows, count, width);
            if width == 0 {
                continue;
            }
            let found = values(client, &found, width, element);
            let round = |value: f32| match element {
                Element::F32 => value,
                Element::F16 => f16::from_f32(value).to_f32(),
                Element::Bf16 => bf16::from_f32(value).to_f32(),
            };
            let expected: Vec<f32> = (0..width)
                .map(|column| {
                    let terms: Vec<f32> = (0..count)
                        .map(|row| numbers[row * width + column])
                        .collect();
                    tree(&terms, &round)
                })
                .collect();
            assert_eq!(found, expected, "{count} x {width}, {element:?}");
        }
    }
}
