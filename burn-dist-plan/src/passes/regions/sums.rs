//! Sums along one dim after the other, which are one over all rows, or over all elements.

use super::look::{Seen, sum};
use super::walk::{Begun, Fate, Walk};
use crate::ir::op::Tensor;
use crate::ir::{Op, Task};

impl<'a, O: Op> Walk<'a, O> {
    /// Has a sum join a region, if it is one of rows, or as the last of several that are.
    pub(super) fn sum(
        &mut self,
        at: usize,
        op: &'a O,
        path: u32,
        dims: Vec<usize>,
        out: Tensor<'_>,
    ) {
        let of = op.inputs().next().expect("a sum has an operand");
        let begun = self.begun.remove(&of.id);
        let is_begun = begun.is_some();
        let mut begun = begun.unwrap_or_else(|| Begun {
            of: self.look(of),
            dims: Vec::new(),
            operations: 0,
            bytes_apart: 0,
        });
        begun.dims.extend(dims);
        if let Some(computes) = sum(&begun.of.full, &begun.dims, out.dtype) {
            let (operations, bytes_apart) = (begun.operations, begun.bytes_apart);
            let region = self.join(at, op, path, &computes, vec![begun.of]);
            let making = &mut self.regions[region as usize];
            making.operations += operations;
            making.bytes_apart += bytes_apart;
        } else if is_begun || self.is_gone_on(&begun, out) {
            begun.operations += 1;
            // What is made is read again; the last one counts what the first one reads.
            begun.bytes_apart += (2 * out.numel() * out.dtype.size()) as u64;
            self.begun.insert(out.id, begun);
            self.fates[at] = Fate::Joins;
        } else {
            self.outside(&self.tasks[at]);
        }
    }

    /// Returns whether sums alone read the result of some, one after the other, until all are one that a region has.
    fn is_gone_on(&self, begun: &Begun, out: Tensor<'_>) -> bool {
        let (mut dims, mut slot) = (begun.dims.clone(), out.id);
        // Every sum that counts has a dim that those before it have not.
        for _ in 0..out.shape.len() {
            let readers = self.readers(slot);
            let (1, Task::Op(op, _)) = (readers.count, &self.tasks[readers.last]) else {
                return false;
            };
            let seen = self.seen[readers.last].as_ref();
            let (Some(Seen::Sum(more)), Some(made)) = (seen, op.outputs().next()) else {
                return false;
            };
            dims.extend(more);
            if sum(&begun.of.full, &dims, out.dtype).is_some() {
                return true;
            }
            slot = made.id;
        }
        false
    }
}
