//! Costs of a rank's operations on a device: flops, and bytes that are read and written.
//!
//! | operation | bytes |
//! | --- | --- |
//! | looks at its operand's buffer (a view that needs no copy) | 0: no kernel runs |
//! | reads at indices | what is read, the indices, and the result |
//! | writes at indices, or over a part | what is written, twice, and the indices; all of it where the result is new |
//! | attention in one operation | operands and results: scores stay on the chip |
//! | a region | its operands, each buffer once, and its results |
//! | anything else | operands, each buffer once and no more than it has, and results |
//!
//! Between two products, a compiler makes one kernel of a *chain* of operations: it reads once what comes from outside,
//! and writes what is used afterwards. The rest of the traffic stays on the chip, to the degree that
//! [`Kernels::fusion`](super::Kernels::fusion) says.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Hardware, Operands};
use crate::account::{Seen, contents};
use crate::ir::{Access, Adjoint, Indexing, Op, RankPlan, RegionTask, Slot, Task, Tensor};
use crate::mesh::DType;

/// One or several operations that run as one kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kernel {
    /// The tasks that it is made of; others that compute nothing may be between them.
    pub tasks: Range<usize>,
    /// Number of operations.
    pub ops: usize,
    /// Name of the first operation that does something.
    pub name: &'static str,
    /// Flops of a product, and what it multiplies; 0 of anything else.
    pub flops: f64,
    pub operands: Operands,
    /// Bytes read and written.
    pub bytes: f64,
    /// Kernels that run: none for a view, a fraction for a chain that is fused in part.
    pub launches: f64,
    /// Operations that the host hands out, likewise.
    pub handed: f64,
}

impl Kernel {
    /// Returns how long a device takes that is so many times slower at products, in nanoseconds.
    pub(super) fn ns(&self, hardware: &Hardware, slower: f64) -> f64 {
        let flops = match self.flops > 0.0 {
            true => hardware.product_ns(self.flops, self.operands) * slower,
            false => 0.0,
        };
        flops.max(hardware.memory_ns(self.bytes)) + self.launches * hardware.start_ns()
    }
}

/// Traffic of one operation: buffers with the bytes of them that it reads and writes.
#[derive(Default)]
struct Traffic {
    reads: Vec<(u64, u64)>,
    writes: Vec<(u64, u64)>,
}

/// Operations that will be one kernel.
#[derive(Default)]
struct Chain {
    tasks: Range<usize>,
    ops: usize,
    /// Tasks that the host hands out.
    handed: usize,
    /// The name of the first operation that runs a kernel.
    name: Option<&'static str>,
    kernels: usize,
    /// Bytes of the operations one by one.
    apart: u64,
    /// Bytes by buffer.
    read: FxHashMap<u64, u64>,
    written: FxHashMap<u64, u64>,
}

/// Walks the tasks of a rank and groups its operations into kernels.
pub(super) struct Walk<'a, O> {
    plan: &'a RankPlan<O>,
    seen: Vec<Option<Seen>>,
    /// Slots that show a buffer now.
    alive: FxHashMap<u64, u32>,
    chain: Chain,
    compile: bool,
    fusion: f64,
}

impl<'a, O: Op> Walk<'a, O> {
    pub(super) fn new(plan: &'a RankPlan<O>, hardware: &Hardware) -> Self {
        Self {
            plan,
            seen: contents(plan),
            alive: FxHashMap::default(),
            chain: Chain::default(),
            compile: hardware.kernels.compile,
            fusion: hardware.kernels.fusion,
        }
    }

