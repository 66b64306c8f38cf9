//! From the common program to the tasks of one rank: local shapes, local operations, collectives with their pieces.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::mesh::BoolStore;
use rustc_hash::FxHashMap;

use crate::PlanOptions;
use crate::hierarchy::{Decision, Hierarchy, reduce_order, stages};
use crate::layout::Layout;
use crate::layout::redistribute::{Pieces, StepKind};
use crate::mesh::{AxisIndex, MeshShape, Rank, ReduceOp};
use crate::op::{Indexed, LocalView, NewTensor, Op};
use crate::propagate::{Common, LocalStep, Move, Program};
use crate::storage::Storage;
use crate::task::{
    CollectiveKind, CollectiveRecord, CollectiveTask, RandomTask, RankPlan, Slot, Task, TermOf,
    UploadTask,
};
use crate::units::Visits;
use crate::unneeded;
use crate::window::Window;

pub(super) struct Lowering<'a, O> {
    pub window: &'a Window<O>,
    pub program: &'a Program<O>,
    pub mesh: &'a MeshShape,
    /// Slots that hold the same blocks as an earlier one.
    alias: Vec<Slot>,
    /// Slots that some rank reads, where not all ranks read the same.
    read_somewhere: Option<Vec<bool>>,
    paths: Arc<[Arc<str>]>,
    pub fuzz: Option<u64>,
    bool_store: BoolStore,
    storage: Storage,
    hierarchy: &'a Hierarchy<'a>,
    /// Launches of the program; those of later stages are numbered from here on.
    num_launches: u32,
}

/// Stages of launched collectives that are still to be started, by the launch of the first.
#[derive(Default)]
struct Staged {
    waiting: HashMap<u32, Vec<VecDeque<CollectiveTask>>>,
    /// Of composed collectives, the launch that makes the result.
    last: HashMap<Slot, u32>,
}

impl Staged {
    /// Starts the first stage of collectives; `launched` are the stages of each.
    fn launch<O: Op>(
        &mut self,
        group: u32,
        num_launches: u32,
        mut launched: Vec<VecDeque<CollectiveTask>>,
        record: &mut u32,
    ) -> Task<O> {
        // Records are in the order of launches: first stages, then second ones.
        for stage in 0.. {
            let stages = launched.iter_mut().filter_map(|tasks| tasks.get_mut(stage));
            let first = *record;
            for task in stages {
                task.record = *record;
                *record += 1;
            }
            if *record == first {
                break;
            }
        }
        for tasks in launched.iter().filter(|tasks| tasks.len() > 1) {
            let number = group + (tasks.len() as u32 - 1) * num_launches;
            self.last.extend(tasks.back().map(|task| (task.to, number)));
        }
        let tasks = launched.iter_mut().filter_map(VecDeque::pop_front);
        let tasks = tasks.collect();
        launched.retain(|tasks| !tasks.is_empty());
        self.waiting.insert(group, launched);
        Task::Launch { group, tasks }
    }

    /// Waits for a stage, and starts the one with this number.
    fn relay<O: Op>(&mut self, group: u32, stage: u32, num_launches: u32) -> [Task<O>; 2] {
        let waiting = self.waiting.entry(group).or_default();
        let tasks: Vec<CollectiveTask> =
            waiting.iter_mut().filter_map(VecDeque::pop_front).collect();
        let number = group + stage * num_launches;
        [
            Task::Finish {
                group: number - num_launches,
                to: tasks.iter().map(|task| task.from).collect(),
            },
            Task::Launch {
                group: number,
                tasks,
            },
        ]
    }

    /// Waits for results.
    fn finish<O: Op>(&self, group: u32, to: &[Slot]) -> Vec<Task<O>> {
        let mut tasks: Vec<(u32, Vec<Slot>)> = Vec::new();
        for slot in to {
            let number = self.last.get(slot).copied().unwrap_or(group);
            match tasks.iter_mut().find(|(known, _)| *known == number) {
                Some((_, slots)) => slots.push(*slot),
                None => tasks.push((number, vec![*slot])),
            }
        }
        let finish = |(group, to)| Task::Finish { group, to };
        tasks.into_iter().map(finish).collect()
    }
}

/// Index of "no known module".
const NO_PATH: u32 = u32::MAX;

