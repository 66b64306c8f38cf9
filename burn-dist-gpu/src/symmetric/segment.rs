//! Notes between the members of a group: a page of host memory that all of them have mapped.

use super::api::Symmetric;
use super::os::{Descriptor, Page};
use crate::device::{Address, DeviceError};
use crate::nccl::op::Op;
use crate::streams::api::FlagWait;
use burn_dist_comm::Group;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words of a line: what belongs to one member is in lines of its own.
const LINE: usize = 16;

/// The word that says that a member has abandoned the group, in the first line.
const FAULT: usize = 0;

/// A word of a member, by its place in the member's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Rounds that its device has staged.
    Ready = 0,
    /// Rounds that its device has read.
    Read = 1,
    /// Calls of which it shows its offer.
    Offered = 2,
    /// Calls of which it has read all offers.
    Taken = 3,
    /// Rounds whose staging it has submitted.
    Staged = 4,
    /// Rounds whose copies it has submitted.
    Followed = 5,
}

/// Where the offer of a member says which slot its first round uses, and how many operations follow.
const SLOT: usize = 6;
const NUM_OPS: usize = 7;

/// Words of an operation: kind, member, count and offset, the last two in halves.
const OP: usize = 6;

/// Operations that an offer has room for, between so many members: twice what any collective makes of a call.
fn ops_max(members: usize) -> usize {
    4 * members
}

/// How far a word is set past the last round at the end: further than anyone waits for, and not so far that numbers
/// have wrapped around.
const PAST: u32 = 1 << 30;

/// The operations of a member in a call. Addresses of sent memory are offsets into its row of bytes
/// ([`super::rounds`]); where it receives is nobody else's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The slot of its first round.
    pub slot: u32,
    /// Its operations.
    pub ops: Vec<Op>,
}

/// The words of a group, on a lane.
pub(crate) struct Segment {
    page: Page,
    /// Where the device finds them.
    address: Address,
    group: Group,
}

impl Segment {
    /// Its size in bytes, between so many members.
    pub(crate) fn bytes(members: usize) -> usize {
        let words = LINE * (1 + members) + members * ops_max(members) * OP;
        let bytes = words * size_of::<AtomicU32>();
        bytes.next_multiple_of(4096)
    }

    /// Maps the segment of a group.
    ///
    /// # Errors
    /// What the system or the driver says.
    pub(crate) fn map(
        memory: &Descriptor,
        group: &Group,
        device: &dyn Symmetric,
    ) -> Result<Arc<Self>, DeviceError> {
        let page = Page::map(memory, Self::bytes(group.len()));
        let page = page.map_err(DeviceError::of_system("mmap"))?;
        let address = device.register(&page)?;
        Ok(Arc::new(Self {
            page,
            address,
            group: group.clone(),
        }))
    }

    /// The page itself.
    pub(crate) fn page(&self) -> &Page {
        &self.page
    }

