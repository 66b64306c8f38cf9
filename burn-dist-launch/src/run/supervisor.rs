//! One process, and the launcher's word to it.
//!
//! A supervisor connects to the launcher's socket, which lies in a folder that only its user can enter, and says its
//! rank. The launcher sends two files, for the output of the program; the supervisor starts it in a process group of
//! its own. From then on the supervisor sends one line for what happens, and takes one byte per signal. The end of the
//! connection is the end of the program: the launcher has gone. A supervisor that gets no files starts nothing.

use super::signals::not_ignored;
use super::starters::status_text;
use crate::ClusterEnv;
use crate::folder::in_shared_memory;
use burn_dist_comm::{EXIT_TEMPORARY, lock};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::{
    SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGQUIT, SIGSEGV, SIGTERM, SIGUSR1, SIGUSR2,
    SIGWINCH,
};
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// How a program has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited(i32),
    Signalled(i32),
    /// This signal has stopped it, and it still stood when all others had long ended.
    Stopped(i32),
    /// It was never there: an exit code, and why.
    NotStarted(i32, String),
    /// Its supervisor is gone without a word.
    Vanished,
    /// Nothing watches over its supervisor any more, so it was killed.
    MpirunGone(ExitStatus),
}

impl End {
    pub(super) fn is_good(&self) -> bool {
        *self == Self::Exited(0)
    }

    /// Returns true if no other's failure leads to it, as one may to an error, an abort, or a supervisor that `mpirun`
    /// has killed.
    pub(super) fn is_cause(&self) -> bool {
        match self {
            Self::Signalled(signal) => [SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE].contains(signal),
            Self::MpirunGone(status) => status.signal().is_some(),
            Self::Exited(_) | Self::Stopped(_) | Self::NotStarted(..) | Self::Vanished => false,
        }
    }

    /// Returns the exit code that says the same.
    pub(super) fn exit_code(&self) -> u8 {
        let code = match self {
            Self::Exited(code) | Self::NotStarted(code, _) => *code,
            Self::Signalled(signal) => 128 + signal,
            // Another start may go better, as with any process that is late.
            Self::Stopped(_) => EXIT_TEMPORARY.into(),
            Self::Vanished | Self::MpirunGone(_) => 125,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "with exit code {code}"),
            Self::Signalled(signal) => write!(f, "killed by {}", named(*signal)),
            Self::Stopped(signal) => write!(
                f,
                "stopped by {}: it stood still when all others had ended",
                named(*signal)
            ),
            Self::NotStarted(_, reason) => write!(f, "before it started: {reason}"),
            Self::Vanished => f.write_str("without a word: its supervisor was killed"),
            Self::MpirunGone(status) => {
                let status = status_text(*status);
                write!(f, "killed since mpirun ended with {status} while it ran")
            }
        }
    }
}

/// A signal by its number and its name.
fn named(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(named) => format!("signal {signal} ({named})"),
        Err(_) => format!("signal {signal}"),
    }
}

/// A message of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Here {
        rank: usize,
    },
    Started {
        pid: u32,
    },
    /// The program stands still, by this signal.
    Stopped(i32),
    /// It goes on.
    GoesOn,
    Ended(End),
}

impl Word {
    fn to_line(&self) -> String {
        match self {
            Self::Here { rank } => format!("here {rank}\n"),
            Self::Started { pid } => format!("started {pid}\n"),
            Self::Stopped(signal) => format!("stopped {signal}\n"),
            Self::GoesOn => "goes on\n".into(),
            Self::Ended(End::Exited(code)) => format!("exited {code}\n"),
            Self::Ended(End::Signalled(signal)) => format!("signalled {signal}\n"),
            Self::Ended(End::NotStarted(code, reason)) => {
                format!("not-started {code} {}\n", reason.replace('\n', " "))
            }
            // What the launcher finds by itself, when a supervisor says no more.
            Self::Ended(End::Vanished | End::MpirunGone(_) | End::Stopped(_)) => {
                "vanished\n".into()
            }
        }
    }

