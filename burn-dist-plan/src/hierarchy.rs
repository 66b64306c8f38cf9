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
//! Stages of collectives that are launched ahead ([`crate::schedule`]) are handed on ([`Common::Relay`]) where so much
//! of the work that they hide behind is done as their time takes.
//!
//! Source: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (IJHPCA 19(1),
//! 2005), section 4 (times of the flat algorithms for short and long messages); BlueConnect (Cho et al., MLSys 2019)
//! for the decomposition.
//!
//! Not here: all-to-all; more than two levels.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::checkpoint::{ends, work};
use crate::layout::redistribute::{Step, StepKind};
use crate::layout::{Layout, chunk};
use crate::lower::collective;
use crate::mesh::{AxisIndex, AxisRole, Link, Links, MeshShape, Rank, ReduceOp, Split, Topology};
use crate::op::Op;
use crate::options::PlanOptions;
use crate::propagate::{Common, Move, Program};
use crate::task::{CollectiveKind, CollectiveTask, Slot};

/// Bytes of the undivided block below which a collective stays flat if nothing is known of the links: two more calls,
/// at the 20 microseconds that one takes between processes, are the time of 50 kB at 10 gigabits per second.
const BYTES_MIN: u64 = 64 * 1024;
/// How much slower a byte is between nodes than inside, if nothing is known of the links.
const SLOWER: u64 = 10;

/// What becomes of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
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

impl<'a> Hierarchy<'a> {
    pub fn new(mesh: &'a MeshShape, options: &'a PlanOptions) -> Self {
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

    pub fn topology(&self) -> &'a Topology {
        self.topology
    }

    fn is_single(&self) -> bool {
        self.topology.num_nodes() < 2
    }

    /// Returns the sizes of axes, in the order of a group.
    fn sizes(&self, axes: &[AxisIndex]) -> Vec<usize> {
        axes.iter().map(|&axis| self.mesh.size(axis)).collect()
    }

