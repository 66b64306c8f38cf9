//! What the actions of a program cost: how long they take, and what they leave behind. A schedule is chosen by that.

use std::collections::BTreeMap;

use super::parts::{Part, count};
use crate::cost::{Network, work_ns};
use crate::facts::flow::{Flow, work};
use crate::ir::{Op, Pipeline, Program};
use crate::pipeline::{Bytes, Costs, Kind, StageTimes, Times};

/// Returns what actions cost: times are those of the average microbatch, bytes those of the largest.
///
/// Transfers take time where the link of the pipeline axis is known. What serves several microbatches, such as gathered
/// parameters, is not counted, for it does not depend on the schedule; nor is what no microbatch makes.
pub(crate) fn costs<O: Op>(
    program: &Program<O>,
    flow: &Flow,
    parts: &[Part],
    pipeline: &Pipeline,
    network: &Network<'_>,
) -> Costs {
    let (stages, microbatches) = (pipeline.stages as usize, count(parts));
    let mut ns = vec![[0.0; 3]; stages];
    let parts: Vec<Option<Part>> = program
        .steps
        .iter()
        .map(|step| step.at().map(|at| parts[at as usize]))
        .collect();
    let action = |step: usize| {
        let part = parts[step]?;
        Some((part.stage?, part.kind?, part.microbatch))
    };
    for (index, step) in program.steps.iter().enumerate() {
        if let Some((stage, kind, _)) = action(index) {
            let ends = &flow.ends[index];
            let written: u64 = ends
                .writes
                .iter()
                .map(|slot| flow.bytes[*slot as usize])
                .sum();
            let flops = work(step, ends, program, network.mesh());
            ns[stage as usize][place(kind)] += work_ns(flops, written as f64);
        }
    }
    let mut bytes = vec![vec![Bytes::default(); microbatches as usize]; stages];
    let mut sent = vec![0; stages.saturating_sub(1)];
    // What uses each memory, by the slot that was there first.
    let mut uses_of: Vec<Vec<Option<(u32, Kind, u32)>>> = vec![Vec::new(); flow.root.len()];
    for (root, uses) in flow.root.iter().zip(&flow.uses) {
        uses_of[*root as usize].extend(uses.iter().map(|step| action(*step)));
    }
    for (slot, uses) in uses_of.into_iter().enumerate() {
        let Some(uses) = uses.into_iter().collect::<Option<Vec<_>>>() else {
            continue;
        };
        let Some(&(_, _, microbatch)) = uses.first() else {
            continue;
        };
        let size = flow.bytes[slot];
        let made = action(flow.maker[slot]);
        if uses
            .iter()
            .chain(&made)
            .any(|(.., other)| *other != microbatch)
        {
            continue;
        }
        // By stage, whether it is used forward, backward and for the gradients of weights.
        let mut used: BTreeMap<u32, [bool; 3]> = BTreeMap::new();
        for (stage, kind, _) in &uses {
            used.entry(*stage).or_default()[place(*kind)] = true;
        }
        for (stage, [forward, backward, weight]) in used {
            let first = match made {
                Some((maker, kind, _)) if maker == stage => Some(kind),
                _ if forward => Some(Kind::Forward),
                _ if backward => Some(Kind::Backward),
                _ => None,
            };
            let bytes = &mut bytes[stage as usize][microbatch as usize];
            match first {
                Some(Kind::Forward) => {
                    bytes.activation += size * u64::from(backward || weight);
                    bytes.saved_for_weight += size * u64::from(weight);
                }
                Some(Kind::Backward) => bytes.gradient_for_weight += size * u64::from(weight),
                _ => {}
            }
        }
        if let Some((maker, ..)) = made.filter(|_| microbatch == 0) {
            let ends = uses.iter().map(|(stage, ..)| *stage).chain([maker]);
            let (low, high) = ends.fold((maker, maker), |(low, high), stage| {
                (low.min(stage), high.max(stage))
            });
            for between in &mut sent[low as usize..high as usize] {
                *between += size;
            }
        }
    }
    let each = |ns: f64| (ns / f64::from(microbatches)).ceil() as u64;
    let largest = |bytes: Vec<Bytes>| {
        bytes
            .into_iter()
            .fold(Bytes::default(), |most, bytes| Bytes {
                activation: most.activation.max(bytes.activation),
                saved_for_weight: most.saved_for_weight.max(bytes.saved_for_weight),
                gradient_for_weight: most.gradient_for_weight.max(bytes.gradient_for_weight),
            })
    };
    // There and back.
    let transfer = |bytes: u64| match network.is_known(pipeline.axis) {
        true => network
            .transfer_ns(&[pipeline.axis], 1, bytes as f64 / 2.0)
            .ceil() as u64,
        false => 0,
    };
    Costs {
        times: Times {
            stages: ns
                .into_iter()
                .map(|[forward, backward, weight]| StageTimes {
                    forward: each(forward),
                    backward: each(backward),
                    weight: each(weight),
                })
                .collect(),
            transfers: sent.into_iter().map(transfer).collect(),
            sends_early: true,
        },
        bytes: bytes.into_iter().map(largest).collect(),
    }
}

fn place(kind: Kind) -> usize {
    match kind {
        Kind::Forward => 0,
        Kind::Backward | Kind::Full => 1,
        Kind::Weight => 2,
    }
}
