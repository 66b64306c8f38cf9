//! Against a plain interpreter, one operation at a time, on any number of threads, at every level, and in place.

mod reference;

use std::mem::MaybeUninit;

use burn_dist_mesh::DType;
use burn_dist_plan::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Region, Typed, Unary,
};
use proptest::prelude::*;

use super::programs::{Array, Case, apart, case, drawing, may_be_drawn};
use super::{Draw, Kernel, Level, Memory, Operand, Output, RegionError};

/// Bytes that lie as any element may.
struct Aligned {
    lines: Vec<u128>,
    len: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![0u128; bytes.len().div_ceil(16)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len();
        Self { lines, len }
    }

    /// Bytes that are to be written.
    fn unwritten(len: usize) -> Self {
        Self::new(&vec![0xa5; len])
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }

    fn places(&mut self) -> &mut [MaybeUninit<u8>] {
        super::memory::places(self.bytes_mut())
    }
}

fn sizes(region: &Region) -> Vec<usize> {
    let (len, outer) = region.space.split_last().unwrap();
    let rows: usize = outer.iter().product();
    let results = region.formula.results.iter().zip(&region.keeps);
    results
        .map(|(register, keep)| {
            let elements = match keep {
                Keep::Each(Extent::Elements) => rows * len,
                Keep::Each(Extent::Rows) => rows,
                Keep::OverRows(_) => *len,
                Keep::OverAll(..) => 1,
            };
            elements * region.formula.dtype(*register).size()
        })
        .collect()
}

/// Runs a region with outputs in memory of their own.
fn run(
    region: &Region,
    operands: &[Array],
    scalars: &[Number],
    level: Level,
) -> Result<Vec<Vec<u8>>, RegionError> {
    run_with(region, operands, scalars, &[], level)
}

/// The same of one that draws.
fn run_with(
    region: &Region,
    operands: &[Array],
    scalars: &[Number],
    draws: &[Draw<'_>],
    level: Level,
) -> Result<Vec<Vec<u8>>, RegionError> {
    let memories: Vec<Aligned> = operands
        .iter()
        .map(|array| Aligned::new(&array.bytes))
        .collect();
    let mut operands: Vec<Operand<'_>> = operands
        .iter()
        .zip(&memories)
        .map(|(array, memory)| Operand {
            memory: Memory::Shared(memory.bytes()),
            offset: array.offset,
            strides: &array.strides,
        })
        .collect();
    let mut made: Vec<Aligned> = sizes(region).into_iter().map(Aligned::unwritten).collect();
    let mut outputs: Vec<Output<'_>> = made
        .iter_mut()
        .map(|made| Output::New(made.places()))
        .collect();
    Kernel::new(region)?.run_at(level, &mut operands, scalars, draws, &mut outputs)?;
    Ok(made.iter().map(|made| made.bytes().to_vec()).collect())
}

/// Checks bytes of elements; which NaN it is, nothing promises.
fn assert_same(region: &Region, found: &[Vec<u8>], expected: &[Vec<u8>], what: &str) {
    for (result, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: result {result}");
        let dtype = region.formula.dtype(region.formula.results[result]);
        let elements = found
            .chunks(dtype.size())
            .zip(expected.chunks(dtype.size()));
        for (at, (one, other)) in elements.enumerate() {
            if one == other {
                continue;
            }
            let [one, other] = [one, other].map(|bytes| reference::read(dtype, bytes));
            let is_nan = |scalar| match scalar {
                reference::Scalar::F32(x) => x.is_nan(),
                reference::Scalar::F64(x) => x.is_nan(),
                _ => false,
            };
            assert!(
                is_nan(one) && is_nan(other),
                "{what}: result {result} at {at} is {one:?}, not {other:?}, of {region:#?}"
            );
        }
    }
}

fn on_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("threads").install(f)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Every level, on one thread.
    #[test]
    fn equals_a_plain_interpreter(seed: u64) {
        let case = case(seed);
        let Case { region, operands, scalars } = &case;
        let expected = reference::run(region, operands, scalars);
        for level in Level::all() {
            let found = run(region, operands, scalars, level).unwrap();
            assert_same(region, &found, &expected, &format!("{level:?}"));
        }
    }

    #[test]
    fn one_region_equals_one_for_each_instruction(seed: u64) {
        let case = case(seed);
        let together = run(&case.region, &case.operands, &case.scalars, Level::best()).unwrap();
        let apart = apart(&case, |case| {
            run(&case.region, &case.operands, &case.scalars, Level::best()).unwrap()
        });
        assert_same(&case.region, &together, &apart, "together and apart");
    }

    /// In the place of the first operand that can be taken over.
    #[test]
    fn in_place_equals_out_of_place(seed: u64) {
        let case = case(seed);
        let expected = run(&case.region, &case.operands, &case.scalars, Level::best()).unwrap();
        for threads in [1, 2] {
            let found = on_threads(threads, || run_in_place(&case));
            assert_same(&case.region, &found, &expected, "in place");
        }
    }

    /// Numbers that are drawn are those that would be in memory, wherever a part of the rows begins.
    #[test]
    fn draws_equal_operands(seed: u64) {
        let case = case(seed);
        let expected = run(&case.region, &case.operands, &case.scalars, Level::best()).unwrap();
        for (threads, level) in [(1, Level::best()), (2, Level::best()), (1, Level::all()[0])] {
            let found = on_threads(threads, || run_drawing(&case, level));
            assert_same(&case.region, &found, &expected, "drawn");
        }
    }
}

