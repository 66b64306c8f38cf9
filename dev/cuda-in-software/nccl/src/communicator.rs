//! Communicators: who is a member, and how far each has come.

use crate::moves::Round;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// An identity, of which NCCL has 128 bytes.
pub(crate) type Id = [u8; 128];

/// What the members of a communicator have in common.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) members: usize,
    /// The devices of those that have joined.
    joined: Mutex<Vec<i32>>,
    changed: Condvar,
    rounds: Mutex<HashMap<Which, (u64, Arc<Round>)>>,
}

/// Which meeting of a communicator: the members that meet (one another, or all), and how many they had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Which {
    pub(crate) pair: Option<(usize, usize)>,
    pub(crate) number: u64,
}

/// One member's handle.
pub(crate) struct Communicator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) rank: usize,
    /// How many meetings it has had with whom.
    counts: Mutex<HashMap<Option<(usize, usize)>, u64>>,
    /// The keys of its meetings, and its number in each.
    met: Mutex<Vec<(u64, usize)>>,
}

static ALL: Mutex<Option<HashMap<Id, Arc<Shared>>>> = Mutex::new(None);

/// An identity that nobody else has.
pub(crate) fn identity() -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut id = [0; 128];
    id[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    id[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
    id
}

impl Communicator {
    /// Joins a communicator.
    pub(crate) fn join(id: Id, members: usize, rank: usize, device: i32) -> Self {
        let mut all = ALL.lock().expect("no panic among communicators");
        let new = || {
            Arc::new(Shared {
                members,
                ..Shared::default()
            })
        };
        let shared = all.get_or_insert_default().entry(id).or_insert_with(new);
        let shared = Arc::clone(shared);
        let mut joined = shared.joined.lock().expect("no panic in a communicator");
        joined.push(device);
        drop(joined);
        shared.changed.notify_all();
        Communicator {
            shared,
            rank,
            counts: Mutex::default(),
            met: Mutex::default(),
        }
    }

    /// Whether all have joined.
    pub(crate) fn is_ready(&self) -> bool {
        self.joined(|joined| joined.len() >= self.shared.members)
    }

    /// Whether two members are on one device, which NCCL refuses.
    pub(crate) fn has_twins(&self) -> bool {
        self.joined(|joined| (1..joined.len()).any(|at| joined[..at].contains(&joined[at])))
    }

    fn joined<T>(&self, of: impl FnOnce(&[i32]) -> T) -> T {
        let joined = self.shared.joined.lock();
        of(&joined.expect("no panic in a communicator"))
    }

    /// Waits until all have joined.
    pub(crate) fn wait(&self) {
        let joined = self
            .shared
            .joined
            .lock()
            .expect("no panic in a communicator");
        let all = self
            .shared
            .changed
            .wait_while(joined, |joined| joined.len() < self.shared.members);
        drop(all.expect("no panic in a communicator"));
    }

    /// Returns the next meeting with some, and its key.
    pub(crate) fn next(&self, pair: Option<(usize, usize)>) -> (u64, Arc<Round>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut counts = self.counts.lock().expect("no panic in a communicator");
        let number = counts.entry(pair).or_default();
        let which = Which {
            pair,
            number: *number,
        };
        *number += 1;
        let members = match pair {
            Some((one, other)) if one == other => 1,
            Some(_) => 2,
            None => self.shared.members,
        };
        let mut rounds = self
            .shared
            .rounds
            .lock()
            .expect("no panic in a communicator");
        let new = || {
            let key = NEXT.fetch_add(1, Ordering::Relaxed);
            (key, Arc::new(Round::new(members)))
        };
        let (key, round) = rounds.entry(which).or_insert_with(new);
        let (key, round) = (*key, Arc::clone(round));
        if round.is_last() {
            rounds.remove(&which);
        }
        let mine = match pair {
            Some((low, high)) if low != high => usize::from(self.rank == high),
            Some(_) => 0,
            None => self.rank,
        };
        self.met
            .lock()
            .expect("no panic in a communicator")
            .push((key, mine));
        (key, round)
    }

    /// The keys of its meetings, and its number in each.
    pub(crate) fn met(&self) -> Vec<(u64, usize)> {
        self.met.lock().expect("no panic in a communicator").clone()
    }
}
