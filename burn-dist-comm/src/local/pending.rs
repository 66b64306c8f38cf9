//! Started calls: waiting, and helping with the work.

use super::channel::Channel;
use super::hub::LocalHub;
use crate::completion::{Completion, Moment, Outcome, Stop};
use crate::info::{CallInfo, Transfer};
use crate::{CommError, Payload, PendingCall, SharedBuffer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank sleeps on a modelled wire before it looks whether another has failed.
const NAP_MAX: Duration = Duration::from_millis(10);

/// A started call of one rank.
pub(super) struct LocalCall {
    pub(super) hub: Arc<LocalHub>,
    pub(super) channel: Arc<Channel>,
    pub(super) completion: Arc<Completion>,
    pub(super) member: usize,
    pub(super) info: Arc<CallInfo>,
    /// Among all calls of the rank.
    pub(super) number: u64,
    pub(super) is_send: bool,
}

impl LocalCall {
    fn is_ready(&self) -> bool {
        let arrived = |moment: Moment| moment.wire.is_none_or(|(_, end)| Instant::now() >= end);
        self.is_send
            || self.hub.fault.get().is_some()
            || self.completion.moment().is_some_and(arrived)
    }

    /// Waits until all members have arrived.
    fn outcome(&self) -> Result<&Outcome, CommError> {
        let hub = &self.hub;
        if let Some(fault) = hub.fault.get() {
            return Err(fault.clone());
        }
        hub.release_held_back(self.info.rank)?;
        let began = Instant::now();
        if let Some(remote) = &hub.remote
            && self.channel.has_members_elsewhere()
        {
            let is_done = || self.completion.outcome().is_some() || hub.fault.get().is_some();
            remote.help(hub.options.timeout, is_done);
        }
        self.wait_until(began, Completion::outcome)
    }

    /// Waits since `began`.
    fn wait_until<'a, T>(
        &'a self,
        began: Instant,
        ready: impl Fn(&'a Completion) -> Option<T>,
    ) -> Result<T, CommError> {
        let hub = &self.hub;
        let left = hub.options.timeout.saturating_sub(began.elapsed());
        let stop = match self
            .completion
            .wait_until(ready, &hub.fault, hub.patience, left)
        {
            Ok(result) => return Ok(result),
            Err(stop) => stop,
        };
        Err(match stop {
            Stop::Fault(fault) => fault,
            Stop::Late => {
                let (call, elapsed, missing) = (
                    Arc::clone(&self.info),
                    self.info.started.elapsed(),
                    hub.missing(&self.channel, &self.completion, self.info.sequence),
                );
                hub.abort(match missing.is_empty() {
                    true => CommError::Stalled { call, elapsed },
                    false => CommError::Timeout {
                        call,
                        processes: hub
                            .placement()
                            .map_or_else(Vec::new, |placement| placement.names_of(&missing)),
                        missing,
                        elapsed,
                    },
                })
            }
        })
    }

    /// Waits until the call is over on the modelled wire, and notes when it took place; `began` is when this rank saw
    /// that all had launched it.
    fn arrive(&self, began: Instant) -> Result<(), CommError> {
        let Some(moment) = self.completion.moment() else {
            return Ok(());
        };
        let (start, end) = match moment.wire {
            None => (began, Instant::now()),
            Some((start, end)) => {
                while let Some(left) = end
                    .checked_duration_since(Instant::now())
                    .filter(|left| !left.is_zero())
                {
                    std::thread::sleep(left.min(NAP_MAX));
                    if let Some(fault) = self.hub.fault.get() {
                        return Err(fault.clone());
                    }
                }
                (start, end)
            }
        };
        // Set once: a call is waited for once.
        let _ = self.info.transfer.set(Transfer {
            launched: moment.launched,
            start,
            end,
        });
        Ok(())
    }

    fn finish(&self) {
        if let Some(chaos) = &self.hub.options.chaos {
            chaos.delay(self.info.rank, self.number, 2);
        }
        self.info.finish();
    }
}

impl Drop for LocalCall {
    fn drop(&mut self) {
        // A fault, if this finds one, is returned by the next call.
        let _ = self.hub.release_held_back(self.info.rank);
    }
}

pub(super) struct PendingBuffer(pub(super) LocalCall);

impl PendingCall<SharedBuffer> for PendingBuffer {
    fn info(&self) -> &Arc<CallInfo> {
        &self.0.info
    }

    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn wait(self: Box<Self>) -> Result<SharedBuffer, CommError> {
        let call = self.0;
        if call.is_send {
            if let Some(fault) = call.hub.fault.get() {
                return Err(fault.clone());
            }
            call.hub.release_held_back(call.info.rank)?;
            call.finish();
            return Ok(Arc::clone(&call.hub.memory.empty));
        }
        let Outcome::Work(work) = call.outcome()? else {
            unreachable!("an exchange does not match a collective")
        };
        let began = Instant::now();
        // Helps until nothing is left to claim, also when its own output is there: the ranks usually need the results
        // at the same time.
        while let Some(finished) = work.run_next() {
            if finished {
                call.completion.wake();
            }
        }
        let output = match work.output(call.member) {
            Some(output) => output,
            None => call.wait_until(began, |_| work.output(call.member))?,
        };
        let output = Arc::clone(output);
        call.arrive(began)?;
        call.finish();
        Ok(output)
    }
}

pub(super) struct PendingValues(pub(super) LocalCall);

impl PendingCall<Arc<[Payload]>> for PendingValues {
    fn info(&self) -> &Arc<CallInfo> {
        &self.0.info
    }

    fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    fn wait(self: Box<Self>) -> Result<Arc<[Payload]>, CommError> {
        let call = self.0;
        let Outcome::Values(values) = call.outcome()? else {
            unreachable!("a collective does not match an exchange")
        };
        let values = Arc::clone(values);
        call.arrive(Instant::now())?;
        call.finish();
        Ok(values)
    }
}
