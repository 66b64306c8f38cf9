//! A [`Trace`] as JSON.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Event, RankTrace, Trace, What};
use crate::mesh::collective::Kind;
use crate::mesh::{DType, Rank};
use crate::plan::task::{RankPlan, Task};
use burn_dist_plan::op::Op;

/// The lane of a rank's thread; lanes of axes follow.
const COMPUTE: usize = 0;

/// One event of the format: `X` is a slice with a duration, `M` names a lane. Times are microseconds.
#[derive(Serialize)]
struct Entry {
    name: String,
    ph: &'static str,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: Value,
}

impl Entry {
    fn meta(name: &str, pid: usize, tid: usize, args: Value) -> Self {
        Self {
            name: name.into(),
            ph: "M",
            pid,
            tid,
            cat: None,
            ts: None,
            dur: None,
            args,
        }
    }
}

impl Trace {
    /// Number of events that were not kept, because a rank had too many.
    pub fn left_out(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.left_out).sum()
    }

    /// Writes the trace as JSON, an event per line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let mesh = serde_json::to_string(&self.mesh.to_string())?;
        let left_out = self.left_out();
        write!(
            to,
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"mesh\":{mesh},\"events_left_out\":\"{left_out}\"}},\"traceEvents\":["
        )?;
        let mut comma = "";
        for (pid, rank) in self.ranks.iter().enumerate() {
            for entry in self.entries(pid, rank) {
                writeln!(to, "{comma}")?;
                comma = ",";
                serde_json::to_writer(&mut to, &entry)?;
            }
        }
        writeln!(to, "\n]}}")?;
        to.flush()
    }

    /// Writes the trace to a file, which is complete or, after an error, as it was before: it is written under another
    /// name in its folder first. What is no regular file, such as a pipe, is written to directly.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        if path.metadata().is_ok_and(|file| !file.is_file()) {
            let file = OpenOptions::new().write(true).open(path)?;
            return self.write(BufWriter::new(file));
        }
        // Through a symbolic link, its target is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let written = File::create(&partial)
            .and_then(|file| self.write(BufWriter::new(file)))
            .and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }

    fn entries<'a>(&'a self, pid: usize, rank: &'a RankTrace) -> impl Iterator<Item = Entry> + 'a {
        // Lanes of axes, in order of first use.
        let mut lanes: Vec<String> = Vec::new();
        for event in &rank.events {
            if let (What::Transfer, Some(moved)) = (event.what, rank.moved(pid, event)) {
                let axes = self.topology.axes_text(&self.mesh, &moved.group);
                if !lanes.contains(&axes) {
                    lanes.push(axes);
                }
            }
        }
        let mut meta = vec![
            Entry::meta(
                "process_name",
                pid,
                COMPUTE,
                json!({ "name": format!("rank {pid}") }),
            ),
            Entry::meta(
                "process_sort_index",
                pid,
                COMPUTE,
                json!({ "sort_index": pid }),
            ),
            Entry::meta("thread_name", pid, COMPUTE, json!({ "name": "compute" })),
        ];
        for (index, axes) in lanes.iter().enumerate() {
            let name = format!("communication {axes}");
            let tid = COMPUTE + 1 + index;
            meta.push(Entry::meta(
                "thread_name",
                pid,
                tid,
                json!({ "name": name }),
            ));
        }
        // Parents before children; on each lane in order of time.
        let mut events: Vec<&Event> = rank.events.iter().collect();
        events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.end)));
        let slices = events
            .into_iter()
            .map(move |event| self.slice(pid, rank, event, &lanes));
        meta.into_iter().chain(slices)
    }

    fn slice(&self, pid: usize, rank: &RankTrace, event: &Event, lanes: &[String]) -> Entry {
        let plan = &rank.plans[event.plan as usize];
        let (mut tid, mut args) = (COMPUTE, json!({}));
        let mut name = String::new();
        let cat = match event.what {
            What::Window => {
                name = format!("window of {} tasks", plan.tasks.len());
                "window"
            }
            What::Task => {
                let (what, path) = task_name(plan, event);
                name = what;
                if let Some(path) = path {
                    name = format!("{name} {path}");
                    args = json!({ "path": path.to_string() });
                }
                "compute"
            }
            What::Launch | What::Wait | What::Transfer => {
                if let Some(moved) = rank.moved(pid, event) {
                    let axes = self.topology.axes_text(&self.mesh, &moved.group);
                    let path = plan.paths.get(moved.path as usize);
                    let verb = match event.what {
                        What::Launch => "launch ",
                        What::Wait => "wait ",
                        _ => {
                            let lane = lanes.iter().position(|lane| *lane == axes);
                            tid = COMPUTE + 1 + lane.unwrap_or_default();
                            ""
                        }
                    };
                    name = format!("{verb}{}", moved.kind.name());
                    if let Some(path) = path {
                        name = format!("{name} {path}");
                    }
                    args = json!({
                        "axes": axes,
                        "bytes": moved.bytes,
                        "dtype": moved.dtype.name(),
                        "members": moved.group.len(),
                        "path": path.map(|path| path.to_string()),
                    });
                }
                match event.what {
                    What::Transfer => "communication",
                    _ => "exposed",
                }
            }
        };
        Entry {
            name,
            ph: "X",
            pid,
            tid,
            cat: Some(cat),
            ts: Some(event.start as f64 / 1e3),
            dur: Some((event.end - event.start) as f64 / 1e3),
            args,
        }
    }
}

/// A transfer between ranks.
struct Moved {
    kind: Kind,
    group: Arc<[Rank]>,
    bytes: u64,
    dtype: DType,
    path: u32,
}

impl RankTrace {
    /// Returns what an event of rank number `rank` moves.
    fn moved(&self, rank: usize, event: &Event) -> Option<Moved> {
        let tasks = &self.plans[event.plan as usize].tasks;
        let task = match tasks.get(event.at.task as usize)? {
            Task::Collective(task) => task,
            Task::Launch { tasks, .. } => tasks.get(event.at.part as usize)?,
            Task::Receive(task) => {
                return Some(Moved {
                    kind: Kind::Recv,
                    group: Arc::from([task.peer, Rank(rank as u32)]),
                    bytes: task.bytes(),
                    dtype: task.dtype,
                    path: task.path,
                });
            }
            _ => return None,
        };
        Some(Moved {
            kind: task.kind(),
            group: task.group.clone(),
            bytes: task.bytes(),
            dtype: task.dtype,
            path: task.path,
        })
    }
}

/// Returns the name of a task, and the module that it works for.
fn task_name<'a>(plan: &'a RankPlan, event: &Event) -> (String, Option<&'a Arc<str>>) {
    match &plan.tasks[event.at.task as usize] {
        Task::Op(op, path) => (op.name().into(), plan.paths.get(*path as usize)),
        Task::Region(task) => ("region".into(), plan.paths.get(task.path as usize)),
        Task::Upload(_) => ("upload".into(), None),
        Task::Random(_) => ("random".into(), None),
        Task::Store { .. } => ("store".into(), None),
        Task::Read { .. } => ("read".into(), None),
        Task::Load { .. } => ("load".into(), None),
        _ => ("task".into(), None),
    }
}
