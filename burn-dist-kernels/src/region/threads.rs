//! A run of a region: memory is checked and shared out to parts of the rows, parts run on threads, sums over rows come
//! last.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use burn_dist_plan::region::{Fold, Number, ROWS_OF_A_SUM};
use rayon::prelude::*;
use smallvec::{SmallVec, smallvec};

use super::casts;
use super::copy::{Array, copy};
use super::error::RegionError;
use super::folds::Folds;
use super::geometry::Geometry;
use super::kind::{Lane, Stored};
use super::level::Level;
use super::memory::{Buffer, Draw, FEW, Memory, Operand, Output, places_of};
use super::program::{Extent, Leaves, Program, ResultOf};
use super::run::{Arena, Leave, Part, Runner, by_lane};
use super::stream::{self, STREAM_MIN};

/// Elements of a part that is worth a thread.
const PART_MIN: usize = 16 << 10;
/// Parts for each thread, so that none waits long for another.
const PARTS_OF_A_THREAD: usize = 4;
/// Scratch memory that a thread keeps for the next region, in bytes.
const SCRATCH_MAX: usize = 4 << 20;

thread_local! {
    static ARENA: RefCell<Arena> = RefCell::default();
}

fn memory(what: impl Into<String>) -> RegionError {
    RegionError::Memory { what: what.into() }
}

