//! NCCL and a GPU, simulated: device memory is host memory, a stream is a thread, and what members send goes through
//! mailboxes.
//!
//! It is as strict as the real ones: a communicator is there when all members have joined, calls are put on their
//! streams by the end of a group, streams run in order and wait for their peers, an abort blocks until its
//! communicator's kernels are over, and with them those before them on their stream, threads attach to the device
//! before they use it, and sums come in the *reverse* order of the members, so that a test notices who adds up. Every
//! call is logged. All ranks live in one process.

use super::api::{
    Address, Code, DeviceError, Element, Event, Fold, Gpu, Handle, Nccl, Op, Stream, UniqueId,
};
use super::neighbours::Neighbours;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What waits this long in an abort would hang: much longer than what uses this waits for one.
const HANGS: Duration = Duration::from_secs(30);

/// What waits this long in an allocation would hang.
const ALLOCATES_MAX: Duration = Duration::from_secs(5);

/// What members of a communicator share.
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

type Job = Box<dyn FnOnce() + Send>;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// This function returns this code, on this member.
    pub refuses: Option<(&'static str, i32, usize)>,
    /// The state of every communicator of this member, once it is there.
    pub state: Option<(i32, usize)>,
    /// The same, from the start: its initialisation gives a communicator and an error.
    pub stillborn: Option<(i32, usize)>,
    /// This function never returns, on this member.
    pub hangs: Option<(&'static str, usize)>,
}

/// All GPUs, and the network between them.
#[derive(Default)]
pub struct Fake {
    rooms: Mutex<HashMap<[u8; 8], Room>>,
    posted: Condvar,
    comms: Mutex<HashMap<usize, Arc<Member>>>,
    streams: Mutex<HashMap<usize, Sender<Job>>>,
    events: Mutex<HashMap<usize, Arc<AtomicBool>>>,
    allocations: Mutex<HashMap<u64, Vec<u128>>>,
    next: AtomicUsize,
    neighbours: Neighbours,
    /// Kernels that each communicator has on its stream.
    kernels: Mutex<HashMap<usize, usize>>,
    kernel_over: Condvar,
    /// As between GPUs that have mapped each other's memory: an allocation waits for all kernels, and launches wait for
    /// it.
    pub linked: AtomicBool,
    driver: Mutex<()>,
    /// What goes wrong.
    pub faults: Mutex<Faults>,
    /// Calls, as `member: function`, by all ranks.
    pub log: Mutex<Vec<String>>,
}

thread_local! {
    /// Calls of the group that this thread has started; groups are a thread's own in NCCL too.
    static GROUP: RefCell<Option<Vec<Issued>>> = const { RefCell::new(None) };

    /// Whether this thread has a device.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

fn assert_attached(function: &str) {
    assert!(ATTACHED.get(), "{function} on a thread without a device");
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
    /// Returns GPUs of which each rank is one.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::SeqCst) + 1
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
        self.events.lock().unwrap().len()
    }

    /// Waits until `done`, told of the kernels of each communicator, says yes; returns whether it has within `limit`.
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
        self.posted.notify_all();
    }

    /// Waits for a message; `None` if the communicator is aborted meanwhile.
    fn fetch(&self, of: &Member, from: usize) -> Option<Vec<u8>> {
        let mut rooms = self.rooms.lock().unwrap();
        loop {
            let room = rooms.get_mut(&room(&of.id)).expect("a room");
            let mail = room.mail.entry((from, of.member)).or_default();
            if let Some(message) = mail.pop_front() {
                return Some(message);
            }
            if of.aborted.load(Ordering::SeqCst) {
                return None;
            }
            let wait = self.posted.wait_timeout(rooms, Duration::from_millis(5));
            rooms = wait.unwrap().0;
        }
    }

    /// Runs the calls of one group, on the thread of a stream: first all of them send, then all of them receive.
    fn perform(&self, of: &Member, issued: &[Issued]) -> Option<()> {
        let all = || 0..of.members;
        for Issued { op, element, .. } in issued {
            let bytes = |count: usize| count * element.bytes();
            match *op {
                Op::AllGather { send, count, .. } => {
                    for to in all() {
                        self.post(of, to, read(send, bytes(count)));
                    }
                }
                Op::AllReduce { send, count, .. } => {
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
        for Issued { op, element, .. } in issued {
            let bytes = |count: usize| count * element.bytes();
            let terms = |count: usize| -> Option<Vec<Vec<u8>>> {
                let terms = all().map(|from| self.fetch(of, from));
                let terms: Option<Vec<_>> = terms.collect();
                let terms = terms?;
                assert!(terms.iter().all(|term| term.len() == bytes(count)));
                Some(terms)
            };
            match *op {
                Op::AllGather { recv, count, .. } => {
                    for (from, part) in terms(count)?.into_iter().enumerate() {
                        write(recv.plus(from * bytes(count)), &part);
                    }
                }
                Op::AllReduce {
                    recv, count, fold, ..
                }
                | Op::ReduceScatter {
                    recv, count, fold, ..
                } => write(recv, &reduced(*element, fold, terms(count)?)),
                Op::Reduce {
                    recv,
                    count,
                    fold,
                    root,
                    ..
                } => {
                    if root == of.member {
                        write(recv, &reduced(*element, fold, terms(count)?));
                    }
                }
                Op::Broadcast {
                    recv, count, root, ..
                } => {
                    let part = self.fetch(of, root)?;
                    assert_eq!(part.len(), bytes(count), "both sides of a broadcast");
                    write(recv, &part);
                }
                Op::Recv { recv, count, from } => {
                    let part = self.fetch(of, from)?;
                    assert_eq!(part.len(), bytes(count), "both sides of a transfer");
                    write(recv, &part);
                }
                Op::Send { .. } => {}
            }
        }
        Some(())
    }
}

fn read(from: Address, bytes: usize) -> Vec<u8> {
    if bytes == 0 {
        return Vec::new();
    }
    // SAFETY: the promise of `Nccl::issue`; addresses of tests are of host memory.
    unsafe { std::slice::from_raw_parts(from.0 as usize as *const u8, bytes) }.to_vec()
}

fn write(to: Address, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    // SAFETY: as in `read`, and nobody else uses what is written.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as usize as *mut u8, bytes.len());
    }
}

/// Adds up in the reverse order of the members, and halves in halves: what NCCL may do.
fn reduced(element: Element, fold: Fold, terms: Vec<Vec<u8>>) -> Vec<u8> {
    macro_rules! fold {
        ($type:ty, $add:expr, $mul:expr, $over:expr) => {{
            let members = terms.len();
            let mut columns = terms.iter().rev().map(|term| {
                let (chunks, rest) = term.as_chunks::<{ size_of::<$type>() }>();
                assert!(rest.is_empty());
                chunks
                    .iter()
                    .map(|chunk| <$type>::from_ne_bytes(*chunk))
                    .collect::<Vec<_>>()
            });
            let mut sum = columns.next().expect("a member");
            for column in columns {
                for (a, b) in sum.iter_mut().zip(column) {
                    *a = match fold {
                        Fold::Sum | Fold::Avg => $add(*a, b),
                        Fold::Prod => $mul(*a, b),
                        Fold::Max => (*a).max(b),
                        Fold::Min => (*a).min(b),
                    };
                }
            }
            if fold == Fold::Avg {
                for a in &mut sum {
                    *a = $over(*a, members);
                }
            }
            sum.iter().flat_map(|a| a.to_ne_bytes()).collect()
        }};
    }
    macro_rules! int {
        ($type:ty) => {
            fold!(
                $type,
                <$type>::wrapping_add,
                <$type>::wrapping_mul,
                |a: $type, n| a / n as $type
            )
        };
    }
    macro_rules! float {
        ($type:ty) => {
            fold!(
                $type,
                |a: $type, b| a + b,
                |a: $type, b| a * b,
                |a: $type, n| { a / n as $type }
            )
        };
    }
    macro_rules! half {
        ($type:ty) => {
            fold!(
                $type,
                |a: $type, b| a + b,
                |a: $type, b| a * b,
                |a: $type, n| { a / <$type>::from_f32(n as f32) }
            )
        };
    }
    match element {
        Element::I8 => int!(i8),
        Element::U8 => int!(u8),
        Element::I32 => int!(i32),
        Element::U32 => int!(u32),
        Element::I64 => int!(i64),
        Element::U64 => int!(u64),
        Element::F16 => half!(half::f16),
        Element::BF16 => half!(half::bf16),
        Element::F32 => float!(f32),
        Element::F64 => float!(f64),
    }
}

/// One rank's way into the simulation.
pub struct FakeNccl(pub Arc<Fake>);

impl Nccl for FakeNccl {
    fn neighbours(&self) -> &Neighbours {
        &self.0.neighbours
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
        if let Some((code, member)) = faults.stillborn
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
        let is_linked = self.0.linked.load(Ordering::SeqCst);
        let _driver = is_linked.then(|| self.0.driver.lock().unwrap());
        *self.0.kernels.lock().unwrap().entry(comm).or_default() += 1;
        let streams = self.0.streams.lock().unwrap();
        let fake = Arc::clone(&self.0);
        let job = Box::new(move || {
            fake.perform(&of, &issued);
            let mut kernels = fake.kernels.lock().unwrap();
            *kernels.get_mut(&comm).expect("counted above") -= 1;
            fake.kernel_over.notify_all();
        });
        streams[&stream]
            .send(job as Job)
            .expect("a stream lives as long as the simulation");
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
        self.0.posted.notify_all();
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

impl Gpu for FakeNccl {
    fn attach(&self) -> Result<(), DeviceError> {
        ATTACHED.set(true);
        Ok(())
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        assert_attached("cuStreamCreate");
        let (jobs, queue) = channel::<Job>();
        // Ends with the simulation, whose end of the channel it waits at.
        std::thread::spawn(move || queue.iter().for_each(|job| job()));
        let number = self.0.number();
        self.0.streams.lock().unwrap().insert(number, jobs);
        Ok(Stream(number))
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        assert_attached("cuEventRecord");
        let over = Arc::new(AtomicBool::new(false));
        let number = self.0.number();
        self.0
            .events
            .lock()
            .unwrap()
            .insert(number, Arc::clone(&over));
        let job = Box::new(move || over.store(true, Ordering::SeqCst));
        self.0.streams.lock().unwrap()[&stream.0]
            .send(job as Job)
            .expect("a stream lives as long as the simulation");
        Ok(Event(number))
    }

    fn is_over(&self, event: Event) -> Result<bool, DeviceError> {
        let events = self.0.events.lock().unwrap();
        Ok(events[&event.0].load(Ordering::SeqCst))
    }

    fn forget(&self, event: Event) {
        self.0.events.lock().unwrap().remove(&event.0);
    }

    fn alloc(&self, bytes: usize) -> Result<Address, DeviceError> {
        assert_attached("cuMemAlloc");
        if self.0.linked.load(Ordering::SeqCst) {
            let _driver = self.0.driver.lock().unwrap();
            let is_idle = self.0.await_kernels(ALLOCATES_MAX, |kernels| {
                kernels.values().all(|kernels| *kernels == 0)
            });
            if !is_idle {
                return Err(DeviceError {
                    function: "cuMemAlloc",
                    reason: "it waits for a kernel whose peer waits for it".into(),
                });
            }
        }
        let mut memory = vec![0_u128; bytes.div_ceil(16).max(1)];
        let address = memory.as_mut_ptr() as usize as u64;
        self.0.allocations.lock().unwrap().insert(address, memory);
        Ok(Address(address))
    }

    unsafe fn free(&self, memory: Address) {
        assert_attached("cuMemFree");
        let freed = self.0.allocations.lock().unwrap().remove(&memory.0);
        assert!(freed.is_some(), "freed twice");
    }

    unsafe fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        write(to, bytes);
        Ok(())
    }

    unsafe fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&read(from, bytes.len()));
        Ok(())
    }
}
