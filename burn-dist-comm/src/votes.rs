//! What all processes decide or know alike, whatever each of them sees.

use crate::{Block, Call, CommError, Communicator, Group, LocalComm, Strided};
use burn_dist_mesh::{DType, ReduceOp};
use std::fmt;

/// The most that a process hands in at once: TCP carries bodies of at most a MiB.
const PART_BYTES_MAX: usize = 512 << 10;

/// What all processes decide or know alike, whatever each of them sees: whether to stop, say, on a signal that reaches
/// them at different steps.
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
        let vote = Block::from(vec![u8::from(here)]);
        let call = Call::all_reduce(&self.group, DType::U8, ReduceOp::Max, vote);
        Ok(self.here.run(call.labelled("a vote of processes"))?[0] != 0)
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
