//! What is planned, as text: the window, the program common to all ranks, or the tasks of one rank.
//!
//! `%3` is a value of the window, `s3` a slot of the program or of a rank; `s3!` is its last use.

use std::fmt::{self, Write};

use crate::ir::levels::{Level, levels};
use crate::ir::region::{Extent, Instruction, Keep};
use crate::ir::{
    CollectiveTask, InputState, LocalStep, Mark, Move, OnNodes, Op, Program, ProgramStep,
    RandomTask, RegionTask, Role, Slot, Task, Tensor, Transfer, ValueIndex, collective,
};
use crate::layout::redistribute::StepKind;
use crate::mesh::MeshShape;
use crate::passes::State;
use crate::passes::lower::Lowered;

/// Returns what the passes have made last.
pub(crate) fn text<O: Op>(state: &State<'_, O>, mesh: &MeshShape) -> String {
    let mut out = String::new();
    let written = if !state.ranks.is_empty() {
        tasks(state, &mut out)
    } else if !state.programs.is_empty() {
        state
            .programs
            .iter()
            .try_for_each(|of| program(state, mesh, of, &mut out))
    } else {
        window(state, mesh, &mut out)
    };
    written.expect("a text takes whatever is written");
    out
}

fn tensor(tensor: &Tensor<'_>) -> String {
    format!("{} {:?}", tensor.dtype, tensor.shape)
}

fn role(role: &Role) -> String {
    match role.belongs_to() {
        Some(spec) => format!("{} {}", role.name(), spec.path),
        None => role.name().to_string(),
    }
}

fn window<O: Op>(state: &State<'_, O>, mesh: &MeshShape, out: &mut String) -> fmt::Result {
    let (window, facts) = (&state.window, &state.facts);
    for input in &window.inputs {
        let value = input.value;
        let at = match &input.state {
            InputState::Placed { layout, .. } => layout.display(mesh).to_string(),
            InputState::Host { .. } => "host".to_string(),
        };
        let what = role(&facts.roles[value as usize]);
        let (dtype, shape) = (input.dtype, &input.shape);
        writeln!(out, "%{value} = {dtype} {shape:?} {at}  # {what}")?;
    }
    for (op, phase) in window.ops.iter().zip(&facts.phases) {
        let values = |tensors: Vec<Tensor<'_>>| list(tensors.iter().map(|t| t.id), '%');
        let (inputs, outputs) = (op.inputs().collect(), op.outputs().collect::<Vec<_>>());
        let what = outputs.iter().map(|t| role(&facts.roles[t.id as usize]));
        let what = what.collect::<Vec<_>>().join(", ");
        let shapes = outputs.iter().map(tensor).collect::<Vec<_>>().join(", ");
        let name = match op.mark() {
            Some(Mark::Param(spec)) => format!("param {}", spec.path),
            Some(Mark::Redistribute(layout)) => {
                format!("redistribute to {}", layout.display(mesh))
            }
            None => op.name().to_string(),
        };
        let phase = format!("{phase:?}").to_lowercase();
        let (made, read) = (values(outputs), values(inputs));
        writeln!(out, "{made} = {name}({read})  {shapes}  # {phase}: {what}")?;
    }
    let kept = (0..window.dies.len() as ValueIndex).filter(|v| !window.dies[*v as usize]);
    writeln!(out, "keeps {}", list(kept, '%'))?;
    writeln!(out, "reads {}", list(window.reads.iter().copied(), '%'))
}

