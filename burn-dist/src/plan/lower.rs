//! From the common program to the tasks of one rank: local shapes, local operations, collectives with their pieces.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use burn_backend::{DType, Shape, Slice};
use burn_ir::{
    BaseOperationIr, CreationOpIr, FullOpIr, NumericOperationIr, OperationIr, ScalarIr, ShapeOpIr,
    SliceOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::BoolStore;
use rustc_hash::FxHashMap;

use super::PlanOptions;
use super::hierarchy::{Decision, Hierarchy, reduce_order, stages};
use super::localize::{Local, indices, localize};
use super::propagate::{Common, LocalStep, Move, Program, random_parts};
use super::storage::Storage;
use super::task::{
    CollectiveKind, CollectiveRecord, CollectiveTask, Indexed, RandomTask, RankPlan, Slot, Task,
    TermOf, UploadTask,
};
use super::units::Visits;
use super::unneeded;
use super::window::Window;
use crate::layout::Layout;
use crate::layout::redistribute::{Pieces, StepKind};
use crate::mesh::{AxisIndex, MeshShape, Rank, ReduceOp};

fn tensor(slot: TensorId, shape: Vec<usize>, dtype: DType, status: TensorStatus) -> TensorIr {
    TensorIr {
        id: slot,
        shape: Shape::from(shape),
        status,
        dtype,
    }
}

fn base(dtype: DType, op: BaseOperationIr) -> OperationIr {
    if dtype.is_float() {
        OperationIr::BaseFloat(op)
    } else if dtype.is_bool() {
        OperationIr::BaseBool(op)
    } else {
        OperationIr::BaseInt(op)
    }
}

pub(super) struct Lowering<'a> {
    pub window: &'a Window,
    pub program: &'a Program,
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
    fn launch(
        &mut self,
        group: u32,
        num_launches: u32,
        mut launched: Vec<VecDeque<CollectiveTask>>,
        record: &mut u32,
    ) -> Task {
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
    fn relay(&mut self, group: u32, stage: u32, num_launches: u32) -> [Task; 2] {
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
    fn finish(&self, group: u32, to: &[Slot]) -> Vec<Task> {
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

impl<'a> Lowering<'a> {
    pub fn new(
        window: &'a Window,
        program: &'a Program,
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
    pub fn rank(&self, rank: Rank, visits: &Visits) -> (RankPlan, Vec<u32>) {
        let mut tasks = Vec::with_capacity(self.program.steps.len());
        let mut num_slots = self.program.slots.len() as u64;
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
                    let Some((_, distribution)) = random_parts(&self.window.ops[*op as usize])
                    else {
                        continue;
                    };
                    tasks.push(Task::Random(Box::new(RandomTask {
                        slot: *slot,
                        dtype: info.dtype,
                        distribution,
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
            num_slots: num_slots as u32,
            paths: self.paths.clone(),
            classes: Arc::default(),
            storage: self.storage,
            indexed: indexed.into(),
        };
        (plan, visit_of)
    }

    /// Returns the tasks of a collective: its stages, if it is composed.
    fn staged(&self, rank: Rank, moved: &Move, num_slots: &mut u64) -> Vec<CollectiveTask> {
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
        step: &LocalStep,
        num_slots: &mut u64,
        ops: &mut Vec<OperationIr>,
        indexed: &mut FxHashMap<Slot, Indexed>,
    ) {
        let mut op = step.op.clone();
        super::rename::redirect(&mut op, &self.alias);
        let local = Local {
            op: &op,
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
            TensorId::new(*num_slots - 1)
        };
        localize(&local, &mut temps, ops);
        if let Some(global) = local.indexed() {
            let results = ops.iter().filter_map(indices);
            indexed.extend(results.map(|(_, out)| (out.id.value() as Slot, global.clone())));
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
            axes: self.hierarchy.fold(&axes).into(),
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

    fn local_move(
        &self,
        rank: Rank,
        moved: &Move,
        num_slots: &mut u64,
        ops: &mut Vec<OperationIr>,
    ) {
        let mesh = self.mesh;
        let (from, to) = (self.alias[moved.from as usize], moved.to);
        let dtype = self.program.slots[to as usize].dtype;
        let step = &moved.step;
        let from_id = TensorId::new(from.into());
        let to_id = TensorId::new(to.into());
        let from_shape = step.from.local_shape(mesh, rank);
        let to_shape = step.to.local_shape(mesh, rank);
        let mut temp = || {
            *num_slots += 1;
            TensorId::new(*num_slots - 1)
        };
        let reshape = |input: (TensorId, &[usize]), out: (TensorId, &[usize])| {
            base(
                dtype,
                BaseOperationIr::Reshape(ShapeOpIr {
                    input: tensor(input.0, input.1.to_vec(), dtype, TensorStatus::ReadOnly),
                    out: tensor(out.0, out.1.to_vec(), dtype, TensorStatus::NotInit),
                }),
            )
        };
        match &step.kind {
            // Without elements nothing is moved, but the shapes of the blocks may differ.
            _ if to_shape.contains(&0) => {
                let out = tensor(to_id, to_shape, dtype, TensorStatus::NotInit);
                ops.push(base(dtype, BaseOperationIr::Zeros(CreationOpIr { out })));
            }
            StepKind::Refactor => {}
            StepKind::Slice { .. } => {
                let geometry = step.geometry(mesh, rank);
                let (view, cut_shape) = (geometry.from, geometry.to);
                let cut = geometry.cut.expect("a slice cuts");
                let own = cut.range(geometry.index);
                let simple = view.len() == from_shape.len();
                let mut ranges: Vec<Slice> = view.iter().map(|&size| span(0..size)).collect();
                ranges[cut.dim] = span(own);
                let source = if simple {
                    from_id
                } else {
                    let id = temp();
                    ops.push(reshape((from_id, &from_shape), (id, &view)));
                    id
                };
                let cut = if simple { to_id } else { temp() };
                ops.push(base(
                    dtype,
                    BaseOperationIr::Slice(SliceOpIr {
                        tensor: tensor(source, view.clone(), dtype, TensorStatus::ReadOnly),
                        ranges,
                        out: tensor(cut, cut_shape.clone(), dtype, TensorStatus::NotInit),
                    }),
                ));
                if !simple {
                    ops.push(reshape((cut, &cut_shape), (to_id, &to_shape)));
                }
            }
            StepKind::ToPartial { axis, op } => {
                if op.is_idempotent() || mesh.coord(rank, *axis) == 0 {
                    ops.push(reshape((from_id, &from_shape), (to_id, &to_shape)));
                } else {
                    ops.push(identity(
                        *op,
                        tensor(to_id, to_shape, dtype, TensorStatus::NotInit),
                    ));
                }
            }
            _ => unreachable!("collectives are tasks of their own"),
        }
    }
}

fn span(range: Range<usize>) -> Slice {
    Slice::new(range.start as isize, Some(range.end as isize), 1)
}

/// Returns a tensor full of the identity of a sum or a product.
///
/// The identity of a float sum is -0.0: `-0.0 + 0.0` is `0.0`, and a value must keep its sign.
fn identity(op: ReduceOp, out: TensorIr) -> OperationIr {
    let dtype = out.dtype;
    match op {
        ReduceOp::Sum if dtype.is_float() => OperationIr::NumericFloat(
            dtype,
            NumericOperationIr::Full(FullOpIr {
                out,
                value: ScalarIr::Float(-0.0),
            }),
        ),
        ReduceOp::Sum => base(dtype, BaseOperationIr::Zeros(CreationOpIr { out })),
        ReduceOp::Prod => base(dtype, BaseOperationIr::Ones(CreationOpIr { out })),
        ReduceOp::Mean | ReduceOp::Min | ReduceOp::Max => {
            unreachable!("every rank keeps the value")
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
pub(crate) fn runs(layout: &Layout, mesh: &MeshShape, rank: Rank) -> Arc<[Range<usize>]> {
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
