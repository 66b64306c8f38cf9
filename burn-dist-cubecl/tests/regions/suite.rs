//! Kernels of regions against those of the host.

use burn_dist_cubecl::Client;
use burn_dist_cubecl::region::{Draw, supports};
use burn_dist_kernels::random::{Bernoulli, Normal, Philox, Samples, Uniform};
use burn_dist_kernels::region::programs::{
    Array, Case, Chance, Language, apart, case_of, drawing, may_be_drawn,
};
use burn_dist_mesh::{BoolStore, DType};
use burn_dist_plan::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Numbering, Typed, Unary,
};
use proptest::prelude::*;

#[path = "cases.rs"]
mod cases;
use cases::{
    EACH, assert_same, drawing_on_device, f32s, float, in_order, on_device, on_host, plain, to_f32s,
};

const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::U32,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U32),
];

/// Functions that are exact, or rounded exactly.
const EXACT: [Unary; 9] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Round,
    Unary::Floor,
    Unary::Ceil,
    Unary::Trunc,
];

/// The others, with how many units in the last place they are from the host's at most.
const NEAR: [(Unary, u32); 9] = [
    (Unary::Exp, 2),
    (Unary::Log, 2),
    (Unary::Log1p, 2),
    (Unary::Sin, 2),
    (Unary::Cos, 2),
    (Unary::Tan, 4),
    (Unary::Tanh, 3),
    (Unary::Erf, 2),
    (Unary::Sigmoid, 3),
];

const EXACT_BINARY: [Binary; 6] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Min,
    Binary::Max,
];

const INT_BINARY: [Binary; 10] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::ShiftLeft,
    Binary::ShiftRight,
];

fn exact() -> Language {
    Language {
        dtypes: DTYPES.to_vec(),
        float_unary: EXACT.to_vec(),
        float_binary: EXACT_BINARY.to_vec(),
        int_binary: INT_BINARY.to_vec(),
        has_powi: false,
        has_add_at: false,
        // None that is subnormal.
        special: vec![
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            0.0,
            -0.0,
            1e9,
            -65536.0,
        ],
        goes_back: false,
    }
}

fn whole() -> Language {
    let mut language = exact();
    language.float_unary.extend(NEAR.map(|(op, _)| op));
    language.float_binary.push(Binary::Pow);
    language.has_powi = true;
    language
}

fn unary(op: Unary, dtype: DType) -> Typed {
    Typed {
        instruction: Instruction::Unary(op, 0),
        dtype,
    }
}

/// Every 3,001st float, and the edges.
fn all_over() -> Vec<f32> {
    let mut bits: Vec<u32> = (0..u32::MAX / 3001).map(|index| index * 3001).collect();
    bits.extend([
        0,
        1 << 31,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
    ]);
    bits.into_iter().map(f32::from_bits).collect()
}

/// Returns how many floats lie between two; subnormal ones are zero.
fn units(one: f32, other: f32) -> u32 {
    if one.is_nan() || other.is_nan() {
        return if one.is_nan() && other.is_nan() {
            0
        } else {
            u32::MAX
        };
    }
    let order = |x: f32| {
        let magnitude = (x.to_bits() & 0x7fff_ffff) as i64;
        let magnitude = (magnitude - 0x0080_0000).max(0);
        if x.is_sign_negative() {
            -magnitude
        } else {
            magnitude
        }
    };
    (order(one) - order(other)).unsigned_abs() as u32
}

