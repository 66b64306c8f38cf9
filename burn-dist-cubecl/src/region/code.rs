//! A region as data that kernels are compiled with: what each value is made of, and where the numbers are that kernels
//! are launched with. Sizes, strides and constants are none of it, so that regions that differ in them share a kernel.

use std::fmt;

use burn_dist_kernels::random::{Philox, Samples};
use burn_dist_mesh::{BoolStore, DType};
use burn_dist_plan::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Numbering, Region, Typed, Unary,
};

use crate::element::Element;

/// The type that a value is computed in: 32 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    F32,
    /// f32, rounded to f16 after every instruction.
    F16,
    /// f32, rounded to bf16 after every instruction.
    Bf16,
    I32,
    U32,
    /// 0 or 1.
    Bool,
}

impl Kind {
    pub(super) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 | DType::Flex32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::Bf16),
            DType::I32 => Some(Self::I32),
            DType::U32 => Some(Self::U32),
            DType::Bool(_) => Some(Self::Bool),
            _ => None,
        }
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Returns how floats are rounded.
    pub(super) fn element(self) -> Element {
        match self {
            Self::F16 => Element::F16,
            Self::Bf16 => Element::Bf16,
            _ => Element::F32,
        }
    }
}

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub kind: Kind,
    /// Elements in a word.
    pub per_word: usize,
}

impl Stored {
    pub(super) fn of(dtype: DType) -> Option<Self> {
        let kind = Kind::of(dtype)?;
        let per_word = match dtype {
            DType::Bool(BoolStore::U32) => 1,
            DType::Bool(_) => 4,
            _ => kind.element().per_word(),
        };
        Some(Self { kind, per_word })
    }

    /// One in each word.
    pub(super) fn wide(kind: Kind) -> Self {
        // What is computed in f32 stays so.
        let kind = if kind.is_float() { Kind::F32 } else { kind };
        Self { kind, per_word: 1 }
    }
}

/// Random numbers that a region draws: the elements of a part of a tensor, which is as large as the region's space.
#[derive(Clone, Debug)]
pub struct Draw {
    /// Their seed and stream.
    pub philox: Philox,
    /// The distribution, of which random words make samples.
    pub samples: Samples,
    /// The numbers of the elements, all below 2^32, in the shape of the space.
    pub numbering: Numbering,
}

/// A distribution, but for its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Law {
    Uniform,
    Normal,
    Bernoulli,
}

/// The numbers of a draw that kernels are launched with: the halves of seed and stream, the number of the first element,
/// and three parameters of the distribution. The seed is first.
pub(super) const NUMBERS_OF_DRAW: usize = 8;
/// The stream among them.
pub(super) const STREAM: usize = 2;
/// The number of the first element.
pub(super) const FIRST: usize = 4;
/// The parameters of the distribution.
pub(super) const PARAMETERS: usize = 5;

impl Draw {
    pub(super) fn law(&self) -> Law {
        match self.samples {
            Samples::Uniform(_) => Law::Uniform,
            Samples::Normal(_) => Law::Normal,
            Samples::Bernoulli(_) => Law::Bernoulli,
        }
    }

    pub(super) fn numbers(&self) -> [u32; NUMBERS_OF_DRAW] {
        let [key, stream] = [self.philox.key(), self.philox.stream()];
        let parameters = match self.samples {
            Samples::Uniform(of) => [of.low, of.width, of.last].map(f32::to_bits),
            Samples::Normal(of) => [of.mean.to_bits(), of.std.to_bits(), 0],
            Samples::Bernoulli(of) => [of.threshold, u32::from(of.is_certain), 0],
        };
        let first = u32::try_from(self.numbering.first).expect("numbers are below 2^32");
        let [x, y, z] = parameters;
        [key[0], key[1], stream[0], stream[1], first, x, y, z]
    }
}

/// The work of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// A number that the kernel is launched with, by its index.
    Number(usize),
    Cast,
    Unary(Unary),
    Binary(Binary),
    /// A float to the power of an integer.
    Powi,
    Select,
    /// The elements of a row.
    Fold(Fold),
}

/// A step, which makes one value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub what: What,
    pub kind: Kind,
    /// The values that it reads.
    pub reads: Vec<usize>,
    /// Their types.
    pub kinds: Vec<Kind>,
}

/// The maker of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// Nothing: this kernel does not need it.
    Nothing,
    /// An element of an operand.
    Operand {
        /// Its buffer among those of the kernel.
        buffer: usize,
        stored: Stored,
    },
    /// A random number.
    Drawn {
        /// The draw among those of the region; in code, its place behind the operands.
        draw: usize,
        law: Law,
        /// The first of the numbers of the draw that kernels are launched with.
        numbers: usize,
    },
    Step(Step),
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Value {
    pub source: Source,
    pub kind: Kind,
    pub extent: Extent,
    /// How many folds of rows come one after the other before it is known.
    pub phase: usize,
}

