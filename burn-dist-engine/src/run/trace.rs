//! A record of what each rank did when, for a timeline: [`DeviceMeshBuilder::trace`](crate::DeviceMeshBuilder::trace)
//! turns it on.
//!
//! A worker notes numbers: the plan, the task, start and end. Names are looked up in the plan when the record is
//! written, in the Trace Event Format, which
//! <https://ui.perfetto.dev> and `chrome://tracing` show. Each rank keeps its first 262,144 events (32 bytes each: 8 MiB) and the plans they name, up to 64;
//! what comes later is counted and left out, window by window.

mod format;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn_ir::BackendIr;

use super::observer::{Observer, TaskPart};
use crate::comm::CallInfo;
use crate::mesh::{MeshShape, Rank, Topology};
use crate::plan::schedule::{Kind, Span, Timeline, spans_of};
use crate::plan::task::{CollectiveTask, RankPlan, Task, TransferTask};

/// Events that a rank keeps.
pub(super) const EVENTS_MAX: usize = 1 << 18;
/// Plans that a rank keeps names from.
const PLANS_MAX: usize = 64;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All tasks of a plan.
    Window,
    /// A task that is no collective.
    Task,
    /// The launch of a collective.
    Launch,
    /// This rank waits for a collective, or works on it.
    Wait,
    /// Data of a collective moves.
    Transfer,
}

/// Times are nanoseconds since the mesh was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    what: What,
    plan: u32,
    at: TaskPart,
    start: u64,
    end: u64,
}

/// The record of one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct RankTrace {
    events: Vec<Event>,
    plans: Vec<Arc<RankPlan>>,
    left_out: u64,
}

/// The record of all ranks of a mesh.
pub(crate) struct TraceLog {
    mesh: Arc<MeshShape>,
    topology: Topology,
    epoch: Instant,
    ranks: Vec<Mutex<RankTrace>>,
}

fn lock(rank: &Mutex<RankTrace>) -> MutexGuard<'_, RankTrace> {
    rank.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TraceLog {
    pub(super) fn new(mesh: Arc<MeshShape>, topology: Topology) -> Self {
        let ranks = (0..mesh.num_ranks()).map(|_| Mutex::default()).collect();
        Self {
            mesh,
            topology,
            epoch: Instant::now(),
            ranks,
        }
    }

    /// Returns the windows that have ended.
    pub(super) fn read(&self) -> Trace {
        Trace {
            mesh: self.mesh.clone(),
            topology: self.topology.clone(),
            ranks: self.ranks.iter().map(|rank| lock(rank).clone()).collect(),
        }
    }
}

/// A record of what the ranks of a mesh did when; see `MeshBackend::trace`.
///
/// Written as JSON in the [Trace Event Format]: a process per rank, with a lane of its thread (windows, in them
/// operations with the module they work for, launches of collectives and waits for them) and a lane per set of mesh
/// axes (inside and between nodes apart), on which data moves.
///
/// [Trace Event Format]: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#[derive(Clone, Debug)]
pub struct Trace {
    mesh: Arc<MeshShape>,
    topology: Topology,
    ranks: Vec<RankTrace>,
}

impl Trace {
    /// Returns when the stages of a pipeline worked on which microbatch in the last window with a backward that all ranks
    /// kept, in nanoseconds, of the first rank with each stage; `None` if there is none.
    pub fn pipeline(&self) -> Option<Timeline> {
        let here = self.ranks.iter().filter(|rank| !rank.events.is_empty());
        let windows = here.map(|rank| rank.steps().collect::<BTreeSet<u32>>());
        let common = windows.reduce(|all, windows| &all & &windows)?;
        let last = common.last()?;
        Timeline::of_ranks(self.ranks.iter().map(|rank| rank.actions(*last)))
    }
}

impl RankTrace {
    /// Returns the windows with a backward of a pipeline, by number.
    fn steps(&self) -> impl Iterator<Item = u32> {
        let ends = self
            .events
            .iter()
            .filter(|event| event.what == What::Window);
        let has_backward = |event: &&Event| {
            let mut actions = self.plans[event.plan as usize].actions.iter();
            actions.any(|(action, _)| action.kind != Kind::Forward)
        };
        ends.filter(has_backward).map(|event| event.at.task)
    }

