//! Steps: the values that they make of those at hand.

use burn_dist_plan::region::{Binary, Fold, Number, Unary};
use bytemuck::Pod;

use super::casts::{self, CastTo};
use super::error::RegionError;
use super::folds::Folds;
use super::kind::{
    Lane, as_bool, as_f32, as_f64, as_half, as_i8, as_i16, as_i32, as_i64, as_u8, as_u16, as_u32,
    as_u64,
};
use super::loops::{self, Numbers, Places, Source};
use super::memory::{Buffer, places};
use super::program::{Extent, LONG, Step, What, is_long};
use super::run::{Runner, by_lane};

/// Rows of fewer elements are not gone through one by one for a value of each row: that is spread.
const ROW_MIN: usize = 32;

/// A type that values are computed in.
pub(super) trait Element:
    Numbers
    + Folds
    + CastTo<f32>
    + CastTo<f64>
    + CastTo<i8>
    + CastTo<i16>
    + CastTo<i32>
    + CastTo<i64>
    + CastTo<u8>
    + CastTo<u16>
    + CastTo<u32>
    + CastTo<u64>
    + PartialEq
{
    fn of(number: Number) -> Self;
    /// Casts values of another type, which is not a bool's but to read.
    fn cast_from<A: Element>(level: super::Level, to: Places<'_, Self>, of: &[A]);
}

macro_rules! element {
    ($($type:ty: $of:ident),*) => {
        $(impl Element for $type {
            fn of(number: Number) -> Self {
                $of(number)
            }
            fn cast_from<A: Element>(level: super::Level, to: Places<'_, Self>, of: &[A]) {
                casts::cast(level, to, of);
            }
        })*
    };
}
element!(
    f32: as_f32, f64: as_f64, i8: as_i8, i16: as_i16, i32: as_i32, i64: as_i64, u8: as_u8, u16: as_u16, u32: as_u32,
    u64: as_u64
);

/// Values of an operand of a step, as the step reads them.
enum View<'a, T> {
    Dense(&'a [T]),
    One(T),
    /// One for each row, of rows that are gone through one by one.
    PerRow(&'a [T]),
}

impl<'a, T: Copy> View<'a, T> {
    fn row(&self, row: usize, len: usize) -> Source<'a, T> {
        match self {
            Self::Dense(values) => Source::Dense(&values[row * len..][..len]),
            Self::One(value) => Source::One(*value),
            Self::PerRow(values) => Source::One(values[row]),
        }
    }

    fn whole(&self) -> Source<'a, T> {
        match self {
            Self::Dense(values) => Source::Dense(values),
            Self::One(value) => Source::One(*value),
            Self::PerRow(_) => unreachable!("rows are gone through one by one"),
        }
    }
}

