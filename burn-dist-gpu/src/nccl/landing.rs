//! Waiting for calls: by the backend's stream, or by the host.

use super::groups::{Channels, Launched, Mark, failed};
use super::watch;
use crate::streams::api::{FlagWait, Hold};
use crate::streams::order::{AHEAD, Order};
use burn_dist_comm::{CallInfo, CommError, Communicator};
use burn_dist_mesh::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at words: they are in the host's memory.
const NAP: Duration = Duration::from_micros(50);

impl Channels {
    /// Ends a call for this rank: returns what the backend's stream has to wait for, before anything else is put on it,
    /// if calls are ordered on the device; and else waits until the device is done with the call.
    ///
    /// `hold` keeps what the call reads and writes until it is over, also if this fails.
    ///
    /// # Errors
    /// What the library or the driver says, the fault of the mesh, and a time-out. Channels are to be
    /// [aborted](Self::abort) then.
    pub fn exit(
        &mut self,
        host: &dyn Communicator,
        launched: Launched,
        hold: Hold,
    ) -> Result<Option<FlagWait>, CommError> {
        let ticket = match launched.mark {
            Mark::Ticket(ticket) => Some(ticket),
            Mark::Nothing | Mark::Event(_) => None,
        };
        let info = Arc::clone(&launched.info);
        let outcome = match ticket {
            None => self.finish(host, launched),
            // Before this one counts: those that hold memory are others.
            Some(_) => self
                .land_but(host, AHEAD)
                .and_then(|()| self.channel(host, &launched.info, &launched.key).map(drop)),
        };
        match (outcome, ticket, &mut self.order) {
            (Err(error), ..) => {
                self.kept.push(hold);
                Err(error)
            }
            (Ok(()), Some(ticket), Some(order)) => Ok(Some(order.exit(ticket, hold))),
            (Ok(()), ..) => {
                if self.is_ordered() {
                    // There was nothing to do, so that nothing else will say so.
                    info.end();
                }
                Ok(None)
            }
        }
    }

    /// Waits until the device is done with a call.
    ///
    /// # Errors
    /// As [`exit`](Self::exit).
    pub fn finish(&mut self, host: &dyn Communicator, launched: Launched) -> Result<(), CommError> {
        let Launched { key, info, mark } = launched;
        let event = match mark {
            Mark::Nothing => return Ok(()),
            Mark::Event(event) => event,
            Mark::Ticket(ticket) => {
                if let Some(order) = &mut self.order {
                    order.exit(ticket, Box::new(()));
                }
                return self.land(host);
            }
        };
        self.attach(&info)?;
        let comm = match self.channel(host, &info, &key) {
            Ok(channel) => channel.comm,
            Err(error) => {
                self.gpu.forget(event);
                return Err(error);
            }
        };
        let outcome = watch::until(host, &info, self.timeout, || {
            let over = self.gpu.is_over(event);
            if over.map_err(|error| failed(&info, error))? {
                return Ok(Some(()));
            }
            // An error that a peer or the network has caused shows here, not on the stream.
            let states = comm.map(|comm| (comm, self.nccl.state(comm)));
            match states.filter(|(_, state)| !state.is_accepted()) {
                None => Ok(None),
                Some((comm, state)) => {
                    Err(self.refused(&info, "ncclCommGetAsyncError", state, Some(comm)))
                }
            }
        });
        self.gpu.forget(event);
        outcome?;
        if let Some(channel) = self.channels.get_mut(&key) {
            channel.open -= 1;
        }
        Ok(())
    }

    /// Waits until the device is done with all calls that have exited: until what the host reads is what they have
    /// brought.
    ///
    /// # Errors
    /// As [`exit`](Self::exit). An abort ends calls too; its fault is what this returns then.
    pub fn land(&mut self, host: &dyn Communicator) -> Result<(), CommError> {
        self.land_but(host, 0)?;
        match &self.order {
            // Looked at after the words: whoever aborts has published the fault before.
            Some(_) => match host.fault() {
                Some(fault) => Err(fault),
                None => self.none_has_abandoned(host),
            },
            None => Ok(()),
        }
    }

    /// Looks whether a process that shares memory with this one has abandoned it: the fault will arrive then.
    fn none_has_abandoned(&self, host: &dyn Communicator) -> Result<(), CommError> {
        let mut links = self
            .channels
            .values()
            .filter_map(|channel| channel.links.as_ref());
        let Some(links) = links.find(|links| links.segment.is_abandoned()) else {
            return Ok(());
        };
        let limit = Instant::now() + self.timeout;
        watch::by(limit, || host.fault().is_some());
        Err(host.fault().unwrap_or_else(|| CommError::Gpu {
            call: Arc::clone(&links.last),
            function: "a workspace of this call",
            reason: "another process has given it up, and has not said why".into(),
        }))
    }

    /// Waits until no more than `ahead` calls that have exited are open.
    fn land_but(&mut self, host: &dyn Communicator, ahead: usize) -> Result<(), CommError> {
        let mut naps = 0_u32;
        loop {
            self.retire();
            let num_ahead = self.order.as_ref().map_or(0, |order| order.num_ahead());
            if num_ahead <= ahead {
                return Ok(());
            }
            if let Some(fault) = host.fault() {
                return Err(fault);
            }
            self.check(|call| host.behind(call), |call| host.lost(call))?;
            // Most waits are for a collective that is nearly over.
            naps += 1;
            match naps {
                ..50 => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
    }

    /// Forgets calls that have exited and are over.
    pub(super) fn retire(&mut self) {
        let Some(order) = &mut self.order else { return };
        for (key, info) in order.retire() {
            if let Some(channel) = self.channels.get_mut(&key) {
                channel.open -= 1;
            }
            info.end();
        }
    }

    /// Looks at open calls, without waiting.
    fn check(
        &mut self,
        behind: impl Fn(&CallInfo) -> Vec<Rank>,
        lost: impl Fn(&Arc<CallInfo>) -> Option<CommError>,
    ) -> Result<(), CommError> {
        let Some(order) = &mut self.order else {
            return Ok(());
        };
        order.check(self.timeout, behind, lost)?;
        // An error that a peer or the network has caused shows here, not on a stream.
        for (info, comm) in self.order.iter().flat_map(Order::busy) {
            let state = self.nccl.state(comm);
            if !state.is_accepted() {
                return Err(self.refused(info, "ncclCommGetAsyncError", state, Some(comm)));
            }
        }
        Ok(())
    }

    /// Looks at open calls, for a thread beside the rank's: see [`crate::streams::watcher`].
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn look(&mut self, host: &dyn Communicator) -> Result<(), CommError> {
        self.retire();
        self.check(|call| host.behind(call), |call| host.lost(call))
    }

    /// Takes note that nobody waits for a call, which stays open.
    pub fn give_up(&self, launched: Launched) {
        if let Mark::Event(event) = launched.mark {
            self.gpu.forget(event);
        }
    }
}