    /// Decides, from what all ranks know alike.
    pub fn decide(&self, step: &Step, elem_bytes: usize) -> Decision {
        if self.is_single() {
            return Decision::OneLevel;
        }
        let Some((kind, axes, bytes)) = self.parts(step, elem_bytes) else {
            return Decision::OneLevel;
        };
        if kind == CollectiveKind::AllToAll {
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
        if kind != CollectiveKind::AllGather {
            if reduce_op(&step.kind) == Some(ReduceOp::Mean) {
                return Decision::Flat("a mean is divided once");
            }
            if levels_of(&self.sizes(&axes), split).is_none() {
                return Decision::Flat("the ranks of a node are no subtree of its sums");
            }
        }
        let even = is_even(&step.from, self.mesh) && is_even(&step.to, self.mesh);
        if kind != CollectiveKind::AllReduce && !even {
            return Decision::Flat("its pieces are of unequal sizes");
        }
        match self.pays(kind, split, bytes, &axes) {
            true => Decision::Composed(split),
            false => Decision::Flat("so small that more calls take longer"),
        }
    }

    /// Returns the kind of a collective, its axes in the order of its group, and the bytes of its undivided block;
    /// `None` of a local step.
    fn parts(
        &self,
        step: &Step,
        elem_bytes: usize,
    ) -> Option<(CollectiveKind, Vec<AxisIndex>, u64)> {
        let (kind, mut axes) = collective(&step.kind)?;
        if kind == CollectiveKind::AllReduce {
            axes = reduce_order(&axes, self.mesh);
        }
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

    /// Whether composing a collective whose undivided block has so many bytes saves time.
    fn pays(&self, kind: CollectiveKind, split: Split, bytes: u64, axes: &[AxisIndex]) -> bool {
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
            CollectiveKind::AllReduce => {
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
        kind: CollectiveKind,
        split: Split,
        bytes: u64,
        axes: &[AxisIndex],
    ) -> impl Iterator<Item = u64> {
        let links = self.pair(axes);
        let stages = levels(kind).iter();
        stages.map(move |level| stage_ns(level, split, bytes, links))
    }

    /// Hands the stages of launched collectives on, between their launch and their end.
    pub fn relay<O: Op>(&self, program: &mut Program<O>) {
        if self.is_single() {
            return;
        }
        let mut works = vec![0.0];
        for step in &program.steps {
            let here = match step {
                Common::Local(_) => work(step, &ends(step), program, self.mesh),
                _ => 0.0,
            };
            works.push(works[works.len() - 1] + here);
        }
        // Before which step, which launch, which stage.
        let mut relays: Vec<(usize, u32, u32)> = Vec::new();
        for (start, step) in program.steps.iter().enumerate() {
            let Common::Launch { group, moves } = step else {
                continue;
            };
            let times = self.launch_times(program, moves);
            if times.len() < 2 {
                continue;
            }
            let ended =
                |step: &Common<O>| matches!(step, Common::Finish { group: g, .. } if g == group);
            let end = (start + 1..program.steps.len()).find(|i| ended(&program.steps[*i]));
            let end = end.unwrap_or(program.steps.len());
            let (all, total) = (works[end] - works[start + 1], times.iter().sum::<u64>());
            let mut before = 0;
            for (stage, time) in (1..).zip(&times[..times.len() - 1]) {
                before += time;
                let wanted = works[start + 1] + all * (before as f64 / total.max(1) as f64);
                let at = (start + 1..end).find(|i| works[*i] >= wanted && all > 0.0);
                relays.push((at.unwrap_or(end), *group, stage));
            }
        }
        relays.sort_unstable();
        let mut relays = relays.into_iter().peekable();
        let old = std::mem::take(&mut program.steps);
        for (index, step) in old.into_iter().map(Some).chain([None]).enumerate() {
            while let Some((_, group, stage)) = relays.next_if(|(at, ..)| *at == index) {
                program.steps.push(Common::Relay { group, stage });
            }
            program.steps.extend(step);
        }
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

/// One stage of a composition.
struct Level {
    kind: CollectiveKind,
    between: bool,
}

fn levels(kind: CollectiveKind) -> &'static [Level] {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    const fn level(kind: CollectiveKind, between: bool) -> Level {
        Level { kind, between }
    }
    match kind {
        AllReduce => {
            const {
                &[
                    level(ReduceScatter, false),
                    level(AllReduce, true),
                    level(AllGather, false),
                ]
            }
        }
        ReduceScatter => const { &[level(ReduceScatter, false), level(ReduceScatter, true)] },
        AllGather => const { &[level(AllGather, true), level(AllGather, false)] },
        CollectiveKind::AllToAll => &[],
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
    let passes = 1 + u64::from(level.kind == CollectiveKind::AllReduce);
    let received = passes * (block / members as u64 * (members as u64 - 1));
    let rounds = level.kind.rounds(members);
    match (links, level.between) {
        (Some((_, between)), true) => between.transfer_ns(rounds, received),
        (Some((inside, _)), false) => inside.transfer_ns(rounds, received),
        (None, true) => SLOWER * received,
        (None, false) => received,
    }
}

/// Returns the axes of an all-reduce in the order of its group: shard axes last, and so first to be reduced over, as
/// where they scatter and the others reduce what is left (HSDP): the order of terms is the same.
pub(super) fn reduce_order(axes: &[AxisIndex], mesh: &MeshShape) -> Vec<AxisIndex> {
    let mut axes = axes.to_vec();
    axes.sort_by_key(|axis| (mesh.role(*axis) == AxisRole::Shard, *axis));
    axes
}

/// Whether every rank has a part of the same shape.
fn is_even(layout: &Layout, mesh: &MeshShape) -> bool {
    let factors = layout.dims.iter().flat_map(|dim| &dim.factors);
    factors
        .map(|factor| (factor.size, mesh.group_size(&factor.axes)))
        .all(|(size, parts)| size % parts == 0)
}

fn reduce_op(kind: &StepKind) -> Option<ReduceOp> {
    match kind {
        StepKind::ReduceScatter { op, .. } | StepKind::AllReduce { op, .. } => Some(*op),
        _ => None,
    }
}

/// Returns the axes of a reduction between nodes and inside them, if the ranks of each node are a subtree of its sums:
/// if the cut falls between two axes, or leaves blocks of a power of two of one.
fn levels_of(sizes: &[usize], split: Split) -> Option<(Vec<usize>, Vec<usize>)> {
    let mut inside: Vec<usize> = Vec::new();
    let mut between: Vec<usize> = sizes.to_vec();
    let mut left = split.per_node;
    while left > 1 {
        let size = between.pop()?;
        if left.is_multiple_of(size) {
            inside.insert(0, size);
            left /= size;
            continue;
        }
        if !size.is_multiple_of(left) || !left.is_power_of_two() {
            return None;
        }
        inside.insert(0, left);
        between.push(size / left);
        left = 1;
    }
    Some((between, inside))
}

/// Cuts a flat collective into its stages, in order. Intermediate results take new slots, from `num_slots` on.
pub(super) fn stages(
    flat: CollectiveTask,
    split: Split,
    num_slots: &mut Slot,
) -> Vec<CollectiveTask> {
    let Split { nodes, per_node } = split;
    let (node, place) = (flat.index / per_node, flat.index % per_node);
    let inside = &flat.group[node * per_node..(node + 1) * per_node];
    let between = (0..nodes).map(|node| flat.group[node * per_node + place]);
    let between: Vec<Rank> = between.collect();
    let (axes_between, axes_inside) = levels_of(&flat.axes, split).unwrap_or_default();
    let elem = flat.dtype.size();
    let outer: usize = flat.from_view.iter().take(flat.dim).product();
    let rest: usize = flat.from_view.iter().skip(flat.dim + 1).product();
    let mut slot = || {
        *num_slots += 1;
        (*num_slots - 1) as Slot
    };
    let stage = |level: &Level, from: Part, to: Part, dim: usize, sizes: Vec<usize>| {
        let (group, index) = match level.between {
            true => (between.as_slice(), node),
            false => (inside, place),
        };
        let (k, before, after) = (group.len(), from.numel(), to.numel());
        let received = match level.kind {
            CollectiveKind::AllGather => after - before,
            CollectiveKind::ReduceScatter => (k - 1) * after,
            CollectiveKind::AllReduce | CollectiveKind::AllToAll => {
                let own = chunk(0..before, k, index).len();
                (k - 1) * own + (before - own)
            }
        };
        let axes = match level.between {
            true => axes_between.as_slice(),
            false => axes_inside.as_slice(),
        };
        CollectiveTask {
            kind: level.kind,
            group: group.into(),
            index,
            axes: axes.into(),
            from: from.slot,
            to: to.slot,
            from_shape: from.shape,
            to_shape: to.shape,
            from_view: from.view,
            to_view: to.view,
            dim,
            to_dim: dim,
            sizes: sizes.clone().into(),
            to_sizes: sizes.into(),
            bytes: (received * elem) as u64,
            ..flat.clone()
        }
    };
    let start = |view: Vec<usize>| Part {
        slot: flat.from,
        shape: flat.from_shape.clone(),
        view,
    };
    let end = |view: Vec<usize>| Part {
        slot: flat.to,
        shape: flat.to_shape.clone(),
        view,
    };
    let levels = levels(flat.kind);
    match flat.kind {
        CollectiveKind::AllReduce => {
            let numel: usize = flat.from_shape.iter().product();
            let chunks: Vec<usize> = (0..per_node)
                .map(|index| chunk(0..numel, per_node, index).len())
                .collect();
            let mine = chunks[place];
            let (terms, sums) = (slot(), slot());
            let piece = |slot| Part::new(slot, vec![mine]);
            vec![
                stage(
                    &levels[0],
                    start(vec![numel]),
                    piece(terms),
                    0,
                    chunks.clone(),
                ),
                stage(&levels[1], piece(terms), piece(sums), 0, Vec::new()),
                stage(&levels[2], piece(sums), end(vec![numel]), 0, chunks),
            ]
        }
        CollectiveKind::ReduceScatter => {
            let piece = flat.sizes[0];
            let column = slot();
            let seen = |part: usize| vec![outer, nodes, part, piece, rest];
            let flat_column = vec![outer, nodes * piece, rest];
            let mut left = Part::new(column, flat_column.clone());
            left.view = seen(1);
            vec![
                stage(
                    &levels[0],
                    start(seen(per_node)),
                    left,
                    2,
                    vec![1; per_node],
                ),
                stage(
                    &levels[1],
                    Part::new(column, flat_column),
                    end(vec![outer, piece, rest]),
                    1,
                    vec![piece; nodes],
                ),
            ]
        }
        CollectiveKind::AllGather => {
            let piece = flat.sizes[0];
            let column = slot();
            let seen = |part: usize| vec![outer, nodes, part, piece, rest];
            let flat_column = vec![outer, nodes * piece, rest];
            let mut gathered = Part::new(column, flat_column.clone());
            let first = stage(
                &levels[0],
                start(vec![outer, piece, rest]),
                gathered.clone(),
                1,
                vec![piece; nodes],
            );
            gathered.view = seen(1);
            vec![
                first,
                stage(
                    &levels[1],
                    gathered,
                    end(seen(per_node)),
                    2,
                    vec![1; per_node],
                ),
            ]
        }
        CollectiveKind::AllToAll => vec![flat.clone()],
    }
}

/// One end of a stage.
#[derive(Clone)]
struct Part {
    slot: Slot,
    shape: Vec<usize>,
    view: Vec<usize>,
}

impl Part {
    fn new(slot: Slot, shape: Vec<usize>) -> Self {
        Self {
            slot,
            view: shape.clone(),
            shape,
        }
    }

    fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Nodes;

    const COMPOSED: [CollectiveKind; 3] = [
        CollectiveKind::AllReduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
    ];
    const TWO_OF_FOUR: Split = Split {
        nodes: 2,
        per_node: 4,
    };
    /// Ten microseconds everywhere; a nanosecond a byte inside, ten between.
    const LINKS: &str = "inside:latency_us=10,gbps=8;between:latency_us=10,gbps=0.8";

    /// Asks about a mesh of one axis over two nodes of four ranks.
    fn on_two_nodes<T>(links: &Links, ask: impl FnOnce(&Hierarchy, &[AxisIndex]) -> T) -> T {
        let mesh: MeshShape = "a=8".parse().expect("a mesh");
        let topology = Nodes::Each(4).topology(8, &[]).expect("nodes");
        let hierarchy = Hierarchy {
            mesh: &mesh,
            topology: &topology,
            links,
            bytes_min: None,
            axes: vec![Some(TWO_OF_FOUR)],
            groups: RefCell::default(),
        };
        ask(&hierarchy, &[AxisIndex(0)])
    }

    fn stage_times(links: &Links, bytes: u64) -> [Vec<u64>; 3] {
        on_two_nodes(links, |hierarchy, axes| {
            let times = |kind| hierarchy.stage_times(kind, TWO_OF_FOUR, bytes, axes);
            COMPOSED.map(|kind| times(kind).collect())
        })
    }

    #[test]
    fn a_stage_takes_its_rounds_and_its_bytes() {
        let links: Links = LINKS.parse().expect("links");
        // Inside: 3 rounds, and 3/4 of 8,000 bytes; between: of 2,000 bytes, half in a round, or for an all-reduce all
        // in two.
        let (inside, between) = (30_000 + 6_000, 10_000 + 10_000);
        assert_eq!(
            stage_times(&links, 8_000),
            [
                vec![inside, 2 * between, inside],
                vec![inside, between],
                vec![between, inside],
            ]
        );
        // Links that nothing is known of: bytes, of which those between nodes count for ten.
        assert_eq!(
            stage_times(&Links::default(), 8_000),
            [
                vec![6_000, 20_000, 6_000],
                vec![6_000, 10_000],
                vec![10_000, 6_000],
            ]
        );
    }

    #[test]
    fn composing_pays_where_its_stages_together_take_less_than_a_flat_call() {
        let links: Links = LINKS.parse().expect("links");
        for (index, kind) in COMPOSED.into_iter().enumerate() {
            let mut answers = [0, 0];
            for bytes in (0..500).map(|i| 8 * i) {
                // Between eight members: three rounds that double what is known, or a ring.
                let ring = bytes / 8 * 7;
                let flat = match kind {
                    CollectiveKind::AllReduce => (30_000 + 30 * bytes).min(60_000 + 20 * ring),
                    _ => 30_000 + 10 * ring,
                };
                let composed: u64 = stage_times(&links, bytes)[index].iter().sum();
                let pays = on_two_nodes(&links, |hierarchy, axes| {
                    hierarchy.pays(kind, TWO_OF_FOUR, bytes, axes)
                });
                assert_eq!(pays, composed < flat, "{kind:?} of {bytes} bytes");
                answers[usize::from(pays)] += 1;
            }
            assert!(answers.iter().all(|count| *count > 0), "{kind:?}");
        }
    }
}
