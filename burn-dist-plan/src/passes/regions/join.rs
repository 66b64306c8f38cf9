//! Operations join regions: which ones, and what they add to them.

use super::look::{Base, Computes, Folds, Look, Seen, see};
use super::walk::{Fate, Making, Node, Walk, What};
use crate::ir::op::Tensor;
use crate::ir::region::{Formula, Instruction, Register, ScalarOf, Typed};
use crate::ir::{Op, Slot, Task};
use crate::mesh::DType;
use crate::pipeline::Action;

/// Tensors of a region, operands and results: each is a stream of memory, and processors follow about as many at once.
/// A device takes as many buffers for one kernel.
const TENSORS_MAX: usize = 32;

/// Instructions of a region: so that a kernel of it is compiled in a moment, and its values fit beside each other in
/// the first cache.
const INSTRUCTIONS_MAX: usize = 256;

impl<'a, O: Op> Walk<'a, O> {
    /// Has an operation join the regions that it can, or begin one, which it returns.
    pub(super) fn join(
        &mut self,
        at: usize,
        op: &O,
        path: u32,
        computes: &Computes,
        looks: Vec<Look>,
    ) -> u32 {
        let spans: Vec<Vec<bool>> = looks.iter().map(|look| computes.spans(look)).collect();
        let action = op
            .outputs()
            .find_map(|out| self.actions.get(&out.id))
            .copied();
        let (core, joined) = self.joined(computes, action, &looks, &spans);
        let region = self.united(&joined, at, path, action, core);
        let tensors = looks.iter().zip(op.inputs());
        let read =
            tensors.map(|(look, input)| look.shape.iter().product::<usize>() * input.dtype.size());
        let made = op.outputs().map(|out| out.numel() * out.dtype.size());
        let bytes_apart = read.chain(made).sum::<usize>() as u64;
        let mut values = Vec::with_capacity(looks.len());
        for ((look, spans), input) in looks.into_iter().zip(spans).zip(op.inputs()) {
            values.push(self.operand(region, input.dtype, look, spans));
        }
        self.compute(region, &computes.formula, &computes.scalars, &mut values);
        for (out, result) in op.outputs().zip(&computes.formula.results) {
            self.result(region, at, out, computes, values[*result as usize]);
        }
        let making = &mut self.regions[region as usize];
        making.last = at;
        making.operations += 1;
        let is_narrower = |out| computes.dims(out) != Some(making.core.len());
        making.has_rows |= computes.folds != Folds::Nothing || op.outputs().any(is_narrower);
        making.open = self.joins;
        making.bytes_apart += bytes_apart;
        making.tensors += op.outputs().count();
        self.fates[at] = Fate::Joins;
        region
    }

    /// Returns the space of an operation together with the open regions that make or read its operands, as far as they
    /// have one in common: theirs is that, or has all its dims but the last. Returns those regions too.
    fn joined(
        &mut self,
        computes: &Computes,
        action: Option<Action>,
        looks: &[Look],
        spans: &[Vec<bool>],
    ) -> (Vec<usize>, Vec<u32>) {
        let own = computes.core();
        let mut core = own.clone();
        // The regions, with the value of each that is an operand; of a region that reads the same slot, none.
        let mut found: Vec<(u32, Option<(u32, usize)>)> = Vec::new();
        for (index, (look, spans)) in looks.iter().zip(spans).enumerate() {
            let is_whole = spans.iter().all(|spans| *spans);
            let (node, value) = match &look.base {
                Base::Node(node) => (*node, Some((*node, index))),
                Base::Slot(slot, _) if is_whole => match self.operands.get(slot) {
                    Some(node) => (*node, None),
                    None => continue,
                },
                _ => continue,
            };
            let region = self.region_of(node);
            let making = &self.regions[region as usize];
            if !making.open || making.action != action {
                continue;
            }
            if value.is_none() && making.core != own {
                continue;
            }
            let is_row = making.core.len() == own.len() + 1 && making.core.starts_with(&own);
            let fits = matches!(computes.folds, Folds::Nothing | Folds::OverAllRows);
            if is_row && is_whole && fits && core.len() == own.len() {
                core.clone_from(&making.core);
            }
            found.push((region, value));
        }
        if computes.folds == Folds::OverAllRows && core.len() == own.len() {
            core.push(1);
        }
        let mut rejected: Vec<u32> = Vec::new();
        for (region, value) in &found {
            let making = &self.regions[*region as usize];
            let widens = core.len() == making.core.len() + 1
                && core.starts_with(&making.core)
                && !making.has_rows;
            let mut fits = widens || making.core == core;
            if let Some((node, index)) = value {
                let node = &self.nodes[*node as usize];
                let has = |dim: usize| spans[*index].get(dim) == Some(&true);
                fits &= !matches!(node.what, What::Over(..))
                    && (0..core.len()).all(|dim| has(dim) == (dim < node.dims));
            }
            if !fits {
                rejected.push(*region);
            }
        }
        let mut joined: Vec<u32> = found.into_iter().map(|(region, _)| region).collect();
        joined.retain(|region| !rejected.contains(region));
        joined.sort_unstable();
        joined.dedup();
        // The space of an operation by itself.
        let alone = match computes.folds {
            Folds::OverAllRows => [&own[..], &[1]].concat(),
            _ => own,
        };
        let has_core = |region: &u32| self.regions[*region as usize].core == core;
        if core != alone && !joined.iter().any(has_core) {
            return (alone, Vec::new());
        }
        let of = |count: fn(&Making) -> usize| {
            let regions = joined.iter().map(|region| &self.regions[*region as usize]);
            regions.map(count).sum::<usize>()
        };
        let tensors = of(|making| making.tensors) + looks.len() + computes.formula.results.len();
        let instructions = of(|making| making.instructions) + computes.formula.instructions.len();
        if tensors > TENSORS_MAX || instructions > INSTRUCTIONS_MAX {
            return (alone, Vec::new());
        }
        (core, joined)
    }

