//! What can be computed in chunks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::facts::Visits;
use crate::ir::{Chunked, Cut, LocalStep, Move, Op, Program, ProgramStep, Slot};
use crate::layout::Layout;
use crate::layout::redistribute::StepKind;
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};
use crate::rule::{Assignment, FactorKind, FactorRule, Held, OpRule, Operand, Rule};

/// Why something stays as it is; `None`: not worth a word.
pub(super) type Why = Option<&'static str>;

const NO_PRODUCT: Why = Some("no product waits for it alone");
const SUMS: Why = Some("the product that needs it sums over the dim that is gathered");
const USED_ELSEWHERE: Why = Some("its terms are needed elsewhere too");
const CUT_OTHERWISE: Why = Some("an operation in between does not work on a part of its rows");

/// What is computed in chunks, and where in the program.
pub(super) struct Found<O> {
    pub chunked: Chunked<O>,
    /// The step that it comes before.
    at: usize,
    /// The steps that it stands for.
    steps: Vec<usize>,
    /// What it needs of launched collectives that are waited for later.
    finishes: Vec<(u32, Slot)>,
}

/// Where slots of a program come from and go to.
pub(super) struct Flow<O> {
    /// The step that makes each slot, or that waits for it.
    ready: Vec<usize>,
    /// The steps that read each slot, ascending.
    readers: Vec<Vec<usize>>,
    /// The step that launches each group.
    launched: HashMap<u32, usize>,
    /// Steps that are computed in chunks.
    taken: Vec<bool>,
    found: Vec<Found<O>>,
}

impl<O: Op> Flow<O> {
    pub(super) fn new(program: &Program<O>) -> Self {
        let num_slots = program.slots.len();
        let mut flow = Self {
            ready: vec![0; num_slots],
            readers: vec![Vec::new(); num_slots],
            launched: HashMap::new(),
            taken: vec![false; program.steps.len()],
            found: Vec::new(),
        };
        for (index, step) in program.steps.iter().enumerate() {
            let (mut reads, mut makes) = (step.reads(), step.writes());
            match step {
                ProgramStep::Launch { group, moves } => {
                    flow.launched.insert(*group, index);
                    reads.extend(moves.iter().map(|moved| moved.from));
                }
                ProgramStep::Finish { to, .. } => makes.extend(to),
                _ => {}
            }
            reads.sort_unstable();
            reads.dedup();
            reads
                .iter()
                .for_each(|slot| flow.readers[*slot as usize].push(index));
            makes
                .iter()
                .for_each(|slot| flow.ready[*slot as usize] = index);
        }
        flow
    }

    /// Returns the slots that are a slot in other factors, itself among them, and the steps that read any of them,
    /// ascending.
    fn views(&self, program: &Program<O>, slot: Slot) -> (Vec<Slot>, Vec<usize>) {
        let (mut views, mut readers) = (vec![slot], Vec::new());
        let mut next = 0;
        while let Some(slot) = views.get(next) {
            next += 1;
            for &reader in &self.readers[*slot as usize] {
                match as_refactor(&program.steps[reader]) {
                    Some(moved) => views.push(moved.to),
                    None => readers.push(reader),
                }
            }
        }
        readers.sort_unstable();
        (views, readers)
    }

    /// Returns what the first operation makes that reads a slot.
    pub(super) fn made_of(&self, program: &Program<O>, slot: Slot) -> Option<Slot> {
        let (_, readers) = self.views(program, slot);
        let mut made = readers
            .iter()
            .filter_map(|reader| match &program.steps[*reader] {
                ProgramStep::Local(step) => step.op.outputs().next().map(|out| out.id),
                _ => None,
            });
        made.next()
    }

    /// Takes the steps of what was found out of the program.
    pub(super) fn take(&mut self, found: Found<O>) {
        for &step in &found.steps {
            self.taken[step] = true;
        }
        for (_, slot) in &found.finishes {
            self.ready[*slot as usize] = found.at - 1;
        }
        self.found.push(found);
    }

