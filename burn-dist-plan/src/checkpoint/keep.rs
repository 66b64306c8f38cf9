//! What is kept inside a unit that is checkpointed: results that cost much to make.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

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
    let mut budgets: BTreeMap<(u64, usize), Vec<&mut Section>> = BTreeMap::new();
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
                let key = (budget, section.pass);
                budgets.entry(key).or_default().push(section);
            }
        }
    }
    if budgets.is_empty() {
        return;
    }
    let steps = program.steps.iter().zip(&flow.ends);
    let works = steps.map(|(step, ends)| work(step, ends, program, mesh));
    let works: Vec<f64> = works.collect();
    for ((budget, _), mut within) in budgets {
        fill(budget, program, flow, &works, &mut within);
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

/// An offer among those of all sections: the best first, and the earliest of equals.
struct Ranked {
    offer: Offer,
    earlier: Reverse<(usize, usize)>,
    round: u32,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_density = self.offer.density.total_cmp(&other.offer.density);
        by_density.then(self.earlier.cmp(&other.earlier))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

/// Keeps the slot that saves the most work per byte, again and again, until the budget holds no more.
fn fill<O: Op>(
    mut budget: u64,
    program: &Program<O>,
    flow: &Flow,
    works: &[f64],
    sections: &mut [&mut Section],
) {
    // How often the offers of each section were made: earlier ones count no more.
    let mut round = vec![0; sections.len()];
    let mut offers: BinaryHeap<Ranked> = BinaryHeap::new();
    let rank = |section: usize, round: u32, all: Vec<Offer>| {
        let ranked = move |(number, offer)| Ranked {
            offer,
            earlier: Reverse((section, number)),
            round,
        };
        all.into_iter().enumerate().map(ranked)
    };
    for (index, section) in sections.iter_mut().enumerate() {
        offers.extend(rank(index, 0, offers_of(section, program, flow, works)));
    }
    while let Some(Ranked {
        offer,
        earlier: Reverse((index, _)),
        round: made,
    }) = offers.pop()
    {
        // What does not fit now never will.
        if made != round[index] || offer.bytes > budget {
            continue;
        }
        budget -= offer.bytes;
        let section = &mut sections[index];
        section.kept.insert(offer.slot);
        round[index] += 1;
        let all = offers_of(section, program, flow, works);
        offers.extend(rank(index, round[index], all));
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
