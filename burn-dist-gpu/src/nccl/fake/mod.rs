//! NCCL, simulated on the GPUs of a [`Machine`]: what members send goes through mailboxes.
//!
//! It is as strict as the real one: a communicator is there when all members have joined, calls are put on their
//! streams by the end of a group and wait there for their peers, an abort blocks until its communicator's kernels are
//! over, and with them those before them on their stream, and sums come in the *reverse* order of the members, so that
//! a test notices who adds up. Every call is logged.

mod sums;

use super::api::{Code, Handle, Nccl, UniqueId};
use super::groups::Channels;
use super::neighbours::Neighbours;
use super::op::{Element, Op};
use crate::device::{Address, Stream};
use crate::streams::machine::{Machine, SimulatedGpu, Step, assert_attached, read, write};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use sums::reduced;

/// A limit of waits in an abort, which would hang: much longer than what uses this waits for one.
const HANGS: Duration = Duration::from_secs(30);
/// How long channels wait for simulated communicators to end: some tests leave them behind.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// The state that members of a communicator share.
#[derive(Default)]
struct Room {
    members: usize,
    joined: usize,
    /// Messages by sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
}

struct Member {
    id: UniqueId,
    member: usize,
    members: usize,
    aborted: Arc<AtomicBool>,
}

/// Faults to simulate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// This function returns this code, on this member.
    pub refuses: Option<(&'static str, i32, usize)>,
    /// The state of every communicator of this member, once it is there.
    pub state: Option<(i32, usize)>,
    /// The same, from the start: its initialisation gives a communicator and an error.
    pub failed_at_start: Option<(i32, usize)>,
    /// This function never returns, on this member.
    pub hangs: Option<(&'static str, usize)>,
}

/// All GPUs, and the network between them.
pub struct Fake {
    machine: Arc<Machine>,
    rooms: Mutex<HashMap<[u8; 8], Room>>,
    comms: Mutex<HashMap<usize, Arc<Member>>>,
    /// The calls of each process.
    neighbours: [Neighbours; PROCESSES],
    /// Kernels that each communicator has on its stream.
    kernels: Mutex<HashMap<usize, usize>>,
    kernel_over: Condvar,
    /// The faults.
    pub faults: Mutex<Faults>,
    /// Calls, as `member: function`, by all ranks.
    pub log: Mutex<Vec<String>>,
}

thread_local! {
    /// Calls of the group that this thread has started; groups are a thread's own in NCCL too.
    static GROUP: RefCell<Option<Vec<Issued>>> = const { RefCell::new(None) };
}

struct Issued {
    comm: usize,
    op: Op,
    element: Element,
    stream: usize,
}

fn room(id: &UniqueId) -> [u8; 8] {
    id.0[..8].try_into().expect("eight bytes")
}

impl Fake {
    /// Returns NCCL on GPUs of which each rank has one.
    pub fn new() -> Arc<Self> {
        Self::on(Machine::new(0))
    }

    /// Returns NCCL on a machine.
    pub fn on(machine: Arc<Machine>) -> Arc<Self> {
        Arc::new(Self {
            machine,
            rooms: Mutex::default(),
            comms: Mutex::default(),
            neighbours: Default::default(),
            kernels: Mutex::default(),
            kernel_over: Condvar::new(),
            faults: Mutex::default(),
            log: Mutex::default(),
        })
    }

    /// The GPUs.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Returns the channels of a rank at a GPU, in one of a few processes.
    pub fn channels(
        self: &Arc<Self>,
        gpu: Arc<SimulatedGpu>,
        process: usize,
        timeout: Duration,
    ) -> Channels {
        let nccl = Arc::new(FakeNccl(Arc::clone(self), process));
        Channels::new(nccl, gpu, timeout).closing_within(CLOSING_MAX)
    }

    fn number(&self) -> usize {
        self.machine.number()
    }

    fn note(&self, member: usize, what: impl std::fmt::Display) {
        self.log.lock().unwrap().push(format!("{member}: {what}"));
    }

    /// Returns what a member logged, without its number.
    pub fn calls_of(&self, member: usize) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let prefix = format!("{member}: ");
        log.iter()
            .filter_map(|call| call.strip_prefix(&prefix).map(String::from))
            .collect()
    }

    /// Communicators that nobody has freed.
    pub fn open_comms(&self) -> usize {
        self.comms.lock().unwrap().len()
    }

    /// Events that nobody has freed.
    pub fn open_events(&self) -> usize {
        self.machine.open_events()
    }

    /// Waits until `done`, which sees the kernels of each communicator, says yes; returns whether it has within
    /// `limit`.
    fn await_kernels(
        &self,
        limit: Duration,
        done: impl Fn(&HashMap<usize, usize>) -> bool,
    ) -> bool {
        let start = Instant::now();
        let mut kernels = self.kernels.lock().unwrap();
        while !done(&kernels) {
            if start.elapsed() > limit {
                return false;
            }
            let wait = self
                .kernel_over
                .wait_timeout(kernels, Duration::from_millis(5));
            kernels = wait.unwrap().0;
        }
        true
    }

    /// Does not return where this is how `function` fails.
    fn hang(&self, function: &str, member: usize) {
        let hangs = self.faults.lock().unwrap().hangs;
        if hangs == Some((function, member)) {
            loop {
                std::thread::park();
            }
        }
    }

    fn member(&self, comm: Handle) -> Arc<Member> {
        let comms = self.comms.lock().unwrap();
        Arc::clone(comms.get(&comm.0).expect("a communicator that was freed"))
    }

    fn refusal(&self, function: &str, member: usize) -> Option<Code> {
        let faults = *self.faults.lock().unwrap();
        faults
            .refuses
            .filter(|(name, _, who)| *name == function && *who == member)
            .map(|(_, code, _)| Code(code))
    }

    fn post(&self, of: &Member, to: usize, message: Vec<u8>) {
        let mut rooms = self.rooms.lock().unwrap();
        let room = rooms.get_mut(&room(&of.id)).expect("a room");
        room.mail
            .entry((of.member, to))
            .or_default()
            .push_back(message);
    }

    /// Takes a message of each of these members; `None` if one of them is not there yet.
    fn fetch(&self, of: &Member, from: &[usize]) -> Option<Vec<Vec<u8>>> {
        let mut rooms = self.rooms.lock().unwrap();
        let room = rooms.get_mut(&room(&of.id)).expect("a room");
        let has_come = |from: &usize| {
            let mail = room.mail.get(&(*from, of.member));
            mail.is_some_and(|mail| !mail.is_empty())
        };
        if !from.iter().all(has_come) {
            return None;
        }
        let take = |from: &usize| room.mail.get_mut(&(*from, of.member))?.pop_front();
        from.iter().map(take).collect()
    }

    /// Posts what the operations of a group send.
    fn send(&self, of: &Member, issued: &[Issued]) {
        let all = || 0..of.members;
        for Issued { op, element, .. } in issued {
            let bytes = |count: usize| count * element.bytes();
            match *op {
                Op::AllGather { send, count, .. } | Op::AllReduce { send, count, .. } => {
                    for to in all() {
                        self.post(of, to, read(send, bytes(count)));
                    }
                }
                Op::ReduceScatter { send, count, .. } => {
                    for to in all() {
                        self.post(of, to, read(send.plus(to * bytes(count)), bytes(count)));
                    }
                }
                Op::Broadcast {
                    send, count, root, ..
                } => {
                    if root == of.member {
                        for to in all() {
                            self.post(of, to, read(send, bytes(count)));
                        }
                    }
                }
                Op::Reduce {
                    send, count, root, ..
                } => self.post(of, root, read(send, bytes(count))),
                Op::Send { send, count, to } => self.post(of, to, read(send, bytes(count))),
                Op::Recv { .. } => {}
            }
        }
    }

    /// Whom an operation gets messages of.
    fn senders(of: &Member, op: &Op) -> Vec<usize> {
        match *op {
            Op::AllGather { .. } | Op::AllReduce { .. } | Op::ReduceScatter { .. } => {
                (0..of.members).collect()
            }
            Op::Reduce { root, .. } if root == of.member => (0..of.members).collect(),
            Op::Broadcast { root, .. } => vec![root],
            Op::Recv { from, .. } => vec![from],
            Op::Reduce { .. } | Op::Send { .. } => Vec::new(),
        }
    }

    /// Does what an operation does with what it gets; returns whether all of that was there.
    fn receive(&self, of: &Member, Issued { op, element, .. }: &Issued) -> bool {
        let Some(terms) = self.fetch(of, &Self::senders(of, op)) else {
            return false;
        };
        let bytes = |count: usize| count * element.bytes();
        let checked = |count: usize| {
            let are_whole = terms.iter().all(|term| term.len() == bytes(count));
            assert!(are_whole, "both sides of {}", op.function());
        };
        match *op {
            Op::AllGather { recv, count, .. } => {
                checked(count);
                for (from, part) in terms.iter().enumerate() {
                    write(recv.plus(from * bytes(count)), part);
                }
            }
            Op::AllReduce {
                recv, count, fold, ..
            }
            | Op::ReduceScatter {
                recv, count, fold, ..
            }
            | Op::Reduce {
                recv, count, fold, ..
            } => {
                checked(count);
                if !terms.is_empty() {
                    write(recv, &reduced(*element, fold, terms));
                }
            }
            Op::Broadcast { recv, count, .. } | Op::Recv { recv, count, .. } => {
                checked(count);
                write(recv, &terms[0]);
            }
            Op::Send { .. } => {}
        }
        true
    }

    /// Memory that an operation uses on a member.
    fn uses(of: &Member, Issued { op, element, .. }: &Issued) -> Vec<Range<u64>> {
        let at = |address: Address, count: usize| {
            address.0..address.0 + (count * element.bytes()) as u64
        };
        match *op {
            Op::AllGather { send, recv, count } => {
                vec![at(send, count), at(recv, of.members * count)]
            }
            Op::ReduceScatter {
                send, recv, count, ..
            } => vec![at(send, of.members * count), at(recv, count)],
            Op::AllReduce {
                send, recv, count, ..
            } => vec![at(send, count), at(recv, count)],
            Op::Broadcast {
                send, recv, count, ..
            } => vec![at(send, count), at(recv, count)],
            Op::Reduce {
                send,
                recv,
                count,
                root,
                ..
            } => {
                let into = (root == of.member).then(|| at(recv, count));
                [at(send, count)].into_iter().chain(into).collect()
            }
            Op::Send { send, count, .. } => vec![at(send, count)],
            Op::Recv { recv, count, .. } => vec![at(recv, count)],
        }
    }
}

