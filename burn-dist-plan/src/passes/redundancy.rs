//! Work that ranks do more than once: what of the flops of a window several ranks along a mesh axis spend on the same
//! result.
//!
//! An operation uses an axis if its work is split over it, or if ranks along it work on different terms. Along an axis
//! of size n that it does not use, all n ranks compute the same: (n - 1) / n of the work is done more than once.
//!
//! Left out is the update of parameters by the optimizer: elementwise operations that lead to a parameter, and sums
//! that are factors of it. The products that make gradients are none of it.
//!
//! The products alone are counted twice: what the model asks for, each once (model flops), and what all ranks execute,
//! what they repeat and what is made again for the backward included (hardware flops).

mod report;

use super::{Context, Report, State};
use crate::error::PlanError;
use crate::facts::Facts;
use crate::ir::flops::flops;
use crate::ir::{LocalStep, Op, Program, ProgramStep, Tensor, collective, is_product};
use crate::mesh::{AxisIndex, MeshShape};
use crate::rule::OpRule;

pub use report::{AxisRedundancy, FewRows, Redundancy};

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let found = redundancy(state.program(), &state.facts, context.mesh, |_| 1.0);
    Ok(Report {
        redundancy: Some(found),
        ..Report::default()
    })
}

/// Sets of axes, as bits.
type Axes = u64;

fn bits(axes: impl IntoIterator<Item = AxisIndex>) -> Axes {
    axes.into_iter().fold(0, |bits, axis| bits | (1 << axis.0))
}

/// Returns the axes over which the ranks that run a step share the work: over which not all of them need what each step
/// makes.
fn shared<O: Op>(program: &Program<O>) -> Vec<Axes> {
    let mut needed: Vec<Option<Axes>> = vec![None; program.slots.len()];
    let mut shared = vec![0; program.steps.len()];
    let need = |needed: &mut Vec<Option<Axes>>, slot: u32, axes: Axes| {
        if let Some(known) = needed.get_mut(slot as usize) {
            *known = Some(known.map_or(axes, |known| known & axes));
        }
    };
    for (index, step) in program.steps.iter().enumerate().rev() {
        match step {
            ProgramStep::Local(step) => {
                let made = step.op.outputs().map(|out| needed[out.id as usize]);
                let made = made.fold(None, |all, axes| match (all, axes) {
                    (Some(all), Some(axes)) => Some(all & axes),
                    (all, axes) => all.or(axes),
                });
                shared[index] = made.unwrap_or(0);
                for (position, input) in step.op.inputs().enumerate() {
                    let axes = shared[index] | bits(step.in_pieces(position));
                    need(&mut needed, input.id, axes);
                }
            }
            ProgramStep::Move(step) => {
                let axes = match collective(&step.step.kind) {
                    Some(_) => 0,
                    None => needed[step.to as usize].unwrap_or(0),
                };
                need(&mut needed, step.from, axes);
            }
            ProgramStep::Store { slot, .. } | ProgramStep::Read { slot, .. } => {
                need(&mut needed, *slot, 0)
            }
            _ => {}
        }
    }
    shared
}

fn name<O: Op>(op: &O, step: &LocalStep<O>) -> String {
    let out = op.outputs().next();
    let shape = out.map(|out| format!(" of {:?}", out.shape));
    let path = step.path.as_ref().filter(|path| !path.is_empty());
    let path = path.map(|path| format!(" in {path}"));
    [Some(op.name().to_string()), shape, path]
        .into_iter()
        .flatten()
        .collect()
}

/// Whether an operation is part of an optimizer's update: elementwise, and on the way to a new parameter. What makes
/// the gradient that an update begins with is none of it; what makes factors of what is of the update is.
fn is_update<O: Op>(step: &LocalStep<O>, program: &Program<O>, facts: &Facts) -> bool {
    let OpRule::Factors(rule) = &*step.rule else {
        return false;
    };
    let is_of_update = |tensor: Tensor<'_>| {
        let slot = program.slots.get(tensor.id as usize);
        slot.is_some_and(|slot| facts.update_of[slot.value as usize].is_some())
    };
    step.op.outputs().any(is_of_update)
        && (rule.elementwise || (rule.keeps_dims() && step.op.inputs().any(is_of_update)))
}

/// Counts the work of a program in which each step is run so many times.
pub(super) fn redundancy<O: Op>(
    program: &Program<O>,
    facts: &Facts,
    mesh: &MeshShape,
    times: impl Fn(usize) -> f64,
) -> Redundancy {
    let splits = |axis: &AxisIndex| mesh.size(*axis) > 1 && mesh.role(*axis).splits_tensors();
    let axes: Vec<_> = mesh.axis_indices().filter(splits).collect();
    let data_axes = mesh.data_axes();
    let ranks = mesh.group_size(&data_axes);
    let rows = program.rows.max(program.few_rows);
    let mut found = Redundancy {
        axes: axes
            .iter()
            .map(|&axis| AxisRedundancy {
                axis: mesh.name(axis).to_string(),
                is_model: mesh.role(axis).splits_model(),
                is_data: data_axes.contains(&axis),
                ..AxisRedundancy::default()
            })
            .collect(),
        few_rows: (0 < rows && rows < ranks).then_some(FewRows { rows, ranks }),
        has_rows: rows > 0,
        ..Redundancy::default()
    };
    let shared = shared(program);
    // What is met a second time is made again for the backward.
    let mut is_made = vec![false; facts.phases.len()];
    for (index, (step, shared)) in program.steps.iter().zip(shared).enumerate() {
        let ProgramStep::Local(step) = step else {
            continue;
        };
        let of_all = flops(&step.op, &step.rule) * times(index);
        if of_all == 0.0 || is_update(step, program, facts) {
            continue;
        }
        let used = match &step.assignment {
            Some(split) => {
                let factors = split.factors.iter().flat_map(|factor| factor.axes());
                bits(factors.chain(split.kept.iter().map(|partial| partial.axis)))
            }
            None => 0,
        };
        let used = used | shared;
        let is_used = |axis: &AxisIndex| used & bits([*axis]) != 0;
        let unused = axes.iter().filter(|axis| !is_used(axis));
        let repeats: f64 = unused.map(|&axis| mesh.size(axis) as f64).product();
        let done = of_all * repeats;
        let is_product = is_product(&step.op);
        found.flops += done;
        let is_again = std::mem::replace(&mut is_made[step.of as usize], true);
        if is_product {
            found.hardware_flops += done;
            if !is_again {
                found.model_flops += of_all - step.op.remade_flops() * times(index);
            }
        }
        for (axis, total) in axes.iter().zip(&mut found.axes) {
            total.is_split |= is_product && is_used(axis);
            if !is_used(axis) {
                let size = mesh.size(*axis) as f64;
                let repeated = done * (size - 1.0) / size;
                total.add(repeated, is_product, || Some(name(&step.op, step)));
            }
        }
    }
    found
}
