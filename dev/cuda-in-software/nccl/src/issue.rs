//! Calls of a group, and how they are put on streams.

use crate::communicator::Communicator;
use crate::moves::{Op, What};
use crate::status::{INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, Status, UNHANDLED_CUDA};
use software_meeting::{self as driver, Part};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A call that waits for the end of its group.
struct Issued {
    communicator: *const Communicator,
    name: &'static str,
    op: Op,
    /// The other of a send or a receive.
    peer: usize,
    stream: usize,
}

#[derive(Default)]
struct Group {
    depth: usize,
    issued: Vec<Issued>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() -> Status {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    SUCCESS
}

pub(crate) fn end() -> Status {
    let issued = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        match group.depth {
            0 => Some(std::mem::take(&mut group.issued)),
            _ => Some(Vec::new()),
        }
    });
    issued.map_or(INVALID_USAGE, put_all)
}

/// Issues a call: at once, or at the end of its group.
///
/// # Safety
/// The pointer is to a communicator that lives until the group has ended, or null.
pub(crate) unsafe fn issue(
    communicator: *const Communicator,
    name: &'static str,
    op: Op,
    peer: usize,
    stream: usize,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { communicator.as_ref() }) else {
        return INVALID_ARGUMENT;
    };
    if of.is_ready() != Some(true) {
        return INVALID_USAGE;
    }
    if peer >= of.num || op.kind.bytes().is_none() {
        return INVALID_ARGUMENT;
    }
    start();
    let issued = Issued {
        communicator,
        name,
        op,
        peer,
        stream,
    };
    GROUP.with_borrow_mut(|group| group.issued.push(issued));
    end()
}

/// Puts the calls of a group on their streams: each collective by itself, and all sends and receives of a communicator
/// together, for they need not wait for each other.
fn put_all(issued: Vec<Issued>) -> Status {
    type Pairs = BTreeMap<(usize, usize), Vec<Op>>;
    let mut between: BTreeMap<(*const Communicator, usize), Pairs> = BTreeMap::new();
    for call in issued {
        // SAFETY: who has issued it has promised that the communicator lives.
        let of = unsafe { &*call.communicator };
        match call.op.what {
            What::Send | What::Receive => {
                let pair = (of.rank.min(call.peer), of.rank.max(call.peer));
                let pairs = between.entry((call.communicator, call.stream)).or_default();
                pairs.entry(pair).or_default().push(call.op);
            }
            _ => {
                let parts = vec![of.parts(None, vec![call.op])];
                let status = meet(call.stream, call.name, parts);
                if status != SUCCESS {
                    return status;
                }
            }
        }
    }
    for ((communicator, stream), pairs) in between {
        // SAFETY: as above.
        let of = unsafe { &*communicator };
        let parts = pairs
            .into_iter()
            .map(|(pair, ops)| of.parts(Some(pair), ops));
        let status = meet(stream, "ncclSend and ncclRecv", parts.collect());
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}

/// Puts meetings on a stream: the first part of each together, then the second.
fn meet(stream: usize, name: &str, mut all: Vec<Vec<Part>>) -> Status {
    while all.iter().any(|parts| !parts.is_empty()) {
        let next = all.iter_mut().filter(|parts| !parts.is_empty());
        let next: Vec<Part> = next.map(|parts| parts.remove(0)).collect();
        if !driver::meet(stream, name, &next) {
            return UNHANDLED_CUDA;
        }
    }
    SUCCESS
}
