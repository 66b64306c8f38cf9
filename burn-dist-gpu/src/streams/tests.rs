//! Promises about calls that the device orders, against simulated GPUs.

use super::api::{FlagWait, Signals};
use super::machine::{Machine, SimulatedGpu, read, write};
use super::order::{AHEAD, Order};
use super::watcher::{Watched, Watcher};
use crate::device::{Address, DeviceError, Gpu, Stream};
use crate::nccl::collectives;
use crate::nccl::fake::Fake;
use crate::nccl::groups::{Channels, Launched};
use crate::nccl::op::Op;
use crate::peer::api::Copies;
use crate::symmetric::api::Symmetric;
use burn_dist_comm::{
    Call, Collective, CommError, Communicator, Group, LocalComm, LocalHub, LocalOptions, Strided,
    World, lock,
};
use burn_dist_mesh::{DType, Rank};
use conformance::PATIENT;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Much longer than an end takes.
pub(crate) const SOON: Duration = Duration::from_secs(15);

impl Watched for Channels {
    fn check(&mut self, host: &dyn Communicator) -> Result<(), CommError> {
        self.look(host)
    }

    fn abort(&mut self) {
        let _ = Channels::abort(self);
    }
}

/// A rank with a GPU, and a backend that computes on a stream of its own.
pub(crate) struct Ranked {
    pub comm: Arc<LocalComm>,
    pub gpu: Arc<SimulatedGpu>,
    pub channels: Arc<Mutex<Channels>>,
    pub backend: Stream,
    /// Stops when the rank has ended.
    _watcher: Watcher,
}

/// How ranks communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By NCCL.
    Nccl,
    /// They copy from each other.
    Copies,
    /// They live in processes of so many ranks, and copy through workspaces with slots of so many bytes.
    Workspace { in_process: usize, slot: usize },
}

impl How {
    /// A process per rank.
    pub(crate) const APART: Self = Self::Workspace {
        in_process: 1,
        slot: 24,
    };

    const ALL: [Self; 3] = [Self::Nccl, Self::Copies, Self::APART];
}

/// Returns ranks whose calls the device orders.
pub(crate) fn ranks(fake: &Arc<Fake>, num: usize, timeout: Duration, how: How) -> Vec<Ranked> {
    let options = LocalOptions {
        timeout,
        ..LocalOptions::default()
    };
    let comms = match how {
        How::Nccl | How::Copies => LocalHub::connect(num, options).expect("a world"),
        How::Workspace { in_process, .. } => {
            let worlds = World::simulated(num / in_process);
            let ranks = worlds
                .iter()
                .map(|world| world.connect(num, options.clone()));
            ranks
                .flat_map(|ranks| ranks.expect("equally many in each"))
                .collect()
        }
    };
    let with_gpu = |comm: LocalComm| {
        let device = comm.rank().0 as usize;
        let gpu = fake.machine().gpu(device);
        let process = match how {
            How::Nccl | How::Copies => 0,
            How::Workspace { in_process, .. } => device / in_process,
        };
        let mut channels = fake.channels(gpu.clone(), process, timeout);
        if how != How::Nccl {
            channels = channels.copying(gpu.clone() as Arc<dyn Copies>);
        }
        let signals = gpu.signals().expect("a driver with everything");
        let mut channels = channels.ordered(signals).expect("a page of words");
        if let How::Workspace { slot, .. } = how {
            let shared = channels.in_process(process as u8, slot);
            let shared = shared.sharing(gpu.clone() as Arc<dyn Symmetric>);
            channels = shared.expect("Linux");
        }
        let poison = channels.poison().expect("the device orders");
        let channels = Arc::new(Mutex::new(channels));
        let comm = Arc::new(comm);
        let host = Arc::clone(&comm) as Arc<dyn Communicator>;
        let watcher = Watcher::start(format!("watcher of {device}"), &host, &channels, poison);
        Ranked {
            backend: fake.machine().backend(device),
            comm,
            gpu,
            channels,
            _watcher: watcher.expect("a thread"),
        }
    };
    comms.into_iter().map(with_gpu).collect()
}

/// Memory of a backend: never freed, so that a kernel which comes late reads something, but let go of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory(pub Range<u64>);

impl Memory {
    fn new(bytes: usize) -> Self {
        let memory = Box::leak(vec![0xee_u8; bytes.max(1)].into_boxed_slice());
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        Self(start..start + bytes as u64)
    }

