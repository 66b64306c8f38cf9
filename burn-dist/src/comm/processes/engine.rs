//! The thread of a process that sends and receives.

use super::call::{Call, CallKey, Round, chunks, fingerprint, hash};
use super::carrier::{Carrier, Parcel};
use super::message::{Message, Place};
use super::remote::{Command, Opened};
use super::share::{boxes, is_reduction, localized, pack, wanted};
use super::windows::{Agreement, Run, WindowPrint, Windows, to_block};
use crate::comm::buffer::Work;
use crate::comm::collective::Collective;
use crate::comm::geometry::Geometry;
use crate::comm::info::What;
use crate::comm::local::SMALL_BYTES_MAX;
use crate::comm::{Block, CommError, LocalHub};
use crate::mesh::Rank;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// All-reduces of at most this many bytes take one round, in which everyone sends everything: waiting for a second one would take longer.
const ONE_ROUND_BYTES_MAX: usize = 16 << 10;

/// Looks for messages without a break before the engine begins to sleep between them: many if it has a core to itself.
const LOOKS_MAX: u32 = 2_000;
const LOOKS_MAX_CROWDED: u32 = 300;

/// How long it sleeps while a call is open, and while none is.
const NAP: Duration = Duration::from_micros(20);
const REST: Duration = Duration::from_micros(500);

/// The engine of a process; ends, once everything is sent, with its last handle.
pub(super) struct Engine {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub fn commands(&self) -> &Sender<Command> {
        &self.commands
    }

