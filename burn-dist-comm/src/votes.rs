//! Decisions and knowledge that all processes share, whatever each of them sees.

use crate::processes::Answer;
use crate::{Block, Call, CommError, Communicator, Group, LocalComm, LocalHub, Strided};
use burn_dist_mesh::{DType, Rank, ReduceOp};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process works before it answers the others: well below the time for which they wait for it.
const TURN: Duration = Duration::from_secs(2);

/// The most that a process hands in at once: TCP carries bodies of at most a MiB.
const PART_BYTES_MAX: usize = 512 << 10;

/// Decisions and knowledge that all processes share, whatever each of them sees: whether to stop, say, on a signal that
/// reaches them at different steps.
///
/// ```
/// use burn_dist_comm::World;
///
/// let worlds = World::simulated(2);
/// std::thread::scope(|scope| {
///     for world in &worlds {
///         scope.spawn(move || {
///             let votes = world.votes()?;
///             assert!(votes.any(world.process() == 1)?);
///             assert!(!votes.any(false)?);
///             let all = votes.gather(format!("process {}", world.process()).as_bytes())?;
///             assert_eq!(all, [b"process 0", b"process 1"]);
///             Ok::<(), burn_dist_comm::CommError>(())
///         });
///     }
/// });
/// ```
pub struct Votes {
    pub(crate) here: LocalComm,
    pub(crate) group: Group,
}

impl Votes {
    /// Returns whether `here` is true in any process.
    ///
    /// # Communication
    /// Waits for the others; one byte.
    /// # Errors
    /// If one of them is late or has left.
    pub fn any(&self, here: bool) -> Result<bool, CommError> {
        Ok(self.most(u8::from(here))? != 0)
    }

    /// Returns the largest number that any process says.
    ///
    /// # Communication
    /// Waits for the others; one byte.
    /// # Errors
    /// If one of them is late or has left.
    pub fn most(&self, here: u8) -> Result<u8, CommError> {
        let vote = Block::from(vec![here]);
        let call = Call::all_reduce(&self.group, DType::U8, ReduceOp::Max, vote);
        Ok(self.here.run(call.labelled("a vote of processes"))?[0])
    }

    /// Has what stops the ranks of `mesh` in this process end these votes too: who waits here for a process whose ranks
    /// have stopped would wait in vain.
    pub fn following(self, mesh: &Arc<LocalHub>) -> Self {
        mesh.lead(self.here.hub());
        self
    }

    /// Does `work`, and returns what it gives once all processes have done theirs, however long that takes.
    ///
    /// # Communication
    /// Every two seconds, and at the end, processes tell each other whether they still work; a thread does that
    /// meanwhile. So one that has stopped is named in the time that votes have, and not in that of the work.
    /// # Errors
    /// Beside what `work` gives: if one of the processes is late to answer or has left, or still works `work_max` after
    /// this one has ended its own ([`CommError::Unfinished`]); if the system starts no thread.
    pub fn while_working<T>(
        &self,
        work_max: Duration,
        work: impl FnOnce() -> T,
    ) -> (T, Result<(), CommError>) {
        self.in_turns(TURN, work_max, work)
    }

    fn in_turns<T>(
        &self,
        turn: Duration,
        work_max: Duration,
        work: impl FnOnce() -> T,
    ) -> (T, Result<(), CommError>) {
        let done = Answer::<bool>::default();
        std::thread::scope(|scope| {
            let asking = std::thread::Builder::new().name("votes".into());
            let asking = asking.spawn_scoped(scope, || self.ask_until(&done, turn, work_max));
            let made = {
                let _done = Done(&done);
                work()
            };
            let asked = match asking {
                Ok(asking) => asking.join().unwrap_or_else(|_| Err(gone("has panicked"))),
                Err(error) => Err(gone(&format!("cannot be started ({error})"))),
            };
            // The others hear of it now, and not in their next vote.
            (made, asked.map_err(|error| self.here.hub().abort(error)))
        })
    }

    /// Answers the others until no process works any more.
    fn ask_until(
        &self,
        done: &Answer<bool>,
        turn: Duration,
        work_max: Duration,
    ) -> Result<(), CommError> {
        let mut ended: Option<Instant> = None;
        loop {
            let is_done = done.wait(turn, |done| done.then_some(())).is_some();
            if is_done {
                ended.get_or_insert_with(Instant::now);
            }
            let works = self.gather(&[u8::from(!is_done)])?;
            let working: Vec<Rank> = (0..)
                .zip(&works)
                .filter(|(_, works)| works.as_slice() == [1])
                .map(|(process, _)| Rank(process))
                .collect();
            if working.is_empty() {
                return Ok(());
            }
            let elapsed = ended.map_or(Duration::ZERO, |ended| ended.elapsed());
            if elapsed > work_max {
                return Err(CommError::Unfinished {
                    processes: self.here.hub().processes_of(&working),
                    elapsed,
                });
            }
        }
    }

