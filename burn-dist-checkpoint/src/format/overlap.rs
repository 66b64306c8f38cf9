//! Overlaps of the pieces of a tensor.
//!
//! The grid is cut in two at an edge of a piece, again and again, until few pieces are left in a part. A piece that
//! lies on both sides of a cut goes on in both parts. Grids of pieces, which is what meshes make, have cuts that go
//! through no piece: then each piece is looked at once for every cut above it. Pieces that lie crosswise in many dims
//! may have no such cuts; the work has a limit for them.

use super::PieceEntry;
use std::ops::Range;

/// So few pieces are compared one with the other.
const FEW: usize = 8;
/// Sizes looked at, for each piece, dim and halving of the pieces; and at least.
const WORK: u64 = 32;
const WORK_MIN: u64 = 1 << 24;

/// The limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tangled;

/// Returns two pieces with an element in common, if there are two; all lie in the grid and have elements.
pub(super) fn overlapping<'a>(
    grid: &[usize],
    pieces: &'a [PieceEntry],
) -> Result<Option<(&'a PieceEntry, &'a PieceEntry)>, Tangled> {
    let halvings = u64::from(pieces.len().max(2).ilog2()) + 1;
    let work = WORK * (pieces.len() * grid.len().max(1)) as u64;
    let mut left = (work * halvings).max(WORK_MIN);
    let whole: Vec<Range<usize>> = grid.iter().map(|size| 0..*size).collect();
    let mut parts = vec![(whole, pieces.iter().collect::<Vec<_>>())];
    let mut edges = Vec::new();
    while let Some((part, inside)) = parts.pop() {
        if inside.len() <= FEW {
            if let Some(pair) = pair(&inside) {
                return Ok(Some(pair));
            }
            continue;
        }
        let Some((dim, at)) = cut(&part, &inside, &mut edges, &mut left)? else {
            // No edge is inside of it: it is inside of every piece.
            return Ok(Some((inside[0], inside[1])));
        };
        let (mut before, mut after) = (part.clone(), part);
        (before[dim].end, after[dim].start) = (at, at);
        let is_before = |piece: &&&PieceEntry| piece.start[dim] < at;
        let is_after = |piece: &&&PieceEntry| end(piece, dim) > at;
        let first: Vec<_> = inside.iter().filter(is_before).copied().collect();
        let second: Vec<_> = inside.iter().filter(is_after).copied().collect();
        drop(inside);
        parts.push((before, first));
        parts.push((after, second));
    }
    Ok(None)
}

/// Returns an edge inside of a part that leaves few pieces on either side, and its dim; none if there is no edge.
fn cut(
    part: &[Range<usize>],
    inside: &[&PieceEntry],
    edges: &mut Vec<usize>,
    left: &mut u64,
) -> Result<Option<(usize, usize)>, Tangled> {
    let mut best: Option<(usize, (usize, usize))> = None;
    for (dim, range) in part.iter().enumerate() {
        *left = left.checked_sub(inside.len() as u64).ok_or(Tangled)?;
        edges.clear();
        let both = inside
            .iter()
            .flat_map(|piece| [piece.start[dim], end(piece, dim)]);
        edges.extend(both.filter(|edge| range.start < *edge && *edge < range.end));
        if edges.is_empty() {
            continue;
        }
        let middle = edges.len() / 2;
        let at = *edges.select_nth_unstable(middle).1;
        let before = inside.iter().filter(|piece| piece.start[dim] < at).count();
        let after = inside.iter().filter(|piece| end(piece, dim) > at).count();
        let most = before.max(after);
        if best.is_none_or(|(found, _)| most < found) {
            best = Some((most, (dim, at)));
        }
        // As good as it gets.
        if most <= inside.len() / 8 * 5 {
            break;
        }
    }
    Ok(best.map(|(_, cut)| cut))
}

fn pair<'a>(pieces: &[&'a PieceEntry]) -> Option<(&'a PieceEntry, &'a PieceEntry)> {
    pieces.iter().enumerate().find_map(|(index, first)| {
        let others = pieces[index + 1..].iter();
        let second = others.copied().find(|second| overlap(first, second))?;
        Some((*first, second))
    })
}

fn overlap(first: &PieceEntry, second: &PieceEntry) -> bool {
    let mut dims = 0..first.start.len();
    dims.all(|dim| first.start[dim] < end(second, dim) && second.start[dim] < end(first, dim))
}

fn end(piece: &PieceEntry, dim: usize) -> usize {
    piece.start[dim] + piece.extent[dim]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(start: &[usize], extent: &[usize]) -> PieceEntry {
        PieceEntry {
            file: 0,
            offset: 0,
            start: start.to_vec(),
            extent: extent.to_vec(),
            checksums: Vec::new(),
        }
    }

    /// All places of a grid of 4 in each of so many dims.
    fn grid(dims: u32) -> Vec<PieceEntry> {
        let start = |index: usize| {
            (0..dims)
                .map(|dim| index / 4usize.pow(dim) % 4)
                .collect::<Vec<_>>()
        };
        let ones = vec![1; dims as usize];
        (0..4usize.pow(dims))
            .map(|index| piece(&start(index), &ones))
            .collect()
    }

    #[test]
    fn grids_in_many_dims_are_looked_through() {
        for dims in [1, 3, 7] {
            let mut pieces = grid(dims);
            let sizes = vec![4; dims as usize];
            assert_eq!(overlapping(&sizes, &pieces), Ok(None), "{dims}");
            let last = pieces.len() - 1;
            pieces[last] = pieces[last / 3].clone();
            assert!(
                matches!(overlapping(&sizes, &pieces), Ok(Some(_))),
                "{dims}"
            );
        }
        // Scalars, and pieces that are all the same.
        let same = vec![piece(&[], &[]); 20];
        assert!(matches!(overlapping(&[], &same), Ok(Some(_))));
        assert_eq!(overlapping(&[], &same[..1]), Ok(None));
        let same = vec![piece(&[1, 1], &[2, 2]); 20];
        assert!(matches!(overlapping(&[4, 4], &same), Ok(Some(_))));
    }

    #[test]
    fn pieces_that_lie_crosswise_are_looked_through_up_to_a_limit() {
        // Bars along each of three dims, each at places of its own.
        let side = 40;
        let mut pieces = Vec::new();
        for (a, b) in (0..side).flat_map(|a| (0..side).map(move |b| (a, b))) {
            pieces.push(piece(&[0, 2 * a, 2 * b], &[2 * side, 1, 1]));
            pieces.push(piece(&[2 * a + 1, 0, 2 * b + 1], &[1, 2 * side, 1]));
            pieces.push(piece(&[2 * a, 2 * b + 1, 0], &[1, 1, 2 * side]));
        }
        let found = overlapping(&[2 * side; 3], &pieces);
        assert!(matches!(found, Ok(None) | Err(Tangled)), "{found:?}");
    }

    proptest! {
        #[test]
        fn it_finds_what_all_pairs_show(
            boxes in prop::collection::vec((0usize..9, 0usize..9, 1usize..4, 1usize..4), 0..40),
        ) {
            let pieces: Vec<_> = boxes.iter().map(|&(a, b, x, y)| piece(&[a, b], &[x, y])).collect();
            let refs: Vec<&PieceEntry> = pieces.iter().collect();
            let found = overlapping(&[12, 12], &pieces).unwrap();
            prop_assert_eq!(found.is_some(), pair(&refs).is_some());
            if let Some((first, second)) = found {
                prop_assert!(overlap(first, second));
            }
        }
    }
}
