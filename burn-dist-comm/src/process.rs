//! A process, as errors name it.

use super::group::fmt_ranks;
use burn_dist_mesh::Rank;
use std::fmt;

/// A process of a program, with those of its ranks that matter.
///
/// Its text: `process 1 (ranks [2, 3], host b, pid 12)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub number: u32,
    /// Name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Ranks of it; those that are missing, where some are.
    pub ranks: Vec<Rank>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (", self.number)?;
        if !self.ranks.is_empty() {
            f.write_str("ranks ")?;
            fmt_ranks(&self.ranks, f)?;
            f.write_str(", ")?;
        }
        write!(f, "host {}, pid {})", self.host, self.pid)
    }
}

/// Several, joined by `and`.
pub(super) fn processes_text(processes: &[Process]) -> String {
    let texts: Vec<String> = processes.iter().map(ToString::to_string).collect();
    texts.join(" and ")
}
