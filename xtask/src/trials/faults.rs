//! Signals to a process of a training run: how the run ends, and what it leaves.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::launch::{Ask, Ended, LAUNCHERS, Launcher, Programs, TrialFolder};
use super::system;

/// The time that a run has to end, and the one after which it is ended.
const SECONDS_MAX: f64 = 35.0;
const LIMIT: Duration = Duration::from_secs(100);

/// How long a start may take to come to a phase, and to its end where nothing goes wrong.
const START: Duration = Duration::from_secs(60);

/// Starts until a signal has come in time.
const ATTEMPTS: usize = 20;

/// The work of a run when the signal comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It waits for the other process.
    Rendezvous,
    /// The folder is its own, and no step is done.
    Planning,
    /// Some steps are done.
    Step,
    /// Files of a checkpoint are there, and the checkpoint is not.
    Save,
    /// All is done and saved; what is left are reports.
    Exit,
    /// These are written too.
    End,
}

const PHASES: [Phase; 6] = [
    Phase::Rendezvous,
    Phase::Planning,
    Phase::Step,
    Phase::Save,
    Phase::Exit,
    Phase::End,
];

/// The signals, as `kill` names them.
const SIGNALS: [&str; 3] = ["KILL", "STOP", "TERM"];

/// A signal to one of the processes.
#[derive(Clone, Copy, Debug)]
struct Trial {
    launcher: Launcher,
    phase: Phase,
    signal: &'static str,
    victim: usize,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            launcher,
            phase,
            signal,
            victim,
        } = self;
        let name = format!("{}/{phase:?}/{signal}/{victim}", launcher.short());
        f.write_str(&name.to_lowercase())
    }
}

/// The end of a trial.
struct Outcome {
    code: Option<i32>,
    seconds: f64,
    message: String,
    /// All that is not as it should be.
    wrong: Vec<String>,
}

/// Does all trials whose name contains `only`; returns what they were, and how many failed.
pub(super) fn all(programs: &Programs, only: &str) -> Result<(Value, usize), String> {
    let (mut rows, mut failed) = (Vec::new(), 0);
    for trial in trials() {
        let name = trial.to_string();
        if !format!("/{name}").contains(only) {
            continue;
        }
        let outcome = trial.run(programs)?;
        let Outcome {
            code,
            seconds,
            message,
            wrong,
        } = outcome;
        let shown = code.map_or("none".to_string(), |code| code.to_string());
        println!("{name:<24} {shown:>4} {seconds:>6.1} s  {message}");
        for wrong in &wrong {
            println!("    wrong: {wrong}");
        }
        failed += usize::from(!wrong.is_empty());
        rows.push(json!({
            "launcher": trial.launcher.name(),
            "phase": format!("{:?}", trial.phase).to_lowercase(),
            "signal": format!("SIG{}", trial.signal),
            "process": trial.victim,
            "code": code,
            "seconds": (seconds * 10.0).round() / 10.0,
            "message": message,
            "wrong": wrong,
        }));
    }
    Ok((Value::Array(rows), failed))
}

fn trials() -> impl Iterator<Item = Trial> {
    let of_launcher = |launcher| {
        let phases = PHASES.into_iter();
        let signals = phases.flat_map(|phase| SIGNALS.map(|signal| (phase, signal)));
        signals.flat_map(move |(phase, signal)| {
            [0, 1].map(|victim| Trial {
                launcher,
                phase,
                signal,
                victim,
            })
        })
    };
    LAUNCHERS.into_iter().flat_map(of_launcher)
}

