//! Whether all processes run the same windows.
//!
//! Processes of which one adds what another multiplies may never meet in a collective that shows it. So each tells the
//! others the hash of every window it runs, without waiting for theirs; what the host reads is answered when they have
//! agreed.

use crate::sync::{Condvar, Mutex, lock};
use crate::{Block, CommError};
use rustc_hash::FxHashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Names a kind of operation by its number in the digest of a window.
pub type KindName = fn(u16) -> &'static str;

/// A window that a process is about to run.
#[derive(Clone, Debug)]
pub struct WindowPrint {
    /// Of the mesh, counted alike by all processes.
    pub number: u64,
    /// Hash of its operations.
    pub hash: u64,
    /// Hash of the scalars and the data that it is run with, but for data that processes give their own parts of.
    pub values: u64,
    /// Of such data, the parts that other processes have too.
    pub parts: Vec<PartPrint>,
    /// Its digest, if this process has not run such a window before: kinds of operations in the upper 16 bits, hashes
    /// below.
    pub digest: Option<Arc<[u64]>>,
}

/// A part of data that several processes give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPrint {
    /// Number of the value in its window.
    pub value: u32,
    /// Its first row.
    pub row: u64,
    /// Hash of its content.
    pub hash: u64,
}

/// How far the others have agreed, for a thread that waits.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug)]
enum State {
    /// These processes have run the window.
    Waiting(Vec<u32>),
    Reached,
    /// A process will not run it.
    Lost(CommError),
}

impl Default for State {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl Agreement {
    fn change(&self, state: State) {
        *lock(&self.state) = state;
        self.bell.notify_all();
    }

    /// Whether there is nothing more to wait for.
    pub fn is_settled(&self) -> bool {
        !matches!(*lock(&self.state), State::Waiting(_))
    }

    pub fn reach(&self) {
        self.change(State::Reached);
    }

    fn lose(&self, error: CommError) {
        self.change(State::Lost(error));
    }

    /// Waits until the others agree, at most for `timeout`; else returns the processes that have run the window.
    ///
    /// # Errors
    /// What `fault` finds meanwhile, or why a process does not run it.
    pub fn wait(
        &self,
        timeout: Duration,
        fault: impl Fn() -> Option<CommError>,
    ) -> Result<Option<Vec<u32>>, CommError> {
        /// A fault rings no bell here.
        const LOOK: Duration = Duration::from_millis(5);
        let start = Instant::now();
        let mut state = lock(&self.state);
        loop {
            let here = match &*state {
                State::Reached => return Ok(None),
                State::Lost(error) => return Err(error.clone()),
                State::Waiting(here) => here,
            };
            if let Some(fault) = fault() {
                return Err(fault);
            }
            if start.elapsed() > timeout {
                return Ok(Some(here.clone()));
            }
            (state, _) = self
                .bell
                .wait_timeout(state, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The windows of one mesh that not all processes have run.
pub(super) struct Windows {
    open: FxHashMap<u64, Open>,
    /// Of each process, digests by hash.
    digests: FxHashMap<(u32, u64), Arc<[u64]>>,
    /// Operations in them.
    num_ops: usize,
    kind_name: KindName,
}

/// Operations in the digests that are kept: 32 MiB. A program whose windows never repeat has no use for old ones.
const OPS_MAX: usize = 4 << 20;

#[derive(Default)]
struct Open {
    runs: Vec<Run>,
    /// The parts given so far, by value and first row: who was first, and the hash.
    parts: FxHashMap<(u32, u64), (u32, u64)>,
    agreement: Option<Arc<Agreement>>,
}

/// A window as one process runs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub process: u32,
    pub hash: u64,
    pub values: u64,
}

/// What a message says of a window besides [`Run`]: the number of parts, three words for each, then the digest.
pub(super) fn to_block(digest: Option<&[u64]>, parts: &[PartPrint]) -> Block {
    let digest = digest.unwrap_or_default();
    if digest.is_empty() && parts.is_empty() {
        return Block::empty();
    }
    let mut words = Vec::with_capacity(1 + 3 * parts.len() + digest.len());
    words.push(parts.len() as u64);
    words.extend(
        parts
            .iter()
            .flat_map(|part| [part.value.into(), part.row, part.hash]),
    );
    words.extend(digest);
    Block::from(words)
}

/// The reverse of [`to_block`]; of a block that is none, as much as there is.
fn from_block(block: &Block) -> (Vec<PartPrint>, Option<Arc<[u64]>>) {
    let chunks = block.as_slice().chunks_exact(8);
    let words: Vec<u64> = chunks
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("8 bytes")))
        .collect();
    let Some((&count, rest)) = words.split_first() else {
        return (Vec::new(), None);
    };
    let end = usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_mul(3);
    let (parts, digest) = rest.split_at(end.min(rest.len()));
    let parts = parts.chunks_exact(3).map(|part| PartPrint {
        value: part[0] as u32,
        row: part[1],
        hash: part[2],
    });
    (parts.collect(), (!digest.is_empty()).then(|| digest.into()))
}

impl Windows {
    pub fn new(kind_name: KindName) -> Self {
        Self {
            open: FxHashMap::default(),
            digests: FxHashMap::default(),
            num_ops: 0,
            kind_name,
        }
    }

