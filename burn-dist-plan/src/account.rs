//! Planned memory: the tasks of a rank walked with a [`Ledger`], buffer by buffer.

use crate::ir::{CollectiveTask, Op, RankPlan, Slot, Task, Tensor};
use crate::memory::{ClassBytes, Ledger, MemoryClass, MemoryPlan, MemoryTimeline, PeakCause};
use crate::storage::{Operand, Place, Strided};

/// Returns the planned memory of a rank, and how it runs over the tasks.
pub fn account<O: Op>(plan: &RankPlan<O>) -> (MemoryPlan, MemoryTimeline) {
    let mut walk = Walk::new(plan);
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
    for task in &plan.tasks {
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
        Some(Task::Collective(task)) => (task.kind.name(), at(task.path)),
        Some(Task::Launch { tasks, .. }) => match tasks.first() {
            Some(task) => (task.kind.name(), at(task.path)),
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

struct Walk<'a, O> {
    plan: &'a RankPlan<O>,
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
    fn make(&mut self, slot: Slot, shape: &[usize], elem: usize) {
        let key = self.new_key();
        let bytes = shape.iter().product::<usize>() * elem;
        self.ledger.hold(key, bytes as u64, self.class(slot));
        self.place(
            slot,
            Content {
                key,
                at: Strided::contiguous(shape),
                elem: elem as u64,
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

    /// Everything the task makes is there, and nothing it gives up has gone.
    fn settle(&mut self) {
        let now: ClassBytes = self.ledger.settle();
        self.timeline.push(now);
    }

    fn task(&mut self, task: &Task<O>) {
        match task {
            Task::Op(op, _) => self.op(op),
            Task::Load {
                value,
                slot,
                take,
                shape,
                dtype,
                ..
            } => {
                if let Some(&bytes) = self.kept_on_host.get(value) {
                    // Kept and in a slot, it is the same memory.
                    self.on_host.insert(*slot, if *take { bytes } else { 0 });
                    if *take {
                        self.kept_on_host.remove(value);
                    }
                    return self.settle();
                }
                let Some(&key) = self.kept.get(value) else {
                    return self.settle();
                };
                self.ledger
                    .hold(key, self.ledger.bytes(key), self.class(*slot));
                if *take {
                    self.kept.remove(value);
                    self.ledger.release(key);
                }
                let content = Content {
                    key,
                    at: Strided::contiguous(shape),
                    elem: dtype.size() as u64,
                };
                self.place(*slot, content);
                self.settle();
            }
            Task::Upload(task) => {
                self.make(task.slot, &task.shape, task.dtype.size());
                self.settle();
            }
            Task::Random(task) => {
                self.make(task.slot, &task.shape, task.dtype.size());
                self.settle();
            }
            Task::Collective(task) => {
                self.start(task);
                self.settle();
                self.give_up_sent(task);
                self.finish(&[task.to]);
            }
            Task::Launch { tasks, .. } => {
                for task in tasks {
                    self.start(task);
                }
                self.settle();
                for task in tasks {
                    self.give_up_sent(task);
                }
            }
            Task::Finish { to, .. } => {
                self.settle();
                self.finish(to);
            }
            Task::Store {
                slot,
                value,
                take,
                bytes,
                host,
                ..
            } => {
                let class = self.class(*slot);
                if *host {
                    self.settle();
                    match self.on_host.get(slot) {
                        Some(_) if *take => drop(self.on_host.remove(slot)),
                        _ => self.add_host(*bytes),
                    }
                    self.kept_on_host.insert(*value, *bytes);
                    if *take {
                        self.drop_slot(*slot);
                    }
                    return;
                }
                if let Some(content) = self.slots.get(slot) {
                    let key = content.key;
                    match self.ledger.bytes(key) > *bytes {
                        // What is kept must not keep more than itself.
                        true => {
                            let key = self.new_key();
                            self.keep(*value, key, *bytes, class);
                        }
                        false => self.keep(*value, key, self.ledger.bytes(key), class),
                    }
                }
                self.settle();
                if *take {
                    self.drop_slot(*slot);
                }
            }
            Task::Read { slot, take, .. } => {
                self.settle();
                if *take {
                    self.drop_slot(*slot);
                }
            }
            Task::ToHost(task) => {
                self.settle();
                self.drop_slot(task.slot);
                let bytes = (task.shape.iter().product::<usize>() * task.dtype.size()) as u64;
                self.on_host.insert(task.slot, bytes);
                self.add_host(bytes);
            }
            Task::FromHost(task) => {
                self.make(task.slot, &task.shape, task.dtype.size());
                self.settle();
                if let Some(bytes) = self.on_host.remove(&task.slot) {
                    self.host -= bytes;
                }
            }
            Task::Free(slot) => {
                self.settle();
                self.drop_slot(*slot);
            }
            Task::Send(task) => {
                if let Some(content) = self.slots.get(&task.slot) {
                    self.ledger.lend(content.key);
                }
                self.settle();
                if task.take {
                    self.drop_slot(task.slot);
                }
            }
            Task::Receive(task) => {
                self.make(task.slot, &task.shape, task.dtype.size());
                if let Some(content) = self.slots.get(&task.slot) {
                    self.ledger.lend(content.key);
                }
                self.settle();
            }
        }
    }

    fn op(&mut self, op: &O) {
        let tensors: Vec<Tensor<'_>> = op.inputs().collect();
        let empty = Content::default();
        let contents: Vec<Content> = tensors
            .iter()
            .map(|input| {
                let content = self.slots.get(&input.id);
                content.cloned().unwrap_or_else(|| empty.clone())
            })
            .collect();
        for (index, out) in op.outputs().enumerate() {
            let slot = out.id;
            let elem = out.dtype.size();
            let place = match index {
                0 => {
                    let inputs = tensors.iter().zip(&contents);
                    let inputs = inputs.map(|(input, content)| Operand {
                        at: &content.at,
                        buffer: (self.ledger.bytes(content.key) / content.elem.max(1)) as usize,
                        alone: input.last_use
                            && self.ledger.holders(content.key) == 1
                            && !self.ledger.is_lent(content.key),
                    });
                    op.place(self.plan.storage, &inputs.collect::<Vec<_>>())
                }
                _ => Place::New(Strided::contiguous(out.shape)),
            };
            let (key, bytes, at) = match place {
                Place::Shares(input, at) => {
                    let key = contents[input].key;
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
        self.settle();
        for input in tensors.iter().filter(|input| input.last_use) {
            self.drop_slot(input.id);
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
        self.make(task.to, &task.to_shape, task.dtype.size());
        if let Some(content) = self.slots.get(&task.to) {
            self.ledger.lend(content.key);
        }
        self.flying.insert(task.to, sent);
    }

    fn give_up_sent(&mut self, task: &CollectiveTask) {
        if task.take {
            self.drop_slot(task.from);
        }
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
