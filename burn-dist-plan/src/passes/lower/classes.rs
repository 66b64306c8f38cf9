//! Classes of memory: which use each slot of a rank has.

use crate::facts::Facts;
use crate::ir::{Move, Op, Program, ProgramStep, RankPlan, Role, Task, Window};
use crate::layout::redistribute::StepKind;
use crate::memory::MemoryClass;

/// Tells what each slot of a rank is used for.
pub(super) fn classes<O: Op>(
    window: &Window<O>,
    program: &Program<O>,
    facts: &Facts,
    plan: &RankPlan<O>,
) -> Vec<MemoryClass> {
    let num_values = program.values.len();
    let mut kept = vec![false; num_values];
    let mut begins = vec![false; num_values];
    let mut gathered = vec![false; program.slots.len()];
    let mut gathers = |step: &Move| {
        gathered[step.to as usize] = matches!(step.step.kind, StepKind::AllGather { .. });
    };
    for step in &program.steps {
        match step {
            ProgramStep::Load { value, .. } | ProgramStep::Store { value, .. } => {
                kept[*value as usize] = true;
            }
            ProgramStep::Move(step) => gathers(step),
            ProgramStep::Chunked(step) => gathers(&step.moved),
            ProgramStep::Launch { moves, .. } => moves.iter().for_each(&mut gathers),
            _ => {}
        }
    }
    for op in &window.ops {
        if op.mark().is_some()
            && let Some(out) = op.outputs().next()
        {
            begins[out.id as usize] = true;
        }
    }
    let mut classes: Vec<MemoryClass> = Vec::with_capacity(plan.num_slots as usize);
    for (slot, info) in program.slots.iter().enumerate() {
        let value = &program.values[info.value as usize];
        let role = &facts.roles[info.value as usize];
        let (kept, begins) = (kept[info.value as usize], begins[info.value as usize]);
        classes.push(match (kept, value.tag.is_some()) {
            (_, true) if (kept || begins) && gathered[slot] => MemoryClass::Gathered,
            (_, true) if kept || begins => MemoryClass::AtRest,
            (true, _) => match role {
                Role::State(_) => MemoryClass::Optimizer,
                Role::Gradient(_) => MemoryClass::Gradient,
                _ => MemoryClass::Other,
            },
            (false, false) if matches!(role, Role::State(_)) => MemoryClass::Optimizer,
            (false, _) if facts.updating[info.value as usize] => MemoryClass::Gradient,
            (false, _) => MemoryClass::Activation,
        });
    }
    classes.resize(plan.num_slots as usize, MemoryClass::Activation);
    for task in &plan.tasks {
        match task {
            Task::Upload(task) => classes[task.slot as usize] = MemoryClass::Other,
            // A look at a parameter is that parameter.
            Task::Op(op, _) if op.traits().is_view => {
                if let (Some(from), Some(to)) = (op.inputs().next(), op.outputs().next())
                    && classes[to.id as usize] == MemoryClass::Activation
                {
                    classes[to.id as usize] = classes[from.id as usize];
                }
            }
            _ => {}
        }
    }
    classes
}
