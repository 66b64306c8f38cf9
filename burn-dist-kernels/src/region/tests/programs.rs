//! Regions by chance.

use burn_dist_mesh::{BoolStore, DType};
use burn_dist_plan::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Region, Typed, Unary,
};

use super::reference::{Array, is_of_rows};

/// Numbers by chance, the same for a seed.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

pub(super) const DTYPES: [DType; 14] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U32),
];

const BOOL: DType = DType::Bool(BoolStore::Native);

const FLOAT_UNARY: [Unary; 26] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Exp,
    Unary::Log,
    Unary::Log1p,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Sin,
    Unary::Cos,
    Unary::Tan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Tanh,
    Unary::ArcSin,
    Unary::ArcCos,
    Unary::ArcTan,
    Unary::ArcSinh,
    Unary::ArcCosh,
    Unary::ArcTanh,
    Unary::Erf,
    Unary::Sigmoid,
    Unary::Round,
    Unary::Floor,
    Unary::Ceil,
    Unary::Trunc,
];

const COMPARISONS: [Binary; 6] = [
    Binary::Equal,
    Binary::NotEqual,
    Binary::Less,
    Binary::LessEqual,
    Binary::Greater,
    Binary::GreaterEqual,
];

const FLOAT_BINARY: [Binary; 9] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Rem,
    Binary::Pow,
    Binary::ArcTan2,
    Binary::Min,
    Binary::Max,
];

const INT_BINARY: [Binary; 13] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Rem,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::ShiftLeft,
    Binary::ShiftRight,
];

const FOLDS: [Fold; 4] = [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min];

/// A region under construction.
struct Maker {
    chance: Chance,
    formula: Formula,
}

impl Maker {
    fn dtype(&self, register: u32) -> DType {
        self.formula.dtype(register)
    }

    fn num(&self) -> u32 {
        (self.formula.operands.len() + self.formula.instructions.len()) as u32
    }

    fn push(&mut self, instruction: Instruction, dtype: DType) -> u32 {
        self.formula.instructions.push(Typed { instruction, dtype });
        self.num() - 1
    }

    fn any(&mut self) -> u32 {
        let num = self.num() as usize;
        self.chance.below(num) as u32
    }

    /// Returns a value of a type: one that is there, or another cast to it.
    fn of_dtype(&mut self, dtype: DType) -> u32 {
        let there: Vec<u32> = (0..self.num())
            .filter(|x| self.dtype(*x) == dtype)
            .collect();
        match there.is_empty() || self.chance.once_in(6) {
            true => {
                let of = self.any();
                self.push(Instruction::Cast(of), dtype)
            }
            false => self.chance.of(&there),
        }
    }

    fn number(&mut self) -> Number {
        match self.chance.below(4) {
            0 => Number::Int(self.chance.below(7) as i64 - 3),
            1 => Number::UInt(self.chance.below(300) as u64),
            2 => Number::Float(
                self.chance
                    .of(&[0.5, -1.25, 1e-3, f64::INFINITY, f64::NAN, -0.0]),
            ),
            _ => Number::Float(self.chance.below(2000) as f64 / 500.0 - 2.0),
        }
    }

