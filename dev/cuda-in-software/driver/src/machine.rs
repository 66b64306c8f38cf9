//! The machine: its streams, and the threads of the host that run what they hold.
//!
//! One operation runs at a time, chosen by the seed among those that may be next; one that takes long, for it may wait
//! for another, lets others run beside it. Work begins late, unless the host waits for some.

use crate::access::{self, Accesses};
use crate::clock::{Clock, Moment};
use crate::fault::{self, Fault};
use crate::meeting::Meeting;
use crate::memory::{self, Place};
use crate::queue::{Marker, Op, Stream, Work};
use crate::setup::setup;
use crate::status::{ILLEGAL_ADDRESS, Status};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long an operation runs before others may run beside it.
const LONG: Duration = Duration::from_millis(20);

/// How late work begins at most, in microseconds.
const LATE_MAX: u64 = 2_000;

/// How often to look at words that streams wait for.
const POLL: Duration = Duration::from_millis(1);

pub(crate) struct State {
    pub(crate) streams: Vec<Stream>,
    /// The stream of each device that programs name by zero.
    nulls: Vec<usize>,
    /// The first fault of each device, which all later calls return.
    faults: Vec<Option<Status>>,
    /// What the host knows to be over. All its threads count as one: what they tell each other nobody sees.
    pub(crate) host: Arc<Clock>,
    random: u64,
    /// How many operations were put.
    put: u64,
    /// Calls that wait.
    waiting: usize,
    /// Work begins then, if nobody waits for it before.
    due: Instant,
    /// Since when operations run.
    running: Vec<Instant>,
    threads: usize,
    /// Operations that each device has run.
    ran: Vec<u64>,
    /// What happened before the last write to each word that streams agree by.
    words: HashMap<u64, Clock>,
}

/// The machine.
pub(crate) struct Machine {
    state: Mutex<State>,
    changed: Condvar,
}

thread_local! {
    /// Whether this thread runs a callback, which must not call the driver.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Returns the machine.
pub(crate) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let devices = setup().devices;
        Machine {
            state: Mutex::new(State {
                streams: (0..devices)
                    .map(|device| Stream::new(device, true, true))
                    .collect(),
                nulls: (0..devices).collect(),
                faults: vec![None; devices],
                host: Arc::default(),
                random: setup().seed,
                put: 0,
                waiting: 0,
                due: Instant::now(),
                running: Vec::new(),
                threads: 0,
                ran: vec![0; devices],
                words: HashMap::new(),
            }),
            changed: Condvar::new(),
        }
    })
}

impl State {
    /// The next number of a sequence that looks random (SplitMix64, Steele and others, OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn null(&self, device: usize) -> usize {
        self.nulls[device]
    }

    pub(crate) fn fault(&self, device: usize) -> Option<Status> {
        self.faults[device]
    }

    fn fails(&mut self, device: usize, fault: &Fault) {
        if self.faults[device].is_none() {
            self.faults[device] = Some(fault.status);
            fault::note(fault);
        }
    }

    fn push(&mut self, stream: usize, call: &Arc<str>, work: Work) {
        self.put += 1;
        let op = Op {
            call: Arc::clone(call),
            number: self.put,
            host: Arc::clone(&self.host),
            work,
        };
        self.streams[stream].ops.push_back(op);
    }

    /// Puts a marker at the end of a stream.
    pub(crate) fn mark(&mut self, stream: usize, call: &Arc<str>) -> Arc<Marker> {
        let marker = Arc::new(Marker::default());
        self.push(stream, call, Work::Mark(Arc::clone(&marker)));
        marker
    }

    /// Whether a stream's next operation may run.
    fn is_ready(&self, at: usize) -> bool {
        let stream = &self.streams[at];
        let Some(op) = stream.ops.front() else {
            return false;
        };
        let hangs = setup().hangs;
        if hangs.is_some_and(|(of, after)| of == stream.device && self.ran[of] >= after) {
            return false;
        }
        !stream.is_busy
            && (self.faults[stream.device].is_some()
                || match &op.work {
                    Work::Wait(markers) => markers.iter().all(|marker| marker.come().is_some()),
                    Work::WaitValue {
                        address,
                        value,
                        flags,
                    } => has_come(*address, *value, *flags),
                    Work::Meet(meetings) => {
                        let mut clock = stream.clock.clone();
                        clock.join(&op.host);
                        for (meeting, member) in meetings {
                            meeting.arrives(*member, &clock, (at, stream.device));
                        }
                        let can_begin = |(meeting, _): &(Arc<Meeting>, _)| meeting.can_begin();
                        meetings.iter().any(can_begin) || are_over(meetings)
                    }
                    _ => true,
                })
    }
}