    pub(super) fn read(line: &str) -> Option<Self> {
        let (kind, rest) = line.trim_end().split_once(' ')?;
        Some(match kind {
            "here" => Self::Here {
                rank: rest.parse().ok()?,
            },
            "started" => Self::Started {
                pid: rest.parse().ok()?,
            },
            "stopped" => Self::Stopped(rest.parse().ok()?),
            "goes" if rest == "on" => Self::GoesOn,
            "exited" => Self::Ended(End::Exited(rest.parse().ok()?)),
            "signalled" => Self::Ended(End::Signalled(rest.parse().ok()?)),
            "not-started" => {
                let (code, reason) = rest.split_once(' ')?;
                Self::Ended(End::NotStarted(code.parse().ok()?, reason.into()))
            }
            _ => return None,
        })
    }
}

/// Reads what a supervisor says until it is gone.
pub(super) fn listen(supervisor: UnixStream, mut heard: impl FnMut(Word)) {
    for line in BufReader::new(supervisor).lines() {
        let Ok(line) = line else { return };
        match Word::read(&line) {
            Some(word) => heard(word),
            None => return,
        }
    }
}

/// Gives a supervisor the files that its program writes to.
pub(super) fn give(supervisor: &UnixStream, stdout: &OwnedFd, stderr: &OwnedFd) -> io::Result<()> {
    let files: [RawFd; 2] = [stdout.as_raw_fd(), stderr.as_raw_fd()];
    let passed = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(
        supervisor.as_raw_fd(),
        &[IoSlice::new(&[0])],
        &passed,
        MsgFlags::empty(),
        None,
    )?;
    Ok(())
}

/// Takes the files that the launcher gives; `None` if it wants no program.
fn take(launcher: &UnixStream) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let mut space = cmsg_space!([RawFd; 2]);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(
        launcher.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut files = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the system has just opened them for this process, and nobody else knows them.
            files.extend(
                received
                    .into_iter()
                    .map(|file| unsafe { OwnedFd::from_raw_fd(file) }),
            );
        }
    }
    if message.bytes == 0 {
        return Err(io::Error::other("the launcher is gone"));
    }
    let files = <[OwnedFd; 2]>::try_from(files).ok();
    Ok(files.map(|[stdout, stderr]| (stdout, stderr)))
}

/// Tells a supervisor to send a signal to its program.
pub(super) fn signal(mut supervisor: &UnixStream, signal: i32) {
    // A supervisor that is gone has no program.
    let _ = supervisor.write_all(&[signal as u8]);
}

/// The byte that stands for no signal: the program has ended, or will not be started.
const MAY_GO: u8 = 0;
/// The program has to end at once.
const END_NOW: u8 = u8::MAX;

/// Lets a supervisor go that has no program, or not any more.
pub(super) fn dismiss(supervisor: &UnixStream) {
    say_last(supervisor, MAY_GO);
}

/// Ends the program of a supervisor, and all in its process group; the supervisor says how it ended, and goes.
pub(super) fn end(supervisor: &UnixStream) {
    say_last(supervisor, END_NOW);
}

fn say_last(mut supervisor: &UnixStream, word: u8) {
    let _ = supervisor.write_all(&[word]);
    // Others hold the connection too: dropping it would not close it. What the supervisor says is still heard.
    let _ = supervisor.shutdown(Shutdown::Write);
}

/// The program of a supervisor, while it runs.
struct Running {
    pid: Pid,
    is_over: bool,
}