    pub(crate) fn at(&self) -> Address {
        Address(self.0.start)
    }

    fn len(&self) -> usize {
        (self.0.end - self.0.start) as usize
    }
}

/// The hold of a call: stops the test if it is let go of while a stream uses it.
struct Held {
    machine: Arc<Machine>,
    memory: [Memory; 2],
    /// How many are held.
    count: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        for memory in &self.memory {
            self.machine
                .assert_unused(&memory.0, "a call let go of memory");
        }
    }
}

/// A call on a device, with its memory.
pub(crate) struct Made {
    pub launched: Launched,
    pub sent: Memory,
    pub received: Memory,
}

/// The collective of a call.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Gather(Vec<usize>),
    Shift(isize, Vec<usize>),
    /// Pieces from each member to each, in bytes.
    Exchange(Vec<Vec<usize>>),
    Sum(usize),
}

/// Bytes that tell whose they are, and of which call.
fn pattern(rank: usize, number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 7 + rank * 61) as u8 ^ (number * 29) as u8)
        .collect()
}

impl What {
    /// Bytes that a member sends and receives.
    fn bytes(&self, members: usize, member: usize) -> (usize, usize) {
        match self {
            Self::Gather(sizes) => (sizes[member], sizes.iter().sum()),
            Self::Shift(by, sizes) => {
                let from = (member as isize - by).rem_euclid(members as isize) as usize;
                (sizes[member], sizes[from])
            }
            Self::Exchange(sizes) => {
                let received = (0..members).filter(|from| *from != member);
                let received = received.map(|from| sizes[from][member]).sum();
                (sizes[member].iter().sum(), received)
            }
            Self::Sum(bytes) => (*bytes, *bytes),
        }
    }

    /// The bytes that a member receives, by the definition of the call.
    pub(crate) fn expected(&self, members: usize, member: usize, number: u64) -> Vec<u8> {
        let of = |rank: usize| pattern(rank, number, self.bytes(members, rank).0);
        match self {
            Self::Gather(_) => (0..members).flat_map(of).collect(),
            Self::Shift(by, _) => of((member as isize - by).rem_euclid(members as isize) as usize),
            Self::Exchange(sizes) => {
                let others = (0..members).filter(|from| *from != member);
                let piece = |from: usize| {
                    let start: usize = sizes[from][..member].iter().sum();
                    of(from)[start..start + sizes[from][member]].to_vec()
                };
                others.flat_map(piece).collect()
            }
            Self::Sum(bytes) => {
                let zero = vec![0_u8; *bytes];
                (0..members).fold(zero, |sum, rank| {
                    let terms = sum.into_iter().zip(of(rank));
                    terms.map(|(a, b)| a.wrapping_add(b)).collect()
                })
            }
        }
    }

    fn ops(&self, members: usize, member: usize, [send, recv]: [Address; 2]) -> Vec<Op> {
        let element = crate::nccl::op::Element::U8;
        match self {
            Self::Gather(sizes) => collectives::gather(send, recv, sizes, member, element),
            Self::Shift(by, sizes) => collectives::shift(send, recv, sizes, *by, member),
            Self::Exchange(sizes) => {
                let recvs: Vec<usize> = (0..members).map(|from| sizes[from][member]).collect();
                collectives::exchange(send, &sizes[member], recv, &recvs, member, element)
            }
            Self::Sum(bytes) => {
                let fold = crate::nccl::op::Fold::Sum;
                collectives::all_reduce(send, recv, *bytes, fold)
            }
        }
    }
}

impl Ranked {
    fn machine(&self) -> &Arc<Machine> {
        self.gpu.machine()
    }

    /// Launches a call behind a kernel that computes what is sent, once `gate` is open. A member that does not take
    /// part launches nothing.
    pub(crate) fn launch(
        &self,
        group: &Group,
        (what, number): (&What, u64),
        gate: &Arc<AtomicBool>,
        takes_part: bool,
    ) -> Result<Made, CommError> {
        let member = group.member(self.comm.rank()).expect("a member");
        let (sends, receives) = what.bytes(group.len(), member);
        let (sent, received) = (Memory::new(sends), Memory::new(receives));
        let (to, content) = (sent.at(), pattern(member, number, sends));
        let (machine, gate) = (self.machine(), Arc::clone(gate));
        machine.gated(self.backend, move || gate.load(Ordering::SeqCst));
        machine.kernel(self.backend, Vec::new(), move || write(to, &content));
        let mut channels = lock(&self.channels);
        let parts = Strided::flat(vec![1; group.len()]);
        let call = Call::new(group, DType::U8, Collective::AllGather(parts), None);
        let (info, element) = channels.record(&*self.comm, call)?;
        let mut ops = what.ops(group.len(), member, [sent.at(), received.at()]);
        if !takes_part {
            ops.clear();
        }
        // SAFETY: the memory is never freed.
        let launched = unsafe { channels.launch(&*self.comm, &info, element, &ops) }?;
        Ok(Made {
            launched,
            sent,
            received,
        })
    }

