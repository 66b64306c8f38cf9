//! The walk over the tasks of a rank: which operation joins which region.

use rustc_hash::FxHashMap;

use super::look::{Base, Folds, Look, Seen, see};
use crate::ir::op::Tensor;
use crate::ir::region::{Instruction, ScalarOf};
use crate::ir::{Access, Op, Slot, Task};
use crate::mesh::DType;
use crate::options::RegionKernels;
use crate::pipeline::Action;

/// A value of a region in the making, by its number among those of all regions: operands of operations first.
pub(super) struct Node {
    pub what: What,
    pub dtype: DType,
    /// The region it belongs to, or one that has become part of that.
    pub region: u32,
    /// The number of its elements: as many as the space has, or as many as it has rows.
    pub size: usize,
    /// The slot of the operation that it is the result of, with the shape that it has there.
    pub slot: Option<(Slot, Vec<usize>)>,
    /// True if something outside of the region reads that slot.
    pub is_read: bool,
}

/// A slot that a region reads.
#[derive(Clone, PartialEq)]
pub(super) struct Operand {
    pub slot: Slot,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The dims that it may have: products of neighbours among those of the space, from the first on.
    pub over: Vec<usize>,
    /// For each whether it has it.
    pub spans: Vec<bool>,
}

impl Operand {
    /// Returns whether it has all elements of a space of so many.
    pub(super) fn is_whole(&self, size: usize) -> bool {
        self.over.iter().product::<usize>() == size && self.spans.iter().all(|spans| *spans)
    }

    /// Returns for each dim of a space whether it has it.
    pub(super) fn spans_of(&self, core: &[usize]) -> Vec<bool> {
        let mut dims = core.iter();
        let mut all = Vec::with_capacity(core.len());
        for (size, spans) in self.over.iter().zip(&self.spans) {
            let mut product = 1;
            while product < *size {
                product *= dims
                    .next()
                    .expect("its dims are products of those of the space");
                all.push(*spans);
            }
        }
        all.resize(core.len(), false);
        all
    }
}

/// The origin of a value.
pub(super) enum What {
    /// A slot that is there before.
    Operand(Operand),
    Scalar(ScalarOf),
    /// Random numbers that a task draws.
    Drawn(usize),
    /// An instruction over other values.
    Instruction(Instruction),
    /// The sum of the rows of a value, or of all of it.
    Over(u32, Folds),
    /// Another value, which is the result of an operation once more.
    Same(u32),
}

/// A region in the making.
pub(super) struct Making {
    /// The region that it has become part of; itself if it has not.
    pub parent: u32,
    /// The space, without dims of size one.
    pub core: Vec<usize>,
    /// True if it has rows: an operation says where they end, or values are one for each.
    pub has_rows: bool,
    /// True if operations may join it.
    pub open: bool,
    pub action: Option<Action>,
    /// Its last task.
    pub last: usize,
    pub path: u32,
    pub operations: u32,
    /// The results of those that write at indices.
    pub indexed: Vec<Slot>,
    /// Bytes that its operations would read and write one by one.
    pub bytes_apart: u64,
    pub tensors: usize,
    pub instructions: usize,
}

/// Sums along some dims whose result only a further sum reads: together they are one over all rows, or all elements.
pub(super) struct Begun {
    pub of: Look,
    pub dims: Vec<usize>,
    pub operations: u32,
    pub bytes_apart: u64,
}

/// The end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    /// A region computes it.
    Joins,
    /// It shows a tensor, or makes a constant: regions do that themselves, so it goes unless others read it.
    Shows {
        is_read: bool,
    },
}

/// The place of random numbers.
#[derive(Clone, Copy)]
pub(super) enum Drawn {
    /// In the slot of their task.
    InMemory,
    /// In a region, as this value.
    InRegion(u32),
}

/// The tasks that read a slot.
#[derive(Clone, Copy, Default)]
pub(super) struct Readers {
    /// Their number.
    pub count: u32,
    /// The last one.
    pub last: usize,
    /// True if one of them is none that a region may compute: the slot is made whatever regions do.
    pub outside: bool,
}