/// Every function that is exact, every comparison and every function of integers.
pub(crate) fn exact_instructions_are_the_hosts<C: Client>(client: &C) {
    let chosen: Vec<f32> = (all_over().into_iter().step_by(97))
        .filter(|x| !x.is_subnormal())
        .collect();
    let count = chosen.len();
    for op in EXACT {
        let values = f32s(chosen.iter().copied().filter(|x| {
            // Their inverses are subnormal.
            op != Unary::Recip || x.abs() < 8e37 || x.is_infinite()
        }));
        let len = values.1.len() / 4;
        let case = plain(&[len], vec![values], vec![unary(op, DType::F32)], EACH);
        assert_same(
            &case,
            &on_device(client, &case),
            &on_host(&case),
            &format!("{op:?}"),
        );
    }
    let bool = DType::Bool(BoolStore::U32);
    for op in [Unary::IsNan, Unary::IsInf] {
        let values = f32s(chosen.iter().copied());
        let case = plain(&[count], vec![values], vec![unary(op, bool)], EACH);
        assert_same(
            &case,
            &on_device(client, &case),
            &on_host(&case),
            &format!("{op:?}"),
        );
    }
    let comparisons = [
        Binary::Equal,
        Binary::NotEqual,
        Binary::Less,
        Binary::LessEqual,
        Binary::Greater,
        Binary::GreaterEqual,
    ];
    let int_edges = [
        0,
        1,
        2,
        31,
        32,
        33,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        77u32,
    ];
    let pairs: Vec<(u32, u32)> = int_edges
        .iter()
        .flat_map(|x| int_edges.map(|y| (*x, y)))
        .collect();
    let words = |words: Vec<u32>| {
        words
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect::<Vec<u8>>()
    };
    for dtype in [DType::F32, DType::I32, DType::U32] {
        let left: Vec<u32> = match dtype {
            DType::F32 => chosen.iter().map(|x| x.to_bits()).collect(),
            _ => pairs.iter().map(|(x, _)| *x).collect(),
        };
        let right: Vec<u32> = match dtype {
            DType::F32 => chosen.iter().rev().map(|x| (x * 0.5).to_bits()).collect(),
            _ => pairs.iter().map(|(_, y)| *y).collect(),
        };
        let ops: &[Binary] = match dtype {
            DType::F32 => &[Binary::Add, Binary::Sub, Binary::Min, Binary::Max],
            _ => &INT_BINARY,
        };
        let ops = ops.iter().map(|op| (*op, dtype));
        for (op, to) in ops.chain(comparisons.map(|op| (op, bool))) {
            let typed = Typed {
                instruction: Instruction::Binary(op, 0, 1),
                dtype: to,
            };
            let operands = vec![(dtype, words(left.clone())), (dtype, words(right.clone()))];
            let case = plain(&[left.len()], operands, vec![typed], EACH);
            let what = format!("{op:?} of {dtype}");
            assert_same(&case, &on_device(client, &case), &on_host(&case), &what);
        }
    }
    for (op, dtype) in [
        (Unary::Neg, DType::I32),
        (Unary::Abs, DType::I32),
        (Unary::Sign, DType::I32),
        (Unary::Not, DType::I32),
        (Unary::Abs, DType::U32),
        (Unary::Sign, DType::U32),
        (Unary::Not, DType::U32),
    ] {
        let operands = vec![(dtype, words(int_edges.to_vec()))];
        let case = plain(&[int_edges.len()], operands, vec![unary(op, dtype)], EACH);
        let what = format!("{op:?} of {dtype}");
        assert_same(&case, &on_device(client, &case), &on_host(&case), &what);
    }
}