fn list(numbers: impl IntoIterator<Item = u32>, sign: char) -> String {
    let texts = numbers.into_iter().map(|number| match number {
        Slot::MAX => "shape".to_string(),
        number => format!("{sign}{number}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn is_last_stage(step: &Move, index: u8) -> bool {
    let stages = collective(&step.step.kind).map_or(0, |(kind, _)| levels(kind).len());
    usize::from(index) + 1 == stages
}

fn program<O: Op>(
    state: &State<'_, O>,
    mesh: &MeshShape,
    program: &Program<O>,
    out: &mut String,
) -> fmt::Result {
    if let (Some(axis), 2..) = (mesh.pipeline_axis(), state.programs.len()) {
        writeln!(out, "{} {}:", mesh.name(axis), program.coord)?;
    }
    let layout = |slot: Slot| {
        let slot = &program.slots[slot as usize];
        format!("{} {}", slot.dtype, slot.layout.display(mesh))
    };
    let moved = |step: &Move| {
        let name = match collective(&step.step.kind) {
            Some((kind, axes)) => {
                let axes: Vec<&str> = axes.iter().map(|axis| mesh.name(*axis)).collect();
                let (name, axes) = (kind.name(), axes.join(","));
                match step.on_nodes {
                    OnNodes::Stage { index, .. } => {
                        let stages = levels(kind);
                        let (number, of) = (index + 1, stages.len());
                        let Level { kind, between } = &stages[usize::from(index)];
                        let place = if *between { "between" } else { "inside" };
                        let stage = kind.name();
                        format!("{stage} {place} nodes, {number} of {of} for {name} over {axes}")
                    }
                    OnNodes::OneLevel | OnNodes::Flat(_) => format!("{name} over {axes}"),
                }
            }
            None => match step.step.kind {
                StepKind::Slice { .. } => "slice".to_string(),
                StepKind::ToPartial { .. } => "to_partial".to_string(),
                _ => "refactor".to_string(),
            },
        };
        let path = step.path.as_deref().filter(|path| !path.is_empty());
        let path = path.map_or(String::new(), |path| format!(", {path}"));
        let (to, from) = (step.to, step.from);
        let reason = &step.reason;
        let made = match step.on_nodes {
            // What lies between two stages has no layout: a rank holds pieces for its place on all nodes.
            OnNodes::Stage { index, .. } if !is_last_stage(step, index) => {
                program.slots[to as usize].dtype.to_string()
            }
            _ => layout(to),
        };
        format!("s{to} = {name}(s{from})  {made}  # {reason}{path}")
    };
    let local = |step: &LocalStep<O>| {
        let inputs = list(step.op.inputs().map(|t| t.id), 's');
        let outputs: Vec<Slot> = step.op.outputs().map(|t| t.id).collect();
        let layouts: Vec<String> = outputs.iter().map(|slot| layout(*slot)).collect();
        let (made, name) = (list(outputs, 's'), step.op.name());
        let path = step.path.as_deref().filter(|path| !path.is_empty());
        let path = path.map_or(String::new(), |path| format!("  # {path}"));
        format!("{made} = {name}({inputs})  {}{path}", layouts.join(", "))
    };
    for step in &program.steps {
        match step {
            ProgramStep::Load { value, slot } => {
                writeln!(out, "s{slot} = load %{value}  {}", layout(*slot))?;
            }
            ProgramStep::Upload { value, slot } => {
                writeln!(out, "s{slot} = upload %{value}  {}", layout(*slot))?;
            }
            ProgramStep::Random { stream, slot, .. } => {
                writeln!(out, "s{slot} = random stream {stream}  {}", layout(*slot))?;
            }
            ProgramStep::Local(step) => writeln!(out, "{}", local(step))?,
            ProgramStep::Move(step) => writeln!(out, "{}", moved(step))?,
            ProgramStep::Chunked(step) => {
                let parts = mesh.size(step.axis);
                writeln!(out, "in {parts} chunks along {}", mesh.name(step.axis))?;
                let mut lines: Vec<String> = step.steps.iter().map(local).collect();
                let at = if step.gathers() { 0 } else { lines.len() };
                lines.insert(at, moved(&step.moved));
                for line in lines {
                    writeln!(out, "  {line}")?;
                }
            }
            ProgramStep::Launch { group, moves } => {
                writeln!(out, "launch {group}")?;
                for step in moves {
                    writeln!(out, "  {}", moved(step))?;
                }
            }
            ProgramStep::Finish { group, to } => {
                writeln!(out, "finish {group}: {}", list(to.iter().copied(), 's'))?;
            }
            ProgramStep::Store { slot, value } => writeln!(out, "store s{slot} as %{value}")?,
            ProgramStep::Read { slot, read } => writeln!(out, "read {read}: s{slot}")?,
            ProgramStep::Send(Transfer { slot, to, .. }) => writeln!(out, "send s{slot} to {to}")?,
            ProgramStep::Receive(Transfer { slot, from, .. }) => {
                writeln!(out, "s{slot} = recv from {from}  {}", layout(*slot))?;
            }
        }
    }
    Ok(())
}

/// A region, with its formula below it: a line for each instruction, operands first.
fn region<O>(task: &RegionTask, draws: &[RandomTask<O>], out: &mut String) -> fmt::Result {
    let RegionTask {
        region, operations, ..
    } = task;
    let inputs = task.inputs.iter().map(|input| {
        let last = if input.take { "!" } else { "" };
        format!("s{}{last}", input.slot)
    });
    let inputs = inputs.collect::<Vec<_>>().join(", ");
    let shapes: Vec<String> = task
        .outputs
        .iter()
        .map(|to| format!("{:?}", to.shape))
        .collect();
    let (made, shapes) = (
        list(task.outputs.iter().map(|to| to.id), 's'),
        shapes.join(", "),
    );
    let count = match operations {
        1 => "1 operation".to_string(),
        count => format!("{count} operations"),
    };
    writeln!(
        out,
        "{made} = region({inputs})  {shapes}  # {count} over {:?}",
        region.space
    )?;
    let operands = region.spans.len();
    for (index, instruction) in region.formula.instructions.iter().enumerate() {
        let (value, dtype) = (operands + index, instruction.dtype);
        write!(out, "  v{value} = {}  {dtype}", instruction.instruction)?;
        match instruction.instruction {
            Instruction::Draw(draw) => {
                let stream = draws[task.draws[draw as usize] as usize].stream;
                writeln!(out, "  # random stream {stream}")?;
            }
            _ => writeln!(out)?,
        }
    }
    let results = region.formula.results.iter().zip(&region.keeps);
    let results = results.map(|(value, keep)| match keep {
        Keep::Each(Extent::Elements) => format!("v{value}"),
        Keep::Each(Extent::Rows) => format!("v{value} of rows"),
        Keep::OverRows(fold) => format!("{fold:?}(v{value}) over rows").to_lowercase(),
        Keep::OverAll(fold, Extent::Elements) => {
            format!("{fold:?}(v{value}) over all").to_lowercase()
        }
        Keep::OverAll(fold, Extent::Rows) => {
            format!("{fold:?}(v{value}) over all rows").to_lowercase()
        }
    });
    writeln!(out, "  keeps {}", results.collect::<Vec<_>>().join(", "))
}

fn tasks<O: Op>(state: &State<'_, O>, out: &mut String) -> fmt::Result {
    let Some((_, Lowered { plan, .. })) = state.ranks.first() else {
        return Ok(());
    };
    let last = |taken: bool| if taken { "!" } else { "" };
    let collective = |task: &CollectiveTask| {
        let (to, from, taken) = (task.to, task.from, last(task.take));
        let ranks: Vec<String> = task.group.iter().map(|rank| rank.0.to_string()).collect();
        let (name, ranks) = (task.kind().name(), ranks.join(","));
        let (before, after) = (&task.from_shape, &task.to_shape);
        format!("s{to} = {name}(s{from}{taken}) of ranks {ranks}  {before:?} to {after:?}")
    };
    for task in &plan.tasks {
        match task {
            Task::Load {
                value,
                slot,
                take,
                shape,
                host,
                ..
            } => {
                let host = if *host { " on the host" } else { "" };
                writeln!(
                    out,
                    "s{slot} = load %{value}{}{host}  {shape:?}",
                    last(*take)
                )?;
            }
            Task::Upload(task) => {
                let (slot, value, shape) = (task.slot, task.value, &task.shape);
                writeln!(out, "s{slot} = upload %{value}  {shape:?}")?;
            }
            Task::Random(task) => {
                let (slot, stream, shape) = (task.slot, task.stream, &task.shape);
                writeln!(out, "s{slot} = random stream {stream}  {shape:?}")?;
            }
            Task::Op(op, _) => {
                let inputs = op
                    .inputs()
                    .map(|t| format!("s{}{}", t.id, last(t.last_use)));
                let inputs = inputs.collect::<Vec<_>>().join(", ");
                let shapes: Vec<String> = op.outputs().map(|t| format!("{:?}", t.shape)).collect();
                let made = list(op.outputs().map(|t| t.id), 's');
                writeln!(
                    out,
                    "{made} = {}({inputs})  {}",
                    op.name(),
                    shapes.join(", ")
                )?;
            }
            Task::Region(task) => region(task, &plan.draws, out)?,
            Task::Collective(task) => writeln!(out, "{}", collective(task))?,
            Task::Launch { group, tasks } => {
                writeln!(out, "launch {group}")?;
                for task in tasks {
                    writeln!(out, "  {}", collective(task))?;
                }
            }
            Task::Finish { group, to } => {
                writeln!(out, "finish {group}: {}", list(to.iter().copied(), 's'))?;
            }
            Task::Store {
                slot,
                value,
                take,
                host,
                ..
            } => {
                let host = if *host { " on the host" } else { "" };
                writeln!(out, "store s{slot}{} as %{value}{host}", last(*take))?;
            }
            Task::Read {
                slot, read, take, ..
            } => writeln!(out, "read {read}: s{slot}{}", last(*take))?,
            Task::ToHost(task) => writeln!(out, "s{} to the host", task.slot)?,
            Task::FromHost(task) => writeln!(out, "s{} from the host", task.slot)?,
            Task::Free(slot) => writeln!(out, "free s{slot}")?,
            Task::Send(task) => {
                let (slot, peer, shape) = (task.slot, task.peer, &task.shape);
                writeln!(
                    out,
                    "send s{slot}{} to rank {peer}  {shape:?}",
                    last(task.take)
                )?;
            }
            Task::Receive(task) => {
                let (slot, peer, shape) = (task.slot, task.peer, &task.shape);
                writeln!(out, "s{slot} = recv from rank {peer}  {shape:?}")?;
            }
        }
    }
    Ok(())
}
