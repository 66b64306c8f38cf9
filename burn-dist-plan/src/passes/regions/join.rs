//! Operations join regions: which ones, and what they add to them.

use rustc_hash::FxHashMap;

use super::look::{Base, Computes, Folds, Look, Seen, core, refined, see, size};
use super::walk::{Fate, Making, Node, Operand, Walk, What};
use crate::ir::op::Tensor;
use crate::ir::region::{Formula, Instruction, Register, ScalarOf, Typed};
use crate::ir::{Op, Task};
use crate::mesh::DType;
use crate::pipeline::Action;

/// Tensors of a region, operands and results: each is a stream of memory, and processors follow about as many at once.
/// A device takes as many buffers for one kernel.
const TENSORS_MAX: usize = 32;

/// Instructions of a region: so that a kernel of it is compiled in a moment, and its values fit beside each other in
/// the first cache.
const INSTRUCTIONS_MAX: usize = 256;

/// How the space of an operation fits that of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// They have the same elements.
    Same,
    /// Its elements are the rows of the region.
    IsRows,
    /// Its rows are the elements of the region.
    HasRows,
}

/// The space of an operation, as regions are joined that fit it.
struct Space {
    /// Its dims, without those of size one: of rows, if it is one of these.
    core: Vec<usize>,
    /// The length of the rows, if it is one of rows.
    row_len: Option<usize>,
    /// True if it does not matter how long rows are.
    any_row_len: bool,
    /// True if its last dim is one of rows.
    has_rows: bool,
}

impl Space {
    fn new(own: Vec<usize>, folds: Folds) -> Self {
        let adds_rows = folds == Folds::OverAllRows;
        Self {
            core: own,
            row_len: adds_rows.then_some(1),
            any_row_len: adds_rows,
            has_rows: !folds.takes_rows(),
        }
    }

    fn core(&self) -> Vec<usize> {
        self.core.iter().copied().chain(self.row_len).collect()
    }

