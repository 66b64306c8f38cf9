//! Regions by chance, for tests: of these kernels, and of those on devices.

use burn_dist_mesh::{BoolStore, DType};
use burn_dist_plan::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Region, Typed, Unary,
};

/// An operand: its elements in memory, and where they are.
#[derive(Clone, Debug)]
pub struct Array {
    /// The type of its elements.
    pub dtype: DType,
    /// Its memory.
    pub bytes: Vec<u8>,
    /// The first element.
    pub offset: usize,
    /// How many elements apart elements are along each dim of the space.
    pub strides: Vec<isize>,
}

/// The types and functions that regions are made of.
#[derive(Clone, Debug)]
pub struct Language {
    /// Types.
    pub dtypes: Vec<DType>,
    /// Functions of one float.
    pub float_unary: Vec<Unary>,
    /// Functions of two floats.
    pub float_binary: Vec<Binary>,
    /// Functions of two integers.
    pub int_binary: Vec<Binary>,
    /// True if there are integer powers of floats.
    pub has_powi: bool,
    /// Floats that come up beside small ones.
    pub special: Vec<f64>,
    /// True if something is added to one element of a row.
    pub has_add_at: bool,
    /// True if operands lie backwards too.
    pub goes_back: bool,
}

impl Language {
    /// All that there is.
    pub fn whole() -> Self {
        Self {
            dtypes: DTYPES.to_vec(),
            float_unary: FLOAT_UNARY.to_vec(),
            float_binary: FLOAT_BINARY.to_vec(),
            int_binary: INT_BINARY.to_vec(),
            has_powi: true,
            has_add_at: true,
            special: SPECIAL.to_vec(),
            goes_back: true,
        }
    }
}

/// Numbers by chance, the same for a seed.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Returns those of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next one.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns one below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() >> 33) as usize % bound
    }

    /// Returns one of some.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns true once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

const DTYPES: [DType; 14] = [
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

const SPECIAL: [f64; 9] = [
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    0.0,
    -0.0,
    1e-42,
    -1e-310,
    3e38,
    1e9,
];

const FOLDS: [Fold; 4] = [Fold::Sum, Fold::Prod, Fold::Max, Fold::Min];

/// A region under construction.
struct Maker<'a> {
    language: &'a Language,
    chance: Chance,
    space: &'a [usize],
    spans: &'a [Vec<bool>],
    formula: Formula,
}

