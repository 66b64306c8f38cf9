//! From what the walk has found to the tasks of the rank: regions where their last operations stood.

use std::collections::HashSet;
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::look::{Folds, size};
use super::report::Fused;
use super::walk::{Fate, Found, Making, Node, What};
use crate::ir::region::{
    Extent, Fold, Formula, Instruction, Keep, Region, Register, ScalarOf, Typed,
};
use crate::ir::{NewTensor, RandomTask, RegionInput, RegionTask, Slot, Task};

/// Regions that there are, each once.
pub(super) type Known = HashSet<Arc<Region>, FxBuildHasher>;

/// The tasks of a rank with regions.
pub(super) struct Made<O> {
    pub tasks: Vec<Task<O>>,
    /// The visit of each, as it was of the task in whose place it stands.
    pub visits: Vec<u32>,
    /// Random values that regions draw.
    pub draws: Vec<RandomTask<O>>,
    pub fused: Fused,
}

/// Writes the tasks; `visits` has one entry for each that there was.
pub(super) fn rewritten<O>(
    found: &Found,
    tasks: Vec<Task<O>>,
    visits: &[u32],
    known: &mut Known,
) -> Made<O> {
    let mut members: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for (node, region) in (0..).zip(&found.region_of) {
        members.entry(*region).or_default().push(node);
    }
    // The region that ends with a task, and those that wait for one to end.
    let mut ends: FxHashMap<usize, u32> = FxHashMap::default();
    for region in members.keys() {
        ends.insert(found.regions[*region as usize].last, *region);
    }
    let waits: FxHashMap<usize, u32> = found.moved.iter().copied().collect();
    let mut waiting: FxHashMap<u32, Vec<Task<O>>> = FxHashMap::default();
    let mut builder = Builder {
        nodes: &found.nodes,
        live: vec![false; found.nodes.len()],
        registers: vec![Register::MAX; found.nodes.len()],
        draws: FxHashMap::default(),
        known,
    };
    let mut made = Made {
        tasks: Vec::with_capacity(tasks.len()),
        visits: Vec::with_capacity(tasks.len()),
        draws: Vec::new(),
        fused: Fused::default(),
    };
    for (at, task) in tasks.into_iter().enumerate() {
        let before = made.tasks.len();
        match (found.fates[at], waits.get(&at)) {
            (Fate::Joins, _) => {
                if let Task::Random(task) = task {
                    builder.draws.insert(at, made.draws.len() as u32);
                    made.draws.push(*task);
                }
            }
            (Fate::Shows { is_read: false }, _) => made.fused.absorbed += 1,
            (Fate::Shows { .. }, Some(region)) => {
                waiting.entry(*region).or_default().push(task);
            }
            (Fate::Stays | Fate::Shows { .. }, _) => made.tasks.push(task),
        }
        if let Some(region) = ends.get(&at) {
            let making = &found.regions[*region as usize];
            if let Some(task) = builder.task(&members[region], making) {
                made.fused.regions += 1;
                made.fused.operations += u64::from(task.operations);
                made.fused.bytes_saved += making.bytes_apart.saturating_sub(task.bytes());
                made.tasks.push(Task::Region(Box::new(task)));
            }
            made.tasks
                .extend(waiting.remove(region).unwrap_or_default());
        }
        let count = made.tasks.len() - before;
        made.visits.extend(std::iter::repeat_n(visits[at], count));
    }
    made
}

struct Builder<'a> {
    nodes: &'a [Node],
    /// For each value, whether a result needs it.
    live: Vec<bool>,
    /// Its number in the formula.
    registers: Vec<Register>,
    /// Indices into [`Made::draws`], by the tasks that drew before there were regions.
    draws: FxHashMap<usize, u32>,
    known: &'a mut Known,
}

