//! Waiting for the device: with a time-out, and looking for faults meanwhile.

use crate::streams::order::late;
use burn_dist_comm::{CallInfo, CommError, Communicator};
use burn_dist_mesh::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank asks without a pause: most waits are for a collective that is nearly over.
const EAGER: Duration = Duration::from_micros(50);

/// Between two questions afterwards: short next to the collectives that last so long, and long next to a question
/// (about 1 us).
const NAP: Duration = Duration::from_micros(50);

/// Asks `ready` until it answers, the mesh has a fault, or `timeout` is over.
///
/// # Errors
/// The fault; [`CommError::ProcessLost`] if the process of a member has ended; [`CommError::Timeout`] with those
/// members of this process that have not made the call, or [`CommError::GpuStalled`] if all of them have.
pub(crate) fn until<T>(
    host: &dyn Communicator,
    call: &Arc<CallInfo>,
    timeout: Duration,
    ready: impl FnMut() -> Result<Option<T>, CommError>,
) -> Result<T, CommError> {
    until_or(host, call, timeout, ready, || host.behind(call))
}

/// Waits like [`until`], where `behind` knows which members have not made the call.
pub(crate) fn until_or<T>(
    host: &dyn Communicator,
    call: &Arc<CallInfo>,
    timeout: Duration,
    mut ready: impl FnMut() -> Result<Option<T>, CommError>,
    behind: impl Fn() -> Vec<Rank>,
) -> Result<T, CommError> {
    let start = Instant::now();
    loop {
        if let Some(result) = ready()? {
            return Ok(result);
        }
        let waited = start.elapsed();
        if waited < EAGER {
            // Where there are fewer cores than ranks, the others need this one.
            std::thread::yield_now();
            continue;
        }
        if let Some(fault) = host.fault().or_else(|| host.lost(call)) {
            return Err(fault);
        }
        if waited >= timeout {
            return Err(late(call, waited, behind()));
        }
        std::thread::sleep(NAP);
    }
}

/// Asks `ready` until it answers with yes, but not after `limit`; returns whether it has. Asked once in any case.
pub(super) fn by(limit: Instant, mut ready: impl FnMut() -> bool) -> bool {
    loop {
        if ready() {
            return true;
        }
        if Instant::now() >= limit {
            return false;
        }
        std::thread::sleep(NAP);
    }
}
