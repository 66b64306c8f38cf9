//! The members of communicators that live in this process, and what they owe each other.
//!
//! - They launch together. A call of CUDA that allocates memory may wait for what *all* GPUs run that have mapped each
//!   other's memory, and keeps other calls waiting meanwhile: a rank that has launched early, whose kernel waits for
//!   its peers, would keep them from launching (NVIDIA/nccl, issues 744 and 787). So nobody launches before all have
//!   come, and nobody goes on before all have launched.
//! - They stop together. GPUs of one process read and write each other's buffers directly, so that memory of an aborted
//!   call is free when all of them have stopped.
//!
//! Who is here is known once a communicator is there: each member takes its place before it joins, and NCCL makes a
//! communicator of all or none.

use super::api::UniqueId;
use crate::sync::{Mutex, lock};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};

/// The communicators that members in this process have joined.
#[derive(Default)]
pub struct Neighbours {
    rooms: Mutex<FxHashMap<UniqueId, Weak<Room>>>,
}

/// The places of a communicator's members.
type Room = Mutex<Vec<Place>>;

#[derive(Default)]
struct Place {
    /// Meetings that the member has come to.
    meetings: u64,
    has_stopped: bool,
}

/// The place of one member.
pub struct Neighbour {
    room: Arc<Room>,
    index: usize,
}

impl Neighbours {
    /// Takes a place for a member that is about to join.
    pub fn enter(&self, id: &UniqueId) -> Neighbour {
        let mut rooms = lock(&self.rooms);
        rooms.retain(|_, room| room.strong_count() > 0);
        let known = rooms.get(id).and_then(Weak::upgrade);
        let room = known.unwrap_or_else(|| {
            let room = Arc::<Room>::default();
            rooms.insert(*id, Arc::downgrade(&room));
            room
        });
        let mut places = lock(&room);
        let index = places.len();
        places.push(Place::default());
        drop(places);
        Neighbour { room, index }
    }
}

impl Neighbour {
    /// Comes to the next meeting, and returns its number.
    pub fn arrive(&self) -> u64 {
        let mut places = lock(&self.room);
        let place = &mut places[self.index];
        place.meetings += 1;
        place.meetings
    }

    /// Whether all members here have come to a meeting.
    pub fn have_all_arrived(&self, meeting: u64) -> bool {
        lock(&self.room)
            .iter()
            .all(|place| place.meetings >= meeting)
    }

    /// Notes that nothing of this member runs any more, and that nothing will.
    pub fn stop(&self) {
        lock(&self.room)[self.index].has_stopped = true;
    }

    /// Whether nothing of any member here runs any more.
    pub fn have_all_stopped(&self) -> bool {
        lock(&self.room).iter().all(|place| place.has_stopped)
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
        let meeting = alone.arrive();
        assert!(alone.have_all_arrived(meeting));
        let meeting = a.arrive();
        assert!(!a.have_all_arrived(meeting));
        assert_eq!(b.arrive(), meeting);
        assert!(a.have_all_arrived(meeting) && b.have_all_arrived(meeting));
        a.stop();
        assert!(!a.have_all_stopped());
        b.stop();
        assert!(a.have_all_stopped() && !alone.have_all_stopped());
        // What nobody is in any more is forgotten.
        drop((a, b));
        let again = neighbours.enter(&one);
        assert!(!again.have_all_stopped());
        assert_eq!(lock(&neighbours.rooms).len(), 2);
    }
}
