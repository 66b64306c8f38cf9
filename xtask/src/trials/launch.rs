//! A training run in two processes, and what can be seen of it from outside.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::system::{self, MARK, Process};
use crate::workspace::{self, run};

/// The launcher of the processes, and the transport of their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    Mpirun,
    Run,
    RunTcp,
}

pub(super) const LAUNCHERS: [Launcher; 3] = [Launcher::Mpirun, Launcher::Run, Launcher::RunTcp];

impl Launcher {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mpirun => "mpirun",
            Self::Run => "burn-dist run",
            Self::RunTcp => "burn-dist run, TCP",
        }
    }

    pub(super) fn short(self) -> &'static str {
        match self {
            Self::Mpirun => "mpirun",
            Self::Run => "run",
            Self::RunTcp => "tcp",
        }
    }

    fn command(self, programs: &Programs) -> Command {
        let mut command = match self {
            Self::Mpirun => Command::new("mpirun"),
            Self::Run | Self::RunTcp => Command::new(&programs.burn_dist),
        };
        match self {
            Self::Mpirun => command.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]),
            Self::Run => command.args(["run", "--nproc", "2", "--"]),
            Self::RunTcp => command.args(["run", "--nproc", "2", "--transport", "tcp", "--"]),
        };
        command
    }
}

/// The programs that are tried.
pub(super) struct Programs {
    pub(super) llama: PathBuf,
    pub(super) burn_dist: PathBuf,
}

impl Programs {
    /// Builds them, unless `BURN_DIST_TRIAL_PROGRAMS` names a folder that has them.
    pub(super) fn build() -> Result<Self, String> {
        let folder = match std::env::var_os("BURN_DIST_TRIAL_PROGRAMS") {
            Some(folder) => PathBuf::from(folder),
            None => {
                let packages = ["build", "--release", "-p", "llama", "-p", "burn-dist"];
                let features = "llama/mpi,burn-dist/cli,burn-dist/mpi";
                let mut build = workspace::cargo();
                build.args(packages);
                run(build.args(["--bins", "--features", features]))?;
                workspace::target().join("release")
            }
        };
        Ok(Self {
            llama: folder.join("llama"),
            burn_dist: folder.join("burn-dist"),
        })
    }

    /// Compares two checkpoints bit by bit; returns what differs, if anything does.
    pub(super) fn diff(&self, one: &Path, other: &Path) -> Option<String> {
        let mut diff = Command::new(&self.burn_dist);
        match diff.args(["ckpt", "diff"]).args([one, other]).output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// The folder of a trial: of a run, of temporary files, and of its output.
pub(super) struct TrialFolder {
    pub(super) root: PathBuf,
    mark: String,
}

impl TrialFolder {
    /// Makes one that is empty.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let all = std::env::temp_dir().join(format!("burn-dist-trials-{}", std::process::id()));
        let root = all.join(name);
        // Short: names of sockets are in it.
        let made = fs::create_dir_all(root.join("tmp"));
        made.map_err(|error| format!("{}: {error}", root.display()))?;
        let mark = root.display().to_string();
        Ok(Self { root, mark })
    }

    pub(super) fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Returns the value in the environment of all its processes, by which they are known.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the figures, as far as they are written.
    pub(super) fn figures(&self) -> String {
        fs::read_to_string(self.run().join("metrics.jsonl")).unwrap_or_default()
    }

    /// Returns whether the figures of a step are there.
    pub(super) fn has_step(&self, step: usize) -> bool {
        self.figures().contains(&format!("{{\"step\":{step},"))
    }

    pub(super) fn checkpoint(&self, step: usize) -> PathBuf {
        self.run().join(format!("checkpoints/step-{step:010}"))
    }

    /// Returns the steps whose checkpoints are there.
    pub(super) fn checkpoints(&self) -> Vec<usize> {
        let names = system::names(&self.run().join("checkpoints"));
        let step = |name: &String| name.strip_prefix("step-")?.strip_suffix('/')?.parse().ok();
        names.iter().filter_map(step).collect()
    }

    /// Returns whether a checkpoint is being written.
    pub(super) fn is_saving(&self) -> bool {
        let entries = fs::read_dir(self.run().join("checkpoints"));
        let mut names = entries.into_iter().flatten().flatten();
        names.any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(".tmp-step-") && !name.ends_with("removed")
        })
    }

    /// Returns the processes of this trial, launchers and all.
    pub(super) fn processes(&self) -> Vec<Process> {
        system::marked(&self.mark)
    }

    /// Returns the program with this rank, if it has begun.
    pub(super) fn program(&self, rank: usize) -> Option<Process> {
        let mut all = self.processes().into_iter();
        all.find(|process| process.program == "llama" && process.rank == Some(rank))
    }

    /// Removes all of it.
    pub(super) fn remove(self) {
        let _ = fs::remove_dir_all(self.root);
    }
}