/// A value that a kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Store {
    pub value: usize,
    pub stored: Stored,
    pub extent: Extent,
}

/// Where numbers are that kernels are launched with: first those that are always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Places {
    /// Dims that rows are numbered along.
    pub outer: usize,
    /// Operands, and what is drawn behind them: where each element is, or which number it has.
    pub operands: usize,
}

/// 0, which no compiler knows: for what functions make before their result.
pub(super) const ZERO: usize = 0;
/// Another one, for what an instruction makes.
pub(super) const ZERO_OF_RESULTS: usize = 1;
/// A third and a fourth, for the first and the second value that an instruction reads.
pub(super) const ZERO_OF_FIRSTS: usize = 2;
/// See [`ZERO_OF_FIRSTS`].
pub(super) const ZERO_OF_SECONDS: usize = 3;
/// The number of rows.
pub(super) const ROWS: usize = 4;
/// Elements of a row.
pub(super) const LEN: usize = 5;
/// The neutral values of folds of floats: the least and the largest number.
pub(super) const LEAST: usize = 6;
/// See [`LEAST`].
pub(super) const LARGEST: usize = 7;
/// The numbers that are always there.
pub(super) const FIXED: usize = 8;

impl Places {
    /// The size of an outer dim.
    pub(super) fn size(&self, dim: usize) -> usize {
        FIXED + dim
    }

    fn operand(&self, operand: usize) -> usize {
        FIXED + self.outer + operand * (self.outer + 1)
    }

    /// How many elements apart the elements of a row of an operand are.
    pub(super) fn last(&self, operand: usize) -> usize {
        self.operand(operand)
    }

    /// How many elements apart its rows are along an outer dim.
    pub(super) fn stride(&self, operand: usize, dim: usize) -> usize {
        self.operand(operand) + 1 + dim
    }

    /// The first number of the formula: constants and scalars.
    pub(super) fn numbers(&self) -> usize {
        self.operand(self.operands)
    }
}

/// The work of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Code {
    pub values: Vec<Value>,
    pub places: Places,
    pub stores: Vec<Store>,
    /// Elements, one after the other, that a unit makes: as many as are in a word of each result.
    pub per_unit: usize,
}

impl Code {
    /// Returns the folds of a phase.
    pub(super) fn folds(&self, phase: usize) -> Vec<usize> {
        let is_fold = |index: &usize| {
            let value = &self.values[*index];
            value.phase == phase + 1 && fold_of(value).is_some()
        };
        (0..self.values.len()).filter(is_fold).collect()
    }

    /// Returns how many times kernels go through a row for folds.
    pub(super) fn phases(&self) -> usize {
        let folds = self.values.iter().filter(|value| fold_of(value).is_some());
        folds.map(|value| value.phase).max().unwrap_or(0)
    }

    /// Returns the values of elements that others are made of.
    pub(super) fn elements_of(&self, values: &[usize]) -> Vec<bool> {
        let mut needed = vec![false; self.values.len()];
        values.iter().for_each(|value| needed[*value] = true);
        for (index, value) in self.values.iter().enumerate().rev() {
            let is_of_elements = value.extent == Extent::Elements;
            needed[index] &= is_of_elements;
            if let (true, Source::Step(step)) = (needed[index], &value.source) {
                step.reads.iter().for_each(|read| needed[*read] = true);
            }
        }
        // Values of rows are there.
        for (needed, value) in needed.iter_mut().zip(&self.values) {
            *needed &= value.extent == Extent::Elements;
        }
        needed
    }

    /// Returns the results of elements, or of rows.
    pub(super) fn stores_of(&self, extent: Extent) -> Vec<usize> {
        let is_of = |index: &usize| self.stores[*index].extent == extent;
        (0..self.stores.len()).filter(is_of).collect()
    }
}

/// Returns the fold that makes a value.
fn fold_of(value: &Value) -> Option<Fold> {
    match &value.source {
        Source::Step(Step {
            what: What::Fold(fold),
            ..
        }) => Some(*fold),
        _ => None,
    }
}

/// Why a region has no kernel on devices of CubeCL.
#[derive(Clone, PartialEq, Eq)]
pub struct Unsupported {
    what: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a region has {}, which has no kernel in CubeCL: keep the operation out of regions",
            self.what
        )
    }
}

impl std::error::Error for Unsupported {}

