//! From start to end.

use super::options::{Options, RunError, Transport, is_foreign};
use super::output::{Screen, Stream, Tail, forward};
use super::seat::{self, End, Word};
use super::terminal::Terminal;
use crate::comm::Peer;
use crate::launch::rendezvous::{self, Server, Token};
use nix::libc::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the processes may take to be started.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long what started them may take to end after them.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long the last of their output may take; something that has left their process group may hold it open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// Something that happened, and in which start.
struct Event(u32, What);

enum What {
    Signal(i32),
    /// A process has its seat.
    Seated(usize, UnixStream),
    Word(usize, Word),
    /// What started the processes (one of them, or all) has ended.
    StarterEnded(usize, ExitStatus),
}

/// Starts the processes and stays with them; returns the exit code.
///
/// # Errors
/// What cannot be, and what the launcher itself cannot do.
pub fn run(options: &Options) -> Result<u8, RunError> {
    options.check()?;
    let token = options.token()?;
    let screen = Arc::new(Screen::of_process());
    let (sender, events) = channel();
    let system = |what| move |source| RunError::System { what, source };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH])
        .map_err(system("catch signals"))?;
    let of_signals = sender.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let _ = of_signals.send(Event(0, What::Signal(signal)));
        }
    });
    let folder = Folder::new().map_err(system("make a folder for sockets"))?;
    for restart in 0.. {
        let start = Start {
            options,
            token: &token,
            screen: &screen,
            sender: &sender,
            restart,
            socket: folder.0.join(format!("seats-{restart}")),
        };
        let (server, address) = start.rendezvous()?;
        let outcome = start.run(&address, &events)?;
        let Some(failed) = &outcome.failed else {
            // Other machines may need the rendezvous a little longer.
            if let Some(server) = server.filter(|_| options.nnodes > 1) {
                server.wait_empty(START_PATIENCE);
            }
            return Ok(0);
        };
        drop(server);
        let may_restart = !outcome.is_interrupted && !matches!(failed.end, End::NotStarted(..));
        let text = failed.text(options.world_size());
        if may_restart && restart < options.max_restarts {
            screen.say(&format!("burn-dist: {text}"));
            screen.say(&format!(
                "burn-dist: starting all processes anew ({} of {})",
                restart + 1,
                options.max_restarts
            ));
            continue;
        }
        screen.say(&format!("burn-dist: {text}{}", failed.last_words()));
        return Ok(failed.end.exit_code());
    }
    unreachable!("the last start returns")
}

/// A folder that only this user can enter; vanishes when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let name = rendezvous::Token::random()?;
        let path = std::env::temp_dir().join(format!(
            "burn-dist-{}-{}",
            std::process::id(),
            &name.secret()[..8]
        ));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The process that failed first.
struct Failed {
    rank: usize,
    host: String,
    pid: Option<u32>,
    end: End,
    tail: Arc<Tail>,
}

impl Failed {
    fn text(&self, world_size: usize) -> String {
        let pid = self.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
        format!(
            "rank {} of {world_size} ({}{pid}) failed first, {}",
            self.rank, self.host, self.end
        )
    }

    fn last_words(&self) -> String {
        let lines = self.tail.lines();
        match (&self.end, lines.is_empty()) {
            (End::NotStarted(..), _) => String::new(),
            (_, true) => "; it wrote nothing to stderr".into(),
            (_, false) => format!("; its last words on stderr:\n  {}", lines.join("\n  ")),
        }
    }
}

struct Outcome {
    failed: Option<Failed>,
    is_interrupted: bool,
}

/// A process as the launcher sees it.
struct Seat {
    control: Option<UnixStream>,
    /// What its program writes to, until the seat has it.
    files: Option<(OwnedFd, OwnedFd)>,
    pid: Option<u32>,
    end: Option<End>,
    tail: Arc<Tail>,
}

/// One start of all processes of this machine.
struct Start<'a> {
    options: &'a Options,
    token: &'a Token,
    screen: &'a Arc<Screen>,
    sender: &'a Sender<Event>,
    restart: u32,
    socket: PathBuf,
}