impl Builder<'_> {
    /// Returns the task of a region with these values; `None` if nothing reads its results.
    fn task(&mut self, members: &[u32], making: &Making) -> Option<RegionTask> {
        self.find_live(members);
        let space = match &making.core[..] {
            [] => vec![1],
            core => core.to_vec(),
        };
        let (mut inputs, mut spans): (Vec<RegionInput>, Vec<Vec<bool>>) = Default::default();
        let mut operands: FxHashMap<(Slot, Vec<bool>), Register> = FxHashMap::default();
        for &member in members {
            let node = &self.nodes[member as usize];
            let What::Operand(operand) = &node.what else {
                continue;
            };
            if !self.live[member as usize] {
                continue;
            }
            let mut of = operand.spans_of(&making.core);
            // One element has all dims of one.
            of.resize(space.len(), true);
            let register = operands
                .entry((operand.slot, of.clone()))
                .or_insert_with(|| {
                    inputs.push(RegionInput {
                        slot: operand.slot,
                        shape: operand.shape.clone(),
                        dtype: node.dtype,
                        take: false,
                    });
                    spans.push(of);
                    inputs.len() as Register - 1
                });
            self.registers[member as usize] = *register;
        }
        let mut formula = Formula {
            operands: inputs.iter().map(|input| input.dtype).collect(),
            ..Formula::default()
        };
        let (scalars, draws) = self.instructions(members, &mut formula);
        let (mut keeps, mut outputs) = (Vec::new(), Vec::new());
        for &member in members {
            let node = &self.nodes[member as usize];
            let Some((slot, shape)) = node.slot.as_ref().filter(|_| node.is_read) else {
                continue;
            };
            let (value, keep) = match node.what {
                What::Over(of, Folds::OverRows) => (of, Keep::OverRows(Fold::Sum)),
                What::Over(of, Folds::OverAllRows) => (of, Keep::OverAll(Fold::Sum, Extent::Rows)),
                What::Over(of, _) => (of, Keep::OverAll(Fold::Sum, Extent::Elements)),
                What::Same(of) => (of, self.each(node, making)),
                _ => (member, self.each(node, making)),
            };
            formula.results.push(self.registers[value as usize]);
            keeps.push(keep);
            outputs.push(NewTensor {
                id: *slot,
                shape: shape.clone(),
                dtype: node.dtype,
            });
        }
        if outputs.is_empty() {
            return None;
        }
        let region = Region {
            space,
            spans,
            formula,
            scalars: scalars.len() as u32,
            keeps,
        };
        let region = match self.known.get(&region) {
            Some(known) => known.clone(),
            None => {
                let region = Arc::new(region);
                self.known.insert(region.clone());
                region
            }
        };
        Some(RegionTask {
            region,
            inputs,
            outputs,
            scalars,
            draws,
            path: making.path,
            operations: making.operations,
            indexed: match making.indexed[..] {
                [slot] => Some(slot),
                _ => None,
            },
            room: 0,
        })
    }

    fn each(&self, node: &Node, making: &Making) -> Keep {
        Keep::Each(match node.size == size(&making.core) {
            true => Extent::Elements,
            false => Extent::Rows,
        })
    }

    /// Finds the values that are read outside, and those that these are made of.
    fn find_live(&mut self, members: &[u32]) {
        for &member in members.iter().rev() {
            let node = &self.nodes[member as usize];
            if !self.live[member as usize] && !node.is_read {
                continue;
            }
            self.live[member as usize] = true;
            match &node.what {
                What::Operand(..) | What::Scalar(_) | What::Drawn(_) => {}
                What::Instruction(instruction) => {
                    for read in instruction.reads() {
                        self.live[read as usize] = true;
                    }
                }
                What::Over(of, _) | What::Same(of) => self.live[*of as usize] = true,
            }
        }
    }

    /// Writes the instructions of a formula whose operands are known, equal ones and equal draws once. Returns its
    /// scalars and draws.
    fn instructions(
        &mut self,
        members: &[u32],
        formula: &mut Formula,
    ) -> (Vec<ScalarOf>, Vec<u32>) {
        let (mut scalars, mut draws): (Vec<ScalarOf>, Vec<u32>) = Default::default();
        let mut slots: FxHashMap<u64, u32> = FxHashMap::default();
        let mut drawn: FxHashMap<usize, u32> = FxHashMap::default();
        let mut known: FxHashMap<Typed, Register> = FxHashMap::default();
        for &member in members.iter().filter(|member| self.live[**member as usize]) {
            let node = &self.nodes[member as usize];
            let mut scalar = |of: ScalarOf| {
                scalars.push(of);
                scalars.len() as u32 - 1
            };
            let instruction = match &node.what {
                What::Operand(..) | What::Over(..) | What::Same(_) => continue,
                What::Instruction(instruction) => {
                    instruction.reading(|read| self.registers[read as usize])
                }
                What::Drawn(task) => Instruction::Draw(*drawn.entry(*task).or_insert_with(|| {
                    draws.push(self.draws[task]);
                    draws.len() as u32 - 1
                })),
                // Numbers that are equal by chance are two: the same region has others elsewhere.
                What::Scalar(of @ ScalarOf::Number(_)) => Instruction::Scalar(scalar(*of)),
                What::Scalar(of @ ScalarOf::Slot(slot)) => {
                    Instruction::Scalar(*slots.entry(*slot).or_insert_with(|| scalar(*of)))
                }
            };
            let typed = Typed {
                instruction,
                dtype: node.dtype,
            };
            let next = formula.operands.len() + formula.instructions.len();
            let register = *known.entry(typed).or_insert(next as Register);
            if register as usize == next {
                formula.instructions.push(typed);
            }
            self.registers[member as usize] = register;
        }
        (scalars, draws)
    }
}