    /// Puts all that was found into the program.
    pub(super) fn apply(self, program: &mut Program<O>) {
        let mut before: HashMap<usize, Vec<ProgramStep<O>>> = HashMap::new();
        let mut early: HashSet<Slot> = HashSet::new();
        for found in self.found {
            let steps = before.entry(found.at).or_default();
            for (group, slot) in found.finishes {
                early.insert(slot);
                steps.push(ProgramStep::Finish {
                    group,
                    to: vec![slot],
                });
            }
            steps.push(ProgramStep::Chunked(Box::new(found.chunked)));
        }
        let old = std::mem::take(&mut program.steps);
        for (index, mut step) in old.into_iter().enumerate() {
            program
                .steps
                .extend(before.remove(&index).into_iter().flatten());
            if let ProgramStep::Finish { to, .. } = &mut step
                && !to.is_empty()
            {
                to.retain(|slot| !early.contains(slot));
                if to.is_empty() {
                    continue;
                }
            }
            if !self.taken[index] {
                program.steps.push(step);
            }
        }
    }
}

/// A collective along an axis, in its program.
pub(super) struct Site<'a, O> {
    pub program: &'a Program<O>,
    pub flow: &'a Flow<O>,
    /// Which step it is.
    pub index: usize,
    pub moved: &'a Move,
    pub axis: AxisIndex,
    /// See [`Chunked::chunks`].
    pub chunks: Arc<MeshShape>,
    pub mesh: &'a MeshShape,
    pub visits: &'a Visits,
    /// The visit of a unit that it belongs to.
    pub visit: u32,
}

impl<O: Op> Site<'_, O> {
    /// Returns what has `layout` cut into chunks.
    fn cut(&self, layout: &Layout) -> Result<Cut, Why> {
        Cut::of(layout, self.axis, &self.chunks).ok_or(CUT_OTHERWISE)
    }

    /// Returns it with operations that are cut, which stand for those that are `taken`.
    fn found(&self, steps: Vec<LocalStep<O>>, taken: Vec<usize>, keeps_whole: bool) -> Found<O> {
        Found {
            chunked: Chunked {
                moved: self.moved.clone(),
                axis: self.axis,
                chunks: self.chunks.clone(),
                steps,
                keeps_whole,
            },
            at: self.index,
            steps: taken.into_iter().chain([self.index]).collect(),
            finishes: Vec::new(),
        }
    }
}

