//! The data flow of a program: who makes and who reads its slots, and what they weigh.

use crate::facts::Facts;
use crate::ir::{Op, Program, ProgramStep, Slot, ValueIndex, Work};
use crate::layout::redistribute::StepKind;
use crate::mesh::MeshShape;

/// Position of a step in its program.
pub(crate) type StepIndex = usize;

/// The slots that a step reads and makes; a shape-only operand is neither.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    pub reads: Vec<Slot>,
    pub writes: Vec<Slot>,
}

pub(crate) fn ends<O: Op>(step: &ProgramStep<O>) -> Ends {
    Ends {
        reads: step.reads(),
        writes: step.writes(),
    }
}

/// The owner of a slot that is made of parameters alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A parameter, a copy or a view of it, or a function of it (and of what several have in common).
    One(ValueIndex),
    /// All that several parameters have in common, such as the scales of their casts.
    Several,
}

/// The data flow of a program.
pub(crate) struct Flow {
    /// Per step.
    pub ends: Vec<Ends>,
    /// The step that makes each slot.
    pub maker: Vec<StepIndex>,
    /// The steps that read each slot, ascending.
    pub uses: Vec<Vec<StepIndex>>,
    /// The slot whose memory each slot looks at.
    pub root: Vec<Slot>,
    /// Bytes of each slot on the rank with the most.
    pub bytes: Vec<u64>,
    /// True if the value of each slot lasts: see [`Facts::lasting`].
    pub lasting: Vec<bool>,
    /// True if the backward makes the value of each slot: see [`Facts::backward`].
    pub backward: Vec<bool>,
    /// True if each slot holds a parameter.
    pub param: Vec<bool>,
    /// Whose each slot is that is made of parameters alone.
    pub owner: Vec<Option<Owner>>,
}

impl Flow {
    pub(crate) fn new<O: Op>(program: &Program<O>, facts: &Facts, mesh: &MeshShape) -> Self {
        let num_slots = program.slots.len();
        let mut flow = Self {
            ends: program.steps.iter().map(ends).collect(),
            maker: vec![0; num_slots],
            uses: vec![Vec::new(); num_slots],
            root: (0..num_slots as Slot).collect(),
            bytes: Vec::with_capacity(num_slots),
            lasting: Vec::with_capacity(num_slots),
            backward: Vec::with_capacity(num_slots),
            param: Vec::with_capacity(num_slots),
            owner: Vec::with_capacity(num_slots),
        };
        for info in &program.slots {
            flow.bytes
                .push((info.layout.local_numel_max(mesh) * info.dtype.size()) as u64);
            let param = program.values[info.value as usize].tag.is_some();
            flow.lasting.push(facts.lasting[info.value as usize]);
            flow.backward.push(facts.backward[info.value as usize]);
            flow.param.push(param);
            flow.owner.push(param.then_some(Owner::One(info.value)));
        }
        for (index, step) in program.steps.iter().enumerate() {
            let ends = &flow.ends[index];
            for &slot in &ends.writes {
                flow.maker[slot as usize] = index;
            }
            for &slot in &ends.reads {
                let uses = &mut flow.uses[slot as usize];
                if uses.last() != Some(&index) {
                    uses.push(index);
                }
            }
            let owner = owner(ends.reads.iter().map(|slot| flow.owner[*slot as usize]));
            for &slot in &ends.writes {
                let known = &mut flow.owner[slot as usize];
                *known = known.or(owner);
            }
            if let (true, Some(&read), [write]) =
                (looks(step), ends.reads.first(), ends.writes.as_slice())
            {
                flow.root[*write as usize] = flow.root[read as usize];
            }
        }
        flow
    }

    /// Returns whether a step gathers or splits a parameter as it is.
    pub(crate) fn moves_param<O: Op>(&self, step: StepIndex, program: &Program<O>) -> bool {
        matches!(&program.steps[step], ProgramStep::Move(step) if self.param[step.from as usize])
    }
}

/// Whose is what a step makes that reads what belongs to these: nobody's if it reads anything else, or nothing.
fn owner(reads: impl Iterator<Item = Option<Owner>>) -> Option<Owner> {
    let reads: Vec<Owner> = reads.collect::<Option<_>>()?;
    let mut ones = reads.iter().filter(|read| **read != Owner::Several);
    match ones.next() {
        Some(one) if ones.all(|other| other == one) => Some(*one),
        None if reads.is_empty() => None,
        _ => Some(Owner::Several),
    }
}

/// Returns whether what a step makes is another look at the memory of what it reads.
fn looks<O: Op>(step: &ProgramStep<O>) -> bool {
    match step {
        ProgramStep::Local(step) => step.op.traits().is_view,
        ProgramStep::Move(step) => {
            matches!(step.step.kind, StepKind::Refactor | StepKind::Slice { .. })
        }
        _ => false,
    }
}

/// Returns whether a step runs a collective.
pub(crate) fn is_collective<O: Op>(step: &ProgramStep<O>) -> bool {
    matches!(step, ProgramStep::Move(step) if step.step.kind.collective().is_some())
}

/// Returns whether a step reduces terms of several ranks.
pub(crate) fn reduces<O: Op>(step: &ProgramStep<O>) -> bool {
    matches!(step, ProgramStep::Move(step) if step.step.kind.reduce_op().is_some())
}

/// Work of moving one element between ranks, in floating-point operations that the time would have been enough for.
const MOVE_FLOPS: f64 = 100.0;

/// Returns the work of a step on one rank, in floating-point operations. Only for comparing: memory traffic of an
/// element counts as one.
pub(crate) fn work<O: Op>(
    step: &ProgramStep<O>,
    ends: &Ends,
    program: &Program<O>,
    mesh: &MeshShape,
) -> f64 {
    let numel = |slot: Slot| program.slots[slot as usize].layout.local_numel_max(mesh) as f64;
    let widest = |slots: &[Slot]| slots.iter().map(|slot| numel(*slot)).fold(0.0, f64::max);
    let through = widest(&ends.reads).max(widest(&ends.writes));
    match step {
        _ if is_collective(step) => MOVE_FLOPS * through,
        _ if looks(step) => 0.0,
        ProgramStep::Local(local) => {
            let out = widest(&ends.writes);
            let flops = match local.op.traits().work {
                Work::Other => return through,
                Work::Layer | Work::Product => local.op.product_flops().unwrap_or(0.0),
            };
            // Terms per element of the result: the size of what is contracted.
            let global: usize = local.op.outputs().map(|out| out.numel()).sum();
            let terms = flops / (2.0 * global.max(1) as f64);
            let split: usize = local.outputs.first().map_or(1, |out| {
                out.partial.iter().map(|p| mesh.size(p.axis)).product()
            });
            2.0 * out * terms.max(1.0) / split as f64
        }
        _ => through,
    }
}