/// Starts `program`, tells the launcher that listens at `socket` what becomes of it, and ends when the launcher says
/// so.
///
/// It does so well, however the program has ended: what that means is for the launcher to say, not for the `mpirun`
/// between them, which would kill the others at once.
///
/// # Errors
/// If there is no launcher, or the variables of no launcher.
pub fn supervise(socket: &Path, program: &[OsString]) -> io::Result<()> {
    // `mpirun` sends these to what it has started; what becomes of the program is up to our launcher. Handlers, unlike
    // SIG_IGN, are not inherited.
    for caught in not_ignored([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH]) {
        signal_hook::flag::register(caught, Arc::new(AtomicBool::new(false)))?;
    }
    let env = ClusterEnv::of_process().map_err(io::Error::other)?;
    let env = env.ok_or_else(|| {
        io::Error::other("`supervise` is for processes that `burn-dist run` starts")
    })?;
    let launcher = UnixStream::connect(socket)?;
    let mut say = launcher.try_clone()?;
    say.write_all(Word::Here { rank: env.rank }.to_line().as_bytes())?;
    let Some((stdout, stderr)) = take(&launcher)? else {
        return Ok(());
    };
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    let parent = nix::unistd::getpid();
    // SAFETY: only functions that may be called between fork and exec.
    unsafe { command.pre_exec(move || end_with_parent(parent, Signal::SIGKILL)) };
    let started = command.spawn();
    // Its files are the program's only.
    drop(command);
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            let reason = format!("cannot run {}: {error}", program[0].to_string_lossy());
            let end = End::NotStarted(code, reason);
            say.write_all(Word::Ended(end).to_line().as_bytes())?;
            return wait_for_end(launcher);
        }
    };
    let pid = Pid::from_raw(child.id() as i32);
    // A launcher that is gone is no reason to leave: what follows ends the program.
    let _ = say.write_all(Word::Started { pid: child.id() }.to_line().as_bytes());
    let running = Arc::new(Mutex::new(Running {
        pid,
        is_over: false,
    }));
    let (heard, socket) = (Arc::clone(&running), socket.to_path_buf());
    let obeying = std::thread::Builder::new()
        .name("launcher".into())
        .spawn(move || obey(launcher, &heard, &socket));
    let obeying = match obeying {
        Ok(obeying) => obeying,
        Err(error) => {
            send(&running, Signal::SIGKILL);
            return Err(error);
        }
    };
    let end = wait(pid, &running, |word| {
        let _ = say.write_all(word.to_line().as_bytes());
    });
    let _ = say.write_all(Word::Ended(end).to_line().as_bytes());
    let _ = obeying.join();
    Ok(())
}

fn wait_for_end(mut launcher: UnixStream) -> io::Result<()> {
    io::copy(&mut launcher, &mut io::sink()).map(drop)
}

/// Sends a signal to the process group of the program.
fn send(running: &Mutex<Running>, signal: Signal) {
    let running = lock(running);
    // Once it has been waited for, its number may be someone else's. A group that has ended hears nothing.
    if !running.is_over {
        let _ = killpg(running.pid, signal);
        if [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].contains(&signal) {
            // One that was stopped hears no other signal before this one.
            let _ = killpg(running.pid, Signal::SIGCONT);
        }
    }
}

/// Passes signals on; without a launcher, ends everything.
fn obey(mut launcher: UnixStream, running: &Mutex<Running>, socket: &Path) {
    let mut byte = [0];
    while launcher.read_exact(&mut byte).is_ok() {
        match byte[0] {
            MAY_GO => return,
            END_NOW => return send(running, Signal::SIGKILL),
            signal => {
                if let Ok(signal) = Signal::try_from(i32::from(signal)) {
                    send(running, signal);
                }
            }
        }
    }
    send(running, Signal::SIGKILL);
    // What the launcher has left: its socket, and the folder, once nothing else is in it; and the memory that `mpirun`
    // does not tidy up.
    let _ = std::fs::remove_file(socket);
    if let Some(folder) = socket.parent() {
        let _ = std::fs::remove_dir(folder);
        let _ = in_shared_memory(folder).and_then(std::fs::remove_dir_all);
    }
}