/// What a compiler may simplify in exact arithmetic, it does not where instructions pass values on as they are.
pub(crate) fn nothing_is_simplified<C: Client>(client: &C) {
    let values = [
        1.5,
        -3.25,
        0.1,
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1.000_000_1,
        33_554_434.0,
    ];
    let pairs = values.iter().flat_map(|x| values.map(|y| (*x, y)));
    let (left, right): (Vec<f32>, Vec<f32>) = pairs.unzip();
    let binary = |op, x, y| Instruction::Binary(op, x, y);
    let unary = |op, x| Instruction::Unary(op, x);
    let (x, y) = (0, 1);
    let programs = [
        // x - x and x / x, of which the left one went through another instruction.
        vec![binary(Binary::Max, x, x), binary(Binary::Sub, 2, x)],
        vec![binary(Binary::Min, x, x), binary(Binary::Div, 2, x)],
        vec![
            unary(Unary::Abs, x),
            unary(Unary::Neg, 2),
            binary(Binary::Add, 3, 2),
        ],
        // x / (x - x).
        vec![
            binary(Binary::Max, x, x),
            binary(Binary::Sub, 2, x),
            binary(Binary::Div, x, 3),
        ],
        // Products and sums, which would round once.
        vec![
            binary(Binary::Mul, x, y),
            unary(Unary::Neg, 2),
            binary(Binary::Add, 3, x),
        ],
        vec![
            binary(Binary::Mul, x, y),
            unary(Unary::Abs, 2),
            binary(Binary::Sub, 3, y),
        ],
        vec![
            binary(Binary::Mul, x, y),
            unary(Unary::Neg, 2),
            unary(Unary::Neg, 3),
            binary(Binary::Add, y, 4),
        ],
        // (x + y) - x.
        vec![
            binary(Binary::Add, x, y),
            unary(Unary::Neg, 2),
            binary(Binary::Add, 3, x),
        ],
    ];
    // A bool that is known without its operands.
    let no = binary(Binary::Less, x, x);
    let is_bool =
        |instruction: &Instruction| matches!(instruction, Instruction::Binary(Binary::Less, ..));
    let known = [
        // 0 * y, 0 + y, 0 - y, 0 / 0.
        vec![no, Instruction::Cast(2), binary(Binary::Mul, 3, y)],
        vec![no, Instruction::Cast(2), binary(Binary::Add, 3, y)],
        vec![no, Instruction::Cast(2), binary(Binary::Sub, 3, y)],
        vec![no, Instruction::Cast(2), binary(Binary::Div, 3, 3)],
        // -0 or 0, by a bool that depends on numbers.
        vec![
            no,
            Instruction::Cast(2),
            unary(Unary::Neg, 3),
            binary(Binary::Less, x, y),
            Instruction::Select {
                mask: 5,
                on_true: 4,
                on_false: 3,
            },
            binary(Binary::Mul, 6, y),
        ],
        // The sign of 0, which is 0, and 0 less than that.
        vec![
            no,
            Instruction::Cast(2),
            unary(Unary::Sign, 3),
            binary(Binary::Sub, 4, 3),
            binary(Binary::Mul, 5, y),
        ],
    ];
    for instructions in programs.into_iter().chain(known) {
        let typed = instructions.iter().map(|instruction| Typed {
            instruction: *instruction,
            dtype: match is_bool(instruction) {
                true => DType::Bool(BoolStore::Native),
                false => DType::F32,
            },
        });
        let operands = vec![f32s(left.iter().copied()), f32s(right.iter().copied())];
        let case = plain(&[left.len()], operands, typed.collect(), EACH);
        let what = format!("{instructions:?}");
        assert_same(&case, &on_device(client, &case), &on_host(&case), &what);
    }
    // What a fold begins with: 0 + -0 is 0, and so it is of one element.
    for len in [1, 2, 5] {
        let zeros = f32s(std::iter::repeat_n(-0.0, 3 * len));
        for fold in [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min] {
            let typed = Typed {
                instruction: Instruction::Fold(fold, 0),
                dtype: DType::F32,
            };
            let case = plain(&[3, len], vec![zeros.clone()], vec![typed], EACH);
            let what = format!("{fold:?} of {len} zeros");
            assert_same(&case, &on_device(client, &case), &on_host(&case), &what);
        }
    }
}

