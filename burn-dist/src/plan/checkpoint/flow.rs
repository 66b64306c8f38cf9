//! Who makes and who reads the slots of a program, and what they weigh.

use burn_ir::{OperationIr, TensorIr};

use crate::layout::redistribute::StepKind;
use crate::mesh::MeshShape;
use crate::plan::memory::is_view;
use crate::plan::propagate::{Common, Program};
use crate::plan::task::Slot;
use crate::plan::window::ValueIndex;
use crate::record::visit::{OpReader, kind_name, visit_ref};
use crate::rules::OpRule;

/// Position of a step in its program.
pub(super) type StepIndex = usize;

/// What a step reads and makes; a shape-only operand is neither.
#[derive(Clone, Debug, Default)]
pub(in crate::plan) struct Ends {
    pub reads: Vec<Slot>,
    pub writes: Vec<Slot>,
}

impl OpReader for Ends {
    fn input(&mut self, t: &TensorIr) {
        let slot = t.id.value() as Slot;
        if slot != Slot::MAX {
            self.reads.push(slot);
        }
    }

    fn output(&mut self, t: &TensorIr) {
        self.writes.push(t.id.value() as Slot);
    }
}

pub(in crate::plan) fn ends(step: &Common) -> Ends {
    let mut ends = Ends::default();
    match step {
        Common::Load { slot, .. } | Common::Upload { slot, .. } | Common::Random { slot, .. } => {
            ends.writes.push(*slot);
        }
        Common::Local(step) => visit_ref(&step.op, &mut ends),
        Common::Move(step) => {
            ends.reads.push(step.from);
            ends.writes.push(step.to);
        }
        Common::Store { slot, .. } | Common::Read { slot, .. } => ends.reads.push(*slot),
        Common::Launch { .. } | Common::Relay { .. } | Common::Finish { .. } => {
            unreachable!("what is made again is known before collectives are scheduled")
        }
    }
    ends
}

/// The data flow of a program.
pub(in crate::plan) struct Flow {
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
    /// Whether each slot flows, through elementwise steps alone, into what outlives the window: gradients, updates,
    /// what is read.
    pub lasting: Vec<bool>,
    /// Whether each slot holds a parameter.
    pub param: Vec<bool>,
    /// The parameter of which each slot is a copy, a view, or a function of it alone.
    pub owner: Vec<Option<ValueIndex>>,
}

impl Flow {
    pub fn new(program: &Program, mesh: &MeshShape) -> Self {
        let num_slots = program.slots.len();
        let mut flow = Self {
            ends: program.steps.iter().map(ends).collect(),
            maker: vec![0; num_slots],
            uses: vec![Vec::new(); num_slots],
            root: (0..num_slots as Slot).collect(),
            bytes: Vec::with_capacity(num_slots),
            lasting: vec![false; num_slots],
            param: Vec::with_capacity(num_slots),
            owner: Vec::with_capacity(num_slots),
        };
        for info in &program.slots {
            flow.bytes
                .push((info.layout.local_numel_max(mesh) * info.dtype.size()) as u64);
            let param = program.values[info.value as usize].tag.is_some();
            flow.param.push(param);
            flow.owner.push(param.then_some(info.value));
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
            if let Some(&first) = ends.reads.first()
                && ends
                    .reads
                    .iter()
                    .all(|slot| flow.owner[*slot as usize].is_some())
            {
                for &slot in &ends.writes {
                    let owner = flow.owner[first as usize];
                    let known = &mut flow.owner[slot as usize];
                    *known = known.or(owner);
                }
            }
            if let (true, Some(&read), [write]) =
                (looks(step), ends.reads.first(), ends.writes.as_slice())
            {
                flow.root[*write as usize] = flow.root[read as usize];
            }
        }
        flow.mark_lasting(program);
        flow
    }

