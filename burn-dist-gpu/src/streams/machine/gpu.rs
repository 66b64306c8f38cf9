//! One rank's access to a simulated GPU: the driver's calls.

use super::{
    ALLOCATES_MAX, ATTACHED, Machine, SLOW, State, Step, Until, WORDS, assert_attached, read,
    word_at, write,
};
use crate::device::{Address, DeviceError, Event, Gpu, Stream};
use crate::peer::api::{Copies, Identity};
use crate::streams::api::{FlagWait, Signals, Words};
use crate::symmetric::api::{Mapping, Symmetric};
use crate::symmetric::os::{self, Descriptor, Page};
use burn_dist_comm::lock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// One rank's access to its GPU.
pub struct SimulatedGpu {
    machine: Arc<Machine>,
    device: usize,
}

impl Machine {
    /// Returns a rank's access to its GPU.
    pub fn gpu(self: &Arc<Self>, device: usize) -> Arc<SimulatedGpu> {
        Arc::new(SimulatedGpu {
            machine: Arc::clone(self),
            device,
        })
    }
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
        let slow = *lock(&self.machine.slow);
        if slow == Some((function, self.device)) {
            std::thread::sleep(SLOW);
        }
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
        self.machine.put(stream, Step::once(uses, work));
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
        let mut state = lock(&self.machine.state);
        let place = state.place(word);
        state.submitted.insert(place, value);
        drop(state);
        self.put(stream, Vec::new(), move || {
            word_at(word).store(value, Ordering::Release);
        });
        Ok(())
    }
}

impl SimulatedGpu {
    /// Keeps a page that processes share, and returns where it is.
    fn keep(&self, page: Page) -> Address {
        let address = page.start().expose_provenance() as u64;
        lock(&self.machine.state).pages.insert(address, page);
        Address(address)
    }

    /// Forgets a page that no stream uses.
    fn let_go(&self, start: Address) {
        let page = lock(&self.machine.state).pages.remove(&start.0);
        let page = page.expect("a page that was kept, and let go of once");
        let range = start.0..start.0 + page.bytes() as u64;
        self.machine.assert_unused(&range, "a page was unmapped");
    }
}

impl Symmetric for SimulatedGpu {
    fn create(&self, bytes: usize) -> Result<(Mapping, Descriptor), DeviceError> {
        self.note("cuMemCreate")?;
        let memory = os::memory(bytes).map_err(DeviceError::of_system("cuMemCreate"))?;
        let mapping = self.import(&memory, bytes)?;
        Ok((mapping, memory))
    }

    fn import(&self, descriptor: &Descriptor, bytes: usize) -> Result<Mapping, DeviceError> {
        self.note("cuMemMap")?;
        let page = Page::map(descriptor, bytes).map_err(DeviceError::of_system("cuMemMap"))?;
        let address = self.keep(page);
        Ok(Mapping { address, bytes })
    }

    unsafe fn unmap(&self, mapping: Mapping) {
        assert_attached("cuMemUnmap");
        self.let_go(mapping.address);
    }

    fn register(&self, page: &Page) -> Result<Address, DeviceError> {
        self.note("cuMemHostRegister")?;
        Ok(self.keep(page.clone()))
    }

    unsafe fn unregister(&self, page: &Page) {
        assert_attached("cuMemHostUnregister");
        self.let_go(Address(page.start().expose_provenance() as u64));
    }

    fn wait_for(&self, stream: Stream, word: Address, value: u32) -> Result<(), DeviceError> {
        self.note("cuStreamWaitValue32_v2")?;
        self.machine.assert_submitted(word, value);
        let bytes = size_of::<AtomicU32>() as u64;
        let step = Step {
            poll: Box::new(move || {
                let found = word_at(word).load(Ordering::Acquire);
                FlagWait::has_come(found, value)
            }),
            uses: [word].map(|at| at.0..at.0 + bytes).into(),
            is_kernel: false,
        };
        self.machine.put(stream, step);
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
