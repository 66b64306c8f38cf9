//! The route between the members of a group: the cards that they show each other, and what follows.

use super::api::{Copies, Identity};
use crate::symmetric::os::MachineId;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The id of a group in one process.
pub type GroupId = [u8; 16];

/// The route of data that is not reduced between the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Copies from each other's memory.
    Copies,
    /// Copies through workspaces, which processes of one machine share.
    Workspace,
    /// NCCL, for this reason.
    Nccl(Reason),
}

/// Why a group does not copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The user wants NCCL.
    Asked,
    /// Some members live in other processes, and share no memory with them.
    Processes,
    /// Some members live on other machines.
    Machines,
    /// Some GPUs do not read others' memory.
    Unreachable,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copies => "copies over peer access",
            Self::Workspace => "copies through workspaces that its processes share",
            Self::Nccl(Reason::Asked) => "NCCL, as was asked for",
            Self::Nccl(Reason::Processes) => {
                "NCCL: its ranks live in several processes (GpuTransport::Workspace would copy)"
            }
            Self::Nccl(Reason::Machines) => "NCCL: its ranks live on several machines",
            Self::Nccl(Reason::Unreachable) => {
                "NCCL: not all of its GPUs have access to each other's memory"
            }
        })
    }
}

/// The card that a member shows the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The id of the members of a process: that of the group's first member counts.
    pub group: GroupId,
    /// The number that distinguishes its process from all others.
    pub process: [u8; 16],
    /// Its GPU.
    pub gpu: Identity,
    /// The GPUs whose memory its GPU reads, if it may copy at all.
    pub reachable: Option<Vec<Identity>>,
    /// The machine whose processes it shares memory with, if it may.
    pub machine: Option<MachineId>,
}

/// GPUs that a card has room for: more than a machine has.
const REACHABLE_MAX: usize = 32;

impl Card {
    /// The length of a card in bytes.
    pub const BYTES: usize = 16 * (4 + REACHABLE_MAX) + 3;

    /// Returns the card of a member that may copy with `copies`, and share memory with others of a `machine`.
    pub fn of(copies: Option<&dyn Copies>, process: [u8; 16], machine: Option<MachineId>) -> Self {
        Self {
            group: new_group_id(),
            process,
            machine,
            gpu: copies.map_or([0; 16], Copies::identity),
            reachable: copies.map(|copies| {
                let mut reachable = copies.reachable();
                reachable.truncate(REACHABLE_MAX);
                reachable
            }),
        }
    }

    /// The card as bytes, as many as that of any other member.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self {
            group,
            process,
            gpu,
            reachable,
            machine,
        } = self;
        let listed = reachable.as_deref().unwrap_or_default();
        let at = machine.unwrap_or_default();
        let mut bytes = [&group[..], process, gpu, &at].concat();
        // At most `REACHABLE_MAX`.
        let number = listed.len() as u8;
        bytes.extend([reachable.is_some().into(), machine.is_some().into(), number]);
        bytes.extend(listed.iter().flatten());
        bytes.resize(Self::BYTES, 0);
        bytes
    }

    /// Reads a card; `None` if the bytes are no card.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let ids = |at: usize| bytes.get(at..at + 16)?.try_into().ok();
        let [may_copy, may_share, listed] = bytes.get(64..67)?.try_into().ok()?;
        let reachable = (0..usize::from(listed)).map(|index| ids(67 + 16 * index));
        let reachable: Option<Vec<Identity>> = reachable.collect();
        Some(Self {
            group: ids(0)?,
            process: ids(16)?,
            gpu: ids(32)?,
            reachable: (may_copy == 1).then_some(reachable?),
            machine: if may_share == 1 { Some(ids(48)?) } else { None },
        })
    }
}

/// Returns the route of a group, the same on every member.
pub fn route(cards: &[Card]) -> Route {
    if cards.iter().any(|card| card.reachable.is_none()) {
        return Route::Nccl(Reason::Asked);
    }
    let is_one_process = cards.iter().all(|card| card.process == cards[0].process);
    if !is_one_process {
        if cards.iter().any(|card| card.machine.is_none()) {
            return Route::Nccl(Reason::Processes);
        }
        if cards.iter().any(|card| card.machine != cards[0].machine) {
            return Route::Nccl(Reason::Machines);
        }
    }
    let reads = |card: &Card, other: &Card| {
        let reachable = card.reachable.as_deref().unwrap_or_default();
        card.gpu == other.gpu || reachable.contains(&other.gpu)
    };
    let all = |card: &Card| cards.iter().all(|other| reads(card, other));
    match cards.iter().all(all) {
        true if is_one_process => Route::Copies,
        true => Route::Workspace,
        false => Route::Nccl(Reason::Unreachable),
    }
}

/// Returns a number that distinguishes this process from all others.
pub(crate) fn process() -> [u8; 16] {
    static TOKEN: OnceLock<[u8; 16]> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        let halves = [0, 1].map(|half: u8| RandomState::new().hash_one(half));
        let [a, b] = halves.map(u64::to_ne_bytes);
        std::array::from_fn(|at| if at < 8 { a[at] } else { b[at - 8] })
    })
}

/// Returns what has been nobody's.
fn new_group_id() -> GroupId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes();
    let process = process();
    std::array::from_fn(|at| process[at] ^ if at < 8 { number[at] } else { 0 })
}
