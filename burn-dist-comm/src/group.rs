//! Members of a collective: groups of ranks and lanes.

mod checked;

use burn_dist_mesh::Rank;
use rustc_hash::FxHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// An ordered list of distinct ranks that communicate with each other.
///
/// The order matters: member `i` contributes and receives piece `i`, and reductions run in this order. Clones are
/// cheap, and so are hashing and comparing (the hash is computed once).
#[derive(Clone)]
pub struct Group(Arc<Members>);

struct Members {
    hash: u64,
    ranks: Box<[Rank]>,
}

impl Group {
    /// Returns the group of `ranks`, of which no two are the same.
    fn of_distinct(ranks: Vec<Rank>) -> Self {
        let mut hasher = FxHasher::default();
        ranks.hash(&mut hasher);
        Self(Arc::new(Members {
            hash: hasher.finish(),
            ranks: ranks.into(),
        }))
    }

    /// The members, in order.
    pub fn ranks(&self) -> &[Rank] {
        &self.0.ranks
    }

    /// Number of members, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a group is never empty")]
    pub fn len(&self) -> usize {
        self.0.ranks.len()
    }

    /// The position of `rank` among the members.
    pub fn member(&self, rank: Rank) -> Option<usize> {
        self.0.ranks.iter().position(|&member| member == rank)
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.hash == other.0.hash && self.0.ranks == other.0.ranks)
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_ranks(&self.0.ranks, f)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group{self}")
    }
}

/// Writes `[0, 1, 5]`.
pub(crate) fn fmt_ranks(ranks: &[Rank], f: &mut impl fmt::Write) -> fmt::Result {
    f.write_char('[')?;
    for (i, rank) in ranks.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{}", rank.0)?;
    }
    f.write_char(']')
}

/// One of several independent streams of calls on the same group.
///
/// Calls of one group and lane match in program order; calls on different lanes may overtake each other. A rank uses
/// one thread per lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u16);
