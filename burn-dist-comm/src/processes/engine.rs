//! The progress engine: whoever waits drives it, and else a thread of its own.
//!
//! Handing a small call to another thread and being woken by it takes longer than the call. So a rank that starts a
//! call drives the engine itself, and so does one that waits, if nobody else does; the thread is there for the time in
//! which all ranks compute. Libraries that only one thread may call are left to that thread.
//!
//! Every queue has a bound ([`Limits`]). Ranks that start calls wait while too much has not left this process; what
//! comes from others too early ends the mesh with an error that names them.

use super::limits::Limits;
use super::membership::Introduced;
use super::peer::Peer;
use super::progress::{Commands, Progress, Status};
use crate::sync::lock;
use crate::transport::Transport;
use crate::{CommError, StartError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps between looks: from the first value while there is much to do, up to the others.
const NAP: Duration = Duration::from_micros(20);
const BUSY_NAP_MAX: Duration = Duration::from_micros(100);
const IDLE_NAP_MAX: Duration = Duration::from_micros(500);

/// How long a rank whose answer has come stays for messages in flight: waking the thread for them would take
/// as long.
const LINGER: Duration = Duration::from_micros(10);

/// How long a rank looks for messages in vain before it sleeps until it is woken.
const HELP_MAX: Duration = Duration::from_millis(2);

/// How long the end of a program waits at most for others after a fault.
const AFTER_FAULT: Duration = Duration::from_secs(2);

/// The engine of a process; ends, once everything is sent, with its last handle.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
    status: Arc<Status>,
    limits: Limits,
}

struct Shared {
    commands: Commands,
    /// `None` once it has ended.
    progress: Mutex<Option<Progress>>,
    /// True if other threads than the engine's may drive it.
    is_open: bool,
    /// How often other threads have.
    num_helped: AtomicUsize,
}

impl Shared {
    /// Returns the engine's state, unless somebody else drives it.
    fn progress(&self) -> Option<MutexGuard<'_, Option<Progress>>> {
        match self.progress.try_lock() {
            Ok(progress) => Some(progress),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sees to commands that nobody sees to.
    fn pass_on(&self) {
        // Whoever has the lock looks at the commands once more after giving it back, as this does.
        while !lock(&self.commands).is_empty()
            && let Some(mut progress) = self.progress()
            && let Some(progress) = progress.as_mut()
        {
            self.num_helped.fetch_add(1, Ordering::Relaxed);
            progress.turn(&self.commands);
        }
    }

    /// The thread: has a look if nobody else has had one lately, so that it disturbs nobody.
    fn run(&self) {
        let (mut nap, mut seen) = (NAP, 0);
        loop {
            let helped = self.num_helped.load(Ordering::Relaxed);
            let (mut nap_max, mut found) = (BUSY_NAP_MAX, false);
            if std::mem::replace(&mut seen, helped) != helped {
                // Whoever stops helping while there is something to do wakes this thread.
                (nap, nap_max) = (IDLE_NAP_MAX, IDLE_NAP_MAX);
            } else if let Some(mut guard) = self.progress()
                && let Some(progress) = guard.as_mut()
            {
                found = progress.turn(&self.commands);
                nap_max = match (progress.is_moving(), progress.is_busy()) {
                    (true, _) => NAP,
                    (false, true) => BUSY_NAP_MAX,
                    (false, false) => IDLE_NAP_MAX,
                };
                if progress.is_over() {
                    progress.tell_early_end();
                    // It ends in the thread in which it began.
                    match progress.is_deserted() {
                        // Ending MPI would wait for processes that are gone.
                        true => std::mem::forget(guard.take()),
                        false => drop(guard.take()),
                    }
                    return;
                }
            }
            // What came while this drove the engine.
            if self.is_open {
                self.pass_on();
            }
            nap = if found { NAP } else { (nap * 2).min(nap_max) };
            std::thread::park_timeout(nap);
        }
    }
}

impl Engine {
    /// Starts the thread and, in it, the transport.
    ///
    /// # Errors
    /// The transport's, or that the system starts no thread.
    pub(crate) fn start<T: Transport + 'static>(
        transport: impl FnOnce() -> Result<T, StartError> + Send + 'static,
        limits: Limits,
    ) -> Result<Self, StartError> {
        let (started, starts) = channel();
        let status = Arc::<Status>::default();
        let seen = Arc::clone(&status);
        let run = move || {
            let shared = transport().map(|transport| {
                let (process, is_open) = (transport.process(), transport.is_for_all_threads());
                let progress = Progress::new(Box::new(transport), seen, &limits);
                let shared = Shared {
                    commands: Commands::default(),
                    progress: Mutex::new(Some(progress)),
                    is_open,
                    num_helped: AtomicUsize::new(0),
                };
                (process, Arc::new(shared))
            });
            let _ = started.send(shared.clone());
            if let Ok((_, shared)) = shared {
                shared.run();
            }
        };
        let thread = std::thread::Builder::new().name("engine".into());
        let thread = thread.spawn(run).map_err(|error| {
            StartError::temporary(format!(
                "the system starts no thread for messages: {error} (how many a user may have, `ulimit -u` says)"
            ))
        })?;
        let (process, shared) = starts
            .recv()
            .expect("the thread answers before it does anything else")?;
        Ok(Self {
            shared,
            thread: Some(thread),
            process,
            status,
            limits,
        })
    }

