//! Values that are cheaper to make again than to keep: a backward reads little of a forward but what that reads itself.

use super::look::size;
use super::walk::{Operand, Walk, What};
use crate::ir::{Op, Slot};

/// The most instructions that are run again in the place of a tensor that is kept: it would be written once and read
/// once, and while a processor does that for an element, it computes about as many functions of one in its caches.
const INSTRUCTIONS_MAX: usize = 8;

/// The instructions that take as long as a draw.
const INSTRUCTIONS_OF_DRAW: usize = 6;

/// The most tensors that are read in the place of one.
const TENSORS_MAX: usize = 2;

impl<O: Op> Walk<'_, O> {
    /// Returns whether a slot is an operand of a region.
    fn reads(&self, region: u32, slot: Slot) -> bool {
        let Some(node) = self.operands.get(&slot) else {
            return false;
        };
        let mut of = self.nodes[*node as usize].region;
        while self.regions[of as usize].parent != of {
            of = self.regions[of as usize].parent;
        }
        of == region
    }

    /// Makes a value of a region that has ended again in another one over the same space, which is at the task that the
    /// walk has come to. Returns it; `None` if it is kept anyway, if it takes too much, or if something that it is made
    /// of would have to be kept for this.
    pub(super) fn again(&mut self, node: u32, region: u32) -> Option<u32> {
        let origin = self.region_of(node);
        let (from, into) = (
            &self.regions[origin as usize],
            &self.regions[region as usize],
        );
        let core = from.core.clone();
        let whole = size(&core);
        let of = &self.nodes[node as usize];
        let (slot, _) = of.slot.as_ref()?;
        let is_kept = from.open || self.readers(*slot).outside;
        if !self.joins || is_kept || of.size != whole || core != into.core {
            return None;
        }
        // In the order in which they are made: values to make again, and those that are there.
        let (mut made, mut there) = (Vec::new(), Vec::new());
        let mut next = vec![node];
        let (mut tensors, mut instructions) = (0, 0);
        while let Some(value) = next.pop() {
            if made.contains(&value) || there.contains(&value) {
                continue;
            }
            let of = &self.nodes[value as usize];
            let is_alive = |slot| self.readers(slot).last >= self.at || self.reads(region, slot);
            match (&of.what, &of.slot) {
                (What::Operand(operand), _) if is_alive(operand.slot) => {
                    tensors += usize::from(operand.is_whole(whole));
                    there.push(value);
                }
                // Values of rows are small.
                (What::Instruction(_), Some(_)) if of.size < whole => there.push(value),
                (What::Instruction(_) | What::Drawn(_), Some((slot, _)))
                    if value != node && of.is_read && is_alive(*slot) =>
                {
                    tensors += 1;
                    there.push(value);
                }
                (What::Instruction(instruction), _) if instruction.knows_rows() => return None,
                (What::Instruction(instruction), _) => {
                    made.push(value);
                    instructions += 1;
                    next.extend(instruction.reads());
                }
                (What::Drawn(_), _) => {
                    made.push(value);
                    instructions += INSTRUCTIONS_OF_DRAW;
                }
                (What::Scalar(_), _) => {
                    made.push(value);
                    instructions += 1;
                }
                _ => return None,
            }
            if instructions > INSTRUCTIONS_MAX || tensors > TENSORS_MAX {
                return None;
            }
        }
        made.sort_unstable();
        let mut known: Vec<(u32, u32)> = Vec::with_capacity(made.len() + there.len());
        for value in there {
            let of = &self.nodes[value as usize];
            let dtype = of.dtype;
            let operand = match (&of.what, &of.slot) {
                (What::Operand(operand), _) => operand.clone(),
                (_, slot) => {
                    let (slot, shape) = slot.clone().expect("it is a result");
                    let dims = core.len() - usize::from(of.size < whole);
                    Operand {
                        slot,
                        shape,
                        over: core[..dims].to_vec(),
                        spans: vec![true; dims],
                    }
                }
            };
            known.push((value, self.slot(region, dtype, operand)));
        }
        for value in &made {
            let of = &self.nodes[*value as usize];
            let to = |read: u32| {
                let found = known.iter().find(|(value, _)| *value == read);
                found.expect("values are made in order").1
            };
            let what = match &of.what {
                What::Instruction(instruction) => What::Instruction(instruction.reading(to)),
                What::Scalar(of) => What::Scalar(*of),
                What::Drawn(task) => What::Drawn(*task),
                _ => unreachable!("nothing else is made again"),
            };
            known.push((*value, self.push(region, of.dtype, what)));
        }
        self.regions[region as usize].instructions += made.len();
        known.last().map(|(_, again)| *again)
    }
}