impl<'a, O: Op> Lowering<'a, O> {
    pub fn new(
        window: &'a Window<O>,
        program: &'a Program<O>,
        mesh: &'a MeshShape,
        options: &PlanOptions,
        hierarchy: &'a Hierarchy<'a>,
    ) -> Self {
        let mut alias: Vec<Slot> = (0..program.slots.len() as Slot).collect();
        for step in &program.steps {
            if let Common::Move(step) = step
                && step.step.kind == StepKind::Refactor
                && step.step.to.numel() > 0
            {
                alias[step.to as usize] = alias[step.from as usize];
            }
        }
        let mut paths: Vec<Arc<str>> = program
            .steps
            .iter()
            .filter_map(|step| match step {
                Common::Local(step) => step.path.clone(),
                Common::Move(step) => step.path.clone(),
                _ => None,
            })
            .chain(program.launched().filter_map(|(_, step)| step.path.clone()))
            .collect();
        paths.sort();
        paths.dedup();
        Self {
            window,
            program,
            mesh,
            read_somewhere: unneeded::read_somewhere(program, &alias),
            alias,
            paths: paths.into(),
            fuzz: options.fuzz,
            bool_store: options.bool_store,
            storage: options.storage,
            hierarchy,
            num_launches: program
                .launched()
                .map(|(group, _)| group + 1)
                .max()
                .unwrap_or(0),
        }
    }

    fn path_index(&self, path: &Option<Arc<str>>) -> u32 {
        path.as_ref()
            .and_then(|path| self.paths.binary_search(path).ok())
            .map_or(NO_PATH, |index| index as u32)
    }

    /// Describes the collectives of the program, in order.
    pub fn records(&self) -> Vec<CollectiveRecord> {
        let steps = self.program.steps.iter();
        steps
            .flat_map(|common| match common {
                Common::Move(step) => self.records_of(step, None),
                Common::Launch { group, moves } => {
                    let mut records: Vec<(usize, CollectiveRecord)> = moves
                        .iter()
                        .flat_map(|step| {
                            self.records_of(step, Some(*group)).into_iter().enumerate()
                        })
                        .collect();
                    // In the order in which they are launched.
                    records.sort_by_key(|(stage, _)| *stage);
                    records.into_iter().map(|(_, record)| record).collect()
                }
                _ => Vec::new(),
            })
            .collect()
    }

    /// Describes a collective: its stages, if it is composed.
    fn records_of(&self, moved: &Move, launch: Option<u32>) -> Vec<CollectiveRecord> {
        let Some(flat) = self.record(moved, launch) else {
            return Vec::new();
        };
        let split = match self.hierarchy.decide(&moved.step, flat.dtype.size()) {
            Decision::OneLevel => return vec![flat],
            Decision::Flat(why) => {
                return vec![CollectiveRecord {
                    reason: format!("{}; flat over nodes: {why}", flat.reason),
                    spans_nodes: true,
                    ..flat
                }];
            }
            Decision::Composed(split) => split,
        };
        // The ranks of a group differ by a chunk that is not whole.
        let first = self.collective(Rank(0), moved, 0);
        let mut records: Vec<CollectiveRecord> = Vec::new();
        for &rank in first.group.iter().take(64) {
            let tasks = stages(self.collective(rank, moved, 0), split, &mut 0);
            for (stage, task) in tasks.into_iter().enumerate() {
                if let Some(record) = records.get_mut(stage) {
                    record.bytes = record.bytes.max(task.bytes);
                    continue;
                }
                let spans_nodes = self.hierarchy.topology().spans(&task.group);
                let place = if spans_nodes { "between" } else { "inside" };
                records.push(CollectiveRecord {
                    kind: task.kind,
                    axes: self.hierarchy.topology().axes_text(self.mesh, &task.group),
                    reason: format!(
                        "{}; {} over {split}: {place} nodes",
                        flat.reason,
                        flat.kind.name()
                    ),
                    bytes: task.bytes,
                    members: task.group.len(),
                    spans_nodes,
                    launch: launch.map(|group| group + stage as u32 * self.num_launches),
                    ..flat.clone()
                });
            }
        }
        records
    }

    fn record(&self, moved: &Move, launch: Option<u32>) -> Option<CollectiveRecord> {
        let step = &moved.step;
        let (kind, axes) = collective(&step.kind)?;
        let dtype = self.program.slots[moved.to as usize].dtype;
        let bytes = (0..self.mesh.num_ranks().min(64))
            .map(|rank| step.step_bytes(self.mesh, Rank(rank as u32), dtype.size()))
            .max()
            .unwrap_or(0);
        let names: Vec<&str> = axes.iter().map(|&axis| self.mesh.name(axis)).collect();
        Some(CollectiveRecord {
            kind,
            axes: names.join(","),
            reason: moved.reason.to_string(),
            path: moved.path.clone(),
            shape: step.from.shape(),
            dtype,
            layouts: (
                step.from.display(self.mesh).to_string(),
                step.to.display(self.mesh).to_string(),
            ),
            bytes,
            members: self.mesh.group_size(&axes),
            spans_nodes: self
                .hierarchy
                .topology()
                .spans(&self.mesh.group_of(Rank(0), &axes)),
            launch,
        })
    }

