//! Partial layouts: a value becomes terms, and the terms reduce to the value again, bit for bit, whatever the
//! reduction, the dtype, the mesh, and wherever the value comes from.

use burn::tensor::{Bool, Float, Int, Tensor, TensorData, kind};
use burn_dist::{DTensor, DeviceMesh};
use half::{bf16, f16};

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::builder()
        .axes(&text.parse().expect("a mesh"))
        .build()
        .expect("a mesh")
}

/// Elements whose bits are easily lost: zeros of both signs, the ends of the type, mantissas that round when multiplied
/// by 3, and some more.
macro_rules! floats {
    ($type:ident, $from:expr, $salt:expr) => {{
        let from: fn(f64) -> $type = $from;
        let mut values: Vec<$type> = [0.0, -0.0, 3.3, -3.3, 1e-9, 1.0, 1.0 / 3.0]
            .map(from)
            .to_vec();
        values.extend([
            $type::MAX,
            $type::MIN,
            $type::MIN_POSITIVE,
            $type::EPSILON,
            $type::from_bits(1),
        ]);
        values.extend([$type::INFINITY, $type::NEG_INFINITY, $type::NAN]);
        // All exponents around 1, all kinds of mantissas (an LCG).
        let mut word = 0x2545_F491_4F6C_DD1Du64 ^ $salt;
        values.extend((0..25).map(|i: i32| {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let mantissa = 1.0 + (word >> 11) as f64 / (1u64 << 53) as f64;
            from(mantissa * f64::powi(-2.0, i % 9 - 4))
        }));
        let length = values.len();
        TensorData::new(values, [length])
    }};
}

