//! GPUs, simulated: device memory is host memory, and streams are queues that one thread empties.
//!
//! Which stream goes on next is drawn from a seed, and now and then nothing goes on for a while: work runs late, and in
//! any order that events, words and the order of each stream leave. The machine stops a test that breaks the protocol:
//!
//! - a wait for a word that was given to a stream before what sets the word was;
//! - memory that is freed, or let go of, while a step that has not run yet reads or writes it;
//! - a thread without a device.

use super::api::{FlagWait, Signals, Words};
use crate::nccl::api::{Address, DeviceError, Event, Gpu, Stream};
use crate::peer::api::{Copies, Identity};
use crate::sync::lock;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What waits this long in an allocation would hang.
const ALLOCATES_MAX: Duration = Duration::from_secs(5);

/// Words of a page.
const WORDS: usize = 64;

thread_local! {
    /// Whether this thread has a device.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Stops a test whose thread has no device.
pub fn assert_attached(function: &str) {
    assert!(ATTACHED.get(), "{function} on a thread without a device");
}

/// What a stream is given.
pub struct Step {
    /// Does what there is to do, and returns whether that was all.
    pub poll: Box<dyn FnMut() -> bool + Send>,
    /// Memory that it reads or writes.
    pub uses: Vec<Range<u64>>,
    /// Whether an allocation may wait for it.
    pub is_kernel: bool,
}

#[derive(Default)]
struct Queue {
    device: usize,
    steps: VecDeque<Step>,
    /// Steps that were put on it, and those that are done.
    put: u64,
    done: u64,
}

/// The steps before which an event is not over: of each stream, how many.
type Until = Vec<(usize, u64)>;

#[derive(Default)]
struct State {
    random: u64,
    streams: BTreeMap<usize, Queue>,
    events: HashMap<usize, Until>,
    /// What each word has been given to be set to, by its address.
    submitted: HashMap<u64, u32>,
    allocations: HashMap<u64, Vec<u128>>,
}

/// Several GPUs.
#[derive(Default)]
pub struct Machine {
    state: Mutex<State>,
    changed: Condvar,
    next: AtomicUsize,
    /// As between GPUs that have mapped each other's memory: an allocation waits for all kernels, and launches wait for
    /// it.
    pub linked: AtomicBool,
    driver: Mutex<()>,
    /// Functions that this driver lacks.
    pub lacks: Mutex<Vec<&'static str>>,
    /// A function that fails, on a device.
    pub refuses: Mutex<Option<(&'static str, usize)>>,
    /// Pairs of devices without access to each other.
    pub apart: Mutex<Vec<[usize; 2]>>,
    /// Streams that stand still.
    pub stuck: Mutex<Vec<Stream>>,
    /// Calls, as `device: function`.
    pub log: Mutex<Vec<String>>,
}

impl Machine {
    /// Returns a machine that draws from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        let machine = Arc::new(Self::default());
        lock(&machine.state).random = seed;
        let weak = Arc::downgrade(&machine);
        std::thread::spawn(move || run(&weak));
        machine
    }

    /// Returns a rank's way to its GPU.
    pub fn gpu(self: &Arc<Self>, device: usize) -> Arc<SimulatedGpu> {
        Arc::new(SimulatedGpu {
            machine: Arc::clone(self),
            device,
        })
    }

    /// Returns a number that nothing else has.
    pub fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Events that nobody has freed.
    pub fn open_events(&self) -> usize {
        lock(&self.state).events.len()
    }

    /// Puts a step on a stream.
    pub fn put(&self, stream: Stream, step: Step) {
        // An allocation that is under way keeps launches waiting.
        let is_linked = step.is_kernel && self.linked.load(Ordering::SeqCst);
        let _driver = is_linked.then(|| lock(&self.driver));
        let mut state = lock(&self.state);
        let queue = state.streams.get_mut(&stream.0).expect("a stream");
        queue.put += 1;
        queue.steps.push_back(step);
        self.changed.notify_all();
    }

    /// Returns a backend's stream, which only the backend knows.
    pub fn backend(&self, device: usize) -> Stream {
        let number = self.number();
        let queue = Queue {
            device,
            ..Queue::default()
        };
        lock(&self.state).streams.insert(number, queue);
        Stream(number)
    }

    /// Puts a kernel of a backend on its stream.
    pub fn kernel(
        &self,
        stream: Stream,
        uses: Vec<Range<u64>>,
        work: impl FnOnce() + Send + 'static,
    ) {
        let mut work = Some(work);
        let poll = Box::new(move || {
            if let Some(work) = work.take() {
                work();
            }
            true
        });
        let step = Step {
            poll,
            uses,
            is_kernel: true,
        };
        self.put(stream, step);
    }

    /// Keeps a stream from going on until `may_go` says yes.
    pub fn gated(&self, stream: Stream, may_go: impl Fn() -> bool + Send + 'static) {
        let step = Step {
            poll: Box::new(may_go),
            uses: Vec::new(),
            is_kernel: true,
        };
        self.put(stream, step);
    }

    /// Puts the kernel on a backend's stream that waits for a word.
    pub fn flag_wait(&self, stream: Stream, wait: FlagWait) {
        self.assert_submitted(wait.word, wait.value);
        let step = Step {
            poll: Box::new(move || is_over(wait)),
            uses: Vec::new(),
            is_kernel: true,
        };
        self.put(stream, step);
    }

    /// Waits for a word as a backend does whose kernels run in the thread that calls: as a stream that is a thread.
    pub fn wait_here(&self, wait: FlagWait) {
        self.assert_submitted(wait.word, wait.value);
        while !is_over(wait) {
            std::thread::yield_now();
        }
    }

    fn assert_submitted(&self, word: Address, value: u32) {
        let submitted = lock(&self.state).submitted.get(&word.0).copied();
        let is_set = submitted.is_some_and(|given| FlagWait::has_come(given, value));
        assert!(
            is_set,
            "a wait for {value} was submitted before its set: {submitted:?}"
        );
    }

    /// Stops a test that lets go of memory which a step that has not run yet uses.
    pub fn assert_unused(&self, memory: &Range<u64>, what: &str) {
        let state = lock(&self.state);
        let mut uses = state
            .streams
            .values()
            .flat_map(|queue| &queue.steps)
            .flat_map(|step| &step.uses);
        let overlaps = |other: &Range<u64>| other.start < memory.end && memory.start < other.end;
        assert!(!uses.any(overlaps), "{what} while a stream still uses it");
    }

    /// Waits until a stream has done everything.
    pub fn drain(&self, stream: Stream) {
        let mut state = lock(&self.state);
        while !state.streams[&stream.0].steps.is_empty() {
            state = self.pause(state);
        }
    }

    fn pause<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let wait = self.changed.wait_timeout(state, Duration::from_micros(100));
        wait.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lacks(&self, function: &'static str) -> Result<(), DeviceError> {
        match lock(&self.lacks).contains(&function) {
            true => Err(DeviceError {
                function,
                reason: "this driver does not have it".into(),
            }),
            false => Ok(()),
        }
    }
}

/// Whether a wait is over, as the kernel sees it.
fn is_over(wait: FlagWait) -> bool {
    let word = |at: Address| {
        // SAFETY: words are pages of this process that are never given back.
        let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(at.0 as usize) };
        word.load(Ordering::Acquire)
    };
    FlagWait::has_come(word(wait.word), wait.value) || word(wait.poison) != 0
}