    /// Returns the actions of a window.
    fn actions(&self, number: u32) -> Vec<Span> {
        let is_end = |event: &Event| event.what == What::Window;
        let is_it = |event: &Event| is_end(event) && event.at.task == number;
        let Some(last) = self.events.iter().position(is_it) else {
            return Vec::new();
        };
        let first = self.events[..last].iter().rposition(is_end);
        let window = &self.events[first.map_or(0, |before| before + 1)..last];
        let plan = self.events[last].plan;
        let tasks = window.iter().filter(|event| event.what == What::Task);
        let took_place = tasks.map(|event| (event.at.task, event.start, event.end));
        spans_of(&self.plans[plan as usize].actions, took_place)
    }
}

/// Notes the events of one rank: those of the window that runs, then all at once in the log.
pub(super) struct Tracer {
    log: Arc<TraceLog>,
    rank: Rank,
    window: Vec<Event>,
    /// Windows so far.
    windows: u32,
    began: u64,
    /// When the last task ended.
    last: u64,
}

impl Tracer {
    pub(super) fn new(log: Arc<TraceLog>, rank: Rank) -> Self {
        Self {
            log,
            rank,
            window: Vec::new(),
            windows: 0,
            began: 0,
            last: 0,
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.log.epoch).as_nanos() as u64
    }

    fn add(&mut self, what: What, at: TaskPart, start: Instant, end: Instant) {
        let (start, end) = (self.ns(start), self.ns(end));
        self.push(what, at, start, end);
    }

    /// Adds what was waited for, and when it moved.
    fn waited(&mut self, at: TaskPart, info: &CallInfo, began: Instant, ended: Instant) {
        if let Some(transfer) = info.transfer() {
            self.add(What::Wait, at, began, ended);
            self.add(What::Transfer, at, transfer.start, transfer.end);
        }
    }

    fn push(&mut self, what: What, at: TaskPart, start: u64, end: u64) {
        self.window.push(Event {
            what,
            plan: 0,
            at,
            start,
            end,
        });
    }
}

/// Returns whether a trace shows the task itself: collectives show their parts, and what takes no time is left out.
fn is_shown(task: &Task) -> bool {
    !matches!(
        task,
        Task::Collective(_)
            | Task::Launch { .. }
            | Task::Finish { .. }
            | Task::Load { .. }
            | Task::Free(_)
            | Task::Send(_)
            | Task::Receive(_)
    )
}

impl Observer for Tracer {
    fn window_begins(&mut self, _: &RankPlan) {
        self.window.clear();
        self.began = self.ns(Instant::now());
        self.last = self.began;
    }

    fn task_ends(&mut self, index: usize, task: &Task) {
        let now = self.ns(Instant::now());
        let start = std::mem::replace(&mut self.last, now);
        if is_shown(task) {
            let at = TaskPart {
                task: index as u32,
                part: 0,
            };
            self.push(What::Task, at, start, now);
        }
    }

    fn collective_started(&mut self, at: TaskPart, began: Instant, ended: Instant) {
        self.add(What::Launch, at, began, ended);
    }

    fn collective_finished<B: BackendIr>(
        &mut self,
        at: TaskPart,
        _: &CollectiveTask,
        _: &B::Handle,
        info: &CallInfo,
        began: Instant,
        ended: Instant,
    ) {
        self.waited(at, info, began, ended);
    }

    fn received<B: BackendIr>(
        &mut self,
        at: TaskPart,
        _: &TransferTask,
        _: &B::Handle,
        info: &CallInfo,
        began: Instant,
        ended: Instant,
    ) {
        self.waited(at, info, began, ended);
    }

    /// Moves the events of the window to the log.
    fn window_ends(&mut self, plan: &Arc<RankPlan>, _: bool) {
        let now = self.ns(Instant::now());
        let number = TaskPart {
            task: self.windows,
            part: 0,
        };
        self.windows += 1;
        self.push(What::Window, number, self.began, now);
        let mut rank = lock(&self.log.ranks[self.rank.0 as usize]);
        let known = rank.plans.iter().position(|known| Arc::ptr_eq(known, plan));
        let full = rank.events.len() + self.window.len() > EVENTS_MAX
            || (known.is_none() && rank.plans.len() >= PLANS_MAX);
        if full {
            rank.left_out += self.window.len() as u64;
            self.window.clear();
            return;
        }
        let plan = known.unwrap_or_else(|| {
            rank.plans.push(plan.clone());
            rank.plans.len() - 1
        });
        let events = self.window.drain(..).map(|event| Event {
            plan: plan as u32,
            ..event
        });
        rank.events.extend(events);
    }
}
