//! Processes as Linux shows them, signals, and numbers that look random.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The variable by which everything that a trial has started is known, however it was started.
pub(super) const MARK: &str = "BURN_DIST_TRIAL";

/// A process that runs.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Its number among those of its launch, if it has one.
    pub(super) rank: Option<usize>,
    /// The name of its program.
    pub(super) program: String,
    /// Threads that it has.
    pub(super) threads: usize,
    /// Its state, as `ps` writes it.
    pub(super) state: char,
}

/// Returns what runs with this mark.
pub(super) fn marked(mark: &str) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| marked_process(pid, mark)).collect()
}

fn marked_process(pid: u32, mark: &str) -> Option<Process> {
    let folder = Path::new("/proc").join(pid.to_string());
    let environment = fs::read(folder.join("environ")).ok()?;
    let value = |name: &str| {
        let mut all = environment.split(|byte| *byte == 0);
        all.find_map(|one| one.strip_prefix(format!("{name}=").as_bytes()))
    };
    if value(MARK) != Some(mark.as_bytes()) {
        return None;
    }
    let rank = value("OMPI_COMM_WORLD_RANK").or_else(|| value("RANK"));
    let rank = rank.and_then(|rank| String::from_utf8_lossy(rank).parse().ok());
    let state = state(pid)?;
    let program = fs::read_link(folder.join("exe")).ok()?;
    let program = program.file_name()?.to_string_lossy().into_owned();
    Some(Process {
        pid,
        rank,
        // As the system names one that was built anew since.
        program: program.trim_end_matches(" (deleted)").to_string(),
        threads: status(pid, "Threads:")? as usize,
        state,
    })
}

/// Returns the state of a process that has not ended: one that nobody has waited for yet has.
pub(super) fn state(pid: u32) -> Option<char> {
    // PID (NAME) STATE
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit(") ").next()?.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Returns a number of a process's `status`, such as `VmRSS:` in KiB.
pub(super) fn status(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Sends a signal, such as `KILL`; returns whether the process was there.
pub(super) fn send(signal: &str, pid: u32) -> bool {
    let mut kill = Command::new("kill");
    let sent = kill.arg(format!("-{signal}")).arg(pid.to_string()).output();
    sent.is_ok_and(|sent| sent.status.success())
}

/// Returns the names of everything below a folder, folders with a slash at their end.
pub(super) fn names(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap_or(&path);
            let name = name.display().to_string();
            // A link is one, wherever it leads.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.insert(format!("{name}/"));
                folders.push(path);
            } else {
                names.insert(name);
            }
        }
    }
    names
}

/// Returns the names of what lies in shared memory and no process uses.
pub(super) fn unused_in_shared_memory() -> BTreeSet<String> {
    let found = names(Path::new("/dev/shm"));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps = processes.filter_map(|process| fs::read_to_string(process.path().join("maps")).ok());
    let used: String = maps.collect();
    // A launcher has a folder there.
    let launcher = |name: &String| {
        name.strip_prefix("burn-dist-")?
            .split('-')
            .next()?
            .parse()
            .ok()
    };
    let is_unused = |name: &String| {
        let is_mapped = used.contains(&format!("/dev/shm/{name}"));
        !is_mapped && launcher(name).and_then(state).is_none()
    };
    found.into_iter().filter(is_unused).collect()
}

/// Numbers that look random: the same for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns one from 0 up to `below`.
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }
}
