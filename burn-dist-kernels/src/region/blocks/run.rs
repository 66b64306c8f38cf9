//! A run of code over the elements at hand.

use std::ops::Range;

use burn_dist_plan::region::{Fold, ROWS_OF_A_SUM};

use super::code::{BLOCK, Code, Make, ROW_MIN, Read, Target};
use super::loops::{LANES, Lanes, Ready, Span, inverse};
use super::scratch::Scratch;
use crate::region::ahead::Ahead;
use crate::region::folds::Folds;
use crate::region::functions::Instructions;
use crate::region::level::Loop;
use crate::region::program::{Extent, Leaves, Phase};
use crate::region::run::{Leave, Part, Runner};

/// Blocks for the rest of a row: what an instruction reads, and what it writes.
const REST: usize = 4;

/// Floats of the lanes of a fold.
const OF_LANES: usize = size_of::<Lanes>() / size_of::<f32>();

/// All whole blocks of a row.
struct Blocks<'a> {
    ready: &'a [Ready],
    /// Elements before the row.
    before: usize,
    blocks: usize,
    ahead: &'a mut Ahead,
}

impl Loop for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    fn call<I: Instructions>(self) {
        let share = self.ahead.share(self.blocks);
        for block in 0..self.blocks {
            for ready in self.ready {
                // SAFETY: spans have as many elements, and are of this run alone.
                unsafe { ready.run::<I>(self.before + block * BLOCK) };
            }
            self.ahead.ask_lines(share);
        }
    }
}

impl Runner<'_, '_> {
    /// Runs code over the elements at hand, and returns whether it did: short rows are run step by step.
    pub(in crate::region) fn code(&mut self, code: &Code, phase: &Phase) -> bool {
        let (rows, len) = match code.is_flat {
            true => (1, self.rows * self.len),
            false => (self.rows, self.len),
        };
        if rows > 1 && len < ROW_MIN {
            return false;
        }
        let mut scratch = std::mem::take(&mut self.arena.scratch_of_code);
        self.resolve(code, phase, &mut scratch);
        let first = scratch.blocks.first().cast::<f32>();
        let same = first.wrapping_add(code.registers * BLOCK);
        let inverses = same.wrapping_add(code.same.len() * BLOCK);
        let rest = inverses.wrapping_add(code.inverses.len() * BLOCK);
        let lanes = rest.wrapping_add(REST * BLOCK);
        let (is_first, is_last) = (
            self.column == 0,
            self.column + self.len == self.geometry.len,
        );
        for row in 0..rows {
            for (index, value) in code.same.iter().enumerate() {
                let values = self.values::<f32>(*value);
                let value = values[if values.len() == 1 { 0 } else { row }];
                let to = same.wrapping_add(index * BLOCK).cast::<[f32; BLOCK]>();
                // SAFETY: the scratch memory has a block there, of nobody else now.
                unsafe { to.write([value; BLOCK]) };
            }
            for (index, of) in code.inverses.iter().enumerate() {
                let of = same.wrapping_add(of * BLOCK);
                let to = inverses.wrapping_add(index * BLOCK).cast::<[f32; BLOCK]>();
                // SAFETY: as above; the value was written just now.
                unsafe { to.write([inverse(*of); BLOCK]) };
            }
            for (index, (value, fold)) in code.folds.iter().enumerate() {
                let to = lanes.wrapping_add(index * OF_LANES).cast::<Lanes>();
                let mut begun = [f32::neutral(*fold); LANES];
                if !is_first {
                    // Lanes stay in the slot until the row is at its end.
                    let slot = &self.arena.slots[self.program.values[*value].slot];
                    begun.copy_from_slice(&slot.elements::<f32>()[..LANES]);
                }
                // SAFETY: as above, lanes.
                unsafe { to.write(Lanes::new(begun)) };
            }
            for (index, sums) in &scratch.sums {
                let block = (self.row + row) / ROWS_OF_A_SUM - self.first_row / ROWS_OF_A_SUM;
                let own = sums.wrapping_add(block * self.geometry.len + self.column);
                scratch.ready[*index].to = Span::moving(own.wrapping_sub(row * len));
            }
            self.level.run_fused(Blocks {
                ready: &scratch.ready,
                before: row * len,
                blocks: len / BLOCK,
                ahead: &mut self.arena.ahead,
            });
            self.rest(
                &scratch.ready,
                row * len + len / BLOCK * BLOCK..(row + 1) * len,
                rest,
            );
            for (index, (value, fold)) in code.folds.iter().enumerate() {
                let of = lanes.wrapping_add(index * OF_LANES).cast::<Lanes>();
                // SAFETY: as above.
                let lanes = unsafe { of.read() }.with_nans();
                let slot = &mut self.arena.slots[self.program.values[*value].slot];
                let to = slot.elements_mut::<f32>();
                match is_last {
                    true => to[row] = f32::of_lanes(*fold, &lanes),
                    false => to[..LANES].copy_from_slice(&lanes),
                }
            }
        }
        for (value, _) in code.folds.iter().filter(|_| is_last) {
            let value = &self.program.values[*value];
            let mut buffer = std::mem::take(&mut self.arena.slots[value.slot]);
            self.after_fold(&mut buffer, value.kind);
            self.arena.slots[value.slot] = buffer;
        }
        scratch.ready.clear();
        scratch.parts.clear();
        scratch.sums.clear();
        self.arena.scratch_of_code = scratch;
        true
    }