    /// Notes that `process` runs a window; the others are `num_processes` with this one.
    ///
    /// # Errors
    /// How it differs from that of another process.
    pub fn run(
        &mut self,
        number: u64,
        run: Run,
        digest: &Block,
        agreement: Option<Arc<Agreement>>,
        num_processes: usize,
    ) -> Result<(), String> {
        let (parts, digest) = from_block(digest);
        if let Some(digest) = digest {
            if self.num_ops + digest.len() > OPS_MAX {
                self.digests.clear();
                self.num_ops = 0;
            }
            self.num_ops += digest.len();
            self.digests.insert((run.process, run.hash), digest);
        }
        let open = self.open.entry(number).or_default();
        open.agreement = agreement.or(open.agreement.take());
        let differs = |other: &&Run| (other.hash, other.values) != (run.hash, run.values);
        if let Some(&other) = open.runs.iter().find(differs) {
            return Err(self.difference(number, other, run));
        }
        for part in parts {
            let known = open.parts.entry((part.value, part.row));
            let &mut (process, hash) = known.or_insert((run.process, part.hash));
            if hash != part.hash {
                let (a, b) = (process.min(run.process), process.max(run.process));
                return Err(format!(
                    "processes {a} and {b} were given other data for the same rows: in window {number}, from row {} of \
                     value {} on; ranks of both hold them, so both have to read the same (`DeviceMesh::local_rows`)",
                    part.row, part.value
                ));
            }
        }
        open.runs.push(run);
        if let Some(agreement) = &open.agreement {
            let here = open.runs.iter().map(|run| run.process);
            agreement.change(State::Waiting(here.collect()));
        }
        if open.runs.len() == num_processes
            && let Some(open) = self.open.remove(&number)
            && let Some(agreement) = open.agreement
        {
            agreement.reach();
        }
        Ok(())
    }

