//! GPUs, simulated: device memory is host memory, and streams are queues that one thread empties.
//!
//! Which stream goes on next is drawn from a seed, and now and then nothing goes on for a while: work runs late, and in
//! any order that events, words and the order of each stream leave. The machine stops a test that breaks the protocol:
//!
//! - a wait for a word that was queued on a stream before what sets the word was;
//! - memory that is freed, or let go of, while a step that has not run yet reads or writes it;
//! - a thread without a device.

mod gpu;

use super::api::FlagWait;
use crate::device::{Address, DeviceError, Stream};
use crate::symmetric::os::Page;
use burn_dist_comm::lock;
pub use gpu::SimulatedGpu;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A limit of waits in an allocation, which would hang.
const ALLOCATES_MAX: Duration = Duration::from_secs(5);

/// The time of a slow function: longer than what others do meanwhile.
const SLOW: Duration = Duration::from_millis(30);

/// Words of a page.
const WORDS: usize = 64;

thread_local! {
    /// True if this thread has a device.
    static ATTACHED: Cell<bool> = const { Cell::new(false) };
}

/// Stops a test whose thread has no device.
pub fn assert_attached(function: &str) {
    assert!(ATTACHED.get(), "{function} on a thread without a device");
}

/// A step of a stream.
pub struct Step {
    /// Does what there is to do, and returns whether that was all.
    pub poll: Box<dyn FnMut() -> bool + Send>,
    /// Memory that it reads or writes.
    pub uses: Vec<Range<u64>>,
    /// True if an allocation may wait for it.
    pub is_kernel: bool,
}

impl Step {
    /// A step that is over at once, and no kernel.
    fn once(uses: Vec<Range<u64>>, work: impl FnOnce() + Send + 'static) -> Self {
        let mut work = Some(work);
        let poll = Box::new(move || {
            if let Some(work) = work.take() {
                work();
            }
            true
        });
        Self {
            poll,
            uses,
            is_kernel: false,
        }
    }
}

#[derive(Default)]
struct Queue {
    device: usize,
    steps: VecDeque<Step>,
    /// Steps that were put on it, and those that are done.
    put: u64,
    done: u64,
}

/// A page and an offset, the same whatever the address.
type Span = (u64, u64);

impl State {
    fn place(&self, at: Address) -> Span {
        let mut pages = self.pages.iter();
        let holds = |(start, page): &(&u64, &Page)| {
            (**start..**start + page.bytes() as u64).contains(&at.0)
        };
        match pages.find(holds) {
            Some((start, page)) => (page.number(), at.0 - start),
            None => (0, at.0),
        }
    }
}

/// The steps before which an event is not over: of each stream, how many.
type Until = Vec<(usize, u64)>;

#[derive(Default)]
struct State {
    random: u64,
    streams: BTreeMap<usize, Queue>,
    events: HashMap<usize, Until>,
    /// The values that each word has been queued to be set to, by where it is.
    submitted: HashMap<Span, u32>,
    /// Memory that processes share, by its address: several addresses for the same, as in several processes.
    pages: HashMap<u64, Page>,
    allocations: HashMap<u64, Vec<u128>>,
}

/// Several GPUs.
#[derive(Default)]
pub struct Machine {
    state: Mutex<State>,
    changed: Condvar,
    next: AtomicUsize,
    /// True for GPUs that have mapped each other's memory: an allocation waits for all kernels, and launches wait for
    /// it.
    pub linked: AtomicBool,
    /// True if other processes set words too: what they have submitted is not known here.
    pub has_neighbours: AtomicBool,
    driver: Mutex<()>,
    /// Functions that this driver lacks.
    pub lacks: Mutex<Vec<&'static str>>,
    /// A function that fails, on a device.
    pub refuses: Mutex<Option<(&'static str, usize)>>,
    /// A function that takes its time, on a device.
    pub slow: Mutex<Option<(&'static str, usize)>>,
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

    /// Returns a number that nothing else has.
    pub fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Memory that is mapped, of all that processes share.
    pub fn open_pages(&self) -> usize {
        lock(&self.state).pages.len()
    }

    /// Events that nobody has freed.
    pub fn open_events(&self) -> usize {
        lock(&self.state).events.len()
    }

    /// Puts a step on a stream.
    pub fn put(&self, stream: Stream, step: Step) {
        // An allocation that goes on keeps launches waiting.
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
        let step = Step {
            is_kernel: true,
            ..Step::once(uses, work)
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
        if self.has_neighbours.load(Ordering::SeqCst) {
            return;
        }
        let state = lock(&self.state);
        let submitted = state.submitted.get(&state.place(word)).copied();
        drop(state);
        let is_set = submitted.is_some_and(|queued| FlagWait::has_come(queued, value));
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

fn word_at<'a>(at: Address) -> &'a AtomicU32 {
    // SAFETY: words are of pages that are there as long as steps use them.
    unsafe { &*std::ptr::with_exposed_provenance(at.0 as usize) }
}

/// Returns whether a wait is over, as the kernel sees it.
fn is_over(wait: FlagWait) -> bool {
    let word = |at: Address| word_at(at).load(Ordering::Acquire);
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