/// Runs a region that draws what the operands have that are there for every element.
fn run_drawing(case: &Case, level: Level) -> Vec<Vec<u8>> {
    let drawn = may_be_drawn(case);
    let numbers: Vec<Vec<f32>> = drawn
        .iter()
        .map(|index| in_order(&case.region, &case.operands[*index]))
        .collect();
    let fills = numbers.iter().map(|numbers| {
        move |first: usize, to: &mut [MaybeUninit<f32>]| {
            for (to, number) in to.iter_mut().zip(&numbers[first..]) {
                to.write(*number);
            }
        }
    });
    let fills: Vec<_> = fills.collect();
    let draws: Vec<Draw<'_>> = fills.iter().map(|fill| fill as Draw<'_>).collect();
    let Case {
        region,
        operands,
        scalars,
    } = drawing(case, &drawn);
    run_with(&region, &operands, &scalars, &draws, level).unwrap()
}

/// Returns the elements of an operand that is there for every element, in order.
fn in_order(region: &Region, array: &Array) -> Vec<f32> {
    let copy = Region {
        spans: vec![vec![true; region.space.len()]],
        formula: Formula {
            operands: vec![array.dtype],
            instructions: vec![typed(Instruction::Cast(0), DType::F32)],
            results: vec![1],
        },
        scalars: 0,
        keeps: vec![Keep::Each(Extent::Elements)],
        ..region.clone()
    };
    let made = run(&copy, std::slice::from_ref(array), &[], Level::best()).unwrap();
    let elements = made[0].chunks(4);
    elements
        .map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()))
        .collect()
}

fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