/// One rank's side of the simulation, from one of a few processes.
pub struct FakeNccl(pub Arc<Fake>, pub usize);

/// Processes that can be simulated.
const PROCESSES: usize = 8;

impl Nccl for FakeNccl {
    fn neighbours(&self) -> &Neighbours {
        &self.0.neighbours[self.1]
    }

    fn unique_id(&self) -> Result<UniqueId, Code> {
        if let Some(code) = self.0.refusal("ncclGetUniqueId", 0) {
            return Err(code);
        }
        let mut id = UniqueId([0xab; UniqueId::BYTES]);
        id.0[..8].copy_from_slice(&(self.0.number() as u64).to_ne_bytes());
        Ok(id)
    }

    fn init(&self, members: usize, id: &UniqueId, member: usize) -> Result<Handle, Code> {
        self.0.note(member, format_args!("init of {members}"));
        if let Some(code) = self.0.refusal("ncclCommInitRankConfig", member) {
            return Err(code);
        }
        assert_eq!(id.0[8..], [0xab; 120], "the whole id arrives");
        let mut rooms = self.0.rooms.lock().unwrap();
        let room = rooms.entry(room(id)).or_default();
        room.members = members;
        room.joined += 1;
        drop(rooms);
        let handle = self.0.number();
        let of = Member {
            id: *id,
            member,
            members,
            aborted: Arc::default(),
        };
        self.0.comms.lock().unwrap().insert(handle, Arc::new(of));
        Ok(Handle(handle))
    }

