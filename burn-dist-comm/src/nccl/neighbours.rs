//! The members of communicators that live in this process, and what they owe each other.
//!
//! - They launch together. A call of CUDA that allocates memory may wait for what *all* GPUs run that have mapped each
//!   other's memory, and keeps other calls waiting meanwhile: a rank that has launched early, whose kernel waits for
//!   its peers, would keep them from launching (NVIDIA/nccl, issues 744 and 787). So nobody launches before all have
//!   come, and nobody goes on before all have launched.
//! - They stop together. GPUs of one process read and write each other's buffers directly, so that memory of an aborted
//!   call is free when all of them have stopped.
//!
//! Who is here is known once a communicator is there: each member is entered before it joins, and NCCL makes a
//! communicator of all or none.

use super::api::UniqueId;
use crate::sync::{Mutex, lock};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};

/// The communicators that members in this process have joined.
#[derive(Default)]
pub struct Neighbours {
    communicators: Mutex<FxHashMap<UniqueId, Weak<Members>>>,
}

/// The members of a communicator that live here.
type Members = Mutex<Vec<Member>>;

#[derive(Default)]
struct Member {
    /// Barriers that the member has come to.
    barriers: u64,
    has_stopped: bool,
}

/// One member among its neighbours.
pub struct Neighbour {
    members: Arc<Members>,
    index: usize,
}

impl Neighbours {
    /// Enters a member that is about to join.
    pub fn enter(&self, id: &UniqueId) -> Neighbour {
        let mut communicators = lock(&self.communicators);
        communicators.retain(|_, members| members.strong_count() > 0);
        let known = communicators.get(id).and_then(Weak::upgrade);
        let members = known.unwrap_or_else(|| {
            let members = Arc::<Members>::default();
            communicators.insert(*id, Arc::downgrade(&members));
            members
        });
        let mut all = lock(&members);
        let index = all.len();
        all.push(Member::default());
        drop(all);
        Neighbour { members, index }
    }
}

impl Neighbour {
    /// Comes to the next barrier, and returns its number.
    pub fn arrive(&self) -> u64 {
        let mut all = lock(&self.members);
        let member = &mut all[self.index];
        member.barriers += 1;
        member.barriers
    }

    /// Whether all members here have come to a barrier.
    pub fn have_all_arrived(&self, barrier: u64) -> bool {
        lock(&self.members)
            .iter()
            .all(|member| member.barriers >= barrier)
    }

    /// Notes that nothing of this member runs any more, and that nothing will.
    pub fn stop(&self) {
        lock(&self.members)[self.index].has_stopped = true;
    }

    /// Whether nothing of any member here runs any more.
    pub fn have_all_stopped(&self) -> bool {
        lock(&self.members).iter().all(|member| member.has_stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_communicator_know_each_other() {
        let neighbours = Neighbours::default();
        let [one, other] = [1, 2].map(|byte| UniqueId([byte; UniqueId::BYTES]));
        let (a, b, alone) = (
            neighbours.enter(&one),
            neighbours.enter(&one),
            neighbours.enter(&other),
        );
        let barrier = alone.arrive();
        assert!(alone.have_all_arrived(barrier));
        let barrier = a.arrive();
        assert!(!a.have_all_arrived(barrier));
        assert_eq!(b.arrive(), barrier);
        assert!(a.have_all_arrived(barrier) && b.have_all_arrived(barrier));
        a.stop();
        assert!(!a.have_all_stopped());
        b.stop();
        assert!(a.have_all_stopped() && !alone.have_all_stopped());
        // What nobody is in any more is forgotten.
        drop((a, b));
        let again = neighbours.enter(&one);
        assert!(!again.have_all_stopped());
        assert_eq!(lock(&neighbours.communicators).len(), 2);
    }
}
