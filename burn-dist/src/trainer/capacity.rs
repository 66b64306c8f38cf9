//! Compares what a run needs, as the plan knows it, with the memory of this machine, before the run starts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{TooLarge, Unfit};
use super::mesh::Mesh;
use super::processes::Processes;
use super::voice::{note, speaks};
use crate::clock::Hardware;
use crate::explanation::MemoryPlan;

/// Bytes of a rank beside its tensors: its thread, its part of each plan, and buffers of its collectives. Measured as
/// the resident memory of `tiny` on 16, 64 and 256 ranks, less the tensors and the process: 2.2 to 3.4 MiB.
const RANK_BYTES: u64 = 5 << 19;
/// The process itself: 35 MiB with one rank.
const PROCESS_BYTES: u64 = 40 << 20;
/// Address space of a thread: its stack.
const STACK_BYTES: u64 = 2 << 20;
/// Address space that glibc sets aside for each of its arenas, of which there are up to eight a core.
const ARENA_BYTES: u64 = 64 << 20;

impl Unfit {
    /// Returns what to say of a step whose ranks need more memory than devices have.
    pub fn of(plans: &[MemoryPlan], hardware: &Hardware) -> Option<Self> {
        let fullest = plans.iter().max_by_key(|plan| plan.peak_bytes)?;
        let (has, reserved) = (hardware.memory_bytes(), hardware.reserved_bytes());
        (fullest.peak_bytes + reserved > has).then(|| Self {
            device: hardware.name.clone(),
            held: fullest.peak_bytes,
            cause: fullest.peak_cause.to_string(),
            has,
            reserved,
        })
    }
}

/// The memory that every rank needs: in each window of a run that matters, the most that it holds.
#[derive(Debug, Clone)]
pub struct Needs {
    /// Peaks of the ranks; of the first one alone if they differ in little.
    pub ranks: Vec<u64>,
    /// The work at the highest peak.
    pub cause: String,
    /// The settings that would need less.
    pub remedies: &'static str,
}

impl Needs {
    /// Returns the needs of windows. What is offloaded lies in the memory of the same machine.
    pub fn new(windows: &[&[MemoryPlan]], remedies: &'static str) -> Self {
        let bytes = |plan: &MemoryPlan| plan.peak_bytes + plan.host_peak_bytes;
        let total = |plans: &&&[MemoryPlan]| plans.iter().map(bytes).sum::<u64>();
        let plans = windows
            .iter()
            .max_by_key(total)
            .copied()
            .unwrap_or_default();
        let highest = plans.iter().max_by_key(|plan| bytes(plan));
        Self {
            ranks: plans.iter().map(bytes).collect(),
            cause: highest.map_or_else(String::new, |plan| plan.peak_cause.to_string()),
            remedies,
        }
    }

    /// Returns the needs of a model's parameters alone, shared out among the ranks: no mesh of them holds less.
    pub fn of_parameters(count: usize, num_ranks: usize, remedies: &'static str) -> Self {
        let bytes = (count * size_of::<f32>()) as u64;
        Self {
            ranks: vec![bytes / num_ranks as u64; num_ranks],
            cause: "rest, the parameters alone".to_string(),
            remedies,
        }
    }

    /// Returns the bytes that a process with these ranks holds.
    fn of(&self, ranks: std::ops::Range<usize>) -> u64 {
        let first = self.ranks.first().copied().unwrap_or(0);
        let each = |rank| self.ranks.get(rank).copied().unwrap_or(first);
        let overhead = PROCESS_BYTES + RANK_BYTES * ranks.len() as u64;
        ranks.map(each).sum::<u64>() + overhead
    }
}

/// The memory that a process may still take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    bytes: u64,
    /// Where the limit comes from, after the number of bytes.
    of: String,
}

/// The limits of this process's machine and of its own, as far as it knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Shared by the processes of the machine.
    machine: Option<Left>,
    /// The limit of this process alone.
    address_space: Option<Left>,
}

impl Room {
    /// Asks the system.
    pub fn of_this_process() -> Self {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        let free = Left {
            bytes: system.available_memory(),
            of: "are free there".to_string(),
        };
        let machine = (system.total_memory() > 0).then_some(free);
        let group = std::fs::read_to_string("/proc/self/cgroup")
            .ok()
            .and_then(|groups| group_left(&groups, Path::new("/sys/fs/cgroup")));
        Self {
            machine: machine
                .into_iter()
                .chain(group)
                .min_by_key(|left| left.bytes),
            address_space: address_space_left(),
        }
    }
}