    fn step(&mut self, scalars: u32) {
        let x = self.any();
        let dtype = self.dtype(x);
        let y = |maker: &mut Self| maker.of_dtype(dtype);
        match self.chance.below(12) {
            0 => {
                let (number, dtype) = (self.number(), self.chance.of(&DTYPES));
                self.push(Instruction::Constant(number), dtype);
            }
            1 if scalars > 0 => {
                let (scalar, dtype) =
                    (self.chance.below(scalars as usize), self.chance.of(&DTYPES));
                self.push(Instruction::Scalar(scalar as u32), dtype);
            }
            2 => {
                let to = self.chance.of(&DTYPES);
                self.push(Instruction::Cast(x), to);
            }
            3 => {
                let y = y(self);
                let op = self.chance.of(&COMPARISONS);
                let to = self.chance.of(&[BOOL, BOOL, DType::Bool(BoolStore::U32)]);
                self.push(Instruction::Binary(op, x, y), to);
            }
            4 => {
                let (mask, y) = (self.of_dtype(BOOL), y(self));
                let instruction = Instruction::Select {
                    mask,
                    on_true: x,
                    on_false: y,
                };
                self.push(instruction, dtype);
            }
            5 if self.chance.once_in(2) => {
                let fold = match dtype.is_bool() {
                    true => self.chance.of(&[Fold::Max, Fold::Min]),
                    false => self.chance.of(&FOLDS),
                };
                self.push(Instruction::Fold(fold, x), dtype);
            }
            6 if dtype.is_float() && self.chance.once_in(2) => {
                let exponents = self.of_dtype(DType::I32);
                self.push(Instruction::Powi(x, exponents), dtype);
            }
            6 if dtype.is_float() => {
                let op = self.chance.of(&[Unary::IsNan, Unary::IsInf]);
                self.push(Instruction::Unary(op, x), BOOL);
            }
            6..9 if dtype.is_float() => {
                let op = self.chance.of(&FLOAT_UNARY);
                self.push(Instruction::Unary(op, x), dtype);
            }
            6..9 if dtype.is_bool() => {
                self.push(Instruction::Unary(Unary::Not, x), dtype);
            }
            6..9 => {
                let op = self
                    .chance
                    .of(&[Unary::Neg, Unary::Abs, Unary::Sign, Unary::Not]);
                self.push(Instruction::Unary(op, x), dtype);
            }
            _ if dtype.is_float() => {
                let (y, op) = (y(self), self.chance.of(&FLOAT_BINARY));
                self.push(Instruction::Binary(op, x, y), dtype);
            }
            _ if dtype.is_bool() => {
                let y = y(self);
                let ops = [
                    Binary::And,
                    Binary::Or,
                    Binary::Xor,
                    Binary::Min,
                    Binary::Max,
                ];
                let op = self.chance.of(&ops);
                self.push(Instruction::Binary(op, x, y), dtype);
            }
            _ => {
                let (mut y, op) = (y(self), self.chance.of(&INT_BINARY));
                if matches!(op, Binary::Div | Binary::Rem) {
                    // Not by zero.
                    let one = self.push(Instruction::Constant(Number::Int(1)), dtype);
                    y = self.push(Instruction::Binary(Binary::Or, y, one), dtype);
                }
                self.push(Instruction::Binary(op, x, y), dtype);
            }
        }
    }
}

/// A region, its operands and scalars.
pub(super) struct Case {
    pub region: Region,
    pub operands: Vec<Array>,
    pub scalars: Vec<Number>,
}

/// Sizes of spaces: none, one, primes, edges of vectors and of chunks.
fn space(chance: &mut Chance) -> Vec<usize> {
    if chance.once_in(3) {
        let last = chance.of(&[255, 256, 257, 511, 1023, 1024, 1025, 2047, 2048, 2049, 4100]);
        return match chance.below(3) {
            0 => vec![last],
            1 => vec![chance.of(&[1, 2, 3, 65]), last.min(1100)],
            _ => vec![2, chance.of(&[1, 3]), last],
        };
    }
    let ndim = 1 + chance.below(4);
    let sizes = [0, 1, 1, 2, 3, 5, 7, 13, 16, 17, 31, 33, 64, 67, 130];
    let mut space: Vec<usize> = (0..ndim).map(|_| chance.of(&sizes)).collect();
    if !chance.once_in(4) {
        space.iter_mut().for_each(|size| *size = (*size).max(1));
    }
    while space.iter().product::<usize>() > 9000 {
        let largest = (0..ndim).max_by_key(|dim| space[*dim]).expect("a dim");
        space[largest] = space[largest].div_ceil(3);
    }
    space
}

fn element(chance: &mut Chance, dtype: DType, bytes: &mut Vec<u8>) {
    let special = chance.once_in(40);
    let small = chance.below(4000) as f64 / 500.0 - 4.0;
    let float = match special {
        true => chance.of(&[
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            0.0,
            -0.0,
            1e-42,
            -1e-310,
            3e38,
            1e9,
        ]),
        false => small,
    };
    match dtype {
        DType::F32 | DType::Flex32 => bytes.extend((float as f32).to_ne_bytes()),
        DType::F64 => bytes.extend(float.to_ne_bytes()),
        DType::F16 => bytes.extend(half::f16::from_f64(float).to_ne_bytes()),
        DType::BF16 => bytes.extend(half::bf16::from_f64(float).to_ne_bytes()),
        DType::Bool(BoolStore::U32) => bytes.extend((chance.below(2) as u32).to_ne_bytes()),
        DType::Bool(_) => bytes.push(chance.below(2) as u8),
        int => {
            let any = chance.next();
            let value = if special {
                any
            } else {
                (any >> 60).wrapping_sub(5)
            };
            bytes.extend(&value.to_ne_bytes()[..int.size()]);
        }
    }
}

