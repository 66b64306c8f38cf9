//! Accesses of tasks to slots: what each reads, empties and fills, in one place. Lifetimes, the account of memory,
//! offload, kernels on the clock and the removal of what only other ranks need walk over them.

use rustc_hash::FxHashSet;

use super::op::{Op, Side};
use super::task::{CollectiveTask, RandomTask, Task};
use super::tensor::{Slot, Tensor};
use crate::mesh::DType;

/// An access of a task to one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Access<'a> {
    /// Reads it; `takes` if it is empty afterwards.
    Reads {
        /// Which.
        slot: Slot,
        /// True if it is empty afterwards.
        takes: bool,
    },
    /// Fills it.
    Makes(Tensor<'a>),
    /// Moves it to the host: it is no less alive, and takes no memory of the device until it returns.
    Leaves(Tensor<'a>),
    /// Brings it back from there.
    Returns(Tensor<'a>),
}

/// A tensor that a task which is no operation moves or makes.
fn tensor(id: Slot, shape: &[usize], dtype: DType) -> Tensor<'_> {
    Tensor {
        id,
        shape,
        dtype,
        last_use: false,
    }
}

/// Takes those out of `last` that are once among `inputs`, and returns them in order. An operand used twice is not
/// moved: the order in which operations take theirs is not ours.
fn used_once(mut inputs: Vec<Slot>, last: &mut Vec<Slot>) -> Vec<Slot> {
    inputs.sort_unstable();
    let is_used_once = |slot: &Slot| {
        let first = inputs.partition_point(|input| input < slot);
        inputs.get(first + 1) != Some(slot)
    };
    let mut taken: Vec<Slot> = last.extract_if(.., |slot| is_used_once(slot)).collect();
    taken.sort_unstable();
    taken
}

impl CollectiveTask {
    /// Returns the tensor that it makes.
    pub(crate) fn output(&self) -> Tensor<'_> {
        tensor(self.to, &self.to_shape, self.dtype)
    }
}

impl<O> RandomTask<O> {
    /// Returns the tensor that it makes.
    pub(crate) fn output(&self) -> Tensor<'_> {
        tensor(self.slot, &self.shape, self.dtype)
    }
}

impl<O: Op> Task<O> {
    /// Visits every access: first the slots that are read, then those that are made, each in the order of the task.
    pub(crate) fn accesses<'a>(&'a self, mut visit: impl FnMut(Access<'a>)) {
        let reads = |slot: Slot, takes: bool| Access::Reads { slot, takes };
        match self {
            Self::Op(op, _) => {
                for input in op.inputs() {
                    visit(reads(input.id, input.last_use));
                }
                op.outputs().for_each(|out| visit(Access::Makes(out)));
            }
            Self::Region(task) => {
                let inputs = task.inputs.iter();
                inputs.for_each(|input| visit(reads(input.slot, input.take)));
                for out in &task.outputs {
                    visit(Access::Makes(tensor(out.id, &out.shape, out.dtype)));
                }
            }
            Self::Load {
                slot, shape, dtype, ..
            } => visit(Access::Makes(tensor(*slot, shape, *dtype))),
            Self::Upload(task) => visit(Access::Makes(tensor(task.slot, &task.shape, task.dtype))),
            Self::Random(task) => visit(Access::Makes(task.output())),
            Self::Receive(task) => visit(Access::Makes(tensor(task.slot, &task.shape, task.dtype))),
            Self::Collective(_) | Self::Launch { .. } => {
                for task in self.collectives() {
                    visit(reads(task.from, task.take));
                }
                for task in self.collectives() {
                    visit(Access::Makes(task.output()));
                }
            }
            Self::Finish { to, .. } => to.iter().for_each(|slot| visit(reads(*slot, false))),
            Self::Store { slot, take, .. } | Self::Read { slot, take, .. } => {
                visit(reads(*slot, *take));
            }
            Self::Free(slot) => visit(reads(*slot, true)),
            Self::Send(task) => visit(reads(task.slot, task.take)),
            Self::ToHost(task) => visit(Access::Leaves(tensor(task.slot, &task.shape, task.dtype))),
            Self::FromHost(task) => {
                visit(Access::Returns(tensor(task.slot, &task.shape, task.dtype)));
            }
        }
    }

    /// Makes the task empty those of the slots that it reads which are among `last`, and leaves in `last` the ones that
    /// it cannot empty.
    pub(crate) fn take(&mut self, last: &mut Vec<Slot>) {
        match self {
            Self::Op(..) | Self::Region(_) if last.is_empty() => {}
            Self::Op(op, _) => {
                let inputs = op.inputs().map(|input| input.id).collect();
                let taken = used_once(inputs, last);
                op.rewire(|side, wire| {
                    let is_taken = || taken.binary_search(&wire.id).is_ok();
                    wire.last_use |= side == Side::Input && is_taken();
                });
            }
            Self::Region(task) => {
                let inputs = task.inputs.iter().map(|input| input.slot).collect();
                let taken = used_once(inputs, last);
                for input in &mut task.inputs {
                    input.take |= taken.binary_search(&input.slot).is_ok();
                }
            }
            Self::Launch { tasks, .. } => {
                let mut last: FxHashSet<Slot> = last.drain(..).collect();
                for task in tasks.iter_mut().rev() {
                    // Of several that send the same slot only the last empties it.
                    task.take = last.remove(&task.from);
                }
            }
            Self::Collective(task) => task.take = last.pop().is_some(),
            Self::Send(task) => task.take = last.pop().is_some(),
            Self::Store { take, .. } | Self::Read { take, .. } => *take = last.pop().is_some(),
            // What is waited for stays until it is freed.
            Self::Finish { .. } => {}
            // It is read to be emptied, or somewhere else from then on.
            Self::Free(_) | Self::ToHost(_) => last.clear(),
            Self::Load { .. }
            | Self::Upload(_)
            | Self::Random(_)
            | Self::Receive(_)
            | Self::FromHost(_) => {}
        }
    }
}