/// Waits for the program, and ends what it has left in its process group; tells of it standing still meanwhile.
fn wait(pid: Pid, running: &Mutex<Running>, mut tell: impl FnMut(Word)) -> End {
    const STANDS: WaitPidFlag = WaitPidFlag::WSTOPPED.union(WaitPidFlag::WCONTINUED);
    loop {
        // It stays a zombie, so that its number is its own until the lock is held.
        let all = WaitPidFlag::WEXITED | STANDS | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(pid), all) {
            Ok(WaitStatus::Stopped(..) | WaitStatus::Continued(_)) => {
                // Taken now; it may have gone on, or ended, since.
                match waitid(Id::Pid(pid), STANDS | WaitPidFlag::WNOHANG) {
                    Ok(WaitStatus::Stopped(_, signal)) => tell(Word::Stopped(signal as i32)),
                    Ok(WaitStatus::Continued(_)) => tell(Word::GoesOn),
                    _ => {}
                }
            }
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(_) => return End::Vanished,
        }
    }
    let mut running = lock(running);
    running.is_over = true;
    // The group still has its number, which is that of the zombie.
    let _ = killpg(pid, Signal::SIGKILL);
    match waitpid(pid, None) {
        Ok(WaitStatus::Exited(_, code)) => End::Exited(code),
        Ok(WaitStatus::Signaled(_, signal, _)) => End::Signalled(signal as i32),
        _ => End::Vanished,
    }
}

/// Asks the system to send `signal` to this process when the one that started it ends; called between fork and exec.
pub(super) fn end_with_parent(parent: Pid, signal: Signal) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        nix::sys::prctl::set_pdeathsig(signal)?;
        // It may have ended before that.
        if nix::unistd::getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (parent, signal);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for word in [
            Word::Here { rank: 3 },
            Word::Started { pid: 77 },
            Word::Stopped(19),
            Word::GoesOn,
            Word::Ended(End::Exited(3)),
            Word::Ended(End::Signalled(9)),
            Word::Ended(End::NotStarted(127, "cannot run x: not there".into())),
        ] {
            assert_eq!(Word::read(&word.to_line()), Some(word));
        }
        for line in [
            "",
            "here",
            "here x",
            "exited",
            "not-started 1",
            "nonsense 1",
        ] {
            assert_eq!(Word::read(line), None, "{line}");
        }
    }

    #[test]
    fn a_supervisor_takes_files_or_no_for_an_answer() {
        let (launcher, supervisor) = UnixStream::pair().expect("a pair");
        let (mut stdout, its_stdout) = std::io::pipe().expect("a pipe");
        let (_stderr, its_stderr) = std::io::pipe().expect("a pipe");
        let (its_stdout, its_stderr) = (OwnedFd::from(its_stdout), OwnedFd::from(its_stderr));
        give(&launcher, &its_stdout, &its_stderr).expect("it is given");
        drop((its_stdout, its_stderr));
        let (taken, _) = take(&supervisor).expect("it is there").expect("two files");
        let mut taken = std::fs::File::from(taken);
        taken.write_all(b"through").expect("an open pipe");
        drop(taken);
        let mut read = String::new();
        stdout.read_to_string(&mut read).expect("text");
        assert_eq!(read, "through");

        dismiss(&launcher);
        assert!(take(&supervisor).expect("a word").is_none());
        let gone = take(&supervisor).expect_err("no launcher");
        assert_eq!(gone.to_string(), "the launcher is gone");
    }

    #[test]
    fn ends_have_the_codes_of_a_shell() {
        let codes = [
            End::Exited(0),
            End::Exited(3),
            End::Signalled(9),
            End::Stopped(19),
            End::NotStarted(127, String::new()),
            End::Vanished,
            End::MpirunGone(ExitStatus::from_raw(9)),
        ];
        let expected = [0, 3, 137, 75, 127, 125, 125];
        assert_eq!(codes.map(|end| end.exit_code()), expected);
        assert_eq!(
            End::Signalled(9).to_string(),
            "killed by signal 9 (SIGKILL)"
        );
        assert_eq!(
            End::MpirunGone(ExitStatus::from_raw(9)).to_string(),
            "killed since mpirun ended with signal 9 while it ran"
        );
    }
}
