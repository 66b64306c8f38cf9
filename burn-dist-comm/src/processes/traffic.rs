//! What goes on between the processes.

use super::call::{Call, CallKey, Round, chunks, fingerprint, hash};
use super::carrier::{Carrier, Destination, Parcel};
use super::engine::Commands;
use super::landing::Landing;
use super::message::{InputId, Message};
use super::peers::{Introductions, Peer};
use super::remote::{Command, Opened};
use super::share::{boxes, is_reduction, localized, pack, wanted};
use super::watch::Watch;
use super::windows::{Agreement, Run, WindowPrint, Windows, to_block};
use crate::buffer::Work;
use crate::collective::Collective;
use crate::geometry::{Geometry, Output};
use crate::info::What;
use crate::local::SMALL_BYTES_MAX;
use crate::sync::{AtomicBool, Ordering, lock};
use crate::{Block, CommError, LocalHub};
use burn_dist_mesh::Rank;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, Weak};

/// All-reduces of at most so many bytes take one round, in which everyone sends everything: waiting for a second one
/// would take longer. Two members send as much in one round as in two, but each adds up all of it.
fn one_round_bytes_max(num_members: usize) -> usize {
    match num_members {
        ..=2 => 2 << 20,
        _ => 16 << 10,
    }
}

struct Mesh {
    hub: Weak<LocalHub>,
    left: FxHashSet<Rank>,
    /// Ranks of this process of which the others know that they have left.
    told: FxHashSet<Rank>,
    num_processes: usize,
    /// Whether the others know of its fault from here.
    is_told: bool,
    windows: Windows,
}

/// What goes on between the processes: messages, and the calls that wait for them.
pub(super) struct Traffic {
    carrier: Box<dyn Carrier>,
    peers: Arc<Introductions>,
    /// Whether nobody needs it any more.
    quits: bool,
    watch: Watch,
    /// Whether the program ends, of which the others know.
    is_ending: bool,
    /// Processes that need nothing any more, and say nothing: their programs end.
    gone: FxHashSet<u32>,
    /// Processes that have ended without a word.
    lost: FxHashSet<u32>,
    /// Why no messages arrive any more.
    failed: Option<String>,
    /// Whether a mesh has stopped before its end.
    has_stopped: Arc<AtomicBool>,
    is_sending: bool,
    meshes: FxHashMap<u64, Mesh>,
    calls: FxHashMap<CallKey, Call>,
    /// Inputs that came before the call was made here.
    early: FxHashMap<(CallKey, u32), (InputId, u32, Block)>,
    /// Ranks that make no more calls, and who is to be told.
    leaving: Vec<(u64, Rank, Arc<[u32]>)>,
    /// Meshes have numbers in the order in which they are made.
    next_mesh: u64,
    /// What came for meshes that are not there yet.
    unknown: FxHashMap<u64, Vec<(Message, u32, Block)>>,
}

/// Returns where the input that a message brings is to go.
fn destination_of(calls: &mut FxHashMap<CallKey, Call>, head: &[u8], bytes: usize) -> Destination {
    let Some(id) = InputId::peek(head) else {
        return Destination::Buffer;
    };
    let key = (id.mesh, id.channel, id.sequence, id.round);
    let Some(call) = calls.get_mut(&key) else {
        return Destination::Later;
    };
    let member = id.member as usize;
    let is_expected = call.fingerprint == id.fingerprint && call.absent.get(member) == Some(&true);
    let landing = call.landing.as_mut().filter(|_| is_expected);
    match landing.and_then(|landing| landing.slot(member, bytes)) {
        Some(slot) => Destination::Slot(slot),
        None => Destination::Buffer,
    }
}

/// Stops the ranks of a mesh: nothing arrives any more.
fn stop(hub: &Weak<LocalHub>, reason: &str) {
    if let Some(hub) = hub.upgrade() {
        hub.stopped(CommError::Connection {
            reason: reason.to_string(),
        });
    }
}

