//! Collectives over several nodes, composed of some inside nodes and some between them.
//!
//! A group that lies on N nodes with L members on each ([`Split`]), of n = N x L, moves its bytes over the slow links
//! as few times as possible:
//!
//! | collective | composition | received between nodes, per rank (flat) |
//! | --- | --- | --- |
//! | all_reduce | reduce_scatter inside, all_reduce between the ranks with the same chunk, all_gather inside | 2 (N-1)/n (2 (n-1)/n) of the block |
//! | reduce_scatter | inside, in chunks that leave each rank its column (the pieces of the ranks in its place on all nodes), then between | (N-1)/n ((n-1)/n) of the block |
//! | all_gather | between, which gives each rank its column, then inside | (N-1)/n ((n-1)/n) of the whole |
//!
//! Bits: a reduction adds axis by axis, each as a balanced tree ([`CollectiveTask::axes`]), and rounds every sum to the
//! type of the elements. Blocks of a power of two of an axis are subtrees, so composing changes no value; a group whose
//! nodes hold other blocks stays one call. Whatever is decided is decided from what all ranks know alike: groups that do
//! not lie on nodes evenly, and pieces of unequal sizes, stay flat.
//!
//! Every stage is a step of the program ([`OnNodes::Stage`]). Stages of collectives that are launched ahead
//! ([`super::schedule`]) are started where so much of the work that they hide behind is done as those before them take.
//!
//! Source: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (IJHPCA 19(1),
//! 2005), section 4 (times of the flat algorithms for short and long messages); BlueConnect (Cho et al., MLSys 2019)
//! for the decomposition.
//!
//! Not here: all-to-all; more than two levels.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use super::{Context, Report, State};
use crate::error::PlanError;
use crate::facts::flow::{ends, work};
use crate::ir::levels::{Level, levels, levels_of};
use crate::ir::{Move, OnNodes, Op, Program, ProgramStep, Slot, collective, ordered};
use crate::layout::Layout;
use crate::layout::redistribute::Step;
use crate::mesh::collective::Kind;
use crate::mesh::{AxisIndex, Link, Links, MeshShape, Rank, ReduceOp, Split, Topology};
use crate::options::PlanOptions;

/// Bytes of the undivided block below which a collective stays flat if nothing is known of the links: two more calls,
/// at the 20 microseconds that one takes between processes, are the time of 50 kB at 10 gigabits per second.
const BYTES_MIN: u64 = 64 * 1024;
/// How much slower a byte is between nodes than inside, if nothing is known of the links.
const SLOWER: u64 = 10;

/// What becomes of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It is inside nodes, or has one rank on each.
    OneLevel,
    /// It stays one call over several nodes, for this reason.
    Flat(&'static str),
    /// It is composed.
    Composed(Split),
}

/// The two levels of a mesh: inside nodes, and between them.
pub(super) struct Hierarchy<'a> {
    mesh: &'a MeshShape,
    topology: &'a Topology,
    links: &'a Links,
    bytes_min: Option<u64>,
    /// How each axis lies on nodes.
    axes: Vec<Option<Split>>,
    groups: RefCell<HashMap<Vec<AxisIndex>, Option<Split>>>,
}

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let hierarchy = Hierarchy::new(context.mesh, context.options);
    for program in &mut state.programs {
        hierarchy.compose(program);
    }
    Ok(Report::default())
}

impl<'a> Hierarchy<'a> {
    fn new(mesh: &'a MeshShape, options: &'a PlanOptions) -> Self {
        let topology = &options.topology;
        let single = topology.num_nodes() < 2;
        let split = |axis| match single {
            true => None,
            false => topology.split(mesh, axis),
        };
        Self {
            mesh,
            topology,
            links: &options.links,
            bytes_min: options.hierarchy_bytes_min,
            axes: mesh.axis_indices().map(split).collect(),
            groups: RefCell::default(),
        }
    }

    fn is_single(&self) -> bool {
        self.topology.num_nodes() < 2
    }

    /// Decides, from what all ranks know alike.
    fn decide(&self, step: &Step, elem_bytes: usize) -> Decision {
        if self.is_single() {
            return Decision::OneLevel;
        }
        let Some((kind, axes, bytes)) = self.parts(step, elem_bytes) else {
            return Decision::OneLevel;
        };
        if kind == Kind::AllToAll {
            let mut splits = axes.iter().map(|axis| self.axes[usize::from(axis.0)]);
            return match splits.any(|split| split.is_none_or(|split| split.nodes > 1)) {
                true => Decision::Flat("all-to-all"),
                false => Decision::OneLevel,
            };
        }
        let split = *self
            .groups
            .borrow_mut()
            .entry(axes.clone())
            .or_insert_with(|| self.topology.split_over(self.mesh, &axes));
        let Some(split) = split else {
            return Decision::Flat("its groups lie on nodes unevenly");
        };
        if !split.is_hierarchical() {
            return Decision::OneLevel;
        }
        if kind != Kind::AllGather {
            if step.kind.reduce_op() == Some(ReduceOp::Mean) {
                return Decision::Flat("a mean is divided once");
            }
            let sizes: Vec<usize> = axes.iter().map(|&axis| self.mesh.size(axis)).collect();
            if levels_of(&sizes, split).is_none() {
                return Decision::Flat("the ranks of a node are no subtree of its sums");
            }
        }
        let even = step.from.is_even(self.mesh) && step.to.is_even(self.mesh);
        if kind != Kind::AllReduce && !even {
            return Decision::Flat("its pieces are of unequal sizes");
        }
        match self.pays(kind, split, bytes, &axes) {
            true => Decision::Composed(split),
            false => Decision::Flat("so small that more calls take longer"),
        }
    }

