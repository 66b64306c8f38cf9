//! One start of all processes of this machine, from the first to the last of them.

use super::events::{Events, What, is_interrupt};
use super::limits::OpenFiles;
use super::options::{Options, RunError, Transport, is_foreign};
use super::others::Others;
use super::outcome::{Failed, Outcome};
use super::output::{Screen, Source, Stream, Tail, forward};
use super::policy::{Interrupt, Policy};
use super::starters::{Starters, status_text};
use super::supervisor::{self, End, Word};
use super::terminal::Terminal;
use crate::rendezvous::{self, Server, Token};
use burn_dist_comm::{Peer, lock};
use nix::libc::SIGWINCH;
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the processes may take to be started.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long what started them may take to end after them.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long supervisors may take to end their programs when the launcher leaves early.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// How long the last words of a failed process may take to arrive.
const LAST_WORDS_PATIENCE: Duration = Duration::from_millis(200);
/// How often the launcher looks at the clock by itself.
const TICK: Duration = Duration::from_millis(500);

/// A process as the launcher sees it.
struct Supervisor {
    control: Option<UnixStream>,
    /// True if the supervisor itself still holds the connection.
    is_connected: bool,
    /// The files that its program writes to, until the supervisor has them.
    files: Option<(OwnedFd, OwnedFd)>,
    pid: Option<u32>,
    tail: Arc<Tail>,
}

/// Tells the launchers of other machines of a failure here.
struct Machines<'a> {
    others: Option<&'a Others>,
    /// When to tell.
    due: Option<Instant>,
    is_told: bool,
}

impl Machines<'_> {
    /// Returns true if a failure is old enough to be reported: what the process wrote last has been read by then.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = *self.due.get_or_insert(now + LAST_WORDS_PATIENCE);
        !self.is_told && now >= due
    }

    /// Tells of a failure, once.
    fn tell(&mut self, failed: &Failed) {
        let is_told = std::mem::replace(&mut self.is_told, true);
        if let (Some(others), false) = (self.others, is_told) {
            others.fail(failed.heard());
        }
    }
}

/// The result of a start.
pub(super) struct Report {
    pub outcome: Outcome<Failed>,
    /// True if a signal asked for the end, before or after.
    pub is_interrupted: bool,
    /// True if the launcher has left before all was ended and shown.
    pub is_cut_short: bool,
    /// The processes that still run.
    pub left: Vec<u32>,
}

/// One start of all processes of this machine.
pub(super) struct Start<'a> {
    pub options: &'a Options,
    pub token: &'a Token,
    pub screen: &'a Arc<Screen>,
    pub events: &'a Events,
    /// The limit that processes are started with, not that of the launcher.
    pub open_files: OpenFiles,
    pub restart: u32,
    pub socket: PathBuf,
    /// The folder for shared memory of the processes.
    pub memory: Option<&'a Path>,
}

