//! A part of a region's rows on one thread: chunk by chunk, phase by phase.

use std::mem::MaybeUninit;
use std::ops::Range;

use burn_dist_plan::region::Number;
use bytemuck::Pod;
use smallvec::SmallVec;

use super::ahead::Ahead;
use super::blocks::scratch::Scratch;
use super::casts;
use super::error::RegionError;
use super::folds::Folds;
use super::geometry::Geometry;
use super::kind::{Kind, Lane};
use super::level::Level;
use super::memory::{Buffer, Draw, FEW, places};
use super::program::{Extent, Phase, Program, Step, What, is_long, rounds};

/// Calls with the type that a value is computed in; a bool is a `u8`.
macro_rules! by_lane {
    ($lane:expr, $type:ident => $made:expr) => {
        match $lane {
            $crate::region::kind::Lane::F32 => by_lane!(@ $type, f32, $made),
            $crate::region::kind::Lane::F64 => by_lane!(@ $type, f64, $made),
            $crate::region::kind::Lane::I8 => by_lane!(@ $type, i8, $made),
            $crate::region::kind::Lane::I16 => by_lane!(@ $type, i16, $made),
            $crate::region::kind::Lane::I32 => by_lane!(@ $type, i32, $made),
            $crate::region::kind::Lane::I64 => by_lane!(@ $type, i64, $made),
            $crate::region::kind::Lane::U8 | $crate::region::kind::Lane::Bool => by_lane!(@ $type, u8, $made),
            $crate::region::kind::Lane::U16 => by_lane!(@ $type, u16, $made),
            $crate::region::kind::Lane::U32 => by_lane!(@ $type, u32, $made),
            $crate::region::kind::Lane::U64 => by_lane!(@ $type, u64, $made),
        }
    };
    (@ $type:ident, $of:ty, $made:expr) => {{
        type $type = $of;
        $made
    }};
}
pub(super) use by_lane;

/// Memory of an operand, as a part of the rows sees it.
pub(super) enum Part<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// The elements of these rows alone, which a result replaces.
    Own(&'a mut [u8]),
}

/// Where a part of the rows leaves a result.
pub(super) enum Leave<'a> {
    /// The elements of these rows.
    New {
        bytes: &'a mut [MaybeUninit<u8>],
        /// True if it is written past the cache.
        streams: bool,
    },
    /// In the place of an operand.
    Over(usize),
    /// One sum for each block of rows, as it is computed.
    Sums(&'a mut [u8]),
}

/// Scratch memory of a thread.
#[derive(Default)]
pub(super) struct Arena {
    pub slots: Vec<Buffer>,
    pub scratch: [Buffer; 3],
    pub scratch_of_code: Scratch,
    /// Where the elements of operands are, in bytes of their memory; `None`: in their slot.
    pub found: Vec<Option<Range<usize>>>,
    pub ahead: Ahead,
}

