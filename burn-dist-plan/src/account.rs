//! Planned memory: the tasks of a rank walked with a [`Ledger`], buffer by buffer.

use crate::ir::{
    Access, CollectiveTask, Op, RankPlan, RegionInput, RegionTask, Slot, Task, Tensor,
};
use crate::memory::{ClassBytes, Ledger, MemoryClass, MemoryPlan, MemoryTimeline, PeakCause};
use crate::storage::{Operand, Place, Storage, Strided};

/// Returns the planned memory of a rank, and how it runs over the tasks.
pub fn account<O: Op>(plan: &RankPlan<O>) -> (MemoryPlan, MemoryTimeline) {
    walk(Walk::new(plan))
}

/// Returns the most memory that a rank holds at once by a plan in which last uses are not marked.
pub(crate) fn unmarked_peak_bytes<O: Op>(plan: &RankPlan<O>) -> u64 {
    let walked = Walk {
        ends: Some(Ends::new(plan)),
        ..Walk::new(plan)
    };
    walk(walked).0.peak_bytes
}

fn walk<O: Op>(mut walk: Walk<'_, O>) -> (MemoryPlan, MemoryTimeline) {
    let plan = walk.plan;
    for task in &plan.tasks {
        if let Task::Load {
            value,
            host: true,
            bytes,
            ..
        } = task
        {
            walk.kept_on_host.insert(*value, *bytes);
            walk.add_host(*bytes);
        } else if let Task::Load {
            value, slot, bytes, ..
        } = task
        {
            // Kept values are there from the start, whenever they are loaded.
            walk.out.start_bytes += bytes;
            let key = walk.new_key();
            walk.keep(*value, key, *bytes, plan.classes[*slot as usize]);
        }
    }
    for (at, task) in plan.tasks.iter().enumerate() {
        walk.at = at;
        walk.task(task);
    }
    let peak = walk.timeline.peak;
    let mut out = walk.out;
    if let Some(most) = walk.timeline.tasks.get(peak) {
        out.peak_bytes = most.total();
        out.peak_by_class = most.iter().collect();
        out.peak_cause = cause(plan, peak);
    }
    out.class_peaks = walk.ledger.peaks().iter().collect();
    out.end_bytes = walk.ledger.now().total();
    (out, walk.timeline)
}

/// A slot at the moment it is made.
pub(super) struct Seen {
    /// The key of its buffer.
    pub key: u64,
    /// True if its elements lie in order in the buffer.
    pub contiguous: bool,
    /// Size of the whole buffer.
    pub buffer: u64,
}

/// Returns what each slot of a plan is when it is made.
pub(super) fn contents<O: Op>(plan: &RankPlan<O>) -> Vec<Option<Seen>> {
    let mut walk = Walk::new(plan);
    let mut seen: Vec<Option<Seen>> = Vec::new();
    seen.resize_with(plan.num_slots as usize, || None);
    for task in &plan.tasks {
        if let Task::Load {
            value, slot, bytes, ..
        } = task
        {
            let key = walk.new_key();
            walk.keep(*value, key, *bytes, plan.classes[*slot as usize]);
        }
    }
    walk.seen = Some(seen);
    for task in &plan.tasks {
        walk.task(task);
    }
    walk.seen.unwrap_or_default()
}

/// Names a task: operation and module.
pub fn cause<O: Op>(plan: &RankPlan<O>, task: usize) -> PeakCause {
    let at = |path: u32| plan.paths.get(path as usize).cloned();
    let (op, path) = match plan.tasks.get(task) {
        Some(Task::Op(op, path)) => (op.name(), at(*path)),
        Some(Task::Region(task)) => ("region", at(task.path)),
        Some(Task::Collective(task)) => (task.kind().name(), at(task.path)),
        Some(Task::Launch { tasks, .. }) => match tasks.first() {
            Some(task) => (task.kind().name(), at(task.path)),
            None => ("launch", None),
        },
        Some(Task::Load { .. }) => ("load", None),
        Some(Task::Upload(_)) => ("upload", None),
        Some(Task::Random(_)) => ("random", None),
        Some(Task::Finish { .. }) => ("wait for collectives", None),
        Some(Task::Store { .. }) => ("store", None),
        Some(Task::Read { .. }) => ("read", None),
        Some(Task::ToHost(_)) => ("to_host", None),
        Some(Task::FromHost(_)) => ("from_host", None),
        Some(Task::Free(_)) => ("free", None),
        Some(Task::Send(task)) => ("send", at(task.path)),
        Some(Task::Receive(task)) => ("recv", at(task.path)),
        None => ("nothing", None),
    };
    PeakCause {
        op: op.to_string(),
        path: path.map(|path| path.to_string()),
        task,
    }
}