impl Maker<'_> {
    /// Returns the region so far, of no results.
    fn region(&self) -> Region {
        Region {
            space: self.space.to_vec(),
            spans: self.spans.to_vec(),
            formula: self.formula.clone(),
            scalars: 0,
            keeps: Vec::new(),
        }
    }

    /// Returns a value of rows: one that is there and meets a condition, or else a number.
    fn of_rows(&mut self, dtype: DType, is_meant: impl Fn(DType) -> bool) -> u32 {
        let region = self.region();
        let there: Vec<u32> = (0..self.num())
            .filter(|x| is_meant(self.dtype(*x)) && is_of_rows(&region, *x))
            .collect();
        match there.is_empty() {
            true => {
                let number = self.number();
                self.push(Instruction::Constant(number), dtype)
            }
            false => self.chance.of(&there),
        }
    }

    /// Adds one value to an element of each row, if rows have some.
    fn add_at(&mut self, to: u32) {
        let dtype = self.dtype(to);
        let len = self.space.last().copied().unwrap_or(0);
        if len == 0 || dtype.is_bool() {
            return;
        }
        let value = self.of_rows(dtype, |of| of == dtype);
        let place = self.of_rows(DType::I32, |of| !of.is_float() && !of.is_bool());
        let of = self.dtype(place);
        // Of the places of a power of two, so that an instruction keeps it inside.
        let most = ((1 << len.ilog2()) - 1).min(127);
        let most = self.push(Instruction::Constant(Number::Int(most)), of);
        let index = self.push(Instruction::Binary(Binary::And, place, most), of);
        self.push(Instruction::AddAt { to, index, value }, dtype);
    }

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
        match self.chance.below(13) {
            0 => {
                let (number, dtype) = (self.number(), self.chance.of(&self.language.dtypes));
                self.push(Instruction::Constant(number), dtype);
            }
            1 if scalars > 0 => {
                let (scalar, dtype) = (
                    self.chance.below(scalars as usize),
                    self.chance.of(&self.language.dtypes),
                );
                self.push(Instruction::Scalar(scalar as u32), dtype);
            }
            2 => {
                let to = self.chance.of(&self.language.dtypes);
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
            6 if dtype.is_float() && self.chance.once_in(2) && self.language.has_powi => {
                let exponents = self.of_dtype(DType::I32);
                self.push(Instruction::Powi(x, exponents), dtype);
            }
            6 if dtype.is_float() => {
                let op = self.chance.of(&[Unary::IsNan, Unary::IsInf]);
                self.push(Instruction::Unary(op, x), BOOL);
            }
            6..9 if dtype.is_float() => {
                let op = self.chance.of(&self.language.float_unary);
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
            12 if self.language.has_add_at => self.add_at(x),
            _ if dtype.is_float() => {
                let (y, op) = (y(self), self.chance.of(&self.language.float_binary));
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
                let (mut y, op) = (y(self), self.chance.of(&self.language.int_binary));
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
#[derive(Clone, Debug)]
pub struct Case {
    /// The region.
    pub region: Region,
    /// One for each of its own.
    pub operands: Vec<Array>,
    /// One for each of its own.
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

fn element(chance: &mut Chance, language: &Language, dtype: DType, bytes: &mut Vec<u8>) {
    let special = chance.once_in(40);
    let small = chance.below(4000) as f64 / 500.0 - 4.0;
    let float = match special {
        true => chance.of(&language.special),
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
            let any = chance.number();
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
fn array(
    chance: &mut Chance,
    language: &Language,
    space: &[usize],
    spans: &[bool],
    dtype: DType,
) -> Array {
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
        if !in_order && chance.once_in(5) && language.goes_back {
            strides[*dim] = -strides[*dim];
            first += reach;
        }
        apart *= space[*dim].max(1);
    }
    let mut bytes = Vec::new();
    for _ in 0..apart + 8 {
        element(chance, language, dtype, &mut bytes);
    }
    Array {
        dtype,
        bytes,
        offset: first,
        strides,
    }
}

/// Returns the case of a seed, of all that there is.
pub fn case(seed: u64) -> Case {
    case_of(seed, &Language::whole())
}

/// Returns the case of a seed.
pub fn case_of(seed: u64, language: &Language) -> Case {
    let mut chance = Chance::new(seed);
    let space = space(&mut chance);
    // A region of few types has more to do.
    let dtypes: Vec<DType> = (0..1 + chance.below(2))
        .map(|_| chance.of(&language.dtypes))
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
        .map(|(dtype, spans)| array(&mut chance, language, &space, spans, *dtype))
        .collect();
    let scalars = chance.below(3) as u32;
    let mut maker = Maker {
        language,
        chance,
        space: &space,
        spans: &spans,
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
        scalars,
        ..maker.region()
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

/// Returns the operands that a case may draw instead: floats of up to 32 bits that are there for every element.
pub fn may_be_drawn(case: &Case) -> Vec<usize> {
    let is_drawn = |index: &usize| {
        let is_whole = case.region.spans[*index].iter().all(|spans| *spans);
        let dtype = case.operands[*index].dtype;
        is_whole && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    };
    (0..case.operands.len()).filter(is_drawn).collect()
}

/// Returns a case that draws some operands, in this order, and has the others in memory as before.
pub fn drawing(case: &Case, drawn: &[usize]) -> Case {
    let Case {
        region,
        operands,
        scalars,
    } = case;
    let others: Vec<usize> = (0..operands.len())
        .filter(|index| !drawn.contains(index))
        .collect();
    // Operands that are left, draws, and the instructions that there were.
    let order: Vec<usize> = others.iter().chain(drawn).copied().collect();
    let register = |register: u32| match order.iter().position(|of| *of == register as usize) {
        Some(at) => at as u32,
        None => register,
    };
    let draws = drawn.iter().enumerate().map(|(draw, index)| Typed {
        instruction: Instruction::Draw(draw as u32),
        dtype: operands[*index].dtype,
    });
    let instructions = region.formula.instructions.iter().map(|of| Typed {
        instruction: of.instruction.reading(register),
        ..*of
    });
    let results = region.formula.results.iter();
    let left = others.iter();
    Case {
        region: Region {
            spans: left
                .clone()
                .map(|index| region.spans[*index].clone())
                .collect(),
            formula: Formula {
                operands: left.clone().map(|index| operands[*index].dtype).collect(),
                instructions: draws.chain(instructions).collect(),
                results: results.map(|result| register(*result)).collect(),
            },
            ..region.clone()
        },
        operands: left.map(|index| operands[*index].clone()).collect(),
        scalars: scalars.clone(),
    }
}

/// Returns whether a register has at most one value for each row.
pub fn is_of_rows(region: &Region, register: u32) -> bool {
    region.extents()[register as usize] == Extent::Rows
}

/// Runs one region for each instruction, values in memory between them, and returns the bytes of the results: those of
/// [`Case::region`], in order.
pub fn apart(case: &Case, mut run: impl FnMut(&Case) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let Case {
        region,
        operands,
        scalars,
    } = case;
    let ndim = region.space.len();
    let operands = region.spans.iter().cloned().zip(operands.iter().cloned());
    let mut values: Vec<(Vec<bool>, Array)> = operands.collect();
    let contiguous = |is_of_rows: bool| {
        let mut strides = vec![0; ndim];
        let mut apart = 1;
        for dim in (0..ndim).rev() {
            if dim + 1 < ndim || !is_of_rows {
                strides[dim] = apart;
                apart *= region.space[dim] as isize;
            }
        }
        strides
    };
    let mut one = |reads: &[(Vec<bool>, Array)], typed: Option<Typed>, dtype: DType, keep: Keep| {
        let single = Region {
            space: region.space.clone(),
            spans: reads.iter().map(|(spans, _)| spans.clone()).collect(),
            formula: Formula {
                operands: reads.iter().map(|(_, array)| array.dtype).collect(),
                instructions: typed.into_iter().collect(),
                results: vec![if typed.is_some() {
                    reads.len() as u32
                } else {
                    0
                }],
            },
            scalars: region.scalars,
            keeps: vec![keep],
        };
        let single = Case {
            region: single,
            operands: reads.iter().map(|(_, array)| array.clone()).collect(),
            scalars: scalars.clone(),
        };
        Array {
            dtype,
            bytes: run(&single).remove(0),
            offset: 0,
            strides: contiguous(keep == Keep::Each(Extent::Rows)),
        }
    };
    let extents = region.extents();
    let instructions = region.formula.instructions.iter();
    for (typed, extent) in instructions.zip(&extents[region.spans.len()..]) {
        let reads = typed.instruction.reads();
        let reads: Vec<_> = reads.map(|read| values[read as usize].clone()).collect();
        let mut next = 0..;
        let instruction = typed
            .instruction
            .reading(|_| next.next().expect("it goes on"));
        let typed = Typed {
            instruction,
            dtype: typed.dtype,
        };
        let made = one(&reads, Some(typed), typed.dtype, Keep::Each(*extent));
        let mut spans = vec![true; ndim];
        spans[ndim - 1] = *extent == Extent::Elements;
        values.push((spans, made));
    }
    let results = region.formula.results.iter().zip(&region.keeps);
    let results = results.map(|(register, keep)| {
        let read = values[*register as usize].clone();
        let dtype = read.1.dtype;
        one(&[read], None, dtype, *keep).bytes
    });
    results.collect()
}
