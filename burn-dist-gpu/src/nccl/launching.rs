//! Putting calls on the device.

use super::groups::{Carrier, Channels, Launched, Mark, failed, member_of, mismatch};
use super::op::{Element, Op};
use super::watch;
use crate::device::Event;
use crate::peer::choice::Route;
use crate::peer::copies::{self, Offer, Piece};
use crate::streams::order::{Key, Ticket};
use burn_dist_comm::{CallInfo, CommError, Communicator};
use std::sync::Arc;

impl Channels {
    /// Puts the operations of a recorded call on the device, as one group; there may be none. Members in this process
    /// wait for each other before and after.
    ///
    /// NCCL or copies carry them out, which follows from the cards that members have shown each other, and from whether
    /// anything is reduced: it is the same on all.
    ///
    /// # Safety
    /// As [`Nccl::issue`](super::api::Nccl::issue), until the call has been waited for with success (by the host, or by
    /// the backend's stream and then by [`land`](Self::land)), or [`abort`](Self::abort) has returned true. Unless
    /// calls are [ordered](Self::ordered) on the device, nothing that the device was handed before uses the memory; and
    /// else all of that has been handed to the driver.
    pub unsafe fn launch(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        element: Element,
        ops: &[Op],
    ) -> Result<Launched, CommError> {
        self.attach(info)?;
        let key = (info.group().clone(), info.lane());
        // An operation that reduces is on all members or on none, also where others are empty on some.
        let moves = ops.iter().all(Op::is_move);
        let mark = match self.channel(host, info, &key)?.route {
            // SAFETY: the caller's promise.
            Route::Copies if moves => unsafe { self.copy(host, info, &key, element, ops) },
            // SAFETY: the caller's promise.
            Route::Workspace if moves => unsafe {
                self.copy_through_workspaces(host, info, &key, element, ops)
            },
            // SAFETY: the caller's promise.
            _ => unsafe { self.call(host, info, &key, element, ops) },
        }?;
        Ok(Launched {
            key,
            info: Arc::clone(info),
            mark,
        })
    }

