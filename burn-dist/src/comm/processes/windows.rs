//! Whether all processes run the same windows.
//!
//! Processes of which one adds what another multiplies may never meet in a collective that shows it. So each tells the others the hash of every window it runs, without
//! waiting for theirs; what the host reads is answered when they have agreed.

use crate::comm::sync::{Condvar, Mutex, lock};
use crate::comm::{Block, CommError};
use crate::record::visit::kind_of_number;
use rustc_hash::FxHashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A window that a process is about to run.
#[derive(Clone, Debug)]
pub(crate) struct WindowPrint {
    /// Of the mesh, counted alike by all processes.
    pub number: u64,
    pub hash: u64,
    /// Hash of the scalars and the data that it is run with.
    pub values: u64,
    /// Its digest, if this process has not run such a window before: kinds of operations in the upper 16 bits, hashes below.
    pub digest: Option<Arc<[u64]>>,
}

/// How far the others have agreed, for a rank that waits.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    agreed: Mutex<bool>,
    bell: Condvar,
}

impl Agreement {
    pub fn reach(&self) {
        *lock(&self.agreed) = true;
        self.bell.notify_all();
    }

    /// Waits until the others agree, at most for `timeout`; whether they did.
    ///
    /// # Errors
    /// What `fault` finds meanwhile.
    pub fn wait(
        &self,
        timeout: Duration,
        fault: impl Fn() -> Option<CommError>,
    ) -> Result<bool, CommError> {
        /// A fault rings no bell here.
        const LOOK: Duration = Duration::from_millis(5);
        let start = Instant::now();
        let mut agreed = lock(&self.agreed);
        while !*agreed {
            if let Some(fault) = fault() {
                return Err(fault);
            }
            if start.elapsed() > timeout {
                return Ok(false);
            }
            (agreed, _) = self
                .bell
                .wait_timeout(agreed, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(true)
    }
}

/// The windows of one mesh that not all processes have run.
#[derive(Default)]
pub(super) struct Windows {
    open: FxHashMap<u64, Open>,
    /// Of each process, digests by hash.
    digests: FxHashMap<(u32, u64), Arc<[u64]>>,
    /// Operations in them.
    num_ops: usize,
}

/// Operations in the digests that are kept: 32 MiB. A program whose windows never repeat has no use for old ones.
const OPS_MAX: usize = 4 << 20;

#[derive(Default)]
struct Open {
    runs: Vec<Run>,
    agreement: Option<Arc<Agreement>>,
}

/// A window as one process runs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub process: u32,
    pub hash: u64,
    pub values: u64,
}

/// The bytes of a digest.
pub(super) fn to_block(digest: Option<&[u64]>) -> Block {
    match digest {
        None => Block::empty(),
        Some(digest) => Block::from(burn_std::Bytes::from_elems(digest.to_vec())),
    }
}

fn from_block(block: &Block) -> Option<Arc<[u64]>> {
    let chunks = block.as_slice().chunks_exact(8);
    let digest: Arc<[u64]> = chunks
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("8 bytes")))
        .collect();
    (!digest.is_empty()).then_some(digest)
}

impl Windows {
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
        if let Some(digest) = from_block(digest) {
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
        open.runs.push(run);
        if open.runs.len() == num_processes
            && let Some(open) = self.open.remove(&number)
            && let Some(agreement) = open.agreement
        {
            agreement.reach();
        }
        Ok(())
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
            Some(op) => kind_of_number((op >> 48) as u16),
            None => "nothing more",
        };
        let (in_a, in_b) = (recorded(of_a), recorded(of_b));
        let (of, or) = (a.process, b.process);
        let what = if a.hash == b.hash {
            "the same operations with other numbers or data (every process passes the whole batch, made alike)".to_string()
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
            "processes {of} and {or} do not run the same program: in window {number} they recorded {what}; all processes must make the same calls in the same order"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(process: u32, hash: u64, values: u64) -> Run {
        Run {
            process,
            hash,
            values,
        }
    }

    /// What two processes find out about two windows.
    fn differ(a: &[u64], b: &[u64]) -> Result<(), String> {
        let mut windows = Windows::default();
        let hash = |digest: &[u64]| {
            digest
                .iter()
                .fold(7, |hash: u64, op| hash.rotate_left(5) ^ op)
        };
        windows.run(4, run(0, hash(a), 0), &to_block(Some(a)), None, 2)?;
        windows.run(4, run(1, hash(b), 0), &to_block(Some(b)), None, 2)
    }

    #[test]
    fn the_first_difference_is_named() {
        let op = |kind: u64, rest: u64| (kind << 48) | rest;
        let [add, mul, sum] = [3, 5, 9];
        let name = |kind: u64| kind_of_number(kind as u16);
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
        let mut windows = Windows::default();
        let digest = to_block(Some(&[1, 2]));
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
            assert!(agreement.wait(Duration::ZERO, || None).unwrap());
        }
        assert!(windows.open.is_empty());
        windows
            .run(3, run(0, 11, 0), &Block::empty(), None, 2)
            .unwrap();
        let text = windows
            .run(3, run(1, 12, 0), &to_block(Some(&[1, 3])), None, 2)
            .unwrap_err();
        assert!(text.contains("operation 1"), "{text}");
        windows
            .run(4, run(0, 11, 5), &Block::empty(), None, 2)
            .unwrap();
        let text = windows
            .run(4, run(1, 11, 6), &Block::empty(), None, 2)
            .unwrap_err();
        assert!(text.contains("other numbers or data"), "{text}");
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
        assert!(!agreement.wait(Duration::ZERO, || None).unwrap());
    }
}
