//! The stages of a collective over several nodes, and what each rank does in them.

use crate::ir::{CollectiveKind, CollectiveTask};
use crate::layout::chunk;
use crate::mesh::{Rank, Split};

/// One stage of a composition.
pub(crate) struct Level {
    pub kind: CollectiveKind,
    pub between: bool,
}

/// Returns the stages of a collective, in order.
pub(crate) fn levels(kind: CollectiveKind) -> &'static [Level] {
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
        CollectiveKind::AllToAll | CollectiveKind::Shift { .. } => &[],
    }
}

/// Returns the axes of a reduction between nodes and inside them, if the ranks of each node are a subtree of its sums:
/// if the cut falls between two axes, or leaves blocks of a power of two of one.
pub(crate) fn levels_of(sizes: &[usize], split: Split) -> Option<(Vec<usize>, Vec<usize>)> {
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

/// Returns what a rank does in one stage of a collective; `flat` is the collective as one call, between the slots of
/// the stage.
pub(crate) fn stage(flat: CollectiveTask, split: Split, index: usize) -> CollectiveTask {
    let Split { nodes, per_node } = split;
    let (node, place) = (flat.index / per_node, flat.index % per_node);
    let level = &levels(flat.kind)[index];
    let (axes_between, axes_inside) = levels_of(&flat.axes, split).unwrap_or_default();
    let (group, own, axes): (Vec<Rank>, usize, Vec<usize>) = match level.between {
        true => {
            let others = (0..nodes).map(|node| flat.group[node * per_node + place]);
            (others.collect(), node, axes_between)
        }
        false => {
            let inside = &flat.group[node * per_node..(node + 1) * per_node];
            (inside.to_vec(), place, axes_inside)
        }
    };
    let outer: usize = flat.from_view.iter().take(flat.dim).product();
    let rest: usize = flat.from_view.iter().skip(flat.dim + 1).product();
    let piece = flat.sizes.first().copied().unwrap_or(0);
    let start = |view: Vec<usize>| Block {
        shape: flat.from_shape.clone(),
        view,
    };
    let end = |view: Vec<usize>| Block {
        shape: flat.to_shape.clone(),
        view,
    };
    // What a rank's place has on all nodes, as all of it and as one of the parts of a node.
    let column = || Block::new(vec![outer, nodes * piece, rest]);
    let seen = |parts: usize| vec![outer, nodes, parts, piece, rest];
    let column_seen = || Block {
        view: seen(1),
        ..column()
    };
    let (before, after, dim, sizes) = match (flat.kind, index) {
        (CollectiveKind::AllReduce, _) => {
            let numel: usize = flat.from_shape.iter().product();
            let chunks = (0..per_node).map(|index| chunk(0..numel, per_node, index).len());
            let chunks: Vec<usize> = chunks.collect();
            let mine = || Block::new(vec![chunks[place]]);
            match index {
                0 => (start(vec![numel]), mine(), 0, chunks.clone()),
                1 => (mine(), mine(), 0, Vec::new()),
                _ => (mine(), end(vec![numel]), 0, chunks.clone()),
            }
        }
        (CollectiveKind::ReduceScatter, 0) => {
            (start(seen(per_node)), column_seen(), 2, vec![1; per_node])
        }
        (CollectiveKind::ReduceScatter, _) => {
            let made = end(vec![outer, piece, rest]);
            (column(), made, 1, vec![piece; nodes])
        }
        (_, 0) => {
            let own = start(vec![outer, piece, rest]);
            (own, column(), 1, vec![piece; nodes])
        }
        _ => (column_seen(), end(seen(per_node)), 2, vec![1; per_node]),
    };
    let (k, had, has) = (group.len(), before.numel(), after.numel());
    let received = match level.kind {
        CollectiveKind::AllGather => has - had,
        CollectiveKind::ReduceScatter => (k - 1) * has,
        CollectiveKind::AllToAll | CollectiveKind::Shift { .. } => {
            unreachable!("it is never composed")
        }
        CollectiveKind::AllReduce => {
            let own = chunk(0..had, k, own).len();
            (k - 1) * own + (had - own)
        }
    };
    CollectiveTask {
        kind: level.kind,
        group: group.into(),
        index: own,
        axes: axes.into(),
        from_shape: before.shape,
        to_shape: after.shape,
        from_view: before.view,
        to_view: after.view,
        dim,
        to_dim: dim,
        sizes: sizes.clone().into(),
        to_sizes: sizes.into(),
        bytes: (received * flat.dtype.size()) as u64,
        ..flat
    }
}

/// A local block before or after a stage.
struct Block {
    shape: Vec<usize>,
    view: Vec<usize>,
}

impl Block {
    fn new(shape: Vec<usize>) -> Self {
        Self {
            view: shape.clone(),
            shape,
        }
    }

    fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}
