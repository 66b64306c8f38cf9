//! A matrix whose rows are the columns of memory, tile by tile.
//!
//! A tile is read in runs along memory, turned in registers, and written in runs along the result, in whole lines of
//! the cache where rows begin alike. Tiles that lie one behind the other in memory come one after the other, in squares
//! of as many pages as a processor knows the places of.

use std::mem::MaybeUninit;

use bytemuck::Pod;

use crate::region::ahead;
use crate::region::functions::Instructions;
use crate::region::level::{Level, Loop};
use crate::region::memory::bytes_of;
use crate::region::stream::{self, LINE};

/// Elements along each side of a square of tiles.
const SQUARE: usize = 512;

/// Elements along each side of a tile, at most.
const SIDE: usize = 64;

/// Elements that are turned in registers at once, along each side.
const TURNED: usize = 8;

/// A matrix whose rows are the columns of memory.
pub(super) struct Turn<'a, T> {
    pub from: &'a [T],
    /// Elements from a column to the next.
    pub from_apart: isize,
    /// Elements of the result from a row to the next.
    pub to_apart: usize,
    pub rows: usize,
    pub columns: usize,
    /// True if the result is written past the cache.
    pub streams: bool,
}

/// A tile of elements that are being turned.
#[repr(C, align(64))]
struct Tile<T>([[T; SIDE]; SIDE]);

struct Run<'a, 'm, T> {
    turn: &'a Turn<'m, T>,
    at: isize,
    to: &'a mut [MaybeUninit<T>],
}

impl<T: Pod> Turn<'_, T> {
    /// Copies it from its first element on.
    pub(super) fn copy(&self, at: isize, to: &mut [MaybeUninit<T>]) {
        Level::best().run_fused(Run { turn: self, at, to });
    }
}

/// Returns the parts of a range: a first one, if it is not whole, and others of a length.
fn parts(
    range: std::ops::Range<usize>,
    first: usize,
    len: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let first = if first == 0 { len } else { first };
    let head = range.start + first.min(range.len());
    let rest = (head..range.end)
        .step_by(len)
        .map(move |at| (at, len.min(range.end - at)));
    std::iter::once((range.start, head - range.start))
        .filter(|part| part.1 > 0)
        .chain(rest)
}

impl<T: Pod> Loop for Run<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn call<I: Instructions>(self) {
        let Self { turn, at, to } = self;
        let size = size_of::<T>();
        // Elements of a tile along a side: those of a large type fill the first cache sooner.
        let side = SIDE.min(256 / size);
        // Columns before the first line of its own, the same in each row.
        let is_alike = (turn.to_apart * size).is_multiple_of(LINE) && turn.streams;
        let before = match is_alike {
            true => to.as_ptr().addr().wrapping_neg() % LINE / size,
            false => 0,
        };
        let mut tile = Tile([[T::zeroed(); SIDE]; SIDE]);
        for (square_row, square_rows) in parts(0..turn.rows, 0, SQUARE) {
            for (square_column, square_columns) in parts(0..turn.columns, before, SQUARE) {
                for (column, columns) in
                    parts(square_column..square_column + square_columns, 0, side)
                {
                    for (row, rows) in parts(square_row..square_row + square_rows, 0, side) {
                        turn.read::<I>(at, (row, rows), (column, columns), side, &mut tile);
                        for (row, line) in tile
                            .0
                            .iter()
                            .enumerate()
                            .take(rows)
                            .map(|(index, line)| (row + index, line))
                        {
                            let to = &mut to[row * turn.to_apart + column..][..columns];
                            let bytes = bytes_of(to);
                            match is_alike
                                && bytes.len() == side * size
                                && bytes.as_ptr().addr().is_multiple_of(LINE)
                            {
                                true => stream::write_lines::<I>(
                                    bytes,
                                    bytemuck::cast_slice(&line[..columns]),
                                ),
                                false => {
                                    to.write_copy_of_slice(&line[..columns]);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl<T: Pod> Turn<'_, T> {
    /// Reads a tile, and asks for the one that comes next.
    #[inline(always)]
    fn read<I: Instructions>(
        &self,
        at: isize,
        (row, rows): (usize, usize),
        (column, columns): (usize, usize),
        side: usize,
        tile: &mut Tile<T>,
    ) {
        let run = |index: usize, len: usize| {
            let first = (at + (column + index) as isize * self.from_apart) as usize + row;
            &self.from[first..][..len]
        };
        let mut first = 0;
        while first < columns {
            let many = TURNED.min(columns - first);
            for index in first..first + many {
                // What is read next of the same rows.
                let next = at + (column + side + index) as isize * self.from_apart + row as isize;
                let next = usize::try_from(next).unwrap_or(usize::MAX);
                if let Some(next) = self.from.get(next..next.saturating_add(rows)) {
                    ahead::fetch_all(bytemuck::cast_slice(next));
                }
            }
            let mut done = 0;
            if many == TURNED {
                let runs: [&[T]; TURNED] = std::array::from_fn(|index| run(first + index, rows));
                while done + TURNED <= rows {
                    turn_square::<I, T>(&runs, done, tile, first);
                    done += TURNED;
                }
            }
            for index in first..first + many {
                for (row, value) in run(index, rows).iter().enumerate().skip(done) {
                    tile.0[row][index] = *value;
                }
            }
            first += many;
        }
    }
}

/// Turns a square: its rows are parts of runs, its columns those of rows of a tile.
#[inline(always)]
fn turn_square<I: Instructions, T: Pod>(
    runs: &[&[T]; TURNED],
    row: usize,
    tile: &mut Tile<T>,
    column: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if I::AVX && size_of::<T>() == 4 {
        use std::arch::x86_64::*;
        assert!(
            column + TURNED <= SIDE
                && row + TURNED <= SIDE
                && runs.iter().all(|run| row + TURNED <= run.len())
        );
        // SAFETY: eight elements of four bytes are read of each run, and written to each row, as just counted; the
        // processor has AVX.
        unsafe {
            let read = |index: usize| _mm256_loadu_ps(runs[index].as_ptr().add(row).cast());
            let [a, b, c, d, e, f, g, h] = [
                read(0),
                read(1),
                read(2),
                read(3),
                read(4),
                read(5),
                read(6),
                read(7),
            ];
            let (ab, cd, ef, gh) = (
                [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)],
                [_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)],
                [_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f)],
                [_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h)],
            );
            let mut write = |index: usize, low: __m256, high: __m256| {
                for (index, made) in [
                    (index, _mm256_permute2f128_ps::<0x20>(low, high)),
                    (index + 4, _mm256_permute2f128_ps::<0x31>(low, high)),
                ] {
                    let to = tile.0[row + index].as_mut_ptr().add(column);
                    _mm256_storeu_ps(to.cast(), made);
                }
            };
            for half in 0..2 {
                let (ab, cd, ef, gh) = (ab[half], cd[half], ef[half], gh[half]);
                write(
                    2 * half,
                    _mm256_shuffle_ps::<0x44>(ab, cd),
                    _mm256_shuffle_ps::<0x44>(ef, gh),
                );
                write(
                    2 * half + 1,
                    _mm256_shuffle_ps::<0xee>(ab, cd),
                    _mm256_shuffle_ps::<0xee>(ef, gh),
                );
            }
        }
        return;
    }
    for (index, run) in runs.iter().enumerate() {
        for (part, value) in run[row..row + TURNED].iter().enumerate() {
            tile.0[row + part][column + index] = *value;
        }
    }
}