/// The walk, as far as it has come.
pub(super) struct Walk<'a, O> {
    pub tasks: &'a [Task<O>],
    pub actions: &'a FxHashMap<Slot, Action>,
    /// True if operations join others.
    pub joins: bool,
    /// The kernels that regions run by.
    pub kernels: RegionKernels,
    /// The slots that regions make, or make themselves: the task that makes each, and what it shows.
    pub looks: FxHashMap<Slot, (usize, Look)>,
    /// The last operand of a region that is a slot, by that.
    pub operands: FxHashMap<Slot, u32>,
    /// The places of random numbers that something has read, by the tasks that draw them.
    pub drawn: FxHashMap<usize, Drawn>,
    /// Sums along some dims that others go on with, by their results.
    pub begun: FxHashMap<Slot, Begun>,
    /// The operations of tasks, as the pass sees them, until it comes to them.
    pub seen: Vec<Option<Seen>>,
    /// The tasks that read each slot.
    pub readers: Vec<Readers>,
    /// The task that it has come to.
    pub at: usize,
    pub nodes: Vec<Node>,
    pub regions: Vec<Making>,
    pub fates: Vec<Fate>,
}

/// The result of the walk.
pub(super) struct Found {
    pub nodes: Vec<Node>,
    /// For each value the region that it belongs to.
    pub region_of: Vec<u32>,
    /// Regions by number; those that became part of others have no values.
    pub regions: Vec<Making>,
    /// The end of each task.
    pub fates: Vec<Fate>,
    /// Tasks that show a value of a region which ends later, with that region.
    pub moved: Vec<(usize, u32)>,
}

impl<'a, O: Op> Walk<'a, O> {
    pub(super) fn new(
        tasks: &'a [Task<O>],
        actions: &'a FxHashMap<Slot, Action>,
        joins: bool,
        kernels: RegionKernels,
    ) -> Self {
        Self {
            tasks,
            actions,
            joins,
            kernels,
            looks: FxHashMap::default(),
            operands: FxHashMap::default(),
            drawn: FxHashMap::default(),
            begun: FxHashMap::default(),
            seen: Vec::with_capacity(tasks.len()),
            readers: Vec::new(),
            at: 0,
            nodes: Vec::new(),
            regions: Vec::new(),
            fates: vec![Fate::Stays; tasks.len()],
        }
    }

    /// Walks over all tasks.
    pub(super) fn run(mut self) -> Found {
        self.look_ahead();
        for (at, task) in self.tasks.iter().enumerate() {
            self.at = at;
            match task {
                Task::Op(op, path) => self.op(at, op, *path),
                Task::Random(task) if self.draws(task) => {
                    let look = Look {
                        base: Base::Drawn(at),
                        ..Look::plain(task.output())
                    };
                    self.looks.insert(task.slot, (at, look));
                }
                task => self.outside(task),
            }
        }
        self.settle_draws();
        let region_of: Vec<u32> = (0..self.nodes.len() as u32)
            .map(|node| self.region_of(node))
            .collect();
        let shown = self.looks.values().filter_map(|(at, look)| {
            let Base::Node(node) = self.found(&look.base) else {
                return None;
            };
            let region = region_of[node as usize];
            let ends = self.regions[region as usize].last;
            let is_moved = self.fates[*at] != Fate::Joins && ends > *at;
            is_moved.then_some((*at, region))
        });
        Found {
            moved: shown.collect(),
            region_of,
            nodes: self.nodes,
            regions: self.regions,
            fates: self.fates,
        }
    }

    /// Looks at all operations, and notes which slots tasks read.
    fn look_ahead(&mut self) {
        for (at, task) in self.tasks.iter().enumerate() {
            let seen = match task {
                Task::Op(op, _) => Some(see(op, self.kernels)),
                _ => None,
            };
            let computes = matches!(seen, Some(Seen::Computes(_) | Seen::Sum(_)));
            self.seen.push(seen);
            task.accesses(|access| {
                if let Access::Reads { slot, .. } | Access::Leaves(Tensor { id: slot, .. }) = access
                {
                    let slot = slot as usize;
                    if self.readers.len() <= slot {
                        self.readers.resize(slot + 1, Readers::default());
                    }
                    let readers = &mut self.readers[slot];
                    readers.count += 1;
                    readers.last = at;
                    readers.outside |= !computes;
                }
            });
        }
    }

    /// Returns the tasks that read a slot.
    pub(super) fn readers(&self, slot: Slot) -> Readers {
        self.readers.get(slot as usize).copied().unwrap_or_default()
    }

    /// Returns the region that one has become part of.
    fn root(&mut self, mut region: u32) -> u32 {
        loop {
            let parent = self.regions[region as usize].parent;
            if parent == region {
                return region;
            }
            let above = self.regions[parent as usize].parent;
            self.regions[region as usize].parent = above;
            region = above;
        }
    }

    pub(super) fn region_of(&mut self, node: u32) -> u32 {
        self.root(self.nodes[node as usize].region)
    }