burn_dist_mesh::debug_by_message!(Unsupported);

/// Returns whether there are kernels for what a formula computes.
///
/// # Errors
/// [`Unsupported`] names what there is no kernel for: types of other than 32 bits that are no float of 16 bits and no
/// bool; quotients, remainders and powers of integers, remainders of floats, numbers that are added at an index, and
/// functions that are rarely hot.
pub fn supports(formula: &Formula) -> Result<(), Unsupported> {
    let unsupported = |what: String| Err(Unsupported { what });
    for dtype in &formula.operands {
        if Kind::of(*dtype).is_none() {
            return unsupported(format!("an operand of {dtype}"));
        }
    }
    for Typed { instruction, dtype } in &formula.instructions {
        let reads: Vec<DType> = instruction
            .reads()
            .map(|read| formula.dtype(read))
            .collect();
        let kinds: Option<Vec<Kind>> = reads.iter().map(|dtype| Kind::of(*dtype)).collect();
        let is_there = match (Kind::of(*dtype), kinds) {
            (Some(kind), Some(kinds)) => computes(*instruction, &kinds, kind),
            _ => false,
        };
        if !is_there {
            return unsupported(format!("{instruction} of {reads:?} as {dtype}"));
        }
    }
    Ok(())
}

fn computes(instruction: Instruction, reads: &[Kind], result: Kind) -> bool {
    let is_whole = matches!(result, Kind::I32 | Kind::U32);
    let is_bool = result == Kind::Bool;
    let same = reads.iter().all(|read| *read == result);
    match instruction {
        Instruction::Constant(_) | Instruction::Scalar(_) | Instruction::Cast(_) => true,
        Instruction::Unary(Unary::IsNan | Unary::IsInf, _) => reads[0].is_float() && is_bool,
        Instruction::Unary(Unary::Not, _) => same && !result.is_float(),
        Instruction::Unary(Unary::Neg | Unary::Abs | Unary::Sign, _) => same && !is_bool,
        Instruction::Unary(
            Unary::Sinh
            | Unary::Cosh
            | Unary::ArcSin
            | Unary::ArcCos
            | Unary::ArcTan
            | Unary::ArcSinh
            | Unary::ArcCosh
            | Unary::ArcTanh,
            _,
        ) => false,
        Instruction::Unary(..) => same && result.is_float(),
        Instruction::Binary(op, ..) => match op {
            Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual => reads[0] == reads[1] && is_bool,
            Binary::And | Binary::Or | Binary::Xor => same && !result.is_float(),
            Binary::ShiftLeft | Binary::ShiftRight => same && is_whole,
            Binary::Min | Binary::Max => same,
            Binary::Add | Binary::Sub | Binary::Mul => same && !is_bool,
            Binary::Div | Binary::Pow => same && result.is_float(),
            Binary::Rem | Binary::ArcTan2 => false,
        },
        Instruction::Powi(..) => {
            let is_whole = matches!(reads[1], Kind::I32 | Kind::U32);
            reads[0] == result && result.is_float() && is_whole
        }
        Instruction::Select { .. } => {
            reads[0] == Kind::Bool && reads[1] == result && reads[2] == result
        }
        Instruction::Fold(fold, _) => same && (!is_bool || matches!(fold, Fold::Max | Fold::Min)),
        Instruction::Draw(_) => result.is_float(),
        // A kernel has no way to say that an index is outside of its row.
        Instruction::AddAt { .. } => false,
    }
}

/// A formula as values, which kernels take what they need of.
pub(super) struct Values {
    pub values: Vec<Value>,
    /// The constants, scalars and numbers of draws, in order.
    pub numbers: Vec<Constant>,
    /// The value of each result: elements of a row that are folded with rows are a fold of their own.
    pub results: Vec<usize>,
}

/// A number that a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Constant {
    Known(Number, DType),
    Scalar(usize, DType),
    /// One of the numbers of a draw.
    OfDraw(usize, usize),
}