    /// Ends a call: the backend waits for it, reads what has come, and then uses the memory for something else. Returns
    /// what it will have read.
    pub(crate) fn exit(
        &self,
        made: Made,
        held: &Arc<AtomicUsize>,
    ) -> Result<Arc<Mutex<Vec<u8>>>, CommError> {
        let Made {
            launched,
            sent,
            received,
        } = made;
        held.fetch_add(1, Ordering::SeqCst);
        let hold = Held {
            machine: self.machine().clone(),
            memory: [sent.clone(), received.clone()],
            count: Arc::clone(held),
        };
        let wait = lock(&self.channels).exit(&*self.comm, launched, Box::new(hold))?;
        if let Some(wait) = wait {
            self.machine().flag_wait(self.backend, wait);
        }
        let found = Arc::<Mutex<Vec<u8>>>::default();
        let into = Arc::clone(&found);
        self.machine().kernel(self.backend, Vec::new(), move || {
            *lock(&into) = read(received.at(), received.len());
            for memory in [sent, received] {
                write(memory.at(), &vec![0xdd; memory.len()]);
            }
        });
        Ok(found)
    }

    /// Waits for all calls, and for the backend.
    pub(crate) fn land(&self) -> Result<(), CommError> {
        lock(&self.channels).land(&*self.comm)?;
        self.machine().drain(self.backend);
        Ok(())
    }
}

/// Runs `body` on a thread per rank.
pub(crate) fn on_ranks<T: Send>(ranks: Vec<Ranked>, body: impl Fn(&Ranked) -> T + Sync) -> Vec<T> {
    conformance::on_ranks(ranks, |rank| {
        let result = body(&rank);
        lock(&rank.channels).close(&*rank.comm);
        result
    })
}

/// An open gate.
pub(crate) fn open() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

/// Calls of all kinds between so many members.
pub(crate) fn calls(members: usize) -> Vec<What> {
    let uneven: Vec<usize> = (0..members).map(|member| (member * 3 + 2) % 5).collect();
    let table = |at: usize| (0..members).map(|to| (at * 2 + to * 3) % 4 + 1).collect();
    vec![
        What::Gather(vec![5; members]),
        What::Shift(1, uneven.clone()),
        What::Sum(9),
        What::Gather(uneven),
        What::Shift(-1, vec![64; members]),
        What::Exchange((0..members).map(table).collect()),
        // Nothing to do on any member, and then on some.
        What::Gather(vec![0; members]),
        What::Shift(1, (0..members).map(|member| member / 2 * 3).collect()),
    ]
}

/// Runs all calls of all ranks, some of which come late, and compares what the backends read.
pub(crate) fn run_all(fake: &Arc<Fake>, num: usize, how: How) {
    let group = Group::new((0..num as u32).rev().map(Rank).collect()).expect("ranks");
    on_ranks(ranks(fake, num, PATIENT, how), |rank| {
        let member = group.member(rank.comm.rank()).expect("a member");
        let (held, mut found) = (Arc::default(), Vec::new());
        for (number, what) in (0..).zip(calls(num)) {
            if number % num as u64 == member as u64 {
                std::thread::sleep(Duration::from_millis(2));
            }
            let made = rank.launch(&group, (&what, number), &open(), true);
            let made = made.unwrap_or_else(|error| panic!("{what:?}: {error}"));
            let read = rank.exit(made, &held);
            let read = read.unwrap_or_else(|error| panic!("{what:?}: {error}"));
            assert!(held.load(Ordering::SeqCst) <= AHEAD + 1);
            found.push((what, number, read));
        }
        rank.land().expect("all are there");
        assert_eq!(held.load(Ordering::SeqCst), 0, "everything is let go of");
        for (what, number, found) in found {
            let expected = what.expected(num, member, number);
            assert_eq!(*lock(&found), expected, "{what:?} on member {member}");
        }
        assert!(
            rank.comm
                .recent_calls()
                .iter()
                .all(|call| call.elapsed().is_some())
        );
    });
    assert_nothing_is_open(fake);
}