pub(crate) fn functions_are_near_the_hosts<C: Client>(client: &C) {
    let all = all_over();
    let mut failed = Vec::new();
    for (op, most) in NEAR {
        let values: Vec<f32> = match op {
            // Larger angles are the device's.
            Unary::Sin | Unary::Cos | Unary::Tan => {
                all.iter().copied().filter(|x| x.abs() <= 1e5).collect()
            }
            _ => all.clone(),
        };
        let count = values.len();
        let operands = vec![f32s(values.iter().copied())];
        let case = plain(&[count], operands, vec![unary(op, DType::F32)], EACH);
        let found = to_f32s(&on_device(client, &case)[0]);
        let expected = to_f32s(&on_host(&case)[0]);
        let worst = (0..count)
            .max_by_key(|at| units(found[*at], expected[*at]))
            .unwrap();
        let apart = units(found[worst], expected[worst]);
        let (x, found, expected) = (values[worst], found[worst], expected[worst]);
        println!("{op:?}: {apart} units at most, {found:e} and {expected:e} of {x:e}");
        if apart > most {
            failed.push(format!(
                "{op:?} of {x:e} is {found:e}, {apart} units from {expected:e}"
            ));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

pub(crate) fn powers_are_near_the_hosts<C: Client>(client: &C) {
    let mut bases: Vec<f32> = all_over().into_iter().step_by(531).collect();
    bases.extend([
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ]);
    bases.extend((0..500).map(|index| 0.5 + index as f32 * 0.003));
    let exponents = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        3.0,
        0.5,
        -0.5,
        1.0 / 3.0,
        10.7,
        -7.25,
        100.0,
        -333.0,
        1e20,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let pairs: Vec<(f32, f32)> = bases
        .iter()
        .flat_map(|x| exponents.map(|y| (*x, y)))
        .filter(|(x, _)| !x.is_subnormal())
        .collect();
    let operands = vec![
        f32s(pairs.iter().map(|(x, _)| *x)),
        f32s(pairs.iter().map(|(_, y)| *y)),
    ];
    let typed = Typed {
        instruction: Instruction::Binary(Binary::Pow, 0, 1),
        dtype: DType::F32,
    };
    let case = plain(&[pairs.len()], operands, vec![typed], EACH);
    let found = to_f32s(&on_device(client, &case)[0]);
    let expected = to_f32s(&on_host(&case)[0]);
    let worst = (0..pairs.len())
        .max_by_key(|at| units(found[*at], expected[*at]))
        .unwrap();
    let apart = units(found[worst], expected[worst]);
    println!("pow: {apart} units at most, of {:?}", pairs[worst]);
    assert!(
        apart <= 4,
        "{:?} is {:e}, {apart} units from {:e}",
        pairs[worst],
        found[worst],
        expected[worst]
    );
}

/// Every type to every type, of all kinds of numbers.
pub(crate) fn casts_are_the_hosts<C: Client>(client: &C) {
    let numbers: Vec<f32> = all_over()
        .into_iter()
        .step_by(211)
        .chain((-600..600).map(|index| index as f32 * 0.25))
        .chain([
            2147483648.0,
            -2147483648.0,
            4294967296.0,
            2147483520.0,
            65504.0,
            65520.0,
        ])
        .filter(|x| !x.is_subnormal())
        .collect();
    let count = numbers.len();
    for from in DTYPES {
        let bytes: Vec<u8> = match from {
            DType::F32 => f32s(numbers.iter().copied()).1,
            DType::F16 => (numbers.iter())
                .map(|x| half::f16::from_f32(*x))
                // Of the widened ones none is subnormal.
                .flat_map(|x| x.to_ne_bytes())
                .collect(),
            DType::BF16 => (numbers.iter())
                .flat_map(|x| half::bf16::from_f32(*x).to_ne_bytes())
                .collect(),
            DType::Bool(BoolStore::U32) => (0..count)
                .flat_map(|index| (index as u32 % 3 % 2).to_ne_bytes())
                .collect(),
            DType::Bool(_) => (0..count).map(|index| (index % 3 % 2) as u8).collect(),
            _ => (numbers.iter())
                .flat_map(|x| (x.to_bits().wrapping_mul(0x9e37_79b9)).to_ne_bytes())
                .collect(),
        };
        for to in DTYPES {
            let typed = Typed {
                instruction: Instruction::Cast(0),
                dtype: to,
            };
            let case = plain(&[count], vec![(from, bytes.clone())], vec![typed], EACH);
            let what = format!("{from} as {to}");
            assert_same(&case, &on_device(client, &case), &on_host(&case), &what);
        }
    }
}

/// Sums of many elements, along rows and over them, in each order.
pub(crate) fn long_sums_are_the_hosts<C: Client>(client: &C) {
    for (rows, len) in [
        (1, 5003),
        (3, 1000),
        (130, 33),
        (1000, 5),
        (65, 1),
        (64, 16),
        (0, 7),
        (7, 0),
    ] {
        let values = (0..rows * len).map(|index| ((index * 7919 % 1009) as f32 - 500.0) / 37.0);
        let values = f32s(values);
        for fold in [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min] {
            let typed = Typed {
                instruction: Instruction::Fold(fold, 0),
                dtype: DType::F32,
            };
            for (typed, keep) in [
                (vec![typed], Keep::Each(Extent::Rows)),
                (vec![typed], EACH),
                (vec![], Keep::OverRows(fold)),
                (vec![], Keep::OverAll(fold, Extent::Elements)),
                (vec![typed], Keep::OverAll(fold, Extent::Rows)),
                (vec![typed], Keep::OverRows(fold)),
            ] {
                if fold == Fold::Prod && rows * len > 40 {
                    // They pass what is subnormal.
                    continue;
                }
                let case = plain(&[rows, len], vec![values.clone()], typed, keep);
                let what = format!("{fold:?} of {rows} x {len}, {keep:?}");
                assert_same(&case, &on_device(client, &case), &on_host(&case), &what);
            }
        }
    }
}

/// Returns whether a value on the way is subnormal, which a device may take as zero.
fn meets_subnormal(case: &Case) -> bool {
    let mut meets = false;
    apart(case, |case| {
        let made = on_host(case);
        let register = case.region.formula.results[0];
        let dtype = case.region.formula.dtype(register);
        let mut values = made[0].chunks(dtype.size());
        meets |= values.any(|bytes| float(dtype, bytes).is_some_and(|x| x.is_subnormal()));
        made
    });
    meets
}

pub(crate) fn random_regions_are_the_hosts<C: Client>(client: &C, cases: u32) {
    let language = exact();
    proptest!(ProptestConfig::with_cases(cases), |(seed: u64)| {
        let case = case_of(seed, &language);
        prop_assume!(!meets_subnormal(&case));
        assert_same(&case, &on_device(client, &case), &on_host(&case), &format!("seed {seed}"));
    });
}

/// Returns the numbers that a draw makes, as an operand over a space.
fn drawn(draw: &Draw, space: &[usize], dtype: DType) -> Array {
    let elements: usize = space.iter().product();
    let numbers = (0..elements).map(|element| {
        let number = draw.numbering.number(space, element);
        let mut sample = [0.0];
        draw.samples.fill(&draw.philox, number, &mut sample);
        sample[0]
    });
    let bytes = match dtype {
        DType::F16 => {
            let rounded = numbers.map(|x| half::f16::from_f32(x).to_ne_bytes());
            rounded.flatten().collect()
        }
        DType::BF16 => {
            let rounded = numbers.map(|x| half::bf16::from_f32(x).to_ne_bytes());
            rounded.flatten().collect()
        }
        _ => numbers.flat_map(f32::to_ne_bytes).collect(),
    };
    in_order(space, dtype, bytes)
}

/// A draw over a space: of a part of a larger tensor, or of one in another order.
fn draw_of(chance: &mut Chance, space: &[usize], samples: Samples) -> Draw {
    let mut dims: Vec<usize> = (0..space.len()).collect();
    if chance.once_in(4) {
        dims.reverse();
    }
    let mut strides = vec![0; space.len()];
    let mut apart = 1 + chance.below(2);
    for dim in dims.into_iter().rev() {
        strides[dim] = apart;
        apart *= space[dim].max(1) + chance.below(3);
    }
    Draw {
        philox: Philox::new(chance.number(), chance.number()),
        samples,
        numbering: Numbering {
            first: chance.below(1 << 30),
            strides,
        },
    }
}

fn samples() -> [Samples; 7] {
    let uniform = |low, high: f32| {
        let (width, last) = (high - low, high.next_down());
        Samples::Uniform(Uniform { low, width, last })
    };
    let bernoulli = |threshold, is_certain| {
        Samples::Bernoulli(Bernoulli {
            threshold,
            is_certain,
        })
    };
    [
        uniform(0.0, 1.0),
        uniform(-3.0, 7.5),
        // What is near the upper bound rounds to it.
        uniform(1.0, 1.0 + 4.0 * f32::EPSILON),
        bernoulli(1 << 30, false),
        bernoulli(0, true),
        Samples::Normal(Normal {
            mean: 0.0,
            std: 1.0,
        }),
        Samples::Normal(Normal {
            mean: -2.5,
            std: 0.1,
        }),
    ]
}

/// Many numbers of each distribution and type.
pub(crate) fn random_numbers_are_the_hosts<C: Client>(client: &C) {
    let mut chance = Chance::new(5);
    for samples in samples() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for space in [vec![70_001], vec![300, 257], vec![7, 33, 5]] {
                let draw = draw_of(&mut chance, &space, samples);
                let expected = drawn(&draw, &space, dtype);
                let case = plain(
                    &space,
                    vec![(dtype, expected.bytes.clone())],
                    vec![unary(Unary::Neg, dtype)],
                    EACH,
                );
                let found =
                    drawing_on_device(client, &drawing(&case, &[0]), std::slice::from_ref(&draw));
                assert_same(&case, &found, &on_host(&case), &format!("{draw:?}"));
            }
        }
    }
}

/// What is drawn is what would be in memory, in any region.
pub(crate) fn random_draws_are_the_hosts<C: Client>(client: &C, cases: u32) {
    let language = exact();
    proptest!(ProptestConfig::with_cases(cases), |(seed: u64)| {
        let mut case = case_of(seed, &language);
        let mut chance = Chance::new(seed);
        let space = case.region.space.clone();
        let of_case = may_be_drawn(&case);
        let draws = of_case.iter().map(|_| {
            let samples = chance.of(&samples());
            draw_of(&mut chance, &space, samples)
        });
        let draws: Vec<Draw> = draws.collect();
        for (operand, draw) in of_case.iter().zip(&draws) {
            let dtype = case.operands[*operand].dtype;
            case.operands[*operand] = drawn(draw, &space, dtype);
        }
        prop_assume!(!of_case.is_empty() && !meets_subnormal(&case));
        let found = drawing_on_device(client, &drawing(&case, &of_case), &draws);
        assert_same(&case, &found, &on_host(&case), &format!("seed {seed}"));
    });
}

/// Whatever a device's functions are, a value does not depend on what else is in the region.
pub(crate) fn one_region_equals_one_for_each_instruction<C: Client>(client: &C, cases: u32) {
    let language = whole();
    proptest!(ProptestConfig::with_cases(cases), |(seed: u64)| {
        let case = case_of(seed, &language);
        let together = on_device(client, &case);
        let apart = apart(&case, |case| on_device(client, case));
        assert_same(&case, &together, &apart, &format!("seed {seed}"));
    });
}

pub(crate) fn what_has_no_kernel_is_named() {
    let formula = |dtype, instruction| Formula {
        operands: vec![dtype],
        instructions: vec![Typed { instruction, dtype }],
        results: vec![1],
    };
    for (dtype, instruction, named) in [
        (
            DType::F64,
            Instruction::Unary(Unary::Neg, 0),
            "operand of f64",
        ),
        (DType::F32, Instruction::Unary(Unary::Cosh, 0), "cosh"),
        (DType::I32, Instruction::Binary(Binary::Div, 0, 0), "div"),
        (DType::I32, Instruction::Binary(Binary::Pow, 0, 0), "pow"),
        (DType::F32, Instruction::Binary(Binary::Rem, 0, 0), "rem"),
    ] {
        let error = supports(&formula(dtype, instruction))
            .unwrap_err()
            .to_string();
        assert!(error.contains(named), "{error}");
    }
    let half = formula(DType::F16, Instruction::Constant(Number::Float(0.5)));
    assert_eq!(supports(&half), Ok(()));
}
