//! Starts until one goes well, or none will.

use super::events::Events;
use super::limits::OpenFiles;
use super::options::{Options, RunError};
use super::others::Others;
use super::outcome::{Outcome, stopped_text};
use super::output::Screen;
use super::signals;
use super::start::{Report, Start};
use crate::folder::Folder;
use crate::rendezvous::Server;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long launchers of other machines may need the rendezvous after all has ended here: longer than they give their
/// processes to end.
const REST_PATIENCE: Duration = Duration::from_secs(15);
/// How long whoever should read the launcher's last word may take, once a signal has ended the wait for the output.
const SAY_PATIENCE: Duration = Duration::from_secs(1);
/// The longest wait before another start.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Starts the processes and stays with them; returns the exit code.
///
/// # Errors
/// What cannot be, and what the launcher itself cannot do.
pub fn run(options: &Options) -> Result<u8, RunError> {
    options.check()?;
    let token = options.token()?;
    let system = |what| move |source| RunError::System { what, source };
    let open_files = OpenFiles::raise().map_err(system("read the limit of open files"))?;
    let screen = Arc::new(Screen::of_process());
    let events = Events::catch().map_err(system("catch signals"))?;
    let folder = Folder::new("burn-dist").map_err(system("make a folder for sockets"))?;
    // Where there is none, Open MPI says where its own is.
    let memory = folder.in_shared_memory().ok();
    for restart in 0.. {
        let start = Start {
            options,
            token: &token,
            screen: &screen,
            events: &events,
            open_files,
            restart,
            socket: folder.path().join(format!("supervisors-{restart}")),
            memory: memory.as_ref().map(Folder::path),
        };
        let (server, address) = start.rendezvous()?;
        let teller = events.teller(restart);
        let others =
            (options.nnodes > 1).then(|| Others::join(options, &address, &token, restart, teller));
        let Report {
            outcome,
            is_interrupted,
            is_cut_short,
            left,
        } = start.run(&address, others.as_ref())?;
        let patience = is_cut_short.then_some(SAY_PATIENCE);
        if !left.is_empty() {
            let left: Vec<String> = left.iter().map(u32::to_string).collect();
            let text = format!("burn-dist: left while these still run: {}", left.join(", "));
            start.say(text, patience);
        }
        let outcome = match (outcome, &others) {
            (Outcome::Good, Some(others)) => start.wait_for(others)?,
            (outcome, _) => outcome,
        };
        let leave = || {
            drop(others);
            if let Some(server) = server.filter(|_| options.nnodes > 1) {
                rest(&server, &events, restart);
            }
        };
        let (text, last_words, heard) = match outcome {
            Outcome::Good => {
                leave();
                return Ok(0);
            }
            Outcome::Stopped {
                signal,
                code,
                after,
            } => {
                start.say(stopped_text(signal, after.as_ref()), patience);
                leave();
                return Ok(code);
            }
            Outcome::Failed(failed) => (failed.text(), failed.last_words(), failed.heard()),
            Outcome::Elsewhere(heard) => (heard.text.clone(), String::new(), heard),
        };
        if restart < options.max_restarts && !is_interrupted && heard.may_go_better() {
            let pause = pause_before(restart);
            let text = format!(
                "burn-dist: {text}\nburn-dist: starting all processes anew in {} s ({} of {})",
                pause.as_secs(),
                restart + 1,
                options.max_restarts
            );
            let mut signal = start.say(text, None);
            leave();
            signal = signal.or_else(|| {
                let until = Instant::now() + pause;
                events.wait(restart, Some(until), |_| false)
            });
            let Some(signal) = signal else { continue };
            let name = signals::name(signal);
            start.say(
                format!("burn-dist: not started anew: stopped by {name}"),
                None,
            );
        } else {
            start.say(format!("burn-dist: {text}{last_words}"), patience);
            leave();
        }
        return Ok(heard.code);
    }
    unreachable!("the last start returns")
}

/// Returns how long to wait after so many restarts: what has failed at once may need a moment to be well again.
fn pause_before(restart: u32) -> Duration {
    Duration::from_secs(1 << restart.min(5)).min(PAUSE_MAX)
}

/// Keeps the rendezvous until the launchers of other machines have left it; a signal ends that.
fn rest(server: &Server, events: &Events, restart: u32) {
    let until = Instant::now() + REST_PATIENCE;
    while Instant::now() < until && !server.wait_for_launchers(Duration::from_millis(100)) {
        if events
            .wait(restart, Some(Instant::now()), |_| false)
            .is_some()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 5, 6, u32::MAX]
            .map(|restart| pause_before(restart).as_secs())
            .into();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
