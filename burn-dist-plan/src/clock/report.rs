//! The results of a simulation, in numbers and as text.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::events::{self, COMPUTE};
use super::hardware::Hardware;
use super::rank::{RankActions, What};
use crate::bytes::human_bytes;
use crate::memory::{ClassBytes, MemoryClass, MemoryPlan, MemoryTimeline};
use crate::mesh::Rank;
use crate::pipeline::{Action, Span, Timeline, spans_of};

const NS_PER_S: f64 = 1e9;

/// A plan on hardware.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    /// Name of the hardware.
    pub hardware: String,
    /// How long the plan takes, in nanoseconds: until the last rank is done.
    pub step_ns: u64,
    /// The ranks that were simulated, each for all that do the same.
    pub ranks: Vec<RankSimulation>,
}

/// A rank, and those that do the same.
///
/// `compute_ns + exposed_ns + host_ns + idle_ns` is how long it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankSimulation {
    /// The ranks that it stands for, the one that was simulated first.
    pub ranks: Vec<Rank>,
    /// When it is done, in nanoseconds.
    pub end_ns: u64,
    /// How long it computes.
    pub compute_ns: u64,
    /// How long it does nothing but communicate.
    pub exposed_ns: u64,
    /// How long it waits for its host to hand out work.
    pub host_ns: u64,
    /// How long it waits for other ranks, and does nothing else.
    pub idle_ns: u64,
    /// Its lanes.
    pub lanes: Vec<LaneTime>,
    /// Flops of its products, those that are made again included.
    pub flops: f64,
    /// Its memory, as the plan has it.
    pub memory: MemoryPlan,
    /// Its memory with what the hardware reserves.
    pub peak_bytes: u64,
    /// Memory of the device.
    pub memory_bytes: u64,
    /// The actions of its schedule, in order of time; not part of JSON.
    #[serde(skip)]
    pub actions: Vec<Span>,
    /// The memory that it holds, task by task; not part of JSON.
    #[serde(skip)]
    pub memory_over_time: Vec<MemoryAt>,
    /// Everything that takes time on a lane, lane by lane; not part of JSON.
    #[serde(skip)]
    pub entries: Vec<Entry>,
}

/// A lane of a rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneTime {
    /// `compute`, or the axes of the groups that it serves.
    pub name: String,
    /// How long it is busy, in nanoseconds.
    pub busy_ns: u64,
    /// Number of kernels or calls.
    pub count: u64,
    /// Bytes that the rank receives over it.
    pub bytes: u64,
}

/// The memory that a rank holds from some time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryAt {
    /// When, in nanoseconds.
    pub ns: u64,
    /// Bytes by class.
    pub bytes: ClassBytes,
}

/// Something that takes time on a lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Index into [`RankSimulation::lanes`].
    pub lane: usize,
    /// From when, in nanoseconds.
    pub start_ns: u64,
    /// Until when.
    pub end_ns: u64,
    /// The operation or collective; of several that run as one, the first.
    pub name: &'static str,
    /// Operations that run as one.
    pub ops: usize,
    /// First and last task of it.
    pub tasks: (usize, usize),
    /// Path of the module it works for, if known.
    pub path: Option<Arc<str>>,
}

/// A rank that was simulated.
pub(super) struct Of<'a> {
    pub ranks: Vec<Rank>,
    pub about: &'a RankActions,
    pub timeline: &'a events::Timeline,
    pub lanes: &'a [String],
    pub paths: &'a [Arc<str>],
    pub actions: &'a [(Action, Range<u32>)],
    pub hardware: &'a Hardware,
}

