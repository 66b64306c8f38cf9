//! The order of a region's steps: which phase they are in, and which buffers they use.

use super::again::made_again;
use super::blocks::maker::groups;
use super::kind::Stored;
use super::program::{
    Builder, Extent, Leaves, Phase, Program, ResultOf, Step, Store, Value, WHOLE, What, phase_of,
};

/// Bytes that chunks of values may take: they pass from the first cache to the second and back as fast as they are
/// computed with.
const CACHE: usize = 48 << 10;

impl Builder<'_> {
    /// Returns which steps something needs that leaves.
    fn needed(&self, results: &[ResultOf]) -> Vec<bool> {
        let mut needed = vec![false; self.values.len()];
        for result in results {
            needed[result.value] = true;
        }
        for step in self.steps.iter().rev() {
            if needed[step.result] {
                for read in step.reads() {
                    needed[*read] = true;
                }
            }
        }
        needed
    }

    pub(super) fn schedule(mut self, results: Vec<ResultOf>) -> Program {
        let operands = self.region.formula.operands.len();
        let needed = self.needed(&results);
        let steps: Vec<Step> = std::mem::take(&mut self.steps);
        let steps: Vec<Step> = steps
            .into_iter()
            .filter(|step| needed[step.result])
            .collect();
        let steps = made_again(&mut self.values, operands, &results, steps);
        let num_phases = 1
            + (0..needed.len())
                .filter(|value| needed[*value])
                .map(|value| self.values[value].phase)
                .max()
                .unwrap_or(0);
        let mut phases = vec![Phase::default(); num_phases];
        let mut once = Vec::new();
        for step in &steps {
            let phase = phase_of(&self.values, step);
            for read in step.reads() {
                let value = &mut self.values[*read];
                value.reads += 1;
                value.last = value.last.max(phase);
            }
        }
        // What takes the place of an operand leaves after that was last read. Which operand that is, a run says: so
        // elements leave when the elements of all operands were read.
        let is_element = |values: &[Value], value: &usize| values[*value].extent == Extent::Element;
        let read = (0..operands).filter(|operand| is_element(&self.values, operand));
        let all_read = read
            .map(|operand| self.values[operand].last)
            .max()
            .unwrap_or(0);
        let mut stores = Vec::new();
        for (output, result) in results.iter().enumerate() {
            let value = &mut self.values[result.value];
            value.reads += 1;
            let phase = match (result.extent, result.leaves) {
                (Extent::Element, Leaves::Each) => value.phase.max(all_read),
                (Extent::Element, Leaves::Over(_)) => value.phase,
                _ => num_phases - 1,
            };
            value.last = value.last.max(phase);
            stores.push((
                phase,
                Store {
                    value: result.value,
                    output,
                    leaves: result.leaves,
                    by_step: false,
                },
            ));
        }
        let mut loads = Loads {
            others: vec![false; operands],
        };
        for step in steps {
            let phase = phase_of(&self.values, &step);
            for read in step.reads().iter().filter(|read| **read < operands) {
                loads.add(*read, phase, &self.values, &mut once, &mut phases);
            }
            let of_elements = matches!(step.what, What::Fold(_));
            match self.values[step.result].extent {
                Extent::Once => once.push(step),
                Extent::Row if !of_elements => phases[phase].rows.push(step),
                _ => phases[phase].elements.push(step),
            }
        }
        // Sums read operands, whose places others take.
        stores.sort_by_key(|(_, store)| store.leaves == Leaves::Each);
        for (phase, store) in stores {
            if store.value < operands {
                loads.add(store.value, phase, &self.values, &mut once, &mut phases);
            }
            match self.values[store.value].extent {
                Extent::Element => phases[phase].stores.push(store),
                _ => phases[phase].row_stores.push(store),
            }
        }
        self.finish(results, once, phases)
    }

    /// Gives every value its buffer, and has steps write outputs themselves where they may.
    fn finish(
        mut self,
        results: Vec<ResultOf>,
        once: Vec<Step>,
        mut phases: Vec<Phase>,
    ) -> Program {
        let operands = self.region.formula.operands.len();
        share_loads(operands, &mut phases);
        let mut slots = 0;
        let mut widest = 1;
        let mut live_most = 1;
        for (number, value) in self.values.iter_mut().enumerate() {
            value.is_kept =
                number >= operands && value.extent == Extent::Element && value.last > value.phase;
            if number < operands || value.extent != Extent::Element || value.is_kept {
                value.slot = slots;
                slots += 1;
            }
        }
        let mut free: Vec<usize> = Vec::new();
        for phase in &mut phases {
            let mut ends: Vec<Vec<usize>> = vec![Vec::new(); phase.elements.len() + 1];
            let mut seen = vec![false; self.values.len()];
            let stored = phase.stores.iter().map(|store| store.value);
            let at_end: Vec<usize> = stored.collect();
            let mut reads = vec![at_end];
            reads.extend(
                phase
                    .elements
                    .iter()
                    .rev()
                    .map(|step| step.reads().to_vec()),
            );
            for (back, reads) in reads.into_iter().enumerate() {
                for read in reads {
                    if !std::mem::replace(&mut seen[read], true) {
                        ends[phase.elements.len() - back].push(read);
                    }
                }
            }
            let mut live = 0;
            for (index, step) in phase.elements.iter_mut().enumerate() {
                let is_chunk = |values: &[Value], number: usize| {
                    let value = &values[number];
                    number >= operands && value.extent == Extent::Element && !value.is_kept
                };
                if !step.is_load() && is_chunk(&self.values, step.result) {
                    let value = &mut self.values[step.result];
                    value.slot = free.pop().unwrap_or_else(|| {
                        slots += 1;
                        slots - 1
                    });
                    live += 1;
                    live_most = live_most.max(live);
                    widest = widest.max(value.kind.lane.size());
                    let mut leaves = phase
                        .stores
                        .iter_mut()
                        .filter(|store| store.value == step.result);
                    if let (1, Some(store)) = (value.reads, leaves.next())
                        && store.leaves == Leaves::Each
                        && results[store.output].kind.stored == Stored::Plain
                        && value.kind.half().is_none()
                    {
                        step.output = Some(store.output);
                        store.by_step = true;
                    }
                }
                for read in &ends[index] {
                    if is_chunk(&self.values, *read) {
                        free.push(self.values[*read].slot);
                        live -= 1;
                    }
                }
            }
            for read in &ends[phase.elements.len()] {
                let value = &self.values[*read];
                if *read >= operands && value.extent == Extent::Element && !value.is_kept {
                    free.push(value.slot);
                }
            }
        }
        for phase in &mut phases {
            phase.groups = groups(phase, operands, &self.values, &results);
        }
        let mut steps = phases.iter().flat_map(|phase| &phase.elements);
        let has_rows = self.values.iter().any(|value| value.extent == Extent::Row)
            || steps.any(|step| step.what == What::AddAt);
        let each_element =
            |result: &ResultOf| (result.extent, result.leaves) == (Extent::Element, Leaves::Each);
        let region = self.region;
        Program {
            space: region.space.clone(),
            spans: region.spans.clone(),
            operands,
            scalars: region.scalars as usize,
            draws: region.formula.draws(),
            needs_rows: phases.len() > 1 || !results.iter().all(each_element),
            has_rows,
            chunk: chunk(live_most, widest),
            values: self.values,
            once,
            phases,
            slots,
            results,
        }
    }
}