    fn mark_lasting(&mut self, program: &Program) {
        let numel = |slot: Slot| -> usize {
            let shape = program.slots[slot as usize].layout.shape();
            shape.iter().product()
        };
        for (step, ends) in program.steps.iter().zip(&self.ends).rev() {
            let passes = match step {
                Common::Store { .. } | Common::Read { .. } => {
                    for &slot in &ends.reads {
                        self.lasting[slot as usize] = true;
                    }
                    false
                }
                Common::Local(step) => match step.rule.as_ref() {
                    OpRule::Factors(rule) => rule.elementwise || is_view(&step.op),
                    OpRule::Reshape => true,
                    _ => false,
                },
                Common::Move(_) => true,
                _ => false,
            };
            let Some(&out) = ends
                .writes
                .iter()
                .find(|slot| self.lasting[**slot as usize])
            else {
                continue;
            };
            if passes {
                for &slot in &ends.reads {
                    if numel(slot) == numel(out) {
                        self.lasting[slot as usize] = true;
                    }
                }
            }
        }
    }

    /// Returns whether a step gathers or splits a parameter as it is.
    pub fn moves_param(&self, step: StepIndex, program: &Program) -> bool {
        matches!(&program.steps[step], Common::Move(step) if self.param[step.from as usize])
    }
}

/// Whether what a step makes is another look at the memory of what it reads.
fn looks(step: &Common) -> bool {
    match step {
        Common::Local(step) => is_view(&step.op),
        Common::Move(step) => {
            matches!(step.step.kind, StepKind::Refactor | StepKind::Slice { .. })
        }
        _ => false,
    }
}

/// Returns whether a step runs a collective.
pub(super) fn is_collective(step: &Common) -> bool {
    matches!(step, Common::Move(step) if !matches!(
        step.step.kind,
        StepKind::Slice { .. } | StepKind::ToPartial { .. } | StepKind::Refactor
    ))
}

/// Returns whether a step reduces terms of several ranks.
pub(super) fn reduces(step: &Common) -> bool {
    matches!(step, Common::Move(step) if matches!(
        step.step.kind,
        StepKind::ReduceScatter { .. } | StepKind::AllReduce { .. }
    ))
}

/// What a step does, as far as its price goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A linear layer, a convolution or attention in one operation.
    Layer,
    /// A product of two matrices.
    Product,
    /// Anything else.
    Other,
}

pub(super) fn kind(op: &OperationIr) -> Kind {
    match kind_name(op) {
        "linear" | "attention" => Kind::Layer,
        "matmul" => Kind::Product,
        name if (name.starts_with("conv") || name.starts_with("deform_conv"))
            && !name.ends_with("_backward") =>
        {
            Kind::Layer
        }
        _ => Kind::Other,
    }
}

/// Work of moving one element between ranks, in floating-point operations that the time would have been enough for.
const MOVE_FLOPS: f64 = 100.0;

/// Returns the work of a step on one rank, in floating-point operations. Only for comparing: memory traffic of an
/// element counts as one.
pub(in crate::plan) fn work(
    step: &Common,
    ends: &Ends,
    program: &Program,
    mesh: &MeshShape,
) -> f64 {
    let numel = |slot: Slot| program.slots[slot as usize].layout.local_numel_max(mesh) as f64;
    let widest = |slots: &[Slot]| slots.iter().map(|slot| numel(*slot)).fold(0.0, f64::max);
    let through = widest(&ends.reads).max(widest(&ends.writes));
    match step {
        _ if is_collective(step) => MOVE_FLOPS * through,
        _ if looks(step) => 0.0,
        Common::Local(local) => {
            let out = widest(&ends.writes);
            let shapes: Vec<Vec<usize>> = local.op.inputs().map(|t| t.shape.to_vec()).collect();
            // Terms per element of the result: the size of what is contracted.
            let terms = match (kind(&local.op), kind_name(&local.op)) {
                (Kind::Other, _) => return through,
                (_, "attention") => 2 * shapes[1].iter().rev().nth(1).copied().unwrap_or(1),
                (_, "linear" | "matmul") => shapes[0].last().copied().unwrap_or(1),
                (_, _) => {
                    let weight: usize = shapes[1].iter().product();
                    weight / shapes[1].first().copied().unwrap_or(1).max(1)
                }
            };
            let split: usize = local.outputs.first().map_or(1, |out| {
                out.partial.iter().map(|p| mesh.size(p.axis)).product()
            });
            2.0 * out * terms as f64 / split as f64
        }
        _ => through,
    }
}