    /// Makes one region of several, over a space that all of them fit; a new one if there are none.
    fn united(
        &mut self,
        joined: &[u32],
        at: usize,
        path: u32,
        action: Option<Action>,
        core: Vec<usize>,
    ) -> u32 {
        // Regions are numbered in the order of their first tasks.
        let Some((&first, others)) = joined.split_first() else {
            let region = self.regions.len() as u32;
            self.regions.push(Making {
                parent: region,
                core,
                has_rows: false,
                open: true,
                action,
                last: at,
                path,
                operations: 0,
                bytes_apart: 0,
                tensors: 0,
                instructions: 0,
            });
            return region;
        };
        for &other in others {
            let of = &mut self.regions[other as usize];
            of.parent = first;
            let (has_rows, operations, bytes_apart) = (of.has_rows, of.operations, of.bytes_apart);
            let (tensors, instructions) = (of.tensors, of.instructions);
            let into = &mut self.regions[first as usize];
            into.has_rows |= has_rows;
            into.operations += operations;
            into.bytes_apart += bytes_apart;
            into.tensors += tensors;
            into.instructions += instructions;
        }
        let narrower = joined
            .iter()
            .any(|region| self.regions[*region as usize].core.len() < core.len());
        let into = &mut self.regions[first as usize];
        into.has_rows |= narrower;
        into.core = core;
        first
    }

    pub(super) fn push(&mut self, region: u32, dtype: DType, what: What) -> u32 {
        self.nodes.push(Node {
            what,
            dtype,
            region,
            dims: 0,
            slot: None,
            is_read: false,
        });
        self.nodes.len() as u32 - 1
    }

    /// Returns the value of a region that an operand of an operation in it is.
    fn operand(&mut self, region: u32, dtype: DType, look: Look, spans: Vec<bool>) -> u32 {
        let (slot, shape) = match look.base {
            Base::Node(node) if self.region_of(node) == region => return node,
            Base::Node(node) => {
                if let Some(again) = self.again(node, region, &spans) {
                    return again;
                }
                let of = self.nodes[node as usize].slot.clone();
                let (slot, shape) = of.expect("what others look at is a result");
                self.read(slot);
                (slot, shape)
            }
            Base::Slot(slot, shape) => (slot, shape),
            Base::Constant(at) => {
                let Task::Op(op, _) = &self.tasks[at] else {
                    unreachable!("operations make constants")
                };
                let Seen::Constant(formula, scalars) = see(op) else {
                    unreachable!("it was one before")
                };
                let mut values = Vec::new();
                self.compute(region, &formula, &scalars, &mut values);
                return values[formula.results[0] as usize];
            }
        };
        self.slot(region, dtype, (slot, shape), spans)
    }

    /// Returns the value of a region that is a slot with a shape, and has these dims of the space.
    pub(super) fn slot(
        &mut self,
        region: u32,
        dtype: DType,
        (slot, shape): (Slot, Vec<usize>),
        spans: Vec<bool>,
    ) -> u32 {
        let known = self.operands.get(&slot).copied();
        if let Some(known) = known
            && self.region_of(known) == region
            && matches!(&self.nodes[known as usize].what, What::Operand(_, _, of) if *of == spans)
        {
            return known;
        }
        let node = self.push(region, dtype, What::Operand(slot, shape, spans));
        self.operands.insert(slot, node);
        self.regions[region as usize].tensors += 1;
        node
    }

    /// Adds the instructions of a formula, whose operands `values` are: their results come behind them.
    fn compute(
        &mut self,
        region: u32,
        formula: &Formula,
        scalars: &[ScalarOf],
        values: &mut Vec<u32>,
    ) {
        for Typed { instruction, dtype } in &formula.instructions {
            let what = match instruction {
                Instruction::Scalar(index) => What::Scalar(scalars[*index as usize]),
                instruction => {
                    let to = |read: Register| values[read as usize];
                    What::Instruction(instruction.reading(to))
                }
            };
            values.push(self.push(region, *dtype, what));
        }
        self.regions[region as usize].instructions += formula.instructions.len();
    }

    /// Notes that a result of an operation is a value of a region.
    fn result(&mut self, region: u32, at: usize, out: Tensor<'_>, computes: &Computes, value: u32) {
        let what = match computes.folds {
            Folds::Nothing | Folds::Rows => None,
            folds => Some(What::Over(value, folds)),
        };
        // One that several operations have as their result, or that is an operand, is kept for each of them.
        let is_taken = |node: &Node| node.slot.is_some() || matches!(node.what, What::Operand(..));
        let node = match what {
            Some(what) => self.push(region, out.dtype, what),
            None if is_taken(&self.nodes[value as usize]) => {
                let same = What::Same(value);
                self.push(region, out.dtype, same)
            }
            None => value,
        };
        let of = &mut self.nodes[node as usize];
        of.dims = computes.dims(out).unwrap_or(0);
        of.slot = Some((out.id, out.shape.to_vec()));
        let look = Look {
            base: Base::Node(node),
            ..Look::plain(out)
        };
        self.looks.insert(out.id, (at, look));
    }
}