fn run_in_place(case: &Case) -> Vec<Vec<u8>> {
    let Case {
        region,
        operands,
        scalars,
    } = case;
    let ndim = region.space.len();
    let mut memories: Vec<Aligned> = Vec::new();
    let mut strides_of: Vec<Vec<isize>> = Vec::new();
    // All operands that have every dim lie in order, so that each can be taken over.
    let mut offsets = Vec::new();
    for (array, spans) in operands.iter().zip(&region.spans) {
        let whole = spans.iter().all(|spans| *spans);
        if !whole {
            memories.push(Aligned::new(&array.bytes));
            strides_of.push(array.strides.clone());
            offsets.push(array.offset);
            continue;
        }
        let copy = Region {
            space: region.space.clone(),
            spans: vec![spans.clone()],
            formula: Formula {
                operands: vec![array.dtype],
                instructions: Vec::new(),
                results: vec![0],
            },
            scalars: 0,
            keeps: vec![Keep::Each(Extent::Elements)],
        };
        let bytes = run(&copy, std::slice::from_ref(array), &[], Level::best())
            .unwrap()
            .remove(0);
        memories.push(Aligned::new(&bytes));
        let mut strides = vec![1isize; ndim];
        for dim in (1..ndim).rev() {
            strides[dim - 1] = strides[dim] * region.space[dim] as isize;
        }
        strides_of.push(strides);
        offsets.push(0);
    }
    let mut taken: Vec<Option<usize>> = Vec::new();
    for (register, keep) in region.formula.results.iter().zip(&region.keeps) {
        let size = region.formula.dtype(*register).size();
        let fits = |operand: &usize| {
            region.spans[*operand].iter().all(|spans| *spans)
                && operands[*operand].dtype.size() == size
                && !taken.contains(&Some(*operand))
        };
        taken.push(match keep {
            Keep::Each(Extent::Elements) => (0..operands.len()).find(fits),
            _ => None,
        });
    }
    let sizes = sizes(region);
    let mut made: Vec<Aligned> = sizes.iter().map(|size| Aligned::unwritten(*size)).collect();
    {
        let mut given: Vec<Operand<'_>> = memories
            .iter_mut()
            .zip(&strides_of)
            .zip(&offsets)
            .map(|((memory, strides), offset)| Operand {
                memory: Memory::Unique(memory.bytes_mut()),
                offset: *offset,
                strides,
            })
            .collect();
        let outputs = made
            .iter_mut()
            .zip(&taken)
            .map(|(made, taken)| match taken {
                Some(operand) => Output::Over(*operand),
                None => Output::New(made.places()),
            });
        let mut outputs: Vec<Output<'_>> = outputs.collect();
        super::run(region, &mut given, scalars, &mut outputs).unwrap();
    }
    let results = made.iter().zip(&taken).zip(sizes);
    results
        .map(|((made, taken), size)| match taken {
            Some(operand) => memories[*operand].bytes()[..size].to_vec(),
            None => made.bytes().to_vec(),
        })
        .collect()
}

fn typed(instruction: Instruction, dtype: DType) -> Typed {
    Typed { instruction, dtype }
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_ne_bytes).collect()
}

/// The softmax of rows, and its sums over rows.
fn softmax(space: [usize; 2]) -> Region {
    let instructions = vec![
        typed(Instruction::Fold(Fold::Max, 0), DType::F32),
        typed(Instruction::Binary(Binary::Sub, 0, 1), DType::F32),
        typed(Instruction::Unary(Unary::Exp, 2), DType::F32),
        typed(Instruction::Fold(Fold::Sum, 3), DType::F32),
        typed(Instruction::Binary(Binary::Div, 3, 4), DType::F32),
    ];
    Region {
        space: space.to_vec(),
        spans: vec![vec![true; 2]],
        formula: Formula {
            operands: vec![DType::F32],
            instructions,
            results: vec![5, 5, 4],
        },
        scalars: 0,
        keeps: vec![
            Keep::Each(Extent::Elements),
            Keep::OverRows(Fold::Sum),
            Keep::OverAll(Fold::Sum, Extent::Rows),
        ],
    }
}

#[test]
fn threads_and_levels_change_nothing() {
    for space in [
        [700, 300],
        [130, 5000],
        [70_001, 1],
        [3, 70_000],
        [9000, 17],
    ] {
        let region = softmax(space);
        let values = (0..space[0] * space[1]).map(|i| (i * 7919 % 2003) as f32 / 300.0 - 3.0);
        let operands = [Array {
            dtype: DType::F32,
            bytes: floats(values),
            offset: 0,
            strides: vec![space[1] as isize, 1],
        }];
        let expected = on_threads(1, || run(&region, &operands, &[], Level::best()).unwrap());
        for threads in [1, 2, 3] {
            for level in Level::all() {
                let found = on_threads(threads, || run(&region, &operands, &[], level).unwrap());
                assert!(
                    found == expected,
                    "{threads} threads at {level:?} of {space:?}"
                );
            }
        }
        let slow = reference::run(&region, &operands, &[]);
        assert_same(&region, &expected, &slow, "the interpreter");
    }
}