impl Trial {
    fn run(self, programs: &Programs) -> Result<Outcome, String> {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            let folder =
                TrialFolder::new(&format!("{}-{attempt}", self.to_string().replace('/', "-")))?;
            match self.once(programs, &folder)? {
                Ok(outcome) => {
                    // What is wrong is looked at.
                    if outcome.wrong.is_empty() {
                        folder.remove();
                    }
                    return Ok(outcome);
                }
                Err(missed) => {
                    last = missed;
                    folder.remove();
                }
            }
        }
        Err(format!("{self}: {ATTEMPTS} starts, and in each {last}"))
    }

    /// The steps that are asked for, those of a checkpoint, and who is held back at first.
    fn ask(self) -> (usize, &'static str, Option<usize>) {
        match self.phase {
            Phase::Rendezvous => (3, "1000", Some(1 - self.victim)),
            Phase::Planning => (3, "1000", None),
            Phase::Step => (1_000_000, "4", None),
            Phase::Save => (1_000_000, "3", None),
            Phase::Exit | Phase::End => (4, "4", None),
        }
    }

    /// Returns whether the run of a folder is in the phase.
    fn is_reached(self, folder: &TrialFolder) -> bool {
        match self.phase {
            // A thread of its own keeps the meeting, sets MPI up, or waits for the others.
            Phase::Rendezvous => {
                let program = folder.program(self.victim);
                program.is_some_and(|program| program.threads > 1)
            }
            Phase::Planning => {
                let lock = fs::metadata(folder.run().join("run.lock"));
                lock.is_ok_and(|lock| lock.len() > 0)
            }
            Phase::Step => folder.has_step(7),
            Phase::Save => folder.is_saving(),
            Phase::Exit => folder.figures().contains("{\"event\":\"checkpoint\","),
            Phase::End => folder.run().join("report.json").exists(),
        }
    }

    /// Returns whether it still was when the signal was there.
    fn was_reached(self, folder: &TrialFolder) -> bool {
        match self.phase {
            Phase::Planning => !folder.has_step(1),
            Phase::Save => folder.is_saving(),
            Phase::Rendezvous | Phase::Step | Phase::Exit | Phase::End => true,
        }
    }

    /// Starts, sends the signal and looks; or says why the signal has missed its phase.
    fn once(
        self,
        programs: &Programs,
        folder: &TrialFolder,
    ) -> Result<Result<Outcome, String>, String> {
        let shared = system::unused_in_shared_memory();
        let (steps, every, held) = self.ask();
        let ask = Ask {
            launcher: self.launcher,
            steps,
            more: &["--every", every],
            held,
        };
        let mut launched = ask.start(programs, folder)?;
        let mut victim = None;
        let begun = launched.until(START, || {
            victim = folder.program(self.victim);
            victim.is_some()
        });
        let reached = begun && launched.until(START, || self.is_reached(folder));
        let Some(victim) = victim.filter(|_| reached) else {
            let output = launched.output();
            folder.end_all();
            return Err(format!("{self}: it did not come so far: {output}"));
        };
        let was_there = system::state(victim.pid).is_some();
        let sent = was_there && system::send(self.signal, victim.pid);
        let start = Instant::now();
        let still = self.was_reached(folder);
        // Whoever was held back comes now, and finds the other as it is.
        fs::write(folder.root.join("gate"), "").map_err(|error| error.to_string())?;
        if !sent || !still {
            folder.end_all();
            let _ = launched.end(START);
            return Ok(Err("the signal came too late".into()));
        }
        let ended = launched.end(LIMIT);
        let seconds = start.elapsed().as_secs_f64();
        let mut wrong = Vec::new();
        let orphans = folder.orphans();
        if !orphans.is_empty() {
            wrong.push(format!("processes are left: {}", orphans.join(", ")));
        }
        folder.end_all();
        if seconds > SECONDS_MAX {
            wrong.push(format!("it took more than {SECONDS_MAX} s"));
        }
        let (code, message) = match ended {
            None => {
                wrong.push("it did not end".into());
                (None, String::new())
            }
            Some(Ended { code, output }) => {
                if !self.codes().contains(&code) {
                    wrong.push(format!("code {code} in place of {:?}", self.codes()));
                }
                let message = self.named(&output, victim.pid);
                if message.is_none() {
                    wrong.push(format!("no error names it: {output}"));
                }
                (Some(code), message.unwrap_or_default())
            }
        };
        wrong.extend(self.next_start(programs, folder, &shared)?);
        Ok(Ok(Outcome {
            code,
            seconds,
            message,
            wrong,
        }))
    }

    /// The codes that `docs/guide/faults.md` and `docs/guide/processes.md` have for it.
    fn codes(self) -> &'static [i32] {
        match (self.signal, self.phase) {
            ("KILL", _) => &[137],
            ("STOP", _) => &[75],
            // Whoever has done all is asked in vain.
            (_, Phase::Exit | Phase::End) => &[143, 0],
            _ => &[143],
        }
    }

    /// Returns the line that says what has happened, and to whom.
    fn named(self, output: &str, pid: u32) -> Option<String> {
        let pid = pid.to_string();
        // It has the number of a process only until it has waited for it.
        let by_mpirun = format!("mpirun noticed that process rank {} with PID", self.victim);
        let is_it = |line: &&str| match (self.signal, self.phase) {
            ("TERM", Phase::Exit | Phase::End) => {
                line.contains("interrupted") || line.contains("report: ")
            }
            ("TERM", Phase::Step | Phase::Save) => line.contains("interrupted after step"),
            // MPI does not say for whom it waits.
            ("STOP", Phase::Rendezvous) if self.launcher == Launcher::Mpirun => {
                line.contains("MPI has not been set up within")
            }
            // It has not said yet who it is.
            ("STOP", Phase::Rendezvous) if self.launcher == Launcher::RunTcp => {
                let process = format!("process {} ", self.victim);
                line.contains("cannot reach the others") && line.contains(&process)
            }
            _ => line.contains(&pid) || line.contains(&by_mpirun),
        };
        let line = output.lines().find(is_it)?.trim();
        Some(line.chars().take(240).collect())
    }

    /// Starts again, and looks for what is left then.
    fn next_start(
        self,
        programs: &Programs,
        folder: &TrialFolder,
        shared: &BTreeSet<String>,
    ) -> Result<Vec<String>, String> {
        let mut wrong = Vec::new();
        let done = folder.checkpoints().last().copied().unwrap_or(0);
        let ask = Ask {
            launcher: self.launcher,
            steps: done + 2,
            more: &["--every", "1000", "--resume", "auto"],
            held: None,
        };
        match ask.start(programs, folder)?.end(START) {
            Some(Ended { code: 0, .. }) => {}
            Some(Ended { code, output }) => {
                wrong.push(format!("the next start ended with {code}: {output}"))
            }
            None => wrong.push("the next start did not end".into()),
        }
        folder.end_all();
        let run = system::names(&folder.run()).into_iter();
        let run = run.filter(|name| !is_of_run(name));
        let temporary = system::names(&folder.temporary()).into_iter();
        let temporary = temporary.filter(|name| !is_kept(name));
        // What others have just made there is used soon, and what they have used goes.
        let mut left = system::unused_in_shared_memory();
        for _ in 0..50 {
            left.retain(|name| !shared.contains(name));
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            let now = system::unused_in_shared_memory();
            left.retain(|name| now.contains(name));
        }
        let left: Vec<String> = run.chain(temporary).chain(left).collect();
        if !left.is_empty() {
            wrong.push(format!("files are left: {}", left.join(", ")));
        }
        Ok(wrong)
    }
}