    /// Takes a task. Returns the kernels that are complete before whatever else the task does.
    pub(super) fn task(&mut self, index: usize) -> Vec<Kernel> {
        let plan = self.plan;
        let task = &plan.tasks[index];
        let mut kernels = Vec::new();
        match task {
            Task::Op(op, _) => {
                let is_product = op.product_flops().is_some();
                if is_product || !self.compile {
                    kernels.extend(self.end_chain());
                }
                let traffic = self.traffic(op);
                self.follow(task);
                if is_product {
                    kernels.push(product(index, op, &traffic.unwrap_or_default()));
                    return kernels;
                }
                self.add(index, (op.name(), 1), traffic);
                if !self.compile {
                    kernels.extend(self.end_chain());
                }
            }
            Task::Region(of) => {
                if !self.compile {
                    kernels.extend(self.end_chain());
                }
                let traffic = self.traffic_of_region(of);
                self.follow(task);
                self.add(index, ("region", of.operations as usize), Some(traffic));
                if !self.compile {
                    kernels.extend(self.end_chain());
                }
            }
            // What is kept stays alive.
            Task::Store { host: false, .. } => {}
            Task::Load { .. } | Task::Free(_) => self.follow(task),
            _ => {
                kernels.extend(self.end_chain());
                self.follow(task);
            }
        }
        kernels
    }

    /// Ends what the last tasks began.
    pub(super) fn end_chain(&mut self) -> Option<Kernel> {
        let chain = std::mem::take(&mut self.chain);
        if chain.ops == 0 {
            return None;
        }
        let written = chain.written.iter();
        let kept = written.filter(|(key, _)| self.alive.contains_key(key));
        let at_least = chain.read.values().chain(kept.map(|(_, bytes)| bytes));
        let at_least = at_least.sum::<u64>().min(chain.apart) as f64;
        let partly =
            |one_by_one: f64, as_one: f64| as_one + (one_by_one - as_one) * (1.0 - self.fusion);
        let as_one = |count: usize| partly(count as f64, count.min(1) as f64);
        Some(Kernel {
            tasks: chain.tasks,
            ops: chain.ops,
            name: chain.name.unwrap_or("view"),
            flops: 0.0,
            operands: DType::F32.into(),
            bytes: match self.compile {
                true => partly(chain.apart as f64, at_least),
                false => chain.apart as f64,
            },
            launches: as_one(chain.kernels),
            handed: as_one(chain.handed),
        })
    }