/// Exponentials of differences: of those that are never positive, whose loop is a shorter one, and of those that are
/// nearly the same.
#[test]
fn exponentials_of_differences_are_those_of_all_numbers() {
    let space = [6, 300];
    let elements = |shift: f32| {
        let places = 0..space[0] * space[1];
        places.map(move |i| match (i / space[1], i % 37) {
            (1, 5) => f32::NAN,
            (2, 5) => f32::INFINITY,
            (3, 5) => f32::NEG_INFINITY,
            (4, _) => f32::NEG_INFINITY,
            _ => (i * 7919 % 2003) as f32 / 9.0 - shift,
        })
    };
    let array = |dtype, shift: f32| Array {
        dtype,
        bytes: match dtype {
            DType::F32 => floats(elements(shift)),
            _ => elements(shift)
                .flat_map(|x| half::bf16::from_f32(x).to_ne_bytes())
                .collect(),
        },
        offset: 0,
        strides: vec![space[1] as isize, 1],
    };
    let sub = |x, y| Instruction::Binary(Binary::Sub, x, y);
    for dtype in [DType::F32, DType::BF16] {
        for fold in [Fold::Max, Fold::Min] {
            for difference in [sub(0, 2), sub(1, 2), sub(2, 0)] {
                for results in [vec![4], vec![4, 3]] {
                    let instructions = [
                        Instruction::Fold(fold, 0),
                        difference,
                        Instruction::Unary(Unary::Exp, 3),
                    ];
                    let region = Region {
                        space: space.to_vec(),
                        spans: vec![vec![true; 2]; 2],
                        keeps: vec![Keep::Each(Extent::Elements); results.len()],
                        formula: Formula {
                            operands: vec![dtype; 2],
                            instructions: instructions.map(|of| typed(of, dtype)).to_vec(),
                            results,
                        },
                        scalars: 0,
                    };
                    let operands = [array(dtype, 100.0), array(dtype, 10.0)];
                    let expected = reference::run(&region, &operands, &[]);
                    for level in Level::all() {
                        let found = run(&region, &operands, &[], level).unwrap();
                        assert_same(&region, &found, &expected, &format!("{level:?}"));
                    }
                }
            }
        }
    }
}

fn integers(values: &[i32]) -> Array {
    Array {
        dtype: DType::I32,
        bytes: values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        offset: 0,
        strides: vec![1],
    }
}

/// One instruction of operands in one dim.
fn of_operands(operands: &[DType], instruction: Instruction, dtype: DType, len: usize) -> Region {
    Region {
        space: vec![len],
        spans: vec![vec![true]; operands.len()],
        formula: Formula {
            operands: operands.to_vec(),
            instructions: vec![typed(instruction, dtype)],
            results: vec![operands.len() as u32],
        },
        scalars: 0,
        keeps: vec![Keep::Each(Extent::Elements)],
    }
}

#[test]
fn integers_by_zero_are_an_error_and_the_least_by_minus_one_wraps() {
    for op in [Binary::Div, Binary::Rem] {
        let region = of_operands(
            &[DType::I32; 2],
            Instruction::Binary(op, 0, 1),
            DType::I32,
            3,
        );
        let left = integers(&[7, i32::MIN, -7]);
        let found = run(
            &region,
            &[left.clone(), integers(&[2, 0, 1])],
            &[],
            Level::best(),
        );
        assert_eq!(found, Err(RegionError::DivisionByZero));
        let found = run(&region, &[left, integers(&[2, -1, 3])], &[], Level::best()).unwrap();
        let expected = match op {
            Binary::Div => [3, i32::MIN, -2],
            _ => [1, 0, 2],
        };
        assert_eq!(found, [integers(&expected).bytes]);
    }
}

