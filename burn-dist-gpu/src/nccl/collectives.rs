//! Which calls make a collective of flat pieces. Sizes are in elements; offsets follow from them.

use super::op::{Element, Fold, Op};
use crate::device::Address;
use burn_dist_comm::{member_after, member_before};

fn is_even(sizes: &[usize]) -> bool {
    sizes.iter().all(|size| *size == sizes[0])
}

/// Offsets of pieces that lie one after the other.
pub fn offsets(sizes: &[usize]) -> impl Iterator<Item = usize> {
    sizes.iter().scan(0, |at, size| {
        let offset = *at;
        *at += size;
        Some(offset)
    })
}

/// Returns the calls by which every member gets all pieces, one after the other in `whole`, of which it has its own in
/// `mine`.
///
/// Equal pieces are one all-gather; others a broadcast from each member, in one group.
pub fn gather(
    mine: Address,
    whole: Address,
    sizes: &[usize],
    member: usize,
    element: Element,
) -> Vec<Op> {
    if is_even(sizes) {
        let all = Op::AllGather {
            send: mine,
            recv: whole,
            count: sizes[0],
        };
        return Vec::from_iter((sizes[0] > 0).then_some(all));
    }
    let pieces = sizes.iter().zip(offsets(sizes)).enumerate();
    pieces
        .filter(|(_, (size, _))| **size > 0)
        .map(|(root, (&count, offset))| {
            let recv = whole.plus(offset * element.bytes());
            Op::Broadcast {
                // Read on the root only.
                send: if root == member { mine } else { recv },
                recv,
                count,
                root,
            }
        })
        .collect()
}

/// Returns the calls by which every member sends a piece of `packed` to every other, and gets those of the others one
/// after the other in `into`.
///
/// The caller's own piece stays where it is: `into` has no room for it.
pub fn exchange(
    packed: Address,
    sends: &[usize],
    into: Address,
    recvs: &[usize],
    member: usize,
    element: Element,
) -> Vec<Op> {
    let mut ops = Vec::with_capacity(2 * sends.len());
    let mut room = recvs.to_vec();
    room[member] = 0;
    let places = offsets(sends).zip(offsets(&room)).enumerate();
    for (other, (from, to)) in places.filter(|(other, _)| *other != member) {
        if sends[other] > 0 {
            ops.push(Op::Send {
                send: packed.plus(from * element.bytes()),
                count: sends[other],
                to: other,
            });
        }
        if room[other] > 0 {
            ops.push(Op::Recv {
                recv: into.plus(to * element.bytes()),
                count: room[other],
                from: other,
            });
        }
    }
    ops
}

/// Returns the calls by which every member sends `mine` to the member `by` places further along the group, cyclically,
/// and gets `into` the piece of the member as many places before it: a send and a receive, which are one group.
pub fn shift(mine: Address, into: Address, sizes: &[usize], by: isize, member: usize) -> Vec<Op> {
    let (to, from) = (
        member_after(member, by, sizes.len()),
        member_before(member, by, sizes.len()),
    );
    let send = Op::Send {
        send: mine,
        count: sizes[member],
        to,
    };
    let recv = Op::Recv {
        recv: into,
        count: sizes[from],
        from,
    };
    let ops = [(send, sizes[member]), (recv, sizes[from])];
    let ops = ops.into_iter().filter(|(_, count)| *count > 0);
    ops.map(|(op, _)| op).collect()
}

/// Returns the calls by which every member gets the reduction of one piece of all `packed`.
///
/// Equal pieces are one reduce-scatter; others a reduction to each member, in one group.
pub fn reduce_scatter(
    packed: Address,
    into: Address,
    sizes: &[usize],
    fold: Fold,
    element: Element,
) -> Vec<Op> {
    if is_even(sizes) {
        let all = Op::ReduceScatter {
            send: packed,
            recv: into,
            count: sizes[0],
            fold,
        };
        return Vec::from_iter((sizes[0] > 0).then_some(all));
    }
    let pieces = sizes.iter().zip(offsets(sizes)).enumerate();
    pieces
        .filter(|(_, (size, _))| **size > 0)
        .map(|(root, (&count, offset))| Op::Reduce {
            send: packed.plus(offset * element.bytes()),
            // Written on the root only.
            recv: into,
            count,
            fold,
            root,
        })
        .collect()
}

/// Returns the call by which every member gets the reduction of all `count` elements.
pub fn all_reduce(send: Address, recv: Address, count: usize, fold: Fold) -> Vec<Op> {
    let all = Op::AllReduce {
        send,
        recv,
        count,
        fold,
    };
    Vec::from_iter((count > 0).then_some(all))
}
