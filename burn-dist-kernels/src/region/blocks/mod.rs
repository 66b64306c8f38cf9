//! Steps of f32 that run together, block by block: each value of a block is read again while it is in the first cache,
//! and the processor computes quotients of one block beside the sums of the next.
//!
//! Two functions, of which only the second reads the first, are one loop. Both are rounded, so that nothing changes but
//! the memory in between.

mod loops;
mod maker;
mod run;

use burn_dist_plan::region::{Binary, Fold, Unary};

use super::halves::Half;
use super::kind::{Kind, Lane};
use super::program::{Extent, Phase, ResultOf, Step, Value, What};

pub(super) use run::Scratch;

/// Elements of a block.
pub(super) const BLOCK: usize = 128;

/// Elements of a row that is worth to be gone through in blocks.
pub(super) const ROW_MIN: usize = 64;

/// Steps of a phase that run together.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub instructions: Vec<Instruction>,
    /// Blocks for values that nothing else reads.
    pub registers: usize,
    /// Values of rows, and of all elements, that instructions read.
    pub same: Vec<usize>,
    /// Folds: their values, and how they fold.
    pub folds: Vec<(usize, Fold)>,
    /// Values that others read: their slots are filled.
    pub dense: Vec<usize>,
    /// For each store of the phase, whether it is one of the instructions.
    pub stores: Vec<bool>,
    /// True if elements do not depend on the row that they are in.
    pub is_flat: bool,
}

/// An instruction over a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub make: Make,
    pub reads: [Place; 3],
    pub to: Target,
    /// The instruction that has this one's value leave, if nothing else reads it.
    pub leave: Option<usize>,
}

/// What an instruction makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    Copy,
    Unary(Unary),
    Binary(Binary),
    /// The second function of the first and a third value, which may be on the left.
    Pair {
        first: Binary,
        second: Binary,
        is_left: bool,
    },
    /// The exponential of the difference of two values.
    ExpOfDifference,
    Round(Half),
    Fold(Fold),
    /// The sum of the products of two values.
    Products,
    /// Each element folded into the one that is there.
    Each(Fold),
    /// Products of two values, added to what is there.
    EachProduct,
    /// A copy past the cache.
    Stream,
}

/// Where an instruction reads a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Nothing,
    Register(usize),
    /// The elements of a value, in memory or in its slot.
    Dense(usize),
    /// The same value for all of a row, by its index.
    Same(usize),
}

/// Where it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Register(usize),
    /// The slot of a value.
    Dense(usize),
    /// The lanes of a fold, by its index.
    Lanes(usize),
    /// A store of the phase.
    Store(usize),
}

/// Consecutive steps of a phase.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub steps: std::ops::Range<usize>,
    /// How they run together, if they can.
    pub code: Option<Code>,
}

fn is_f32(kind: Kind) -> bool {
    kind.lane == Lane::F32
}

/// Returns what a step makes in blocks, if it can.
fn make(step: &Step, values: &[Value]) -> Option<Make> {
    let of_f32 = |value: usize| is_f32(values[value].kind);
    if !of_f32(step.result) || !step.reads().iter().all(|read| of_f32(*read)) {
        return None;
    }
    let folds = matches!(step.what, What::Fold(_));
    if !folds && values[step.result].extent != Extent::Element {
        return None;
    }
    match step.what {
        What::Spread => Some(Make::Copy),
        // Another type that is computed in f32: what it rounds to comes after.
        What::Cast => Some(Make::Copy),
        What::Unary(op) => loops::has_unary(op).then_some(Make::Unary(op)),
        What::Binary(op) => loops::has_binary(op).then_some(Make::Binary(op)),
        What::Fold(fold) => Some(Make::Fold(fold)),
        _ => None,
    }
}

/// Returns the steps of a phase in groups: as many that run together as there are one after the other.
pub(super) fn groups(
    phase: &mut Phase,
    operands: usize,
    values: &[Value],
    results: &[ResultOf],
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, step) in phase.elements.iter().enumerate() {
        let can = make(step, values).is_some();
        match groups.last_mut() {
            Some(group) if group.code.is_some() == can => group.steps.end = index + 1,
            _ => groups.push(Group {
                steps: index..index + 1,
                code: can.then(Code::empty),
            }),
        }
    }
    // What runs together leaves together, or is stored after.
    for group in groups.iter().filter(|group| group.code.is_some()) {
        for step in &mut phase.elements[group.steps.clone()] {
            if step.output.take().is_some() {
                let stores = phase.stores.iter_mut();
                let own = stores.filter(|store| store.value == step.result);
                own.for_each(|store| store.by_step = false);
            }
        }
    }
    let phase = &*phase;
    let num = groups.len();
    for (index, group) in groups.iter_mut().enumerate() {
        if group.code.is_some() {
            let is_last = index + 1 == num;
            let steps = &phase.elements[group.steps.clone()];
            group.code = Some(maker::code(
                phase, operands, values, results, is_last, steps,
            ));
        }
    }
    groups
}

impl Code {
    fn empty() -> Self {
        Self {
            instructions: Vec::new(),
            registers: 0,
            same: Vec::new(),
            folds: Vec::new(),
            dense: Vec::new(),
            stores: Vec::new(),
            is_flat: true,
        }
    }
}