/// Returns the least that the control groups of a process leave it: each may have a limit. `groups` is what the system
/// says of them (`/proc/self/cgroup`), `root` where they are seen as folders.
///
/// The files of a group that the system keeps in memory are not counted: it gives them up when memory is short.
fn group_left(groups: &str, root: &Path) -> Option<Left> {
    let number =
        |path: PathBuf| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
    let used = |dir: &Path, key: &str| -> Option<u64> {
        let stat = std::fs::read_to_string(dir.join("memory.stat")).ok()?;
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    let mut least: Option<Left> = None;
    for line in groups.lines() {
        // 4:memory:/jobs/7 or, of version 2, 0::/jobs/7
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (base, limit, key) = match controllers {
            "" => (root.to_path_buf(), "memory.max", "anon"),
            list if list.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "total_rss")
            }
            _ => continue,
        };
        // A container sees its own group as the root, under which its path may not exist.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let dir = base.join(group);
            let Some(limit) = number(dir.join(limit)) else {
                continue;
            };
            let bytes = limit.saturating_sub(used(&dir, key).unwrap_or(0));
            if least.as_ref().is_none_or(|least| bytes < least.bytes) {
                let of = format!(
                    "are left by the memory limit of control group /{}",
                    group.display()
                );
                least = Some(Left { bytes, of });
            }
        }
    }
    least
}

/// Returns the bytes that a limit of the address space (`ulimit -v`) leaves this process.
fn address_space_left() -> Option<Left> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?
        .split_whitespace()
        .next()?;
    let limit: u64 = soft.parse().ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let used = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:"))?;
    let used: u64 = used.trim().trim_end_matches(" kB").parse().ok()?;
    Some(Left {
        bytes: limit.saturating_sub(used << 10),
        of: "are left by the limit of its address space (ulimit -v)".to_string(),
    })
}

/// Compares what `num_ranks` ranks need with what the machines of all processes have; all of them come to the same end.
///
/// # Communication
/// Waits for the other processes.
/// # Errors
/// [`TooLarge`], of the first machine that has too little. If another process is late or has ended.
pub fn check(needs: &Needs, num_ranks: usize, processes: &Processes) -> anyhow::Result<()> {
    let rooms = processes.gather((processes.host(), Room::of_this_process()))?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Ok(compare(needs, num_ranks, &rooms, cores)?)
}

/// Compares what a run needs with what there is, where tensors are in the memory of the host; by `force`, what does not
/// fit is only printed.
///
/// # Communication
/// Waits for the other processes.
/// # Errors
/// As [`check`].
pub fn check_on(needs: &Needs, mesh: &Mesh, force: bool) -> anyhow::Result<()> {
    if !mesh.in_host_memory() {
        return Ok(());
    }
    match check(needs, mesh.world_size(), mesh.processes()) {
        Err(error) if force && error.is::<TooLarge>() => {
            if speaks() {
                note!("forced: {error}");
            }
            Ok(())
        }
        checked => checked,
    }
}

/// Does the same as [`check_on`], before a step is planned: for the parameters alone. Processes that share
/// a model out unevenly know that of no machine before the plan.
///
/// # Errors
/// As [`check`].
pub fn check_parameters(
    num_params: usize,
    mesh: &Mesh,
    remedies: &'static str,
) -> anyhow::Result<()> {
    if mesh.processes().are_several() {
        return Ok(());
    }
    let needs = Needs::of_parameters(num_params, mesh.world_size(), remedies);
    check_on(&needs, mesh, false)
}

