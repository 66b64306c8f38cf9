//! What is kept inside a unit that is checkpointed: results that cost much to make.

use std::collections::{BTreeSet, HashMap};

use super::flow::{Flow, reduces, work};
use super::rewrite::Section;
use super::visits::Visits;
use crate::Checkpoint;
use crate::mesh::MeshShape;
use crate::op::{Op, Work};
use crate::propagate::{Common, Program};
use crate::task::Slot;

/// Decides what is kept inside the sections, as the policy of each says.
pub(super) fn keep<O: Op>(
    program: &Program<O>,
    flow: &Flow,
    mesh: &MeshShape,
    sections: &mut [Section],
) {
    let mut budgets: BTreeSet<(u64, usize)> = BTreeSet::new();
    for section in sections.iter_mut() {
        match section.policy {
            Checkpoint::None | Checkpoint::Full | Checkpoint::EveryNth(_) => {}
            Checkpoint::Selective => {
                for step in section.closure(program, flow) {
                    if is_costly(&program.steps[step], flow, step) {
                        section.kept.extend(&flow.ends[step].writes);
                    }
                }
            }
            Checkpoint::Bytes(budget) => {
                budgets.insert((budget, section.pass));
            }
        }
    }
    for (budget, pass) in budgets {
        let mut within: Vec<&mut Section> = sections
            .iter_mut()
            .filter(|section| section.pass == pass && section.policy == Checkpoint::Bytes(budget))
            .collect();
        fill(budget, program, flow, mesh, &mut within);
    }
}

fn is_costly<O: Op>(step: &Common<O>, flow: &Flow, index: usize) -> bool {
    let Common::Local(local) = step else {
        return reduces(step);
    };
    match local.op.traits().work {
        Work::Layer => true,
        Work::Product => {
            let ends = &flow.ends[index];
            let bytes =
                |slots: &[Slot]| -> u64 { slots.iter().map(|s| flow.bytes[*s as usize]).sum() };
            bytes(&ends.writes) <= bytes(&ends.reads)
        }
        Work::Other => false,
    }
}

/// What keeping a slot would save, per byte.
struct Offer {
    slot: Slot,
    bytes: u64,
    density: f64,
}

/// Keeps the slot that saves the most work per byte, again and again, until the budget holds no more.
fn fill<O: Op>(
    mut budget: u64,
    program: &Program<O>,
    flow: &Flow,
    mesh: &MeshShape,
    sections: &mut [&mut Section],
) {
    let works: Vec<f64> = program
        .steps
        .iter()
        .zip(&flow.ends)
        .map(|(step, ends)| work(step, ends, program, mesh))
        .collect();
    let mut offers: Vec<Vec<Offer>> = sections
        .iter_mut()
        .map(|section| offers_of(section, program, flow, &works))
        .collect();
    loop {
        let best = offers
            .iter()
            .enumerate()
            .flat_map(|(index, offers)| offers.iter().map(move |offer| (index, offer)))
            .filter(|(_, offer)| offer.bytes <= budget)
            // The earliest of equals.
            .reduce(|best, next| {
                if next.1.density > best.1.density {
                    next
                } else {
                    best
                }
            });
        let Some((index, offer)) = best else { return };
        budget -= offer.bytes;
        let section = &mut sections[index];
        section.kept.insert(offer.slot);
        offers[index] = offers_of(section, program, flow, &works);
    }
}

fn offers_of<O: Op>(
    section: &mut Section,
    program: &Program<O>,
    flow: &Flow,
    works: &[f64],
) -> Vec<Offer> {
    let total = |steps: &[usize]| -> f64 { steps.iter().map(|step| works[*step]).sum() };
    let closure = section.closure(program, flow);
    let all = total(&closure);
    let held: BTreeSet<Slot> = section
        .kept
        .iter()
        .map(|slot| flow.root[*slot as usize])
        .collect();
    let mut offers = Vec::new();
    for step in closure {
        for &slot in &flow.ends[step].writes {
            if flow.param[slot as usize] {
                continue;
            }
            section.kept.insert(slot);
            let saved = all - total(&section.closure(program, flow));
            section.kept.remove(&slot);
            if saved <= 0.0 {
                continue;
            }
            let root = flow.root[slot as usize];
            let bytes = match held.contains(&root) {
                true => 0,
                false => flow.bytes[root as usize],
            };
            offers.push(Offer {
                slot,
                bytes,
                density: saved / bytes.max(1) as f64,
            });
        }
    }
    offers
}

/// Returns the stretches that are made again.
pub(super) fn sections(visits: &Visits) -> Vec<Section> {
    // The number of each unit among those of its policy.
    let mut units: HashMap<Checkpoint, usize> = HashMap::new();
    let numbers = visits.policies.iter().map(|policy| {
        let number = units.entry(*policy).or_default();
        *number += 1;
        *number
    });
    let numbers: Vec<usize> = numbers.collect();
    let mut sections = Vec::new();
    for (index, segment) in visits.segments.iter().enumerate() {
        let (Some(unit), true) = (segment.unit, segment.forward) else {
            continue;
        };
        let policy = visits.policies[unit];
        let chosen = match policy {
            Checkpoint::None => false,
            Checkpoint::Full | Checkpoint::Selective | Checkpoint::Bytes(_) => true,
            Checkpoint::EveryNth(n) => numbers[unit].is_multiple_of(n.get()),
        };
        if chosen {
            sections.push(Section::new(index, policy));
        }
    }
    sections
}