    fn state(&self, comm: Handle) -> Code {
        let of = self.0.member(comm);
        let faults = *self.0.faults.lock().unwrap();
        if let Some((code, member)) = faults.failed_at_start
            && member == of.member
        {
            return Code(code);
        }
        let rooms = self.0.rooms.lock().unwrap();
        let room = &rooms[&room(&of.id)];
        if room.joined < room.members {
            return Code::IN_PROGRESS;
        }
        let fault = faults.state.filter(|(_, member)| *member == of.member);
        fault.map_or(Code::SUCCESS, |(code, _)| Code(code))
    }

    fn group_start(&self) -> Code {
        GROUP.with_borrow_mut(|group| {
            assert!(group.is_none(), "groups are not nested");
            *group = Some(Vec::new());
        });
        Code::SUCCESS
    }

    fn group_end(&self) -> Code {
        let issued = GROUP.with_borrow_mut(Option::take);
        let issued = issued.expect("a group was started");
        let Some(first) = issued.first() else {
            return Code::SUCCESS;
        };
        let of = self.0.member(Handle(first.comm));
        if let Some(code) = self.0.refusal("ncclGroupEnd", of.member) {
            return code;
        }
        assert!(
            issued
                .iter()
                .all(|call| (call.comm, call.stream) == (first.comm, first.stream))
        );
        let (comm, stream) = (first.comm, first.stream);
        *self.0.kernels.lock().unwrap().entry(comm).or_default() += 1;
        let uses = issued.iter().flat_map(|call| Fake::uses(&of, call));
        let uses = uses.collect();
        let fake = Arc::downgrade(&self.0);
        let mut at = None;
        let poll = Box::new(move || {
            let Some(fake) = fake.upgrade() else {
                return true;
            };
            if at.is_none() {
                fake.send(&of, &issued);
            }
            let at = at.get_or_insert(0);
            while *at < issued.len() && fake.receive(&of, &issued[*at]) {
                *at += 1;
            }
            let is_over = *at == issued.len() || of.aborted.load(Ordering::SeqCst);
            if is_over {
                let mut kernels = fake.kernels.lock().unwrap();
                *kernels.get_mut(&comm).expect("counted above") -= 1;
                fake.kernel_over.notify_all();
            }
            is_over
        });
        let step = Step {
            poll,
            uses,
            is_kernel: true,
        };
        self.0.machine.put(Stream(stream), step);
        Code::IN_PROGRESS
    }