/// Whether a stream may go on that takes part in meetings.
fn are_over(meetings: &[(Arc<Meeting>, usize)]) -> bool {
    let mut meetings = meetings.iter();
    meetings.all(|(meeting, member)| meeting.is_over(*member))
}

/// `CU_STREAM_WAIT_VALUE_GEQ`, `EQ`, `AND` and `NOR`, of a word that is there.
fn has_come(address: u64, value: u32, flags: u32) -> bool {
    if memory::find(address).is_err() {
        // The operation itself says so.
        return true;
    }
    // SAFETY: memory is there, and words are aligned, which the call has checked.
    let found = unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire);
    match flags & 3 {
        0 => found.wrapping_sub(value) as i32 >= 0,
        1 => found == value,
        2 => found & value != 0,
        _ => !(found | value) != 0,
    }
}

impl Machine {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in the driver")
    }

    /// Puts work on a stream.
    pub(crate) fn put(&self, state: &mut State, stream: usize, call: &Arc<str>, work: Work) {
        let (device, blocks) = (
            state.streams[stream].device,
            state.streams[stream].is_blocking,
        );
        if blocks {
            // The null stream and those that block wait for each other.
            let null = state.null(device);
            let others: Vec<usize> = match stream == null {
                true => (0..state.streams.len())
                    .filter(|other| {
                        let other = &state.streams[*other];
                        other.device == device && other.is_blocking && !other.is_null
                    })
                    .collect(),
                false => vec![null],
            };
            let markers = others.iter().map(|other| state.mark(*other, call));
            let markers: Vec<_> = markers.collect();
            state.push(stream, call, Work::Wait(markers));
        }
        state.push(stream, call, work);
        self.begin(state);
    }

    /// Lets threads look at what there is, late.
    pub(crate) fn begin(&self, state: &mut State) {
        if state.running.is_empty() && state.due <= Instant::now() {
            let late = state.random() % LATE_MAX;
            state.due = Instant::now() + Duration::from_micros(late);
        }
        self.staff(state);
        self.changed.notify_all();
    }

    /// Sees to it that a thread is free.
    fn staff(&self, state: &mut State) {
        if state.threads <= state.running.len() {
            state.threads += 1;
            let thread = thread::Builder::new().name("software GPU".into());
            thread
                .spawn(|| {
                    // Whoever waits for this thread would wait for ever.
                    let _ = std::panic::catch_unwind(|| machine().work());
                    std::process::abort()
                })
                .expect("a thread for the machine");
        }
    }

    /// Waits until markers have come, and returns what the devices say.
    pub(crate) fn wait(&self, mut state: MutexGuard<'_, State>, markers: &[Arc<Marker>]) {
        state.waiting += 1;
        self.staff(&mut state);
        self.changed.notify_all();
        for marker in markers {
            let clock = loop {
                match marker.come() {
                    Some(clock) => break clock,
                    None => state = self.changed.wait(state).expect("no panic in the driver"),
                }
            };
            Arc::make_mut(&mut state.host).join(&clock);
        }
        state.waiting -= 1;
    }

    /// Runs operations, for ever.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let alone = state.running.iter().all(|since| now - *since > LONG);
            let is_time = state.waiting > 0 || now >= state.due;
            let ready: Vec<usize> = match alone && is_time {
                true => (0..state.streams.len())
                    .filter(|at| state.is_ready(*at))
                    .collect(),
                false => Vec::new(),
            };
            if ready.is_empty() {
                let idle = state.streams.iter().all(|stream| stream.ops.is_empty());
                let pause = if idle {
                    Duration::from_secs(3600)
                } else {
                    POLL
                };
                let paused = self.changed.wait_timeout(state, pause);
                state = paused.expect("no panic in the driver").0;
                continue;
            }
            let stream = ready[(state.random() % ready.len() as u64) as usize];
            state = self.step(state, stream);
        }
    }

    /// Runs the next operation of a stream.
    fn step<'a>(&'a self, mut guard: MutexGuard<'a, State>, at: usize) -> MutexGuard<'a, State> {
        let state = &mut *guard;
        let stream = &mut state.streams[at];
        let device = stream.device;
        let op = stream.ops.pop_front().expect("an operation that is ready");
        stream.clock.join(&op.host);
        if let Work::Wait(markers) = &op.work {
            for clock in markers.iter().filter_map(|marker| marker.come()) {
                stream.clock.join(&clock);
            }
            self.changed.notify_all();
            return guard;
        }
        let mut begun = Vec::new();
        if let Work::Meet(meetings) = &op.work {
            for (meeting, _) in meetings {
                if let Some(clock) = meeting.begin() {
                    stream.clock.join(&clock);
                    begun.push(Arc::clone(meeting));
                } else if let Some(clock) = meeting.done.come() {
                    stream.clock.join(&clock);
                }
            }
            if begun.is_empty() && are_over(meetings) {
                let failed = meetings.iter().find_map(|(meeting, _)| meeting.failed());
                if let Some(fault) = failed {
                    state.fails(device, &fault);
                }
                // The others have done its part: it is an operation all the same.
                let stream = &mut state.streams[at];
                stream.named(&op);
                stream.clock.tick(at);
                self.changed.notify_all();
                return guard;
            }
        }
        if let Work::WaitValue { address, .. } = &op.work {
            // The host writes such words as well, when something is over that it knows of.
            stream.clock.join(&state.host);
            if let Some(clock) = state.words.get(address) {
                stream.clock.join(clock);
            }
        }
        stream.named(&op);
        let epoch = stream.clock.tick(at);
        let now = Moment {
            epoch,
            clock: Arc::new(stream.clock.clone()),
        };
        if let Work::Mark(marker) = &op.work {
            marker.comes(now.clock);
            self.changed.notify_all();
            return guard;
        }
        if state.faults[device].is_some() {
            // A device that has failed does nothing more.
            return guard;
        }
        stream.is_busy = true;
        state.ran[device] += 1;
        let since = Instant::now();
        state.running.push(since);
        self.staff(state);
        // The host sees a word of its memory, and what a callback does.
        let tells = match &op.work {
            Work::WriteValue { address, .. } => {
                state.words.entry(*address).or_default().join(&now.clock);
                memory::find(*address).is_ok_and(|word| word.place == Place::Host)
            }
            Work::Callback(..) => true,
            _ => false,
        };
        if tells {
            Arc::make_mut(&mut state.host).join(&now.clock);
        }
        drop(guard);
        let met = match &op.work {
            Work::Meet(meetings) => Some(meetings.clone()),
            _ => None,
        };
        let (call, host, number) = (Arc::clone(&op.call), Arc::clone(&op.host), op.number);
        let done = self.run(op, device, &now, &begun);
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(meetings) = met
            && (meetings.len() > 1 || !are_over(&meetings))
        {
            // Others of its meetings are still to come, or came meanwhile, and are to be joined.
            let work = Work::Meet(meetings);
            state.streams[at].ops.push_front(Op {
                call,
                number,
                host,
                work,
            });
        }
        let running = state.running.iter().position(|other| *other == since);
        state.running.swap_remove(running.expect("it runs"));
        state.streams[at].is_busy = false;
        if let Err(fault) = done {
            state.fails(device, &fault);
        }
        self.changed.notify_all();
        guard
    }

    /// What a kernel has read in words that others write happened before what follows it.
    fn learned(&self, at: usize, accesses: &Accesses) {
        let words = accesses.words();
        if words.is_empty() {
            return;
        }
        let mut state = self.lock();
        let state = &mut *state;
        for word in words {
            if let Some(clock) = state.words.get(&word) {
                state.streams[at].clock.join(clock);
            }
            if memory::find(word).is_ok_and(|word| word.place == Place::Host) {
                state.streams[at].clock.join(&state.host);
            }
        }
    }

    fn run(
        &self,
        op: Op,
        device: usize,
        now: &Moment,
        begun: &[Arc<Meeting>],
    ) -> Result<(), Fault> {
        let stream = stream_name(now.epoch.stream);
        let call = format!("{} (device {device}, {stream})", op.call);
        let this = op.number;
        let name = |race: &crate::shadow::Race| {
            let state = self.lock();
            let stream = &state.streams[race.earlier.stream];
            let (name, number) = stream.name(race.earlier);
            let put = if number > this { ", put later," } else { "" };
            format!("{name} of {}{put}", stream_name(race.earlier.stream))
        };
        let accesses = Accesses::new(device, false);
        let done = match op.work {
            Work::Run(body) => body(&accesses).and_then(|()| {
                self.learned(now.epoch.stream, &accesses);
                accesses.in_order(now, &name)
            }),
            Work::Meet(_) => begun.iter().try_for_each(|meeting| {
                meeting.run(&Accesses::new(device, true), now, &name)?;
                meeting.done.comes(Arc::clone(&now.clock));
                Ok(())
            }),
            Work::WriteValue { address, value } => word(&accesses, address, |word| {
                word.store(value, Ordering::Release);
            }),
            Work::WaitValue { address, .. } => word(&accesses, address, |_| {}),
            Work::Callback(function, data) => {
                IN_CALLBACK.set(true);
                // SAFETY: the program has promised that the function takes this.
                unsafe { function(data.0) };
                IN_CALLBACK.set(false);
                Ok(())
            }
            Work::Give(allocation) => {
                let mut shadow = allocation.shadow.lock().expect("no panic in a shadow");
                shadow.born(now.epoch);
                Ok(())
            }
            Work::TakeBack(allocation) => access::all_over(&allocation, now, &name)
                .and_then(|()| memory::free(allocation.start, "cuMemFreeAsync")),
            Work::Mark(_) | Work::Wait(_) => unreachable!("they are over at once"),
        };
        done.map_err(|fault| fault.within(&call))
    }
}

/// The name of a stream in messages.
fn stream_name(at: usize) -> String {
    match at.checked_sub(setup().devices) {
        Some(number) => format!("stream {}", number + 1),
        None => "the null stream".into(),
    }
}

/// Does something to a word that streams agree by.
fn word(accesses: &Accesses, address: u64, then: impl FnOnce(&AtomicU32)) -> Result<(), Fault> {
    use crate::access::How;
    let of = accesses.of(address, 4, How::Atomic)?;
    if of.allocation.is_freed() || address + 4 > of.allocation.end() {
        let text = format!(
            "changes 4 bytes at {address:#x}, past {}",
            of.allocation.text()
        );
        return Err(Fault::new(ILLEGAL_ADDRESS, text));
    }
    access::written(
        &of.allocation,
        &(address - of.allocation.start..address + 4 - of.allocation.start),
        true,
    );
    // SAFETY: memory is there, and the word is aligned, which the call has checked.
    then(unsafe { AtomicU32::from_ptr(address as *mut u32) });
    Ok(())
}