/// Where operands are found: those of elements once for each phase, others once.
struct Loads {
    others: Vec<bool>,
}

impl Loads {
    fn add(
        &mut self,
        operand: usize,
        phase: usize,
        values: &[Value],
        once: &mut Vec<Step>,
        phases: &mut [Phase],
    ) {
        let load = Step {
            what: What::Load {
                from: 0,
                to: WHOLE,
                asks: false,
            },
            result: operand,
            reads: [0; 3],
            num_reads: 0,
            output: None,
        };
        match values[operand].extent {
            Extent::Element => {
                // Steps come in any order of phases, stores last.
                let is_there = phases[phase]
                    .elements
                    .iter()
                    .any(|step| step.is_load() && step.result == operand);
                if !is_there {
                    phases[phase].elements.push(load);
                }
            }
            Extent::Row if !self.others[operand] => phases[0].rows.push(load),
            Extent::Once if !self.others[operand] => once.push(load),
            _ => {}
        }
        self.others[operand] = true;
    }
}

/// Has operands found first in each phase, and shares out asking for what comes next among the phases, as long as they
/// take.
fn share_loads(operands: usize, phases: &mut [Phase]) {
    for phase in phases.iter_mut() {
        phase.weight = phase.elements.iter().map(Step::weight).sum();
    }
    let whole = phases
        .iter()
        .map(|phase| phase.weight)
        .sum::<usize>()
        .max(1);
    let is_read = |operand: usize, phase: &Phase| {
        let mut steps = phase.elements.iter();
        steps.any(|step| step.is_load() && step.result == operand)
    };
    for operand in 0..operands {
        if !phases.iter().any(|phase| is_read(operand, phase)) {
            continue;
        }
        let mut before = 0;
        for phase in phases.iter_mut() {
            let asks = !is_read(operand, phase);
            phase
                .elements
                .retain(|step| !(step.is_load() && step.result == operand));
            let to = before + phase.weight;
            phase.elements.insert(
                0,
                Step {
                    what: What::Load {
                        from: before * WHOLE / whole,
                        to: to * WHOLE / whole,
                        asks,
                    },
                    result: operand,
                    reads: [0; 3],
                    num_reads: 0,
                    output: None,
                },
            );
            before = to;
        }
    }
}

/// Elements of a chunk: a power of two, so that values of all of them stay in the first cache.
fn chunk(live: usize, size: usize) -> usize {
    let most = CACHE / (live * size);
    let power = usize::BITS - 1 - most.max(1).leading_zeros();
    (1 << power).clamp(256, 4096)
}
