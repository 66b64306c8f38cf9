//! The words and the open calls of one rank.

use super::api::{FlagWait, Hold, Signals, Words};
use crate::device::{DeviceError, Gpu, Stream};
use crate::nccl::api::Handle;
use burn_dist_comm::{CallInfo, CommError, Group, Lane};
use burn_dist_mesh::Rank;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How many calls that have exited before may be open when another one exits: enough that the device always has
/// work, and what they hold is little beside what a plan counts.
pub const AHEAD: usize = 2;

/// The word that ends all waits.
const POISON: usize = 0;

/// A place in the sequences of calls.
pub(crate) type Key = (Group, Lane);

/// A call on one of our streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    stream: Stream,
    number: u32,
}

/// A call that the device may still be at.
struct OpenCall {
    ticket: Ticket,
    key: Key,
    info: Arc<CallInfo>,
    /// The communicator that carries it out, if one does.
    comm: Option<Handle>,
    /// When the host has seen that it has entered.
    entered: Option<Instant>,
    /// True if the backend's stream waits for it.
    has_exited: bool,
    /// The memory that it reads and writes.
    hold: Option<Hold>,
}

/// The calls of a stream.
struct Track {
    /// Its words: `entered`, and then `left`.
    words: usize,
    launched: u32,
}

/// The order of one rank's calls with its backend's work.
pub struct Order {
    signals: Arc<dyn Signals>,
    words: Words,
    tracks: FxHashMap<Stream, Track>,
    /// In the order in which they were launched.
    open_calls: VecDeque<OpenCall>,
}

/// Ends all waits of a rank's backend, from any thread.
#[derive(Clone, Copy, Debug)]
pub struct Poison(Words);

impl Poison {
    /// Ends them, and all later ones.
    pub fn set(self) {
        self.0.host[POISON].store(1, Ordering::SeqCst);
    }
}