/// Does the work of [`check`]: each process has sent the name of its machine, and what it may take there.
fn compare(
    needs: &Needs,
    num_ranks: usize,
    rooms: &[(String, Room)],
    cores: usize,
) -> Result<(), TooLarge> {
    let share =
        |process: usize| num_ranks * process / rooms.len()..num_ranks * (process + 1) / rooms.len();
    let too_large =
        |host: &str, needed: u64, left: &Left, ranks: usize, processes: usize| TooLarge {
            machine: match host {
                "" => "this machine".into(),
                host => format!("machine {host}").into(),
            },
            needed,
            left: left.bytes,
            left_of: left.of.as_str().into(),
            count: ranks,
            each: needs.ranks.iter().copied().max().unwrap_or(0),
            cause: needs.cause.clone(),
            overhead: PROCESS_BYTES * processes as u64 + RANK_BYTES * ranks as u64,
            remedies: needs.remedies,
        };
    for (host, _) in rooms {
        let there = || (0..rooms.len()).filter(|process| rooms[*process].0 == *host);
        let needed = there().map(|process| needs.of(share(process))).sum();
        let ranks = there().map(|process| share(process).len()).sum();
        let machine = there().filter_map(|process| rooms[process].1.machine.as_ref());
        if let Some(left) = machine.min_by_key(|left| left.bytes)
            && needed > left.bytes
        {
            return Err(too_large(host, needed, left, ranks, there().count()));
        }
    }
    for (process, (host, room)) in rooms.iter().enumerate() {
        let ranks = share(process);
        let count = ranks.len();
        let arenas = (count + 1).min(8 * cores) as u64;
        let needed = needs.of(ranks) + STACK_BYTES * count as u64 + ARENA_BYTES * arenas;
        if let Some(left) = &room.address_space
            && needed > left.bytes
        {
            return Err(too_large(host, needed, left, count, 1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn plan(peak_bytes: u64, host_peak_bytes: u64) -> MemoryPlan {
        MemoryPlan {
            peak_bytes,
            host_peak_bytes,
            ..MemoryPlan::default()
        }
    }

    fn room(host: &str, gib: u64) -> (String, Room) {
        let left = Left {
            bytes: gib * GIB,
            of: "are free there".to_string(),
        };
        let room = Room {
            machine: Some(left),
            address_space: None,
        };
        (host.to_string(), room)
    }

    fn refused(needs: &Needs, ranks: usize, rooms: &[(String, Room)]) -> Option<String> {
        let compared = compare(needs, ranks, rooms, 2);
        compared.err().map(|error| error.to_string())
    }

    #[test]
    fn what_all_ranks_of_a_machine_hold_has_to_fit() {
        let plans = [plan(GIB, 0)];
        let needs = Needs::new(&[&plans], "less");
        assert_eq!(refused(&needs, 8, &[room("", 9)]), None);
        let said = refused(&needs, 9, &[room("", 9)]).unwrap();
        for part in [
            "needs about 9.1 GiB on this machine, and 9.0 GiB are free there",
            "9 ranks there hold up to 1.0 GiB of tensors each",
            "use less; --force runs it all the same",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // What 1,000 ranks cost themselves counts even if their tensors are small.
        let small = Needs::new(&[&[plan(1, 0)]], "less");
        assert_eq!(refused(&small, 100, &[room("", 2)]), None);
        assert!(refused(&small, 1000, &[room("", 2)]).is_some());
    }

    #[test]
    fn processes_of_one_machine_share_it() {
        let plans = [plan(GIB, 0)];
        let needs = Needs::new(&[&plans], "less");
        let apart = [room("a", 5), room("b", 5)];
        assert_eq!(refused(&needs, 8, &apart), None);
        let said = refused(&needs, 8, &[room("a", 5), room("a", 5)]).unwrap();
        assert!(
            said.contains("8 ranks there") && said.contains("machine a"),
            "{said}"
        );
        let said = refused(&needs, 8, &[room("a", 5), room("b", 4)]).unwrap();
        assert!(
            said.contains("4 ranks there") && said.contains("machine b"),
            "{said}"
        );
    }

    #[test]
    fn the_window_that_holds_the_most_counts_with_what_is_on_the_host() {
        let (first, steady) = ([plan(2 * GIB, 0)], [plan(2 * GIB, GIB)]);
        let needs = Needs::new(&[&first, &steady], "less");
        assert_eq!(needs.ranks, vec![3 * GIB]);
        assert_eq!(Needs::new(&[&first], "less").ranks, vec![2 * GIB]);
        assert!(refused(&needs, 1, &[room("", 3)]).is_some());
        assert_eq!(refused(&needs, 1, &[room("", 4)]), None);
    }

    #[test]
    fn parameters_alone_may_be_too_many() {
        let count = 1 << 30;
        assert_eq!(
            refused(&Needs::of_parameters(count, 4, "less"), 4, &[room("", 5)]),
            None
        );
        let said = refused(&Needs::of_parameters(count, 4, "less"), 4, &[room("", 4)]).unwrap();
        let expected =
            "4 ranks there hold up to 1.0 GiB of tensors each (at rest, the parameters alone)";
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn an_unknown_limit_is_none_and_that_of_the_address_space_counts_stacks() {
        let needs = Needs::new(&[&[plan(0, 0)]], "less");
        let mut room = Room::default();
        let rooms = |room: &Room| [(String::new(), room.clone())];
        assert_eq!(refused(&needs, 1 << 20, &rooms(&room)), None);
        room.address_space = Some(Left {
            bytes: 3 * GIB,
            of: "are left by ulimit".to_string(),
        });
        assert_eq!(refused(&needs, 100, &rooms(&room)), None);
        let said = refused(&needs, 500, &rooms(&room)).unwrap();
        assert!(said.contains("are left by ulimit"), "{said}");
    }

    #[test]
    fn every_group_above_a_process_may_have_a_limit() {
        let root = tempfile::tempdir().unwrap();
        let write = |dir: &str, file: &str, text: &str| {
            let dir = root.path().join(dir);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(file), text).unwrap();
        };
        let left = |groups: &str| group_left(groups, root.path());
        assert_eq!(left("0::/jobs/7\n"), None);
        write("jobs/7", "memory.max", "max\n");
        assert_eq!(left("0::/jobs/7\n"), None);
        write("jobs", "memory.max", "5000\n");
        write("jobs", "memory.stat", "anon 2000\nfile 2900\n");
        let found = left("1:cpu:/x\n0::/jobs/7\n").unwrap();
        assert_eq!(found.bytes, 3000);
        assert!(found.of.contains("control group /jobs"), "{}", found.of);
        // Version 1, as a container sees it: its path is the host's.
        write("memory", "memory.limit_in_bytes", "4000\n");
        write("memory", "memory.stat", "cache 1\ntotal_rss 1500\n");
        assert_eq!(left("4:cpu,memory:/docker/abc\n").unwrap().bytes, 2500);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(Room::of_this_process().machine.unwrap().bytes > 0);
    }
}
