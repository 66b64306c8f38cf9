//! Two network namespaces of this machine as two hosts, connected by one link: how processes on them train over TCP,
//! and what becomes of a run when the link or one of them fails. Needs root, and `ip` of iproute2.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::launch::{Programs, TrialFolder};
use super::system::{self, MARK};

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(90);

/// How long a run may go on once something has happened to it: it is silent for 5 s first.
const END: Duration = Duration::from_secs(45);

/// The smallest model, on a mesh that trials name.
const OPTIONS: [&str; 6] = ["pretrain", "--batch", "2", "--seq", "8", "--keep=1000"];

/// Steps of runs that nothing happens to.
const STEPS: &str = "12";

/// The address of host 0, where the rendezvous is kept, and of host 1.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Two hosts; gone when dropped.
struct Hosts {
    names: [String; 2],
}

/// Runs `ip`; what it says if it fails.
fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip of iproute2: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {arguments}: {} (root may do that)",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

impl Hosts {
    fn new() -> Result<Self, String> {
        let hosts = Self {
            names: [0, 1].map(|host| format!("bd{}-{host}", std::process::id())),
        };
        for name in &hosts.names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        let [a, b] = &hosts.names;
        ip(&format!(
            "-n {a} link add link0 type veth peer name link0 netns {b}"
        ))?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev link0"))?;
            ip(&format!("-n {name} link set link0 up"))?;
        }
        Ok(hosts)
    }

    /// Starts a run on both, with so many processes each, and waits for nothing.
    fn start(
        &self,
        programs: &Programs,
        folder: &TrialFolder,
        trial: &Trial,
    ) -> Result<Run, String> {
        let token = folder.root.join("token");
        let failed = |error: std::io::Error| error.to_string();
        fs::write(&token, "0123456789abcdef0123456789abcdef").map_err(failed)?;
        fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).map_err(failed)?;
        let mut children = Vec::new();
        for (number, name) in self.names.iter().enumerate() {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name, "unshare", "--uts", "sh", "-c"]);
            command.args([r#"hostname "$0"; exec "$@""#, &host_name(number)]);
            command
                .arg(&programs.burn_dist)
                .args(["run", "--nnodes", "2"]);
            command.args(["--nproc", trial.nproc, "--node-rank", &number.to_string()]);
            command.args(["--rendezvous", &format!("{}:29500", ADDRESSES[0])]);
            command.arg("--token-file").arg(&token).arg("--");
            command.arg(&programs.llama).args(OPTIONS);
            command.args(["--mesh", trial.mesh, "--steps", trial.steps]);
            command.arg("--run").arg(folder.run());
            command.env("TMPDIR", folder.temporary());
            command.env(MARK, folder.mark());
            command.env("BURN_DIST_SILENCE_SECONDS", "5");
            command.env("BURN_DIST_JOIN_SECONDS", "20");
            if let Some(seal) = trial.seal {
                command.env("BURN_DIST_SEAL", seal);
            }
            let file = File::create(folder.root.join(format!("output-{number}")));
            let file = file.map_err(failed)?;
            let both = file.try_clone().map_err(failed)?;
            command.stdin(Stdio::null()).stdout(file).stderr(both);
            children.push(command.spawn().map_err(failed)?);
        }
        Ok(Run { children })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn host_name(number: usize) -> String {
    format!("bd-host-{number}")
}

/// A start on both hosts.
struct Run {
    children: Vec<Child>,
}

impl Run {
    /// Waits for the end of both, at most so long; returns their codes.
    fn end(mut self, limit: Duration) -> Vec<Option<i32>> {
        let start = Instant::now();
        let is_running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        while start.elapsed() < limit && self.children.iter_mut().any(is_running) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = |child: &mut Child| match child.try_wait() {
            Ok(Some(status)) => status.code(),
            _ => None,
        };
        self.children.iter_mut().map(code).collect()
    }
}

/// Something that happens to the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// The link carries every packet later.
    Delay,
    /// The link carries nothing any more, without a word.
    Drop,
    /// A process on host 1 ends.
    Kill,
    /// A process on host 1 is stopped.
    Stop,
    /// A firewall on host 1 refuses all but the rendezvous.
    Refuse,
}

struct Trial {
    name: &'static str,
    nproc: &'static str,
    mesh: &'static str,
    seal: Option<&'static str>,
    steps: &'static str,
    event: Event,
    /// Parts of lines that each host has to write.
    says: [&'static [&'static str]; 2],
}

const TRAINS: Trial = Trial {
    name: "trains",
    nproc: "1",
    mesh: "fsdp=2",
    seal: None,
    steps: STEPS,
    event: Event::Nothing,
    says: [&[], &[]],
};

const LONG: &str = "100000";