impl Start<'_> {
    /// Returns the rendezvous, if this launcher keeps it, and where it is.
    fn rendezvous(&self) -> Result<(Option<Server>, String), RunError> {
        let asked = self.options.rendezvous.as_deref();
        if let (Some(address), true) = (asked, self.options.node_rank > 0) {
            return Ok((None, address.to_string()));
        }
        let options =
            rendezvous::Options::new(self.options.world_size() as u32).restarts(self.restart);
        let server = Server::listen(asked.unwrap_or("127.0.0.1:0"), self.token.clone(), options)?;
        let address = match asked {
            // Others know it by its name.
            Some(address) if !address.ends_with(":0") => address.to_string(),
            _ => server.address().to_string(),
        };
        Ok((Some(server), address))
    }

    fn run(&self, address: &str, events: &Receiver<Event>) -> Result<Outcome, RunError> {
        let system = |what| move |source| RunError::System { what, source };
        let (mut seats, readers, terminals) = self
            .seats()
            .map_err(system("make pipes for the output of processes"))?;
        let listener =
            UnixListener::bind(&self.socket).map_err(system("make a socket for seats"))?;
        let seating = self.seat_them(listener);
        let said = Arc::new(Tail::default());
        // Those who are killed here if anything fails on the way.
        let mut starters = Starters::default();
        self.start(address, &said, &mut starters)?;
        let outcome = self.supervise(&mut seats, &mut starters, events, &said, &terminals);
        // No more seats.
        let _ = UnixStream::connect(&self.socket);
        let _ = seating.join();
        drop((seats, terminals));
        let drained = Instant::now();
        for reader in readers {
            while !reader.is_finished() && drained.elapsed() < OUTPUT_PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        outcome
    }

    /// Makes what each process writes to, and starts passing it on.
    #[allow(clippy::type_complexity, reason = "three lists of one go")]
    fn seats(&self) -> std::io::Result<(Vec<Seat>, Vec<JoinHandle<()>>, Vec<(Stream, Terminal)>)> {
        let (mut seats, mut readers, mut terminals) = (Vec::new(), Vec::new(), Vec::new());
        for local in 0..self.options.nproc {
            let rank = self.options.first_rank() + local;
            let tail = Arc::new(Tail::default());
            let mut open = |stream: Stream| -> std::io::Result<OwnedFd> {
                let is_terminal = rank == 0 && self.screen.is_terminal(stream);
                let is_raw = is_terminal || rank == 0 && self.options.quiet_prefix;
                let kept = (stream == Stream::Stderr).then(|| Arc::clone(&tail));
                let screen = Arc::clone(self.screen);
                if is_terminal {
                    let (terminal, end) = match stream {
                        Stream::Stdout => Terminal::open(std::io::stdout().as_fd())?,
                        Stream::Stderr => Terminal::open(std::io::stderr().as_fd())?,
                    };
                    let from = terminal.reader()?;
                    terminals.push((stream, terminal));
                    readers.push(std::thread::spawn(move || {
                        forward(from, &screen, stream, rank, is_raw, kept)
                    }));
                    return Ok(end);
                }
                let (from, end) = std::io::pipe()?;
                readers.push(std::thread::spawn(move || {
                    forward(from, &screen, stream, rank, is_raw, kept)
                }));
                Ok(end.into())
            };
            let files = (open(Stream::Stdout)?, open(Stream::Stderr)?);
            seats.push(Seat {
                control: None,
                files: Some(files),
                pid: None,
                end: None,
                tail,
            });
        }
        Ok((seats, readers, terminals))
    }

    /// Takes the seats' connections, until one comes that says nothing.
    fn seat_them(&self, listener: UnixListener) -> JoinHandle<()> {
        let (sender, restart) = (self.sender.clone(), self.restart);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut first = String::new();
                let Ok(reading) = stream.try_clone() else {
                    return;
                };
                let mut reading = BufReader::with_capacity(1, reading);
                let rank = match reading.read_line(&mut first) {
                    Ok(1..) => first
                        .trim_end()
                        .strip_prefix("here ")
                        .and_then(|rank| rank.parse().ok()),
                    // The launcher itself, which wants no more.
                    _ => return,
                };
                let Some(rank) = rank else { continue };
                let Ok(listening) = stream.try_clone() else {
                    return;
                };
                let _ = sender.send(Event(restart, What::Seated(rank, stream)));
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let mut has_ended = false;
                    seat::listen(listening, |word| {
                        has_ended |= matches!(word, Word::Ended(_));
                        let _ = sender.send(Event(restart, What::Word(rank, word)));
                    });
                    if !has_ended {
                        let _ = sender
                            .send(Event(restart, What::Word(rank, Word::Ended(End::Vanished))));
                    }
                });
            }
        })
    }

    /// Starts `mpirun`, or one seat per process.
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
                    .arg("seat")
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
                let parent = nix::unistd::getpid();
                // SAFETY: only functions that may be called between fork and exec. A seat learns of our end by its connection, and tidies up; `mpirun` would go on.
                unsafe {
                    command.pre_exec(move || match transport {
                        Transport::Mpi => seat::end_with_parent(parent, SIGTERM),
                        Transport::Direct => Ok(()),
                    })
                };
                command
            };
        // A process in the background cannot read from a terminal.
        let stdin = || match std::io::stdin().is_terminal() {
            true => Stdio::null(),
            false => Stdio::inherit(),
        };
        match transport {
            Transport::Mpi => {
                let nproc = self.options.nproc.to_string();
                let arguments = ["-n", &nproc, "--bind-to", "none"];
                let mut command = command(
                    Path::new("mpirun"),
                    &arguments,
                    self.options.mpirun_environment(),
                );
                let child = command.stdin(stdin()).spawn().map_err(RunError::NoMpirun)?;
                starters.add(child, said, self);
            }
            Transport::Direct => {
                for local in 0..self.options.nproc {
                    let mut command = command(&here, &[], self.options.environment(local, address));
                    command.stdin(if self.options.first_rank() + local == 0 {
                        stdin()
                    } else {
                        Stdio::null()
                    });
                    let child = command.spawn().map_err(system("start a seat"))?;
                    starters.add(child, said, self);
                }
            }
        }
        Ok(())
    }

    /// Watches the processes until all have ended.
    fn supervise(
        &self,
        seats: &mut [Seat],
        starters: &mut Starters,
        events: &Receiver<Event>,
        said: &Tail,
        terminals: &[(Stream, Terminal)],
    ) -> Result<Outcome, RunError> {
        let Options {
            nproc,
            linger,
            grace,
            ..
        } = *self.options;
        let began = Instant::now();
        let (mut seated, mut interrupts, mut failures) = (0, 0, Vec::new());
        // When the next signal is due for those that still run, and which.
        let mut due: Option<(Instant, i32)> = None;
        let (mut has_signalled, mut ended_at) = (false, None);
        loop {
            let now = Instant::now();
            if seats.iter().all(|seat| seat.end.is_some()) {
                // The seats may go.
                for control in seats.iter_mut().filter_map(|seat| seat.control.take()) {
                    seat::dismiss(&control);
                }
                if starters.are_over() || now > *ended_at.get_or_insert(now) + END_PATIENCE {
                    break;
                }
            }
            if seated < nproc && now > began + START_PATIENCE {
                return Err(RunError::Late {
                    seated,
                    nproc,
                    waited: START_PATIENCE,
                });
            }
            if let Some((at, signal)) = due
                && now >= at
            {
                send(seats, signal);
                has_signalled = true;
                due = (signal == SIGTERM).then(|| (now + grace, SIGKILL));
            }
            let until = due.map_or(Duration::from_millis(500), |(at, _)| {
                at.saturating_duration_since(now)
            });
            let event = match events.recv_timeout(until.min(Duration::from_millis(500))) {
                Ok(Event(restart, what))
                    if restart == self.restart || matches!(what, What::Signal(_)) =>
                {
                    what
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match event {
                What::Signal(SIGWINCH) => {
                    for (stream, terminal) in terminals {
                        match stream {
                            Stream::Stdout => terminal.resize(std::io::stdout().as_fd()),
                            Stream::Stderr => terminal.resize(std::io::stderr().as_fd()),
                        }
                    }
                }
                What::Signal(signal @ (SIGUSR1 | SIGUSR2)) => send(seats, signal),
                What::Signal(signal) => {
                    interrupts += 1;
                    if interrupts == 1 {
                        send(seats, signal);
                    } else {
                        send(seats, SIGKILL);
                    }
                    if seated < nproc {
                        // Those that are not there yet cannot be told.
                        return Ok(Outcome {
                            failed: Some(self.failed(seats, 0, End::Signalled(signal))),
                            is_interrupted: true,
                        });
                    }
                }
                What::Seated(rank, control) => {
                    let seat = rank
                        .checked_sub(self.options.first_rank())
                        .and_then(|local| seats.get_mut(local));
                    if let Some(seat) = seat
                        && let Some((stdout, stderr)) = seat.files.take()
                    {
                        // If it is gone already, that will be heard.
                        let _ = seat::give(&control, &stdout, &stderr);
                        seat.control = Some(control);
                        seated += 1;
                    }
                }
                What::Word(rank, word) => {
                    let Some(local) = rank
                        .checked_sub(self.options.first_rank())
                        .filter(|local| *local < nproc)
                    else {
                        continue;
                    };
                    match word {
                        Word::Here { .. } => {}
                        Word::Started { pid } => seats[local].pid = Some(pid),
                        Word::Ended(end) => {
                            // What ends after that was ended by us.
                            if !end.is_good() && !has_signalled {
                                failures.push((local, end.clone()));
                                // Who was asked to end is given the time to do so.
                                due.get_or_insert(match interrupts {
                                    0 => (Instant::now() + linger, SIGTERM),
                                    _ => (Instant::now() + grace, SIGKILL),
                                });
                            }
                            seats[local].end.get_or_insert(end);
                        }
                    }
                }
                What::StarterEnded(index, status) => {
                    starters.end(index);
                    if seated < nproc && failures.is_empty() {
                        // The words that were on their way have come before this.
                        return Err(match self.options.transport() {
                            Transport::Mpi => RunError::Mpirun {
                                seated,
                                nproc,
                                status: status_text(status),
                                said: said.lines().join("\n"),
                            },
                            Transport::Direct => RunError::Seat {
                                rank: self.options.first_rank() + index,
                                status: format!(
                                    "{}: {}",
                                    status_text(status),
                                    said.lines().join("; ")
                                ),
                            },
                        });
                    }
                    for (local, seat) in seats.iter_mut().enumerate() {
                        let is_its = self.options.transport() == Transport::Mpi || local == index;
                        if is_its {
                            seat.end.get_or_insert(End::Vanished);
                        }
                    }
                }
            }
        }
        let is_interrupted = interrupts > 0;
        // What a signal of someone else has killed did not fail because of others.
        let cause = match is_interrupted {
            true => None,
            false => failures
                .iter()
                .find(|(_, end)| matches!(end, End::Signalled(_))),
        };
        let cause = cause.or(failures.first());
        let failed = cause.map(|(local, end)| self.failed(seats, *local, end.clone()));
        Ok(Outcome {
            failed,
            is_interrupted,
        })
    }

    fn failed(&self, seats: &[Seat], local: usize, end: End) -> Failed {
        Failed {
            rank: self.options.first_rank() + local,
            host: Peer::this().host,
            pid: seats[local].pid,
            end,
            tail: Arc::clone(&seats[local].tail),
        }
    }
}

/// Sends a signal to every program that runs.
fn send(seats: &[Seat], signal: i32) {
    for seat in seats {
        if let (Some(control), None) = (&seat.control, &seat.end) {
            seat::signal(control, signal);
        }
    }
}

fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".into(),
    }
}