    /// Returns the kind of a collective, its axes in the order of its group, and the bytes of its undivided block;
    /// `None` of a local step.
    fn parts(&self, step: &Step, elem_bytes: usize) -> Option<(Kind, Vec<AxisIndex>, u64)> {
        let (kind, axes) = ordered(&step.kind, self.mesh)?;
        let numel = |layout: &Layout| layout.local_numel(self.mesh, Rank(0));
        let bytes = numel(&step.from).max(numel(&step.to)) * elem_bytes;
        Some((kind, axes, bytes as u64))
    }

    /// Returns the links inside and between nodes of a group along `axes`, if they are known.
    fn pair(&self, axes: &[AxisIndex]) -> Option<(Link, Link)> {
        let names = || axes.iter().map(|&axis| self.mesh.name(axis));
        let inside = self.links.on(names(), false)?;
        Some((inside, self.links.on(names(), true)?))
    }

    /// Returns whether composing a collective whose undivided block has so many bytes saves time.
    fn pays(&self, kind: Kind, split: Split, bytes: u64, axes: &[AxisIndex]) -> bool {
        if let Some(least) = self.bytes_min {
            return bytes >= least;
        }
        let Some((_, between)) = self.pair(axes) else {
            return bytes >= BYTES_MIN;
        };
        // A flat collective of a few bytes takes log n rounds, whatever the algorithm.
        let members = (split.nodes * split.per_node) as u64;
        let rounds = u64::from(members.next_power_of_two().ilog2());
        let ring = bytes / members * (members - 1);
        let flat = match kind {
            Kind::AllReduce => {
                let doubling = between.transfer_ns(rounds, rounds * bytes);
                doubling.min(between.transfer_ns(2 * rounds, 2 * ring))
            }
            _ => between.transfer_ns(rounds, ring),
        };
        let composed: u64 = self.stage_times(kind, split, bytes, axes).sum();
        composed < flat
    }

    /// Returns how long each stage of a composed collective takes; see [`stage_ns`].
    fn stage_times(
        &self,
        kind: Kind,
        split: Split,
        bytes: u64,
        axes: &[AxisIndex],
    ) -> impl Iterator<Item = u64> {
        let links = self.pair(axes);
        let stages = levels(kind).iter();
        stages.map(move |level| stage_ns(level, split, bytes, links))
    }

    /// Cuts the collectives of a program that pay for it into stages. Those of launched ones are started one after the
    /// other between the launch and its end.
    pub(crate) fn compose<O: Op>(&self, program: &mut Program<O>) {
        if self.is_single() {
            return;
        }
        let mut relays = self.relays(program).into_iter().peekable();
        let num_launches = program.launched().map(|(group, _)| group + 1).max();
        let num_launches = num_launches.unwrap_or(0);
        // Stages of launched collectives that are still to be started, by the launch of the first.
        let mut waiting: HashMap<u32, Vec<VecDeque<Move>>> = HashMap::new();
        // Of composed collectives, the launch that makes the result.
        let mut last: HashMap<Slot, u32> = HashMap::new();
        let old = std::mem::take(&mut program.steps);
        for (index, step) in old.into_iter().map(Some).chain([None]).enumerate() {
            while let Some((_, group, stage)) = relays.next_if(|(at, ..)| *at == index) {
                let waiting = waiting.entry(group).or_default();
                let moves = waiting.iter_mut().filter_map(VecDeque::pop_front);
                let moves: Vec<Move> = moves.collect();
                let group = group + stage * num_launches;
                program.steps.push(ProgramStep::Finish {
                    group: group - num_launches,
                    to: moves.iter().map(|step| step.from).collect(),
                });
                program.steps.push(ProgramStep::Launch { group, moves });
            }
            match step {
                Some(ProgramStep::Move(step)) => {
                    let stages = self.stages(program, step);
                    program
                        .steps
                        .extend(stages.into_iter().map(ProgramStep::Move));
                }
                Some(ProgramStep::Launch { group, moves }) => {
                    let mut first = Vec::with_capacity(moves.len());
                    for step in moves {
                        let to = step.to;
                        let mut stages = self.stages(program, step);
                        first.extend(stages.pop_front());
                        if !stages.is_empty() {
                            last.insert(to, group + stages.len() as u32 * num_launches);
                            waiting.entry(group).or_default().push(stages);
                        }
                    }
                    let moves = first;
                    program.steps.push(ProgramStep::Launch { group, moves });
                }
                Some(ProgramStep::Finish { group, to }) => {
                    let mut ends: Vec<(u32, Vec<Slot>)> = Vec::new();
                    for slot in to {
                        let number = last.get(&slot).copied().unwrap_or(group);
                        match ends.iter_mut().find(|(known, _)| *known == number) {
                            Some((_, slots)) => slots.push(slot),
                            None => ends.push((number, vec![slot])),
                        }
                    }
                    let finish = |(group, to)| ProgramStep::Finish { group, to };
                    program.steps.extend(ends.into_iter().map(finish));
                }
                step => program.steps.extend(step),
            }
        }
    }