fn draw(random: &mut u64) -> u64 {
    // SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Empties the streams, as long as the machine is there.
fn run(machine: &Weak<Machine>) {
    let no_step: fn() -> bool = || false;
    while let Some(machine) = machine.upgrade() {
        let stuck = lock(&machine.stuck).clone();
        let mut state = lock(&machine.state);
        let busy: Vec<usize> = state
            .streams
            .iter()
            .filter(|(number, queue)| !queue.steps.is_empty() && !stuck.contains(&Stream(**number)))
            .map(|(number, _)| *number)
            .collect();
        let mut has_moved = false;
        if !busy.is_empty() {
            let first = draw(&mut state.random) as usize % busy.len();
            for turn in 0..busy.len() {
                let number = busy[(first + turn) % busy.len()];
                let queue = state.streams.get_mut(&number).expect("it is busy");
                let step = queue.steps.front_mut().expect("it is busy");
                let mut poll = std::mem::replace(&mut step.poll, Box::new(no_step));
                // A step may take its time, and look at what hosts do meanwhile.
                drop(state);
                let is_done = poll();
                state = lock(&machine.state);
                let queue = state.streams.get_mut(&number).expect("streams stay");
                if is_done {
                    queue.done += 1;
                    let done = queue.steps.pop_front();
                    drop((poll, done));
                    has_moved = true;
                    break;
                }
                queue.steps.front_mut().expect("nobody else takes it").poll = poll;
            }
        }
        if has_moved {
            machine.changed.notify_all();
            let naps = draw(&mut state.random).is_multiple_of(8);
            drop(state);
            if naps {
                std::thread::sleep(Duration::from_micros(50));
            }
        } else {
            drop(machine.pause(state));
        }
    }
}

/// One rank's way to its GPU.
pub struct SimulatedGpu {
    machine: Arc<Machine>,
    device: usize,
}

impl SimulatedGpu {
    /// The machine.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Returns what orders streams on the device.
    ///
    /// # Errors
    /// Which function the driver lacks.
    pub fn signals(self: &Arc<Self>) -> Result<Arc<dyn Signals>, DeviceError> {
        for function in ["cuCtxRecordEvent", "cuStreamWriteValue32_v2"] {
            self.machine.lacks(function)?;
        }
        Ok(Arc::clone(self) as Arc<dyn Signals>)
    }

    /// The streams of this GPU.
    pub fn streams(&self) -> Vec<Stream> {
        let state = lock(&self.machine.state);
        let of_this = state.streams.iter();
        let of_this = of_this.filter(|(_, queue)| queue.device == self.device);
        of_this.map(|(number, _)| Stream(*number)).collect()
    }

    fn note(&self, function: &'static str) -> Result<(), DeviceError> {
        assert_attached(function);
        lock(&self.machine.log).push(format!("{}: {function}", self.device));
        match *lock(&self.machine.refuses) == Some((function, self.device)) {
            true => Err(DeviceError {
                function,
                reason: "a cable is loose".into(),
            }),
            false => Ok(()),
        }
    }

    /// Puts something on a stream that is over at once.
    fn put(&self, stream: Stream, uses: Vec<Range<u64>>, work: impl FnOnce() + Send + 'static) {
        let mut work = Some(work);
        let poll = Box::new(move || {
            if let Some(work) = work.take() {
                work();
            }
            true
        });
        let step = Step {
            poll,
            uses,
            is_kernel: false,
        };
        self.machine.put(stream, step);
    }

    fn event(&self, until: impl FnOnce(&State) -> Until) -> Event {
        let number = self.machine.number();
        let mut state = lock(&self.machine.state);
        let until = until(&state);
        state.events.insert(number, until);
        Event(number)
    }
}

fn have_come(state: &State, until: &Until) -> bool {
    let has_come = |(stream, put): &(usize, u64)| state.streams[stream].done >= *put;
    until.iter().all(has_come)
}

impl Gpu for SimulatedGpu {
    fn attach(&self) -> Result<(), DeviceError> {
        ATTACHED.set(true);
        Ok(())
    }

    fn stream(&self) -> Result<Stream, DeviceError> {
        self.note("cuStreamCreate")?;
        Ok(self.machine.backend(self.device))
    }

    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        self.note("cuEventRecord")?;
        Ok(self.event(|state| vec![(stream.0, state.streams[&stream.0].put)]))
    }

    fn is_over(&self, event: Event) -> Result<bool, DeviceError> {
        let state = lock(&self.machine.state);
        let until = state.events.get(&event.0).expect("an event");
        Ok(have_come(&state, until))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.note("cuStreamWaitEvent")?;
        let until = lock(&self.machine.state).events.get(&event.0).cloned();
        let until = until.expect("an event that nobody has freed");
        let machine = Arc::downgrade(&self.machine);
        let poll = Box::new(move || {
            let machine = machine.upgrade();
            machine.is_none_or(|machine| have_come(&lock(&machine.state), &until))
        });
        let step = Step {
            poll,
            uses: Vec::new(),
            is_kernel: false,
        };
        self.machine.put(stream, step);
        Ok(())
    }

    fn forget(&self, event: Event) {
        let freed = lock(&self.machine.state).events.remove(&event.0);
        assert!(freed.is_some(), "an event that was freed twice");
    }

    fn alloc(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.note("cuMemAlloc")?;
        let machine = &self.machine;
        let is_linked = machine.linked.load(Ordering::SeqCst);
        let _driver = is_linked.then(|| lock(&machine.driver));
        let start = Instant::now();
        let mut state = lock(&machine.state);
        let has_kernels = |state: &State| {
            let mut queues = state.streams.values();
            queues.any(|queue| queue.steps.iter().any(|step| step.is_kernel))
        };
        while is_linked && has_kernels(&state) {
            if start.elapsed() > ALLOCATES_MAX {
                return Err(DeviceError {
                    function: "cuMemAlloc",
                    reason: "it waits for a kernel whose peer waits for it".into(),
                });
            }
            state = machine.pause(state);
        }
        let mut memory = vec![0_u128; bytes.div_ceil(16).max(1)];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        state.allocations.insert(address, memory);
        Ok(Address(address))
    }

    unsafe fn free(&self, memory: Address) {
        assert_attached("cuMemFree");
        let freed = lock(&self.machine.state).allocations.remove(&memory.0);
        let freed = freed.expect("freed twice");
        let range = memory.0..memory.0 + 16 * freed.len() as u64;
        self.machine.assert_unused(&range, "memory was freed");
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

impl Signals for SimulatedGpu {
    fn words(&self) -> Result<Words, DeviceError> {
        self.note("cuMemHostAlloc")?;
        let words: Vec<AtomicU32> = (0..WORDS).map(|_| AtomicU32::new(0)).collect();
        let host: &'static [AtomicU32] = Box::leak(words.into());
        let address = Address(host.as_ptr().expose_provenance() as u64);
        Ok(Words { address, host })
    }

    fn record_all(&self) -> Result<Event, DeviceError> {
        self.note("cuCtxRecordEvent")?;
        Ok(self.event(|state| {
            let streams = state.streams.iter();
            let of_this = streams.filter(|(_, queue)| queue.device == self.device);
            of_this
                .map(|(number, queue)| (*number, queue.put))
                .collect()
        }))
    }

    fn write(&self, stream: Stream, word: Address, value: u32) -> Result<(), DeviceError> {
        self.note("cuStreamWriteValue32_v2")?;
        lock(&self.machine.state).submitted.insert(word.0, value);
        self.put(stream, Vec::new(), move || {
            // SAFETY: words are pages of this process that are never given back.
            let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(word.0 as usize) };
            word.store(value, Ordering::Release);
        });
        Ok(())
    }
}

impl Copies for SimulatedGpu {
    fn identity(&self) -> Identity {
        let mut identity = [0xee; 16];
        identity[..8].copy_from_slice(&(self.device as u64).to_ne_bytes());
        identity
    }

    fn reachable(&self) -> Vec<Identity> {
        let apart = lock(&self.machine.apart).clone();
        let others = (0..64).filter(|other| *other != self.device);
        others
            .filter(|other| {
                !apart
                    .iter()
                    .any(|pair| pair.contains(other) && pair.contains(&self.device))
            })
            .map(|other| self.machine.gpu(other).identity())
            .collect()
    }

    unsafe fn copy(
        &self,
        stream: Stream,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.note("cuMemcpyDtoDAsync")?;
        let uses = [to, from].map(|at| at.0..at.0 + bytes as u64);
        self.put(stream, uses.into(), move || write(to, &read(from, bytes)));
        Ok(())
    }
}

/// Reads device memory.
pub fn read(from: Address, bytes: usize) -> Vec<u8> {
    if bytes == 0 {
        return Vec::new();
    }
    let from = std::ptr::with_exposed_provenance::<u8>(from.0 as usize);
    // SAFETY: the promise of whoever has put the step on its stream; addresses of tests are of host memory.
    unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
}

/// Writes device memory.
pub fn write(to: Address, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to.0 as usize);
    // SAFETY: as in `read`, and nobody else uses what is written.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
