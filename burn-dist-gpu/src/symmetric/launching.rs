//! The copies of one call, through workspaces.

use super::rounds::{self, Cut, Span};
use super::segment::{Offer, Segment, Word};
use super::workspace::{Linking, Links, Reader, Workspace};
use crate::device::{Address, DeviceError, Stream};
use crate::nccl::groups::{Carrier, Channels, Mark, failed, member_of, mismatch};
use crate::nccl::op::{Element, Op};
use crate::nccl::watch;
use crate::peer::copies::{self, Piece};
use crate::streams::order::Key;
use burn_dist_comm::{CallInfo, CommError, Communicator};
use std::sync::Arc;

/// A call as one member makes it.
struct Passing<'a> {
    host: &'a dyn Communicator,
    info: &'a Arc<CallInfo>,
    key: &'a Key,
    member: usize,
    stream: Stream,
    segment: Arc<Segment>,
    /// Rounds before this call.
    before: u32,
    /// The operations that it sends.
    row: &'a [Span],
}

impl Passing<'_> {
    /// The number of one of its rounds: what words come to.
    fn number(&self, round: usize) -> u32 {
        self.before.wrapping_add(round as u32 + 1)
    }
}

/// The knowledge of members about a call when all have shown their offers.
struct Agreed<'a> {
    shown: &'a [Offer],
    /// The copies of each member; of others, from offsets.
    pieces: Vec<Vec<Piece>>,
    /// The size of a slot.
    slot: usize,
    /// Rounds that this member stages, and all.
    num_staged: usize,
    num_rounds: usize,
}

impl Agreed<'_> {
    /// Which slot of its workspace a member uses in a round.
    fn slot_of(&self, member: usize, round: usize) -> usize {
        Workspace::slot_of(self.shown[member].slot.wrapping_add(round as u32))
    }
}