    /// Tells who waits, or will wait, for windows that `process` has not run that it does not run them: `why` gives the
    /// error for a window.
    pub fn lost(&mut self, process: u32, why: impl Fn(u64) -> CommError) {
        for (number, open) in &self.open {
            let has_run = open.runs.iter().any(|run| run.process == process);
            if let (false, Some(agreement)) = (has_run, &open.agreement) {
                agreement.lose(why(*number));
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
             alike, and reads the same tensors in the same order)".to_string()
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
mod tests {
    use super::*;

    fn kind_name(kind: u16) -> &'static str {
        [
            "zero", "one", "two", "add", "four", "mul", "six", "seven", "eight", "sum",
        ][kind as usize]
    }

    fn run(process: u32, hash: u64, values: u64) -> Run {
        Run {
            process,
            hash,
            values,
        }
    }

    /// What two processes find out about two windows.
    fn differ(a: &[u64], b: &[u64]) -> Result<(), String> {
        let mut windows = Windows::new(kind_name);
        let hash = |digest: &[u64]| {
            digest
                .iter()
                .fold(7, |hash: u64, op| hash.rotate_left(5) ^ op)
        };
        windows.run(4, run(0, hash(a), 0), &to_block(Some(a), &[]), None, 2)?;
        windows.run(4, run(1, hash(b), 0), &to_block(Some(b), &[]), None, 2)
    }

    #[test]
    fn the_first_difference_is_named() {
        let op = |kind: u64, rest: u64| (kind << 48) | rest;
        let [add, mul, sum] = [3, 5, 9];
        let name = |kind: u64| kind_name(kind as u16);
        assert_eq!(
            differ(&[op(add, 1), op(mul, 2)], &[op(add, 1), op(mul, 2)]),
            Ok(())
        );
        let text = differ(&[op(add, 1), op(mul, 2)], &[op(add, 1), op(sum, 2)]).unwrap_err();
        let expected = format!(
            "as operation 1 {} in process 0 and {} in process 1",
            name(mul),
            name(sum)
        );
        assert!(
            text.contains("window 4") && text.contains(&expected),
            "{text}"
        );
        let text = differ(&[op(add, 1)], &[op(add, 2)]).unwrap_err();
        assert!(
            text.contains("operation 0") && text.contains("other shapes"),
            "{text}"
        );
        let text = differ(&[op(add, 1)], &[op(add, 1), op(sum, 1)]).unwrap_err();
        assert!(text.contains("nothing more in process 0"), "{text}");
    }

    #[test]
    fn a_window_known_by_its_hash_needs_no_digest_again() {
        let mut windows = Windows::new(kind_name);
        let digest = to_block(Some(&[1, 2]), &[]);
        for number in 0..3 {
            let agreement = Arc::<Agreement>::default();
            let first = match number {
                0 => digest.clone(),
                _ => Block::empty(),
            };
            windows
                .run(number, run(1, 11, number), &first, None, 2)
                .unwrap();
            windows
                .run(
                    number,
                    run(0, 11, number),
                    &first,
                    Some(agreement.clone()),
                    2,
                )
                .unwrap();
            assert_eq!(agreement.wait(Duration::ZERO, || None).unwrap(), None);
        }
        assert!(windows.open.is_empty());
        windows
            .run(3, run(0, 11, 0), &Block::empty(), None, 2)
            .unwrap();
        let text = windows
            .run(3, run(1, 12, 0), &to_block(Some(&[1, 3]), &[]), None, 2)
            .unwrap_err();
        assert!(text.contains("operation 1"), "{text}");
        windows
            .run(4, run(0, 11, 5), &Block::empty(), None, 2)
            .unwrap();
        let text = windows
            .run(4, run(1, 11, 6), &Block::empty(), None, 2)
            .unwrap_err();
        assert!(text.contains("other numbers, data or tensors"), "{text}");
    }

    #[test]
    fn parts_that_two_processes_give_have_to_be_alike() {
        let part = |row, hash| PartPrint {
            value: 3,
            row,
            hash,
        };
        let digest = [5_u64, 6];
        let block = to_block(Some(&digest), &[part(0, 1), part(4, 2)]);
        let (parts, found) = from_block(&block);
        assert_eq!(parts, [part(0, 1), part(4, 2)]);
        assert_eq!(found.as_deref(), Some(&digest[..]));
        assert_eq!(from_block(&to_block(None, &[])), (vec![], None));
        // A number of parts that is not there.
        let wrong = Block::from(vec![u64::MAX, 1, 2, 3, 4]);
        assert_eq!(from_block(&wrong).0.len(), 1);

        let mut windows = Windows::new(kind_name);
        let mut give = |process, parts: &[PartPrint]| {
            windows.run(0, run(process, 7, 7), &to_block(None, parts), None, 4)
        };
        give(0, &[part(0, 1)]).unwrap();
        give(2, &[part(4, 2)]).unwrap();
        give(1, &[part(0, 1)]).unwrap();
        let text = give(3, &[part(4, 9)]).unwrap_err();
        assert!(
            text.contains("processes 2 and 3") && text.contains("row 4"),
            "{text}"
        );
    }

    #[test]
    fn who_waits_learns_of_a_fault() {
        let agreement = Agreement::default();
        let fault = CommError::EmptyGroup;
        assert!(
            agreement
                .wait(Duration::from_secs(9), || Some(fault.clone()))
                .is_err()
        );
        let nobody = agreement.wait(Duration::ZERO, || None).unwrap();
        assert_eq!(nobody, Some(Vec::new()));
    }

    #[test]
    fn who_waits_learns_who_has_run_the_window_and_who_never_will() {
        let mut windows = Windows::new(kind_name);
        let agreement = Arc::<Agreement>::default();
        let nothing = Block::empty();
        windows
            .run(7, run(0, 1, 1), &nothing, Some(agreement.clone()), 3)
            .unwrap();
        windows.run(7, run(2, 1, 1), &nothing, None, 3).unwrap();
        let here = agreement.wait(Duration::ZERO, || None).unwrap();
        assert_eq!(here, Some(vec![0, 2]));
        // Process 2 has run it, and may go; process 1 may not.
        for (process, is_lost) in [(2, false), (1, true)] {
            windows.lost(process, |window| CommError::ProgramsDiffer {
                window,
                reason: "gone".into(),
            });
            assert_eq!(agreement.wait(Duration::ZERO, || None).is_err(), is_lost);
        }
    }
}
