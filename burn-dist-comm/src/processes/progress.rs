//! Progress between processes: messages come in, meshes and membership say what follows, and messages go out.
//!
//! One thread at a time takes a [turn](Progress::turn), which never waits.

use super::answer::Answer;
use super::farewell::Farewell;
use super::head::{Head, InputId, Out};
use super::limits::Limits;
use super::membership::{End, Introduced, Membership, VERSION};
use super::mesh::Mesh;
use super::peer::Peer;
use super::placement::Placement;
use super::ranks::Ranks;
use super::waiting::Waiting;
use super::watch::Watch;
use super::window::KindName;
use crate::sync::lock;
use crate::transport::{Destination, Message, Transport};
use crate::{Block, StartError};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The state of the engine that other threads see without driving it.
#[derive(Default)]
pub(super) struct Status {
    pub introduced: Answer<Introduced>,
    /// True if a mesh has stopped before its end.
    pub has_stopped: AtomicBool,
    /// Bytes that had not left this process after the last turn.
    pub unsent_bytes: AtomicUsize,
    /// How often the engine has had a look.
    pub turns: AtomicUsize,
    /// Why the engine has ended before the programs of the others, if it has.
    pub early_end: Mutex<Option<String>>,
}

/// Requests to the engine, in order.
pub(super) type Commands = Mutex<VecDeque<Box<dyn FnOnce(&mut Progress) + Send>>>;

/// Returns what sends messages to those processes that are there.
fn sender(transport: &mut dyn Transport, membership: &Membership) -> impl FnMut(Message) {
    |message| {
        if membership.takes_messages(message.process) {
            transport.send(message);
        }
    }
}

/// The state of the engine.
pub(super) struct Progress {
    transport: Box<dyn Transport>,
    membership: Membership,
    watch: Watch,
    status: Arc<Status>,
    /// True if nobody needs it any more.
    quits: bool,
    /// The end of the program, of which the others know.
    farewell: Option<Farewell>,
    /// Why no messages arrive any more.
    failed: Option<String>,
    early_bytes_max: usize,
    meshes: FxHashMap<u64, Mesh>,
    /// Meshes have numbers in the order in which they are made.
    next_mesh: u64,
    /// Messages for meshes that are not there yet.
    unknown: Waiting<u64, (Head, u32, Block)>,
}

impl Progress {
    /// Introduces this process to the others.
    pub(super) fn new(transport: Box<dyn Transport>, status: Arc<Status>, limits: &Limits) -> Self {
        let (process, num_processes) = (transport.process(), transport.num_processes());
        let mut progress = Self {
            transport,
            membership: Membership::new(process, num_processes),
            watch: Watch::new(),
            status,
            quits: false,
            farewell: None,
            failed: None,
            early_bytes_max: limits.early_bytes_max,
            meshes: FxHashMap::default(),
            next_mesh: 0,
            unknown: Waiting::new(limits.unknown_bytes_max),
        };
        let Peer { host, pid } = Peer::this();
        let version = VERSION.into();
        let hello = Head::Hello { pid, version, host };
        progress.tell_all(&hello, |membership, process| {
            membership.takes_messages(process)
        });
        progress.receive(hello, process, Block::empty());
        progress
    }

    /// Does what there is to do; whether there was anything.
    pub(super) fn turn(&mut self, commands: &Commands) -> bool {
        let mut found = false;
        self.status.turns.fetch_add(1, Ordering::Relaxed);
        let next = || lock(commands).pop_front();
        while let Some(command) = next() {
            found = true;
            command(self);
        }
        while self.failed.is_none() {
            let meshes = &mut self.meshes;
            let mut matcher = |head: &[u8], bytes: usize| match InputId::peek(head) {
                None => Destination::Buffer,
                Some(id) => match meshes.get_mut(&id.mesh) {
                    None => Destination::Later,
                    Some(mesh) => mesh.destination(&id, bytes),
                },
            };
            let received = self.transport.receive(&mut matcher);
            found |= !matches!(received, Ok(None));
            match received {
                Ok(None) => break,
                Err(reason) => self.fail(reason),
                Ok(Some(message)) => match Head::parse(&message.head) {
                    Some(head) => self.receive(head, message.process, message.body),
                    None => self.fail(format!(
                        "process {} sent a message of {} bytes that is none of burn-dist's: do all processes run the \
                         same version?",
                        message.process,
                        message.head.len()
                    )),
                },
            }
        }
        if found {
            self.on_meshes(Mesh::tell_who_left);
        } else if self.watch.is_watching() || self.membership.is_waiting() {
            found = self.look(Instant::now());
        }
        self.hang_up(Instant::now());
        self.ask(Instant::now());
        let unsent_bytes = self.transport.unsent_bytes();
        self.status
            .unsent_bytes
            .store(unsent_bytes, Ordering::Relaxed);
        found
    }

