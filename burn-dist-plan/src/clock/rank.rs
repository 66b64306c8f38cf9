//! From the tasks of a rank to the actions of the simulation.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Hardware;
use super::events::{Action, Call, DEVICE, Lane};
use super::kernels::{Kernel, Walk};
use crate::ir::{CollectiveTask, Op, RankPlan, Slot, Task, TransferTask};
use crate::mesh::collective::Kind;
use crate::mesh::{MeshShape, Rank, Split, Topology};

/// The description of an action, for people.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct What {
    /// The operation or collective.
    pub name: &'static str,
    /// Operations that run as one.
    pub ops: usize,
    /// Bytes that are received, of a collective.
    pub bytes: u64,
    /// First and last task.
    pub tasks: (usize, usize),
    /// Number of the module.
    pub path: u32,
}

/// The actions of a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct RankActions {
    /// The calls of it have the members of their groups, not yet as indices.
    pub actions: Vec<Action>,
    /// The description of each action.
    pub what: Vec<What>,
    /// The group of each call, in order.
    pub groups: Vec<Arc<[Rank]>>,
    /// For each task, the number of actions after which it is done.
    pub tasks: Vec<usize>,
    /// Flops of products.
    pub flops: f64,
}

/// The lanes of all ranks: names of axes, or sets of them.
pub(super) struct Lanes<'a> {
    mesh: &'a MeshShape,
    topology: Topology,
    pub names: Vec<String>,
    groups: FxHashMap<Arc<[Rank]>, (Lane, Split)>,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(mesh: &'a MeshShape, topology: Topology) -> Self {
        Self {
            mesh,
            topology,
            names: vec!["compute".to_owned()],
            groups: FxHashMap::default(),
        }
    }

    /// Returns the lane of a group, and how it lies on nodes.
    fn of(&mut self, group: &Arc<[Rank]>) -> (Lane, Split) {
        if let Some(known) = self.groups.get(group) {
            return *known;
        }
        let name = self.topology.axes_text(self.mesh, group);
        let lane = self.names.iter().position(|known| *known == name);
        let lane = lane.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        let found = (lane, self.split(group));
        self.groups.insert(group.clone(), found);
        found
    }

    /// Returns the lane from one rank to another, and how the two lie on nodes: what comes from one stage does not wait
    /// for what comes from another.
    fn channel(&mut self, pair: [Rank; 2]) -> (Lane, Split) {
        let axis = self.mesh.axes_of(&pair).into_iter().next();
        let coord = |rank: Rank| axis.map_or(0, |axis| self.mesh.coord(rank, axis));
        let axes = self.topology.axes_text(self.mesh, &pair);
        let name = format!("{axes} {}>{}", coord(pair[0]), coord(pair[1]));
        let lane = self.names.iter().position(|known| *known == name);
        let lane = lane.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        (lane, self.split(&pair))
    }

    /// Returns how a group lies on nodes; of one that lies unevenly, the node with the fewest members decides.
    fn split(&self, group: &[Rank]) -> Split {
        self.topology.split_of(group).unwrap_or_else(|| {
            let mut nodes: FxHashMap<usize, usize> = FxHashMap::default();
            for &rank in group {
                *nodes.entry(self.topology.node(rank)).or_default() += 1;
            }
            Split {
                nodes: nodes.len(),
                per_node: nodes.values().copied().min().unwrap_or(1),
            }
        })
    }
}

struct Builder<'a, 'm> {
    rank: Rank,
    hardware: &'a Hardware,
    /// See [`Hardware::slowest`].
    slowest: f64,
    lanes: &'a mut Lanes<'m>,
    out: RankActions,
    /// Calls that fill slots, and have not been waited for.
    calls: FxHashMap<Slot, usize>,
}

/// Whole nanoseconds, never too few.
fn whole(ns: f64) -> u64 {
    ns.ceil() as u64
}

/// Returns the actions of a rank.
pub(super) fn actions<O: Op>(
    rank: Rank,
    plan: &RankPlan<O>,
    hardware: &Hardware,
    lanes: &mut Lanes<'_>,
) -> RankActions {
    let mut walk = Walk::new(plan, hardware);
    let mut builder = Builder {
        rank,
        hardware,
        slowest: hardware.slowest(lanes.mesh.num_ranks()),
        lanes,
        out: RankActions::default(),
        calls: FxHashMap::default(),
    };
    // What other stages send comes whenever it is sent: it does not wait for the receiver.
    for (index, task) in plan.tasks.iter().enumerate() {
        if let Task::Receive(task) = task {
            builder.calls.insert(task.slot, builder.out.groups.len());
            builder.transfer(index, task, [task.peer, rank], 0);
        }
    }
    for (index, task) in plan.tasks.iter().enumerate() {
        for kernel in walk.task(index) {
            builder.compute(plan, kernel);
        }
        builder.task(index, task);
        builder
            .out
            .tasks
            .resize(index + 1, builder.out.actions.len());
    }
    let last = walk.end_chain();
    if let Some(kernel) = last {
        builder.compute(plan, kernel);
    }
    builder.out
}

impl Builder<'_, '_> {
    fn push(&mut self, action: Action, what: What) {
        self.out.actions.push(action);
        self.out.what.push(what);
    }

