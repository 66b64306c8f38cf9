//! Operands: where their elements are, or how they are brought there.

use std::ops::Range;

use super::casts;
use super::kind::{Kind, Stored};
use super::level::Level;
use super::memory::{Buffer, places};
use super::program::{Extent, WHOLE};
use super::run::{Part, Runner, by_lane};

impl Runner<'_, '_> {
    /// Finds the elements of an operand: where they are, if they are one after the other as they are computed with;
    /// otherwise they are brought there.
    pub(super) fn load(&mut self, operand: usize, share: Range<usize>, asks: bool) {
        let value = &self.program.values[operand];
        let passage = &self.geometry.operands[operand];
        let size = value.kind.stored_size();
        let is_plain = value.kind.stored == Stored::Plain;
        let count = self.count(value.extent);
        if let Part::Own(_) = self.parts[operand] {
            let range = match value.extent {
                Extent::Element => self.of_elements(size, count),
                _ => self.of_rows(size),
            };
            if is_plain {
                self.found(operand, range, share);
                return;
            }
            if asks {
                return;
            }
            let first = (range.start / size) as isize;
            return self.bring(operand, |bring| bring.run(0, first, 1, count));
        }
        let (of_row, last) = match value.extent {
            Extent::Element => (self.len, passage.last),
            _ => (1, 0),
        };
        let across = self.column as isize * last;
        let is_one_row = self.rows == 1 || value.extent == Extent::Once;
        if (last == 1 || of_row == 1) && is_plain && (is_one_row || passage.in_order) {
            let outer = &self.geometry.outer;
            let mut first = passage.offset;
            if value.extent != Extent::Once {
                passage.each_row(outer, self.row, 1, |_, at| first = at + across);
            }
            let first = first as usize * size;
            self.found(operand, first..first + count * size, share);
            return;
        }
        if asks {
            return;
        }
        self.arena.found[operand] = None;
        if value.extent == Extent::Once {
            return self.bring(operand, |bring| bring.run(0, passage.offset, 0, 1));
        }
        let (geometry, row, rows) = (self.geometry, self.row, self.rows);
        self.bring(operand, |bring| {
            passage.each_row(&geometry.outer, row, rows, |row, at| {
                bring.run(row * of_row, at + across, last, of_row);
            });
        });
    }

    /// Notes where the elements of an operand are, and which are read next: those of the next chunk, or where phases go
    /// through a row again, of the next row, for which each of the phases asks in part.
    fn found(&mut self, operand: usize, range: Range<usize>, share: Range<usize>) {
        let value = &self.program.values[operand];
        if value.extent == Extent::Element {
            let memory = match &self.parts[operand] {
                Part::Whole(memory) => memory,
                Part::Own(memory) => &**memory,
            };
            let apart = match self.program.phases.len() {
                1 => range.len(),
                _ => self.rows * self.geometry.len * value.kind.lane.size(),
            };
            let next = range.start + apart;
            let of = |part: usize| next + range.len() * part / WHOLE;
            self.arena
                .ahead
                .note(memory, of(share.start)..of(share.end));
        }
        self.arena.found[operand] = Some(range);
    }

    /// Fills the slot of an operand.
    fn bring(&mut self, operand: usize, f: impl FnOnce(&mut Bring<'_>)) {
        self.arena.found[operand] = None;
        let value = &self.program.values[operand];
        let count = self.count(value.extent);
        let mut buffer = std::mem::take(&mut self.arena.slots[value.slot]);
        buffer.reserve(count * value.kind.lane.size());
        let memory = match &self.parts[operand] {
            Part::Whole(memory) => memory,
            Part::Own(memory) => &**memory,
        };
        f(&mut Bring {
            level: self.level,
            kind: value.kind,
            to: &mut buffer,
            from: memory,
        });
        self.arena.slots[value.slot] = buffer;
    }
}

/// Elements that move from memory to a buffer.
struct Bring<'a> {
    level: Level,
    kind: Kind,
    to: &'a mut Buffer,
    from: &'a [u8],
}

impl Bring<'_> {
    /// Brings elements that are some apart.
    fn run(&mut self, to: usize, first: isize, apart: isize, count: usize) {
        if count == 0 {
            return;
        }
        let level = self.level;
        match self.kind.stored {
            Stored::Plain => by_lane!(self.kind.lane, T => {
                let to = &mut self.to.elements_mut::<T>()[to..to + count];
                gather::<T, T>(to, bytemuck::cast_slice(self.from), first, apart, |to, of| {
                    to.copy_from_slice(of);
                }, |x| x);
            }),
            Stored::Half(half) => {
                let to = &mut self.to.elements_mut::<f32>()[to..to + count];
                let from = bytemuck::cast_slice::<u8, u16>(self.from);
                let one = |x| match half {
                    super::halves::Half::F16 => super::halves::from_f16(x),
                    super::halves::Half::BF16 => super::halves::from_bf16(x),
                };
                gather(
                    to,
                    from,
                    first,
                    apart,
                    |to, of| casts::widen(level, half, places(to), of),
                    one,
                );
            }
            Stored::WideBool => {
                let to = &mut self.to.elements_mut::<u8>()[to..to + count];
                let from = bytemuck::cast_slice::<u8, u32>(self.from);
                let one = |x: u32| u8::from(x != 0);
                gather(
                    to,
                    from,
                    first,
                    apart,
                    |to, of| casts::is_nonzero(places(to), of),
                    one,
                );
            }
        }
    }
}

/// Reads elements that are some apart.
fn gather<A: Copy, B: Copy>(
    to: &mut [B],
    from: &[A],
    first: isize,
    apart: isize,
    many: impl FnOnce(&mut [B], &[A]),
    one: impl Fn(A) -> B,
) {
    match apart {
        0 => to.fill(one(from[first as usize])),
        1 => many(to, &from[first as usize..][..to.len()]),
        _ => {
            let mut at = first;
            for to in to {
                *to = one(from[at as usize]);
                at += apart;
            }
        }
    }
}