    /// Starts the thread and, in it, the carrier.
    ///
    /// # Errors
    /// The carrier's.
    pub fn start<C: Carrier, E: Send + 'static>(
        carrier: impl FnOnce() -> Result<C, E> + Send + 'static,
    ) -> Result<Self, E> {
        let (commands, queue) = channel();
        let (started, starts) = channel();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || match carrier() {
                Ok(carrier) => {
                    let _ = started.send(Ok(()));
                    Loop::new(carrier).run(&queue);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            })
            .expect("the system can start a thread");
        starts
            .recv()
            .expect("the thread answers before it does anything else")?;
        Ok(Self {
            commands,
            thread: Some(thread),
        })
    }

    /// Ends the engine once everything is sent, or after `patience`: what is still to be sent then is given up.
    #[cfg(feature = "mpi")]
    pub fn finish(&self, patience: Duration) {
        let _ = self.commands.send(Command::Quit);
        let start = std::time::Instant::now();
        let is_running = || {
            self.thread
                .as_ref()
                .is_some_and(|thread| !thread.is_finished())
        };
        while is_running() && start.elapsed() < patience {
            std::thread::sleep(NAP);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Quit);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

struct Mesh {
    hub: Weak<LocalHub>,
    left: FxHashSet<Rank>,
    num_processes: usize,
    windows: Windows,
}

struct Loop<C> {
    carrier: C,
    meshes: FxHashMap<u64, Mesh>,
    calls: FxHashMap<CallKey, Call>,
    /// Inputs that came before the call was made here.
    early: FxHashMap<(CallKey, u32), (Place, u32, Block)>,
    /// Ranks that make no more calls, and who is to be told.
    leaving: Vec<(u64, Rank, Arc<[u32]>)>,
    /// Meshes have numbers in the order in which they are made.
    next_mesh: u64,
    /// What came for meshes that are not there yet.
    unknown: FxHashMap<u64, Vec<(Message, u32, Block)>>,
}

impl<C: Carrier> Loop<C> {
    fn new(carrier: C) -> Self {
        Self {
            carrier,
            meshes: FxHashMap::default(),
            calls: FxHashMap::default(),
            early: FxHashMap::default(),
            leaving: Vec::new(),
            next_mesh: 0,
            unknown: FxHashMap::default(),
        }
    }

    fn run(mut self, commands: &Receiver<Command>) {
        let (mut looks, mut quits) = (0, false);
        // Every process of this machine has at least a rank and an engine.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let looks_max = match 2 * self.carrier.num_processes_here() <= cores {
            true => LOOKS_MAX,
            false => LOOKS_MAX_CROWDED,
        };
        loop {
            let mut found = false;
            while let Ok(command) = commands.try_recv() {
                found = true;
                quits |= matches!(command, Command::Quit);
                self.command(command);
            }
            loop {
                match self.carrier.receive() {
                    Ok(Some(parcel)) => {
                        found = true;
                        self.parcel(parcel);
                    }
                    Ok(None) => break,
                    Err(reason) => {
                        self.fail(&reason);
                        return;
                    }
                }
            }
            let is_sending = self.carrier.is_sending();
            if quits && !is_sending {
                return;
            }
            if found {
                self.tell_who_left();
                looks = 0;
                continue;
            }
            looks += 1;
            let nap = match self.calls.is_empty() && !is_sending {
                true => REST,
                false if looks < looks_max => {
                    std::thread::yield_now();
                    continue;
                }
                false => NAP,
            };
            match commands.recv_timeout(nap) {
                Ok(command) => {
                    looks = 0;
                    quits |= matches!(command, Command::Quit);
                    self.command(command);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => quits = true,
            }
        }
    }

    /// Stops every mesh: nothing arrives any more.
    fn fail(&mut self, reason: &str) {
        for mesh in self.meshes.values() {
            if let Some(hub) = mesh.hub.upgrade() {
                hub.stopped(CommError::Stopped {
                    process: None,
                    reason: reason.to_string(),
                });
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Call(opened) => self.open(*opened),
            Command::Join {
                mesh,
                hub,
                num_processes,
            } => {
                let left = FxHashSet::default();
                self.next_mesh = mesh + 1;
                self.meshes.retain(|_, mesh| mesh.hub.strong_count() > 0);
                self.meshes.insert(
                    mesh,
                    Mesh {
                        hub,
                        left,
                        num_processes,
                        windows: Windows::default(),
                    },
                );
                for (message, from, body) in self.unknown.remove(&mesh).unwrap_or_default() {
                    self.message(message, from, body);
                }
            }
            Command::Window {
                mesh,
                print,
                agreement,
                process,
                others,
            } => {
                let WindowPrint {
                    number,
                    hash,
                    values,
                    digest,
                } = print;
                let body = to_block(digest.as_deref());
                let head = Message::Window {
                    mesh,
                    number,
                    hash,
                    values,
                }
                .to_bytes();
                for &other in others.iter() {
                    self.carrier.send(Parcel {
                        process: other,
                        head: head.clone(),
                        body: body.clone(),
                    });
                }
                let run = Run {
                    process,
                    hash,
                    values,
                };
                self.window(mesh, number, run, &body, Some(agreement));
            }
            Command::Leave { mesh, rank, others } => {
                self.leaving.push((mesh, rank, others));
                self.tell_who_left();
            }
            Command::Stop {
                mesh,
                reason,
                others,
            } => {
                self.calls.retain(|key, _| key.0 != mesh);
                self.tell(&others, &Message::Stop { mesh, reason });
            }
            Command::Quit => {}
        }
    }

    /// Compares a window of a process with those of the others.
    fn window(
        &mut self,
        mesh: u64,
        number: u64,
        run: Run,
        digest: &Block,
        agreement: Option<Arc<Agreement>>,
    ) {
        let Some(mesh) = self.meshes.get_mut(&mesh) else {
            return;
        };
        let all = mesh.num_processes;
        if let Err(reason) = mesh.windows.run(number, run, digest, agreement, all)
            && let Some(hub) = mesh.hub.upgrade()
        {
            hub.abort(CommError::Stopped {
                process: None,
                reason,
            });
        }
    }

    fn tell(&mut self, processes: &[u32], message: &Message) {
        for &process in processes {
            self.carrier.send(Parcel {
                process,
                head: message.to_bytes(),
                body: Block::empty(),
            });
        }
    }

    /// Tells of ranks that have left, once the calls they made are over.
    fn tell_who_left(&mut self) {
        let calls = &self.calls;
        let is_over = |(mesh, rank, _): &(u64, Rank, Arc<[u32]>)| {
            !calls
                .values()
                .any(|call| call.mesh == *mesh && call.group().member(*rank).is_some())
        };
        let (over, leaving) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(is_over);
        self.leaving = leaving;
        for (mesh, rank, others) in over {
            self.tell(&others, &Message::Left { mesh, rank: rank.0 });
        }
    }

    fn open(&mut self, opened: Opened) {
        let Some(remote) = opened.hub.remote() else {
            return;
        };
        let group = &opened.channel.group;
        let members: Vec<bool> = group
            .ranks()
            .iter()
            .map(|rank| remote.is_local(*rank))
            .collect();
        let What::Collective(dtype, collective, folds) = &opened.info.what else {
            return;
        };
        let reduction = collective
            .reduce_op()
            .map(|op| (*dtype, op, Arc::clone(folds)));
        let (geometry, round) = match collective {
            Collective::AllReduce { bytes, .. } if *bytes > ONE_ROUND_BYTES_MAX => {
                let parts = chunks(*bytes, *dtype, group.len());
                (Geometry::reduce_scattered(&parts), Round::Scatter)
            }
            _ => (Geometry::new(collective, group), Round::Only),
        };
        let call = Call {
            mesh: remote.mesh,
            channel: hash((group.ranks(), opened.info.lane, opened.is_transfer)),
            dtype: *dtype,
            reduction,
            round,
            geometry,
            inputs: opened.inputs.clone(),
            absent: Vec::new(),
            fingerprint: fingerprint(&opened.info),
            members,
            opened,
        };
        self.start(call);
    }

    /// Sends what others need of the inputs of a call, and sees what is there of theirs.
    fn start(&mut self, mut call: Call) {
        let hub = Arc::clone(&call.opened.hub);
        let Some(remote) = hub.remote() else {
            return;
        };
        let (pool, empty) = hub.buffers();
        let processes: Vec<u32> = call
            .group()
            .ranks()
            .iter()
            .map(|rank| remote.process_of[rank.0 as usize])
            .collect();
        for &process in remote
            .others()
            .iter()
            .filter(|other| processes.contains(other))
        {
            let there: Vec<bool> = processes.iter().map(|p| *p == process).collect();
            let wanted = wanted(&call.geometry, &there);
            for member in 0..call.members.len() {
                if !call.members[member] {
                    continue;
                }
                let input = call.inputs[member].clone();
                let body = input.map_or_else(Block::empty, |input| {
                    let boxes = boxes(&call.geometry, &wanted, member, input.len());
                    pack(&boxes, &input, pool, empty)
                });
                let (mesh, channel, sequence, round) = call.key();
                let place = Place {
                    mesh,
                    channel,
                    sequence,
                    round,
                    member: member as u32,
                    fingerprint: call.fingerprint,
                    call: call.opened.info.to_string(),
                };
                self.carrier.send(Parcel {
                    process,
                    head: Message::Input(place).to_bytes(),
                    body,
                });
            }
        }
        if is_reduction(&call.geometry) {
            let wanted = wanted(&call.geometry, &call.members);
            for member in 0..call.members.len() {
                if let (true, Some(input)) = (call.members[member], &call.inputs[member]) {
                    let boxes = boxes(&call.geometry, &wanted, member, input.len());
                    call.inputs[member] = Some(pack(&boxes, input, pool, empty));
                }
            }
        }
        call.absent = call.members.iter().map(|here| !here).collect();
        let key = call.key();
        let early: Vec<_> = (0..call.members.len() as u32)
            .filter_map(|member| self.early.remove(&(key, member)))
            .collect();
        let left = self.meshes.get(&call.mesh).map(|mesh| &mesh.left);
        let is_early = |rank: &Rank| {
            early
                .iter()
                .any(|(place, ..)| call.group().ranks()[place.member as usize] == *rank)
        };
        let gone = call
            .absent()
            .find(|rank| left.is_some_and(|left| left.contains(rank)) && !is_early(rank));
        if let Some(rank) = gone {
            hub.abort(CommError::RankLeft {
                rank,
                call: Arc::clone(&call.opened.info),
            });
            return;
        }
        call.opened.meeting.await_ranks(call.absent().collect());
        let waits = call.absent.contains(&true);
        self.calls.insert(key, call);
        for (place, from, body) in early {
            self.input(place, from, body);
        }
        if !waits {
            self.complete(key);
        }
    }

    fn parcel(&mut self, parcel: Parcel) {
        match Message::parse(&parcel.head) {
            Some(message) => self.message(message, parcel.process, parcel.body),
            None => {
                let reason = format!(
                    "process {} sent a message of {} bytes that is none of burn-dist's: do all processes run the same version?",
                    parcel.process,
                    parcel.head.len()
                );
                self.fail(&reason);
            }
        }
    }

    fn message(&mut self, message: Message, from: u32, body: Block) {
        let number = match &message {
            Message::Input(place) => place.mesh,
            Message::Left { mesh, .. }
            | Message::Stop { mesh, .. }
            | Message::Window { mesh, .. } => *mesh,
        };
        let Some(mesh) = self.meshes.get_mut(&number) else {
            if number < self.next_mesh {
                return; // It has ended here.
            }
            let unknown = self.unknown.entry(number).or_default();
            unknown.push((message, from, body));
            return;
        };
        match message {
            Message::Input(place) => self.input(place, from, body),
            Message::Window {
                number: at,
                hash,
                values,
                ..
            } => {
                let process = from;
                let run = Run {
                    process,
                    hash,
                    values,
                };
                self.window(number, at, run, &body, None);
            }
            Message::Stop { reason, .. } => {
                if let Some(hub) = mesh.hub.upgrade() {
                    hub.stopped(CommError::Stopped {
                        process: Some(from),
                        reason,
                    });
                }
                self.calls.retain(|key, _| key.0 != number);
            }
            Message::Left { rank, .. } => {
                mesh.left.insert(Rank(rank));
                let waits = self.calls.values().find(|call| {
                    call.mesh == number && call.absent().any(|absent| absent == Rank(rank))
                });
                if let Some(call) = waits {
                    let (hub, info) = (&call.opened.hub, &call.opened.info);
                    hub.abort(CommError::RankLeft {
                        rank: Rank(rank),
                        call: Arc::clone(info),
                    });
                }
            }
        }
    }

    fn input(&mut self, place: Place, from: u32, body: Block) {
        let key = (place.mesh, place.channel, place.sequence, place.round);
        let Some(call) = self.calls.get_mut(&key) else {
            self.early.insert((key, place.member), (place, from, body));
            return;
        };
        let member = place.member as usize;
        if call.fingerprint != place.fingerprint || call.absent.get(member) != Some(&true) {
            let (hub, call) = (&call.opened.hub, Arc::clone(&call.opened.info));
            hub.abort(CommError::Diverged {
                call,
                other: place.call,
            });
            return;
        }
        call.absent[member] = false;
        call.inputs[member] = Some(body);
        call.opened.meeting.await_ranks(call.absent().collect());
        if !call.absent.contains(&true) {
            self.complete(key);
        }
    }

    fn complete(&mut self, key: CallKey) {
        let Some(mut call) = self.calls.remove(&key) else {
            return;
        };
        let hub = Arc::clone(&call.opened.hub);
        let (pool, empty) = hub.buffers();
        let reduction = match call.round {
            Round::Gather => None,
            Round::Only | Round::Scatter => call.reduction.clone(),
        };
        let geometry = localized(&call.geometry, &call.members);
        let is_small = geometry.bytes() <= SMALL_BYTES_MAX;
        let work = Work::new(
            geometry,
            reduction,
            std::mem::take(&mut call.inputs),
            pool,
            empty,
        );
        if call.round != Round::Scatter {
            hub.conclude(&call.opened.meeting, work, is_small);
            return;
        }
        while work.run_next().is_some() {}
        let k = call.members.len();
        let What::Collective(_, Collective::AllReduce { bytes, .. }, _) = &call.opened.info.what
        else {
            return;
        };
        let parts = chunks(*bytes, call.dtype, k);
        call.geometry = Geometry::new(&Collective::AllGather(parts), call.group());
        call.inputs = (0..k)
            .map(|member| {
                let output = call.members[member].then(|| work.output(member));
                output
                    .flatten()
                    .map(|output| Block::from(Arc::clone(output)))
            })
            .collect();
        call.round = Round::Gather;
        self.start(call);
    }
}
