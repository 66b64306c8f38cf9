//! Work on several threads.

use std::sync::{Mutex, PoisonError};

use burn_dist_checkpoint::CheckpointError;

/// Does jobs on up to so many threads, this one included, and fewer if the system starts fewer; returns the results, in
/// any order. A thread ends with its first error.
///
/// # Errors
/// One of those of `work`; [`CheckpointError::Panicked`].
pub fn in_threads<J: Send, T: Send>(
    threads: usize,
    jobs: Vec<J>,
    work: impl Fn(J) -> Result<T, CheckpointError> + Sync,
) -> Result<Vec<T>, CheckpointError> {
    let threads = threads.min(jobs.len());
    let queue = Mutex::new(jobs.into_iter());
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(job) = next else {
                return Ok(done);
            };
            done.push(work(job)?);
        }
    };
    let results: Vec<Result<Vec<T>, CheckpointError>> = std::thread::scope(|scope| {
        // What the system does not start, the others do the work of.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let mut results = vec![work()];
        let joined = others.into_iter().map(|thread| thread.join());
        results.extend(joined.map(|result| result.unwrap_or(Err(CheckpointError::Panicked))));
        results
    });
    let done: Result<Vec<_>, _> = results.into_iter().collect();
    Ok(done?.into_iter().flatten().collect())
}