impl Channels {
    /// Copies from the workspaces of the other members: see [`crate::symmetric`].
    ///
    /// # Safety
    /// As [`Channels::launch`].
    pub(crate) unsafe fn copy_through_workspaces(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
        element: Element,
        ops: &[Op],
    ) -> Result<Mark, CommError> {
        self.link(host, info, key)?;
        let (member, size) = (member_of(info), element.bytes());
        let (row, shown) = rounds::row(ops, member, size);
        let mut ticket = None;
        if !ops.is_empty() {
            ticket = self.enter(info, Carrier::Copies)?;
            self.opens(key);
        }
        let stream = self.stream((info.lane(), Carrier::Copies), info)?;
        let links = self.links(host, info, key)?;
        let (segment, calls) = (Arc::clone(&links.segment), links.calls);
        let call = Passing {
            host,
            info,
            key,
            member,
            stream,
            segment,
            before: links.rounds,
            row: &row,
        };
        // Where it shows its offer is still what others read of the call before.
        self.await_all(&call, Word::Taken, calls)?;
        let workspace = self.workspace(info);
        let (slot, first) = (workspace.slot, workspace.staged);
        let num_staged = rounds::num_rounds(&row, slot);
        if num_staged > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.stage(&call, 0) }?;
        }
        let shown = self.show(&call, calls, (first, shown))?;
        let mut of_all: Vec<&[Op]> = shown.iter().map(|offer| &offer.ops[..]).collect();
        let rows = of_all.iter().enumerate();
        let rows = rows.map(|(place, ops)| rounds::row(ops, place, size).0);
        let num_rounds = rows.map(|row| rounds::num_rounds(&row, slot)).max();
        let num_rounds = num_rounds.unwrap_or(0);
        let pieces = |of_all: &[&[Op]], member| {
            let pieces = copies::pieces(of_all, member, size);
            pieces.map_err(|reason| mismatch(info, reason))
        };
        let of_each = (0..of_all.len()).map(|member| pieces(&of_all, member));
        let mut of_each = of_each.collect::<Result<Vec<_>, CommError>>()?;
        // Its own copies are from where it has what it sends to itself.
        of_all[member] = ops;
        of_each[member] = pieces(&of_all, member)?;
        let agreed = Agreed {
            pieces: of_each,
            shown: &shown,
            slot,
            num_staged,
            num_rounds,
        };
        // SAFETY: the caller's promise.
        unsafe { self.run_rounds(&call, &agreed) }?;
        if let Some(links) = self.links_mut(key) {
            links.calls = links.calls.wrapping_add(1);
            links.rounds = links.rounds.wrapping_add(agreed.num_rounds as u32);
            links.last = Arc::clone(info);
        }
        match ops.is_empty() {
            true => Ok(Mark::Nothing),
            false => self.leave(info, key, (Carrier::Copies, ticket)),
        }
    }

    /// Puts the copies of a call on the stream, but for the first round of what this member sends, which is there.
    ///
    /// # Safety
    /// As [`Channels::launch`].
    unsafe fn run_rounds(
        &mut self,
        call: &Passing<'_>,
        agreed: &Agreed<'_>,
    ) -> Result<(), CommError> {
        let (member, slot) = (call.member, agreed.slot);
        let mine = &agreed.pieces[member];
        for own in mine.iter().filter(|piece| piece.from == member) {
            // SAFETY: the caller's promise.
            unsafe { self.copy_on(call, own.target, own.source, own.bytes) }?;
        }
        for round in 0..agreed.num_rounds {
            let number = call.number(round);
            if round > 0 && round < agreed.num_staged {
                // SAFETY: the caller's promise.
                unsafe { self.stage(call, round) }?;
            }
            call.segment.set(member, Word::Staged, number);
            if round < agreed.num_staged {
                let readers = rounds::readers(&agreed.pieces, member, round, slot);
                let readers = readers.map(|member| Reader {
                    segment: Arc::clone(&call.segment),
                    member,
                    round: number,
                });
                let at = agreed.slot_of(member, round);
                self.workspace(call.info).readers[at] = readers.collect();
            }
            let cuts = rounds::read(mine, member, round, slot);
            // SAFETY: the caller's promise, and that of the others for what they stage.
            unsafe { self.read(call, round, (&cuts, agreed)) }?;
            call.segment.set(member, Word::Followed, number);
        }
        Ok(())
    }

    /// Shows the others what this member sends, and returns what all do.
    fn show(
        &self,
        call: &Passing<'_>,
        calls: u32,
        (slot, ops): (u32, Vec<Op>),
    ) -> Result<Vec<Offer>, CommError> {
        let (segment, this) = (&call.segment, calls.wrapping_add(1));
        let mismatch = |reason| mismatch(call.info, reason);
        let offer = Offer { slot, ops };
        segment.offer(call.member, &offer).map_err(mismatch)?;
        segment.set(call.member, Word::Offered, this);
        self.await_all(call, Word::Offered, this)?;
        let all = (0..segment.group().len()).map(|member| segment.offer_of(member));
        let all = all
            .collect::<Result<Vec<Offer>, String>>()
            .map_err(mismatch)?;
        segment.set(call.member, Word::Taken, this);
        Ok(all)
    }

    /// Puts a round of what this member sends into the next slot of its workspace.
    ///
    /// # Safety
    /// As [`Channels::launch`].
    unsafe fn stage(&mut self, call: &Passing<'_>, round: usize) -> Result<(), CommError> {
        let workspace = self.workspace(call.info);
        let at = Workspace::slot_of(workspace.staged);
        workspace.staged = workspace.staged.wrapping_add(1);
        let (target, slot) = (workspace.at(at), workspace.slot);
        for reader in std::mem::take(&mut workspace.readers[at]) {
            let Reader {
                segment,
                member,
                round,
            } = reader;
            self.await_some(call, &segment, (&[member], Word::Followed, round))?;
            self.wait_for(call, segment.at(member, Word::Read), round)?;
        }
        for Cut { offset, outside } in rounds::staged(call.row, round, slot) {
            let target = target.plus(offset);
            // SAFETY: the caller's promise; those who have read the slot before are waited for.
            unsafe { self.copy_on(call, target, outside.at, outside.bytes) }?;
        }
        self.write(call, Word::Ready, call.number(round))
    }

    /// Copies what this member gets in a round.
    ///
    /// # Safety
    /// As [`Channels::launch`].
    unsafe fn read(
        &mut self,
        call: &Passing<'_>,
        round: usize,
        (cuts, agreed): (&[(usize, Cut)], &Agreed<'_>),
    ) -> Result<(), CommError> {
        let number = call.number(round);
        let mut waited = Vec::new();
        for (from, Cut { offset, outside }) in cuts {
            if !waited.contains(from) {
                self.await_some(call, &call.segment, (&[*from], Word::Staged, number))?;
                self.wait_for(call, call.segment.at(*from, Word::Ready), number)?;
                waited.push(*from);
            }
            let links = self.links(call.host, call.info, call.key)?;
            let slot = links.at(*from, agreed.slot_of(*from, round), agreed.slot);
            let source = slot.plus(*offset);
            // SAFETY: the caller's promise; what stages the slot is waited for.
            unsafe { self.copy_on(call, outside.at, source, outside.bytes) }?;
        }
        match waited.is_empty() {
            true => Ok(()),
            false => self.write(call, Word::Read, number),
        }
    }

    /// # Safety
    /// As [`Channels::launch`].
    unsafe fn copy_on(
        &self,
        call: &Passing<'_>,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), CommError> {
        let copies = self.copies.as_deref();
        let copies = copies.expect("a member that cannot copy has told the others so");
        // SAFETY: the caller's promise.
        let copied = unsafe { copies.copy(call.stream, to, from, bytes) };
        copied.map_err(|error| failed(call.info, error))
    }

    /// Makes the stream wait for a word.
    fn wait_for(&self, call: &Passing<'_>, word: Address, value: u32) -> Result<(), CommError> {
        let waits = self.symmetric().wait_for(call.stream, word, value);
        waits.map_err(|error| failed(call.info, error))
    }

    /// Makes the stream set a word of this member.
    fn write(&self, call: &Passing<'_>, word: Word, value: u32) -> Result<(), CommError> {
        let order = self.order.as_ref();
        let signals = order.expect("who shares is ordered").signals();
        let word = call.segment.at(call.member, word);
        let written = signals.write(call.stream, word, value);
        written.map_err(|error| failed(call.info, error))
    }

    /// Waits until a word of all members has come to `value`.
    fn await_all(&self, call: &Passing<'_>, word: Word, value: u32) -> Result<(), CommError> {
        let all: Vec<usize> = (0..call.segment.group().len()).collect();
        self.await_some(call, &call.segment, (&all, word, value))
    }

    /// Waits until a word of some members has come to `value`.
    fn await_some(
        &self,
        call: &Passing<'_>,
        segment: &Segment,
        (members, word, value): (&[usize], Word, u32),
    ) -> Result<(), CommError> {
        let behind = || {
            let behind = members
                .iter()
                .filter(|of| !segment.has_come(**of, word, value));
            let ranks = behind.map(|of| segment.group().ranks()[*of]);
            ranks.collect()
        };
        let have_come = || members.iter().all(|of| segment.has_come(*of, word, value));
        let ready = || Ok(have_come().then_some(()));
        watch::until_or(call.host, call.info, self.timeout, ready, behind)
    }

    /// Links the workspaces of a group, when it first needs them.
    fn link(
        &mut self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<(), CommError> {
        if self.channel(host, info, key)?.links.is_some() {
            return Ok(());
        }
        let symmetric = self.symmetric();
        let advised = |error: DeviceError| failed(info, advised(error));
        if !self.workspaces.contains_key(&info.lane()) {
            let made = Workspace::new(&*symmetric, self.slot).map_err(advised)?;
            self.workspaces.insert(info.lane(), made);
        }
        let workspace = &self.workspaces[&info.lane()];
        let names = &self.channel(host, info, key)?.groups;
        let linking = Linking::new(&*symmetric, workspace, (&key.0, names), member_of(info));
        let mut linking = linking.map_err(advised)?;
        watch::until(host, info, self.timeout, || {
            let are_linked = linking.advance().map_err(advised)?;
            Ok(are_linked.then_some(()))
        })?;
        let links = linking.finish(info);
        if let Some(channel) = self.channels.get_mut(key) {
            channel.links = links;
        }
        Ok(())
    }

    fn links(
        &self,
        host: &dyn Communicator,
        info: &Arc<CallInfo>,
        key: &Key,
    ) -> Result<&Links, CommError> {
        let links = self.channel(host, info, key)?.links.as_ref();
        Ok(links.expect("linked when the call began"))
    }

    fn links_mut(&mut self, key: &Key) -> Option<&mut Links> {
        self.channels.get_mut(key)?.links.as_mut()
    }

    fn workspace(&mut self, info: &CallInfo) -> &mut Workspace {
        let workspace = self.workspaces.get_mut(&info.lane());
        workspace.expect("made when the group was linked")
    }
}

/// Says what else there is where memory cannot be shared.
fn advised(error: DeviceError) -> DeviceError {
    let DeviceError { function, reason } = error;
    DeviceError {
        function,
        reason: format!(
            "{reason}; memory that processes share is needed for `GpuTransport::Workspace`: `GpuTransport::Auto` goes \
             through NCCL between processes"
        ),
    }
}