impl Traffic {
    /// Introduces this process to the others.
    pub fn new(
        carrier: Box<dyn Carrier>,
        peers: Arc<Introductions>,
        has_stopped: Arc<AtomicBool>,
    ) -> Self {
        let mut traffic = Self {
            carrier,
            peers,
            quits: false,
            watch: Watch::new(),
            is_ending: false,
            gone: FxHashSet::default(),
            lost: FxHashSet::default(),
            failed: None,
            has_stopped,
            is_sending: false,
            meshes: FxHashMap::default(),
            calls: FxHashMap::default(),
            early: FxHashMap::default(),
            leaving: Vec::new(),
            next_mesh: 0,
            unknown: FxHashMap::default(),
        };
        traffic.hello();
        traffic
    }

    fn hello(&mut self) {
        let hello = Peer::this().hello();
        let others: Vec<u32> = self.others().collect();
        self.tell(&others, &hello);
        self.introduced(self.carrier.process(), hello);
    }

    fn introduced(&mut self, process: u32, message: Message) {
        if let Message::Hello { pid, version, host } = message {
            let peer = Peer { host, pid };
            self.watch.add(process, &peer);
            self.peers.hello(process, peer, &version);
        }
    }

    /// Does what there is to do; whether there was anything.
    pub fn turn(&mut self, commands: &Commands) -> bool {
        let mut found = false;
        let next = || lock(commands).pop_front();
        while let Some(command) = next() {
            found = true;
            self.command(command);
        }
        while self.failed.is_none() {
            let calls = &mut self.calls;
            let mut placing = |head: &[u8], bytes: usize| destination_of(calls, head, bytes);
            match self.carrier.receive(&mut placing) {
                Ok(Some(parcel)) => {
                    found = true;
                    self.parcel(parcel);
                }
                Ok(None) => break,
                Err(reason) => {
                    found = true;
                    self.fail(&reason);
                }
            }
        }
        if found {
            self.tell_who_left();
        } else if let Some(process) = self.watch.look() {
            found = true;
            self.lose(process);
        }
        self.is_sending = self.carrier.is_sending();
        found
    }

    /// Whether nobody needs it any more, and all is sent that can be. If the program ends, so have the others': what
    /// they send last would find nobody, and wait.
    pub fn is_over(&self) -> bool {
        let is_needed = self.is_sending || self.is_ending && self.others().next().is_some();
        self.quits && !(is_needed && self.failed.is_none())
    }

    /// The processes that are still there.
    fn others(&self) -> impl Iterator<Item = u32> {
        let this = self.carrier.process();
        let all = 0..self.carrier.num_processes() as u32;
        all.filter(move |process| {
            *process != this && !self.gone.contains(process) && !self.lost.contains(process)
        })
    }

    /// Starts sending, if anyone is there.
    fn send(&mut self, parcel: Parcel) {
        if !self.gone.contains(&parcel.process) {
            self.carrier.send(parcel);
        }
    }

    /// Whether processes are gone that did not take their leave.
    pub fn is_deserted(&self) -> bool {
        self.failed.is_some() || !self.lost.is_empty()
    }

    /// Whether bytes are on their way, and need to be seen to.
    pub fn is_moving(&self) -> bool {
        self.failed.is_none() && (self.is_sending || self.carrier.is_receiving())
    }

    /// Whether anything is on its way, or waited for.
    pub fn is_busy(&self) -> bool {
        self.is_moving() || !self.calls.is_empty()
    }

    /// Stops every mesh, also those to come: nothing arrives any more. Perhaps something can still be sent: then the
    /// others know why.
    fn fail(&mut self, reason: &str) {
        self.peers.fail(reason);
        self.failed = Some(reason.to_string());
        let mut untold = Vec::new();
        for (&number, mesh) in &mut self.meshes {
            stop(&mesh.hub, reason);
            let hub = mesh.hub.upgrade();
            if let Some(others) = hub.and_then(|hub| Some(hub.remote()?.others()))
                && !std::mem::replace(&mut mesh.is_told, true)
            {
                untold.push((number, others));
            }
        }
        let error = CommError::Connection {
            reason: reason.to_string(),
        };
        for (mesh, others) in untold {
            let stop = Message::Stop {
                mesh,
                process: self.carrier.process(),
                exit_code: error.exit_code(),
                reason: error.to_string(),
            };
            self.tell(&others, &stop);
        }
        self.calls.clear();
        self.early.clear();
    }