/// Everything of all ranks has been freed.
pub(crate) fn assert_nothing_is_open(fake: &Fake) {
    let pages = fake.machine().open_pages();
    assert_eq!((fake.open_comms(), fake.open_events(), pages), (0, 0, 0));
}

#[test]
fn calls_run_between_what_a_backend_does_before_and_after() {
    for seed in 0..12 {
        for num in [2, 3] {
            run_all(&Fake::on(Machine::new(seed)), num, How::Nccl);
        }
    }
}

/// No host waits for a device: the backends compute nothing until everything has been enqueued.
#[test]
fn the_host_waits_neither_before_a_call_nor_after_it() {
    for how in How::ALL {
        let fake = Fake::on(Machine::new(1));
        let world = Group::world(2).expect("two ranks");
        let gate = Arc::new(AtomicBool::new(false));
        let enqueued = AtomicUsize::new(0);
        on_ranks(ranks(&fake, 2, PATIENT, how), |rank| {
            let member = rank.comm.rank().0 as usize;
            let (what, held) = (What::Shift(1, vec![40; 2]), Arc::default());
            let found: Vec<_> = (0..AHEAD as u64)
                .map(|number| {
                    let made = rank.launch(&world, (&what, number), &gate, true);
                    let read = rank.exit(made.expect("both are there"), &held);
                    read.expect("nothing has failed")
                })
                .collect();
            assert_eq!(held.load(Ordering::SeqCst), AHEAD);
            // The last one opens the gate.
            if enqueued.fetch_add(1, Ordering::SeqCst) == 1 {
                gate.store(true, Ordering::SeqCst);
            }
            rank.land().expect("all are there");
            for (number, found) in (0..).zip(found) {
                assert_eq!(*lock(&found), what.expected(2, member, number));
            }
        });
    }
}

/// No more memory is held than that of a few calls: the host waits before it gives the backend another wait.
#[test]
fn the_host_runs_ahead_by_a_few_calls() {
    let fake = Fake::on(Machine::new(7));
    let world = Group::world(2).expect("two ranks");
    let gate = Arc::new(AtomicBool::new(false));
    let opener = Arc::clone(&gate);
    on_ranks(ranks(&fake, 2, PATIENT, How::Copies), |rank| {
        let (what, held) = (What::Shift(1, vec![8; 2]), Arc::default());
        let is_first = rank.comm.rank() == Rank(0);
        for number in 0..AHEAD as u64 + 2 {
            let is_closed = !gate.load(Ordering::SeqCst);
            assert!(is_closed, "nothing has waited for the backends");
            let made = rank.launch(&world, (&what, number), &gate, true);
            let made = made.expect("both are there");
            if is_first && number == AHEAD as u64 + 1 {
                let gate = Arc::clone(&opener);
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(100));
                    gate.store(true, Ordering::SeqCst);
                });
            }
            rank.exit(made, &held).expect("nothing has failed");
        }
        assert!(gate.load(Ordering::SeqCst), "the last exit has waited");
        rank.land().expect("all are there");
    });
}