    /// Waits until all members in this process have come as far as this one: see [`super::neighbours`].
    fn meet(
        &self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<(), CommError> {
        let neighbour = &self.channel(host, info, key)?.neighbour;
        let barrier = neighbour.arrive();
        watch::until(host, info, self.timeout, || {
            Ok(neighbour.have_all_arrived(barrier).then_some(()))
        })
    }

    /// Begins a call on its stream, behind the backend's work if the device orders them.
    pub(crate) fn enter(
        &mut self,
        info: &Arc<CallInfo>,
        carrier: Carrier,
    ) -> Result<Option<Ticket>, CommError> {
        let stream = self.stream((info.lane(), carrier), info)?;
        let gpu = &*self.gpu;
        let ticket = self.order.as_mut().map(|order| order.enter(gpu, stream));
        ticket.transpose().map_err(|error| failed(info, error))
    }

    /// Marks the end of a call on its stream.
    pub(crate) fn leave(
        &mut self,
        info: &Arc<CallInfo>,
        key: &Key,
        (carrier, ticket): (Carrier, Option<Ticket>),
    ) -> Result<Mark, CommError> {
        let stream = self.stream((info.lane(), carrier), info)?;
        let channel = self.channels.get(key);
        let comm = channel.and_then(|channel| channel.comm);
        let comm = comm.filter(|_| carrier == Carrier::Nccl);
        let mark = match (&mut self.order, ticket) {
            (Some(order), Some(ticket)) => order
                .leave(ticket, (key.clone(), info, comm))
                .map(|()| Mark::Ticket(ticket)),
            _ => self.gpu.record(stream).map(Mark::Event),
        };
        mark.map_err(|error| failed(info, error))
    }

    /// Notes that the device may be at a call from now on.
    pub(crate) fn opens(&mut self, key: &Key) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.open += 1;
        }
    }

    /// # Safety
    /// As [`Self::launch`].
    unsafe fn call(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
        element: Element,
        ops: &[Op],
    ) -> Result<Mark, CommError> {
        self.communicator(host, info, key)?;
        self.meet(host, info, key)?;
        self.forget_spent(key);
        if ops.is_empty() {
            self.meet(host, info, key)?;
            return Ok(Mark::Nothing);
        }
        let ticket = self.enter(info, Carrier::Nccl)?;
        // SAFETY: the caller's promise.
        unsafe { self.issue(host, info, key, element, ops) }?;
        self.meet(host, info, key)?;
        self.leave(info, key, (Carrier::Nccl, ticket))
    }

    /// # Safety
    /// As [`Self::launch`].
    unsafe fn issue(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
        element: Element,
        ops: &[Op],
    ) -> Result<(), CommError> {
        let comm = self.communicator(host, info, key)?;
        let stream = self.stream((info.lane(), Carrier::Nccl), info)?;
        let nccl = Arc::clone(&self.nccl);
        self.accepted(info, "ncclGroupStart", nccl.group_start(), comm)?;
        self.opens(key);
        let mut refused = None;
        for op in ops {
            // SAFETY: the caller's promise.
            let code = unsafe { nccl.issue(comm, op, element, stream) };
            if !code.is_accepted() {
                refused = Some((op.function(), code));
                break;
            }
        }
        // A group that was started has to be ended, whatever is in it.
        let end = nccl.group_end();
        if let Some((function, code)) = refused {
            return Err(self.refused(info, function, code, Some(comm)));
        }
        self.accepted(info, "ncclGroupEnd", end, comm)?;
        self.settled(host, info, "ncclGroupEnd", comm)
    }

    /// Copies from the other members: see [`crate::peer`].
    ///
    /// # Safety
    /// As [`Self::launch`].
    unsafe fn copy(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
        element: Element,
        ops: &[Op],
    ) -> Result<Mark, CommError> {
        let place = (Carrier::Copies, self.enter_to_copy(info, key, ops)?);
        self.meet(host, info, key)?;
        self.forget_spent(key);
        let offers = self.channel(host, info, key)?.neighbour.offers();
        let of_all: Vec<&[Op]> = offers.iter().map(|offer| &*offer.ops).collect();
        let member = member_of(info);
        let mismatch = |reason| mismatch(info, reason);
        let pieces = copies::pieces(&of_all, member, element.bytes()).map_err(mismatch)?;
        let readers = copies::readers(&of_all, member).map_err(mismatch)?;
        // SAFETY: the caller's promise, and that of the others for what they offer.
        unsafe { self.enqueue(info, key, &pieces, &offers) }?;
        self.meet(host, info, key)?;
        if !ops.is_empty() {
            let stream = self.stream((info.lane(), Carrier::Copies), info)?;
            for reader in readers {
                let read = self.channel(host, info, key)?.neighbour.read_of(reader);
                let read = read.expect("it has come to the barrier behind its copies");
                let waits = self.gpu.wait(stream, read);
                waits.map_err(|error| failed(info, error))?;
            }
        }
        self.channel(host, info, key)?.neighbour.pass();
        match ops.is_empty() {
            true => Ok(Mark::Nothing),
            false => self.leave(info, key, place),
        }
    }

    /// Begins a call on the stream of copies, and shows the others what it is.
    fn enter_to_copy(
        &mut self,
        info: &Arc<CallInfo>,
        key: &Key,
        ops: &[Op],
    ) -> Result<Option<Ticket>, CommError> {
        let (mut ticket, mut ready) = (None, None);
        if !ops.is_empty() {
            ticket = self.enter(info, Carrier::Copies)?;
            let stream = self.stream((info.lane(), Carrier::Copies), info)?;
            let event = self.gpu.record(stream);
            ready = Some(event.map_err(|error| failed(info, error))?);
            // From now on others may read.
            self.opens(key);
        }
        if let Some(channel) = self.channels.get_mut(key) {
            let ops = ops.into();
            channel.neighbour.offer(Offer { ops, ready });
            self.spend(key, ready);
        }
        Ok(ticket)
    }

    /// # Safety
    /// As [`Self::launch`].
    unsafe fn enqueue(
        &mut self,
        info: &Arc<CallInfo>,
        key: &Key,
        pieces: &[Piece],
        offers: &[Offer],
    ) -> Result<(), CommError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let stream = self.stream((info.lane(), Carrier::Copies), info)?;
        let copies = self.copies.as_deref();
        let copies = copies.expect("a member that cannot copy has told the others so");
        let ready = |from: usize| offers[from].ready;
        // SAFETY: the caller's promise.
        let enqueued = unsafe { copies::enqueue(&*self.gpu, copies, stream, pieces, ready) };
        let read = enqueued.and_then(|()| self.gpu.record(stream));
        let read = read.map_err(|error| failed(info, error))?;
        if let Some(channel) = self.channels.get(key) {
            channel.neighbour.has_read(read);
        }
        self.spend(key, Some(read));
        Ok(())
    }

    /// Keeps an event until all members have come to the next call.
    fn spend(&mut self, key: &Key, event: Option<Event>) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.fresh.extend(event);
        }
    }

    /// Forgets the events of the call before, now that all members have come to this one.
    fn forget_spent(&mut self, key: &Key) {
        if let Some(channel) = self.channels.get_mut(key) {
            for event in channel.spent.drain(..) {
                self.gpu.forget(event);
            }
            channel.spent.append(&mut channel.fresh);
        }
    }
}