impl Start<'_> {
    /// Returns the rendezvous, if this launcher keeps it, and where it is.
    pub(super) fn rendezvous(&self) -> Result<(Option<Server>, String), RunError> {
        let asked = self.options.rendezvous.as_deref();
        if let (Some(address), true) = (asked, self.options.node_rank > 0) {
            return Ok((None, address.to_string()));
        }
        let several = self.options.nnodes > 1;
        let options = rendezvous::Options::new(self.options.world_size() as u32)
            .launchers(if several {
                self.options.nnodes as u32
            } else {
                0
            })
            .restarts(self.restart);
        let server = Server::listen(asked.unwrap_or("127.0.0.1:0"), self.token.clone(), options)?;
        let address = match asked {
            // Others know it by its name.
            Some(address) if !address.ends_with(":0") => address.to_string(),
            _ => server.address().to_string(),
        };
        Ok((Some(server), address))
    }

    /// Starts the processes, and stays with them until all have ended and their output is shown.
    pub(super) fn run(&self, address: &str, others: Option<&Others>) -> Result<Report, RunError> {
        let system = |what| move |source| RunError::System { what, source };
        let pipes = system("make pipes for the output of processes");
        // Open as long as processes may write.
        let (running, writers) = std::io::pipe().map_err(pipes)?;
        let (mut supervisors, readers, terminals) =
            self.supervisors(&Arc::new(running)).map_err(pipes)?;
        let listener =
            UnixListener::bind(&self.socket).map_err(system("make a socket for supervisors"))?;
        let is_closed = Arc::new(AtomicBool::new(false));
        self.accept_supervisors(listener, Arc::clone(&is_closed))
            .map_err(system("start a thread"))?;
        let said = Arc::new(Tail::default());
        // Those who are killed here if anything fails on the way.
        let mut starters = Starters::default();
        self.start(address, &said, &mut starters)?;
        let Options {
            nproc,
            linger,
            grace,
            ..
        } = *self.options;
        let mut policy = Policy::new(nproc, linger, grace);
        let mut machines = Machines {
            others,
            due: None,
            is_told: false,
        };
        let running = (&mut supervisors[..], &mut starters);
        let end = self.supervise(&mut policy, running, &mut machines, &said, &terminals);
        // No more supervisors.
        is_closed.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.socket);
        let mut interrupt = self.end_supervisors(&mut policy, &mut supervisors);
        drop(starters);
        let is_left = |local: &usize| supervisors[*local].is_connected && policy.is_running(*local);
        let left: Vec<u32> = (0..nproc)
            .filter(is_left)
            .filter_map(|local| supervisors[local].pid)
            .collect();
        let outcome = policy
            .outcome()
            .map(|(local, end)| self.failed(&supervisors[local], local, end));
        let first = policy.first_failure();
        let first =
            first.map(|(local, end)| self.failed(&supervisors[*local], *local, end.clone()));
        drop((supervisors, terminals, writers));
        if interrupt.is_none() && left.is_empty() {
            interrupt = self.drain(readers);
        }
        if let Some(first) = first {
            machines.tell(&first);
        }
        end?;
        let elsewhere = others.filter(|_| policy.is_elsewhere());
        let outcome = match elsewhere.and_then(Others::heard) {
            Some(heard) => Outcome::Elsewhere(heard),
            None => outcome,
        };
        Ok(Report {
            // All went well but for the output that nobody reads.
            outcome: match (outcome, interrupt) {
                (Outcome::Good, Some(signal)) => Outcome::Stopped {
                    signal,
                    code: End::Signalled(signal).exit_code(),
                    after: None,
                },
                (outcome, _) => outcome,
            },
            is_interrupted: interrupt.is_some() || policy.is_interrupted(),
            is_cut_short: interrupt.is_some() || !left.is_empty(),
            left,
        })
    }

    /// Makes what each process writes to, and starts passing it on.
    #[allow(clippy::type_complexity, reason = "three lists of one go")]
    fn supervisors(
        &self,
        running: &Arc<PipeReader>,
    ) -> std::io::Result<(
        Vec<Supervisor>,
        Vec<JoinHandle<()>>,
        Vec<(Stream, Terminal)>,
    )> {
        let (mut supervisors, mut readers, mut terminals) = (Vec::new(), Vec::new(), Vec::new());
        for local in 0..self.options.nproc {
            let rank = self.options.first_rank() + local;
            let tail = Arc::new(Tail::default());
            let mut open = |stream: Stream| -> std::io::Result<OwnedFd> {
                let is_terminal = rank == 0 && self.screen.is_terminal(stream);
                let is_raw = is_terminal || rank == 0 && self.options.quiet_prefix;
                let kept = (stream == Stream::Stderr).then(|| Arc::clone(&tail));
                let (from, end): (File, OwnedFd) = if is_terminal {
                    let (terminal, end) = match stream {
                        Stream::Stdout => Terminal::open(std::io::stdout().as_fd())?,
                        Stream::Stderr => Terminal::open(std::io::stderr().as_fd())?,
                    };
                    let from = terminal.reader()?;
                    terminals.push((stream, terminal));
                    (from, end)
                } else {
                    let (from, end) = std::io::pipe()?;
                    (OwnedFd::from(from).into(), end.into())
                };
                let source = Source::new(from, Arc::clone(running));
                let screen = Arc::clone(self.screen);
                let thread = std::thread::Builder::new().name("output".into());
                readers.push(
                    thread.spawn(move || forward(source, &screen, stream, rank, is_raw, kept))?,
                );
                Ok(end)
            };
            let files = (open(Stream::Stdout)?, open(Stream::Stderr)?);
            supervisors.push(Supervisor {
                control: None,
                is_connected: false,
                files: Some(files),
                pid: None,
                tail,
            });
        }
        Ok((supervisors, readers, terminals))
    }

    /// Takes the supervisors' connections in a thread of its own, until one comes after it was closed.
    fn accept_supervisors(
        &self,
        listener: UnixListener,
        is_closed: Arc<AtomicBool>,
    ) -> std::io::Result<()> {
        let teller = self.events.teller(self.restart);
        let (first_rank, nproc) = (self.options.first_rank(), self.options.nproc);
        let thread = std::thread::Builder::new().name("supervisors".into());
        let accepting = thread.spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if is_closed.load(Ordering::Acquire) {
                    return;
                }
                let mut first = String::new();
                // Byte by byte: what follows is read elsewhere.
                let _ = BufReader::with_capacity(1, &stream).read_line(&mut first);
                let Some(Word::Here { rank }) = Word::read(&first) else {
                    continue;
                };
                let local = rank.checked_sub(first_rank);
                let Some(local) = local.filter(|local| *local < nproc) else {
                    continue;
                };
                let Ok(listening) = stream.try_clone() else {
                    continue;
                };
                teller.tell(What::Connected(local, stream));
                let teller = teller.clone();
                let told = teller.clone();
                let thread = std::thread::Builder::new().name("supervisor".into());
                let listening = thread.spawn(move || {
                    supervisor::listen(listening, |word| teller.tell(What::Word(local, word)));
                    teller.tell(What::Gone(local));
                });
                if listening.is_err() {
                    told.tell(What::Gone(local));
                }
            }
        });
        accepting.map(drop)
    }

    /// Starts `mpirun`, or one supervisor per process.
    fn start(
        &self,
        address: &str,
        said: &Arc<Tail>,
        starters: &mut Starters,
    ) -> Result<(), RunError> {
        let system = |what| move |source| RunError::System { what, source };
        let here = std::env::current_exe().map_err(system("find the program burn-dist"))?;
        let transport = self.options.transport();
        let command =
            |program: &Path, arguments: &[&str], environment: Vec<(&'static str, String)>| {
                let mut command = Command::new(program);
                command.args(arguments);
                if transport == Transport::Mpi {
                    command.arg(&here);
                }
                command
                    .arg("supervise")
                    .arg(&self.socket)
                    .arg("--")
                    .args(&self.options.program);
                for (variable, _) in std::env::vars_os() {
                    if variable
                        .to_str()
                        .is_some_and(|variable| is_foreign(variable, transport))
                    {
                        command.env_remove(variable);
                    }
                }
                command.envs(
                    self.options
                        .shared_environment(address, self.token, self.restart),
                );
                command.envs(environment);
                // Signals from the terminal are for the launcher, which passes them on.
                command
                    .process_group(0)
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                let (parent, open_files) = (nix::unistd::getpid(), self.open_files);
                // SAFETY: only functions that may be called between fork and exec. A supervisor learns of our end by
                // its connection, and tidies up; `mpirun` would go on.
                unsafe {
                    command.pre_exec(move || {
                        open_files.set()?;
                        match transport {
                            Transport::Mpi => supervisor::end_with_parent(parent, Signal::SIGTERM),
                            Transport::Tcp => Ok(()),
                        }
                    })
                };
                command
            };
        // A process in the background cannot read from a terminal.
        let stdin = || match std::io::stdin().is_terminal() {
            true => Stdio::null(),
            false => Stdio::inherit(),
        };
        let mut watch = |index: usize, child: Child| {
            let teller = self.events.teller(self.restart);
            let ended = move |status| teller.tell(What::StarterEnded(index, status));
            let watched = starters.add(child, said, ended);
            watched.map_err(system("start a thread"))
        };
        match transport {
            Transport::Mpi => {
                let nproc = self.options.nproc.to_string();
                let arguments = ["-n", &nproc, "--bind-to", "none"];
                let environment = self.options.mpirun_environment(self.memory);
                let mut command = command(Path::new("mpirun"), &arguments, environment);
                let child = command.stdin(stdin()).spawn().map_err(RunError::NoMpirun)?;
                watch(0, child)?;
            }
            Transport::Tcp => {
                for local in 0..self.options.nproc {
                    let mut command = command(&here, &[], self.options.environment(local, address));
                    command.stdin(if self.options.first_rank() + local == 0 {
                        stdin()
                    } else {
                        Stdio::null()
                    });
                    let child = command.spawn().map_err(system("start a supervisor"))?;
                    watch(local, child)?;
                }
            }
        }
        Ok(())
    }

    /// Watches the processes until all have ended, or a third signal.
    fn supervise(
        &self,
        policy: &mut Policy,
        (supervisors, starters): (&mut [Supervisor], &mut Starters),
        machines: &mut Machines,
        said: &Tail,
        terminals: &[(Stream, Terminal)],
    ) -> Result<(), RunError> {
        let nproc = self.options.nproc;
        let began = Instant::now();
        let mut over_at = None;
        loop {
            let now = Instant::now();
            if policy.is_over() {
                for control in supervisors
                    .iter_mut()
                    .filter_map(|supervisor| supervisor.control.take())
                {
                    supervisor::dismiss(&control);
                }
                let patience = match policy.num_awaited() {
                    0 => END_PATIENCE,
                    _ => LEAVE_PATIENCE,
                };
                let are_gone = !supervisors.iter().any(|supervisor| supervisor.is_connected);
                let over_at = *over_at.get_or_insert(now);
                if are_gone && starters.are_over() || now > over_at + patience {
                    return Ok(());
                }
            } else if policy.awaits(0..nproc) && now > began + START_PATIENCE {
                return Err(RunError::Late {
                    connected: nproc - policy.num_awaited(),
                    nproc,
                    waited: START_PATIENCE,
                });
            }
            let heard = || machines.others.and_then(Others::heard);
            if !policy.is_elsewhere() && heard().is_some() {
                policy.elsewhere(now);
            }
            if let Some(signal) = policy.take_due(now) {
                send(supervisors, policy, signal);
            }
            if let Some((local, end)) = policy.first_failure()
                && machines.is_due(now)
            {
                machines.tell(&self.failed(&supervisors[*local], *local, end.clone()));
            }
            let until = policy.due_at().map_or(now + TICK, |at| at.min(now + TICK));
            match self.events.next(self.restart, Some(until)) {
                Some(What::Signal(SIGWINCH)) => {
                    for (stream, terminal) in terminals {
                        match stream {
                            Stream::Stdout => terminal.resize(std::io::stdout().as_fd()),
                            Stream::Stderr => terminal.resize(std::io::stderr().as_fd()),
                        }
                    }
                }
                Some(What::Signal(signal)) if !is_interrupt(signal) => {
                    send(supervisors, policy, signal)
                }
                Some(What::Signal(signal)) => match policy.interrupt(signal, Instant::now()) {
                    Interrupt::Ignore => {}
                    Interrupt::Send(signal) => send(supervisors, policy, signal),
                    Interrupt::Leave => return Ok(()),
                },
                Some(What::Connected(local, control)) => admit(supervisors, policy, local, control),
                Some(What::Word(local, Word::Started { pid })) => {
                    supervisors[local].pid = Some(pid)
                }
                Some(What::Word(local, Word::Ended(end))) => {
                    policy.ended(local, end, Instant::now());
                }
                Some(What::Word(local, Word::Stopped(signal))) => {
                    policy.stands(local, Some(signal), Instant::now());
                }
                Some(What::Word(local, Word::GoesOn)) => {
                    policy.stands(local, None, Instant::now());
                }
                Some(What::Gone(local)) => gone(supervisors, policy, local),
                Some(What::StarterEnded(index, status)) => {
                    starters.end(index);
                    let (locals, end) = match self.options.transport() {
                        Transport::Mpi => (0..nproc, End::MpirunGone(status)),
                        Transport::Tcp => (index..index + 1, End::Vanished),
                    };
                    if policy.awaits(locals.clone()) {
                        return Err(self.not_started(policy, index, status, said));
                    }
                    for local in policy.starter_ended(locals, &end, Instant::now()) {
                        if let Some(control) = supervisors[local].control.take() {
                            supervisor::end(&control);
                        }
                    }
                }
                Some(What::Unmet(error)) => return Err(error.into()),
                Some(
                    What::Word(_, Word::Here { .. })
                    | What::Trouble
                    | What::Drained
                    | What::Said
                    | What::AllDone,
                )
                | None => {}
            }
        }
    }

    /// Returns why processes did not start: what should have started them has ended. Words that were sent earlier
    /// have come by then.
    fn not_started(
        &self,
        policy: &Policy,
        index: usize,
        status: ExitStatus,
        said: &Tail,
    ) -> RunError {
        let nproc = self.options.nproc;
        let status = status_text(status);
        match self.options.transport() {
            Transport::Mpi => RunError::Mpirun {
                connected: nproc - policy.num_awaited(),
                nproc,
                status,
                said: said.lines().join("\n"),
            },
            Transport::Tcp => RunError::Supervisor {
                rank: self.options.first_rank() + index,
                status: format!("{status}: {}", said.lines().join("; ")),
            },
        }
    }

    /// Ends what still runs, and waits a little for its supervisors; returns the signal that came meanwhile.
    fn end_supervisors(&self, policy: &mut Policy, supervisors: &mut [Supervisor]) -> Option<i32> {
        for control in supervisors
            .iter_mut()
            .filter_map(|supervisor| supervisor.control.take())
        {
            supervisor::end(&control);
        }
        let mut interrupt = None;
        let until = Instant::now() + LEAVE_PATIENCE;
        while supervisors.iter().any(|supervisor| supervisor.is_connected) {
            match self.events.next(self.restart, Some(until)) {
                Some(What::Signal(signal)) if is_interrupt(signal) => interrupt = Some(signal),
                Some(What::Connected(_, late)) => supervisor::dismiss(&late),
                Some(What::Word(local, Word::Ended(end))) => {
                    policy.ended(local, end, Instant::now());
                }
                Some(What::Gone(local)) => gone(supervisors, policy, local),
                Some(_) => {}
                None => break,
            }
        }
        interrupt
    }

    /// Waits until all output has been passed on; returns the signal that came before that.
    fn drain(&self, readers: Vec<JoinHandle<()>>) -> Option<i32> {
        let teller = self.events.teller(self.restart);
        let readers = Arc::new(Mutex::new(readers));
        let drained = Arc::clone(&readers);
        let join = |readers: &Mutex<Vec<JoinHandle<()>>>| {
            for reader in lock(readers).drain(..) {
                let _ = reader.join();
            }
        };
        let thread = std::thread::Builder::new().name("drain".into());
        let draining = thread.spawn(move || {
            join(&drained);
            teller.tell(What::Drained);
        });
        if draining.is_err() {
            // Without a thread, no signal ends this wait.
            join(&readers);
            return None;
        }
        self.events
            .wait(self.restart, None, |what| matches!(what, What::Drained))
    }

    /// Shows a word of the launcher's own. Whoever should read it may be slow: a signal, which is returned, ends the
    /// wait, as does `patience`.
    pub(super) fn say(&self, text: String, patience: Option<Duration>) -> Option<i32> {
        let teller = self.events.teller(self.restart);
        let (screen, text) = (Arc::clone(self.screen), Arc::<str>::from(text));
        let said = Arc::clone(&text);
        let thread = std::thread::Builder::new().name("saying".into());
        let saying = thread.spawn(move || {
            screen.say(&text);
            teller.tell(What::Said);
        });
        if saying.is_err() {
            self.screen.say(&said);
            return None;
        }
        let until = patience.map(|patience| Instant::now() + patience);
        self.events
            .wait(self.restart, until, |what| matches!(what, What::Said))
    }

    /// Waits until the processes of all machines have ended well, or something fails there, or a signal comes.
    pub(super) fn wait_for(&self, others: &Others) -> Result<Outcome<Failed>, RunError> {
        others.finish(self.events.teller(self.restart));
        loop {
            match self.events.next(self.restart, None) {
                Some(What::AllDone) => return Ok(Outcome::Good),
                Some(What::Unmet(error)) => return Err(error.into()),
                Some(What::Trouble) => {
                    if let Some(heard) = others.heard() {
                        return Ok(Outcome::Elsewhere(heard));
                    }
                }
                Some(What::Signal(signal)) if is_interrupt(signal) => {
                    return Ok(Outcome::Stopped {
                        signal,
                        code: End::Signalled(signal).exit_code(),
                        after: None,
                    });
                }
                Some(What::Connected(_, late)) => supervisor::dismiss(&late),
                _ => {}
            }
        }
    }

    fn failed(&self, supervisor: &Supervisor, local: usize, end: End) -> Failed {
        Failed {
            rank: self.options.first_rank() + local,
            world_size: self.options.world_size(),
            host: Peer::this().host,
            pid: supervisor.pid,
            end,
            tail: Arc::clone(&supervisor.tail),
        }
    }
}

/// Gives a supervisor that has come its files, if its program may start; otherwise it waits to be dismissed with the
/// others.
fn admit(supervisors: &mut [Supervisor], policy: &mut Policy, local: usize, control: UnixStream) {
    let supervisor = &mut supervisors[local];
    if policy.connected(local)
        && let Some((stdout, stderr)) = supervisor.files.take()
    {
        // If it is gone already, that will be heard.
        let _ = supervisor::give(&control, &stdout, &stderr);
    }
    supervisor.is_connected = true;
    supervisor.control = Some(control);
}

/// Notes that a supervisor has closed its connection.
fn gone(supervisors: &mut [Supervisor], policy: &mut Policy, local: usize) {
    supervisors[local].is_connected = false;
    supervisors[local].control = None;
    policy.ended(local, End::Vanished, Instant::now());
}

/// Sends a signal to every program that runs.
fn send(supervisors: &[Supervisor], policy: &Policy, signal: i32) {
    for (local, supervisor) in supervisors.iter().enumerate() {
        if let Some(control) = &supervisor.control
            && policy.is_running(local)
        {
            supervisor::signal(control, signal);
        }
    }
}
