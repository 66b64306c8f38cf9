//! The fault of a mesh: the first one wins, and everyone is notified once.
//!
//! ```text
//! Running --found--> Found --published--> Stopped
//!    |                                       ^
//!    +-----------reported, or cut off--------+
//! ```
//!
//! A fault is found by a rank here, or another process tells of one, or nothing arrives any more. Whichever comes first
//! goes to all other processes, also from those that were notified: whoever has found it may have ended before its own
//! messages left.
//!
//! Plain data, one per mesh.

/// A fault, as processes tell each other of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The finder of a fault.
    pub process: u32,
    pub reason: String,
    pub exit_code: u8,
}

/// The state of a mesh: running, or stopped by a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Faults {
    #[default]
    Running,
    /// A rank here has found one, and the others are notified before the ranks here can see it. A call that ends
    /// now would wake those who wait for it in vain, and never again.
    Found,
    /// The ranks here can see it: who waits is woken, and what comes is answered by nobody.
    Stopped,
}

impl Faults {
    /// A rank here has found a fault; returns whether the others are to be notified.
    pub(super) fn find(&mut self) -> bool {
        let is_first = *self == Self::Running;
        if is_first {
            *self = Self::Found;
        }
        is_first
    }

    /// The ranks here can see the fault: it was published here, another process has reported it, or nothing arrives any
    /// more. Returns whether the others are to be notified.
    pub(super) fn stop(&mut self) -> bool {
        std::mem::replace(self, Self::Stopped) == Self::Running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, VecDeque};

    /// A few processes, and the messages between each two of them: who has found the fault.
    #[derive(Clone)]
    struct World {
        /// The state of each process, and whose fault its ranks see.
        faults: Vec<(Faults, Option<u32>)>,
        on_the_way: Vec<Vec<VecDeque<u32>>>,
        finders: BTreeSet<u32>,
        /// Ranks that have found a fault which their ranks do not see yet.
        unpublished: BTreeSet<u32>,
        num_sent: usize,
    }

    impl World {
        fn tell(&mut self, process: usize, found_by: u32) {
            for other in (0..self.faults.len()).filter(|other| *other != process) {
                self.on_the_way[process][other].push_back(found_by);
                self.num_sent += 1;
            }
        }

        /// Goes through every order of finding, publishing and delivering, `check`ing every end.
        fn explore(&self, check: &mut impl FnMut(&World)) {
            let mut is_end = true;
            for &finder in &self.finders {
                is_end = false;
                let mut next = self.clone();
                next.finders.remove(&finder);
                let (faults, seen) = &mut next.faults[finder as usize];
                // A rank that has been stopped finds nothing any more.
                if seen.is_none() {
                    assert!(faults.find() && !faults.find(), "reported once");
                    next.unpublished.insert(finder);
                    next.tell(finder as usize, finder);
                }
                next.explore(check);
            }
            for &finder in &self.unpublished {
                is_end = false;
                let mut next = self.clone();
                next.unpublished.remove(&finder);
                let (faults, seen) = &mut next.faults[finder as usize];
                assert!(!faults.stop(), "it is known already");
                *seen = Some(finder);
                next.explore(check);
            }
            for from in 0..self.faults.len() {
                for to in 0..self.faults.len() {
                    // Who is notified waits until what was found is published.
                    let is_blocked = self.unpublished.contains(&(to as u32));
                    if is_blocked || self.on_the_way[from][to].is_empty() {
                        continue;
                    }
                    is_end = false;
                    let mut next = self.clone();
                    let reported = next.on_the_way[from][to].pop_front().expect("not empty");
                    let (faults, seen) = &mut next.faults[to];
                    seen.get_or_insert(reported);
                    if faults.stop() {
                        next.tell(to, reported);
                    }
                    next.explore(check);
                }
            }
            if is_end {
                check(self);
            }
        }
    }

    #[test]
    fn in_every_order_everyone_learns_of_a_first_fault_and_tells_it_once() {
        for (num, finders, num_ends_min) in
            [(2, vec![0, 1], 3), (3, vec![1], 10), (3, vec![0, 2], 100)]
        {
            let world = World {
                faults: vec![(Faults::default(), None); num],
                on_the_way: vec![vec![VecDeque::new(); num]; num],
                finders: finders.iter().copied().collect(),
                unpublished: BTreeSet::new(),
                num_sent: 0,
            };
            let mut num_ends = 0;
            world.explore(&mut |end| {
                num_ends += 1;
                for (faults, seen) in &end.faults {
                    assert_eq!(*faults, Faults::Stopped);
                    assert!(finders.contains(&seen.expect("a fault has stopped it")));
                }
                assert_eq!(end.num_sent, num * (num - 1), "each tells each other once");
            });
            assert!(num_ends >= num_ends_min, "{num_ends} ends");
        }
    }

    #[test]
    fn a_reported_fault_is_not_found_again() {
        let mut faults = Faults::default();
        assert!(faults.stop() && !faults.stop() && !faults.find());
        assert_eq!(faults, Faults::Stopped);
    }
}