    /// Sees which processes have ended; whether any has.
    fn look(&mut self, now: Instant) -> bool {
        if let Some(process) = self.watch.look(now) {
            self.membership.ended(process, now, End::Process);
        }
        let lost = self.membership.lose(now);
        if let Some((process, end)) = &lost {
            self.on_meshes(|mesh, _| mesh.lose(*process, end));
        }
        lost.is_some()
    }

    /// Sees whose connections have ended. Who has taken its leave may go.
    fn hang_up(&mut self, now: Instant) {
        while let Some((process, how)) = self.transport.ended() {
            if self.membership.takes_messages(process) {
                let end = End::Connection(how.into());
                self.membership.ended(process, now, end);
            }
        }
    }

    /// At the end of the program, asks those that are waited for whether they are still there.
    fn ask(&mut self, now: Instant) {
        let Some(farewell) = &mut self.farewell else {
            return;
        };
        if farewell.look(self.membership.others(), now) && self.failed.is_none() {
            self.tell_all(&Head::Ask, Membership::takes_messages);
        }
    }

    fn is_sending(&self) -> bool {
        self.status.unsent_bytes.load(Ordering::Relaxed) > 0
    }

    /// Returns whether nobody needs it any more, and all is sent that can be. If the program ends, so have the others':
    /// what they send last would find nobody, and wait.
    pub(super) fn is_over(&self) -> bool {
        let is_awaited = self.farewell.is_some() && self.membership.others().next().is_some();
        self.quits && (self.is_cut_off() || !(self.is_sending() || is_awaited))
    }

    /// Returns whether nothing more comes of waiting for the others.
    fn is_cut_off(&self) -> bool {
        self.failed.is_some() || !self.silent().is_empty()
    }

    /// The processes that do not answer at the end of the program.
    fn silent(&self) -> &[u32] {
        self.farewell.as_ref().map_or(&[], Farewell::silent)
    }

    /// Returns whether processes are gone that did not take their leave.
    pub(super) fn is_deserted(&self) -> bool {
        self.is_cut_off() || !self.membership.lost().is_empty()
    }

    /// Says why the program ends before those of the others, if it does.
    pub(super) fn tell_early_end(&self) {
        let Some(farewell) = &self.farewell else {
            return;
        };
        if self.membership.others().next().is_none() {
            return;
        }
        let reason = match (&self.failed, farewell.silent()) {
            (Some(reason), _) => reason.clone(),
            (None, []) => return,
            (None, [first, ..]) => format!(
                "this one has ended, and {} has not answered for {:.0} s: it is stopped, hangs, or is cut off",
                self.membership.named(*first),
                farewell.patience().as_secs_f64()
            ),
        };
        *lock(&self.status.early_end) = Some(reason);
    }

    /// Returns whether bytes are in flight, and need to be seen to. What is lent needs nobody here: the next look sees
    /// early enough that it has come back.
    pub(super) fn is_moving(&self) -> bool {
        let unsent_bytes = self.status.unsent_bytes.load(Ordering::Relaxed);
        let is_sending = unsent_bytes > self.transport.lent_bytes();
        self.failed.is_none() && (is_sending || self.transport.is_receiving())
    }

    /// Returns whether anything is in flight, or waited for.
    pub(super) fn is_busy(&self) -> bool {
        self.is_moving() || self.meshes.values().any(Mesh::has_calls)
    }

    /// Sends to every other process of which `is_notified` says so.
    fn tell_all(&mut self, head: &Head, is_notified: impl Fn(&Membership, u32) -> bool) {
        let this = self.transport.process();
        for process in 0..self.transport.num_processes() as u32 {
            if process != this && is_notified(&self.membership, process) {
                self.transport.send(Message {
                    process,
                    head: head.to_bytes(),
                    body: Block::empty(),
                });
            }
        }
    }

