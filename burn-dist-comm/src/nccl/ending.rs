//! The end of communicators, which is the one thing about them that blocks.
//!
//! `ncclCommAbort` and `ncclCommDestroy` block on non-blocking communicators too (init.cc, `commReclaim` and
//! `commDestroySync`): they wait for the communicator's streams, and for its proxy thread, which waits for peers. A
//! kernel on a stream waits for those before it, whichever communicator they belong to. So of two communicators on one
//! stream, the one whose kernel is stuck has to be aborted for the abort of the other to return, and one after the
//! other hangs (NVIDIA/nccl, issues 829 and 1013).
//!
//! Therefore all of them end at once, each on a thread of its own, and nobody waits for that longer than a limit.

use super::api::{Code, Gpu, Handle, Nccl};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

/// How a communicator ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After it was flushed.
    Destroy,
    /// With what it has under way.
    Abort,
}

/// Ends communicators, given with their names, side by side. Returns whether all of them have ended by `limit`; one
/// that has not is logged and left behind, with its thread.
pub(super) fn side_by_side(
    nccl: &Arc<dyn Nccl>,
    gpu: &Arc<dyn Gpu>,
    comms: Vec<(String, Handle, End)>,
    limit: Instant,
) -> bool {
    let (ended, ends) = channel();
    let mut open = Vec::with_capacity(comms.len());
    for (index, (name, comm, end)) in comms.into_iter().enumerate() {
        let (nccl, gpu, ended) = (Arc::clone(nccl), Arc::clone(gpu), ended.clone());
        let thread = std::thread::Builder::new()
            .name(format!("end of {name}"))
            .spawn(move || {
                // NCCL goes to the communicator's device and back to this thread's, which without this would be the
                // first one of the machine. A device that cannot be attached to has failed; NCCL says what comes of it.
                let _ = gpu.attach();
                let code = match end {
                    End::Destroy => nccl.destroy(comm),
                    End::Abort => nccl.abort(comm),
                };
                // Nobody listens after the limit.
                let _ = ended.send((index, code));
            });
        if let Err(error) = thread {
            tracing::warn!(communicator = %name, %error, "no thread to end a communicator of NCCL");
        }
        open.push(Some((name, end)));
    }
    drop(ended);
    let mut left = open.len();
    while left > 0 {
        // Over at the limit, or when a thread has ended without a word.
        let wait = limit.saturating_duration_since(Instant::now());
        let Ok((index, code)) = ends.recv_timeout(wait) else {
            break;
        };
        left -= 1;
        if let Some((name, end)) = open[index].take()
            && code != Code::SUCCESS
        {
            let reason = nccl.error_text(code);
            tracing::warn!(communicator = %name, ?end, %reason, "a communicator of NCCL did not end well");
        }
    }
    for (name, end) in open.into_iter().flatten() {
        tracing::warn!(communicator = %name, ?end, "a communicator of NCCL has not ended in time, and is left behind");
    }
    left == 0
}