    /// The number of this process.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Waits until all processes have introduced themselves, and returns who they are.
    ///
    /// # Errors
    /// Who is of another version, or has not been heard of in time.
    pub(crate) fn peers(&self, timeout: Duration) -> Result<Arc<[Arc<Peer>]>, StartError> {
        let met = self.status.introduced.wait(timeout, |state| match state {
            Introduced::Waiting(_) => None,
            Introduced::All(peers) => Some(Ok(Arc::clone(peers))),
            Introduced::Failed(error) => Some(Err(error.clone())),
        });
        met.unwrap_or_else(|| {
            let silent = self.status.introduced.look(|state| match state {
                Introduced::Waiting(silent) => silent.iter().map(u32::to_string).collect(),
                Introduced::All(_) | Introduced::Failed(_) => Vec::new(),
            });
            Err(StartError::temporary(format!(
                "no word from process {} in {:.0} s: is it running?",
                silent.join(", "),
                timeout.as_secs_f64()
            )))
        })
    }

    /// Waits while too much has not left this process, until `is_stopped`.
    ///
    /// # Errors
    /// How many bytes these are, after `timeout`.
    pub(crate) fn wait_for_room(
        &self,
        timeout: Duration,
        is_stopped: impl Fn() -> bool,
    ) -> Result<(), usize> {
        let unsent = || self.status.unsent_bytes.load(Ordering::Relaxed);
        let has_room = || {
            unsent() <= self.limits.unsent_bytes_max
                && lock(&self.shared.commands).len() <= self.limits.commands_max
        };
        if has_room() {
            return Ok(());
        }
        let start = Instant::now();
        while !has_room() && !is_stopped() {
            if start.elapsed() > timeout {
                return Err(unsent());
            }
            self.help(false, NAP, has_room);
            self.wake();
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Has a command seen to with the next one.
    pub(super) fn queue(&self, command: impl FnOnce(&mut Progress) + Send + 'static) {
        lock(&self.shared.commands).push_back(Box::new(command));
    }

    /// Has a command seen to, by this thread if it can.
    pub(super) fn command(&self, command: impl FnOnce(&mut Progress) + Send + 'static) {
        self.queue(command);
        match self.shared.is_open {
            true => self.shared.pass_on(),
            false => self.wake(),
        }
    }

    /// Drives the engine until `is_done`, for a while: for a thread that would have to wait anyway. Returns at once
    /// if somebody else does, and after `patience` also if bytes are still in flight.
    ///
    /// Where it `is_alone` on its core, it keeps the core meanwhile.
    pub(crate) fn help(&self, is_alone: bool, patience: Duration, is_done: impl Fn() -> bool) {
        if !self.shared.is_open {
            return;
        }
        let Some(mut guard) = self.shared.progress() else {
            return;
        };
        let start = Instant::now();
        // When something last moved: the end of a turn, which takes long where it moves much.
        let mut moved = start;
        let mut moves = false;
        while let Some(progress) = guard.as_mut()
            && !is_done()
        {
            let now = Instant::now();
            if moves {
                moved = now;
            }
            if now - moved >= HELP_MAX || now - start >= patience {
                break;
            }
            self.shared.num_helped.fetch_add(1, Ordering::Relaxed);
            let found = progress.turn(&self.shared.commands);
            // What is in flight would not move if nobody looked.
            moves = found || progress.is_moving();
            match is_alone {
                _ if found => {}
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        let end = Instant::now();
        while let Some(progress) = guard.as_mut()
            && progress.is_moving()
            && end.elapsed() < LINGER
        {
            progress.turn(&self.shared.commands);
        }
        let is_busy = guard.as_ref().is_some_and(Progress::is_busy);
        drop(guard);
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

    /// The other processes as people find them: one of them, if there are several.
    fn others(&self) -> String {
        const SHOWN: usize = 8;
        let named = |peers: &[Arc<Peer>]| {
            let all = (0..)
                .zip(peers)
                .filter(|(process, _)| *process != self.process);
            let all: Vec<_> = all
                .map(|(process, peer)| format!("process {process} ({peer})"))
                .collect();
            match all.len() {
                0..=SHOWN => all.join(" or "),
                more => format!(
                    "{} or one of {} more",
                    all[..SHOWN].join(", "),
                    more - SHOWN
                ),
            }
        };
        self.status.introduced.look(|state| match state {
            Introduced::All(peers) => named(peers),
            Introduced::Waiting(_) | Introduced::Failed(_) => "another process".into(),
        })
    }

    /// Ends the engine once everything is sent and the programs of the others end too: whoever still works answers, and
    /// is waited for. After a fault it waits no longer than a moment, because others may hang.
    ///
    /// # Errors
    /// [`CommError::Connection`], if it ends before the others, without a fault: one of them has not answered for
    /// `patience`, messages have failed, or what carries them does not end.
    pub(crate) fn finish(&self, patience: Duration) -> Result<(), CommError> {
        self.command(move |progress| progress.end(patience));
        self.command(Progress::quit);
        self.wake();
        let start = Instant::now();
        let has_fault = || self.status.has_stopped.load(Ordering::Relaxed);
        let is_running = || {
            self.thread
                .as_ref()
                .is_some_and(|thread| !thread.is_finished())
        };
        // Of one that comes while it waits, nobody has told.
        let is_told = has_fault();
        let mut fault_at = None;
        let (mut turns, mut turned, mut nap) = (0, start, NAP);
        while is_running() {
            let now = Instant::now();
            if has_fault() && now - *fault_at.get_or_insert(now) > AFTER_FAULT {
                return Ok(());
            }
            let seen = self.status.turns.load(Ordering::Relaxed);
            if std::mem::replace(&mut turns, seen) != seen {
                turned = now;
            }
            if now - turned > patience {
                return Err(CommError::Connection {
                    reason: format!(
                        "what carries them has not ended within {:.0} s, for which it waits for all: {} is stopped, \
                         hangs, or is cut off",
                        patience.as_secs_f64(),
                        self.others()
                    ),
                });
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(IDLE_NAP_MAX);
        }
        match lock(&self.status.early_end).take() {
            Some(reason) if !is_told => Err(CommError::Connection { reason }),
            _ => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.queue(Progress::quit);
        self.wake();
        // The last handle may go with a call that the engine itself gives up.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