/// An array of the dims that an operand has, in any order, with gaps, backwards, and repeated.
fn array(chance: &mut Chance, space: &[usize], spans: &[bool], dtype: DType) -> Array {
    let ndim = space.len();
    let in_order = chance.once_in(2);
    let mut order: Vec<usize> = (0..ndim).filter(|dim| spans[*dim]).collect();
    if !in_order {
        for at in (1..order.len()).rev() {
            let other = chance.below(at + 1);
            order.swap(at, other);
        }
    }
    let mut strides = vec![isize::MAX / 4096; ndim];
    let mut apart = if in_order || chance.once_in(2) { 1 } else { 2 };
    let mut first = if chance.once_in(3) { 3 } else { 0 };
    for dim in order.iter().rev() {
        if !in_order && chance.once_in(8) {
            strides[*dim] = 0;
            continue;
        }
        strides[*dim] = apart as isize;
        let reach = apart * space[*dim].saturating_sub(1);
        if !in_order && chance.once_in(5) {
            strides[*dim] = -strides[*dim];
            first += reach;
        }
        apart *= space[*dim].max(1);
    }
    let mut bytes = Vec::new();
    for _ in 0..apart + 8 {
        element(chance, dtype, &mut bytes);
    }
    Array {
        dtype,
        bytes,
        offset: first,
        strides,
    }
}

pub(super) fn case(seed: u64) -> Case {
    let mut chance = Chance::new(seed);
    let space = space(&mut chance);
    // A region of few types has more to do.
    let dtypes: Vec<DType> = (0..1 + chance.below(2))
        .map(|_| chance.of(&DTYPES))
        .collect();
    let num = 1 + chance.below(4);
    let operands: Vec<DType> = (0..num).map(|_| chance.of(&dtypes)).collect();
    let spans: Vec<Vec<bool>> = (0..num)
        .map(|_| {
            let whole = chance.once_in(2);
            space.iter().map(|_| whole || !chance.once_in(3)).collect()
        })
        .collect();
    let arrays = operands.iter().zip(&spans);
    let arrays: Vec<Array> = arrays
        .map(|(dtype, spans)| array(&mut chance, &space, spans, *dtype))
        .collect();
    let scalars = chance.below(3) as u32;
    let mut maker = Maker {
        chance,
        formula: Formula {
            operands,
            ..Formula::default()
        },
    };
    for _ in 0..maker.chance.below(14) {
        maker.step(scalars);
    }
    let values = (0..scalars).map(|_| maker.number()).collect();
    let mut region = Region {
        space,
        spans,
        formula: maker.formula.clone(),
        scalars,
        keeps: Vec::new(),
    };
    for result in 0..1 + maker.chance.below(3) {
        let last = maker.num() - 1;
        let register = if result == 0 { last } else { maker.any() };
        let dtype = maker.dtype(register);
        let fold = match dtype.is_bool() {
            true => maker.chance.of(&[Fold::Max, Fold::Min]),
            false => maker.chance.of(&FOLDS),
        };
        let keep = match maker.chance.below(6) {
            0 => Keep::OverRows(fold),
            1 => match is_of_rows(&region, register) && maker.chance.once_in(2) {
                true => Keep::OverAll(fold, Extent::Rows),
                false => Keep::OverAll(fold, Extent::Elements),
            },
            _ if is_of_rows(&region, register) && maker.chance.once_in(2) => {
                Keep::Each(Extent::Rows)
            }
            _ => Keep::Each(Extent::Elements),
        };
        region.formula.results.push(register);
        region.keeps.push(keep);
    }
    Case {
        region,
        operands: arrays,
        scalars: values,
    }
}
