//! Results: how values leave.

use std::mem::MaybeUninit;

use burn_dist_plan::region::{Fold, ROWS_OF_A_SUM};

use super::casts;
use super::folds::Folds;
use super::kind::{Kind, Stored};
use super::memory::places;
use super::program::{Extent, Leaves, Store};
use super::run::{Leave, Part, Runner, by_lane};

impl Runner<'_, '_> {
    /// Has a value leave.
    pub(super) fn store(&mut self, store: &Store) {
        let result = &self.program.results[store.output];
        if let Leaves::Over(fold) = store.leaves {
            return self.add_up(store, fold);
        }
        let size = result.kind.stored_size();
        let range = match result.extent {
            Extent::Element => self.of_elements(size, self.count(Extent::Element)),
            _ => self.of_rows(size),
        };
        match &mut self.leaves[store.output] {
            Leave::New { bytes, streams } => {
                let streams = *streams;
                if store.by_step && !streams {
                    return;
                }
                let bytes = std::mem::take(bytes);
                match streams {
                    true => by_lane!(result.kind.lane, T => {
                        let values = self.values::<T>(store.value);
                        super::stream::write(&mut bytes[range], bytemuck::cast_slice(values));
                    }),
                    false => self.write(store.value, result.kind, &mut bytes[range]),
                }
                self.leaves[store.output] = Leave::New { bytes, streams };
            }
            Leave::Over(operand) => {
                let operand = *operand;
                let Part::Own(memory) = &mut self.parts[operand] else {
                    unreachable!("what is taken over is its own");
                };
                let memory = std::mem::take(memory);
                self.write(store.value, result.kind, places(&mut memory[range]));
                self.parts[operand] = Part::Own(memory);
            }
            Leave::Sums(_) => unreachable!("sums leave over rows"),
        }
    }

    /// Writes values as they are stored.
    fn write(&self, value: usize, kind: Kind, to: &mut [MaybeUninit<u8>]) {
        match kind.stored {
            Stored::Plain => by_lane!(kind.lane, T => {
                casts::copy(to, bytemuck::cast_slice(self.values::<T>(value)));
            }),
            Stored::Half(half) => casts::narrow(
                self.level,
                half,
                super::memory::places_of(to),
                self.values::<f32>(value),
            ),
            Stored::WideBool => {
                casts::cast::<u8, u32>(
                    self.level,
                    super::memory::places_of(to),
                    self.values::<u8>(value),
                );
            }
        }
    }

    /// Adds the rows at hand to the sums of their blocks.
    fn add_up(&mut self, store: &Store, fold: Fold) {
        let result = self.program.results[store.output];
        let (width, columns) = match result.extent {
            Extent::Element => (self.geometry.len, self.column..self.column + self.len),
            _ => (1, 0..1),
        };
        let Leave::Sums(bytes) = &mut self.leaves[store.output] else {
            unreachable!("what is folded over rows leaves as sums");
        };
        let bytes = std::mem::take(bytes);
        let first_block = self.first_row / ROWS_OF_A_SUM;
        by_lane!(result.kind.lane, T => {
            let sums: &mut [T] = bytemuck::cast_slice_mut(bytes);
            let values = self.values::<T>(store.value);
            for row in 0..self.rows {
                let block = (self.row + row) / ROWS_OF_A_SUM - first_block;
                let own = &mut sums[block * width..][..width][columns.clone()];
                T::into_each(self.level, fold, own, &values[row * columns.len()..][..columns.len()]);
            }
        });
        self.leaves[store.output] = Leave::Sums(bytes);
    }
}
