//! A mesh, as the engine knows it: what the ranks here and the other processes do, and what follows.
//!
//! Plain data: messages come in and go out. The fault that stops the ranks here goes to them.

use super::agreement::{Agreement, Departure, Run, Verdict};
use super::answer::Answer;
use super::calls::Calls;
use super::faults::{Cause, Faults};
use super::head::{Head, InputId, Out};
use super::membership::End;
use super::placement::Placement;
use super::ranks::{Opened, Ranks};
use super::window::{KindName, WindowPrint, from_block, to_block};
use crate::transport::{Destination, Message};
use crate::{Block, CommError};
use burn_dist_mesh::Rank;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, Weak};

/// The ranks of a mesh here, and what is known of the others.
pub(super) struct Mesh {
    ranks: Weak<dyn Ranks>,
    placement: Arc<Placement>,
    faults: Faults,
    calls: Calls,
    /// Ranks of this process that make no more calls, but have some in flight.
    leaving: Vec<Rank>,
    /// Ranks of this process of which the others know that they have left.
    notified: FxHashSet<Rank>,
    agreement: Agreement,
    /// By window, what threads here wait for.
    answers: FxHashMap<u64, Arc<Answer<Verdict>>>,
}

impl Mesh {
    /// Keeps at most so many bytes of inputs that come before their call.
    pub(super) fn new(
        ranks: Weak<dyn Ranks>,
        placement: Arc<Placement>,
        kind_name: KindName,
        early_bytes_max: usize,
    ) -> Self {
        Self {
            faults: Faults::default(),
            calls: Calls::new(Weak::clone(&ranks), Arc::clone(&placement), early_bytes_max),
            ranks,
            leaving: Vec::new(),
            notified: FxHashSet::default(),
            agreement: Agreement::new(Arc::clone(&placement), kind_name),
            answers: FxHashMap::default(),
            placement,
        }
    }

    /// Returns whether its ranks here are gone, with all that they have started.
    pub(super) fn is_over(&self) -> bool {
        self.ranks.strong_count() == 0
    }

    /// Returns whether a fault has stopped it before its end.
    pub(super) fn has_fault(&self) -> bool {
        self.faults != Faults::Running
    }

    /// Returns whether calls are in flight.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Starts a call that all ranks here have made.
    pub(super) fn open(&mut self, opened: Opened, out: &mut Out) {
        if self.faults != Faults::Stopped {
            self.calls.open(opened, out);
        }
    }

    /// Returns where the input that a message brings is to go.
    pub(super) fn destination(&mut self, id: &InputId, bytes: usize) -> Destination {
        self.calls.destination(id, bytes)
    }

    /// Takes what another process says.
    pub(super) fn receive(&mut self, head: Head, from: u32, body: Block, out: &mut Out) {
        match head {
            Head::Input(id) => {
                if self.faults != Faults::Stopped && !self.is_over() {
                    self.calls.input(id, from, body, out);
                }
            }
            Head::Window {
                number,
                hash,
                values,
                ..
            } => self.compare(number, from, [hash, values], &body),
            Head::Stop { cause, .. } => {
                let error = CommError::Stopped {
                    process: self.placement.name(cause.process),
                    reason: cause.reason.clone(),
                    exit_code: cause.exit_code,
                };
                self.stop(error, cause, out);
            }
            Head::Left { rank, .. } => {
                self.calls.leave(Rank(rank));
                self.depart(from);
            }
            Head::Hello { .. } | Head::Bye | Head::Ask | Head::Here => {}
        }
    }

    /// Has the others notified of something.
    fn tell(&self, head: &Head, body: &Block, out: &mut Out) {
        let head = head.to_bytes();
        for &process in self.placement.others.iter() {
            out(Message {
                process,
                head: head.clone(),
                body: body.clone(),
            });
        }
    }

    /// Stops the ranks here, if there still are any, because of what is found here.
    fn abort(&self, error: CommError) {
        if let Some(ranks) = self.ranks.upgrade() {
            ranks.abort(error);
        }
    }

    fn tell_fault(&self, cause: Cause, out: &mut Out) {
        let mesh = self.placement.mesh;
        self.tell(&Head::Stop { mesh, cause }, &Block::empty(), out);
    }

    /// The ranks here have found a fault, which they do not see yet.
    pub(super) fn found(&mut self, error: &CommError, out: &mut Out) {
        if self.faults.find() {
            self.tell_fault(self.cause(error), out);
        }
    }