    /// Returns the stages of a move, or the move with what is known of its nodes.
    fn stages<O: Op>(&self, program: &mut Program<O>, moved: Move) -> VecDeque<Move> {
        let elem_bytes = program.slots[moved.to as usize].dtype.size();
        let split = match self.decide(&moved.step, elem_bytes) {
            Decision::OneLevel => return [moved].into(),
            Decision::Flat(why) => {
                let on_nodes = OnNodes::Flat(why);
                return [Move { on_nodes, ..moved }].into();
            }
            Decision::Composed(split) => split,
        };
        let num_stages = collective(&moved.step.kind).map_or(0, |(kind, _)| levels(kind).len());
        let mut from = moved.from;
        let stage = |index: usize| {
            let to = match index + 1 == num_stages {
                true => moved.to,
                false => {
                    let slot = program.slots[moved.to as usize].clone();
                    program.slots.push(slot);
                    program.slots.len() as Slot - 1
                }
            };
            let index = index as u8;
            Move {
                from: std::mem::replace(&mut from, to),
                to,
                on_nodes: OnNodes::Stage { split, index },
                ..moved.clone()
            }
        };
        (0..num_stages).map(stage).collect()
    }

    /// Returns where the later stages of launched collectives are started: before which step, of which launch, which
    /// stage.
    fn relays<O: Op>(&self, program: &Program<O>) -> Vec<(usize, u32, u32)> {
        let mut works = vec![0.0];
        for step in &program.steps {
            let here = match step {
                ProgramStep::Local(_) => work(step, &ends(step), program, self.mesh),
                _ => 0.0,
            };
            works.push(works[works.len() - 1] + here);
        }
        // Where each launch is first waited for.
        let mut ends: HashMap<u32, usize> = HashMap::new();
        for (index, step) in program.steps.iter().enumerate() {
            if let ProgramStep::Finish { group, .. } = step {
                ends.entry(*group).or_insert(index);
            }
        }
        let mut relays: Vec<(usize, u32, u32)> = Vec::new();
        for (start, step) in program.steps.iter().enumerate() {
            let ProgramStep::Launch { group, moves } = step else {
                continue;
            };
            let times = self.launch_times(program, moves);
            if times.len() < 2 {
                continue;
            }
            let end = ends.get(group).copied().unwrap_or(program.steps.len());
            let (all, total) = (works[end] - works[start + 1], times.iter().sum::<u64>());
            let mut before = 0;
            for (stage, time) in (1..).zip(&times[..times.len() - 1]) {
                before += time;
                let wanted = works[start + 1] + all * (before as f64 / total.max(1) as f64);
                let done = |so_far: &f64| *so_far < wanted;
                let at = match all > 0.0 {
                    true => start + 1 + works[start + 1..end].partition_point(done),
                    false => end,
                };
                relays.push((at, *group, stage));
            }
        }
        relays.sort_unstable();
        relays
    }

    /// Returns how long each stage of the composed members of a launch takes; see [`stage_ns`].
    fn launch_times<O: Op>(&self, program: &Program<O>, moves: &[Move]) -> Vec<u64> {
        let mut times: Vec<u64> = Vec::new();
        for moved in moves {
            let elem = program.slots[moved.to as usize].dtype.size();
            let Decision::Composed(split) = self.decide(&moved.step, elem) else {
                continue;
            };
            let Some((kind, axes, bytes)) = self.parts(&moved.step, elem) else {
                continue;
            };
            times.resize(levels(kind).len().max(times.len()), 0);
            let stages = self.stage_times(kind, split, bytes, &axes);
            for (time, stage) in times.iter_mut().zip(stages) {
                *time += stage;
            }
        }
        times
    }
}

/// Returns how long one stage takes of a collective whose undivided block has so many bytes, over the links inside and
/// between nodes: in nanoseconds; if the links are not known, in bytes inside a node.
fn stage_ns(level: &Level, split: Split, bytes: u64, links: Option<(Link, Link)>) -> u64 {
    let (members, block) = match level.between {
        true => (split.nodes, bytes / split.per_node as u64),
        false => (split.per_node, bytes),
    };
    // An all-reduce scatters, and then gathers as much.
    let passes = 1 + u64::from(level.kind == Kind::AllReduce);
    let received = passes * (block / members as u64 * (members as u64 - 1));
    let rounds = level.kind.rounds(members);
    match (links, level.between) {
        (Some((_, between)), true) => between.transfer_ns(rounds, received),
        (Some((inside, _)), false) => inside.transfer_ns(rounds, received),
        (None, true) => SLOWER * received,
        (None, false) => received,
    }
}

#[cfg(test)]
mod tests;