impl Order {
    /// Returns the order of a rank without calls.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(signals: Arc<dyn Signals>) -> Result<Self, DeviceError> {
        let words = signals.words()?;
        Ok(Self {
            signals,
            words,
            tracks: FxHashMap::default(),
            open_calls: VecDeque::new(),
        })
    }

    /// Returns the word that ends all waits.
    pub fn poison(&self) -> Poison {
        Poison(self.words)
    }

    /// The driver's calls.
    pub fn signals(&self) -> &Arc<dyn Signals> {
        &self.signals
    }

    /// Makes `stream` wait for all that the backend's streams have, and begins a call on it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enter(&mut self, gpu: &dyn Gpu, stream: Stream) -> Result<Ticket, DeviceError> {
        let event = self.signals.record_all()?;
        let waits = gpu.wait(stream, event);
        gpu.forget(event);
        waits?;
        let next = 1 + 2 * self.tracks.len();
        if next + 1 >= self.words.host.len() && !self.tracks.contains_key(&stream) {
            return Err(DeviceError {
                function: "words",
                reason: format!("{} streams have used up a page", self.tracks.len()),
            });
        }
        let track = self.tracks.entry(stream).or_insert(Track {
            words: next,
            launched: 0,
        });
        track.launched = track.launched.wrapping_add(1);
        let number = track.launched;
        self.signals
            .write(stream, self.words.at(track.words), number)?;
        Ok(Ticket { stream, number })
    }

    /// Ends a call on its stream: from now on it is open.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn leave(
        &mut self,
        ticket: Ticket,
        (key, info, comm): (Key, &Arc<CallInfo>, Option<Handle>),
    ) -> Result<(), DeviceError> {
        let left = self.words.at(self.track(ticket).words + 1);
        self.signals.write(ticket.stream, left, ticket.number)?;
        self.open_calls.push_back(OpenCall {
            ticket,
            key,
            info: Arc::clone(info),
            comm,
            entered: None,
            has_exited: false,
            hold: None,
        });
        Ok(())
    }

    fn track(&self, ticket: Ticket) -> &Track {
        let track = self.tracks.get(&ticket.stream);
        track.expect("a ticket is given out by the track of its stream")
    }

    /// Returns what the backend's stream has to wait for, and keeps what the call uses until it is over.
    pub fn exit(&mut self, ticket: Ticket, hold: Hold) -> FlagWait {
        let wait = FlagWait {
            word: self.words.at(self.track(ticket).words + 1),
            value: ticket.number,
            poison: self.words.at(POISON),
        };
        let mut calls = self.open_calls.iter_mut();
        // One that is over holds nothing any more.
        if let Some(call) = calls.find(|call| call.ticket == ticket) {
            call.has_exited = true;
            call.hold = Some(hold);
        }
        wait
    }

    /// Returns whether the device is done with a call.
    pub fn is_over(&self, ticket: Ticket) -> bool {
        self.has_come(ticket, 1)
    }

    fn has_come(&self, ticket: Ticket, word: usize) -> bool {
        let found = &self.words.host[self.track(ticket).words + word];
        FlagWait::has_come(found.load(Ordering::Acquire), ticket.number)
    }

    /// Forgets the calls that have exited and are over, and returns them.
    pub(crate) fn retire(&mut self) -> Vec<(Key, Arc<CallInfo>)> {
        let mut over = Vec::new();
        for at in (0..self.open_calls.len()).rev() {
            let call = &self.open_calls[at];
            if call.has_exited && self.is_over(call.ticket) {
                let call = self.open_calls.remove(at).expect("an index of this queue");
                over.push((call.key, call.info));
            }
        }
        over
    }

    /// How many calls have exited and are not over, as far as has been [looked](Self::retire).
    pub fn num_ahead(&self) -> usize {
        self.open_calls
            .iter()
            .filter(|call| call.has_exited)
            .count()
    }

    /// Returns whether no call is open.
    pub fn is_idle(&self) -> bool {
        self.open_calls.is_empty()
    }

    /// Communicators of calls that are not over.
    pub(crate) fn busy(&self) -> impl Iterator<Item = (&Arc<CallInfo>, Handle)> {
        let calls = self.open_calls.iter();
        calls
            .filter(|call| !self.is_over(call.ticket))
            .filter_map(|call| Some((&call.info, call.comm?)))
    }

    /// Looks which calls wait for others, and for how long.
    ///
    /// # Errors
    /// What `lost` says that a call waits for in vain; [`CommError::Timeout`] with those that `behind` says have not
    /// made the call, or [`CommError::GpuStalled`].
    pub(crate) fn check(
        &mut self,
        timeout: Duration,
        behind: impl Fn(&CallInfo) -> Vec<Rank>,
        lost: impl Fn(&Arc<CallInfo>) -> Option<CommError>,
    ) -> Result<(), CommError> {
        let now = Instant::now();
        for at in 0..self.open_calls.len() {
            let ticket = self.open_calls[at].ticket;
            if self.is_over(ticket) || !self.has_come(ticket, 0) {
                continue;
            }
            let call = &mut self.open_calls[at];
            let elapsed = now - *call.entered.get_or_insert(now);
            if let Some(lost) = lost(&call.info) {
                return Err(lost);
            }
            if elapsed >= timeout {
                return Err(late(&call.info, elapsed, behind(&call.info)));
            }
        }
        Ok(())
    }

    /// Ends open calls: what calls hold is free if all of them have stopped, and else nobody's for ever.
    pub(crate) fn end(&mut self, has_stopped: bool) {
        if !has_stopped {
            self.poison().set();
        }
        for call in self.open_calls.drain(..) {
            if let (Some(hold), false) = (call.hold, has_stopped) {
                std::mem::forget(hold);
            }
        }
    }
}

/// A call that has waited for others too long.
pub(crate) fn late(call: &Arc<CallInfo>, elapsed: Duration, missing: Vec<Rank>) -> CommError {
    let call = Arc::clone(call);
    match missing.is_empty() {
        true => CommError::GpuStalled { call, elapsed },
        false => CommError::Timeout {
            call,
            missing,
            // Only ranks of this process are looked at.
            processes: Vec::new(),
            elapsed,
        },
    }
}
