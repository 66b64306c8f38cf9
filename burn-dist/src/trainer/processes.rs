//! The processes that run this program together, and what they tell each other.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::Elsewhere;
use super::exit::exit_code;
use crate::launch::{CommError, Stop, Votes, World};

/// How long a process works before it looks after the others: well below the time for which they wait for it.
const TURN: Duration = Duration::from_secs(5);

/// The processes of a run, or this one alone.
#[derive(Debug, Default)]
pub struct Processes(Option<Several>);

#[derive(Debug)]
struct Several {
    votes: Votes,
    process: usize,
    num: usize,
    /// The machine of this process.
    host: String,
}

impl Processes {
    /// Returns those of `world`; every process makes as many of them, in the same order.
    ///
    /// # Errors
    /// [`CommError`] if another process cannot be reached.
    pub fn of(world: &World) -> Result<Self, CommError> {
        Ok(Self(Some(Several {
            votes: world.votes()?,
            process: world.process(),
            num: world.num_processes(),
            host: world.peers()[world.process()].host.clone(),
        })))
    }

    /// Returns whether there are others.
    pub fn are_several(&self) -> bool {
        self.0.is_some()
    }

    /// The number of this process.
    pub fn process(&self) -> usize {
        self.0.as_ref().map_or(0, |several| several.process)
    }

    /// The name of the machine of this process; empty if there are no others.
    pub fn host(&self) -> String {
        let several = self.0.as_ref();
        several.map_or_else(String::new, |several| several.host.clone())
    }

    /// How many there are.
    pub fn num(&self) -> usize {
        self.0.as_ref().map_or(1, |several| several.num)
    }

    /// This process's share of `num` things.
    pub fn share(&self, num: usize) -> Range<usize> {
        // 7 things, 2 processes -> 0..3, 3..7
        let border = |process: usize| num * process / self.num();
        border(self.process())..border(self.process() + 1)
    }

    /// Returns whether a signal has asked any process to stop; they end with the same code then.
    ///
    /// # Communication
    /// Waits for the others.
    /// # Errors
    /// If another process is late or has ended.
    pub fn stop(&self, stop: &Stop) -> anyhow::Result<bool> {
        match &self.0 {
            Some(several) => Ok(stop.agree(&several.votes)?),
            None => Ok(stop.is_asked()),
        }
    }

    /// Returns whether `here` is true in any process.
    ///
    /// # Communication
    /// Waits for the others.
    /// # Errors
    /// If another process is late or has ended.
    pub fn any(&self, here: bool) -> anyhow::Result<bool> {
        match &self.0 {
            Some(several) => Ok(several.votes.any(here)?),
            None => Ok(here),
        }
    }

    /// Returns what each process has found out, in order.
    ///
    /// # Communication
    /// Waits for the others.
    /// # Errors
    /// If another process is late or has ended.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: T) -> anyhow::Result<Vec<T>> {
        let Some(several) = &self.0 else {
            return Ok(vec![mine]);
        };
        let said = several.votes.gather(&serde_json::to_vec(&mine)?)?;
        let read = |said: &Vec<u8>| serde_json::from_slice(said);
        said.iter()
            .map(read)
            .collect::<Result<_, _>>()
            .context("what another process says is malformed")
    }

    /// Returns what this process made, if none failed to make its own: `what` they do, in the error of the others.
    ///
    /// # Communication
    /// Waits for the others.
    /// # Errors
    /// In all processes, if one failed; if another process is late or has ended.
    pub fn together<T>(&self, mine: anyhow::Result<T>, what: &str) -> anyhow::Result<T> {
        let failed = mine.as_ref().err();
        let failed = failed.map(|error| (format!("{error:#}"), exit_code(error)));
        let all = self.gather(failed)?;
        let mine = mine?;
        let mut all = all.into_iter().enumerate();
        match all.find_map(|(process, failed)| Some((process, failed?))) {
            Some((process, (reason, exit_code))) => Err(Elsewhere {
                process,
                what: what.to_string(),
                reason,
                exit_code,
            }
            .into()),
            None => Ok(mine),
        }
    }

    /// Collects what `work` gives here, up to its first error.
    ///
    /// # Communication
    /// Every few seconds, the processes ask each other whether any has more to do: one that is done waits no longer for
    /// an answer than a collective may take, however long the others have to work.
    /// # Errors
    /// If another process is late or has ended.
    pub fn in_turns<T, E>(
        &self,
        mut work: impl Iterator<Item = Result<T, E>>,
    ) -> anyhow::Result<Result<Vec<T>, E>> {
        let (mut done, mut failed, mut has_more) = (Vec::new(), None, true);
        loop {
            let start = Instant::now();
            while has_more && start.elapsed() < TURN {
                match work.next() {
                    Some(Ok(item)) => done.push(item),
                    end => {
                        failed = end.and_then(Result::err);
                        has_more = false;
                    }
                }
            }
            if !self.any(has_more)? {
                return Ok(failed.map_or(Ok(done), Err));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs `program` in each of several processes, which are threads here; alone if it is one.
    pub(crate) fn in_processes<T: Send>(
        num: usize,
        program: impl Fn(Processes) -> T + Sync,
    ) -> Vec<T> {
        if num == 1 {
            return vec![program(Processes::default())];
        }
        let program = &program;
        std::thread::scope(|scope| {
            let threads: Vec<_> = World::simulated(num)
                .into_iter()
                .map(|world| scope.spawn(move || program(Processes::of(&world).unwrap())))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    #[test]
    fn shares_are_all_there_is() {
        for num in [1, 2, 3] {
            let shares = in_processes(num, |processes| processes.share(7));
            assert_eq!((shares[0].start, shares[num - 1].end), (0, 7));
            assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
        }
    }

    #[test]
    fn what_one_cannot_do_none_has_done() {
        let ends = in_processes(3, |processes| {
            let mine = match processes.process() {
                1 => Err(anyhow::anyhow!("no space")),
                process => Ok(process),
            };
            let end = processes.together(mine, "open a file");
            assert_eq!(processes.together(Ok(4), "open a file").unwrap(), 4);
            end.unwrap_err().to_string()
        });
        let elsewhere = "process 1 could not open a file: no space";
        assert_eq!(ends, [elsewhere, "no space", elsewhere]);
    }

    #[test]
    fn work_ends_in_all_processes_with_what_each_has_done() {
        let ends = in_processes(3, |processes| {
            let process = processes.process();
            let work = (0..10 * process).map(|at| match (process, at) {
                (2, 3) => Err("broken"),
                _ => Ok(at),
            });
            let end = processes.in_turns(work).unwrap();
            // Whatever the end, they go on together.
            assert_eq!(processes.gather(process).unwrap(), [0, 1, 2]);
            end
        });
        assert_eq!(ends, [Ok(vec![]), Ok((0..10).collect()), Err("broken")]);
    }
}