/// The buffer that a slot holds, and how its elements lie there.
#[derive(Clone, Default)]
struct Content {
    key: u64,
    at: Strided,
    elem: u64,
}

/// The task that each slot ends with, and how often it reads the slot, where plans do not mark last uses yet: as
/// [lifetimes](crate::passes) does.
struct Ends(Vec<(usize, u32)>);

impl Ends {
    fn new<O: Op>(plan: &RankPlan<O>) -> Self {
        let mut ends = vec![(usize::MAX, 0); plan.num_slots as usize];
        for (at, task) in plan.tasks.iter().enumerate() {
            task.accesses(|access| match access {
                Access::Reads { slot, .. } => {
                    let (end, reads) = &mut ends[slot as usize];
                    *reads = 1 + if *end == at { *reads } else { 0 };
                    *end = at;
                }
                Access::Makes(Tensor { id: slot, .. })
                | Access::Leaves(Tensor { id: slot, .. }) => ends[slot as usize] = (at, 0),
                Access::Returns(_) => {}
            });
        }
        Self(ends)
    }
}

struct Walk<'a, O> {
    plan: &'a RankPlan<O>,
    /// Last uses, if the plan does not mark them.
    ends: Option<Ends>,
    /// The task that it has come to.
    at: usize,
    ledger: Ledger,
    /// The slots that hold something now: few of all.
    slots: rustc_hash::FxHashMap<Slot, Content>,
    kept: rustc_hash::FxHashMap<u32, u64>,
    /// The bytes that collectives in flight send, by the slot they fill.
    flying: rustc_hash::FxHashMap<Slot, u64>,
    keys: u64,
    /// Bytes of slots and of kept values that are on the host.
    on_host: rustc_hash::FxHashMap<Slot, u64>,
    kept_on_host: rustc_hash::FxHashMap<u32, u64>,
    host: u64,
    /// For [`contents`].
    seen: Option<Vec<Option<Seen>>>,
    timeline: MemoryTimeline,
    out: MemoryPlan,
}

impl<'a, O: Op> Walk<'a, O> {
    fn new(plan: &'a RankPlan<O>) -> Self {
        Self {
            plan,
            ends: None,
            at: 0,
            ledger: Ledger::default(),
            slots: Default::default(),
            kept: Default::default(),
            flying: Default::default(),
            keys: 0,
            on_host: Default::default(),
            kept_on_host: Default::default(),
            host: 0,
            seen: None,
            timeline: MemoryTimeline::default(),
            out: MemoryPlan::default(),
        }
    }

    /// Returns whether a slot ends with the task at hand, which `marked` says if it is.
    fn ends(&self, slot: Slot, marked: bool) -> bool {
        match &self.ends {
            Some(Ends(ends)) => ends[slot as usize].0 == self.at,
            None => marked,
        }
    }

    /// Returns whether an operand gives up its slot to the task at hand, which `marked` says if it is: one that is used
    /// twice does not.
    fn gives_up(&self, slot: Slot, marked: bool) -> bool {
        match &self.ends {
            Some(Ends(ends)) => ends[slot as usize] == (self.at, 1),
            None => marked,
        }
    }