    fn cause(&self, error: &CommError) -> Cause {
        Cause {
            process: self.placement.process,
            exit_code: error.exit_code(),
            reason: error.to_string(),
        }
    }

    /// The ranks here see their fault: calls in flight end, and whoever waits for them is woken.
    pub(super) fn published(&mut self) {
        self.faults.stop();
        self.calls.clear();
    }

    /// Nothing arrives any more. Perhaps something can still be sent: then the others know why.
    pub(super) fn cut_off(&mut self, reason: &str, out: &mut Out) {
        let error = CommError::Connection {
            reason: reason.to_string(),
        };
        let cause = self.cause(&error);
        self.stop(error, cause, out);
    }

    /// Stops the ranks here because of what they have not found themselves.
    fn stop(&mut self, error: CommError, cause: Cause, out: &mut Out) {
        let tells = self.faults.stop();
        if let Some(ranks) = self.ranks.upgrade() {
            ranks.stopped(error);
        }
        self.published();
        if tells {
            self.tell_fault(cause, out);
        }
    }

    /// Stops what waits for a process that has ended without waiting for the others.
    pub(super) fn lose(&mut self, process: u32, end: &End) {
        self.calls.lose(process, end);
        if let Some(ranks) = self.ranks.upgrade() {
            ranks.lost(process, end);
        }
        self.depart(process);
    }

    /// Stops what waits for ranks that have left, and for a process that is lost or of which all ranks have left.
    fn depart(&mut self, process: u32) {
        self.calls.check();
        let departure = match (self.calls.have_left(process), self.calls.loss(process)) {
            (true, _) => Departure::Left,
            (false, Some(end)) => Departure::Lost(end.clone()),
            (false, None) => return,
        };
        for (window, verdict) in self.agreement.depart(process, departure) {
            self.answer(window, verdict);
        }
    }

    /// Tells the others of a window that runs here, and compares it with theirs.
    pub(super) fn run_window(
        &mut self,
        print: WindowPrint,
        answer: Arc<Answer<Verdict>>,
        out: &mut Out,
    ) {
        let WindowPrint { number, hash, .. } = print;
        self.answers.insert(number, answer);
        let body = to_block(print.digest.as_deref(), &print.parts);
        let head = Head::Window {
            mesh: self.placement.mesh,
            number,
            hash,
            values: print.values,
        };
        self.tell(&head, &body, out);
        self.compare(number, self.placement.process, [hash, print.values], &body);
    }

    /// Compares a window of a process with those of the others.
    fn compare(&mut self, window: u64, process: u32, [hash, values]: [u64; 2], body: &Block) {
        let (parts, digest) = from_block(body);
        let run = Run {
            process,
            hash,
            values,
        };
        match self.agreement.run(window, run, &parts, digest) {
            Ok(verdict) => self.answer(window, verdict),
            Err(error) => self.abort(error),
        }
    }

    fn answer(&mut self, window: u64, verdict: Verdict) {
        let answer = match verdict {
            Verdict::Agreed => self.answers.remove(&window),
            _ => self.answers.get(&window).cloned(),
        };
        if let Some(answer) = answer {
            answer.set(verdict);
        }
    }

    /// A rank here makes no more calls.
    pub(super) fn leave(&mut self, rank: Rank, out: &mut Out) {
        self.leaving.push(rank);
        self.tell_who_left(out);
    }

    /// Tells the others of ranks that have left, once the calls they made are over.
    pub(super) fn tell_who_left(&mut self, out: &mut Out) {
        let calls = &self.calls;
        let is_over = |rank: &mut Rank| !calls.has_member(*rank);
        let over: Vec<Rank> = self.leaving.extract_if(.., is_over).collect();
        for rank in over {
            self.tell_left(rank, out);
        }
    }

    fn tell_left(&mut self, rank: Rank, out: &mut Out) {
        if self.notified.insert(rank) {
            let (mesh, rank) = (self.placement.mesh, rank.0);
            self.tell(&Head::Left { mesh, rank }, &Block::empty(), out);
        }
    }

    /// The program ends: the ranks that are still here make no more calls.
    pub(super) fn end(&mut self, out: &mut Out) {
        let placement = Arc::clone(&self.placement);
        for rank in placement.ranks_of(placement.process) {
            self.tell_left(rank, out);
        }
    }
}
