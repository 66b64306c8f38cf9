//! Agreement of all processes on the windows that they run.
//!
//! Processes of which one adds what another multiplies may never meet in a collective that shows it. So each tells the
//! others the hash of every window it runs, without waiting for theirs; what the host reads is answered when they have
//! agreed.
//!
//! Plain data, one per mesh: windows that processes run come in, and verdicts for those who wait go out.

use super::membership::End;
use super::placement::Placement;
use super::window::{KindName, PartPrint};
use crate::CommError;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Operations in the digests that are kept: 32 MiB. If there are more, all are forgotten, and a difference is named
/// without the operation: a program whose windows never repeat has no use for old ones.
const OPS_MAX: usize = 4 << 20;

/// Windows that some processes have run and others have not, and the parts of data in them: what a program records in
/// minutes without a read. One more is [`CommError::TooFarAhead`].
const OPEN_MAX: usize = 1 << 16;

/// A window as one process runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub process: u32,
    pub hash: u64,
    pub values: u64,
}

/// How far processes have agreed on a window.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// These processes have run it so far, alike.
    Waiting(Vec<u32>),
    Agreed,
    /// A process will not run it.
    Missed(CommError),
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

/// Why a process runs no more windows.
#[derive(Clone, Debug)]
pub(super) enum Departure {
    /// Its ranks have left.
    Left,
    /// It has ended without leaving.
    Lost(End),
}

/// The windows of one mesh that not all processes have run.
pub(super) struct Agreement {
    placement: Arc<Placement>,
    open: FxHashMap<u64, Open>,
    /// Windows in there, and parts of data.
    num_open: usize,
    open_max: usize,
    /// Processes that run no more windows, and why not.
    departed: FxHashMap<u32, Departure>,
    /// Digests of each process, by hash.
    digests: FxHashMap<(u32, u64), Arc<[u64]>>,
    /// Operations in them.
    num_ops: usize,
    kind_name: KindName,
}

#[derive(Default)]
struct Open {
    runs: Vec<Run>,
    /// The parts seen so far, by value and first row: the first process, and the hash.
    parts: FxHashMap<(u32, u64), (u32, u64)>,
}

impl Agreement {
    /// Returns that of the processes of a mesh.
    pub(super) fn new(placement: Arc<Placement>, kind_name: KindName) -> Self {
        Self {
            placement,
            open: FxHashMap::default(),
            num_open: 0,
            open_max: OPEN_MAX,
            departed: FxHashMap::default(),
            digests: FxHashMap::default(),
            num_ops: 0,
            kind_name,
        }
    }

    /// A process runs a window, with parts of data that it gives, and the digest, if it is a new one; returns how far
    /// that one is.
    ///
    /// # Errors
    /// If processes run different programs, or this one is too far ahead of the others.
    pub(super) fn run(
        &mut self,
        window: u64,
        run: Run,
        parts: &[PartPrint],
        digest: Option<Arc<[u64]>>,
    ) -> Result<Verdict, CommError> {
        if let Some(digest) = digest {
            if self.num_ops + digest.len() > OPS_MAX {
                self.digests.clear();
                self.num_ops = 0;
            }
            self.num_ops += digest.len();
            self.digests.insert((run.process, run.hash), digest);
        }
        // A window that another process runs already is taken whatever there is.
        let is_new = !self.open.contains_key(&window);
        if is_new && self.num_open > 0 && self.num_open + 1 + parts.len() > self.open_max {
            return Err(CommError::TooFarAhead {
                process: self.placement.name(run.process),
                ahead: format!(
                    "it runs window {window}, and too many before it have not been run by all"
                ),
            });
        }
        let open = self.open.entry(window).or_default();
        let differs = |other: &&Run| (other.hash, other.values) != (run.hash, run.values);
        if let Some(&other) = open.runs.iter().find(differs) {
            let reason = self.difference(window, other, run);
            return Err(CommError::ProgramsDiffer { window, reason });
        }
        let num_parts = open.parts.len();
        for part in parts {
            let known = open.parts.entry((part.value, part.row));
            let &mut (process, hash) = known.or_insert((run.process, part.hash));
            if hash != part.hash {
                let (a, b) = (process.min(run.process), process.max(run.process));
                let reason = format!(
                    "processes {a} and {b} were given other data for the same rows: in window {window}, from row {} of \
                     value {} on; ranks of both hold them, so both have to read the same (`DeviceMesh::local_rows`)",
                    part.row, part.value
                );
                return Err(CommError::ProgramsDiffer { window, reason });
            }
        }
        self.num_open += usize::from(is_new) + open.parts.len() - num_parts;
        open.runs.push(run);
        if open.runs.len() == self.placement.others.len() + 1 {
            self.num_open -= 1 + open.parts.len();
            self.open.remove(&window);
            return Ok(Verdict::Agreed);
        }
        Ok(self.verdict(window, &self.open[&window]))
    }

    /// A process runs no more windows; returns the verdicts of those that this concerns.
    pub(super) fn depart(&mut self, process: u32, departure: Departure) -> Vec<(u64, Verdict)> {
        self.departed.insert(process, departure);
        let open = self.open.iter();
        open.map(|(&window, open)| (window, self.verdict(window, open)))
            .collect()
    }

    /// How far a window is that not all have run.
    fn verdict(&self, window: u64, open: &Open) -> Verdict {
        let ran: Vec<u32> = open.runs.iter().map(|run| run.process).collect();
        let mut departed = self.departed.iter();
        match departed.find(|(process, _)| !ran.contains(process)) {
            None => Verdict::Waiting(ran),
            Some((&process, departure)) => {
                let process = self.placement.name(process);
                Verdict::Missed(match departure {
                    Departure::Lost(end) => CommError::ProcessLost {
                        process,
                        call: None,
                        window: Some(window),
                        connection: end.of_connection(),
                    },
                    Departure::Left => CommError::ProcessLeft { process, window },
                })
            }
        }
    }

    fn difference(&self, number: u64, a: Run, b: Run) -> String {
        let (a, b) = if a.process < b.process {
            (a, b)
        } else {
            (b, a)
        };
        let digest = |run: Run| {
            let digest = self.digests.get(&(run.process, run.hash));
            digest.map_or(&[][..], |digest| &digest[..])
        };
        let (of_a, of_b) = (digest(a), digest(b));
        let at = of_a.iter().zip(of_b).position(|(a, b)| a != b);
        let at = at.unwrap_or(of_a.len().min(of_b.len()));
        let recorded = |digest: &[u64]| match digest.get(at) {
            Some(op) => (self.kind_name)((op >> 48) as u16),
            None => "nothing more",
        };
        let (in_a, in_b) = (recorded(of_a), recorded(of_b));
        let (of, or) = (a.process, b.process);
        let what = if a.hash == b.hash {
            "the same operations with other numbers, data or tensors (every process passes the whole batch, made \
             alike, and reads the same tensors in the same order), or with other `regions` of the mesh".to_string()
        } else if of_a.is_empty() || of_b.is_empty() {
            // Not kept, or a window without operations.
            "other operations".to_string()
        } else if of_a.len() == of_b.len() && at == of_a.len() {
            "the same operations on other inputs, or with other reads".to_string()
        } else if in_a == in_b {
            format!("operation {at}, {in_a}, on other shapes or types")
        } else {
            format!("as operation {at} {in_a} in process {of} and {in_b} in process {or}")
        };
        format!(
            "processes {of} and {or} do not run the same program: in window {number} they recorded {what}; all \
             processes must make the same calls in the same order, from one thread at a time"
        )
    }
}

#[cfg(test)]
mod tests;
