//! Memory of a rank over a window, as planned.

use std::collections::BTreeMap;

use serde::Serialize;

use super::lifetimes::uses;
use super::propagate::Program;
use super::task::{RankPlan, Task};
use crate::record::visit::{OpReader, visit_ref};
use burn_ir::{BaseOperationIr, OperationIr, TensorIr};

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// Parameters as they rest, in pieces.
    AtRest,
    /// Parameters gathered for use.
    Gathered,
    /// Everything else that outlives the window: optimizer state, buffers.
    Resident,
    /// Gradients of parameters, and what updates parameters and state with them.
    Gradient,
    /// Everything else: activations, gradients of activations, temporaries.
    Working,
}

/// Planned memory of one rank over one window, in bytes of tensor contents. Views count once, with what they look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// The most that is alive at once, values that live between windows and are used by this one included.
    pub peak_bytes: u64,
    /// What was alive then, by class.
    pub peak_by_class: BTreeMap<MemoryClass, u64>,
    /// The most that was alive of each class, not all at the same time.
    pub class_peaks: BTreeMap<MemoryClass, u64>,
    /// Bytes of the window's inputs before it starts.
    pub start_bytes: u64,
    /// Bytes of the window's inputs and outputs that remain.
    pub end_bytes: u64,
}

struct Shapes<'a> {
    bytes: &'a mut [u64],
}

impl OpReader for Shapes<'_> {
    fn input(&mut self, _: &TensorIr) {}

    fn output(&mut self, t: &TensorIr) {
        self.bytes[t.id.value() as usize] = t.shape.num_elements() as u64 * t.dtype.size() as u64;
    }
}

/// Returns whether the result of an operation looks at the memory of its first input.
pub(crate) fn is_view(op: &OperationIr) -> bool {
    let (OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op)) = op
    else {
        return false;
    };
    matches!(
        op,
        BaseOperationIr::Reshape(_)
            | BaseOperationIr::SwapDims(_)
            | BaseOperationIr::Permute(_)
            | BaseOperationIr::Expand(_)
            | BaseOperationIr::Slice(_)
    )
}

/// Walks the tasks of a rank and adds up what is alive. `lasting` tells which slots of the program flow into what outlives the window.
pub(super) fn memory(program: &Program, lasting: &[bool], plan: &RankPlan) -> MemoryPlan {
    let num_slots = plan.num_slots as usize;
    let mut bytes = vec![0u64; num_slots];
    let mut class = vec![MemoryClass::Working; num_slots];
    for (slot, info) in program.slots.iter().enumerate() {
        let tagged = program.values[info.value as usize].tag.is_some();
        class[slot] = match (tagged, program.values[info.value as usize].survives) {
            (true, _) if !info.layout.at_rest.is_empty() => MemoryClass::AtRest,
            (true, _) => MemoryClass::Gathered,
            (false, true) => MemoryClass::Resident,
            (false, false) if lasting[slot] => MemoryClass::Gradient,
            (false, false) => MemoryClass::Working,
        };
    }
    // Storage behind each slot, and how many slots look at it.
    let mut storage: Vec<usize> = (0..num_slots).collect();
    let mut holders = vec![0u32; num_slots];
    let mut alive = 0u64;
    let mut by_class: BTreeMap<MemoryClass, u64> = BTreeMap::new();
    let mut out = MemoryPlan::default();
    let mut kept: Vec<bool> = vec![false; num_slots];
    for task in &plan.tasks {
        let (inputs, outputs) = uses(task);
        match task {
            Task::Load { slot, bytes: b, .. } => bytes[*slot as usize] = *b,
            Task::Upload(t) => {
                bytes[t.slot as usize] = elements(&t.shape) * t.dtype.size() as u64;
            }
            Task::Random(t) => {
                bytes[t.slot as usize] = elements(&t.shape) * t.dtype.size() as u64;
            }
            Task::Collective(t) => {
                bytes[t.to as usize] = elements(&t.to_shape) * t.dtype.size() as u64;
            }
            Task::Launch { tasks, .. } => {
                for t in tasks {
                    bytes[t.to as usize] = elements(&t.to_shape) * t.dtype.size() as u64;
                }
            }
            Task::Op(op, _) => visit_ref(op, &mut Shapes { bytes: &mut bytes }),
            _ => {}
        }
        let view = matches!(task, Task::Op(op, _) if is_view(op));
        for &slot in &outputs {
            let slot = slot as usize;
            if view && let Some(&input) = inputs.first() {
                storage[slot] = storage[input as usize];
            }
            let root = storage[slot];
            if holders[root] == 0 {
                alive += bytes[root];
                let total = by_class.entry(class[root]).or_insert(0);
                *total += bytes[root];
                let most = out.class_peaks.entry(class[root]).or_insert(0);
                *most = (*most).max(*total);
            }
            holders[root] += 1;
        }
        if alive > out.peak_bytes {
            out.peak_bytes = alive;
            out.peak_by_class = by_class.clone();
        }
        for slot in released(task) {
            let root = storage[slot as usize];
            if kept[root] {
                continue;
            }
            holders[root] = holders[root].saturating_sub(1);
            if holders[root] == 0 {
                alive -= bytes[root];
                if let Some(total) = by_class.get_mut(&class[root]) {
                    *total -= bytes[root];
                }
            }
        }
        match task {
            Task::Load { slot, take, .. } => {
                out.start_bytes += bytes[*slot as usize];
                kept[*slot as usize] = !take;
            }
            Task::Store { slot, .. } => kept[storage[*slot as usize]] = true,
            _ => {}
        }
    }
    out.end_bytes = alive;
    out
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().product::<usize>() as u64
}

/// Slots given up by a task.
fn released(task: &Task) -> Vec<u32> {
    struct Last(Vec<u32>);
    impl OpReader for Last {
        fn input(&mut self, t: &TensorIr) {
            if t.status == burn_ir::TensorStatus::ReadWrite {
                self.0.push(t.id.value() as u32);
            }
        }
        fn output(&mut self, _: &TensorIr) {}
    }
    match task {
        Task::Op(op, _) => {
            let mut last = Last(Vec::new());
            visit_ref(op, &mut last);
            last.0
        }
        Task::Collective(t) if t.take => vec![t.from],
        Task::Launch { tasks, .. } => {
            let taken = tasks.iter().filter(|t| t.take);
            taken.map(|t| t.from).collect()
        }
        Task::Read {
            slot, take: true, ..
        } => vec![*slot],
        Task::Free(slot) => vec![*slot],
        _ => Vec::new(),
    }
}
