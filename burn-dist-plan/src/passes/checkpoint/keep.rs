//! What is kept inside a unit that is checkpointed: results that cost much to make.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use super::rewrite::Section;
use super::visits::Visits;
use crate::ActivationCheckpoint;
use crate::facts::flow::{Flow, reduces, work};
use crate::ir::{Op, Program, ProgramStep, Slot, Work};
use crate::mesh::MeshShape;

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
            ActivationCheckpoint::None
            | ActivationCheckpoint::Full
            | ActivationCheckpoint::EveryNth(_) => {}
            ActivationCheckpoint::Selective => {
                for step in section.closure(program, flow) {
                    if is_costly(&program.steps[step], flow, step) {
                        section.kept.extend(&flow.ends[step].writes);
                    }
                }
            }
            ActivationCheckpoint::Bytes(budget) => {
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

fn is_costly<O: Op>(step: &ProgramStep<O>, flow: &Flow, index: usize) -> bool {
    let ProgramStep::Local(local) = step else {
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
    works: &[f64],
    sections: &mut [&mut Section],
) {
    // How often the offers of each section were made: earlier ones count no more.
    let mut rounds = vec![0; sections.len()];
    // Of all sections the best first, and the earliest of equals. Nothing saves less than no work, so the order of the
    // bits is that of what is saved.
    let mut offers = BinaryHeap::new();
    let ranked = |section: usize, round: u32, all: Vec<Offer>| {
        let ranked = move |(number, offer): (usize, Offer)| {
            let earlier = Reverse((section, number));
            (
                offer.density.to_bits(),
                earlier,
                round,
                offer.slot,
                offer.bytes,
            )
        };
        all.into_iter().enumerate().map(ranked)
    };
    for (index, section) in sections.iter_mut().enumerate() {
        offers.extend(ranked(index, 0, offers_of(section, program, flow, works)));
    }
    while let Some((_, Reverse((index, _)), round, slot, bytes)) = offers.pop() {
        // What does not fit now never will.
        if round != rounds[index] || bytes > budget {
            continue;
        }
        budget -= bytes;
        let section = &mut sections[index];
        section.kept.insert(slot);
        rounds[index] += 1;
        let all = offers_of(section, program, flow, works);
        offers.extend(ranked(index, rounds[index], all));
    }
}

fn offers_of<O: Op>(
    section: &Section,
    program: &Program<O>,
    flow: &Flow,
    works: &[f64],
) -> Vec<Offer> {
    let held: BTreeSet<Slot> = section
        .kept
        .iter()
        .map(|slot| flow.root[*slot as usize])
        .collect();
    let savings = savings(section, program, flow, works).into_iter();
    let savings = savings.filter(|(slot, saved)| !flow.param[*slot as usize] && *saved > 0.0);
    let offer = |(slot, saved): (Slot, f64)| {
        let root = flow.root[slot as usize];
        let bytes = match held.contains(&root) {
            true => 0,
            false => flow.bytes[root as usize],
        };
        Offer {
            slot,
            bytes,
            density: saved / bytes.max(1) as f64,
        }
    };
    savings.map(offer).collect()
}

/// Returns the work that keeping each slot would save that is made again, in the order of steps: of the steps that are
/// needed for nothing else. Seen from what the backward uses, these are what the slot dominates.
fn savings<O: Op>(
    section: &Section,
    program: &Program<O>,
    flow: &Flow,
    works: &[f64],
) -> Vec<(Slot, f64)> {
    let steps = section.closure(program, flow);
    // Nodes are the steps, then the slots that they make, then where all is used.
    let slots = steps.iter().flat_map(|step| &flow.ends[*step].writes);
    let slots: Vec<Slot> = slots.copied().collect();
    let node_of: HashMap<Slot, usize> = slots.iter().copied().zip(steps.len()..).collect();
    let root = steps.len() + slots.len();
    let mut tree = Dominators::new(root);
    for slot in section
        .far
        .iter()
        .filter(|slot| !section.kept.contains(slot))
    {
        tree.reach(node_of[slot], root);
    }
    // What uses something comes after it.
    for (node, step) in steps.iter().enumerate().rev() {
        for slot in &flow.ends[*step].writes {
            let slot = node_of[slot];
            tree.settle(slot);
            if tree.is_reached(slot) {
                tree.reach(node, slot);
            }
        }
        tree.settle(node);
        for read in &flow.ends[*step].reads {
            if !section.stays(*read, program, flow) {
                tree.reach(node_of[read], node);
            }
        }
    }
    let mut total = vec![0.0; root + 1];
    for (node, step) in steps.iter().enumerate() {
        total[node] += works[*step];
        total[tree.above(node)] += total[node];
        for slot in &flow.ends[*step].writes {
            let slot = node_of[slot];
            if tree.is_reached(slot) {
                total[tree.above(slot)] += total[slot];
            }
        }
    }
    let reached = slots.iter().filter(|slot| tree.is_reached(node_of[slot]));
    reached.map(|slot| (*slot, total[node_of[slot]])).collect()
}

/// The node through which all ways from the root to each node lead, the nearest such.
struct Dominators {
    above: Vec<Option<usize>>,
    depth: Vec<u32>,
}

impl Dominators {
    fn new(root: usize) -> Self {
        let mut above = vec![None; root + 1];
        above[root] = Some(root);
        Self {
            above,
            depth: vec![0; root + 1],
        }
    }

    /// Adds a way to a node, from one that is settled.
    fn reach(&mut self, node: usize, from: usize) {
        let other = self.above[node].unwrap_or(from);
        let (mut one, mut two) = (other, from);
        while one != two {
            match self.depth[one] >= self.depth[two] {
                true => one = self.above(one),
                false => two = self.above(two),
            }
        }
        self.above[node] = Some(one);
    }

    /// Notes that all ways to a node are known.
    fn settle(&mut self, node: usize) {
        self.depth[node] = self.depth[self.above(node)] + 1;
    }

    fn is_reached(&self, node: usize) -> bool {
        self.above[node].is_some()
    }

    fn above(&self, node: usize) -> usize {
        self.above[node].unwrap_or(self.above.len() - 1)
    }
}

/// Returns the stretches that are made again.
pub(super) fn sections(visits: &Visits) -> Vec<Section> {
    // The number of each unit among those of its policy.
    let mut units: HashMap<ActivationCheckpoint, usize> = HashMap::new();
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
            ActivationCheckpoint::None => false,
            ActivationCheckpoint::Full
            | ActivationCheckpoint::Selective
            | ActivationCheckpoint::Bytes(_) => true,
            ActivationCheckpoint::EveryNth(n) => numbers[unit].is_multiple_of(n.get()),
        };
        if chosen {
            sections.push(Section {
                segment: index,
                policy,
                ..Section::default()
            });
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use crate::planner::Planner;
    use crate::toy::{Builder, Kind, options};

    /// Three units of several operations, each of which the backward uses.
    fn step(mesh: &str) -> Builder {
        let mut b = Builder::new(mesh);
        let weights = ["first", "second", "third"].map(|name| {
            b.param(Builder::spec(
                &format!("{name}.weight"),
                &[4, 4],
                Some(name),
            ))
        });
        let mut x = b.data(&[8, 4]);
        let mut saved = Vec::new();
        for w in weights {
            let h = b.linear(x, w);
            let one = b.exp(h);
            let two = b.exp(one);
            let sum = b.pair(Kind::Add, one, two);
            let product = b.pair(Kind::Mul, sum, h);
            let y = b.exp(product);
            saved.push((x, w, [h, two, product]));
            x = y;
        }
        let mut g = b.ones_for(x);
        for (x, w, used) in saved.into_iter().rev() {
            for value in used {
                g = b.pair(Kind::Mul, g, value);
            }
            let (gx, gw) = b.linear_backward(x, w, g);
            let new = b.pair(Kind::Sub, w, gw);
            b.survive(new);
            g = gx;
        }
        b.under(Policy {
            checkpoint: ActivationCheckpoint::Bytes(64),
            ..Policy::default()
        })
    }

    /// Law: what is kept is what saves the most per byte of all that fits, and so on with what is left to save.
    #[test]
    fn what_saves_the_most_is_kept_until_nothing_fits() {
        let b = step("");
        let options = options(&b.mesh);
        let mut planner = Planner::new(&b.window, &b.mesh, &options);
        planner.run(Some("propagate")).expect("a program");
        let state = planner.state;
        let program = state.program();
        let flow = Flow::new(program, &state.facts, &b.mesh);
        let visits = super::super::visits::visits(program, &flow);
        let steps = program.steps.iter().zip(&flow.ends);
        let works = steps.map(|(step, ends)| work(step, ends, program, &b.mesh));
        let works: Vec<f64> = works.collect();
        let found = || {
            let mut sections = sections(&visits);
            for section in &mut sections {
                section.find(program, &flow, &visits);
            }
            sections
        };
        let bytes = 8 * 4 * 4;
        for slots in 0..12 {
            let (mut filled, mut expected) = (found(), found());
            let mut within: Vec<&mut Section> = filled.iter_mut().collect();
            fill(slots * bytes, program, &flow, &works, &mut within);
            let mut budget = slots * bytes;
            loop {
                let mut best: Option<(usize, Offer)> = None;
                for (index, section) in expected.iter().enumerate() {
                    for offer in offers_of(section, program, &flow, &works) {
                        let better = |(_, best): &(usize, Offer)| offer.density > best.density;
                        if offer.bytes <= budget && best.as_ref().is_none_or(better) {
                            best = Some((index, offer));
                        }
                    }
                }
                let Some((index, offer)) = best else { break };
                budget -= offer.bytes;
                expected[index].kept.insert(offer.slot);
            }
            let kept = |of: &[Section]| of.iter().map(|of| of.kept.clone()).collect::<Vec<_>>();
            assert_eq!(kept(&filled), kept(&expected), "{slots} slots");
        }
    }

    /// Law: what keeping a slot saves is the work that is no longer made again.
    #[test]
    fn savings_are_the_work_that_is_made_no_more() {
        for mesh in ["", "fsdp=2", "dp=2,tp=2"] {
            let b = step(mesh);
            let options = options(&b.mesh);
            let mut planner = Planner::new(&b.window, &b.mesh, &options);
            planner.run(Some("propagate")).expect("a program");
            let state = planner.state;
            let program = state.program();
            let flow = Flow::new(program, &state.facts, &b.mesh);
            let visits = super::super::visits::visits(program, &flow);
            let steps = program.steps.iter().zip(&flow.ends);
            let works = steps.map(|(step, ends)| work(step, ends, program, &b.mesh));
            let works: Vec<f64> = works.collect();
            let work_of = |section: &Section| -> f64 {
                let steps = section.closure(program, &flow);
                steps.into_iter().map(|step| works[step]).sum()
            };
            let mut found = 0;
            for mut section in sections(&visits) {
                section.find(program, &flow, &visits);
                let kept = section.far.iter().next_back().copied();
                for kept in [None, kept] {
                    section.kept.extend(kept);
                    let all = work_of(&section);
                    for (slot, saved) in savings(&section, program, &flow, &works) {
                        section.kept.insert(slot);
                        let expected = all - work_of(&section);
                        section.kept.remove(&slot);
                        assert!((saved - expected).abs() <= 1e-9 * all, "s{slot} on {mesh}");
                        found += 1;
                    }
                }
            }
            assert!(found >= 9, "{found} on {mesh}");
        }
    }
}
