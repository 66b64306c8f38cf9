//! Which bytes of a call pass through a workspace when.
//!
//! A member sends one row of bytes, the sources of its operations one after the other. Round r carries the r-th
//! piece of a slot's size of every member's row.

use crate::device::Address;
use crate::nccl::op::Op;
use crate::peer::copies::Piece;

/// Bytes in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where they are.
    pub at: Address,
    /// How many.
    pub bytes: usize,
}

/// Returns what others read of `member`, in the order of its operations on elements of `size` bytes, and the operations
/// with offsets into the row of these bytes for addresses.
pub(crate) fn row(ops: &[Op], member: usize, size: usize) -> (Vec<Span>, Vec<Op>) {
    let (mut spans, mut end) = (Vec::new(), 0);
    let mut put = |at: Address, count: usize| {
        let offset = Address(end as u64);
        let bytes = count * size;
        spans.push(Span { at, bytes });
        end += bytes;
        offset
    };
    let shown = ops.iter().map(|op| {
        let mut op = *op;
        match &mut op {
            Op::AllGather { send, count, .. } => *send = put(*send, *count),
            Op::Broadcast {
                send, count, root, ..
            } if *root == member => *send = put(*send, *count),
            Op::Send { send, count, to } if *to != member => *send = put(*send, *count),
            // Nobody else reads it.
            _ => {}
        }
        op
    });
    let shown = shown.collect();
    (spans, shown)
}

/// How many rounds carry a row.
pub(crate) fn num_rounds(row: &[Span], slot: usize) -> usize {
    let bytes: usize = row.iter().map(|span| span.bytes).sum();
    bytes.div_ceil(slot)
}

/// The bytes of a row that a round carries, as offsets.
fn range(round: usize, slot: usize) -> std::ops::Range<usize> {
    round * slot..(round + 1) * slot
}

/// A copy within a round, between a slot and memory outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The offset into the slot.
    pub offset: usize,
    /// The memory outside.
    pub outside: Span,
}

/// The part of a piece that lies at `start` of a row which a round carries, if any.
fn cut(start: usize, outside: Span, round: usize, slot: usize) -> Option<Cut> {
    let range = range(round, slot);
    let (from, to) = (
        start.max(range.start),
        (start + outside.bytes).min(range.end),
    );
    (from < to).then(|| Cut {
        offset: from - range.start,
        outside: Span {
            at: outside.at.plus(from - start),
            bytes: to - from,
        },
    })
}

/// Returns what a member copies into its slot in a round.
pub(crate) fn staged(row: &[Span], round: usize, slot: usize) -> Vec<Cut> {
    let starts = row.iter().scan(0, |end, span| {
        let start = *end;
        *end += span.bytes;
        Some(start)
    });
    let cuts = starts.zip(row);
    cuts.filter_map(|(start, span)| cut(start, *span, round, slot))
        .collect()
}

/// Returns what a member copies out of slots of others in a round, with whose they are. `pieces` are of
/// [`pieces`](crate::peer::copies::pieces), the sources offsets into rows.
pub(crate) fn read(
    pieces: &[Piece],
    member: usize,
    round: usize,
    slot: usize,
) -> Vec<(usize, Cut)> {
    let others = pieces.iter().filter(|piece| piece.from != member);
    let cuts = others.filter_map(|piece| {
        let outside = Span {
            at: piece.target,
            bytes: piece.bytes,
        };
        let cut = cut(piece.source.0 as usize, outside, round, slot)?;
        Some((piece.from, cut))
    });
    cuts.collect()
}