    /// Stops what waits for a process that has ended without a word.
    fn lose(&mut self, process: u32) {
        self.lost.insert(process);
        let meshes: Vec<u64> = self.meshes.keys().copied().collect();
        for mesh in meshes {
            self.forsake(mesh, process);
        }
    }

    /// Stops what waits, in a mesh, for a process that has ended without a word, or of which all ranks have left.
    fn forsake(&mut self, number: u64, process: u32) {
        let Some(mesh) = self.meshes.get_mut(&number) else {
            return;
        };
        let Some(hub) = mesh.hub.upgrade() else {
            return;
        };
        let Some(remote) = hub.remote() else {
            return;
        };
        let lives_there = |rank: &Rank| remote.process_of[rank.0 as usize] == process;
        let mut there = (0..remote.process_of.len() as u32)
            .map(Rank)
            .filter(lives_there);
        let has_left = there.all(|rank| mesh.left.contains(&rank));
        let is_lost = self.lost.contains(&process) && !has_left;
        if !has_left && !is_lost {
            return;
        }
        let name = || remote.name(process);
        mesh.windows.lost(process, |window| match is_lost {
            true => CommError::ProcessLost {
                process: name(),
                call: None,
                window: Some(window),
            },
            false => CommError::ProcessLeft {
                process: name(),
                window,
            },
        });
        let waits =
            |call: &&Call| call.mesh == number && call.absent().any(|rank| lives_there(&rank));
        if is_lost && let Some(call) = self.calls.values().find(waits) {
            hub.abort(CommError::ProcessLost {
                process: name(),
                call: Some(Arc::clone(&call.opened.info)),
                window: None,
            });
        }
    }