    /// Adds a task that is so many operations.
    fn add(&mut self, index: usize, (name, ops): (&'static str, usize), traffic: Option<Traffic>) {
        let chain = &mut self.chain;
        if chain.ops == 0 {
            chain.tasks.start = index;
        }
        chain.tasks.end = index + 1;
        chain.ops += ops;
        chain.handed += 1;
        let Some(traffic) = traffic else {
            return;
        };
        chain.name.get_or_insert(name);
        chain.kernels += 1;
        for (key, bytes) in traffic.reads {
            chain.apart += bytes;
            if !chain.written.contains_key(&key) {
                let most = chain.read.entry(key).or_default();
                *most = bytes.max(*most);
            }
        }
        for (key, bytes) in traffic.writes {
            chain.apart += bytes;
            let most = chain.written.entry(key).or_default();
            *most = bytes.max(*most);
        }
    }

    /// Notes which slots a task empties and fills.
    fn follow(&mut self, task: &Task<O>) {
        task.accesses(|access| match access {
            Access::Reads { slot, takes: true } => self.drop_slot(slot),
            Access::Reads { .. } => {}
            Access::Leaves(moved) => self.drop_slot(moved.id),
            Access::Makes(made) | Access::Returns(made) => self.make_slot(made.id),
        });
    }

    fn seen(&self, slot: Slot) -> Option<&Seen> {
        self.seen.get(slot as usize)?.as_ref()
    }

    fn make_slot(&mut self, slot: Slot) {
        if let Some(key) = self.seen(slot).map(|seen| seen.key) {
            *self.alive.entry(key).or_default() += 1;
        }
    }

    fn drop_slot(&mut self, slot: Slot) {
        let Some(key) = self.seen(slot).map(|seen| seen.key) else {
            return;
        };
        if let Some(count) = self.alive.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.alive.remove(&key);
            }
        }
    }

    fn key(&self, slot: Slot) -> u64 {
        self.seen(slot)
            .map_or(u64::MAX - u64::from(slot), |seen| seen.key)
    }

    /// Returns what is read of a tensor of so many bytes: of a view that repeats elements, there are only so many in
    /// memory.
    fn read(&self, slot: Slot, bytes: u64) -> (u64, u64) {
        let most = self.seen(slot).map_or(bytes, |seen| seen.buffer.max(1));
        (self.key(slot), bytes.min(most))
    }

    fn traffic_of_region(&self, task: &RegionTask) -> Traffic {
        let bytes =
            |shape: &[usize], dtype: DType| (shape.iter().product::<usize>() * dtype.size()) as u64;
        let mut reads: Vec<(u64, u64)> = Vec::new();
        let mut known: FxHashSet<u64> = FxHashSet::default();
        for input in &task.inputs {
            let (key, bytes) = self.read(input.slot, bytes(&input.shape, input.dtype));
            if known.insert(key) {
                reads.push((key, bytes));
            }
        }
        let writes = task.outputs.iter();
        let writes = writes.map(|out| (self.key(out.id), bytes(&out.shape, out.dtype)));
        Traffic {
            reads,
            writes: writes.collect(),
        }
    }

    /// Returns the traffic of an operation; `None` if no kernel runs.
    fn traffic(&self, op: &O) -> Option<Traffic> {
        let traits = op.traits();
        let out = op.outputs().next()?;
        let key = |slot: Slot| self.seen(slot).map(|seen| seen.key);
        let first = op.inputs().next();
        let is_in_place = first.is_some_and(|first| key(first.id) == key(out.id));
        let is_look = traits.is_view || traits.assigns;
        if traits.is_view && is_in_place && !traits.assigns {
            return None;
        }
        let read = |tensor: Tensor<'_>| self.read(tensor.id, bytes(tensor));
        let write = |tensor: Tensor<'_>| (self.key(tensor.id), bytes(tensor));
        let mut traffic = Traffic::default();
        let mut known: FxHashSet<u64> = FxHashSet::default();
        let only_shape = match traits.adjoint {
            Some(Adjoint::Named { weight }) => Some(weight),
            _ => None,
        };
        let is_write = matches!(traits.indexing, Some((Indexing::Write, _))) || traits.assigns;
        let is_read = matches!(traits.indexing, Some((Indexing::Read, _)));
        for (index, input) in op.inputs().enumerate() {
            let (key, whole) = read(input);
            if Some(index) == only_shape || known.contains(&key) {
                continue;
            }
            let bytes = match index {
                // As much of it as there is in the result.
                0 if is_read || (is_look && !traits.assigns) => whole.min(bytes(out)),
                0 if is_write && is_in_place => continue,
                _ => whole,
            };
            known.insert(key);
            traffic.reads.push((key, bytes));
        }
        match is_write && is_in_place {
            true => {
                let (key, _) = write(out);
                let changed = op.inputs().skip(1).map(bytes).max().unwrap_or(0);
                // What is added to is read before.
                traffic
                    .reads
                    .extend((!traits.assigns).then_some((key, changed)));
                traffic.writes.push((key, changed));
            }
            false => traffic.writes.extend(op.outputs().map(write)),
        }
        Some(traffic)
    }
}

fn bytes(tensor: Tensor<'_>) -> u64 {
    (tensor.numel() * tensor.dtype.size()) as u64
}

fn product<O: Op>(index: usize, op: &O, traffic: &Traffic) -> Kernel {
    let moved = traffic.reads.iter().chain(&traffic.writes);
    Kernel {
        tasks: index..index + 1,
        ops: 1,
        name: op.name(),
        flops: op.product_flops().unwrap_or(0.0),
        operands: match op.multiplies_float8() {
            true => Operands::Float8,
            false => op
                .inputs()
                .next()
                .map_or(DType::F32, |input| input.dtype)
                .into(),
        },
        bytes: moved.map(|(_, bytes)| *bytes).sum::<u64>() as f64,
        launches: 1.0,
        handed: 1.0,
    }
}