/// What has started the processes; killed when dropped, if it still runs.
#[derive(Default)]
struct Starters(Vec<(Arc<Mutex<Option<Child>>>, bool)>);

impl Starters {
    /// Keeps a child, its last words, and waits for its end.
    fn add(&mut self, mut child: Child, said: &Arc<Tail>, start: &Start<'_>) {
        let mut hears = Vec::new();
        let pipes: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        for pipe in pipes.into_iter().flatten() {
            let said = Arc::clone(said);
            hears.push(std::thread::spawn(move || {
                for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                    said.push(&line);
                }
            }));
        }
        let (sender, restart, index) = (start.sender.clone(), start.restart, self.0.len());
        let child = Arc::new(Mutex::new(Some(child)));
        self.0.push((Arc::clone(&child), false));
        std::thread::spawn(move || {
            let status = loop {
                {
                    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                    match child.as_mut().map(Child::try_wait) {
                        Some(Ok(Some(status))) => break status,
                        Some(Ok(None)) => {}
                        Some(Err(_)) | None => return,
                    }
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            // What it said is known before its end is.
            for hear in hears {
                let _ = hear.join();
            }
            let _ = sender.send(Event(restart, What::StarterEnded(index, status)));
        });
    }

    fn end(&mut self, index: usize) {
        self.0[index].1 = true;
    }

    fn are_over(&self) -> bool {
        self.0.iter().all(|(_, is_over)| *is_over)
    }
}

impl Drop for Starters {
    fn drop(&mut self) {
        for (child, is_over) in &self.0 {
            if !is_over
                && let Some(mut child) = child.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
