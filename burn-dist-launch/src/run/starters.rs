//! The starters of processes: one `mpirun`, or a supervisor for each. Watched, and killed at the end.

use super::output::Tail;
use burn_dist_comm::lock;
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the last words of a starter may take; something else may hold its end of the pipe.
const HEAR_PATIENCE: Duration = Duration::from_secs(1);

/// The programs that have started the processes; killed when dropped, if they still run.
#[derive(Default)]
pub(super) struct Starters(Vec<Starter>);

struct Starter {
    child: Arc<Mutex<Option<Child>>>,
    is_over: bool,
}

impl Starters {
    /// Keeps a child, collects what it says, and calls `ended` when it has ended.
    ///
    /// # Errors
    /// If the system starts no thread for that; the child is killed with the others.
    pub(super) fn add(
        &mut self,
        mut child: Child,
        said: &Arc<Tail>,
        ended: impl FnOnce(ExitStatus) + Send + 'static,
    ) -> std::io::Result<()> {
        let (hears, heard) = channel::<()>();
        let pipes = [
            child.stdout.take().map(OwnedFd::from),
            child.stderr.take().map(OwnedFd::from),
        ];
        let pid = Pid::from_raw(child.id() as i32);
        let child = Arc::new(Mutex::new(Some(child)));
        self.0.push(Starter {
            child: Arc::clone(&child),
            is_over: false,
        });
        for pipe in pipes.into_iter().flatten() {
            let (said, hears) = (Arc::clone(said), hears.clone());
            let thread = std::thread::Builder::new().name("what a starter says".into());
            thread.spawn(move || {
                let lines = BufReader::new(File::from(pipe)).split(b'\n');
                for line in lines.map_while(Result::ok) {
                    said.push(&line);
                }
                drop(hears);
            })?;
        }
        drop(hears);
        let thread = std::thread::Builder::new().name("end of a starter".into());
        let watching = thread.spawn(move || {
            // It stays a zombie until it is taken: nobody kills a number that is someone else's by now.
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
            let Some(mut child) = lock(&child).take() else {
                return;
            };
            if let Ok(status) = child.wait() {
                // What it said is known before its end is.
                let _ = heard.recv_timeout(HEAR_PATIENCE);
                ended(status);
            }
        });
        watching.map(drop)
    }

    /// Notes that one has ended.
    pub(super) fn end(&mut self, index: usize) {
        self.0[index].is_over = true;
    }

    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(|starter| starter.is_over)
    }
}

impl Drop for Starters {
    fn drop(&mut self) {
        for starter in &self.0 {
            let child = lock(&starter.child).take();
            if let Some(mut child) = child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Says how a starter has ended.
pub(super) fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".into(),
    }
}