    /// Has every mesh do something, and sends what it says.
    fn on_meshes(&mut self, mut act: impl FnMut(&mut Mesh, &mut Out)) {
        let mut out = sender(self.transport.as_mut(), &self.membership);
        for mesh in self.meshes.values_mut() {
            act(mesh, &mut out);
        }
        drop(out);
        self.note_faults();
    }

    /// Has a mesh, if it is there, do something, and sends what it says.
    pub(super) fn on_mesh(&mut self, number: u64, act: impl FnOnce(&mut Mesh, &mut Out)) {
        if let Some(mesh) = self.meshes.get_mut(&number) {
            act(mesh, &mut sender(self.transport.as_mut(), &self.membership));
            self.note_faults();
        }
    }

    fn note_faults(&self) {
        if self.meshes.values().any(Mesh::has_fault) {
            self.status.has_stopped.store(true, Ordering::Relaxed);
        }
    }

    /// Stops every mesh, also those to come: nothing arrives any more.
    fn fail(&mut self, reason: String) {
        self.membership
            .refuse(StartError::temporary(reason.as_str()));
        self.status.introduced.set(self.membership.introduced());
        self.failed = Some(reason.clone());
        self.on_meshes(|mesh, out| mesh.cut_off(&reason, out));
    }

    /// Takes the ranks of a mesh in, and what has come for them.
    pub(super) fn join(
        &mut self,
        ranks: Weak<dyn Ranks>,
        placement: Arc<Placement>,
        kind_name: KindName,
    ) {
        let number = placement.mesh;
        self.next_mesh = number + 1;
        self.meshes.retain(|_, mesh| !mesh.is_over());
        let mut mesh = Mesh::new(ranks, placement, kind_name, self.early_bytes_max);
        for (process, end) in self.membership.lost() {
            mesh.lose(*process, end);
        }
        self.meshes.insert(number, mesh);
        if let Some(reason) = self.failed.clone() {
            self.on_mesh(number, |mesh, out| mesh.cut_off(&reason, out));
        }
        for (head, from, body) in self.unknown.take(&number) {
            self.receive(head, from, body);
        }
    }

    /// The program ends, whatever holds its meshes; the others may be silent for `patience` until theirs do.
    pub(super) fn end(&mut self, patience: Duration) {
        self.on_meshes(|mesh, out| {
            if !mesh.is_over() {
                mesh.end(out);
            }
        });
        let num_processes = self.transport.num_processes();
        self.farewell = Some(Farewell::new(num_processes, patience, Instant::now()));
        // Those that have taken their leave wait for this.
        self.tell_all(&Head::Bye, |membership, process| {
            membership.lost().iter().all(|(lost, _)| *lost != process)
        });
    }

    /// Nobody needs this any more.
    pub(super) fn quit(&mut self) {
        self.quits = true;
    }

    /// Tells a process that this one is still there. Once its program ends too, its goodbye does.
    fn answer(&mut self, process: u32) {
        if self.farewell.is_none() && self.failed.is_none() {
            self.transport.send(Message {
                process,
                head: Head::Here.to_bytes(),
                body: Block::empty(),
            });
        }
    }

    /// Takes a message of a process.
    fn receive(&mut self, head: Head, from: u32, body: Block) {
        if let Some(farewell) = &mut self.farewell {
            farewell.hear(from, Instant::now());
        }
        let number = match &head {
            Head::Input(InputId { mesh, .. })
            | Head::Left { mesh, .. }
            | Head::Stop { mesh, .. }
            | Head::Window { mesh, .. } => *mesh,
            Head::Bye => return self.membership.bye(from),
            Head::Here => return,
            Head::Ask => return self.answer(from),
            Head::Hello { pid, version, host } => {
                let (host, pid) = (host.clone(), *pid);
                let peer = Peer { host, pid };
                self.watch.add(from, &peer);
                self.membership.hello(from, peer, version);
                return self.status.introduced.set(self.membership.introduced());
            }
        };
        if self.meshes.contains_key(&number) {
            return self.on_mesh(number, |mesh, out| mesh.receive(head, from, body, out));
        }
        // If the mesh is older, it has ended here.
        if number >= self.next_mesh {
            let bytes = body.len();
            if let Err(bytes_max) = self.unknown.put(number, (head, from, body), bytes) {
                self.fail(format!(
                    "process {from} has sent more than {bytes_max} bytes for meshes that this process has not made, \
                     the last one number {number}: do all processes make the same meshes in the same order?"
                ));
            }
        }
    }
}
