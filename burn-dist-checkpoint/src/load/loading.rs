//! Loading from a checkpoint: requests as jobs in the order of its files, and threads that take them.

use super::plan::Job;
use super::read::Scratch;
use super::{Checkpoint, KeyReport, Match, Reader, Request};
use crate::error::CheckpointError;
use crate::format::NonFinite;
use std::sync::{Mutex, PoisonError};

/// Large tensors are loaded by parts of so many bytes (fewer in tests, whose tensors are smaller), small ones together.
const JOB_BYTES: usize = if cfg!(test) { 9 << 20 } else { 64 << 20 };
const GROUP_BYTES: usize = 16 << 20;

/// How a checkpoint is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// True if checksums are verified.
    pub verify: bool,
    /// How many threads read, the calling one included.
    pub threads: usize,
    /// Which differences between what is asked for and what there is are errors.
    pub matching: Match,
}

/// Checksums are verified, by up to four threads, and any difference is an error.
impl Default for Options {
    fn default() -> Self {
        let threads = std::thread::available_parallelism();
        Self {
            verify: true,
            threads: threads.map_or(1, |count| count.get().min(4)),
            matching: Match::Exact,
        }
    }
}

/// The counts of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The differences between what was asked for and what there is.
    pub report: KeyReport,
    /// Bytes of the elements that were asked for, as they are in the files.
    pub bytes_needed: u64,
    /// Bytes that were read for them: whole blocks, and headers of files.
    pub bytes_read: u64,
    /// Which values are not finite: of a checkpoint when it was saved, of a folder of others among what was read.
    pub non_finite: Option<NonFinite>,
}

impl Checkpoint {
    /// Fills the buffers of the requests.
    ///
    /// After an error their contents are arbitrary.
    ///
    /// # Errors
    /// [`CheckpointError::Keys`], before anything is read; [`CheckpointError::Grid`], [`CheckpointError::Bytes`] and
    /// [`CheckpointError::DType`] for a request that does not fit its tensor; [`CheckpointError::File`],
    /// [`CheckpointError::Checksum`] and [`CheckpointError::Io`].
    pub fn load(
        &self,
        requests: &mut [Request<'_>],
        options: Options,
    ) -> Result<Loaded, CheckpointError> {
        let report = self.compare(requests);
        if !report.is_fine(options.matching) {
            return Err(CheckpointError::Keys(Box::new(report)));
        }
        let reader = Reader::new(self, options.verify);
        let jobs = self.jobs(requests, &report)?;
        run(&reader, grouped(jobs), options.threads)?;
        let (bytes_needed, bytes_read) = reader.num_bytes();
        Ok(Loaded {
            report,
            bytes_needed,
            bytes_read,
            non_finite: self.manifest().non_finite(),
        })
    }

    /// Returns the jobs of the requests that can be met, in the order of the files.
    fn jobs<'r>(
        &'r self,
        requests: &'r mut [Request<'_>],
        report: &KeyReport,
    ) -> Result<Vec<Job<'r>>, CheckpointError> {
        let mut jobs = Vec::new();
        for request in requests {
            let is_other = |other: &super::Mismatch| other.key == request.key;
            let Some(tensor) = self.manifest().tensor(&request.key) else {
                continue;
            };
            if report.mismatched.iter().any(is_other) {
                continue;
            }
            request.check(&tensor.shape)?;
            let found = tensor.dtype();
            let target_size = request.dtype.size();
            let step = (JOB_BYTES / target_size).max(1);
            for (index, target) in request.target.chunks_mut(step * target_size).enumerate() {
                let start = index * step;
                jobs.push(Job {
                    tensor,
                    region: &request.region,
                    within: start..start + target.len() / target_size,
                    target,
                    convert: request.convert.filter(|_| found != Some(request.dtype)),
                    source_size: found.map_or(target_size, |dtype| dtype.size()),
                    target_size,
                });
            }
        }
        jobs.sort_by_key(|job| job.tensor.pieces.first().map(|piece| piece.offset));
        Ok(jobs)
    }
}

/// Returns jobs in groups, so that what is small is read together.
fn grouped(jobs: Vec<Job<'_>>) -> Vec<Vec<Job<'_>>> {
    let mut groups: Vec<Vec<Job<'_>>> = Vec::new();
    let mut bytes = 0;
    for job in jobs {
        match groups
            .last_mut()
            .filter(|_| bytes + job.target.len() <= GROUP_BYTES)
        {
            Some(group) => {
                bytes += job.target.len();
                group.push(job);
            }
            None => {
                bytes = job.target.len();
                groups.push(vec![job]);
            }
        }
    }
    groups
}

/// Has threads take one group after the other, until all are done or one fails.
fn run(
    reader: &Reader<'_>,
    groups: Vec<Vec<Job<'_>>>,
    threads: usize,
) -> Result<(), CheckpointError> {
    let threads = threads.min(groups.len());
    let queue = Mutex::new((groups.into_iter(), Ok(())));
    let work = || {
        let mut scratch = Scratch::default();
        loop {
            let next = {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                match queue.1 {
                    Ok(()) => queue.0.next(),
                    Err(_) => None,
                }
            };
            let Some(mut group) = next else { return };
            if let Err(error) = reader.read(&mut group, &mut scratch) {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                if queue.1.is_ok() {
                    queue.1 = Err(error);
                }
            }
        }
    };
    match threads {
        0 | 1 => work(),
        _ => std::thread::scope(|scope| {
            for _ in 1..threads {
                // What the system does not start, the others do the work of.
                if std::thread::Builder::new()
                    .spawn_scoped(scope, work)
                    .is_err()
                {
                    break;
                }
            }
            work();
        }),
    }
    queue.into_inner().unwrap_or_else(PoisonError::into_inner).1
}