    /// Returns the tasks of one rank, before lifetimes are known, and the number of the unit visit that each belongs
    /// to.
    pub fn rank(&self, rank: Rank, visits: &Visits) -> (RankPlan<O>, Vec<u32>) {
        let mut tasks = Vec::with_capacity(self.program.steps.len());
        let mut num_slots = self.program.slots.len() as Slot;
        let mut ops = Vec::new();
        let mut indexed = FxHashMap::default();
        let mut record = 0;
        let mut staged = Staged::default();
        let mut visit = 0;
        let mut visit_of = Vec::with_capacity(self.program.steps.len());
        for common in &self.program.steps {
            visit_of.resize(tasks.len(), visit);
            if let Common::Local(step) = common {
                // What is made again, or ahead of its use, belongs to where it stands.
                visit = visits.of(step.at).max(visit);
            }
            match common {
                Common::Load { value, slot } => tasks.push(Task::Load {
                    value: *value,
                    slot: *slot,
                    take: self.window.dies[*value as usize],
                    bytes: self.bytes(rank, *slot),
                    shape: self.program.slots[*slot as usize]
                        .layout
                        .local_shape(self.mesh, rank),
                    dtype: self.program.slots[*slot as usize].dtype,
                    host: false,
                }),
                Common::Upload { value, slot } => {
                    tasks.push(Task::Upload(Box::new(self.upload(rank, *value, *slot))));
                }
                Common::Random { op, stream, slot } => {
                    let info = &self.program.slots[*slot as usize];
                    tasks.push(Task::Random(Box::new(RandomTask {
                        slot: *slot,
                        dtype: info.dtype,
                        op: self.window.ops[*op as usize].clone(),
                        stream: *stream,
                        shape: info.layout.local_shape(self.mesh, rank),
                        runs: runs(&info.layout, self.mesh, rank),
                    })));
                }
                Common::Local(step) => {
                    ops.clear();
                    self.local(rank, step, &mut num_slots, &mut ops, &mut indexed);
                    let path = self.path_index(&step.path);
                    tasks.extend(ops.drain(..).map(|op| Task::Op(op, path)));
                }
                Common::Move(step) if collective(&step.step.kind).is_some() => {
                    for task in self.staged(rank, step, &mut num_slots) {
                        tasks.push(Task::Collective(Box::new(CollectiveTask {
                            record,
                            ..task
                        })));
                        record += 1;
                    }
                }
                Common::Move(step) => {
                    ops.clear();
                    self.local_move(rank, step, &mut num_slots, &mut ops);
                    let path = self.path_index(&step.path);
                    tasks.extend(ops.drain(..).map(|op| Task::Op(op, path)));
                }
                Common::Launch { group, moves } => {
                    let launched = moves
                        .iter()
                        .map(|step| self.staged(rank, step, &mut num_slots));
                    let launched: Vec<VecDeque<CollectiveTask>> =
                        launched.map(Into::into).collect();
                    let task = staged.launch(*group, self.num_launches, launched, &mut record);
                    tasks.push(task);
                }
                Common::Relay { group, stage } => {
                    tasks.extend(staged.relay(*group, *stage, self.num_launches));
                }
                Common::Finish { group, to } => tasks.extend(staged.finish(*group, to)),
                Common::Store { slot, value } => tasks.push(Task::Store {
                    slot: self.alias[*slot as usize],
                    value: *value,
                    take: false,
                    bytes: self.bytes(rank, *slot),
                    shape: self.program.slots[*slot as usize]
                        .layout
                        .local_shape(self.mesh, rank),
                    dtype: self.program.slots[*slot as usize].dtype,
                    host: false,
                }),
                Common::Read { slot, read } => {
                    let info = &self.program.slots[*slot as usize];
                    tasks.push(Task::Read {
                        slot: self.alias[*slot as usize],
                        read: *read,
                        shape: info.layout.local_shape(self.mesh, rank),
                        dtype: info.dtype,
                        take: false,
                    });
                }
            }
        }
        visit_of.resize(tasks.len(), visit);
        if let Some(read) = &self.read_somewhere {
            unneeded::remove(&mut tasks, &mut visit_of, num_slots as usize, read);
        }
        let plan = RankPlan {
            tasks,
            num_slots,
            paths: self.paths.clone(),
            classes: Arc::default(),
            storage: self.storage,
            indexed: indexed.into(),
        };
        (plan, visit_of)
    }

