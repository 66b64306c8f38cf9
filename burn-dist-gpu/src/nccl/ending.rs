//! The end of groups, whose communicators are the one thing about them that blocks.
//!
//! `ncclCommAbort` and `ncclCommDestroy` block on non-blocking communicators too (init.cc, `commReclaim` and
//! `commDestroySync`): they wait for the communicator's streams, and for its proxy thread, which waits for peers. A
//! kernel on a stream waits for those before it, whichever communicator they belong to. So of two communicators on one
//! stream, the one whose kernel is stuck has to be aborted for the abort of the other to return, and one after the
//! other hangs (NVIDIA/nccl, issues 829 and 1013).
//!
//! Therefore all of them end at once, each on a thread of its own, and nobody waits for that longer than a limit.
//! Copies cannot be aborted, and need not be: their streams wait for nothing that may not come ([`crate::peer`]).

use super::api::{Code, Handle, Nccl};
use super::groups::{Carrier, Channel, Channels};
use super::watch;
use crate::device::Gpu;
use crate::streams::order::Key;
use crate::symmetric::workspace::Links;
use burn_dist_comm::Communicator;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

impl Channels {
    /// Stops all calls on the device, and frees all communicators. Returns whether memory of open calls is the
    /// caller's again: whether everything has stopped in time, of this rank and of its neighbours in those calls.
    ///
    /// # Communication
    /// None, but the others have to end theirs too: whoever calls this has notified them of the fault before.
    #[must_use = "memory may still be in use"]
    pub fn abort(&mut self) -> bool {
        let all = self.take().into_iter();
        self.end(all.map(|(key, channel)| (key, channel, End::Abort)))
    }

    /// Ends all groups: as the other members do, flushed in the order in which they were made, unless there was a
    /// fault.
    pub fn close(&mut self, host: &dyn Communicator) {
        let limit = Instant::now() + self.timeout.min(self.closing_max);
        let mut ends = Vec::new();
        for (key, channel) in self.take() {
            let mut state = match (host.fault(), channel.comm) {
                (Some(_), _) => Code(-1),
                (None, None) => Code::SUCCESS,
                (None, Some(comm)) => self.nccl.finalize(comm),
            };
            watch::by(limit, || {
                let goes_on = state == Code::IN_PROGRESS && host.fault().is_none();
                if let (true, Some(comm)) = (goes_on, channel.comm) {
                    state = self.nccl.state(comm);
                }
                !goes_on
            });
            let end = match state {
                Code::SUCCESS => End::Destroy,
                _ => End::Abort,
            };
            ends.push((key, channel, end));
        }
        self.end(ends);
    }

    /// Takes all groups, in the order in which they were first used: that of the program.
    fn take(&mut self) -> Vec<(Key, Channel)> {
        self.retire();
        let made = std::mem::take(&mut self.made);
        made.iter()
            .filter_map(|key| self.channels.remove_entry(key))
            .collect()
    }

    /// Ends groups, and returns whether memory of their calls is free.
    fn end(&mut self, ends: impl IntoIterator<Item = (Key, Channel, End)>) -> bool {
        let is_free = self.stop(ends);
        for hold in self.kept.drain(..).filter(|_| !is_free) {
            std::mem::forget(hold);
        }
        is_free
    }

    fn stop(&mut self, ends: impl IntoIterator<Item = (Key, Channel, End)>) -> bool {
        let (mut comms, mut neighbours) = (Vec::new(), Vec::new());
        let (mut spent, mut all_links) = (Vec::new(), Vec::new());
        for ((group, lane), channel, end) in ends {
            let name = format!("{group} lane {}", lane.0);
            comms.extend(channel.comm.map(|comm| (name, comm, end)));
            // What a communicator has flushed is over; copies are when their stream is at its end.
            let is_flushed = end == End::Destroy && channel.comm.is_some();
            let copies = self.streams.contains_key(&(lane, Carrier::Copies));
            let is_busy = channel.open > 0 && (!is_flushed || copies);
            spent.extend(channel.spent.into_iter().chain(channel.fresh));
            if let Some(links) = channel.links {
                if end == End::Abort {
                    // The fault is known. From here on nobody waits for what may not come.
                    links.segment.give_up();
                    links.segment.release(links.rounds);
                }
                all_links.push(links);
            }
            neighbours.push((channel.neighbour, is_busy));
        }
        if neighbours.is_empty() {
            return !self.is_lost;
        }
        // This need not be the thread of the calls. A device that cannot be attached to has failed, and runs nothing.
        let _ = self.gpu.attach();
        let limit = Instant::now() + self.closing_max;
        let have_ended = side_by_side(&self.nccl, &self.gpu, comms, limit);
        let is_busy = neighbours.iter().any(|(_, is_busy)| *is_busy);
        let has_stopped = !is_busy || (have_ended && self.have_drained(limit));
        if has_stopped {
            for (neighbour, _) in &neighbours {
                neighbour.stop();
            }
        }
        let mut busy = neighbours.iter().filter(|(_, is_busy)| *is_busy);
        let is_free = has_stopped
            && busy.all(|(neighbour, _)| watch::by(limit, || neighbour.have_all_stopped()));
        self.is_lost |= !is_free;
        // Members of this process may be about to give their streams waits for events of the last call.
        let mut neighbours = neighbours.iter();
        let have_passed =
            neighbours.all(|(neighbour, _)| watch::by(limit, || neighbour.have_all_passed()));
        if have_passed {
            for event in spent {
                self.gpu.forget(event);
            }
        }
        self.unmap(all_links, has_stopped);
        if let Some(order) = &mut self.order {
            order.end(!self.is_lost);
        }
        !self.is_lost
    }

    /// Gives up what is shared with other processes, if no stream of this rank is at it.
    fn unmap(&mut self, links: Vec<Links>, has_stopped: bool) {
        let workspaces = std::mem::take(&mut self.workspaces);
        if !has_stopped {
            return std::mem::forget((links, workspaces));
        }
        if links.is_empty() && workspaces.is_empty() {
            return;
        }
        let symmetric = self.symmetric();
        for links in links {
            // SAFETY: streams have come to their end, and get nothing any more.
            unsafe { links.end(&*symmetric) };
        }
        for workspace in workspaces.into_values() {
            // SAFETY: as above.
            unsafe { workspace.end(&*symmetric) };
        }
    }

    /// Waits until the streams have come to their end; returns whether they have.
    fn have_drained(&self, limit: Instant) -> bool {
        self.streams.values().all(|stream| {
            // What an event cannot be recorded on has failed, and runs nothing any more.
            let Ok(event) = self.gpu.record(*stream) else {
                return true;
            };
            let is_over = watch::by(limit, || self.gpu.is_over(event) != Ok(false));
            self.gpu.forget(event);
            is_over
        })
    }
}

/// How a communicator ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// After it was flushed.
    Destroy,
    /// The memory of its open calls.
    Abort,
}

/// Ends communicators, listed with their names, side by side. Returns whether all of them have ended by `limit`; one
/// that has not is logged and left behind, with its thread.
fn side_by_side(
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