macro_rules! ints {
    ($type:ident, $salt:expr) => {{
        let mut values: Vec<$type> = vec![
            $type::MAX,
            $type::MIN,
            $type::MAX - 1,
            $type::MIN + 1,
            0,
            1,
            2,
            3,
            $type::MAX / 2 + 1,
        ];
        values.extend(
            (0..6u64).map(|i| ((i + 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ $salt) as $type),
        );
        let length = values.len();
        TensorData::new(values, [length])
    }};
}

fn float_data(salt: u64) -> Vec<TensorData> {
    vec![
        floats!(f64, |x| x, salt),
        floats!(f32, |x| x as f32, salt),
        floats!(f16, f16::from_f64, salt),
        floats!(bf16, bf16::from_f64, salt),
    ]
}

fn int_data(salt: u64) -> Vec<TensorData> {
    vec![
        ints!(i64, salt),
        ints!(i32, salt),
        ints!(i16, salt),
        ints!(i8, salt),
        ints!(u64, salt),
        ints!(u32, salt),
        ints!(u16, salt),
        ints!(u8, salt),
    ]
}

/// The elements that differ, for messages.
fn difference(found: &TensorData, expected: &TensorData) -> Option<String> {
    if found.dtype() == expected.dtype() && found.bytes() == expected.bytes() {
        return None;
    }
    let size = expected.dtype().size();
    let wrong = found
        .bytes()
        .chunks(size)
        .zip(expected.bytes().chunks(size))
        .enumerate();
    let wrong: Vec<String> = wrong
        .filter(|(_, (found, expected))| found != expected)
        .map(|(i, (found, expected))| format!("element {i}: {found:02x?}, not {expected:02x?}"))
        .collect();
    Some(format!(
        "{} instead of {}: {}",
        found.dtype().name(),
        expected.dtype().name(),
        wrong.join("; ")
    ))
}

/// Every layout of a vector: each axis repeats, splits or makes it partial by one of `ops`.
fn layouts(axes: &[&str], ops: &[&str]) -> Vec<String> {
    let mut all = vec![(Vec::new(), Vec::new())];
    for axis in axes {
        all = all
            .into_iter()
            .flat_map(|(split, partial): (Vec<&str>, Vec<(&str, &str)>)| {
                let linear = |op: &str| matches!(op, "sum" | "mean");
                let commutes = |op: &&&str| {
                    partial
                        .iter()
                        .all(|(other, _)| other == *op || linear(other) && linear(op))
                };
                let mut next = vec![
                    (split.clone(), partial.clone()),
                    ([split.clone(), vec![*axis]].concat(), partial.clone()),
                ];
                for op in ops.iter().filter(commutes) {
                    next.push((
                        split.clone(),
                        [partial.clone(), vec![(*op, *axis)]].concat(),
                    ));
                }
                next
            })
            .collect();
    }
    all.into_iter()
        .map(|(split, partial)| {
            let dim = match split.as_slice() {
                [] => "-".to_string(),
                axes => format!("{{{}}}", axes.join(", ")),
            };
            let partial = partial
                .iter()
                .map(|(op, axis)| format!(" + {op}{{{axis}}}"));
            format!("[{dim}]{}", partial.collect::<String>())
        })
        .collect()
}

const OPS: [&str; 5] = ["sum", "mean", "min", "max", "prod"];

/// Moves values of one kind from everywhere to every layout and reads them.
fn moves<K>(text: &str, data: &[TensorData], wrong: &mut Vec<String>)
where
    K: kind::Numeric,
    Tensor<1, K>: DTensor,
{
    let axes: Vec<&str> = text
        .split(',')
        .filter_map(|axis| axis.split('=').next())
        .collect();
    let all = layouts(&axes, &OPS);
    let mesh = mesh(text);
    let device = mesh.device();
    for data in data {
        let new = || Tensor::<1, K>::from_data(data.clone(), (&device, data.dtype()));
        let mut check = |from: &str, to: &str, moved: Tensor<1, K>| {
            if let Some(difference) = difference(&moved.into_data(), data) {
                wrong.push(format!("{text}: {from} -> {to}: {difference}"));
            }
        };
        for to in &all {
            let move_to = |x: Tensor<1, K>| x.redistribute(to).expect("a layout");
            check("host data", to, move_to(new()));
            let computed = new().flip([0]).flip([0]);
            check("a result", to, move_to(computed.clone()));
            computed.clone().into_data();
            check("a result that was read", to, move_to(computed));
            // What a partial value goes through before it is reduced.
            check(
                "host data, moved on",
                to,
                move_to(new()).flip([0]).flip([0]),
            );
            for from in &all {
                let placed = new().redistribute(from).expect("a layout");
                check(from, to, move_to(placed));
            }
        }
    }
}

#[test]
fn every_layout_to_every_layout() {
    let mut wrong = Vec::new();
    // Three terms of a mean add up to a sum that rounds.
    for text in ["tp=2", "tp=3"] {
        moves::<Float>(text, &float_data(0), &mut wrong);
        moves::<Int>(text, &int_data(0), &mut wrong);
    }
    moves::<Float>("dp=2,tp=3", &float_data(1)[1..2], &mut wrong);
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn constants_become_terms() {
    let mesh = mesh("dp=2,tp=3");
    let device = mesh.device();
    for to in layouts(&["dp", "tp"], &OPS) {
        for value in [0.0f32, -0.0, 3.3, f32::MAX, f32::NEG_INFINITY] {
            let x = Tensor::<1>::full([5], value, &device);
            let found = x.redistribute(&to).expect("a layout").into_data();
            let expected = TensorData::new(vec![value; 5], [5]);
            assert_eq!(difference(&found, &expected), None, "{value} in {to}");
        }
        let range = Tensor::<1, Int>::arange(0..5, &device);
        let expected = range.clone().into_data();
        let found = range.redistribute(&to).expect("a layout").into_data();
        assert_eq!(difference(&found, &expected), None, "a range in {to}");
    }
}

/// A partial value really is in terms: reading it needs a reduction.
#[test]
fn terms_are_reduced() {
    let mesh = mesh("tp=2");
    let device = mesh.device();
    for op in OPS {
        let x = Tensor::<1>::from_data([1.0, 2.0, 3.0], &device);
        let target = format!("[-] + {op}{{tp}}");
        let (_, explanation) = burn_dist::explain(&device, || {
            x.redistribute(&target).expect("a layout").into_data()
        });
        let kinds: Vec<_> = explanation.totals.keys().collect();
        assert_eq!(kinds, [&"all_reduce"], "{op}");
    }
}

#[test]
fn fuzz_layouts_change_no_bit() {
    let mut wrong = Vec::new();
    for (seed, text) in [
        (1, "tp=2"),
        (2, "tp=3"),
        (3, "dp=2,tp=2"),
        (4, "dp=2,tp=3"),
        (5, "a:model=2,b:model=2,c:model=2"),
        (6, "tp=5"),
    ] {
        let mesh = DeviceMesh::builder()
            .axes(&text.parse().expect("a mesh"))
            .fuzz_layouts(seed)
            .build()
            .expect("a mesh");
        let device = mesh.device();
        let mut check = |found: TensorData, expected: &TensorData| {
            if let Some(difference) = difference(&found, expected) {
                wrong.push(format!("{text}: {difference}"));
            }
        };
        // Other data, other layouts.
        for salt in 0..16 {
            for data in float_data(salt) {
                let x = Tensor::<1>::from_data(data.clone(), (&device, data.dtype()));
                check(x.flip([0]).flip([0]).into_data(), &data);
            }
            for data in int_data(salt) {
                let x = Tensor::<1, Int>::from_data(data.clone(), (&device, data.dtype()));
                check(x.flip([0]).flip([0]).into_data(), &data);
            }
            let bools: Vec<bool> = (0..9)
                .map(|i| (i * i + salt as usize).is_multiple_of(3))
                .collect();
            let data = TensorData::new(bools, [9]);
            let x = Tensor::<1, Bool>::from_data(data.clone(), &device);
            check(
                x.flip([0])
                    .flip([0])
                    .into_data()
                    .convert_dtype(data.dtype()),
                &data,
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A seed gives a tensor one layout, in whatever order threads make tensors.
#[test]
fn a_seed_replays() {
    let data = |salt: usize| {
        let values: Vec<f32> = (0..24)
            .map(|i| ((i * 37 + salt * 101) % 257) as f32)
            .collect();
        TensorData::new(values, [4, 6])
    };
    let texts = |seed: u64, order: &[usize]| -> Vec<String> {
        let mesh = DeviceMesh::builder()
            .axes(&"dp=2,fsdp=2,tp=2".parse().expect("a mesh"))
            .fuzz_layouts(seed)
            .build()
            .expect("a mesh");
        let device = mesh.device();
        let mut texts = vec![String::new(); order.len()];
        for &salt in order {
            let x = Tensor::<2>::from_data(data(salt), &device);
            texts[salt] = x.layout_text().expect("a layout");
        }
        texts
    };
    for seed in 0..5 {
        let first = texts(seed, &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(texts(seed, &[5, 3, 7, 1, 0, 6, 4, 2]), first, "seed {seed}");
        assert_eq!(texts(seed, &[0, 1, 2]), first[..3], "seed {seed}");
        assert_ne!(
            texts(seed + 5, &[0, 1, 2, 3, 4, 5, 6, 7]),
            first,
            "seed {seed}"
        );
    }
}