const TRIALS: [Trial; 8] = [
    TRAINS,
    Trial {
        name: "trains without seal",
        seal: Some("off"),
        ..TRAINS
    },
    Trial {
        name: "trains in four processes",
        nproc: "2",
        mesh: "fsdp=2,tp=2",
        ..TRAINS
    },
    Trial {
        name: "delay",
        event: Event::Delay,
        ..TRAINS
    },
    Trial {
        name: "drop",
        steps: LONG,
        event: Event::Drop,
        says: [
            &["bd-host-1, pid"],
            &["gave up after 30.", "bd-host-0, pid"],
        ],
        ..TRAINS
    },
    Trial {
        name: "kill",
        steps: LONG,
        event: Event::Kill,
        says: [
            &["bd-host-1, pid"],
            &["bd-host-1, pid", "killed by signal 9"],
        ],
        ..TRAINS
    },
    Trial {
        name: "stop",
        steps: LONG,
        event: Event::Stop,
        says: [&["bd-host-1, pid"], &["bd-host-1, pid"]],
        ..TRAINS
    },
    Trial {
        name: "refuse",
        event: Event::Refuse,
        says: [
            &[
                "cannot reach process 0 (host bd-host-0, pid",
                "does a firewall",
            ],
            &[
                "cannot reach process 0 (host bd-host-0, pid",
                "does a firewall",
            ],
        ],
        ..TRAINS
    },
];

/// Does all trials whose name contains `only`; returns what they were, and how many failed.
pub(super) fn all(programs: &Programs, only: &str) -> Result<(Value, usize), String> {
    let (mut rows, mut failed) = (Vec::new(), 0);
    for trial in TRIALS.iter().filter(|trial| trial.name.contains(only)) {
        let start = Instant::now();
        let wrong = trial.run(programs)?;
        let seconds = start.elapsed().as_secs_f64();
        println!("{:<26} {seconds:>6.1} s", trial.name);
        for wrong in &wrong {
            println!("    wrong: {wrong}");
        }
        failed += usize::from(!wrong.is_empty());
        rows.push(json!({"trial": trial.name, "seconds": seconds, "wrong": wrong}));
    }
    Ok((Value::Array(rows), failed))
}

impl Trial {
    /// Returns what is not as it should be.
    fn run(&self, programs: &Programs) -> Result<Vec<String>, String> {
        // An earlier trial that failed leaves its folder, to be looked at.
        let name = self.name.replace(' ', "-");
        let folder = TrialFolder::new(&format!("hosts-{name}"))?;
        let hosts = Hosts::new()?;
        let host1 = &hosts.names[1];
        match self.event {
            Event::Delay => {
                let delay = "dev link0 root netem delay 5ms 2ms";
                let tc = format!("netns exec {host1} tc qdisc add {delay}");
                if let Err(error) = ip(&tc) {
                    println!("    not tried: {error}");
                    folder.remove();
                    return Ok(Vec::new());
                }
            }
            Event::Refuse => ip(&format!(
                "-n {host1} rule add ipproto tcp dport 29501-65534 prohibit"
            ))?,
            _ => {}
        }
        let run = hosts.start(programs, &folder, self)?;
        let is_trial = matches!(self.event, Event::Drop | Event::Kill | Event::Stop);
        let start = Instant::now();
        let has_steps = || folder.has_step(3);
        while is_trial && !has_steps() && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        let victim = || {
            let victim = folder.program(1);
            victim
                .ok_or("no process of rank 1")
                .map(|victim| victim.pid)
        };
        match self.event {
            Event::Drop => ip(&format!("-n {host1} link set link0 down"))?,
            Event::Kill => drop(system::send("KILL", victim()?)),
            Event::Stop => drop(system::send("STOP", victim()?)),
            _ => {}
        }
        let limit = if is_trial { END } else { LIMIT };
        let codes = run.end(limit);
        folder.end_all();
        let mut wrong = Vec::new();
        let is_to_train = self.says.iter().all(|said| said.is_empty());
        for (host, code) in codes.iter().enumerate() {
            let output = fs::read(folder.root.join(format!("output-{host}"))).unwrap_or_default();
            let output = String::from_utf8_lossy(&output);
            let is_right = match code {
                None => false,
                Some(code) => (*code == 0) == is_to_train,
            };
            if !is_right {
                wrong.push(format!("host {host} ended with {code:?}: {output}"));
            }
            for part in self.says[host] {
                match output.lines().find(|line| line.contains(part)) {
                    Some(line) => println!("    host {host}: {}", line.trim()),
                    None => wrong.push(format!("host {host} does not say `{part}`: {output}")),
                }
            }
        }
        if is_to_train && wrong.is_empty() {
            wrong.extend(self.differs_from_threads(programs, &folder)?);
        }
        if wrong.is_empty() {
            folder.remove();
        }
        Ok(wrong)
    }

    /// Trains with ranks as threads of one process, and compares the checkpoints.
    fn differs_from_threads(
        &self,
        programs: &Programs,
        folder: &TrialFolder,
    ) -> Result<Option<String>, String> {
        let threads = TrialFolder::new("threads")?;
        let mut command = Command::new(&programs.llama);
        command.args(OPTIONS).args(["--mesh", self.mesh]);
        command.args(["--steps", self.steps]);
        command.arg("--run").arg(threads.run());
        command.env("TMPDIR", threads.temporary());
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let step = self.steps.parse().map_err(|_| "steps are a number")?;
        let differs = programs.diff(&threads.checkpoint(step), &folder.checkpoint(step));
        threads.remove();
        Ok(differs)
    }
}