/// Returns whether a run has such a file.
fn is_of_run(name: &str) -> bool {
    let of_checkpoints =
        |rest: &str| rest.is_empty() || rest == "checkpoints.lock" || rest.starts_with("step-");
    match name.split_once('/') {
        Some(("checkpoints", rest)) => of_checkpoints(rest),
        Some(("tensorboard", rest)) => rest.is_empty() || rest.starts_with("events.out."),
        Some(_) => false,
        None => {
            let known = ["run.lock", "metrics.jsonl", "report.json", "loss.png"];
            let is_config = name.starts_with("config") && name.ends_with(".toml");
            known.contains(&name) || is_config
        }
    }
}

/// Returns whether a file is meant to stay in the system's temporary folder: flight records, and the user's secret.
fn is_kept(name: &str) -> bool {
    let is_record = name.starts_with("burn-dist-") && name.ends_with(".json");
    name.starts_with("burn-dist-user-") || is_record && !name.contains('/')
}

impl TrialFolder {
    /// Returns what still runs a second after the end.
    fn orphans(&self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() || start.elapsed() > Duration::from_secs(1) {
                let text = |process: &system::Process| {
                    format!("{} ({}, {})", process.program, process.pid, process.state)
                };
                return left.iter().map(text).collect();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends whatever still runs.
    pub(super) fn end_all(&self) {
        for process in self.processes() {
            system::send("KILL", process.pid);
        }
    }
}