    /// Returns the tasks of a collective: its stages, if it is composed.
    fn staged(&self, rank: Rank, moved: &Move, num_slots: &mut Slot) -> Vec<CollectiveTask> {
        let flat = self.collective(rank, moved, 0);
        match self.hierarchy.decide(&moved.step, flat.dtype.size()) {
            Decision::Composed(split) => stages(flat, split, num_slots),
            Decision::OneLevel | Decision::Flat(_) => vec![flat],
        }
    }

    fn bytes(&self, rank: Rank, slot: Slot) -> u64 {
        let info = &self.program.slots[slot as usize];
        let local = info.layout.local_shape(self.mesh, rank);
        (local.iter().product::<usize>() * info.dtype.size()) as u64
    }

    fn local(
        &self,
        rank: Rank,
        step: &LocalStep<O>,
        num_slots: &mut Slot,
        ops: &mut Vec<O>,
        indexed: &mut FxHashMap<Slot, Indexed>,
    ) {
        let mut op = step.op.clone();
        crate::rename::redirect(&mut op, &self.alias);
        let view = LocalView {
            rule: &step.rule,
            assignment: step.assignment.as_ref(),
            inputs: &step.inputs,
            outputs: &step.outputs,
            mesh: self.mesh,
            rank,
            bool_store: self.bool_store,
        };
        let mut temps = || {
            *num_slots += 1;
            *num_slots - 1
        };
        op.lower(&view, &mut temps, ops);
        if let Some(global) = op.indexed(&view) {
            let at_indices = ops.iter().filter(|op| op.traits().indexing.is_some());
            let results = at_indices.filter_map(|op| op.outputs().next());
            indexed.extend(results.map(|out| (out.id, global.clone())));
        }
    }

    fn upload(&self, rank: Rank, value: u32, slot: Slot) -> UploadTask {
        let info = &self.program.slots[slot as usize];
        let layout = &info.layout;
        let whole = layout.dims.iter().all(|dim| dim.is_whole());
        let terms = ReduceOp::ALL.into_iter().filter_map(|op| {
            let of_op = layout.partial.iter().filter(|partial| partial.op == op);
            let axes: Vec<AxisIndex> = of_op.map(|partial| partial.axis).collect();
            (!axes.is_empty()).then(|| TermOf {
                op,
                index: self.mesh.group_index(rank, &axes),
                count: self.mesh.group_size(&axes),
            })
        });
        UploadTask {
            value,
            slot,
            dtype: info.dtype,
            shape: layout.local_shape(self.mesh, rank),
            runs: (!whole).then(|| runs(layout, self.mesh, rank)),
            terms: terms.collect(),
            seed: self.fuzz.unwrap_or(0),
        }
    }

    fn collective(&self, rank: Rank, moved: &Move, record: u32) -> CollectiveTask {
        let mesh = self.mesh;
        let (from, to) = (self.alias[moved.from as usize], moved.to);
        let dtype = self.program.slots[to as usize].dtype;
        let path = self.path_index(&moved.path);
        let step = &moved.step;
        let geometry = step.geometry(mesh, rank);
        let (kind, mut axes) =
            collective(&step.kind).expect("local steps are lowered to operations");
        let op = match &step.kind {
            StepKind::ReduceScatter { op, .. } => *op,
            StepKind::AllReduce { op, .. } => {
                axes = reduce_order(&axes, mesh);
                *op
            }
            _ => ReduceOp::Sum,
        };
        // What only cuts or only joins does it to one dim.
        let nothing = || Pieces {
            dim: 0,
            sizes: Vec::new(),
        };
        let cut = geometry
            .cut
            .clone()
            .or(geometry.join.clone())
            .unwrap_or_else(nothing);
        let join = geometry.join.or(geometry.cut).unwrap_or_else(nothing);
        CollectiveTask {
            kind,
            group: mesh.group_of(rank, &axes).into(),
            index: mesh.group_index(rank, &axes),
            axes: axes
                .iter()
                .map(|&axis| mesh.size(axis))
                .filter(|size| *size > 1)
                .collect(),
            op,
            dtype,
            from,
            to,
            from_shape: step.from.local_shape(mesh, rank),
            to_shape: step.to.local_shape(mesh, rank),
            from_view: geometry.from,
            to_view: geometry.to,
            dim: cut.dim,
            to_dim: join.dim,
            sizes: cut.sizes.into(),
            to_sizes: join.sizes.into(),
            bytes: step.step_bytes(mesh, rank, dtype.size()),
            record,
            path,
            take: false,
        }
    }