    /// Goes on with a space in which a region fits too; `false` if there is none.
    fn take(&mut self, region: &Making, fit: Fit) -> bool {
        let theirs = &region.core;
        let both = match (fit, self.row_len) {
            (Fit::IsRows, row_len) => {
                let Some((last, rows)) = theirs.split_last() else {
                    return false;
                };
                if row_len.is_some_and(|row_len| row_len != *last) && !self.any_row_len {
                    return false;
                }
                let both = refined(&self.core, rows);
                if both.is_some() {
                    (self.row_len, self.any_row_len) = (Some(*last), false);
                }
                both
            }
            (Fit::Same, Some(_)) => match region.has_rows {
                true => None,
                false => refined(&self.core, theirs),
            },
            (Fit::Same, None) => {
                let has_rows = self.has_rows || region.has_rows;
                let both = match has_rows && theirs.last() != self.core.last() {
                    true => None,
                    false => refined(&self.core, theirs),
                };
                self.has_rows |= both.is_some() && region.has_rows;
                both
            }
            (Fit::HasRows, None) if !region.has_rows => {
                let rows = self.core.split_last();
                let both = rows.and_then(|(last, rows)| {
                    let mut both = refined(rows, theirs)?;
                    both.push(*last);
                    Some(both)
                });
                self.has_rows |= both.is_some();
                both
            }
            (Fit::HasRows, _) => None,
        };
        match both {
            Some(both) => {
                self.core = both;
                true
            }
            None => false,
        }
    }
}

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
            values.push(self.operand(region, input, look, spans, computes));
        }
        self.compute(region, &computes.formula, &computes.scalars, &mut values);
        for (out, result) in op.outputs().zip(&computes.formula.results) {
            self.result(region, at, out, computes, values[*result as usize]);
        }
        let making = &mut self.regions[region as usize];
        making.last = at;
        making.operations += 1;
        if computes.changes.is_some() {
            making.indexed.extend(op.outputs().map(|out| out.id));
        }
        let is_narrower = |out: Tensor<'_>| out.numel() < size(&making.core);
        making.has_rows |= computes.folds != Folds::Nothing || op.outputs().any(is_narrower);
        making.open = self.joins;
        making.bytes_apart += bytes_apart;
        making.tensors += op.outputs().count();
        self.fates[at] = Fate::Joins;
        region
    }

    /// Returns the space of an operation together with the open regions that make or read its operands, as far as they
    /// have one in common: the same elements, or those of one are the rows of the other. Returns those regions too.
    fn joined(
        &mut self,
        computes: &Computes,
        action: Option<Action>,
        looks: &[Look],
        spans: &[Vec<bool>],
    ) -> (Vec<usize>, Vec<u32>) {
        let own = computes.core();
        let mut found: Vec<(u32, Fit)> = Vec::new();
        let mut rejected: Vec<u32> = Vec::new();
        for (look, spans) in looks.iter().zip(spans) {
            let is_whole = spans.iter().all(|spans| *spans);
            let (node, is_value) = match &look.base {
                Base::Node(node) => (*node, true),
                Base::Slot(slot, _) if is_whole => match self.operands.get(slot) {
                    Some(node) => (*node, false),
                    None => continue,
                },
                _ => continue,
            };
            let region = self.region_of(node);
            let making = &self.regions[region as usize];
            if !making.open || making.action != action {
                continue;
            }
            let of = &self.nodes[node as usize];
            let is_of_rows = of.size < size(&making.core);
            let is_row = spans
                .split_last()
                .is_some_and(|(last, others)| !last && others.iter().all(|spans| *spans));
            let fit = match (is_whole, is_of_rows) {
                _ if !is_value => Some(Fit::Same),
                _ if matches!(of.what, What::Over(..)) => None,
                (true, false) => Some(Fit::Same),
                (true, true) if computes.folds.takes_rows() => Some(Fit::IsRows),
                (false, false) if is_row => Some(Fit::HasRows),
                (false, true) if is_row && making.core.last() == own.last() => Some(Fit::Same),
                _ => None,
            };
            match fit {
                Some(fit) => found.push((region, fit)),
                None => rejected.push(region),
            }
        }
        found.retain(|(region, _)| !rejected.contains(region));
        let mut space = Space::new(own, computes.folds);
        let alone = space.core();
        // Whether the operation is one of rows is known first.
        found.sort_by_key(|(_, fit)| *fit != Fit::IsRows);
        let mut joined: Vec<u32> = Vec::new();
        let mut fits: FxHashMap<u32, Fit> = FxHashMap::default();
        for (region, fit) in found {
            match fits.get(&region) {
                Some(known) if *known == fit => continue,
                Some(_) => joined.retain(|other| *other != region),
                None => {
                    fits.insert(region, fit);
                    if space.take(&self.regions[region as usize], fit) {
                        joined.push(region);
                    }
                }
            }
        }
        joined.sort_unstable();
        let of = |count: fn(&Making) -> usize| {
            let regions = joined.iter().map(|region| &self.regions[*region as usize]);
            regions.map(count).sum::<usize>()
        };
        let tensors = of(|making| making.tensors) + looks.len() + computes.formula.results.len();
        let instructions = of(|making| making.instructions) + computes.formula.instructions.len();
        let is_large = tensors > TENSORS_MAX || instructions > INSTRUCTIONS_MAX;
        match joined.is_empty() || is_large {
            true => (alone, Vec::new()),
            false => (space.core(), joined),
        }
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
                indexed: Vec::new(),
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
            let indexed = std::mem::take(&mut of.indexed);
            let into = &mut self.regions[first as usize];
            into.has_rows |= has_rows;
            into.operations += operations;
            into.indexed.extend(indexed);
            into.bytes_apart += bytes_apart;
            into.tensors += tensors;
            into.instructions += instructions;
        }
        let narrower = joined
            .iter()
            .any(|region| size(&self.regions[*region as usize].core) < size(&core));
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
            size: 0,
            slot: None,
            is_read: false,
        });
        self.nodes.len() as u32 - 1
    }

    /// Returns the value of a region that an operand of an operation in it is.
    fn operand(
        &mut self,
        region: u32,
        input: Tensor<'_>,
        look: Look,
        spans: Vec<bool>,
        computes: &Computes,
    ) -> u32 {
        let over = computes.core();
        // An operand before this one may be what has drawn it.
        let operand = match self.found(&look.base) {
            Base::Node(node) if self.region_of(node) == region => return node,
            Base::Node(node) => {
                let is_whole = spans.iter().all(|spans| *spans)
                    && size(&over) == size(&self.regions[region as usize].core);
                if is_whole && let Some(again) = self.again(node, region) {
                    return again;
                }
                let of = self.nodes[node as usize].slot.clone();
                let (slot, shape) = of.expect("what others look at is a result");
                match core(&shape) == core(&look.shape) {
                    true => Operand {
                        slot,
                        shape,
                        over,
                        spans,
                    },
                    // It has other dims than those that the operation knows.
                    false => Operand {
                        slot: input.id,
                        shape: input.shape.to_vec(),
                        spans: computes.spans(&Look::plain(input)),
                        over,
                    },
                }
            }
            Base::Slot(slot, shape) => Operand {
                slot,
                shape,
                over,
                spans,
            },
            Base::Drawn(at) => {
                let is_whole = spans.iter().all(|spans| *spans)
                    && size(&over) == size(&self.regions[region as usize].core);
                if is_whole {
                    return self.draw(region, at);
                }
                let task = self.random(at);
                Operand {
                    slot: task.slot,
                    shape: task.shape.clone(),
                    over,
                    spans,
                }
            }
            Base::Constant(at) => {
                let Task::Op(op, _) = &self.tasks[at] else {
                    unreachable!("operations make constants")
                };
                let Seen::Constant(formula, scalars) = see(op, self.kernels) else {
                    unreachable!("it was one before")
                };
                let mut values = Vec::new();
                self.compute(region, &formula, &scalars, &mut values);
                return values[formula.results[0] as usize];
            }
        };
        self.slot(region, input.dtype, operand)
    }

    /// Returns the value of a region that a slot is.
    pub(super) fn slot(&mut self, region: u32, dtype: DType, operand: Operand) -> u32 {
        self.read(operand.slot);
        if let Some(&known) = self.operands.get(&operand.slot)
            && self.region_of(known) == region
            && matches!(&self.nodes[known as usize].what, What::Operand(of) if *of == operand)
        {
            return known;
        }
        let slot = operand.slot;
        let node = self.push(region, dtype, What::Operand(operand));
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
        of.size = out.numel();
        of.slot = Some((out.id, out.shape.to_vec()));
        let look = Look {
            base: Base::Node(node),
            ..Look::plain(out)
        };
        self.looks.insert(out.id, (at, look));
    }
}