    /// Finds where the blocks of instructions are.
    fn resolve(&mut self, code: &Code, phase: &Phase, scratch: &mut Scratch) {
        let blocks = code.registers + code.same.len() + code.inverses.len() + REST;
        scratch
            .blocks
            .reserve((blocks * BLOCK + code.folds.len() * OF_LANES) * size_of::<f32>());
        let first = scratch.blocks.first().cast::<f32>();
        let same = first.wrapping_add(code.registers * BLOCK);
        let inverses = same.wrapping_add(code.same.len() * BLOCK);
        let lanes = inverses.wrapping_add((code.inverses.len() + REST) * BLOCK);
        for value in &code.dense {
            let (_, most) = self.at(*value);
            self.arena.slots[self.program.values[*value].slot].reserve(most * size_of::<f32>());
        }
        for (value, _) in &code.folds {
            let most = self.rows.max(LANES);
            self.arena.slots[self.program.values[*value].slot].reserve(most * size_of::<f32>());
        }
        // Once for each: what is written through one pointer is read through it.
        scratch
            .parts
            .extend(self.parts.iter_mut().map(|part| match part {
                Part::Whole(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
                Part::Own(bytes) => (bytes.as_mut_ptr(), bytes.len()),
            }));
        scratch.skips.clear();
        scratch.skips.resize(code.instructions.len(), false);
        for (index, instruction) in code.instructions.iter().enumerate() {
            if scratch.skips[index] {
                continue;
            }
            let mut reads = [Span::still(first); 3];
            for (read, place) in reads.iter_mut().zip(instruction.reads) {
                *read = match place {
                    Read::Nothing => break,
                    Read::Register(register) => Span::still(first.wrapping_add(register * BLOCK)),
                    Read::Same(index) => Span::still(same.wrapping_add(index * BLOCK)),
                    Read::Inverse(index) => Span::still(inverses.wrapping_add(index * BLOCK)),
                    Read::Dense(value) => Span::moving(self.dense(value, &scratch.parts)),
                };
            }
            let mut make = instruction.make;
            let mut target = instruction.to;
            // What nothing else reads is written where it leaves to, if what it takes the place of is not read after.
            if let Some(leave) = instruction.leave
                && let Target::Store(store) = code.instructions[leave].to
            {
                let is_read = |operand: usize| {
                    let later = &code.instructions[index + 1..];
                    later
                        .iter()
                        .any(|later| later.reads.contains(&Read::Dense(operand)))
                };
                let is_direct = match &self.leaves[phase.stores[store].output] {
                    Leave::New { streams, .. } => !streams,
                    Leave::Over(operand) => {
                        !is_read(*operand) && !instruction.reads.contains(&Read::Dense(*operand))
                    }
                    Leave::Sums(_) => false,
                };
                if is_direct {
                    scratch.skips[leave] = true;
                    target = Target::Store(store);
                }
            }
            let to = match target {
                Target::Register(register) => Span::still(first.wrapping_add(register * BLOCK)),
                Target::Dense(value) => Span::moving(self.dense(value, &scratch.parts)),
                Target::Lanes(index) => Span::still(lanes.wrapping_add(index * OF_LANES)),
                Target::Store(store) => {
                    let store = &phase.stores[store];
                    let range = self.of_elements(size_of::<f32>(), self.count(Extent::Element));
                    match &mut self.leaves[store.output] {
                        Leave::New { bytes, streams } => {
                            if *streams {
                                make = Make::Stream;
                            }
                            Span::moving(bytes[range].as_mut_ptr().cast())
                        }
                        Leave::Over(operand) => {
                            let (first, len) = scratch.parts[*operand];
                            assert!(range.end <= len, "what is taken over has as many elements");
                            Span::moving(first.wrapping_add(range.start).cast())
                        }
                        Leave::Sums(bytes) => {
                            debug_assert!(matches!(store.leaves, Leaves::Over(_)));
                            let last = self.row + self.rows - 1;
                            let blocks = last / ROWS_OF_A_SUM - self.first_row / ROWS_OF_A_SUM + 1;
                            let sums: &mut [f32] = bytemuck::cast_slice_mut(bytes);
                            let sums = &mut sums[..blocks * self.geometry.len];
                            scratch.sums.push((scratch.ready.len(), sums.as_mut_ptr()));
                            Span::still(first)
                        }
                    }
                }
            };
            scratch.ready.push(Ready { make, reads, to });
        }
    }

    /// Returns where the elements at hand of a value begin.
    fn dense(&mut self, value: usize, parts: &[(*mut u8, usize)]) -> *mut f32 {
        if let Some(Some(range)) = self.arena.found.get(value) {
            let (first, len) = parts[value];
            assert!(
                range.end <= len && range.len() == self.count(Extent::Element) * size_of::<f32>()
            );
            return first.wrapping_add(range.start).cast();
        }
        let (range, _) = self.at(value);
        let slot = &mut self.arena.slots[self.program.values[value].slot];
        assert!(range.end * size_of::<f32>() <= slot.len());
        slot.first().cast::<f32>().wrapping_add(range.start)
    }

    /// Runs instructions over elements that are less than a block, each through blocks that are whole.
    fn rest(&mut self, ready: &[Ready], elements: Range<usize>, rest: *mut f32) {
        struct One<'a>(&'a Ready);
        impl Loop for One<'_> {
            type Output = ();
            #[inline(always)]
            fn call<I: Instructions>(self) {
                // SAFETY: its blocks do not move.
                unsafe { self.0.run::<I>(0) };
            }
        }
        let count = elements.len();
        if count == 0 {
            return;
        }
        let block = |index: usize| rest.wrapping_add(index * BLOCK);
        for of in ready {
            let mut now = *of;
            for (index, read) in now.reads.iter_mut().enumerate() {
                if read.moves != 0 {
                    // SAFETY: as many elements are there; the scratch memory has a block.
                    unsafe { block(index).copy_from(read.at(elements.start), count) };
                    *read = Span::still(block(index));
                }
            }
            let lanes = |of: Span| {
                // SAFETY: a fold writes lanes.
                unsafe { &mut (*of.first.cast::<Lanes>()).values }
            };
            // SAFETY: a block of scratch memory, written just now or before.
            let values = |of: Span| unsafe { std::slice::from_raw_parts(of.first, count) };
            match now.make {
                Make::Fold(fold) => {
                    f32::into_lanes(self.level, fold, lanes(now.to), values(now.reads[0]));
                    continue;
                }
                Make::Products => {
                    let product = Ready {
                        make: Make::Binary(burn_dist_plan::region::Binary::Mul),
                        reads: now.reads,
                        to: Span::still(block(3)),
                    };
                    self.level.run_fused(One(&product));
                    f32::into_lanes(self.level, Fold::Sum, lanes(now.to), values(product.to));
                    continue;
                }
                Make::Stream => now.make = Make::Copy,
                _ => {}
            }
            let to = now.to;
            if to.moves == 0 {
                self.level.run_fused(One(&now));
                continue;
            }
            now.to = Span::still(block(3));
            if let Make::Each(_) | Make::EachProduct = now.make {
                // SAFETY: as above: it reads what it writes.
                unsafe { block(3).copy_from(to.at(elements.start), count) };
            }
            self.level.run_fused(One(&now));
            // SAFETY: as above.
            unsafe { to.at(elements.start).copy_from(block(3), count) };
        }
    }
}