    fn local_move(&self, rank: Rank, moved: &Move, num_slots: &mut Slot, ops: &mut Vec<O>) {
        let mesh = self.mesh;
        let (from, to) = (self.alias[moved.from as usize], moved.to);
        let dtype = self.program.slots[to as usize].dtype;
        let step = &moved.step;
        let tensor = |id: Slot, shape: &[usize]| NewTensor {
            id,
            shape: shape.to_vec(),
            dtype,
        };
        let source = tensor(from, &step.from.local_shape(mesh, rank));
        let result = tensor(to, &step.to.local_shape(mesh, rank));
        let mut temp = || {
            *num_slots += 1;
            *num_slots - 1
        };
        match &step.kind {
            // Without elements nothing is moved, but the shapes of the blocks may differ.
            _ if result.shape.contains(&0) => ops.push(O::zeros(result)),
            StepKind::Refactor => {}
            StepKind::Slice { .. } => {
                let geometry = step.geometry(mesh, rank);
                let cut = geometry.cut.expect("a slice cuts");
                let own = cut.range(geometry.index);
                if geometry.from.len() == source.shape.len() {
                    ops.push(O::slice(source, cut.dim, own, result));
                    return;
                }
                let view = tensor(temp(), &geometry.from);
                ops.push(O::reshape(source, view.clone()));
                let part = tensor(temp(), &geometry.to);
                ops.push(O::slice(view, cut.dim, own, part.clone()));
                ops.push(O::reshape(part, result));
            }
            StepKind::ToPartial { axis, op } => {
                if op.is_idempotent() || mesh.coord(rank, *axis) == 0 {
                    ops.push(O::reshape(source, result));
                } else {
                    ops.push(O::identity(*op, result));
                }
            }
            _ => unreachable!("collectives are tasks of their own"),
        }
    }
}

/// Returns the kind of the collective that a step is, and its axes; `None` of a local step.
pub(super) fn collective(kind: &StepKind) -> Option<(CollectiveKind, Vec<AxisIndex>)> {
    match kind {
        StepKind::AllGather { axes, .. } => Some((CollectiveKind::AllGather, axes.clone())),
        StepKind::ReduceScatter { axes, .. } => Some((CollectiveKind::ReduceScatter, axes.clone())),
        StepKind::AllReduce { axes, .. } => Some((CollectiveKind::AllReduce, axes.clone())),
        StepKind::AllToAll { axis, .. } => Some((CollectiveKind::AllToAll, vec![*axis])),
        StepKind::Slice { .. } | StepKind::ToPartial { .. } | StepKind::Refactor => None,
    }
}

/// Returns the flat ranges of the global tensor that a rank holds, in local order.
pub fn runs(layout: &Layout, mesh: &MeshShape, rank: Rank) -> Arc<[Range<usize>]> {
    // Factors as dims of their own: (global size, range held).
    let mut dims: Vec<(usize, Range<usize>)> = Vec::new();
    for (dim, factors) in layout.dims.iter().enumerate() {
        for (factor, f) in factors.factors.iter().enumerate() {
            dims.push((f.size, layout.factor_range(mesh, rank, dim, factor)));
        }
    }
    if dims.iter().any(|(_, range)| range.is_empty()) {
        return Arc::new([]);
    }
    // The innermost dims held whole join into one run.
    let mut inner = 1;
    while let Some((size, range)) = dims.last() {
        if range.len() != *size {
            break;
        }
        inner *= size;
        dims.pop();
    }
    let (run_start, run_len) = match dims.pop() {
        Some((size, range)) => {
            let run = (range.start * inner, range.len() * inner);
            inner *= size;
            run
        }
        None => return std::iter::once(0..inner).collect(),
    };
    let mut starts = vec![0usize];
    let mut stride = inner;
    let mut strides = vec![0; dims.len()];
    for (index, (size, _)) in dims.iter().enumerate().rev() {
        strides[index] = stride;
        stride *= size;
    }
    for ((_, range), stride) in dims.iter().zip(strides) {
        starts = starts
            .iter()
            .flat_map(|&start| range.clone().map(move |index| start + index * stride))
            .collect();
    }
    starts
        .into_iter()
        .map(|start| start + run_start..start + run_start + run_len)
        .collect()
}
