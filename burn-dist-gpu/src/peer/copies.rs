//! Which copies make a collective, and in which order streams do them.

use super::api::Copies;
use crate::device::{Address, DeviceError, Event, Gpu, Stream};
use crate::nccl::op::Op;
use std::sync::Arc;

/// The offer of a member in a call, which the others see.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Its operations.
    pub ops: Arc<[Op]>,
    /// When what it sends may be read; `None` if it sends nothing.
    pub ready: Option<Event>,
}

/// A copy that a member makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The member whose memory is read.
    pub from: usize,
    /// Where bytes are read.
    pub source: Address,
    /// Where bytes are written.
    pub target: Address,
    /// How many.
    pub bytes: usize,
}

/// Returns the copies by which `member` gets what its operations receive, of elements of `size` bytes.
///
/// `offers` are the operations of all members, in order. Operations meet as NCCL's do: the n-th send to a member the
/// n-th receive from it, the n-th all-gather or broadcast of each member that of the others.
///
/// # Errors
/// Which operations do not meet.
pub fn pieces(offers: &[&[Op]], member: usize, size: usize) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut add = |from: usize, (source, sent): (Address, usize), target, count| {
        if sent != count {
            return Err(format!(
                "member {from} gives {sent} elements, and {count} are expected"
            ));
        }
        let bytes = count * size;
        // What lies where it belongs stays there.
        let moves = bytes > 0 && (from != member || source != target);
        pieces.extend(moves.then_some(Piece {
            from,
            source,
            target,
            bytes,
        }));
        Ok(())
    };
    let (mut shared, mut received) = (0, vec![0; offers.len()]);
    for op in offers[member] {
        match *op {
            Op::AllGather { recv, count, .. } => {
                for (from, ops) in offers.iter().enumerate() {
                    let Some(Op::AllGather { send, count: n, .. }) = nth_shared(ops, shared) else {
                        return Err(format!("member {from} does not gather"));
                    };
                    add(from, (send, n), recv.plus(from * count * size), count)?;
                }
                shared += 1;
            }
            Op::Broadcast {
                recv, count, root, ..
            } => {
                let Some(Op::Broadcast { send, count: n, .. }) = nth_shared(offers[root], shared)
                else {
                    return Err(format!("member {root} does not broadcast"));
                };
                add(root, (send, n), recv, count)?;
                shared += 1;
            }
            Op::Recv { recv, count, from } => {
                let mut sends = offers[from].iter().filter_map(|op| match *op {
                    Op::Send { send, count, to } if to == member => Some((send, count)),
                    _ => None,
                });
                let Some(sent) = sends.nth(received[from]) else {
                    return Err(format!("member {from} sends nothing to it"));
                };
                add(from, sent, recv, count)?;
                received[from] += 1;
            }
            Op::Send { .. } => {}
            _ => return Err(format!("{} is no copy", op.function())),
        }
    }
    Ok(pieces)
}

/// The n-th operation that all members make alike.
fn nth_shared(ops: &[Op], n: usize) -> Option<Op> {
    let is_shared = |op: &&Op| matches!(op, Op::AllGather { .. } | Op::Broadcast { .. });
    ops.iter().filter(is_shared).nth(n).copied()
}

/// Returns who reads of `member`, in order and once each.
///
/// # Errors
/// As [`pieces`].
pub fn readers(offers: &[&[Op]], member: usize) -> Result<Vec<usize>, String> {
    let mut readers = Vec::new();
    for other in (0..offers.len()).filter(|other| *other != member) {
        // The size of elements does not matter to who reads.
        let reads = |piece: &Piece| piece.from == member;
        if pieces(offers, other, 1)?.iter().any(reads) {
            readers.push(other);
        }
    }
    Ok(readers)
}

/// Puts the copies of one member on a stream, each behind what makes its source ready.
///
/// # Safety
/// As [`Copies::copy`], for all `pieces`.
pub(crate) unsafe fn enqueue(
    gpu: &dyn Gpu,
    copies: &dyn Copies,
    stream: Stream,
    pieces: &[Piece],
    ready: impl Fn(usize) -> Option<Event>,
) -> Result<(), DeviceError> {
    let mut waited = Vec::new();
    for piece in pieces {
        if !waited.contains(&piece.from) {
            if let Some(ready) = ready(piece.from) {
                gpu.wait(stream, ready)?;
            }
            waited.push(piece.from);
        }
        // SAFETY: the caller's promise.
        unsafe { copies.copy(stream, piece.target, piece.source, piece.bytes) }?;
    }
    Ok(())
}