impl Values {
    /// # Panics
    /// If the region is not [supported](supports), or has other draws.
    pub(super) fn new(region: &Region, draws: &[Draw]) -> Self {
        let formula = &region.formula;
        if let Err(error) = supports(formula) {
            panic!("{error}");
        }
        let kind_of = |dtype: DType| Kind::of(dtype).expect("asked for above");
        let mut made = Self {
            values: Vec::new(),
            numbers: Vec::new(),
            results: Vec::new(),
        };
        for (buffer, (dtype, spans)) in formula.operands.iter().zip(&region.spans).enumerate() {
            let stored = Stored::of(*dtype).expect("asked for above");
            made.values.push(Value {
                source: Source::Operand { buffer, stored },
                kind: stored.kind,
                extent: match spans.last() {
                    Some(true) => Extent::Elements,
                    _ => Extent::Rows,
                },
                phase: 0,
            });
        }
        for Typed { instruction, dtype } in &formula.instructions {
            let what = match instruction {
                Instruction::Constant(number) => made.number(Constant::Known(*number, *dtype)),
                Instruction::Scalar(scalar) => {
                    made.number(Constant::Scalar(*scalar as usize, *dtype))
                }
                Instruction::Draw(draw) => {
                    let draw = *draw as usize;
                    made.draw(draw, draws[draw].law(), kind_of(*dtype));
                    continue;
                }
                Instruction::Cast(_) => What::Cast,
                Instruction::Unary(op, _) => What::Unary(*op),
                Instruction::Binary(op, ..) => What::Binary(*op),
                Instruction::Powi(..) => What::Powi,
                Instruction::Select { .. } => What::Select,
                Instruction::Fold(fold, _) => What::Fold(*fold),
                Instruction::AddAt { .. } => unreachable!("it is not supported"),
            };
            let reads = instruction.reads().map(|read| read as usize).collect();
            made.step(what, kind_of(*dtype), reads);
        }
        for (register, keep) in formula.results.iter().zip(&region.keeps) {
            let value = *register as usize;
            let value = match keep {
                Keep::OverAll(fold, Extent::Elements) => {
                    made.step(What::Fold(*fold), made.values[value].kind, vec![value])
                }
                _ => value,
            };
            made.results.push(value);
        }
        made
    }

    fn number(&mut self, number: Constant) -> What {
        self.numbers.push(number);
        What::Number(self.numbers.len() - 1)
    }

    fn draw(&mut self, draw: usize, law: Law, kind: Kind) {
        let numbers = self.numbers.len();
        let own = (0..NUMBERS_OF_DRAW).map(|number| Constant::OfDraw(draw, number));
        self.numbers.extend(own);
        self.values.push(Value {
            source: Source::Drawn { draw, law, numbers },
            kind,
            extent: Extent::Elements,
            phase: 0,
        });
    }

    fn step(&mut self, what: What, kind: Kind, reads: Vec<usize>) -> usize {
        let folds = matches!(what, What::Fold(_));
        let read = || reads.iter().map(|read| &self.values[*read]);
        let is_of_elements = !folds && read().any(|value| value.extent == Extent::Elements);
        let value = Value {
            kind,
            extent: match is_of_elements {
                true => Extent::Elements,
                false => Extent::Rows,
            },
            phase: read().map(|value| value.phase).max().unwrap_or(0) + usize::from(folds),
            source: Source::Step(Step {
                what,
                kind,
                kinds: read().map(|value| value.kind).collect(),
                reads,
            }),
        };
        self.values.push(value);
        self.values.len() - 1
    }

    /// Returns whether a value depends on rows that were folded.
    pub(super) fn folds(&self, value: usize) -> bool {
        self.values[value].phase > 0
    }

    /// Returns the code that stores some of the values, the operands that it reads, in the order of its buffers, and the
    /// draws behind them.
    pub(super) fn code(&self, stores: Vec<Store>, outer: usize) -> (Code, Vec<usize>, Vec<usize>) {
        let mut needed = vec![false; self.values.len()];
        stores.iter().for_each(|store| needed[store.value] = true);
        let mut values = self.values.clone();
        for index in (0..values.len()).rev() {
            if !needed[index] {
                values[index].source = Source::Nothing;
            } else if let Source::Step(step) = &values[index].source {
                step.reads.iter().for_each(|read| needed[*read] = true);
            }
        }
        let (mut operands, mut draws) = (Vec::new(), Vec::new());
        for value in &mut values {
            if let Source::Operand { buffer, .. } = &mut value.source {
                operands.push(*buffer);
                *buffer = operands.len() - 1;
            }
        }
        for value in &mut values {
            if let Source::Drawn { draw, .. } = &mut value.source {
                draws.push(*draw);
                *draw = operands.len() + draws.len() - 1;
            }
        }
        let places = Places {
            outer,
            operands: operands.len() + draws.len(),
        };
        for value in &mut values {
            match &mut value.source {
                Source::Step(Step {
                    what: What::Number(index),
                    ..
                })
                | Source::Drawn { numbers: index, .. } => *index += places.numbers(),
                _ => {}
            }
        }
        let per_word = stores.iter().map(|store| store.stored.per_word);
        let code = Code {
            per_unit: per_word.max().unwrap_or(1),
            values,
            places,
            stores,
        };
        (code, operands, draws)
    }
}