/// Returns who reads of `member` in a round, in order; `pieces` are what each member copies.
pub(crate) fn readers(
    pieces: &[Vec<Piece>],
    member: usize,
    round: usize,
    slot: usize,
) -> impl Iterator<Item = usize> {
    let others = pieces
        .iter()
        .enumerate()
        .filter(move |(other, _)| *other != member);
    let readers = others.filter(move |(other, pieces)| {
        let mut cuts = read(pieces, *other, round, slot).into_iter();
        cuts.any(|(from, _)| from == member)
    });
    readers.map(|(other, _)| other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::collectives;
    use crate::nccl::op::Element;
    use crate::peer::copies::pieces;
    use proptest::prelude::*;

    /// Bytes of a member's memory that tell where they are.
    fn memory(member: usize, bytes: usize) -> Vec<u8> {
        let at = |at: usize| (at * 31 + member * 7) as u8;
        (0..bytes).map(at).collect()
    }

    /// Runs the rounds of all members on host memory; what they send starts at 0, what they receive too.
    fn run(all: &[Vec<Op>], sent: &[Vec<u8>], received: &mut [Vec<u8>], slot: usize) {
        let rows: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(member, ops)| row(ops, member, 1))
            .collect();
        let rounds = rows.iter().map(|(row, _)| num_rounds(row, slot));
        let rounds = rounds.max().unwrap_or(0);
        for round in 0..rounds {
            let mut slots = vec![vec![0xee_u8; slot]; all.len()];
            for (member, (spans, _)) in rows.iter().enumerate() {
                for Cut { offset, outside } in staged(spans, round, slot) {
                    let from = outside.at.0 as usize;
                    slots[member][offset..offset + outside.bytes]
                        .copy_from_slice(&sent[member][from..from + outside.bytes]);
                }
            }
            let shown: Vec<&[Op]> = rows.iter().map(|(_, shown)| &shown[..]).collect();
            let of_each = (0..all.len()).map(|member| pieces(&shown, member, 1));
            let of_each: Vec<Vec<Piece>> = of_each.map(|found| found.expect("they meet")).collect();
            for member in 0..all.len() {
                let mut offers = shown.clone();
                offers[member] = &all[member];
                let found = pieces(&offers, member, 1).expect("they meet");
                for (from, cut) in read(&found, member, round, slot) {
                    let to = cut.outside.at.0 as usize;
                    let bytes = &slots[from][cut.offset..cut.offset + cut.outside.bytes];
                    received[member][to..to + cut.outside.bytes].copy_from_slice(bytes);
                    let mut readers = readers(&of_each, from, round, slot);
                    assert!(readers.any(|reader| reader == member));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn rounds_of_any_size_carry_every_byte_once(
            sizes in proptest::collection::vec(proptest::collection::vec(0_usize..40, 4), 4),
            members in 2_usize..5,
            slot in 1_usize..50,
        ) {
            let sizes: Vec<Vec<usize>> = sizes[..members].iter().map(|row| row[..members].to_vec()).collect();
            let recvs = |to: usize| -> Vec<usize> { (0..members).map(|from| sizes[from][to]).collect() };
            let start = Address(0);
            let all: Vec<Vec<Op>> = (0..members)
                .map(|member| collectives::exchange(start, &sizes[member], start, &recvs(member), member, Element::U8))
                .collect();
            let sent: Vec<Vec<u8>> = (0..members).map(|member| memory(member, sizes[member].iter().sum())).collect();
            let mut received: Vec<Vec<u8>> = (0..members).map(|to| vec![0xdd; recvs(to).iter().sum()]).collect();
            run(&all, &sent, &mut received, slot);
            for to in 0..members {
                let mut at = 0;
                for from in (0..members).filter(|from| *from != to) {
                    let start: usize = sizes[from][..to].iter().sum();
                    let expected = &sent[from][start..start + sizes[from][to]];
                    prop_assert_eq!(&received[to][at..at + expected.len()], expected);
                    at += expected.len();
                }
            }
        }
    }

    #[test]
    fn what_nobody_else_reads_is_not_in_the_row() {
        let (at, into) = (Address(100), Address(900));
        let own = [
            Op::Send {
                send: at,
                count: 3,
                to: 1,
            },
            Op::Recv {
                recv: into,
                count: 3,
                from: 1,
            },
        ];
        assert_eq!(row(&own, 1, 4), (Vec::new(), own.to_vec()));
        let (spans, shown) = row(
            &collectives::gather(at, into, &[1, 2], 0, Element::F32),
            0,
            4,
        );
        assert_eq!(spans, [Span { at, bytes: 4 }]);
        assert_eq!(shown.len(), 2, "the broadcast of the other is shown too");
    }
}
