//! The members of a group that live in this process, and what they owe each other.
//!
//! - They launch together. A call of CUDA that allocates memory may wait for what *all* GPUs run that have mapped each
//!   other's memory, and keeps other calls waiting meanwhile: a rank that has launched early, whose kernel waits for
//!   its peers, would keep them from launching (NVIDIA/nccl, issues 744 and 787). So nobody launches before all have
//!   come, and nobody goes on before all have launched.
//! - They copy from each other ([`crate::peer`]): each shows the others what it sends, and when.
//! - They stop together. GPUs of one process read and write each other's buffers directly, so that memory of an aborted
//!   call is free when all of them have stopped.
//!
//! How many there are is known from the cards that members have shown each other before.

use crate::device::Event;
use crate::peer::choice::GroupId;
use crate::peer::copies::Offer;
use burn_dist_comm::lock;
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::{Arc, Weak};

/// The groups that members in this process have joined.
#[derive(Default)]
pub struct Neighbours {
    groups: Mutex<FxHashMap<GroupId, Weak<Members>>>,
}

/// The members of a group that live here.
type Members = Mutex<Vec<Member>>;

#[derive(Default)]
struct Member {
    /// Its place in the group.
    place: usize,
    /// Barriers that the member has come to.
    barriers: u64,
    /// Calls in which it gives no stream a wait any more.
    passed: u64,
    has_stopped: bool,
    /// The offer of the call at hand.
    offer: Option<Offer>,
    /// When it has read what others have shown.
    read: Option<Event>,
}

/// One member among its neighbours.
pub struct Neighbour {
    members: Arc<Members>,
    index: usize,
    /// How many there are.
    num_here: usize,
}

impl Neighbours {
    /// Enters a member, at its `place` in the group, of `num_here` in this process.
    pub fn enter(&self, id: &GroupId, place: usize, num_here: usize) -> Neighbour {
        let mut groups = lock(&self.groups);
        groups.retain(|_, members| members.strong_count() > 0);
        let known = groups.get(id).and_then(Weak::upgrade);
        let members = known.unwrap_or_else(|| {
            let members = Arc::<Members>::default();
            groups.insert(*id, Arc::downgrade(&members));
            members
        });
        let mut all = lock(&members);
        let index = all.len();
        all.push(Member {
            place,
            ..Member::default()
        });
        drop(all);
        Neighbour {
            members,
            index,
            num_here,
        }
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

    /// Returns whether all members here have come to a barrier.
    pub fn have_all_arrived(&self, barrier: u64) -> bool {
        let all = lock(&self.members);
        all.len() == self.num_here && all.iter().all(|member| member.barriers >= barrier)
    }

    /// Notes that this member gives no stream a wait for an event of the call at hand any more.
    pub fn pass(&self) {
        lock(&self.members)[self.index].passed += 1;
    }

    /// Returns whether nobody gives a stream a wait for an event of the calls that this member has passed.
    pub fn have_all_passed(&self) -> bool {
        let all = lock(&self.members);
        let passed = all[self.index].passed;
        all.iter()
            .all(|member| member.has_stopped || member.passed >= passed)
    }

    /// Shows the others what it sends and receives in its next call.
    pub fn offer(&self, offer: Offer) {
        lock(&self.members)[self.index].offer = Some(offer);
    }

    /// Shows the others when it has read what they have shown.
    pub fn has_read(&self, event: Event) {
        lock(&self.members)[self.index].read = Some(event);
    }

    /// The offers of all members, by their places; they have come to the barrier behind it.
    pub fn offers(&self) -> Vec<Offer> {
        let all = lock(&self.members);
        let mut offers: Vec<_> = all
            .iter()
            .filter_map(|member| Some((member.place, member.offer.clone()?)))
            .collect();
        offers.sort_by_key(|(place, _)| *place);
        offers.into_iter().map(|(_, offer)| offer).collect()
    }

    /// When the member at a place has read; they have come to the barrier behind it.
    pub fn read_of(&self, place: usize) -> Option<Event> {
        let all = lock(&self.members);
        let mut members = all.iter().filter(|member| member.place == place);
        members.next().and_then(|member| member.read)
    }

    /// Notes that nothing of this member runs any more, and that nothing will.
    pub fn stop(&self) {
        lock(&self.members)[self.index].has_stopped = true;
    }

    /// Returns whether nothing of any member here runs any more.
    pub fn have_all_stopped(&self) -> bool {
        lock(&self.members).iter().all(|member| member.has_stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_group_know_each_other() {
        let neighbours = Neighbours::default();
        let [one, other] = [[1; 16], [2; 16]];
        let (a, alone) = (neighbours.enter(&one, 0, 2), neighbours.enter(&other, 0, 1));
        let barrier = alone.arrive();
        assert!(alone.have_all_arrived(barrier));
        let barrier = a.arrive();
        // The other one has not even entered.
        assert!(!a.have_all_arrived(barrier));
        let b = neighbours.enter(&one, 1, 2);
        assert!(!a.have_all_arrived(barrier));
        assert_eq!(b.arrive(), barrier);
        assert!(a.have_all_arrived(barrier) && b.have_all_arrived(barrier));
        b.has_read(Event(7));
        assert_eq!([0, 1].map(|place| a.read_of(place)), [None, Some(Event(7))]);
        a.stop();
        assert!(!a.have_all_stopped());
        b.stop();
        assert!(a.have_all_stopped() && !alone.have_all_stopped());
        // What nobody is in any more is forgotten.
        drop((a, b));
        let again = neighbours.enter(&one, 0, 2);
        assert!(!again.have_all_stopped());
        assert_eq!(lock(&neighbours.groups).len(), 2);
    }
}
