//! Values that later phases read, made again there where that is cheap, in the place of being kept for a whole row.
//!
//! A value that is kept for the whole row is written and read once more, and does not stay in the first cache with all
//! else of a long row. What is an instruction or two away from operands and values of the row costs less: those are
//! read again instead. Bits do not change.

use std::collections::BTreeMap;

use burn_dist_plan::region::{Binary, Unary};

use super::kind::{Lane, Stored};
use super::program::{Extent, ResultOf, Step, Value, What, phase_of};

/// Instructions that a value may take to be made again.
const AGAIN_MAX: usize = 2;

/// Returns the steps, and before those of a later phase that read what is cheap, steps that make that again.
pub(super) fn made_again(
    values: &mut Vec<Value>,
    operands: usize,
    results: &[ResultOf],
    steps: Vec<Step>,
) -> Vec<Step> {
    let mut again = Again {
        operands,
        cheap: vec![None; values.len()],
        made: BTreeMap::new(),
        steps: Vec::with_capacity(steps.len()),
    };
    for mut step in steps {
        let phase = phase_of(values, &step);
        let cheap = again.cost(values, results, &step);
        again.cheap[step.result] = cheap.map(|cost| (cost, step));
        for read in &mut step.reads[..step.num_reads] {
            *read = again.read(values, *read, phase);
        }
        again.steps.push(step);
    }
    // What only later phases read is made there alone.
    let mut is_read = vec![false; values.len()];
    results
        .iter()
        .for_each(|result| is_read[result.value] = true);
    let mut steps = again.steps;
    steps.reverse();
    steps.retain(|step| {
        let is_needed = is_read[step.result];
        if is_needed {
            step.reads().iter().for_each(|read| is_read[*read] = true);
        }
        is_needed
    });
    steps.reverse();
    steps
}

struct Again {
    operands: usize,
    /// Values that may be made again: how many instructions that takes, and the last of them.
    cheap: Vec<Option<(usize, Step)>>,
    /// The values that were made again, by the value and the phase that reads it.
    made: BTreeMap<(usize, usize), usize>,
    /// All steps up to here.
    steps: Vec<Step>,
}

impl Again {
    /// Returns how many instructions it takes to make the result of a step again, if that is cheap.
    fn cost(&self, values: &[Value], results: &[ResultOf], step: &Step) -> Option<usize> {
        let value = &values[step.result];
        let is_arithmetic = matches!(
            step.what,
            What::Binary(Binary::Add | Binary::Sub | Binary::Mul) | What::Unary(Unary::Neg)
        );
        let is_plain = (value.kind.lane, value.kind.stored) == (Lane::F32, Stored::Plain);
        // What leaves is kept until then.
        let leaves = results.iter().any(|result| result.value == step.result);
        if !is_arithmetic || !is_plain || value.extent != Extent::Element || leaves {
            return None;
        }
        let mut cost = 1;
        for read in step.reads() {
            if *read >= self.operands && values[*read].extent == Extent::Element {
                cost += self.cheap[*read]?.0;
            }
        }
        (cost <= AGAIN_MAX).then_some(cost)
    }

    /// Returns the value that a phase reads in the place of one of an earlier phase.
    fn read(&mut self, values: &mut Vec<Value>, value: usize, phase: usize) -> usize {
        if value < self.operands || values[value].phase == phase {
            return value;
        }
        if let Some(made) = self.made.get(&(value, phase)) {
            return *made;
        }
        let Some((_, mut step)) = self.cheap[value] else {
            return value;
        };
        for read in &mut step.reads[..step.num_reads] {
            *read = self.read(values, *read, phase);
        }
        let made = values.len();
        values.push(Value {
            phase,
            ..values[value].clone()
        });
        self.cheap.push(None);
        step.result = made;
        self.steps.push(step);
        self.made.insert((value, phase), made);
        made
    }
}