    fn compute<O>(&mut self, plan: &RankPlan<O>, kernel: Kernel) {
        self.out.flops += kernel.flops;
        let action = Action::Compute {
            host_ns: whole(kernel.handed * self.hardware.operation_ns()),
            ns: whole(kernel.ns(self.hardware, self.slowest)),
        };
        let path = match plan.tasks.get(kernel.tasks.start) {
            Some(Task::Op(_, path)) => *path,
            Some(Task::Region(task)) => task.path,
            _ => u32::MAX,
        };
        // The tasks of a chain are done when it is.
        let first = kernel.tasks.start.min(self.out.tasks.len());
        let after = self.out.actions.len() + 1;
        for done in &mut self.out.tasks[first..] {
            *done = after;
        }
        let what = What {
            name: kernel.name,
            ops: kernel.ops,
            bytes: 0,
            tasks: (kernel.tasks.start, kernel.tasks.end.saturating_sub(1)),
            path,
        };
        self.push(action, what);
    }

    /// Adds what a task does beside computing.
    fn task<O>(&mut self, index: usize, task: &Task<O>) {
        match task {
            Task::Collective(task) => {
                self.start(index, &[task]);
                self.finish(index, &[task.to]);
            }
            Task::Launch { tasks, .. } => self.launch(index, tasks),
            Task::Finish { to, .. } => self.finish(index, to),
            Task::Read { shape, dtype, .. } => self.sync(index, "read", shape, dtype.size()),
            Task::Store {
                host: true,
                shape,
                dtype,
                ..
            } => self.sync(index, "to_host", shape, dtype.size()),
            Task::ToHost(task) => self.sync(index, "to_host", &task.shape, task.dtype.size()),
            Task::FromHost(task) => self.upload(index, "from_host", &task.shape, task.dtype.size()),
            Task::Upload(task) => self.upload(index, "upload", &task.shape, task.dtype.size()),
            // Drawn on the host; what regions draw, their kernels compute.
            Task::Random(task) => self.upload(index, "random", &task.shape, task.dtype.size()),
            Task::Op(..)
            | Task::Region(_)
            | Task::Load { .. }
            | Task::Store { host: false, .. }
            | Task::Free(_) => {}
            Task::Send(task) => {
                let channel = [self.rank, task.peer];
                let host_ns = whole(self.hardware.launch_ns());
                self.transfer(index, task, channel, host_ns);
            }
            Task::Receive(task) => self.finish(index, &[task.slot]),
        }
    }

    /// Starts what is launched together: collectives of one kind among the same ranks are one call, as those between
    /// `ncclGroupStart` and `ncclGroupEnd` are.
    fn launch(&mut self, index: usize, tasks: &[CollectiveTask]) {
        let mut groups: Vec<Vec<&CollectiveTask>> = Vec::new();
        let mut known: FxHashMap<(&[Rank], Kind), usize> = FxHashMap::default();
        for task in tasks {
            let group = *known
                .entry((&*task.group, task.kind()))
                .or_insert(groups.len());
            match groups.get_mut(group) {
                Some(group) => group.push(task),
                None => groups.push(vec![task]),
            }
        }
        for group in groups {
            self.start(index, &group);
        }
    }

    /// Starts collectives of one kind among the same ranks as one call.
    fn start(&mut self, index: usize, tasks: &[&CollectiveTask]) {
        let Some(first) = tasks.first() else {
            return;
        };
        let (lane, on) = self.lanes.of(&first.group);
        let kind = first.kind();
        let bytes = tasks.iter().map(|task| task.bytes()).sum();
        let ns = self.hardware.communication_ns(kind, on, bytes);
        for task in tasks {
            self.calls.insert(task.to, self.out.groups.len());
        }
        self.out.groups.push(first.group.clone());
        let action = Action::Start {
            host_ns: whole(self.hardware.launch_ns()),
            call: Call {
                lane,
                members: Vec::new(),
                ns: whole(ns),
                takes: (self.hardware.taken_beside(kind) * f64::from(DEVICE)).round() as u32,
            },
        };
        let what = What {
            name: kind.name(),
            ops: tasks.len(),
            bytes,
            tasks: (index, index),
            path: first.path,
        };
        self.push(action, what);
    }

    /// Starts a transfer from the first rank of `pair` to the second.
    fn transfer(&mut self, index: usize, task: &TransferTask, pair: [Rank; 2], host_ns: u64) {
        let (lane, on) = self.lanes.channel(pair);
        let ns = self.hardware.communication_ns(Kind::Recv, on, task.bytes());
        self.out.groups.push(Arc::from(pair));
        let call = Call {
            lane,
            members: Vec::new(),
            ns: whole(ns),
            takes: 0,
        };
        let what = What {
            name: if host_ns > 0 { "send" } else { "recv" },
            ops: 1,
            bytes: task.bytes(),
            tasks: (index, index),
            path: task.path,
        };
        self.push(Action::Start { host_ns, call }, what);
    }

    fn finish(&mut self, index: usize, to: &[Slot]) {
        for slot in to {
            if let Some(call) = self.calls.remove(slot) {
                self.push(Action::Wait(call), nothing("wait", index));
            }
        }
    }

    fn copy_ns(&self, shape: &[usize], size: usize) -> u64 {
        let bytes = shape.iter().product::<usize>() * size;
        whole(self.hardware.copy_ns(bytes as u64))
    }

    fn sync(&mut self, index: usize, name: &'static str, shape: &[usize], size: usize) {
        let ns = self.copy_ns(shape, size);
        self.push(Action::Sync { ns }, nothing(name, index));
    }

    /// The host copies; what comes next on the device waits for it.
    fn upload(&mut self, index: usize, name: &'static str, shape: &[usize], size: usize) {
        let host_ns = self.copy_ns(shape, size);
        let action = Action::Compute { host_ns, ns: 0 };
        self.push(action, nothing(name, index));
    }
}

fn nothing(name: &'static str, index: usize) -> What {
    What {
        name,
        ops: 1,
        bytes: 0,
        tasks: (index, index),
        path: u32::MAX,
    }
}