/// Rows that are short, and rows that are longer than a chunk.
#[test]
fn an_index_outside_of_its_row_is_an_error_that_names_it() {
    for len in [3, 5000] {
        let add_at = |to, index, value| Instruction::AddAt { to, index, value };
        let region = Region {
            space: vec![2, len],
            spans: vec![vec![false, false], vec![true, false], vec![true, false]],
            formula: Formula {
                operands: vec![DType::I32; 3],
                instructions: vec![typed(add_at(0, 1, 2), DType::I32)],
                results: vec![3],
            },
            scalars: 0,
            keeps: vec![Keep::Each(Extent::Elements)],
        };
        let last = len as i32 - 1;
        let of = |array: Array, strides: &[isize]| Array {
            strides: strides.to_vec(),
            ..array
        };
        let found = |indices: [i32; 2]| {
            let operands = [
                of(integers(&[7]), &[0, 0]),
                of(integers(&indices), &[1, 0]),
                of(integers(&[2, 3]), &[1, 0]),
            ];
            run(&region, &operands, &[], Level::best())
        };
        let mut expected = vec![7; 2 * len];
        expected[len - 1] += 2;
        expected[len] += 3;
        assert_eq!(found([last, 0]).unwrap(), [integers(&expected).bytes]);
        for outside in [last + 1, -1] {
            let (index, at) = (i64::from(outside), len);
            let error = RegionError::IndexOutside { index, len: at };
            assert_eq!(found([0, outside]), Err(error.clone()));
            assert_eq!(found([outside, 1 << 20]), Err(error));
        }
    }
    let mut region = of_operands(
        &[DType::F32, DType::I32, DType::F32],
        Instruction::AddAt {
            to: 0,
            index: 1,
            value: 2,
        },
        DType::F32,
        3,
    );
    let error = super::supports(&region).unwrap_err().to_string();
    assert!(error.contains("are not one for each row"), "{error}");
    region.spans[1..]
        .iter_mut()
        .for_each(|spans| spans[0] = false);
    super::supports(&region).unwrap();
    region.formula.operands[1] = DType::F32;
    let error = super::supports(&region).unwrap_err().to_string();
    assert!(error.contains("AddAt"), "{error}");
}

#[test]
fn what_has_no_kernel_is_named() {
    let bool = DType::Bool(burn_dist_mesh::BoolStore::Native);
    let region = of_operands(&[bool; 2], Instruction::Binary(Binary::Add, 0, 1), bool, 1);
    let error = super::supports(&region).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("Binary(Add, 0, 1) of [Bool(Native), Bool(Native)] as bool"),
        "{error}"
    );
    let sin = of_operands(
        &[DType::I32],
        Instruction::Unary(Unary::Sin, 0),
        DType::I32,
        1,
    );
    assert!(matches!(
        super::supports(&sin),
        Err(RegionError::Unsupported { .. })
    ));
}

#[test]
fn only_what_has_one_owner_and_one_order_is_taken_over() {
    let region = of_operands(
        &[DType::F32],
        Instruction::Unary(Unary::Neg, 0),
        DType::F32,
        3,
    );
    let mut memory = Aligned::new(&floats([1.0, 2.0, 3.0]));
    let shared = memory.bytes().to_vec();
    let shared = Aligned::new(&shared);
    for (memory, stride, is_right) in [
        (Memory::Shared(shared.bytes()), 1, false),
        (Memory::Unique(memory.bytes_mut()), 0, false),
        (
            Memory::Unique(Aligned::new(&floats([1.0, 2.0, 3.0])).bytes_mut()),
            1,
            true,
        ),
    ] {
        let mut operands = [Operand {
            memory,
            offset: 0,
            strides: &[stride],
        }];
        let found = super::run(&region, &mut operands, &[], &mut [Output::Over(0)]);
        match is_right {
            true => assert_eq!(operands[0].memory.bytes(), floats([-1.0, -2.0, -3.0])),
            false => assert!(
                found
                    .unwrap_err()
                    .to_string()
                    .contains("take the place of operand 0")
            ),
        }
    }
}

/// Rows without elements, and no rows at all.
#[test]
fn folds_of_nothing_are_neutral() {
    for (space, sums) in [([2, 0], vec![0.0, 0.0]), ([0, 5], vec![])] {
        let mut region = of_operands(
            &[DType::F32],
            Instruction::Fold(Fold::Sum, 0),
            DType::F32,
            1,
        );
        region.space = space.to_vec();
        region.spans = vec![vec![true; 2]];
        region.formula.results = vec![1, 0, 0];
        region.keeps = vec![
            Keep::Each(Extent::Rows),
            Keep::OverRows(Fold::Max),
            Keep::OverAll(Fold::Prod, Extent::Elements),
        ];
        let array = Array {
            dtype: DType::F32,
            bytes: Vec::new(),
            offset: 0,
            strides: vec![space[1] as isize, 1],
        };
        let found = run(&region, &[array], &[], Level::best()).unwrap();
        let expected = [
            floats(sums),
            floats(vec![f32::NEG_INFINITY; space[1]]),
            floats([1.0]),
        ];
        assert_eq!(found, expected);
    }
}