    /// Returns what every process says, in order: reports of their ranks, say. The texts may differ in length, and be
    /// of any.
    ///
    /// # Communication
    /// Waits for the others; eight bytes of each, and then what they say, at most 512 KiB of each at a time.
    /// # Errors
    /// If one of them is late or has left.
    pub fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let num_processes = self.group.len();
        in_parts(mine, num_processes, PART_BYTES_MAX, |what, sizes, mine| {
            let (parts, mine) = (Strided::flat(sizes), Block::from(mine.to_vec()));
            let call = Call::all_gather(&self.group, DType::U8, parts, mine);
            self.here.run(call.labelled(what)).map(Block::from)
        })
    }
}

/// The thread that answers the others is not there.
fn gone(what: &str) -> CommError {
    CommError::Connection {
        reason: format!("the thread of this process that answers the others {what}"),
    }
}

/// Tells the thread that answers the others that the work is done, also if it panics.
struct Done<'a>(&'a Answer<bool>);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Returns what every process says, from parts of at most `bytes_max` bytes: `gather` joins a part of each, of the
/// sizes that it gets, from that of this process.
fn in_parts<E>(
    mine: &[u8],
    num_processes: usize,
    bytes_max: usize,
    mut gather: impl FnMut(&'static str, Vec<usize>, &[u8]) -> Result<Block, E>,
) -> Result<Vec<Vec<u8>>, E> {
    let len = (mine.len() as u64).to_le_bytes();
    let what = "the lengths of what processes say";
    let lens = gather(what, vec![8; num_processes], &len)?;
    let lens: Vec<usize> = lens
        .as_slice()
        .chunks_exact(8)
        .map(|len| u64::from_le_bytes(len.try_into().expect("8 bytes")) as usize)
        .collect();
    let longest = lens.iter().copied().max().unwrap_or(0);
    let mut texts: Vec<_> = lens.iter().map(|len| Vec::with_capacity(*len)).collect();
    for start in (0..longest).step_by(bytes_max) {
        let part = |len: usize| start.min(len)..len.min(start + bytes_max);
        let sizes: Vec<usize> = lens.iter().map(|len| part(*len).len()).collect();
        let joined = gather("what processes say", sizes.clone(), &mine[part(mine.len())])?;
        let mut rest = joined.as_slice();
        for (text, size) in texts.iter_mut().zip(sizes) {
            let (part, after) = rest.split_at(size);
            text.extend_from_slice(part);
            rest = after;
        }
    }
    Ok(texts)
}

impl fmt::Debug for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "votes of {} processes", self.group.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;
    use crate::{LocalOptions, World};
    use std::sync::mpsc::channel;

    /// Longer than any test takes.
    const HOURS: Duration = Duration::from_secs(7200);
    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn who_votes_hears_of_a_fault_of_the_mesh() {
        // Before the votes are made, and while one process waits for the other.
        for is_early in [true, false] {
            let worlds = World::simulated(2);
            let errors = std::thread::scope(|scope| {
                let run = |world: World| {
                    let rank = world.connect(2, LocalOptions::default()).unwrap().remove(0);
                    let fault = || CommError::Aborted {
                        rank: Rank(1),
                        what: "matmul".into(),
                        label: "layers.2".into(),
                        reason: "out of memory".into(),
                    };
                    if is_early && world.process() == 1 {
                        rank.hub().abort(fault());
                    }
                    let votes = world.votes_within(HOURS).unwrap().following(rank.hub());
                    if !is_early && world.process() == 1 {
                        rank.hub().abort(fault());
                        return rank.hub().fault().unwrap();
                    }
                    votes.any(true).unwrap_err()
                };
                let threads: Vec<_> = worlds
                    .into_iter()
                    .map(|world| scope.spawn(move || run(world)))
                    .collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, CommError>| thread.join();
                threads
                    .into_iter()
                    .map(|thread| join(thread).expect("no panic"))
                    .collect::<Vec<_>>()
            });
            for error in errors {
                assert_eq!(error.exit_code(), 70);
                assert!(error.to_string().contains("out of memory"), "{error}");
            }
        }
    }

    /// Runs `program` in two processes, whose votes wait so long for each other.
    fn in_two<T: Send>(timeout: Duration, program: impl Fn(usize, Votes) -> T + Sync) -> Vec<T> {
        let (worlds, program) = (World::simulated(2), &program);
        std::thread::scope(|scope| {
            let run = |world: World| {
                let votes = world.votes_within(timeout).unwrap();
                program(world.process(), votes)
            };
            let threads: Vec<_> = worlds
                .into_iter()
                .map(|world| scope.spawn(move || run(world)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        })
    }

    #[test]
    fn work_may_take_long_while_a_process_answers() {
        // Ten times as long as a vote may take, in one process.
        let timeout = Duration::from_millis(500);
        let made = in_two(timeout, |process, votes| {
            let work = || {
                if process == 1 {
                    std::thread::sleep(10 * timeout);
                }
                process
            };
            let (made, together) = votes.in_turns(SHORT, HOURS, work);
            together.unwrap();
            assert!(votes.any(process == 0).unwrap());
            made
        });
        assert_eq!(made, [0, 1]);
    }

    #[test]
    fn who_does_not_answer_or_does_not_end_is_named() {
        // It answers, and does not end its work.
        let (tells, hears) = channel::<()>();
        let (tells, hears) = (
            std::sync::Mutex::new(Some(tells)),
            std::sync::Mutex::new(hears),
        );
        in_two(HOURS, |process, votes| match process {
            0 => {
                let (_, together) = votes.in_turns(SHORT, Duration::ZERO, || ());
                let error = together.unwrap_err();
                assert_eq!(error.exit_code(), 75);
                let error = error.to_string();
                assert!(error.starts_with("process 1 ("), "{error}");
                assert!(error.contains("does its disk answer"), "{error}");
                lock(&tells).take();
            }
            _ => {
                let work = || lock(&hears).recv().is_err();
                let (is_over, together) = votes.in_turns(SHORT, HOURS, work);
                let error = together.unwrap_err().to_string();
                assert!(is_over && error.contains("process 0 ("), "{error}");
            }
        });
        // It does not answer, as one that is stopped.
        let (tells, hears) = channel::<()>();
        let (tells, hears) = (
            std::sync::Mutex::new(Some(tells)),
            std::sync::Mutex::new(hears),
        );
        in_two(Duration::from_millis(100), |process, votes| match process {
            0 => {
                let (_, together) = votes.in_turns(SHORT, HOURS, || ());
                let error = together.unwrap_err();
                assert!(matches!(error, CommError::Timeout { .. }), "{error}");
                assert!(error.to_string().contains("process 1 ("), "{error}");
                lock(&tells).take();
            }
            _ => assert!(lock(&hears).recv().is_err()),
        });
    }

    #[test]
    fn texts_of_any_lengths_come_together_in_parts() {
        const PART: usize = 3;
        let lens = 0..=3 * PART;
        let pairs = lens.clone().flat_map(|a| lens.clone().map(move |b| (a, b)));
        for (a, b) in pairs {
            let text = |process: usize, len| (0..len).map(|at| (7 * at + process) as u8).collect();
            let texts: Vec<Vec<u8>> = vec![text(0, a), text(1, b), text(2, 0)];
            // What each hands in, process by process: all of them do so as often, and with the same sizes.
            let handed_in = |of: usize, gathered: &mut dyn FnMut(usize) -> Option<Block>| {
                let (mut parts, mut all_sizes) = (Vec::new(), Vec::new());
                let result = in_parts(&texts[of], 3, PART, |_, sizes, mine| {
                    assert_eq!(mine.len(), sizes[of]);
                    assert!(all_sizes.is_empty() || mine.len() <= PART);
                    parts.push(mine.to_vec());
                    all_sizes.push(sizes);
                    gathered(parts.len() - 1).ok_or(())
                });
                (parts, all_sizes, result)
            };
            let mut joined: Vec<Vec<u8>> = Vec::new();
            loop {
                let all = [0, 1, 2].map(|of| {
                    handed_in(of, &mut |step| joined.get(step).cloned().map(Block::from))
                });
                assert!(all.iter().all(|(_, sizes, _)| *sizes == all[0].1));
                if all.iter().all(|(.., result)| result.is_ok()) {
                    assert_eq!(joined.len(), 1 + a.max(b).div_ceil(PART));
                    assert!(all.iter().all(|(.., result)| *result == Ok(texts.clone())));
                    break;
                }
                let parts = all.iter().map(|(parts, ..)| parts[joined.len()].clone());
                joined.push(parts.collect::<Vec<_>>().concat());
            }
        }
    }
}