    /// The members.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    fn index(member: usize, word: Word) -> usize {
        LINE * (1 + member) + word as usize
    }

    /// Where the device finds a word.
    pub(crate) fn at(&self, member: usize, word: Word) -> Address {
        let index = Self::index(member, word);
        self.address.plus(index * size_of::<AtomicU32>())
    }

    /// Sets a word, behind all that this thread has written before.
    pub(crate) fn set(&self, member: usize, word: Word, value: u32) {
        self.page.words()[Self::index(member, word)].store(value, Ordering::Release);
    }

    /// Returns whether a word has come to `value`; if it has, what was written before it is seen.
    pub(crate) fn has_come(&self, member: usize, word: Word, value: u32) -> bool {
        let found = self.page.words()[Self::index(member, word)].load(Ordering::Acquire);
        FlagWait::has_come(found, value)
    }

    /// Says that a member has abandoned the group. The fault is known by then.
    pub(crate) fn give_up(&self) {
        self.page.words()[FAULT].store(1, Ordering::SeqCst);
    }

    /// Returns whether some member has abandoned the group.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.page.words()[FAULT].load(Ordering::SeqCst) != 0
    }

    /// Ends all waits of devices for words of this segment, after so many rounds.
    pub(crate) fn release(&self, rounds: u32) {
        for member in 0..self.group.len() {
            for word in [Word::Ready, Word::Read] {
                self.set(member, word, rounds.wrapping_add(PAST));
            }
        }
    }

    fn mailbox(&self, member: usize) -> &[AtomicU32] {
        let members = self.group.len();
        let room = ops_max(members) * OP;
        let start = LINE * (1 + members) + member * room;
        &self.page.words()[start..start + room]
    }

    /// Writes what a member offers. All members have [taken](Word::Taken) the one before; they see this one when
    /// [`Word::Offered`] says so.
    ///
    /// # Errors
    /// That there are more operations than any collective has.
    pub(crate) fn offer(&self, member: usize, offer: &Offer) -> Result<(), String> {
        let store = |word: &AtomicU32, value: u32| word.store(value, Ordering::Relaxed);
        let mailbox = self.mailbox(member);
        if offer.ops.len() > mailbox.len() / OP {
            return Err(format!(
                "{} operations where there is room for {}; this is a bug in burn-dist",
                offer.ops.len(),
                mailbox.len() / OP
            ));
        }
        let line = &self.page.words()[LINE * (1 + member)..];
        store(&line[SLOT], offer.slot);
        store(&line[NUM_OPS], offer.ops.len() as u32);
        for (op, words) in offer.ops.iter().zip(mailbox.chunks(OP)) {
            let (kind, other, count, offset) = match *op {
                Op::AllGather { send, count, .. } => (1, 0, count, send.0),
                Op::Broadcast {
                    send, count, root, ..
                } => (2, root, count, send.0),
                Op::Send { send, count, to } => (3, to, count, send.0),
                Op::Recv { count, from, .. } => (4, from, count, 0),
                Op::AllReduce { .. } | Op::ReduceScatter { .. } | Op::Reduce { .. } => {
                    return Err(format!("{} is no copy", op.function()));
                }
            };
            let halves = |number: u64| [number as u32, (number >> 32) as u32];
            let ([low, high], [at_low, at_high]) = (halves(count as u64), halves(offset));
            let values = [kind, other as u32, low, high, at_low, at_high];
            for (word, value) in words.iter().zip(values) {
                store(word, value);
            }
        }
        Ok(())
    }

    /// Reads what a member offers, once [`Word::Offered`] has come to the call.
    ///
    /// # Errors
    /// What is no offer.
    pub(crate) fn offer_of(&self, member: usize) -> Result<Offer, String> {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let line = &self.page.words()[LINE * (1 + member)..];
        let (mailbox, num_ops) = (self.mailbox(member), load(&line[NUM_OPS]) as usize);
        let read = |words: &[AtomicU32]| {
            let [kind, other, low, high, at_low, at_high] =
                std::array::from_fn(|at| load(&words[at]));
            let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let (other, count) = (other as usize, whole(low, high) as usize);
            let (send, recv) = (Address(whole(at_low, at_high)), Address(0));
            Some(match kind {
                1 => Op::AllGather { send, recv, count },
                2 => Op::Broadcast {
                    send,
                    recv,
                    count,
                    root: other,
                },
                3 => Op::Send {
                    send,
                    count,
                    to: other,
                },
                4 => Op::Recv {
                    recv,
                    count,
                    from: other,
                },
                _ => return None,
            })
        };
        let words = mailbox.chunks(OP).take(num_ops);
        let ops: Option<Vec<Op>> = words.map(read).collect();
        match ops.filter(|ops| ops.len() == num_ops) {
            Some(ops) => Ok(Offer {
                slot: load(&line[SLOT]),
                ops,
            }),
            None => Err(format!("member {member} shows what is no offer")),
        }
    }
}