/// Waits until another rank has failed.
pub(crate) fn await_fault(rank: &Ranked) -> CommError {
    let start = Instant::now();
    loop {
        if let Some(fault) = rank.comm.fault() {
            return fault;
        }
        assert!(start.elapsed() < SOON, "nobody says that something failed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A kernel of NCCL whose peer launches nothing never ends. The rank is held up by its device, and cannot say so.
#[test]
fn a_rank_that_its_device_holds_up_is_freed_by_name() {
    let fake = Fake::on(Machine::new(2));
    let world = Group::world(2).expect("two ranks");
    let start = Instant::now();
    let timeout = Duration::from_millis(500);
    let found = on_ranks(ranks(&fake, 2, timeout, How::Nccl), |rank| {
        let (what, held) = (What::Gather(vec![8; 2]), Arc::default());
        let takes_part = rank.comm.rank() == Rank(0);
        let made = rank.launch(&world, (&what, 0), &open(), takes_part);
        let made = made.expect("both launch");
        let read = rank.exit(made, &held).expect("nothing is known yet");
        // As a backend does whose queue is full: nobody here looks for faults.
        rank.machine().drain(rank.backend);
        let expected = what.expected(2, rank.comm.rank().0 as usize, 0);
        assert!(!takes_part || *lock(&read) != expected, "nothing came");
        let fault = await_fault(rank);
        // What was read is worth nothing, and landing says so.
        let error = rank.land().expect_err("the mesh has failed");
        assert_eq!(error.to_string(), fault.to_string());
        fault
    });
    assert!(start.elapsed() < SOON);
    for fault in found {
        let text = fault.to_string();
        assert!(matches!(fault, CommError::GpuStalled { .. }), "{text}");
        assert!(text.contains("rank 0 called all_gather"), "{text}");
    }
    assert_nothing_is_open(&fake);
}

/// The clock of a call starts when the device has come to it: computing is no time-out.
#[test]
fn a_call_that_waits_for_its_own_backend_is_not_late() {
    let fake = Fake::on(Machine::new(3));
    let world = Group::world(2).expect("two ranks");
    let timeout = Duration::from_millis(200);
    on_ranks(ranks(&fake, 2, timeout, How::Copies), |rank| {
        let member = rank.comm.rank().0 as usize;
        let (what, gate) = (What::Shift(1, vec![8; 2]), Arc::default());
        let made = rank.launch(&world, (&what, 0), &gate, true);
        let read = rank.exit(made.expect("both launch"), &Arc::default());
        std::thread::sleep(2 * timeout);
        gate.store(true, Ordering::SeqCst);
        rank.land().expect("nobody was late");
        let found = read.expect("nobody was late");
        assert_eq!(*lock(&found), what.expected(2, member, 0));
    });
}

/// Streams of one GPU stand still, also after an abort: the backend's waits end by poison, and memory stays the call's.
#[test]
fn what_does_not_stop_keeps_its_memory() {
    conformance::side_by_side(How::ALL, |how| {
        let is_apart = how == How::APART;
        let fake = Fake::on(Machine::new(4));
        let world = Group::world(2).expect("two ranks");
        let timeout = Duration::from_millis(500);
        let held = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        on_ranks(ranks(&fake, 2, timeout, how), |rank| {
            let what = What::Shift(1, vec![8; 2]);
            let made = rank.launch(&world, (&what, 0), &open(), true);
            rank.exit(made.expect("both launch"), &held)
                .expect("both launch");
            rank.land().expect("both are there");
            let is_stuck = rank.comm.rank() == Rank(1);
            // Its backend goes on.
            let ours = rank.gpu.streams();
            if is_stuck {
                let ours = ours
                    .iter()
                    .copied()
                    .filter(|stream| *stream != rank.backend);
                *lock(&rank.machine().stuck) = ours.collect();
            }
            let made = rank.launch(&world, (&what, 1), &open(), true);
            let made = made.expect("both launch");
            match rank.exit(made, &held) {
                Ok(_) => rank.machine().drain(rank.backend),
                Err(error) => assert!(rank.comm.fault().is_some(), "{error}"),
            }
            let fault = await_fault(rank).to_string();
            assert!(fault.contains("their GPUs did not finish it"), "{fault}");
            let is_free = lock(&rank.channels).abort();
            assert_eq!(is_free, is_apart && !is_stuck);
        });
        assert!(start.elapsed() < 2 * SOON);
        // A process reads nobody else's memory, so that only what the stuck GPU uses is lost.
        let lost = if is_apart { 1 } else { 2 };
        assert_eq!(held.load(Ordering::SeqCst), lost, "{how:?}");
    });
}

/// A rank ends while its peer waits for it.
#[test]
fn a_rank_that_is_killed_is_named_and_the_others_end() {
    conformance::side_by_side(How::ALL, |how| {
        for at in 0..3 {
            let fake = Fake::on(Machine::new(5 + at));
            let world = Group::world(3).expect("three ranks");
            let start = Instant::now();
            let timeout = Duration::from_millis(500);
            let found = on_ranks(ranks(&fake, 3, timeout, how), |rank| {
                let held = Arc::default();
                for number in 0..6 {
                    if rank.comm.rank() == Rank(2) && number == at {
                        // It never comes again.
                        return await_fault(rank);
                    }
                    let what = What::Shift(1, vec![16; 3]);
                    let made = rank.launch(&world, (&what, number), &open(), true);
                    let made = made.and_then(|made| rank.exit(made, &held));
                    if let Err(error) = made {
                        rank.comm.abort(error);
                        let _ = lock(&rank.channels).abort();
                        break;
                    }
                }
                await_fault(rank)
            });
            assert!(start.elapsed() < SOON);
            for fault in found {
                let text = fault.to_string();
                // How long it was is measured.
                let has = |part| text.contains(part);
                assert!(has("gave up after "), "{text}");
                assert!(has(" s: ranks [2] have not made this call"), "{text}");
            }
            assert_nothing_is_open(&fake);
        }
    });
}

#[test]
fn a_function_that_the_driver_lacks_is_named() {
    for function in ["cuCtxRecordEvent", "cuStreamWriteValue32_v2"] {
        let machine = Machine::new(0);
        lock(&machine.lacks).push(function);
        let error = machine.gpu(0).signals().err().expect("it is not there");
        assert_eq!(error.function, function);
    }
}

#[test]
fn a_call_of_the_driver_that_fails_ends_the_mesh_by_name() {
    let of_both = [
        "cuCtxRecordEvent",
        "cuStreamWriteValue32_v2",
        "cuStreamWaitEvent",
        "cuMemcpyDtoDAsync",
    ];
    let of_workspaces = [
        "cuMemCreate",
        "cuMemMap",
        "cuMemHostRegister",
        "cuStreamWaitValue32_v2",
    ];
    let copies = of_both.map(|function| (function, How::Copies));
    let apart = of_both.into_iter().chain(of_workspaces);
    let apart = apart.map(|function| (function, How::APART));
    for (function, how) in copies.into_iter().chain(apart) {
        let fake = Fake::on(Machine::new(6));
        *lock(&fake.machine().refuses) = Some((function, 0));
        let num = if how == How::APART { 3 } else { 2 };
        let world = Group::world(num).expect("ranks");
        let found = on_ranks(ranks(&fake, num, PATIENT, how), |rank| {
            let what = What::Gather(vec![8; num]);
            let made = rank.launch(&world, (&what, 0), &open(), true);
            if let Err(error) = made.and_then(|made| rank.exit(made, &Arc::default())) {
                rank.comm.abort(error);
            }
            let fault = await_fault(rank);
            assert!(lock(&rank.channels).abort());
            fault.to_string()
        });
        for text in found {
            assert!(text.contains("rank 0 called all_gather"), "{text}");
            assert!(text.contains("a cable is loose"), "{text}");
            assert!(text.contains(function), "{text}");
        }
        assert_nothing_is_open(&fake);
    }
}

#[test]
#[should_panic(expected = "was submitted before its set")]
fn a_wait_before_its_set_is_seen() {
    let machine = Machine::new(0);
    let words = machine.gpu(0);
    words.attach().expect("a device");
    let words = words.words().expect("a page");
    let (word, poison) = (words.at(2), words.at(0));
    let wait = FlagWait {
        word,
        value: 1,
        poison,
    };
    machine.flag_wait(machine.backend(0), wait);
}

#[test]
#[should_panic(expected = "while a stream still uses it")]
fn memory_that_is_let_go_of_too_early_is_seen() {
    let machine = Machine::new(0);
    let gpu = machine.gpu(0);
    gpu.attach().expect("a device");
    let (stream, memory) = (gpu.stream().expect("a stream"), Memory::new(8));
    let gate = Arc::new(AtomicBool::new(false));
    machine.gated(stream, move || gate.load(Ordering::SeqCst));
    // SAFETY: the memory is never freed.
    unsafe { gpu.copy(stream, memory.at(), memory.at(), 8) }.expect("a copy");
    machine.assert_unused(&memory.0, "memory was let go of");
}

#[test]
fn numbers_of_calls_wrap_around() {
    for (found, value, has_come) in [
        (0, 1, false),
        (1, 1, true),
        (2, 1, true),
        (u32::MAX, 0, false),
        (0, u32::MAX, true),
        (5, u32::MAX - 5, true),
    ] {
        assert_eq!(
            FlagWait::has_come(found, value),
            has_come,
            "{found} {value}"
        );
    }
}

#[test]
fn more_streams_than_words_are_refused() {
    let gpu = Machine::new(0).gpu(0);
    gpu.attach().expect("a device");
    let mut order = Order::new(gpu.clone() as Arc<dyn Signals>).expect("a page");
    let refused = (0..100).find_map(|_| {
        let stream = gpu.stream().expect("a stream");
        order.enter(&*gpu, stream).err()
    });
    let DeviceError { function, reason } = refused.expect("a page is small");
    assert_eq!(function, "words");
    assert!(reason.contains("have used up a page"), "{reason}");
}