impl<O: Op> Site<'_, O> {
    /// Returns the products of what the move at `index` gathers.
    pub(super) fn gathered(&self) -> Result<Found<O>, Why> {
        let Site { program, flow, .. } = *self;
        let cut = self.cut(&self.moved.step.from)?;
        let (views, readers) = flow.views(program, self.moved.to);
        let is_gathered = |slot: Slot| views.contains(&slot);
        let at = *readers.first().ok_or(NO_PRODUCT)?;
        let (mut steps, mut taken, mut finishes) = (Vec::new(), Vec::new(), Vec::new());
        let mut why = NO_PRODUCT;
        for &reader in &readers {
            let ProgramStep::Local(step) = &program.steps[reader] else {
                continue;
            };
            let mut positions = (0..)
                .zip(step.op.inputs())
                .filter(|(_, x)| is_gathered(x.id));
            let (Some((position, _)), None) = (positions.next(), positions.next()) else {
                continue;
            };
            if flow.taken[reader] || self.visits.of(step.at) != self.visit {
                continue;
            }
            let rows = |rule: &Rule| rule.inputs[position].dims[cut.dim];
            let local = match self.product(step, rows, &cut, &self.chunks) {
                Ok(local) => local,
                Err(reason) => {
                    why = reason;
                    continue;
                }
            };
            let others = step.op.inputs().map(|input| input.id);
            let others = others.filter(|slot| *slot != Slot::MAX && !is_gathered(*slot));
            let Some(early) = early(program, flow, others, at) else {
                continue;
            };
            finishes.extend(early);
            steps.push(local);
            taken.push(reader);
        }
        if steps.is_empty() {
            return Err(why);
        }
        finishes.sort_unstable();
        finishes.dedup();
        let keeps_whole = readers.len() > steps.len();
        Ok(Found {
            at,
            finishes,
            ..self.found(steps, taken, keeps_whole)
        })
    }

    /// Returns what makes the terms that the move at `index` reduces and scatters: products, and what is linear in
    /// them.
    pub(super) fn scattered(&self) -> Result<Found<O>, Why> {
        let Site { program, flow, .. } = *self;
        let chunks = &self.chunks;
        if self.moved.step.kind.reduce_op() != Some(ReduceOp::Sum) {
            return Err(Some("it is no sum"));
        }
        let cut = self.cut(&self.moved.step.to)?;
        let is_term = |slot: Slot| {
            let partial = &program.slots[slot as usize].layout.partial;
            partial.iter().any(|partial| partial.axis == self.axis)
        };
        let mut found: HashMap<usize, LocalStep<O>> = HashMap::new();
        let mut open: Vec<(Slot, Cut)> = vec![(self.moved.from, cut)];
        let mut passed = Vec::new();
        while let Some((slot, cut)) = open.pop() {
            let maker = flow.ready[slot as usize];
            if let Some(moved) = as_refactor(&program.steps[maker]) {
                passed.push(maker);
                open.push((moved.from, cut));
                continue;
            }
            let ProgramStep::Local(step) = &program.steps[maker] else {
                return Err(NO_PRODUCT);
            };
            let is_elsewhere = flow.taken[maker] || self.visits.of(step.at) != self.visit;
            if is_elsewhere || step.outputs.len() != 1 {
                return Err(NO_PRODUCT);
            }
            if let Some(known) = found.get(&maker) {
                match known.outputs[0].dims == cut.layout.dims {
                    true => continue,
                    false => return Err(CUT_OTHERWISE),
                }
            }
            let inputs: Vec<Slot> = step.op.inputs().map(|input| input.id).collect();
            let terms = inputs
                .iter()
                .any(|slot| *slot != Slot::MAX && is_term(*slot));
            let local = match step.rule.as_ref() {
                OpRule::Reshape => {
                    let input = *inputs.first().ok_or(NO_PRODUCT)?;
                    let shape = program.slots[input as usize].layout.shape();
                    let from = cut.reshaped(&shape, chunks).ok_or(CUT_OTHERWISE)?;
                    if !from.is_of(&step.inputs[0], self.mesh) {
                        return Err(CUT_OTHERWISE);
                    }
                    let inputs = [Arc::new(from.layout_as(&step.inputs[0]))].into();
                    let outputs = [Arc::new(cut.layout_as(&step.outputs[0]))].into();
                    open.push((input, from));
                    LocalStep {
                        inputs,
                        outputs,
                        ..(**step).clone()
                    }
                }
                OpRule::Factors(_) => {
                    let rows = |rule: &Rule| rule.outputs[0].dims[cut.dim];
                    let local = match terms {
                        true => self.cut_op(step, rows, &cut, chunks)?,
                        false => self.product(step, rows, &cut, chunks)?,
                    };
                    for (&input, layout) in inputs.iter().zip(&local.inputs) {
                        if input != Slot::MAX && is_term(input) {
                            let cut = Cut::found(layout, chunks).ok_or(CUT_OTHERWISE)?;
                            open.push((input, cut));
                        }
                    }
                    local
                }
                _ => return Err(NO_PRODUCT),
            };
            found.insert(maker, local);
        }
        let mut steps: Vec<(usize, LocalStep<O>)> = found.into_iter().collect();
        steps.sort_by_key(|(index, _)| *index);
        let (taken, steps): (Vec<usize>, Vec<_>) = steps.into_iter().unzip();
        let is_taken = |slot: Slot| {
            let mut readers = flow.readers[slot as usize].iter();
            readers.all(|reader| {
                *reader == self.index || taken.contains(reader) || passed.contains(reader)
            })
        };
        let mut made = steps.iter().flat_map(|step| step.op.outputs());
        if !made.all(|out| is_taken(out.id)) {
            return Err(USED_ELSEWHERE);
        }
        drop(made);
        Ok(self.found(steps, taken, false))
    }

    /// As [`Self::cut`], of a product.
    fn product(
        &self,
        step: &LocalStep<O>,
        rows: impl Fn(&Rule) -> Option<u8>,
        cut: &Cut,
        chunks: &MeshShape,
    ) -> Result<LocalStep<O>, Why> {
        match step.op.product_flops().is_some() && !step.op.traits().shifts {
            true => self.cut_op(step, rows, cut, chunks),
            false => Err(NO_PRODUCT),
        }
    }

    /// Returns a step whose `rows`, a factor of its rule, are cut.
    fn cut_op(
        &self,
        step: &LocalStep<O>,
        rows: impl Fn(&Rule) -> Option<u8>,
        cut: &Cut,
        chunks: &MeshShape,
    ) -> Result<LocalStep<O>, Why> {
        let (OpRule::Factors(rule), Some(assignment)) = (step.rule.as_ref(), &step.assignment)
        else {
            return Err(NO_PRODUCT);
        };
        let rows = rows(rule).ok_or(CUT_OTHERWISE)?;
        let factor = &rule.factors[usize::from(rows)];
        match factor.kind {
            FactorKind::Map => {}
            FactorKind::Reduce(_) => return Err(SUMS),
            FactorKind::Index | FactorKind::Whole => return Err(CUT_OTHERWISE),
        }
        let is_along = |other: &FactorRule| other.along == Some(rows);
        let is_tied = factor.along.is_some() || rule.factors.iter().any(is_along);
        if factor.block != 1 || factor.held != Held::Any || is_tied {
            return Err(CUT_OTHERWISE);
        }
        let mut factors = assignment.factors.clone();
        factors[usize::from(rows)] = cut.rows().clone();
        let assignment = Assignment {
            factors,
            kept: assignment.kept.clone(),
        };
        let layouts = |operands: &[Operand], layouts: &[Arc<Layout>]| {
            let pairs = operands.iter().zip(layouts).map(|(operand, layout)| {
                let dims = operand.dims.iter();
                let mut at = (0..).zip(dims).filter(|(_, factor)| **factor == Some(rows));
                let Some((dim, _)) = at.next() else {
                    return Ok(layout.clone());
                };
                let mut cut_here = (**layout).clone();
                cut_here.dims[dim] = cut.rows().clone();
                let found = Cut::found(&cut_here, chunks).ok_or(CUT_OTHERWISE)?;
                match at.next().is_none() && found.is_of(layout, self.mesh) {
                    true => Ok(Arc::new(cut_here)),
                    false => Err(CUT_OTHERWISE),
                }
            });
            pairs.collect::<Result<Box<[Arc<Layout>]>, Why>>()
        };
        let outputs = layouts(&rule.outputs, &step.outputs)?;
        if outputs
            .iter()
            .any(|layout| Cut::found(layout, chunks).is_none())
        {
            return Err(CUT_OTHERWISE);
        }
        Ok(LocalStep {
            inputs: layouts(&rule.inputs, &step.inputs)?,
            outputs,
            assignment: Some(Arc::new(assignment)),
            ..step.clone()
        })
    }
}

/// Returns a move that puts the same elements into other factors.
fn as_refactor<O>(step: &ProgramStep<O>) -> Option<&Move> {
    match step {
        ProgramStep::Move(moved) if moved.step.kind == StepKind::Refactor => Some(moved),
        _ => None,
    }
}

/// Returns the launched collectives that have to be waited for before step `at`, so that all `slots` are there; `None`
/// if some are made later.
fn early<O: Op>(
    program: &Program<O>,
    flow: &Flow<O>,
    slots: impl Iterator<Item = Slot>,
    at: usize,
) -> Option<Vec<(u32, Slot)>> {
    let mut found = Vec::new();
    for slot in slots {
        let ready = flow.ready[slot as usize];
        if ready < at {
            continue;
        }
        match &program.steps[ready] {
            ProgramStep::Finish { group, .. } if flow.launched[group] < at => {
                found.push((*group, slot));
            }
            _ => return None,
        }
    }
    Some(found)
}
