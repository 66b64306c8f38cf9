//! Who sees to the traffic between processes: a thread of its own, and whoever waits.
//!
//! Handing a small call to another thread and being woken by it takes longer than the call. So a rank that starts a
//! call passes it on itself, and one that waits looks for messages itself, if nobody else does; the thread is there for
//! the time in which all ranks compute. Libraries that only one thread may call are left to that thread.

use super::carrier::Carrier;
use super::peers::Introductions;
use super::remote::Command;
use super::traffic::Traffic;
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps between looks: from the first value while there is much to do, up to the others.
const NAP: Duration = Duration::from_micros(20);
const BUSY_NAP_MAX: Duration = Duration::from_micros(100);
const IDLE_NAP_MAX: Duration = Duration::from_micros(500);

/// How long a rank that has what it waited for stays for what is still on its way: waking the thread for it would take
/// as long.
const LINGER: Duration = Duration::from_micros(10);

/// How long a rank looks for messages in vain before it sleeps until it is woken.
const HELP_MAX: Duration = Duration::from_millis(2);

/// How long the end of a program waits at most for others after a fault.
const AFTER_FAULT: Duration = Duration::from_secs(2);

/// What is asked of the traffic, in order.
pub(super) type Commands = Mutex<VecDeque<Command>>;

/// Sees to the traffic of a process; ends, once everything is sent, with its last handle.
pub(super) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
    peers: Arc<Introductions>,
    /// Whether a mesh has stopped before its end.
    has_stopped: Arc<AtomicBool>,
}

struct Shared {
    commands: Commands,
    /// `None` once it has ended.
    traffic: Mutex<Option<Traffic>>,
    /// Whether other threads than the engine's may see to it.
    is_open: bool,
    /// How often other threads have.
    num_helped: AtomicUsize,
}

impl Shared {
    /// Returns the traffic, unless somebody else sees to it.
    fn traffic(&self) -> Option<MutexGuard<'_, Option<Traffic>>> {
        match self.traffic.try_lock() {
            Ok(traffic) => Some(traffic),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sees to commands that nobody sees to.
    fn pass_on(&self) {
        // Whoever has the lock looks at the commands once more after giving it back, as this does.
        while !lock(&self.commands).is_empty()
            && let Some(mut traffic) = self.traffic()
            && let Some(traffic) = traffic.as_mut()
        {
            self.num_helped.fetch_add(1, Ordering::Relaxed);
            traffic.turn(&self.commands);
        }
    }

    /// The thread: has a look if nobody else has had one lately, so that it is not in their way.
    fn run(&self) {
        let (mut nap, mut seen) = (NAP, 0);
        loop {
            let helped = self.num_helped.load(Ordering::Relaxed);
            let (mut nap_max, mut found) = (BUSY_NAP_MAX, false);
            if std::mem::replace(&mut seen, helped) != helped {
                // Whoever stops helping while there is something to do wakes this thread.
                (nap, nap_max) = (IDLE_NAP_MAX, IDLE_NAP_MAX);
            } else if let Some(mut place) = self.traffic()
                && let Some(traffic) = place.as_mut()
            {
                found = traffic.turn(&self.commands);
                nap_max = match (traffic.is_moving(), traffic.is_busy()) {
                    (true, _) => NAP,
                    (false, true) => BUSY_NAP_MAX,
                    (false, false) => IDLE_NAP_MAX,
                };
                if traffic.is_over() {
                    // It ends in the thread in which it began.
                    match traffic.is_deserted() {
                        // Ending MPI would wait for processes that are gone.
                        true => std::mem::forget(place.take()),
                        false => drop(place.take()),
                    }
                    return;
                }
            }
            // What came while this had the traffic.
            if self.is_open {
                self.pass_on();
            }
            nap = if found { NAP } else { (nap * 2).min(nap_max) };
            std::thread::park_timeout(nap);
        }
    }
}

impl Engine {
    /// Starts the thread and, in it, the carrier.
    ///
    /// # Errors
    /// The carrier's.
    pub fn start<C: Carrier + 'static, E: Send + 'static>(
        carrier: impl FnOnce() -> Result<C, E> + Send + 'static,
    ) -> Result<Self, E> {
        let (started, starts) = channel();
        let has_stopped = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&has_stopped);
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || match carrier() {
                Ok(carrier) => {
                    let process = carrier.process();
                    let peers = Arc::new(Introductions::new(carrier.num_processes()));
                    let is_open = carrier.is_for_all_threads();
                    let traffic = Traffic::new(Box::new(carrier), Arc::clone(&peers), stops);
                    let shared = Arc::new(Shared {
                        commands: Commands::default(),
                        traffic: Mutex::new(Some(traffic)),
                        is_open,
                        num_helped: AtomicUsize::new(0),
                    });
                    let _ = started.send(Ok((process, peers, Arc::clone(&shared))));
                    shared.run();
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            })
            .expect("the system can start a thread");
        let (process, peers, shared) = starts
            .recv()
            .expect("the thread answers before it does anything else")?;
        Ok(Self {
            shared,
            thread: Some(thread),
            process,
            peers,
            has_stopped,
        })
    }

    /// The number of this process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Who has introduced themselves.
    pub fn peers(&self) -> &Introductions {
        &self.peers
    }

    /// Has a command seen to with the next one.
    pub fn queue(&self, command: Command) {
        lock(&self.shared.commands).push_back(command);
    }

    /// Has a command seen to, by this thread if it can.
    pub fn command(&self, command: Command) {
        self.queue(command);
        match self.shared.is_open {
            true => self.shared.pass_on(),
            false => self.wake(),
        }
    }

    /// Sees to the traffic until `is_done`, for a while: for a thread that would have to wait anyway. Returns at once
    /// if somebody else does, and after `patience` also if bytes are still on their way.
    ///
    /// Where it `is_alone` on its core, it keeps the core meanwhile.
    pub fn help(&self, is_alone: bool, patience: Duration, is_done: impl Fn() -> bool) {
        if !self.shared.is_open {
            return;
        }
        let Some(mut place) = self.shared.traffic() else {
            return;
        };
        let start = Instant::now();
        // When something last moved.
        let mut moved = start;
        while let Some(traffic) = place.as_mut()
            && !is_done()
        {
            let now = Instant::now();
            if now - moved >= HELP_MAX || now - start >= patience {
                break;
            }
            self.shared.num_helped.fetch_add(1, Ordering::Relaxed);
            // What is on its way would not move if nobody looked.
            let found = traffic.turn(&self.shared.commands);
            if found || traffic.is_moving() {
                moved = now;
            }
            match is_alone {
                _ if found => {}
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        let end = Instant::now();
        while let Some(traffic) = place.as_mut()
            && traffic.is_moving()
            && end.elapsed() < LINGER
        {
            traffic.turn(&self.shared.commands);
        }
        let is_busy = place.as_ref().is_some_and(Traffic::is_busy);
        drop(place);
        self.shared.pass_on();
        if is_busy {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Ends the engine once everything is sent and the programs of the others end too, or after `patience`: what is
    /// still to be sent then is given up. After a fault patience is short, because others may hang.
    pub fn finish(&self, patience: Duration) {
        self.command(Command::End);
        self.command(Command::Quit);
        self.wake();
        let start = Instant::now();
        let patience = match self.has_stopped.load(Ordering::Relaxed) {
            true => patience.min(AFTER_FAULT),
            false => patience,
        };
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
        lock(&self.shared.commands).push_back(Command::Quit);
        self.wake();
        // The last handle may go with a call that the engine itself gives up.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