    fn op(&mut self, at: usize, op: &'a O, path: u32) {
        let tasks = self.tasks;
        let seen = self.seen[at].take();
        let (Some(seen), out) = (seen, op.outputs().next()) else {
            return self.outside(&tasks[at]);
        };
        match (seen, out) {
            (Seen::Computes(computes), _) => {
                let looks: Vec<Look> = op.inputs().map(|input| self.look(input)).collect();
                match computes.changes {
                    // The operation itself writes a few elements, and a region all of them.
                    Some(operand) if self.joins && self.is_in_memory(&looks[operand]) => {
                        self.outside(&tasks[at]);
                    }
                    _ => {
                        self.join(at, op, path, &computes, looks);
                    }
                }
            }
            (Seen::Sum(dims), Some(out)) => self.sum(at, op, path, dims, out),
            (Seen::Constant(..), Some(out)) if self.joins => {
                let look = Look {
                    base: Base::Constant(at),
                    shape: vec![1; out.shape.len()],
                    full: out.shape.to_vec(),
                };
                self.shows(at, out, look);
            }
            (Seen::Expand, Some(out)) if self.joins => {
                let of = op.inputs().next().expect("it shows something");
                let look = self.look(of).expanded(out.shape);
                self.shows(at, out, look);
            }
            (Seen::Reshape, Some(out)) if self.joins => {
                let of = op.inputs().next().expect("it shows something");
                match self.look(of).reshaped(out.shape) {
                    Some(look) => self.shows(at, out, look),
                    None => self.outside(&tasks[at]),
                }
            }
            _ => self.outside(&tasks[at]),
        }
    }

    fn shows(&mut self, at: usize, out: Tensor<'_>, look: Look) {
        self.looks.insert(out.id, (at, look));
        self.fates[at] = Fate::Shows { is_read: false };
    }

    /// Returns whether all elements that a look has are in memory: no region makes them that operations may join.
    fn is_in_memory(&mut self, look: &Look) -> bool {
        look.shape == look.full
            && match look.base {
                Base::Slot(..) | Base::Drawn(_) => true,
                Base::Node(node) => {
                    let region = self.region_of(node);
                    !self.regions[region as usize].open
                }
                Base::Constant(_) => false,
            }
    }

    pub(super) fn look(&self, tensor: Tensor<'_>) -> Look {
        let Some((_, look)) = self.looks.get(&tensor.id) else {
            return Look::plain(tensor);
        };
        Look {
            base: self.found(&look.base),
            ..look.clone()
        }
    }

    /// Returns what shows the same, and is where random numbers are now.
    pub(super) fn found(&self, base: &Base) -> Base {
        let Base::Drawn(at) = base else {
            return base.clone();
        };
        match self.drawn.get(at) {
            Some(Drawn::InRegion(node)) => Base::Node(*node),
            Some(Drawn::InMemory) => {
                let task = self.random(*at);
                Base::Slot(task.slot, task.shape.clone())
            }
            None => Base::Drawn(*at),
        }
    }

    /// Notes that a task which is in no region reads what it reads.
    pub(super) fn outside(&mut self, task: &Task<O>) {
        task.accesses(|access| {
            if let Access::Reads { slot, .. } | Access::Leaves(Tensor { id: slot, .. }) = access {
                self.read(slot);
            }
        });
    }

    /// Notes that a slot is read by what is in no region, or in another one: it is made, and nothing joins the region
    /// that makes it any more, so that no path leads from it through others back into it.
    pub(super) fn read(&mut self, slot: Slot) {
        let mut slots = vec![slot];
        while let Some(slot) = slots.pop() {
            let Some((at, look)) = self.looks.get(&slot) else {
                continue;
            };
            let (at, node) = match self.found(&look.base) {
                Base::Node(node) => (*at, Some(node)),
                Base::Drawn(of) => {
                    self.drawn.insert(of, Drawn::InMemory);
                    (*at, None)
                }
                _ => (*at, None),
            };
            if let Some(node) = node {
                let region = self.region_of(node);
                self.regions[region as usize].open = false;
            }
            match &mut self.fates[at] {
                Fate::Shows { is_read } => {
                    if !std::mem::replace(is_read, true)
                        && let Task::Op(op, _) = &self.tasks[at]
                    {
                        slots.extend(op.inputs().map(|input| input.id));
                    }
                }
                Fate::Joins | Fate::Stays => {
                    if let Some(node) = node {
                        self.nodes[node as usize].is_read = true;
                    }
                }
            }
        }
    }
}