/// A start of both processes.
pub(super) struct Launched {
    pub(super) child: Child,
    output: PathBuf,
}

/// How a start ended.
pub(super) struct Ended {
    /// The exit code, as a shell numbers it.
    pub(super) code: i32,
    /// All that it wrote.
    pub(super) output: String,
}

/// The smallest model on two ranks.
pub(super) const OPTIONS: [&str; 8] = [
    "pretrain",
    "--batch",
    "2",
    "--seq",
    "8",
    "--mesh",
    "fsdp=2",
    "--keep=1000",
];

/// The options of a start, beside [`OPTIONS`].
pub(super) struct Ask<'a> {
    pub(super) launcher: Launcher,
    pub(super) steps: usize,
    pub(super) more: &'a [&'a str],
    /// The process that waits for a file `gate` before it begins.
    pub(super) held: Option<usize>,
}

impl Ask<'_> {
    /// Starts the run of a folder; its output is in a file there.
    pub(super) fn start(
        &self,
        programs: &Programs,
        folder: &TrialFolder,
    ) -> Result<Launched, String> {
        let mut command = self.launcher.command(programs);
        if let Some(rank) = self.held {
            let gate = folder.root.join("gate");
            let held = format!(
                "[ $OMPI_COMM_WORLD_RANK$RANK = {rank} ] && while [ ! -e {} ]; do sleep 0.05; done; exec \"$0\" \"$@\"",
                gate.display()
            );
            command.args(["sh", "-c", &held]);
        }
        command.arg(&programs.llama).args(OPTIONS);
        command.arg("--run").arg(folder.run());
        command.args(["--steps", &self.steps.to_string()]);
        command.args(self.more);
        command.env("TMPDIR", folder.temporary());
        command.env(MARK, &folder.mark);
        // Below the time of a trial: a minute is what schedulers need that start many machines.
        command.env("BURN_DIST_JOIN_SECONDS", "20");
        let output = folder.root.join("output");
        let file = File::create(&output).map_err(|error| error.to_string())?;
        let both = file.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(file).stderr(both);
        let child = command.spawn();
        let child = child.map_err(|error| format!("{}: {error}", self.launcher.name()))?;
        Ok(Launched { child, output })
    }
}

impl Launched {
    /// Returns whether it still runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until something is so; returns whether it was before the end and the limit.
    pub(super) fn until(&mut self, limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < limit && self.is_running() {
            if is_so() {
                return true;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        false
    }

    /// Waits for the end; nothing, if it does not come within the limit.
    pub(super) fn end(mut self, limit: Duration) -> Option<Ended> {
        use std::os::unix::process::ExitStatusExt;
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                _ if start.elapsed() > limit => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return None;
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let code = status.code().unwrap_or(128 + status.signal().unwrap_or(0));
        let output = fs::read(&self.output).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        Some(Ended { code, output })
    }

    /// Returns its output so far.
    pub(super) fn output(&self) -> String {
        let output = fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&output).into_owned()
    }
}
