//! Regions: a rank's elementwise work as few kernels.
//!
//! ```text
//! s2 = mul(s0, s0)                 s2 is read by nothing else          s4 = region(s0)   v1 = mul(v0, v0)
//! s3 = sum_dim(s2)                                            ->                         v2 = fold sum(v1)
//! s4 = mul(s0, s3)                                                                       v3 = mul(v0, v2)
//! s5 = matmul(s4, s1)              reads s4: the region ends here      s5 = matmul(s4, s1)
//! ```
//!
//! One walk over the tasks of a rank. An operation that says what it computes ([`Op::pointwise`]) joins the open
//! regions that make its operands, or that read one of the same size, if their spaces fit: they are the same, or that
//! of one has all dims of the other but the last, so that its values are one for each row. A region is open until
//! something outside of it reads one of its results: so no path leads from it through others back into it, open ones
//! can become one, and no other task waits longer than before. It stands where the last of its operations stood;
//! collectives and all other tasks keep their order. What only a region's operations read is never in memory.
//!
//! Constants and looks at tensors (stretched, or with other dims of size one) are made by each region that reads them,
//! and go if nothing else does. Sums over rows end a region: their results are kept, and read from outside.
//!
//! A value that only other regions read is made again by them where it takes few instructions over what is there
//! anyway: so a backward keeps less of its forward. Sums along one dim after the other are one.
//!
//! An operation that adds to one element of each row joins where the elements are constants or values of an open region.
//! Of a tensor in memory it stays an operation, which writes a few elements where a region writes all.
//!
//! A value in another shape is the same value: the space is then one whose dims both shapes are products of, and where
//! rows matter to someone, they end where they did.
//!
//! Random numbers are drawn by the regions that read them, in the place of a task and by each anew, if in all of them
//! they are elements: as rows, or if kernels do not draw them, the task draws them before.
//!
//! No operation of another action of a schedule joins a region, and none that the [kernels](crate::RegionKernels) of
//! ranks do not compute.

mod again;
mod build;
mod draws;
mod join;
mod look;
mod report;
mod sums;
#[cfg(test)]
mod tests;
mod walk;

use build::{Known, rewritten};
pub use report::Fused;
use rustc_hash::FxHashMap;
use walk::Walk;

use super::lower::Lowered;
use super::{Context, Report, State};
use crate::account::unmarked_peak_bytes;
use crate::error::PlanError;
use crate::ir::{Op, RegionTask, Task};
use crate::options::RegionKernels;
use crate::policy::Regions;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let joins = match context.options.regions {
        Regions::On => true,
        Regions::Off => false,
        Regions::Flex => return Ok(Report::default()),
    };
    let kernels = context.options.region_kernels;
    let mut known = Known::default();
    let mut first = None;
    for (_, lowered) in &mut state.ranks {
        let is_measured = context.options.is_explained && joins && first.is_none();
        let peak_bytes =
            |lowered: &Lowered<O>| is_measured.then(|| unmarked_peak_bytes(&lowered.plan));
        let peak_bytes_apart = peak_bytes(lowered);
        let made = group(lowered, joins, kernels, &mut known);
        first.get_or_insert_with(|| Fused {
            peak_bytes_apart: peak_bytes_apart.unwrap_or_default(),
            peak_bytes: peak_bytes(lowered).unwrap_or_default(),
            ..made
        });
    }
    let fused = first.map(|first| Fused {
        different: known.len() as u64,
        ..first
    });
    Ok(Report {
        fused,
        ..Report::default()
    })
}

/// Returns an operation as the region that it is by itself, with slots that are its own; `None` if it is none.
pub fn region_of<O: Op>(op: &O) -> Option<RegionTask> {
    let kernels = RegionKernels::ALL;
    let mut tasks = vec![Task::Op(op.clone(), 0)];
    // What nothing reads is not made.
    tasks.extend((0..).zip(op.outputs()).map(|(read, out)| Task::Read {
        slot: out.id,
        read,
        shape: out.shape.to_vec(),
        dtype: out.dtype,
        take: false,
    }));
    let found = Walk::new(&tasks, &FxHashMap::default(), false, kernels).run();
    let visits = vec![0; tasks.len()];
    let made = rewritten(&found, tasks, &visits, &mut Known::default());
    made.tasks.into_iter().find_map(|task| match task {
        Task::Region(task) => Some(*task),
        _ => None,
    })
}

/// Groups the operations of a rank.
fn group<O: Op>(
    lowered: &mut Lowered<O>,
    joins: bool,
    kernels: RegionKernels,
    known: &mut Known,
) -> Fused {
    let tasks = std::mem::take(&mut lowered.plan.tasks);
    let found = Walk::new(&tasks, &lowered.actions, joins, kernels).run();
    let made = rewritten(&found, tasks, &lowered.visits, known);
    (lowered.plan.tasks, lowered.plan.draws) = (made.tasks, made.draws);
    lowered.visits = made.visits;
    made.fused
}