    fn new_key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }

    fn class(&self, slot: Slot) -> MemoryClass {
        self.plan.classes[slot as usize]
    }

    fn keep(&mut self, value: u32, key: u64, bytes: u64, class: MemoryClass) {
        self.ledger.hold(key, bytes, class);
        if let Some(old) = self.kept.insert(value, key) {
            self.ledger.release(old);
        }
    }

    /// Puts a tensor in a buffer of its own.
    fn make(&mut self, made: Tensor<'_>) {
        let key = self.new_key();
        let bytes = made.numel() * made.dtype.size();
        self.ledger.hold(key, bytes as u64, self.class(made.id));
        self.place(
            made.id,
            Content {
                key,
                at: Strided::contiguous(made.shape),
                elem: made.dtype.size() as u64,
            },
        );
    }

    fn place(&mut self, slot: Slot, content: Content) {
        if let Some(seen) = &mut self.seen {
            seen[slot as usize] = Some(Seen {
                key: content.key,
                contiguous: content.at.is_plain(),
                buffer: self.ledger.bytes(content.key),
            });
        }
        self.slots.insert(slot, content);
    }

    fn add_host(&mut self, bytes: u64) {
        self.host += bytes;
        self.out.host_peak_bytes = self.out.host_peak_bytes.max(self.host);
    }

    fn drop_slot(&mut self, slot: Slot) {
        if let Some(bytes) = self.on_host.remove(&slot) {
            self.host -= bytes;
        }
        if let Some(content) = self.slots.remove(&slot) {
            self.ledger.release(content.key);
        }
    }

    fn task(&mut self, task: &Task<O>) {
        match task {
            Task::Op(op, _) => self.op(op),
            Task::Region(task) => self.region(task),
            Task::Load {
                value, slot, take, ..
            } => self.load(task, *value, *slot, *take),
            Task::Store {
                slot,
                value,
                bytes,
                host: false,
                ..
            } => self.store(*slot, *value, *bytes),
            Task::Collective(_) | Task::Launch { .. } => {
                task.collectives().iter().for_each(|task| self.start(task));
            }
            Task::Send(task) => self.lend(task.slot),
            Task::Receive(received) => {
                self.make_all(task);
                self.lend(received.slot);
            }
            _ => self.make_all(task),
        }
        // Everything the task makes is there, and nothing it gives up has gone.
        let now: ClassBytes = self.ledger.settle();
        self.timeline.push(now);
        match task {
            Task::Collective(task) => self.finish(&[task.to]),
            Task::Finish { to, .. } => self.finish(to),
            Task::Store {
                slot,
                value,
                take,
                bytes,
                host: true,
                ..
            } => {
                match self.on_host.get(slot) {
                    Some(_) if self.ends(*slot, *take) => drop(self.on_host.remove(slot)),
                    _ => self.add_host(*bytes),
                }
                self.kept_on_host.insert(*value, *bytes);
            }
            _ => {}
        }
        task.accesses(|access| match access {
            Access::Reads { slot, takes } if self.ends(slot, takes) => self.drop_slot(slot),
            Access::Makes(made) if self.ends(made.id, false) => self.drop_slot(made.id),
            Access::Leaves(moved) => {
                self.drop_slot(moved.id);
                let bytes = (moved.numel() * moved.dtype.size()) as u64;
                self.on_host.insert(moved.id, bytes);
                self.add_host(bytes);
            }
            Access::Returns(moved) => {
                if let Some(bytes) = self.on_host.remove(&moved.id) {
                    self.host -= bytes;
                }
            }
            Access::Reads { .. } | Access::Makes(_) => {}
        });
    }

    /// Puts what a task makes or brings back in buffers of their own.
    fn make_all(&mut self, task: &Task<O>) {
        task.accesses(|access| {
            if let Access::Makes(made) | Access::Returns(made) = access {
                self.make(made);
            }
        });
    }

    fn load(&mut self, task: &Task<O>, value: u32, slot: Slot, take: bool) {
        if let Some(&bytes) = self.kept_on_host.get(&value) {
            // Kept and in a slot, it is the same memory.
            self.on_host.insert(slot, if take { bytes } else { 0 });
            if take {
                self.kept_on_host.remove(&value);
            }
            return;
        }
        let Some(&key) = self.kept.get(&value) else {
            return;
        };
        self.ledger
            .hold(key, self.ledger.bytes(key), self.class(slot));
        if take {
            self.kept.remove(&value);
            self.ledger.release(key);
        }
        task.accesses(|access| {
            if let Access::Makes(loaded) = access {
                let content = Content {
                    key,
                    at: Strided::contiguous(loaded.shape),
                    elem: loaded.dtype.size() as u64,
                };
                self.place(slot, content);
            }
        });
    }

    fn store(&mut self, slot: Slot, value: u32, bytes: u64) {
        let Some(content) = self.slots.get(&slot) else {
            return;
        };
        let (key, held) = (content.key, self.ledger.bytes(content.key));
        let is_whole = match self.plan.storage {
            // What is kept is in a buffer of just its size.
            Storage::Buffers => held == bytes,
            Storage::Opaque => held <= bytes,
        };
        let (key, bytes) = match is_whole {
            true => (key, held),
            false => (self.new_key(), bytes),
        };
        self.keep(value, key, bytes, self.class(slot));
    }

    /// Notes that other ranks may hold the buffer of a slot too.
    fn lend(&mut self, slot: Slot) {
        if let Some(content) = self.slots.get(&slot) {
            self.ledger.lend(content.key);
        }
    }

    fn op(&mut self, op: &O) {
        for (index, out) in op.outputs().enumerate() {
            let slot = out.id;
            let elem = out.dtype.size();
            let (key, bytes, at) = match self.place_of(op, index) {
                Place::Shares(input, at) => {
                    let key = op
                        .inputs()
                        .nth(input)
                        .and_then(|input| self.slots.get(&input.id));
                    let key = key.map_or(0, |content| content.key);
                    (key, self.ledger.bytes(key), at)
                }
                Place::New(at) => {
                    let bytes = out.numel() * elem;
                    (self.new_key(), bytes as u64, at)
                }
            };
            self.ledger.hold(key, bytes, self.class(slot));
            let content = Content {
                key,
                at,
                elem: elem as u64,
            };
            self.place(slot, content);
        }
    }

    /// Returns where a result of an operation is.
    fn place_of(&self, op: &O, result: usize) -> Place {
        let nothing = Content::default();
        let operands = op.inputs().map(|input| {
            let content = self.slots.get(&input.id).unwrap_or(&nothing);
            Operand {
                at: &content.at,
                buffer: (self.ledger.bytes(content.key) / content.elem.max(1)) as usize,
                alone: self.gives_up(input.id, input.last_use)
                    && self.ledger.holders(content.key) == 1
                    && !self.ledger.is_lent(content.key),
            }
        });
        op.place(self.plan.storage, result, &operands.collect::<Vec<_>>())
    }

    /// A region overwrites operands that die in it and lie alone in their buffers, in order; not those of a device.
    fn region(&mut self, task: &RegionTask) {
        let content = |index: usize| self.slots.get(&task.inputs[index].slot);
        let is_free = |index: usize| {
            let RegionInput { slot, take, .. } = task.inputs[index];
            self.plan.storage == Storage::Buffers
                && self.gives_up(slot, take)
                && content(index).is_some_and(|content| {
                    let elements = self.ledger.bytes(content.key) / content.elem.max(1);
                    content.at.is_plain()
                        && content.at.elements() as u64 == elements
                        && self.ledger.holders(content.key) == 1
                        && !self.ledger.is_lent(content.key)
                })
        };
        let taken = task.in_place_of(is_free).into_iter();
        let keys: Vec<Option<u64>> = taken.map(|taken| Some(content(taken?)?.key)).collect();
        for (out, key) in task.outputs.iter().zip(keys) {
            let elem = out.dtype.size() as u64;
            let bytes = out.shape.iter().product::<usize>() as u64 * elem;
            let key = key.unwrap_or_else(|| self.new_key());
            self.ledger.hold(key, bytes, self.class(out.id));
            let at = Strided::contiguous(&out.shape);
            self.place(out.id, Content { key, at, elem });
        }
    }

    /// A collective holds what it sends, contiguous, and room for what it returns.
    fn start(&mut self, task: &CollectiveTask) {
        let Some(content) = self.slots.get(&task.from).cloned() else {
            return;
        };
        let sent = match content.at.is_contiguous() {
            true => {
                let bytes = self.ledger.bytes(content.key);
                let class = self.ledger.class(content.key);
                self.ledger.hold(content.key, bytes, class);
                self.ledger.lend(content.key);
                content.key
            }
            false => {
                let bytes = task.from_shape.iter().product::<usize>() * task.dtype.size();
                let key = self.new_key();
                self.ledger.hold(key, bytes as u64, self.class(task.from));
                key
            }
        };
        self.make(task.output());
        self.lend(task.to);
        self.flying.insert(task.to, sent);
    }

    /// Ends the collectives that fill `to`: those of a launch may be waited for one by one.
    fn finish(&mut self, to: &[Slot]) {
        for slot in to {
            if let Some(sent) = self.flying.remove(slot) {
                self.ledger.release(sent);
            }
        }
    }
}

#[cfg(test)]
mod tests;