impl Runner<'_, '_> {
    /// Spreads values to each element of their row, or to each row.
    fn spread<T: Pod>(&self, value: usize, extent: Extent, to: Places<'_, T>) {
        let values = self.values::<T>(value);
        let fill = |to: Places<'_, T>, value: T| {
            for to in to {
                to.write(value);
            }
        };
        match (self.program.values[value].extent, extent) {
            (found, extent) if found == extent => casts::copy(to, values),
            (Extent::Row, _) if self.len > 0 => {
                for (to, value) in to.chunks_exact_mut(self.len).zip(values) {
                    fill(to, *value);
                }
            }
            (Extent::Row, _) => {}
            _ => fill(to, values[0]),
        }
    }

    /// Returns the values of an operand for a step that makes values of an extent.
    fn view<'s, T: Pod>(
        &'s self,
        value: usize,
        extent: Extent,
        reads_one: bool,
        scratch: &'s mut Buffer,
    ) -> View<'s, T> {
        let found = self.program.values[value].extent;
        let count = self.count(extent);
        let values = self.values::<T>(value);
        if found == extent || (found == Extent::Row && self.len == 1) {
            return View::Dense(values);
        }
        if reads_one && (found == Extent::Once || self.rows == 1) {
            return View::One(values[0]);
        }
        if reads_one && self.len >= ROW_MIN {
            return View::PerRow(values);
        }
        scratch.reserve(count * size_of::<T>());
        let to = &mut scratch.elements_mut::<T>()[..count];
        self.spread(value, extent, places(to));
        View::Dense(to)
    }

    /// Calls with places and values, for all rows at once where that can be.
    fn pairs<T: Pod, R>(
        &self,
        views: (View<'_, T>, View<'_, T>),
        to: Places<'_, R>,
        mut f: impl FnMut(Places<'_, R>, Source<'_, T>, Source<'_, T>),
    ) {
        let (left, right) = views;
        match (&left, &right) {
            (View::PerRow(_), _) | (_, View::PerRow(_)) => {
                for (row, to) in to.chunks_exact_mut(self.len).enumerate() {
                    f(to, left.row(row, self.len), right.row(row, self.len));
                }
            }
            _ => f(to, left.whole(), right.whole()),
        }
    }

    /// Makes the result of a step.
    pub(super) fn compute<T: Element>(&mut self, step: &Step, to: Places<'_, T>) {
        let value = &self.program.values[step.result];
        let (kind, extent) = (value.kind, value.extent);
        let read = step.reads[0];
        let is_bool = kind.lane == Lane::Bool;
        match step.what {
            What::Load { .. } | What::Fold(_) => unreachable!("they have no loop"),
            What::Constant(number) => self.number(number, step, to),
            What::Scalar(scalar) => self.number(self.scalars[scalar], step, to),
            What::Draw(draw) => {
                let first = self.row * self.geometry.len + self.column;
                self.draws[draw](first, same(to));
            }
            What::Spread => self.spread(read, extent, to),
            What::Cast => self.cast(step, to),
            What::Unary(op @ (Unary::IsNan | Unary::IsInf)) => {
                let to = bools(to);
                match self.program.values[read].kind.lane {
                    Lane::F64 => <f64 as Numbers>::classify(self.level, op, to, self.values(read)),
                    _ => <f32 as Numbers>::classify(self.level, op, to, self.values(read)),
                }
            }
            What::Unary(Unary::Not) if is_bool => loops::not(bools(to), self.values(read)),
            What::Unary(op) if is_long(op) => {
                // In parts, between which memory is asked for.
                let mut ahead = std::mem::take(&mut self.arena.ahead);
                let of = self.values(read);
                let part = of.len().div_ceil(LONG).next_multiple_of(64).max(64);
                for (to, of) in to.chunks_mut(part).zip(of.chunks(part)) {
                    T::unary(self.level, op, to, of);
                    ahead.ask(1);
                }
                self.arena.ahead = ahead;
            }
            What::Unary(op) => T::unary(self.level, op, to, self.values(read)),
            What::Binary(op) => {
                let mut scratch = std::mem::take(&mut self.arena.scratch);
                self.binary(op, step, to, &mut scratch);
                self.arena.scratch = scratch;
            }
            What::Powi => {
                let mut scratch = std::mem::take(&mut self.arena.scratch);
                self.powi(step, to, &mut scratch);
                self.arena.scratch = scratch;
            }
            What::Select => {
                let mut scratch = std::mem::take(&mut self.arena.scratch);
                self.select(step, to, &mut scratch);
                self.arena.scratch = scratch;
            }
            What::AddAt => {
                let mut scratch = std::mem::take(&mut self.arena.scratch);
                self.add_at(step, to, &mut scratch[0]);
                self.arena.scratch = scratch;
            }
        }
    }

    fn number<T: Element>(&self, number: Number, step: &Step, to: Places<'_, T>) {
        let kind = self.program.values[step.result].kind;
        let made = match (kind.half(), kind.lane) {
            // Back as it is: T is f32.
            (Some(half), _) => T::of(Number::Float(f64::from(as_half(number, half)))),
            (None, Lane::Bool) => T::of(Number::UInt(as_bool(number).into())),
            (None, _) => T::of(number),
        };
        for to in to {
            to.write(made);
        }
    }

    fn cast<T: Element>(&self, step: &Step, to: Places<'_, T>) {
        let kind = self.program.values[step.result].kind;
        let read = step.reads[0];
        let from = self.program.values[read].kind.lane;
        match (from, kind.lane, kind.half()) {
            (Lane::Bool, Lane::Bool, _) => casts::copy(bools(to), self.values(read)),
            (_, Lane::Bool, _) => {
                by_lane!(from, A => casts::is_nonzero(bools(to), self.values::<A>(read)));
            }
            (Lane::F64, _, Some(half)) => {
                casts::round_double(half, same(to), self.values(read));
            }
            _ => by_lane!(from, A => T::cast_from(self.level, to, self.values::<A>(read))),
        }
    }

    fn binary<T: Element>(
        &mut self,
        op: Binary,
        step: &Step,
        to: Places<'_, T>,
        [first, second, _]: &mut [Buffer; 3],
    ) {
        let extent = self.program.values[step.result].extent;
        let [left, right, _] = step.reads;
        let level = self.level;
        let lane = self.program.values[left].kind.lane;
        let compares = matches!(
            op,
            Binary::Equal
                | Binary::NotEqual
                | Binary::Less
                | Binary::LessEqual
                | Binary::Greater
                | Binary::GreaterEqual
        );
        if lane == Lane::Bool {
            let View::Dense(left) = self.view::<u8>(left, extent, false, first) else {
                unreachable!("bools are spread");
            };
            let View::Dense(right) = self.view::<u8>(right, extent, false, second) else {
                unreachable!("bools are spread");
            };
            return loops::binary_bool(op, bools(to), left, right);
        }
        if compares {
            return by_lane!(lane, A => {
                let one = <A as Numbers>::READS_ONE;
                let views = (self.view::<A>(left, extent, one, first), self.view(right, extent, one, second));
                self.pairs(views, bools(to), |to, left, right| A::compare(level, op, to, left, right));
            });
        }
        let views = (
            self.view::<T>(left, extent, T::READS_ONE, first),
            self.view::<T>(right, extent, T::READS_ONE, second),
        );
        let mut has_zero = false;
        if matches!(op, Binary::Div | Binary::Rem)
            && !lane.is_float()
            && let View::Dense(divisors) = &views.1
        {
            has_zero = divisors.contains(&T::zeroed());
        }
        self.pairs(views, to, |to, left, right| {
            T::binary(level, op, to, left, right)
        });
        if has_zero {
            self.wrong.get_or_insert(RegionError::DivisionByZero);
        }
    }

    /// A power of a whole number: of floats one of a float, as in Flex.
    fn powi<T: Element>(
        &self,
        step: &Step,
        to: Places<'_, T>,
        [first, second, third]: &mut [Buffer; 3],
    ) {
        let extent = self.program.values[step.result].extent;
        let [base, exponent, _] = step.reads;
        let count = self.count(extent);
        let bases = self.view::<T>(base, extent, T::READS_ONE, first);
        third.reserve(count * size_of::<T>());
        let exponents = &mut third.elements_mut::<T>()[..count];
        by_lane!(self.program.values[exponent].kind.lane, A => {
            let View::Dense(given) = self.view::<A>(exponent, extent, false, second) else {
                unreachable!("integers are spread");
            };
            T::cast_from(self.level, places(exponents), given);
        });
        self.pairs((bases, View::Dense(exponents)), to, |to, left, right| {
            T::binary(self.level, Binary::Pow, to, left, right);
        });
    }

    fn select<T: Element>(
        &self,
        step: &Step,
        to: Places<'_, T>,
        [first, second, third]: &mut [Buffer; 3],
    ) {
        let extent = self.program.values[step.result].extent;
        let [mask, on_true, on_false] = step.reads;
        let View::Dense(mask) = self.view::<u8>(mask, extent, false, first) else {
            unreachable!("masks are spread");
        };
        let on_true = self.view::<T>(on_true, extent, true, second);
        let on_false = self.view::<T>(on_false, extent, true, third);
        let level = self.level;
        match (&on_true, &on_false) {
            (View::PerRow(_), _) | (_, View::PerRow(_)) => {
                let len = self.len;
                let rows = to.chunks_exact_mut(len).zip(mask.chunks_exact(len));
                for (row, (to, mask)) in rows.enumerate() {
                    loops::select(
                        level,
                        to,
                        mask,
                        on_true.row(row, len),
                        on_false.row(row, len),
                    );
                }
            }
            _ => loops::select(level, to, mask, on_true.whole(), on_false.whole()),
        }
    }

    /// Adds a value to one of the columns at hand of each row that has its index there.
    fn add_at<T: Element>(&mut self, step: &Step, to: Places<'_, T>, scratch: &mut Buffer) {
        let [elements, index, value] = step.reads;
        self.spread(elements, Extent::Element, to);
        scratch.reserve(self.rows * size_of::<i64>());
        let indices = &mut scratch.elements_mut::<i64>()[..self.rows];
        by_lane!(self.program.values[index].kind.lane, A => {
            let found = self.values::<A>(index);
            match found.len() < indices.len() {
                true => indices.fill(found[0].cast_to()),
                false => i64::cast_from(self.level, places(indices), found),
            }
        });
        let row_len = self.geometry.len;
        let values = self.values::<T>(value);
        let mut outside = None;
        for (row, index) in indices.iter().copied().enumerate() {
            let Some(at) = usize::try_from(index).ok().filter(|at| *at < row_len) else {
                outside = outside.or(Some(index));
                continue;
            };
            if (self.column..self.column + self.len).contains(&at) {
                let value = values.get(row).unwrap_or(&values[0]);
                let to = &mut to[row * self.len + at - self.column];
                // SAFETY: all places were written above.
                let before = unsafe { to.assume_init() };
                to.write(T::pair(Fold::Sum, before, *value));
            }
        }
        if let Some(index) = outside {
            let len = row_len;
            self.wrong
                .get_or_insert(RegionError::IndexOutside { index, len });
        }
    }
}

/// Places of a type known to be bytes.
fn bools<T: Pod>(to: Places<'_, T>) -> Places<'_, u8> {
    same(to)
}

/// Places of a type known to be another.
///
/// # Panics
/// If it is not.
fn same<T: Pod, U: Pod>(to: Places<'_, T>) -> Places<'_, U> {
    assert_eq!(std::any::TypeId::of::<T>(), std::any::TypeId::of::<U>());
    // SAFETY: the two are one type.
    unsafe { &mut *(std::ptr::from_mut(to) as *mut [std::mem::MaybeUninit<U>]) }
}