    /// Gives up the calls of a mesh that has a fault, and what has come for later ones; wakes who waits for them.
    fn drop_calls(&mut self, mesh: u64) {
        self.calls.retain(|key, _| key.0 != mesh);
        self.early.retain(|(key, _), _| key.0 != mesh);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Call(opened) => self.open(*opened),
            Command::Join {
                mesh,
                hub,
                num_processes,
                kind_name,
            } => {
                if let Some(reason) = &self.failed {
                    stop(&hub, reason);
                }
                self.next_mesh = mesh + 1;
                self.meshes.retain(|_, mesh| mesh.hub.strong_count() > 0);
                self.early
                    .retain(|(key, _), _| self.meshes.contains_key(&key.0));
                self.meshes.insert(
                    mesh,
                    Mesh {
                        hub,
                        left: FxHashSet::default(),
                        told: FxHashSet::default(),
                        num_processes,
                        is_told: false,
                        windows: Windows::new(kind_name),
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
                    parts,
                    digest,
                } = print;
                let body = to_block(digest.as_deref(), &parts);
                let head = Message::Window {
                    mesh,
                    number,
                    hash,
                    values,
                }
                .to_bytes();
                for &other in others.iter() {
                    self.send(Parcel {
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
                exit_code,
                others,
            } => {
                self.has_stopped.store(true, Ordering::Relaxed);
                if let Some(mesh) = self.meshes.get_mut(&mesh) {
                    mesh.is_told = true;
                }
                let stop = Message::Stop {
                    mesh,
                    process: self.carrier.process(),
                    exit_code,
                    reason,
                };
                self.tell(&others, &stop);
            }
            Command::Wake { mesh } => self.drop_calls(mesh),
            Command::End => self.end(),
            Command::Quit => self.quits = true,
        }
    }

    /// Compares a window of a process with those of the others.
    fn window(
        &mut self,
        mesh_number: u64,
        number: u64,
        run: Run,
        digest: &Block,
        agreement: Option<Arc<Agreement>>,
    ) {
        let Some(mesh) = self.meshes.get_mut(&mesh_number) else {
            return;
        };
        let all = mesh.num_processes;
        if let Err(reason) = mesh.windows.run(number, run, digest, agreement, all)
            && let Some(hub) = mesh.hub.upgrade()
        {
            let window = number;
            hub.abort(CommError::ProgramsDiffer { window, reason });
        }
        if !mesh.left.is_empty() || !self.lost.is_empty() {
            let this = self.carrier.process();
            for other in (0..self.carrier.num_processes() as u32).filter(|other| *other != this) {
                self.forsake(mesh_number, other);
            }
        }
    }

    /// Tells the others of all ranks that have not left: the program ends, whatever holds its meshes.
    fn end(&mut self) {
        let mut leaving = Vec::new();
        for (&number, mesh) in &self.meshes {
            let Some(hub) = mesh.hub.upgrade() else {
                continue;
            };
            let Some(remote) = hub.remote() else {
                continue;
            };
            let here = (0..remote.process_of.len() as u32)
                .map(Rank)
                .filter(|rank| remote.is_local(*rank));
            let staying = here.filter(|rank| !mesh.told.contains(rank));
            leaving.extend(staying.map(|rank| (number, rank, remote.others())));
        }
        for (mesh, rank, others) in leaving {
            self.tell(&others, &Message::Left { mesh, rank: rank.0 });
        }
        self.is_ending = true;
        // Those that are gone wait for this.
        let waiting = std::mem::take(&mut self.gone);
        let others: Vec<u32> = self.others().collect();
        self.tell(&others, &Message::Bye);
        self.gone = waiting;
    }

    fn tell(&mut self, processes: &[u32], message: &Message) {
        for &process in processes {
            self.send(Parcel {
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
            if let Some(mesh) = self.meshes.get_mut(&mesh) {
                mesh.told.insert(rank);
            }
            self.tell(&others, &Message::Left { mesh, rank: rank.0 });
        }
    }

    fn open(&mut self, opened: Opened) {
        let Some(remote) = opened.hub.remote() else {
            return;
        };
        if opened.hub.fault().is_some() {
            return;
        }
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
            Collective::AllReduce { bytes, .. } if *bytes > one_round_bytes_max(group.len()) => {
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
            landing: None,
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
        let text = call.opened.info.to_string();
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
                let id = InputId {
                    mesh,
                    channel,
                    sequence,
                    round,
                    member: member as u32,
                    fingerprint: call.fingerprint,
                    call: text.clone(),
                };
                self.send(Parcel {
                    process,
                    head: Message::Input(id).to_bytes(),
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
        call.landing = Landing::new(&call.geometry, &call.members, pool);
        if let Some(landing) = &mut call.landing {
            for (member, input) in call.inputs.iter_mut().enumerate() {
                if let Some(input) = input.take() {
                    landing.put(member, &input);
                }
            }
        }
        let key = call.key();
        let early: Vec<_> = (0..call.members.len() as u32)
            .filter_map(|member| self.early.remove(&(key, member)))
            .collect();
        let left = self.meshes.get(&call.mesh).map(|mesh| &mesh.left);
        let is_early = |rank: &Rank| {
            early
                .iter()
                .any(|(id, ..)| call.group().ranks()[id.member as usize] == *rank)
        };
        let gone = call
            .absent()
            .find(|rank| left.is_some_and(|left| left.contains(rank)) && !is_early(rank));
        if let Some(rank) = gone {
            hub.abort(CommError::RankLeft {
                rank,
                call: Arc::clone(&call.opened.info),
                process: remote.elsewhere(rank),
            });
            return;
        }
        call.opened.completion.await_ranks(call.absent().collect());
        let waits = call.absent.contains(&true);
        self.calls.insert(key, call);
        for (id, from, body) in early {
            self.input(id, from, body);
        }
        if !waits {
            self.complete(key);
        } else if !self.lost.is_empty() {
            for process in self.lost.clone() {
                self.forsake(key.0, process);
            }
        }
    }

    fn parcel(&mut self, parcel: Parcel) {
        match Message::parse(&parcel.head) {
            Some(message) => self.message(message, parcel.process, parcel.body),
            None => {
                let reason = format!(
                    "process {} sent a message of {} bytes that is none of burn-dist's: do all processes run the same \
                     version?",
                    parcel.process,
                    parcel.head.len()
                );
                self.fail(&reason);
            }
        }
    }

    fn message(&mut self, message: Message, from: u32, body: Block) {
        let number = match &message {
            Message::Input(id) => id.mesh,
            Message::Left { mesh, .. }
            | Message::Stop { mesh, .. }
            | Message::Window { mesh, .. } => *mesh,
            Message::Hello { .. } => return self.introduced(from, message),
            Message::Bye => {
                self.gone.insert(from);
                return;
            }
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
            Message::Input(id) => {
                let hub = mesh.hub.upgrade();
                if hub.is_some_and(|hub| hub.fault().is_none()) {
                    self.input(id, from, body);
                }
            }
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
            Message::Stop {
                process,
                ref reason,
                exit_code,
                ..
            } => {
                self.has_stopped.store(true, Ordering::Relaxed);
                let is_news = !std::mem::replace(&mut mesh.is_told, true);
                let mut others: Arc<[u32]> = Arc::new([]);
                if let Some(hub) = mesh.hub.upgrade()
                    && let Some(remote) = hub.remote()
                {
                    others = remote.others();
                    hub.stopped(CommError::Stopped {
                        process: remote.name(process),
                        reason: reason.clone(),
                        exit_code,
                    });
                }
                self.drop_calls(number);
                if is_news {
                    // This process leaves now: whoever hears of that has to know why, whatever has become of the
                    // message that it has from the first.
                    self.tell(&others, &message);
                }
            }
            Message::Hello { .. } | Message::Bye => {}
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
                        process: hub.remote().map(|remote| remote.name(from)),
                    });
                }
                self.forsake(number, from);
            }
        }
    }

    fn input(&mut self, id: InputId, from: u32, body: Block) {
        let key = (id.mesh, id.channel, id.sequence, id.round);
        let Some(call) = self.calls.get_mut(&key) else {
            self.early.insert((key, id.member), (id, from, body));
            return;
        };
        let member = id.member as usize;
        if call.fingerprint != id.fingerprint || call.absent.get(member) != Some(&true) {
            let (hub, call) = (&call.opened.hub, Arc::clone(&call.opened.info));
            let both = hub.remote().map(|remote| {
                let mut both = [remote.name(from), remote.name(remote.process)];
                both.sort_by_key(|process| process.number);
                both.to_vec()
            });
            hub.abort(CommError::Diverged {
                call,
                other: id.call,
                processes: both.unwrap_or_default(),
            });
            return;
        }
        call.absent[member] = false;
        match &mut call.landing {
            Some(landing) => landing.put(member, &body),
            None => call.inputs[member] = Some(body),
        }
        call.opened.completion.await_ranks(call.absent().collect());
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
        let mut geometry = localized(&call.geometry, &call.members);
        if let Some(landing) = call.landing.take() {
            let Some(whole) = landing.finish() else {
                let reason = format!("{}: a part came with another size", call.opened.info);
                hub.abort(CommError::Connection { reason });
                return;
            };
            geometry.outputs = vec![Output::Alias { member: 0 }];
            geometry.moves.clear();
            call.inputs[0] = Some(whole);
        }
        let is_small = geometry.bytes() <= SMALL_BYTES_MAX;
        let work = Work::new(
            geometry,
            reduction,
            std::mem::take(&mut call.inputs),
            pool,
            empty,
        );
        if call.round != Round::Scatter {
            hub.conclude(&call.opened.completion, work, is_small);
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