/// Joins intervals that touch; they come out sorted.
fn joined(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (start, end) in intervals {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

fn total(intervals: &[(u64, u64)]) -> u64 {
    intervals.iter().map(|(start, end)| end - start).sum()
}

/// Sums up what a rank did.
pub(super) fn rank(of: Of<'_>, memory: MemoryPlan, over_time: &MemoryTimeline) -> RankSimulation {
    let events::Timeline {
        spans,
        starved,
        done,
        end,
    } = of.timeline;
    let on = |is_meant: &dyn Fn(usize) -> bool| {
        let meant = spans.iter().filter(|span| is_meant(span.lane));
        joined(meant.map(|span| (span.start, span.end)).collect())
    };
    let computing = on(&|lane| lane == COMPUTE);
    let (compute_ns, host_ns) = (total(&computing), total(starved));
    let busy = joined(
        computing
            .into_iter()
            .chain(starved.iter().copied())
            .collect(),
    );
    let communicating = on(&|lane| lane != COMPUTE);
    let either = joined(busy.iter().chain(&communicating).copied().collect());
    let mut lanes: Vec<LaneTime> = of
        .lanes
        .iter()
        .map(|name| LaneTime {
            name: name.clone(),
            busy_ns: 0,
            count: 0,
            bytes: 0,
        })
        .collect();
    let mut entries = Vec::new();
    for span in spans {
        let What {
            name,
            ops,
            bytes,
            tasks,
            path,
        } = of.about.what[span.action];
        let lane = &mut lanes[span.lane];
        lane.busy_ns += span.end - span.start;
        lane.count += 1;
        lane.bytes += bytes;
        if span.end > span.start {
            entries.push(Entry {
                lane: span.lane,
                start_ns: span.start,
                end_ns: span.end,
                name,
                ops,
                tasks,
                path: of.paths.get(path as usize).cloned(),
            });
        }
    }
    entries.sort_by_key(|entry| (entry.lane, entry.start_ns));
    let at = |after: usize| after.checked_sub(1).map_or(0, |action| done[action]);
    let memory_over_time = of.about.tasks.iter().zip(&over_time.tasks);
    RankSimulation {
        ranks: of.ranks,
        end_ns: *end,
        compute_ns,
        exposed_ns: total(&either) - total(&busy),
        host_ns,
        idle_ns: end - total(&either),
        lanes,
        flops: of.about.flops,
        peak_bytes: memory.peak_bytes + of.hardware.reserved_bytes(),
        memory_bytes: of.hardware.memory_bytes(),
        memory,
        actions: {
            let computing = entries.iter().filter(|entry| entry.lane == COMPUTE);
            let took_place =
                computing.map(|entry| (entry.tasks.0 as u32, entry.start_ns, entry.end_ns));
            spans_of(of.actions, took_place)
        },
        memory_over_time: memory_over_time
            .map(|(&after, &bytes)| MemoryAt {
                ns: at(after),
                bytes,
            })
            .collect(),
        entries,
    }
}

impl Simulation {
    pub(super) fn new(hardware: &Hardware, ranks: Vec<RankSimulation>) -> Self {
        Self {
            hardware: hardware.name.clone(),
            step_ns: ranks.iter().map(|rank| rank.end_ns).max().unwrap_or(0),
            ranks,
        }
    }

    /// Returns when the stages of a pipeline work on which microbatch, in nanoseconds, of the first rank with each stage;
    /// `None` without a pipeline.
    pub fn pipeline(&self) -> Option<Timeline> {
        Timeline::of_ranks(self.ranks.iter().map(|rank| rank.actions.clone()))
    }

    /// Returns how long the plan takes, in seconds.
    pub fn step_s(&self) -> f64 {
        self.step_ns as f64 / NS_PER_S
    }
}

fn seconds(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a step on {}: {}", self.hardware, seconds(self.step_ns))?;
        for rank in &self.ranks {
            let end = rank.end_ns.max(1) as f64;
            let part = |ns: u64| format!("{:.1} %", 100.0 * ns as f64 / end);
            match rank.ranks[..] {
                [one] => write!(f, "rank {}", one.0)?,
                [one, ..] => write!(f, "rank {} and {} like it", one.0, rank.ranks.len() - 1)?,
                [] => {}
            }
            writeln!(
                f,
                ", {}: computing {}, communicating alone {}, waiting for the host {}, for other ranks {}",
                seconds(rank.end_ns),
                part(rank.compute_ns),
                part(rank.exposed_ns),
                part(rank.host_ns),
                part(rank.idle_ns)
            )?;
            for lane in rank.lanes.iter().filter(|lane| lane.count > 0) {
                write!(
                    f,
                    "  {}: {} ({}) busy, {} ",
                    lane.name,
                    seconds(lane.busy_ns),
                    part(lane.busy_ns),
                    lane.count
                )?;
                match lane.bytes {
                    0 => writeln!(f, "kernel(s)")?,
                    bytes => writeln!(f, "call(s), {} received", human_bytes(bytes))?,
                }
            }
            write!(
                f,
                "  memory: {} of {}, {} of it reserved",
                human_bytes(rank.peak_bytes),
                human_bytes(rank.memory_bytes),
                human_bytes(rank.peak_bytes - rank.memory.peak_bytes)
            )?;
            for (class, bytes) in &rank.memory.peak_by_class {
                write!(f, "; {} {}", class.name(), human_bytes(*bytes))?;
            }
            if let Some(bytes) = rank.memory.class_peaks.get(&MemoryClass::Gradient) {
                write!(f, "; gradients at most {}", human_bytes(*bytes))?;
            }
            match rank.peak_bytes > rank.memory_bytes {
                true => writeln!(f, ": more than there is")?,
                false => writeln!(f)?,
            }
        }
        Ok(())
    }
}
