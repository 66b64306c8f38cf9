//! Parts of a step: which stage, action and microbatch each operation belongs to.

use crate::facts::Facts;
use crate::facts::stages::Stages;
use crate::ir::{Op, Phase, Window};
use crate::pipeline::Kind;

/// Which part of a step an operation is, or the end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its stage; `None` of what every stage makes that needs it.
    pub stage: Option<u32>,
    /// What it does in an action of a schedule; `None` of what belongs to no microbatch.
    pub kind: Option<Kind>,
    pub microbatch: u32,
    /// The first microbatch that has a use for it: what a backward makes of forward values alone counts as work on the
    /// microbatch after it. `None` of what belongs to none.
    pub used_in: Option<u32>,
}

/// Returns the part that each operation of a window is, and the end.
pub(crate) fn parts<O: Op>(
    window: &Window<O>,
    facts: &Facts,
    stages: Option<&Stages>,
) -> Vec<Part> {
    let part = |(index, op): (usize, &O)| Part {
        stage: stages.and_then(|stages| stages.of_op[index]),
        kind: match facts.phases[index] {
            Phase::Forward => Some(Kind::Forward),
            Phase::Backward if facts.after_backward[index] => None,
            Phase::Backward => {
                let mut outputs = op.outputs();
                Some(match outputs.all(|out| facts.updating[out.id as usize]) {
                    true => Kind::Weight,
                    false => Kind::Backward,
                })
            }
            Phase::Update => None,
        },
        microbatch: facts.microbatches[index],
        used_in: None,
    };
    // Beyond the last operation, what lives on is brought to where it rests.
    let end = Part {
        stage: None,
        kind: None,
        microbatch: 0,
        used_in: None,
    };
    let ops = window.ops.iter().enumerate().map(part);
    let mut parts: Vec<Part> = ops.chain([end]).collect();
    // By value.
    let mut first_use = vec![u32::MAX; window.dies.len()];
    for (op, part) in window.ops.iter().zip(&mut parts).rev() {
        if part.kind.is_none() {
            continue;
        }
        let uses = op.outputs().map(|out| first_use[out.id as usize]);
        let used_in = uses.chain([part.microbatch]).min().unwrap_or_default();
        part.used_in = Some(used_in);
        for input in op.inputs() {
            let first = &mut first_use[input.id as usize];
            *first = used_in.min(*first);
        }
    }
    parts
}

/// Returns whether some of `parts` go backward.
pub(crate) fn has_backward(parts: &[Part]) -> bool {
    parts.iter().any(Part::is_backward)
}

/// Returns the number of microbatches.
pub(crate) fn count(parts: &[Part]) -> u32 {
    let has_backward = has_backward(parts);
    let of_losses = parts
        .iter()
        .filter(|part| !has_backward || part.is_backward());
    of_losses.map(|part| part.microbatch + 1).max().unwrap_or(1)
}

impl Part {
    fn is_backward(&self) -> bool {
        matches!(self.kind, Some(Kind::Backward | Kind::Weight))
    }
}