/// Runs a region.
pub(super) fn run(
    program: &Program,
    level: Level,
    operands: &mut [Operand<'_>],
    scalars: &[Number],
    draws: &[Draw<'_>],
    outputs: &mut [Output<'_>],
) -> Result<(), RegionError> {
    check_counts(program, operands, scalars, draws, outputs)?;
    let geometry = Geometry::new(program, operands)?;
    let is_over = check_outputs(program, &geometry, operands, outputs)?;
    if let ([operand], [Output::New(to)], true) = (&*operands, &mut *outputs, program.is_copy()) {
        let strides = (0..program.space.len()).map(|dim| program.stride(0, operand, dim));
        let strides: SmallVec<[isize; FEW]> = strides.collect();
        let from = Array {
            bytes: operand.memory.bytes(),
            size: program.values[0].kind.stored_size(),
            offset: operand.offset,
            shape: &program.space,
            strides: &strides,
        };
        return copy(&from, to);
    }
    let total = geometry.rows * geometry.len;
    // Sums of blocks of rows, each in memory of its own.
    let mut sums: SmallVec<[Buffer; FEW]> = SmallVec::new();
    for result in &program.results {
        sums.push(match result.leaves {
            Leaves::Each => Buffer::default(),
            Leaves::Over(fold) => neutral_sums(result, fold, &geometry),
        });
    }
    // What each part has.
    let mut jobs = jobs(program, &geometry);
    for ((index, operand), is_over) in operands.iter_mut().enumerate().zip(is_over) {
        let value = &program.values[index];
        match (&mut operand.memory, is_over) {
            (Memory::Unique(bytes), true) => {
                let size = value.kind.stored_size();
                let first = operand.offset * size;
                let mut rest = &mut bytes[first..];
                for job in &mut jobs {
                    let len = job.count(value.extent, &geometry) * size;
                    let (own, others) = std::mem::take(&mut rest).split_at_mut(len);
                    rest = others;
                    job.operands.push(Part::Own(own));
                }
            }
            (Memory::Unique(bytes), false) => share(&mut jobs, bytes),
            (Memory::Shared(bytes), _) => share(&mut jobs, bytes),
        }
    }
    let sums_left = sums.iter_mut().map(Buffer::elements_mut::<u8>);
    for ((output, result), mut sums) in outputs.iter_mut().zip(&program.results).zip(sums_left) {
        let mut rest: &mut [MaybeUninit<u8>] = &mut [];
        let mut over = None;
        let size = result.count(&geometry) * result.kind.stored_size();
        match output {
            Output::New(bytes) => rest = bytes,
            Output::Over(operand) => over = Some(*operand),
        }
        for job in &mut jobs {
            job.outputs.push(match (result.leaves, over) {
                (Leaves::Over(_), _) => {
                    let blocks = job.rows(&geometry).len().div_ceil(ROWS_OF_A_SUM);
                    let len = blocks * result.width(&geometry) * result.kind.lane.size();
                    let (own, others) = sums.split_at_mut(len);
                    sums = others;
                    Leave::Sums(own)
                }
                (Leaves::Each, Some(operand)) => Leave::Over(operand),
                (Leaves::Each, None) => {
                    let len = job.count(result.extent, &geometry) * result.kind.stored_size();
                    let (own, others) = rest.split_at_mut(len);
                    rest = others;
                    let is_plain = result.kind.stored == Stored::Plain;
                    Leave::New {
                        bytes: own,
                        streams: is_plain && size >= STREAM_MIN,
                    }
                }
            });
        }
    }
    let run = |job: Job<'_>| job.run(program, &geometry, level, scalars, draws);
    let wrong = match jobs.len() {
        0 | 1 => jobs.into_iter().find_map(run),
        // All of them run, whatever one finds; what the first ones find counts.
        _ => jobs
            .into_par_iter()
            .map(run)
            .reduce(|| None, |one, other| one.or(other)),
    };
    debug_assert!(total == 0 || !program.phases.is_empty());
    for ((result, sums), output) in program.results.iter().zip(&sums).zip(outputs) {
        if let (Leaves::Over(fold), Output::New(bytes)) = (result.leaves, output) {
            total_of(result, fold, &geometry, level, sums, bytes);
        }
    }
    match wrong {
        Some(wrong) => Err(wrong),
        None => Ok(()),
    }
}

/// Has all parts read all of an operand.
fn share<'a>(jobs: &mut [Job<'a>], bytes: &'a [u8]) {
    for job in jobs {
        job.operands.push(Part::Whole(bytes));
    }
}

fn check_counts(
    program: &Program,
    operands: &[Operand<'_>],
    scalars: &[Number],
    draws: &[Draw<'_>],
    outputs: &[Output<'_>],
) -> Result<(), RegionError> {
    let found = [operands.len(), scalars.len(), draws.len(), outputs.len()];
    let expected = [
        program.operands,
        program.scalars,
        program.draws,
        program.results.len(),
    ];
    if found != expected {
        return Err(memory(format!(
            "{expected:?} operands, scalars, draws and outputs are expected, and there are {found:?}"
        )));
    }
    for (index, operand) in operands.iter().enumerate() {
        if operand.strides.len() != program.space.len() {
            return Err(memory(format!(
                "operand {index} has strides for {} of the {} dims",
                operand.strides.len(),
                program.space.len()
            )));
        }
    }
    Ok(())
}

/// Checks the memory of outputs, and returns which operands they take over.
fn check_outputs(
    program: &Program,
    geometry: &Geometry,
    operands: &[Operand<'_>],
    outputs: &[Output<'_>],
) -> Result<SmallVec<[bool; FEW]>, RegionError> {
    let mut is_over = smallvec![false; operands.len()];
    for (index, (output, result)) in outputs.iter().zip(&program.results).enumerate() {
        let size = result.kind.stored_size();
        let count = result.count(geometry);
        match output {
            Output::New(bytes) => {
                if bytes.len() != count * size || !bytes.as_ptr().addr().is_multiple_of(size) {
                    return Err(memory(format!(
                        "output {index} of {count} elements of {size} bytes has {} bytes, or lies unaligned",
                        bytes.len()
                    )));
                }
            }
            Output::Over(operand) => {
                let fits = operands.get(*operand).is_some_and(|found| {
                    let value = &program.values[*operand];
                    let passage = &geometry.operands[*operand];
                    matches!(found.memory, Memory::Unique(_))
                        && result.leaves == Leaves::Each
                        && value.extent == result.extent
                        && value.kind.stored_size() == size
                        && passage.in_order
                });
                if !fits || std::mem::replace(&mut is_over[*operand], true) {
                    return Err(memory(format!(
                        "output {index} cannot take the place of operand {operand}: that is to be unique, of as many \
                         elements of the same size, in order, and of one output alone"
                    )));
                }
            }
        }
    }
    Ok(is_over)
}

impl ResultOf {
    /// Returns how many values a row, or a block of rows, has.
    fn width(&self, geometry: &Geometry) -> usize {
        match self.extent {
            Extent::Element => geometry.len,
            _ => 1,
        }
    }

    /// Returns how many elements leave.
    fn count(&self, geometry: &Geometry) -> usize {
        match self.leaves {
            Leaves::Each => geometry.rows * self.width(geometry),
            Leaves::Over(_) => self.width(geometry),
        }
    }
}

/// A part of the rows, or of all elements in order, and its memory.
struct Job<'a> {
    part: Share,
    operands: SmallVec<[Part<'a>; FEW]>,
    outputs: SmallVec<[Leave<'a>; FEW]>,
}

#[derive(Clone, Debug)]
enum Share {
    Rows(Range<usize>),
    Elements(Range<usize>),
}

/// Returns the parts of a run, with no memory yet: as many as threads have use for.
fn jobs<'a>(program: &Program, geometry: &Geometry) -> Vec<Job<'a>> {
    let total = geometry.rows * geometry.len;
    let most = rayon::current_num_threads() * PARTS_OF_A_THREAD;
    let num = match rayon::current_num_threads() {
        1 => 1,
        _ => (total / PART_MIN).clamp(1, most),
    };
    let has_sums = program
        .results
        .iter()
        .any(|result| result.leaves != Leaves::Each);
    let (whole, unit) = match (program.needs_rows, has_sums) {
        (true, true) => (geometry.rows, ROWS_OF_A_SUM),
        (true, false) => (geometry.rows, 1),
        // Chunks begin where vectors do.
        (false, _) => (total, 1024),
    };
    let size = whole.div_ceil(unit).div_ceil(num).max(1) * unit;
    let ranges = (0..whole.div_ceil(size)).map(|part| part * size..((part + 1) * size).min(whole));
    match program.needs_rows {
        true => ranges.map(Share::Rows).map(Job::new).collect(),
        false => ranges.map(Share::Elements).map(Job::new).collect(),
    }
}

impl<'a> Job<'a> {
    fn new(part: Share) -> Self {
        Self {
            part,
            operands: SmallVec::new(),
            outputs: SmallVec::new(),
        }
    }

    /// Returns its rows, the first of which may begin before it.
    fn rows(&self, geometry: &Geometry) -> Range<usize> {
        match &self.part {
            Share::Rows(rows) => rows.clone(),
            Share::Elements(elements) => {
                elements.start / geometry.len..elements.end.div_ceil(geometry.len)
            }
        }
    }

    /// Returns how many values of an extent are its own.
    fn count(&self, extent: Extent, geometry: &Geometry) -> usize {
        match (&self.part, extent) {
            (Share::Elements(elements), _) => elements.len(),
            (Share::Rows(rows), Extent::Element) => rows.len() * geometry.len,
            (Share::Rows(rows), _) => rows.len(),
        }
    }

    /// Runs it, and returns the first error of operands that it has found.
    fn run(
        self,
        program: &Program,
        geometry: &Geometry,
        level: Level,
        scalars: &[Number],
        draws: &[Draw<'_>],
    ) -> Option<RegionError> {
        let first_row = self.rows(geometry).start;
        let first = match &self.part {
            Share::Rows(rows) => rows.start * geometry.len,
            Share::Elements(elements) => elements.start,
        };
        // A region that runs within another on this thread has scratch memory of its own.
        let mut arena = ARENA.with(RefCell::take);
        let mut runner = Runner {
            program,
            geometry,
            level,
            scalars,
            draws,
            arena: &mut arena,
            parts: self.operands,
            leaves: self.outputs,
            first,
            first_row,
            row: 0,
            rows: 1,
            column: 0,
            len: 1,
            wrong: None,
        };
        match self.part {
            Share::Rows(rows) => runner.run_rows(rows),
            Share::Elements(elements) => runner.run_elements(elements),
        }
        stream::finish();
        let wrong = runner.wrong;
        if arena.slots.iter().map(Buffer::len).sum::<usize>() <= SCRATCH_MAX {
            ARENA.with(|kept| *kept.borrow_mut() = arena);
        }
        wrong
    }
}

/// Returns sums of nothing for each block of rows.
fn neutral_sums(result: &ResultOf, fold: Fold, geometry: &Geometry) -> Buffer {
    let count = geometry.rows.div_ceil(ROWS_OF_A_SUM) * result.width(geometry);
    let mut buffer = Buffer::default();
    buffer.reserve(count * result.kind.lane.size());
    by_lane!(result.kind.lane, T => buffer.elements_mut::<T>()[..count].fill(T::neutral(fold)));
    buffer
}

/// Folds the sums of blocks in order.
fn total_of(
    result: &ResultOf,
    fold: Fold,
    geometry: &Geometry,
    level: Level,
    sums: &Buffer,
    to: &mut [MaybeUninit<u8>],
) {
    let width = result.width(geometry);
    let blocks = geometry.rows.div_ceil(ROWS_OF_A_SUM);
    let mut buffer = Buffer::default();
    buffer.reserve(width * result.kind.lane.size());
    by_lane!(result.kind.lane, T => {
        let totals = &mut buffer.elements_mut::<T>()[..width];
        totals.fill(T::neutral(fold));
        for block in 0..blocks {
            T::into_each(level, fold, totals, &sums.elements::<T>()[block * width..][..width]);
        }
    });
    if result.kind.lane == Lane::Bool {
        buffer.elements_mut::<u8>()[..width]
            .iter_mut()
            .for_each(|x| *x = (*x).min(1));
    }
    match result.kind.stored {
        Stored::Plain => by_lane!(result.kind.lane, T => {
            casts::copy(places_of::<T>(to), &buffer.elements::<T>()[..width]);
        }),
        Stored::Half(half) => {
            casts::narrow(
                level,
                half,
                places_of(to),
                &buffer.elements::<f32>()[..width],
            );
        }
        Stored::WideBool => {
            casts::cast::<u8, u32>(level, places_of(to), &buffer.elements::<u8>()[..width])
        }
    }
}