/// A part of the rows on one thread.
pub(super) struct Runner<'r, 'm> {
    pub program: &'r Program,
    pub geometry: &'r Geometry,
    pub level: Level,
    pub scalars: &'r [Number],
    pub draws: &'r [Draw<'r>],
    pub arena: &'r mut Arena,
    pub parts: SmallVec<[Part<'m>; FEW]>,
    pub leaves: SmallVec<[Leave<'m>; FEW]>,
    /// The first element, by its number in the whole space; the row it is in is the first row.
    pub first: usize,
    pub first_row: usize,
    /// The rows at hand, and of which columns.
    pub row: usize,
    pub rows: usize,
    pub column: usize,
    pub len: usize,
    /// The first error of operands that it has found.
    pub wrong: Option<RegionError>,
}

impl Runner<'_, '_> {
    /// Runs rows.
    pub(super) fn run_rows(&mut self, rows: Range<usize>) {
        self.once();
        let len = self.geometry.len;
        let at_once = (self.program.chunk / len.max(1)).max(1);
        let mut row = rows.start;
        while row < rows.end {
            let many = at_once.min(rows.end - row);
            self.tile(row, many, 0..len);
            row += many;
        }
    }

    /// Runs elements, by their numbers in order.
    pub(super) fn run_elements(&mut self, elements: Range<usize>) {
        self.once();
        let len = self.geometry.len;
        let mut at = elements.start;
        while at < elements.end {
            let (row, column) = (at / len, at % len);
            let rest = elements.end - at;
            let whole = rest / len;
            if column == 0 && whole > 1 && 2 * len <= self.program.chunk {
                let rows = whole.min(self.program.chunk / len);
                self.tile(row, rows, 0..len);
                at += rows * len;
            } else {
                let columns = rest.min(len - column);
                self.tile(row, 1, column..column + columns);
                at += columns;
            }
        }
    }

    fn once(&mut self) {
        let program = self.program;
        self.arena
            .slots
            .resize_with(program.slots.max(self.arena.slots.len()), Buffer::default);
        self.arena.found.clear();
        self.arena.found.resize(program.operands, None);
        (self.rows, self.len) = (1, 1);
        for step in &program.once {
            self.step(step);
        }
    }

    /// Runs some columns of some rows; if those are not all, of one row.
    fn tile(&mut self, row: usize, rows: usize, columns: Range<usize>) {
        let program = self.program;
        (self.row, self.rows) = (row, rows);
        for phase in &program.phases {
            self.column = columns.start;
            self.len = columns.len();
            for step in &phase.rows {
                self.step(step);
            }
            loop {
                let rest = columns.end - self.column;
                self.len = match rows {
                    1 => rest.min(program.chunk),
                    _ => rest,
                };
                self.arena.ahead.begin(phase.weight);
                self.elements(phase);
                self.column += self.len;
                if self.column >= columns.end {
                    break;
                }
            }
            for store in &phase.row_stores {
                self.store(store);
            }
        }
    }

    /// Makes what a phase makes of the elements at hand, and has it leave.
    fn elements(&mut self, phase: &Phase) {
        let mut left = None;
        for group in &phase.groups {
            left = group.code.as_ref().filter(|code| self.code(code, phase));
            if left.is_none() {
                for step in &phase.elements[group.steps.clone()] {
                    self.step(step);
                }
            }
        }
        for (index, store) in phase.stores.iter().enumerate() {
            if !left.is_some_and(|code| code.stores[index]) {
                self.store(store);
            }
        }
    }

    /// Returns how many values of an extent there are at hand.
    pub(super) fn count(&self, extent: Extent) -> usize {
        match extent {
            Extent::Once => 1,
            Extent::Row => self.rows,
            Extent::Element => self.rows * self.len,
        }
    }

    /// Returns where the values at hand are in the buffer of a value, and how many it has to have.
    pub(super) fn at(&self, value: usize) -> (Range<usize>, usize) {
        let value = &self.program.values[value];
        let count = self.count(value.extent);
        match value.is_kept && self.rows == 1 {
            true => (self.column..self.column + count, self.geometry.len),
            false => (0..count, count),
        }
    }

    /// Returns the values at hand.
    #[inline]
    pub(super) fn values<T: Pod>(&self, value: usize) -> &[T] {
        if let Some(Some(bytes)) = self.arena.found.get(value) {
            let memory = match &self.parts[value] {
                Part::Whole(memory) => memory,
                Part::Own(memory) => &**memory,
            };
            return bytemuck::cast_slice(&memory[bytes.clone()]);
        }
        let (range, _) = self.at(value);
        &self.arena.slots[self.program.values[value].slot].elements::<T>()[range]
    }

    /// Makes the result of a step, and asks for some of what is read next.
    fn step(&mut self, step: &Step) {
        self.make(step);
        match step.what {
            // It has asked in between.
            What::Unary(op) if is_long(op) => {}
            _ => self.arena.ahead.ask(step.weight()),
        }
    }

    fn make(&mut self, step: &Step) {
        match step.what {
            What::Load { from, to, asks } => return self.load(step.result, from..to, asks),
            What::Fold(fold) => return self.fold(fold, step),
            _ => {}
        }
        let value = &self.program.values[step.result];
        let lane = value.kind.lane;
        let count = self.count(value.extent);
        if let Some(output) = step.output
            && let Leave::New {
                bytes,
                streams: false,
            } = &mut self.leaves[output]
        {
            // What it writes, and nothing else does now.
            let bytes = std::mem::take(bytes);
            let range = self.of_elements(lane.size(), count);
            by_lane!(lane, T => self.compute::<T>(step, super::memory::places_of(&mut bytes[range])));
            self.leaves[output] = Leave::New {
                bytes,
                streams: false,
            };
            return;
        }
        let (range, most) = self.at(step.result);
        let mut buffer = std::mem::take(&mut self.arena.slots[value.slot]);
        buffer.reserve(most * lane.size());
        by_lane!(lane, T => {
            let elements = &mut buffer.elements_mut::<T>()[range.clone()];
            self.compute::<T>(step, places(elements));
        });
        if let Some(half) = value.kind.half()
            && rounds(step.what)
        {
            casts::round(self.level, half, &mut buffer.elements_mut::<f32>()[range]);
        }
        self.arena.slots[value.slot] = buffer;
    }

    /// Returns where the elements at hand are among those of this part, in bytes.
    pub(super) fn of_elements(&self, size: usize, count: usize) -> Range<usize> {
        let first = (self.row * self.geometry.len + self.column - self.first) * size;
        first..first + count * size
    }

    /// Returns where the rows at hand are among those of this part, in bytes.
    pub(super) fn of_rows(&self, size: usize) -> Range<usize> {
        let first = (self.row - self.first_row) * size;
        first..first + self.rows * size
    }

    /// Folds the elements at hand of each row.
    fn fold(&mut self, fold: burn_dist_plan::region::Fold, step: &Step) {
        let value = &self.program.values[step.result];
        let mut buffer = std::mem::take(&mut self.arena.slots[value.slot]);
        let is_first = self.column == 0;
        let is_last = self.column + self.len == self.geometry.len;
        by_lane!(value.kind.lane, T => {
            const LANES: usize = super::folds::LANES;
            buffer.reserve(self.rows.max(LANES) * size_of::<T>());
            let to = buffer.elements_mut::<T>();
            if self.rows == 1 {
                let elements = self.values::<T>(step.reads[0]);
                // Lanes stay in the buffer until the row is at its end.
                let mut lanes = [T::neutral(fold); LANES];
                if !is_first {
                    lanes.copy_from_slice(&to[..LANES]);
                }
                T::into_lanes(self.level, fold, &mut lanes, elements);
                to[..LANES].copy_from_slice(&lanes);
                if is_last {
                    to[0] = T::of_lanes(fold, &lanes);
                }
            } else {
                let elements = self.values::<T>(step.reads[0]);
                T::of_rows(self.level, fold, &mut to[..self.rows], elements, self.len);
            }
        });
        if is_last {
            self.after_fold(&mut buffer, value.kind);
        }
        self.arena.slots[value.slot] = buffer;
    }

    /// Rounds what was folded, and has bools be bools.
    pub(super) fn after_fold(&self, buffer: &mut Buffer, kind: Kind) {
        if kind.lane == Lane::Bool {
            // Of no elements the neutral byte is not a bool.
            let bools = &mut buffer.elements_mut::<u8>()[..self.rows];
            bools.iter_mut().for_each(|x| *x = (*x).min(1));
        }
        if let Some(half) = kind.half() {
            casts::round(
                self.level,
                half,
                &mut buffer.elements_mut::<f32>()[..self.rows],
            );
        }
    }
}
