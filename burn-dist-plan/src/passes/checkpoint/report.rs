//! The count of activations made again.

use serde::Serialize;

/// The visits and steps of a window that are run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recomputed {
    /// Passes forward through a unit whose values are made again.
    pub visits: u64,
    /// Passes forward through any unit that a later pass needs values of.
    pub visits_seen: u64,
    /// Steps that are run again, collectives included.
    pub ops: u64,
    /// Collectives among them.
    pub collectives: u64,
}

impl std::ops::AddAssign for Recomputed {
    fn add_assign(&mut self, other: Self) {
        self.visits += other.visits;
        self.visits_seen += other.visits_seen;
        self.ops += other.ops;
        self.collectives += other.collectives;
    }
}
