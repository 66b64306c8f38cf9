//! The stages of a collective over several nodes, and what each rank does in them.

use crate::ir::CollectiveTask;
use crate::mesh::collective::{Collective, Kind, Strided};
use crate::mesh::{Rank, Split};

/// One stage of a composition.
pub(crate) struct Level {
    pub kind: Kind,
    pub between: bool,
}

/// Returns the stages of a collective, in order.
pub(crate) fn levels(kind: Kind) -> &'static [Level] {
    use Kind::{AllGather, AllReduce, ReduceScatter};
    const fn level(kind: Kind, between: bool) -> Level {
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
        // One call.
        _ => &[],
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
///
/// # Panics
/// If it is not composed of stages.
pub(crate) fn stage(flat: CollectiveTask, split: Split, index: usize) -> CollectiveTask {
    let Split { nodes, per_node } = split;
    let (node, place) = (flat.index / per_node, flat.index % per_node);
    let (axes_between, axes_inside) = levels_of(&flat.axes, split).unwrap_or_default();
    let is_between = levels(flat.kind())[index].between;
    let (group, own, axes): (Vec<Rank>, usize, Vec<usize>) = match is_between {
        true => {
            let others = (0..nodes).map(|node| flat.group[node * per_node + place]);
            (others.collect(), node, axes_between)
        }
        false => {
            let inside = &flat.group[node * per_node..(node + 1) * per_node];
            (inside.to_vec(), place, axes_inside)
        }
    };
    let elem = flat.dtype.size();
    let (start, end) = (flat.from_shape.clone(), flat.to_shape.clone());
    let (collective, from_shape, to_shape) = match (&flat.collective, index) {
        (Collective::AllReduce { op, .. }, _) => {
            let numel: usize = flat.from_shape.iter().product();
            let chunks = || Strided::chunked(1, numel, elem, per_node);
            let own = chunks().mid_sizes[place];
            match index {
                0 => {
                    let (op, parts) = (*op, chunks());
                    let scattered = Collective::ReduceScatter { op, parts };
                    (scattered, start, vec![own])
                }
                1 => {
                    let (op, bytes) = (*op, own * elem);
                    let reduced = Collective::AllReduce { op, bytes };
                    (reduced, vec![own], vec![own])
                }
                _ => (Collective::AllGather(chunks()), vec![own], end),
            }
        }
        (Collective::ReduceScatter { op, parts }, _) => {
            let (column, parts) = column(parts, split, elem, is_between);
            let scattered = Collective::ReduceScatter { op: *op, parts };
            match index {
                0 => (scattered, start, column),
                _ => (scattered, column, end),
            }
        }
        (Collective::AllGather(parts), _) => {
            let (column, parts) = column(parts, split, elem, is_between);
            match index {
                0 => (Collective::AllGather(parts), start, column),
                _ => (Collective::AllGather(parts), column, end),
            }
        }
        (other, _) => unreachable!("{} is never composed", other.kind().name()),
    };
    CollectiveTask {
        collective,
        group: group.into(),
        index: own,
        axes: axes.into(),
        from_shape,
        to_shape,
        ..flat
    }
}

/// Returns the shape of the pieces that ranks with one place on all nodes have together, as one block; and how they are
/// cut: into the part of each node, or into those that there are on each node.
fn column(
    parts: &Strided,
    Split { nodes, per_node }: Split,
    elem: usize,
    is_between: bool,
) -> (Vec<usize>, Strided) {
    let &Strided {
        outer, inner_bytes, ..
    } = parts;
    let piece = parts.mid_sizes.first().copied().unwrap_or(0);
    let parts = match is_between {
        true => Strided {
            outer,
            mid_sizes: vec![piece; nodes].into(),
            inner_bytes,
        },
        false => Strided {
            outer: outer * nodes,
            mid_sizes: vec![1; per_node].into(),
            inner_bytes: piece * inner_bytes,
        },
    };
    let shape = vec![outer, nodes * piece, inner_bytes / elem.max(1)];
    (shape, parts)
}
