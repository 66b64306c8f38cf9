//! The workspace of a lane, and its links to those of others.

use super::api::{Mapping, Symmetric};
use super::os::{self, Descriptor, Mailbox, NOTE};
use super::segment::Segment;
use crate::device::{Address, DeviceError};
use crate::peer::choice::GroupId;
use burn_dist_comm::{CallInfo, Group};
use std::sync::Arc;

/// Slots of a workspace: one is staged into while others read the other.
pub(crate) const SLOTS: usize = 2;

/// The size of a slot in bytes: a copy of it takes some 100 us between GPUs, long beside what a round costs to submit.
pub(crate) const SLOT: usize = 32 << 20;

/// The readers of a slot that are still to come, and the times of the others.
pub(crate) struct Reader {
    pub segment: Arc<Segment>,
    pub member: usize,
    pub round: u32,
}

/// The workspace of a lane: memory of this rank's GPU.
pub(crate) struct Workspace {
    memory: Mapping,
    descriptor: Descriptor,
    /// The size of a slot.
    pub slot: usize,
    /// How many rounds have been staged.
    pub staged: u32,
    /// The readers of each slot.
    pub readers: [Vec<Reader>; SLOTS],
}

impl Workspace {
    /// Makes one, with slots of so many bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(device: &dyn Symmetric, slot: usize) -> Result<Self, DeviceError> {
        let (memory, descriptor) = device.create(SLOTS * slot)?;
        Ok(Self {
            memory,
            descriptor,
            slot,
            staged: 0,
            readers: Default::default(),
        })
    }

    /// Which slot a round uses, of those that this workspace stages.
    pub(crate) fn slot_of(staged: u32) -> usize {
        staged as usize % SLOTS
    }

    /// Where a slot is.
    pub(crate) fn at(&self, slot: usize) -> Address {
        self.memory.address.plus(slot * self.slot)
    }

    /// Gives it back.
    ///
    /// # Safety
    /// As [`Symmetric::unmap`].
    pub(crate) unsafe fn end(self, device: &dyn Symmetric) {
        // SAFETY: the caller's promise.
        unsafe { device.unmap(self.memory) };
    }
}

/// The links between the members of a group, on a lane.
pub(crate) struct Links {
    pub segment: Arc<Segment>,
    /// The workspaces of the others, by their places.
    peers: Vec<Option<Mapping>>,
    /// Calls and rounds so far, the same on all members.
    pub calls: u32,
    pub rounds: u32,
    /// The last call.
    pub last: Arc<CallInfo>,
}

impl Links {
    /// Where a slot of another member is.
    pub(crate) fn at(&self, member: usize, slot: usize, bytes: usize) -> Address {
        let mapping =
            self.peers[member].expect("the others are linked, and a member reads of others");
        mapping.address.plus(slot * bytes)
    }

    /// Gives up what is mapped.
    ///
    /// # Safety
    /// As [`Symmetric::unmap`].
    pub(crate) unsafe fn end(self, device: &dyn Symmetric) {
        for mapping in self.peers.into_iter().flatten() {
            // SAFETY: the caller's promise.
            unsafe { device.unmap(mapping) };
        }
        // SAFETY: the caller's promise.
        unsafe { device.unregister(self.segment.page()) };
    }
}

/// The making of links, which takes as long as the slowest member. Links that are not finished are dropped.
pub(crate) struct Linking<'a> {
    device: &'a dyn Symmetric,
    workspace: &'a Workspace,
    group: &'a Group,
    /// The names of all members' mailboxes.
    names: &'a [GroupId],
    member: usize,
    mailbox: Mailbox,
    segment: Option<Arc<Segment>>,
    /// The memory that the first member shares.
    memory: Option<Descriptor>,
    is_notified: Vec<bool>,
    peers: Vec<Option<Mapping>>,
}

impl<'a> Linking<'a> {
    /// Begins to link a member to the others.
    ///
    /// # Errors
    /// What the system or the driver says.
    pub(crate) fn new(
        device: &'a dyn Symmetric,
        workspace: &'a Workspace,
        (group, names): (&'a Group, &'a [GroupId]),
        member: usize,
    ) -> Result<Self, DeviceError> {
        let mailbox = Mailbox::open(&names[member]).map_err(DeviceError::of_system("bind"))?;
        let (mut segment, mut memory) = (None, None);
        if member == 0 {
            let made = os::memory(Segment::bytes(names.len()))
                .map_err(DeviceError::of_system("memfd_create"))?;
            segment = Some(Segment::map(&made, group, device)?);
            memory = Some(made);
        }
        Ok(Self {
            device,
            workspace,
            group,
            names,
            member,
            mailbox,
            segment,
            memory,
            is_notified: (0..names.len()).map(|other| other == member).collect(),
            peers: vec![None; names.len()],
        })
    }

    /// Does what can be done without waiting; returns whether all links are there.
    ///
    /// # Errors
    /// What the system or the driver says.
    pub(crate) fn advance(&mut self) -> Result<bool, DeviceError> {
        for other in 0..self.names.len() {
            if !self.is_notified[other] {
                self.is_notified[other] = self.tell(other)?;
            }
        }
        while let Some(message) = self
            .mailbox
            .receive()
            .map_err(DeviceError::of_system("recvmsg"))?
        {
            self.hear(message)?;
        }
        let is_linked = |other: usize| other == self.member || self.peers[other].is_some();
        let are_linked = (0..self.names.len()).all(is_linked);
        Ok(self.segment.is_some()
            && are_linked
            && self.is_notified.iter().all(|notified| *notified))
    }

    fn tell(&self, other: usize) -> Result<bool, DeviceError> {
        let mut note = [0; NOTE];
        note[..8].copy_from_slice(&(self.member as u64).to_le_bytes());
        note[8..].copy_from_slice(&(self.workspace.memory.bytes as u64).to_le_bytes());
        let mut descriptors = vec![&self.workspace.descriptor];
        descriptors.extend(&self.memory);
        os::send(&self.names[other], &note, &descriptors).map_err(DeviceError::of_system("sendmsg"))
    }

    fn hear(&mut self, (note, descriptors): os::Received) -> Result<(), DeviceError> {
        let number = |at: usize| {
            let bytes = note[at..at + 8].try_into();
            u64::from_le_bytes(bytes.expect("eight bytes")) as usize
        };
        let (from, bytes) = (number(0), number(8));
        let mut descriptors = descriptors.into_iter();
        let (Some(peer), Some(workspace)) = (self.peers.get_mut(from), descriptors.next()) else {
            return Err(DeviceError {
                function: "recvmsg",
                reason: format!("a message of member {from} without a workspace"),
            });
        };
        *peer = Some(self.device.import(&workspace, bytes)?);
        if let (0, Some(memory)) = (from, descriptors.next()) {
            self.segment = Some(Segment::map(&memory, self.group, self.device)?);
        }
        Ok(())
    }

    /// Returns the links, once all are there.
    pub(crate) fn finish(mut self, call: &Arc<CallInfo>) -> Option<Links> {
        Some(Links {
            segment: self.segment.take()?,
            peers: std::mem::take(&mut self.peers),
            calls: 0,
            rounds: 0,
            last: Arc::clone(call),
        })
    }
}

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        for mapping in self.peers.drain(..).flatten() {
            // SAFETY: no stream has seen it.
            unsafe { self.device.unmap(mapping) };
        }
        if let Some(segment) = self.segment.take() {
            // SAFETY: as above.
            unsafe { self.device.unregister(segment.page()) };
        }
    }
}
