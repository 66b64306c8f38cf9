//! Names the task that failed: operation, local shapes, module, and of an index out of range, which one.

use std::collections::HashSet;

use burn_dist_kernels::region::RegionError;
use burn_dist_plan::op::{Indexed, Op};
use burn_ir::{BackendIr, TensorIr};

use super::Fault;
use crate::mesh::Rank;
use crate::ops::Recorded;
use crate::ops::execute::into_data;
use crate::ops::index::{Indexing, indexing};
use crate::plan::task::{RankPlan, RegionTask, Slot, Task};

/// Returns the fault of task `at`. `indices` are those of its operation, if it reads or writes at some.
pub(super) fn failed<B: BackendIr>(
    rank: Rank,
    plan: &RankPlan,
    at: usize,
    indices: Option<B::Handle>,
    message: String,
) -> Fault {
    let (op, path, message) = match plan.tasks.get(at) {
        Some(Task::Op(op, path)) => {
            let path = plan.paths.get(*path as usize).cloned();
            let (op, message) = out_of_range::<B>(plan, op, indices).unwrap_or_else(|| {
                let shapes: Vec<String> = op.reads().map(shape).collect();
                (format!("{}({})", op.name(), shapes.join(", ")), message)
            });
            (op, path, message)
        }
        Some(Task::Region(task)) => {
            let path = plan.paths.get(task.path as usize).cloned();
            (region(task), path, message)
        }
        Some(Task::Random(_)) => ("random".to_string(), None, message),
        Some(Task::Upload(_)) => ("upload".to_string(), None, message),
        Some(Task::Collective(task)) => (task.kind().name().to_string(), None, message),
        Some(Task::Launch { .. } | Task::Finish { .. }) => {
            ("collectives".to_string(), None, message)
        }
        _ => ("a task".to_string(), None, message),
    };
    Fault::Op {
        rank,
        op,
        path,
        message,
    }
}

/// Returns the fault of a region.
pub(super) fn failed_region(
    rank: Rank,
    plan: &RankPlan,
    task: &RegionTask,
    error: &RegionError,
) -> Fault {
    let global = task.indexed.and_then(|slot| plan.indexed.get(&slot));
    let (op, message) = match (error, global) {
        (RegionError::IndexOutside { index, .. }, Some(global)) => {
            let index = index.saturating_add(global.start as i64);
            (global.op.clone(), outside(index, global))
        }
        _ => (region(task), error.to_string()),
    };
    let path = plan.paths.get(task.path as usize).cloned();
    Fault::Op {
        rank,
        op,
        path,
        message,
    }
}

/// Returns what a panic says.
pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
        .unwrap_or_else(|| "panicked".to_string())
}

/// Returns the operation and the first of its indices that is out of range, in global numbers.
fn out_of_range<B: BackendIr>(
    plan: &RankPlan,
    op: &Recorded,
    handle: Option<B::Handle>,
) -> Option<(String, String)> {
    let Indexing { indices, out, .. } = indexing(op.burn()?)?;
    let global = plan.indexed.get(&(out.id.value() as Slot))?;
    let data = into_data::<B>(handle?, indices.shape.clone(), indices.dtype);
    let data = burn_std::future::block_on(data).ok()?;
    let size = global.shape[global.dim];
    let start = global.start as i64;
    let index = data
        .iter::<i64>()
        .map(|index| index.saturating_add(start))
        .find(|index| !(0..size as i64).contains(index))?;
    Some((global.op.clone(), outside(index, global)))
}

/// Returns what is wrong with an index, in global numbers.
fn outside(index: i64, of: &Indexed) -> String {
    let size = of.shape[of.dim];
    let range = match size {
        0 => "it has no elements".to_string(),
        _ => format!("its indices are 0 to {}", size - 1),
    };
    format!(
        "index {index} is out of range for dim {} (size {size}) of the tensor of shape {:?}: {range}",
        of.dim, of.shape
    )
}

/// Returns the functions of a region, each once, and the shape that they are computed over.
fn region(task: &RegionTask) -> String {
    let mut seen = HashSet::new();
    let instructions = task.region.formula.instructions.iter();
    let functions: Vec<String> = instructions
        .filter_map(|typed| Some(typed.instruction.to_string().split_once('(')?.0.to_string()))
        .filter(|name| seen.insert(name.clone()))
        .collect();
    format!(
        "region({} over {:?})",
        functions.join(", "),
        task.region.space
    )
}

fn shape(tensor: &TensorIr) -> String {
    format!("{} {:?}", tensor.dtype.name(), tensor.shape.to_vec())
}