    unsafe fn issue(&self, comm: Handle, op: &Op, element: Element, stream: Stream) -> Code {
        let of = self.0.member(comm);
        let count = match op {
            Op::AllGather { count, .. }
            | Op::Broadcast { count, .. }
            | Op::AllReduce { count, .. }
            | Op::ReduceScatter { count, .. }
            | Op::Reduce { count, .. }
            | Op::Send { count, .. }
            | Op::Recv { count, .. } => *count,
        };
        let place = match op {
            Op::Broadcast { root, .. } | Op::Reduce { root, .. } => format!(" at {root}"),
            Op::Send { to, .. } => format!(" to {to}"),
            Op::Recv { from, .. } => format!(" from {from}"),
            _ => String::new(),
        };
        self.0.note(
            of.member,
            format_args!("{} {element:?} x {count}{place}", op.function()),
        );
        if let Some(code) = self.0.refusal(op.function(), of.member) {
            return code;
        }
        GROUP.with_borrow_mut(|group| {
            let group = group.as_mut().expect("calls are made in groups");
            group.push(Issued {
                comm: comm.0,
                op: *op,
                element,
                stream: stream.0,
            });
        });
        Code::SUCCESS
    }

    fn finalize(&self, comm: Handle) -> Code {
        self.0.note(self.0.member(comm).member, "finalize");
        Code::IN_PROGRESS
    }

    fn destroy(&self, comm: Handle) -> Code {
        assert_attached("ncclCommDestroy");
        let member = self.0.member(comm).member;
        self.0.note(member, "destroy");
        self.0.hang("ncclCommDestroy", member);
        self.0.comms.lock().unwrap().remove(&comm.0);
        Code::SUCCESS
    }

    fn abort(&self, comm: Handle) -> Code {
        assert_attached("ncclCommAbort");
        let of = self.0.member(comm);
        self.0.note(of.member, "abort");
        of.aborted.store(true, Ordering::SeqCst);
        self.0.hang("ncclCommAbort", of.member);
        let is_over = self.0.await_kernels(HANGS, |kernels| {
            kernels.get(&comm.0).is_none_or(|kernels| *kernels == 0)
        });
        assert!(is_over, "an abort waits for a kernel that nobody stops");
        self.0.comms.lock().unwrap().remove(&comm.0);
        Code::SUCCESS
    }

    fn error_text(&self, code: Code) -> String {
        match code.0 {
            6 => "remote process exited or there was a network error".into(),
            _ => "unhandled system error".into(),
        }
    }

    fn last_error(&self, _: Handle) -> String {
        "a cable is loose".into()
    }
}
