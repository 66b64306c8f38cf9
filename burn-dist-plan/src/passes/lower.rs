//! From the common program to the tasks of one rank: local shapes, local operations, collectives with their pieces.

mod chunks;
mod classes;
mod lowered;
mod records;
mod shifts;
mod unneeded;

use std::sync::Arc;

use chunks::RankView;
use classes::classes;
pub(crate) use lowered::Lowered;

use crate::mesh::BoolStore;
use rustc_hash::FxHashMap;

use super::{Context, Report, State};
use crate::PlanOptions;
use crate::error::PlanError;
use crate::facts::Visits;
use crate::ir::levels::stage;
use crate::ir::{
    CollectiveTask, Emitted, Indexed, LocalStep, LocalView, Move, NewTensor, OnNodes, Op, Program,
    ProgramStep, RandomTask, RankPlan, Shift, Slot, Steps, Task, TermOf, Transfer, TransferTask,
    UploadTask, Window, collective, described, ordered,
};
use crate::layout::redistribute::StepKind;
use crate::layout::runs;
use crate::mesh::{AxisIndex, MeshShape, Rank, ReduceOp, Topology};
use crate::pipeline::Action;
use crate::storage::Storage;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let &Context { mesh, options, .. } = context;
    let mut ranks = std::mem::take(&mut state.ranks);
    let mut collectives = std::mem::take(&mut state.collectives);
    let axis = state.stages.as_ref().map(|stages| stages.pipeline.axis);
    for program in &state.programs {
        let first = collectives.len() as u32;
        let coord = |rank: &Rank| axis.map_or(0, |axis| mesh.coord(*rank, axis) as u32);
        let first_rank = mesh.ranks().find(|rank| coord(rank) == program.coord);
        let first = (first_rank.expect("a stage has ranks"), first);
        let lowering = Lowering::new(&state.window, program, mesh, options, first)?;
        let mine = options.ranks.iter();
        for &rank in mine.filter(|rank| coord(rank) == program.coord) {
            let is_here = |action: &Action| {
                let stages = state.stages.as_ref();
                stages.is_some_and(|stages| stages.coord(action.stage) == program.coord)
            };
            let action = |step: &ProgramStep<O>| {
                let ops = [step.at(), step.stage_of()].into_iter().flatten();
                let mut actions = ops.filter_map(|op| *state.actions.get(op as usize)?);
                actions.find(is_here)
            };
            let mut lowered = lowering.rank(rank, &state.visits, action)?;
            let classes = classes(&state.window, program, &state.facts, &lowered.plan);
            lowered.plan.classes = classes.into();
            ranks.push((rank, lowered));
        }
        collectives.extend(lowering.records());
    }
    ranks.sort_by_key(|(rank, ..)| *rank);
    (state.ranks, state.collectives) = (ranks, collectives);
    Ok(Report::default())
}

struct Lowering<'a, O> {
    pub window: &'a Window<O>,
    pub program: &'a Program<O>,
    pub mesh: &'a MeshShape,
    /// Slots that hold the same blocks as an earlier one.
    alias: Vec<Slot>,
    /// Slots that some rank reads, where not all ranks read the same.
    read_somewhere: Option<Vec<bool>>,
    paths: Arc<[Arc<str>]>,
    /// Number of the first collective of this program in the plan.
    first_record: u32,
    /// Number of the first launch of shifts.
    first_launch: u32,
    /// The first rank that the program is of.
    first_rank: Rank,
    /// See [`Self::expected`].
    expected: Vec<Vec<Vec<Shift>>>,
    pub fuzz: Option<u64>,
    bool_store: BoolStore,
    storage: Storage,
    topology: &'a Topology,
}

/// Index of "no known module".
const NO_PATH: u32 = u32::MAX;

impl<'a, O: Op> Lowering<'a, O> {
    pub(crate) fn new(
        window: &'a Window<O>,
        program: &'a Program<O>,
        mesh: &'a MeshShape,
        options: &'a PlanOptions,
        (first_rank, first_record): (Rank, u32),
    ) -> Result<Self, PlanError> {
        let mut alias: Vec<Slot> = (0..program.slots.len() as Slot).collect();
        for step in &program.steps {
            if let ProgramStep::Move(step) = step
                && step.step.kind == StepKind::Refactor
                && step.step.to.numel() > 0
            {
                alias[step.to as usize] = alias[step.from as usize];
            }
        }
        let mut paths: Vec<Arc<str>> = program
            .steps
            .iter()
            .filter_map(|step| step.path().cloned())
            .chain(program.launched().filter_map(|(_, step)| step.path.clone()))
            .collect();
        paths.sort();
        paths.dedup();
        let mut lowering = Self {
            window,
            program,
            mesh,
            read_somewhere: unneeded::read_somewhere(program, &alias),
            alias,
            paths: paths.into(),
            first_record,
            first_launch: program
                .launched()
                .map(|(group, _)| group + 1)
                .max()
                .unwrap_or(0),
            fuzz: options.fuzz,
            bool_store: options.bool_store,
            storage: options.storage,
            topology: &options.topology,
            first_rank,
            expected: Vec::new(),
        };
        lowering.expected = lowering.expected()?;
        Ok(lowering)
    }

    fn path_index(&self, path: &Option<Arc<str>>) -> u32 {
        path.as_ref()
            .and_then(|path| self.paths.binary_search(path).ok())
            .map_or(NO_PATH, |index| index as u32)
    }

    /// Returns the tasks of one rank, before lifetimes are known; `action` says what operations of a schedule a step
    /// belongs to.
    ///
    /// # Errors
    /// [`PlanError::Shifts`] if an operation does not shift on this rank what it does on the first one.
    pub(crate) fn rank(
        &self,
        rank: Rank,
        visits: &Visits,
        action: impl Fn(&ProgramStep<O>) -> Option<Action>,
    ) -> Result<Lowered<O>, PlanError> {
        let mut actions = FxHashMap::default();
        let mut tasks = Vec::with_capacity(self.program.steps.len());
        let mut num_slots = self.program.slots.len() as Slot;
        let mut ops = Vec::new();
        let mut indexed = FxHashMap::default();
        let mut record = self.first_record;
        let mut launch = self.first_launch;
        let mut shifting = 0;
        let mut visit = 0;
        let mut visit_of = Vec::with_capacity(self.program.steps.len());
        for common in &self.program.steps {
            visit_of.resize(tasks.len(), visit);
            if let (ProgramStep::Local(_) | ProgramStep::Chunked(_), Some(at)) =
                (common, common.at())
            {
                // What is made again, or ahead of its use, belongs to where it stands.
                visit = visits.of(at).max(visit);
            }
            match common {
                ProgramStep::Load { value, slot } => tasks.push(Task::Load {
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
                ProgramStep::Upload { value, slot } => {
                    tasks.push(Task::Upload(Box::new(self.upload(rank, *value, *slot))));
                }
                ProgramStep::Random { op, stream, slot } => {
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
                ProgramStep::Local(_) | ProgramStep::Chunked(_) => {
                    let mut emitted = self.emitted(rank, common, num_slots);
                    if common.may_shift() {
                        self.is_expected(shifting, rank, (common, &emitted))?;
                        shifting += 1;
                    }
                    if let Some(action) = action(common) {
                        let made = emitted.ops().flat_map(Op::outputs);
                        actions.extend(made.map(|out| (out.id as Slot, action)));
                    }
                    if let ProgramStep::Local(step) = common {
                        self.note_indices(rank, step, &emitted, &mut indexed);
                    }
                    let path = self.path_index(&common.path().cloned());
                    let first = launch;
                    launch += emitted.launches().count() as u32;
                    let (next, steps) = emitted.take();
                    num_slots = next;
                    for step in steps {
                        tasks.push(match step {
                            Emitted::Op(op) => Task::Op(op, path),
                            Emitted::Launch { number, shifts } => {
                                let started = shifts.iter().zip(record..).map(|(shift, record)| {
                                    shift.task(self.mesh, rank, record, path)
                                });
                                record += shifts.len() as u32;
                                Task::Launch {
                                    group: first + number,
                                    tasks: started.collect(),
                                }
                            }
                            Emitted::Finish { number, to } => Task::Finish {
                                group: first + number,
                                to,
                            },
                        });
                    }
                }
                ProgramStep::Move(step) if collective(&step.step.kind).is_some() => {
                    let task = self.collective(rank, step, record);
                    tasks.push(Task::Collective(Box::new(task)));
                    record += 1;
                }
                ProgramStep::Move(step) => {
                    ops.clear();
                    self.local_move(rank, step, &mut num_slots, &mut ops);
                    let path = self.path_index(&step.path);
                    tasks.extend(ops.drain(..).map(|op| Task::Op(op, path)));
                }
                ProgramStep::Launch { group, moves } => {
                    let started = moves.iter().zip(record..);
                    let started = started.map(|(step, record)| self.collective(rank, step, record));
                    tasks.push(Task::Launch {
                        group: *group,
                        tasks: started.collect(),
                    });
                    record += moves.len() as u32;
                }
                ProgramStep::Finish { group, to } => tasks.push(Task::Finish {
                    group: *group,
                    to: to.clone(),
                }),
                ProgramStep::Store { slot, value } => tasks.push(Task::Store {
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
                ProgramStep::Send(transfer) | ProgramStep::Receive(transfer) => {
                    let sends = matches!(common, ProgramStep::Send(_));
                    let other = if sends { transfer.to } else { transfer.from };
                    let task = Box::new(self.transfer(rank, transfer, other, record));
                    tasks.push(match sends {
                        true => Task::Send(task),
                        false => Task::Receive(task),
                    });
                    record += 1;
                }
                ProgramStep::Read { slot, read } => {
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
            draws: Vec::new(),
            num_slots,
            paths: self.paths.clone(),
            classes: Arc::default(),
            storage: self.storage,
            indexed: indexed.into(),
            actions: Arc::default(),
            room: 0,
        };
        Ok(Lowered {
            plan,
            visits: visit_of,
            actions,
        })
    }

    fn transfer(&self, rank: Rank, transfer: &Transfer, coord: u32, record: u32) -> TransferTask {
        let info = &self.program.slots[transfer.slot as usize];
        TransferTask {
            peer: self.mesh.with_coord(rank, transfer.axis, coord as usize),
            slot: self.alias[transfer.slot as usize],
            shape: info.layout.local_shape(self.mesh, rank),
            dtype: info.dtype,
            record,
            path: self.path_index(&transfer.path),
            take: false,
        }
    }

    fn bytes(&self, rank: Rank, slot: Slot) -> u64 {
        let info = &self.program.slots[slot as usize];
        let local = info.layout.local_shape(self.mesh, rank);
        (local.iter().product::<usize>() * info.dtype.size()) as u64
    }

    fn view<'v>(&'v self, rank: Rank, step: &'v LocalStep<O>) -> LocalView<'v> {
        LocalView {
            rule: &step.rule,
            assignment: step.assignment.as_deref(),
            inputs: &step.inputs,
            outputs: &step.outputs,
            mesh: self.mesh,
            rank,
            bool_store: self.bool_store,
        }
    }

    /// Returns what is computed by a step on one rank; its intermediate tensors have slots from `num_slots` on.
    fn emitted(&self, rank: Rank, step: &ProgramStep<O>, num_slots: Slot) -> Steps<O> {
        let mut steps = Steps::new(num_slots);
        match step {
            ProgramStep::Local(step) => {
                let mut op = step.op.clone();
                crate::ir::redirect(&mut op, &self.alias);
                op.lower(&self.view(rank, step), &mut steps);
                steps
            }
            ProgramStep::Chunked(step) => {
                let view = RankView {
                    mesh: self.mesh,
                    rank,
                    slots: &self.program.slots,
                    alias: &self.alias,
                    bool_store: self.bool_store,
                };
                step.emitted(&view, num_slots)
            }
            _ => steps,
        }
    }

    /// Notes what an operation at indices does globally.
    fn note_indices(
        &self,
        rank: Rank,
        step: &LocalStep<O>,
        emitted: &Steps<O>,
        indexed: &mut FxHashMap<Slot, Indexed>,
    ) {
        if let Some(global) = step.op.indexed(&self.view(rank, step)) {
            let at_indices = emitted.ops().filter(|op| op.traits().indexing.is_some());
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

    /// Returns the ranks of a collective that one rank takes part in, in order: of all stages, if it is composed.
    fn group(&self, rank: Rank, moved: &Move) -> Vec<Rank> {
        let axes = ordered(&moved.step.kind, self.mesh).map_or_else(Vec::new, |(_, axes)| axes);
        self.mesh.group_of(rank, &axes)
    }

    fn collective(&self, rank: Rank, moved: &Move, record: u32) -> CollectiveTask {
        let task = self.whole_collective(rank, moved, record);
        match moved.on_nodes {
            OnNodes::Stage { split, index } => stage(task, split, usize::from(index)),
            OnNodes::OneLevel | OnNodes::Flat(_) => task,
        }
    }

    fn whole_collective(&self, rank: Rank, moved: &Move, record: u32) -> CollectiveTask {
        let mesh = self.mesh;
        let (from, to) = (self.alias[moved.from as usize], moved.to);
        let dtype = self.program.slots[to as usize].dtype;
        let step = &moved.step;
        let collective = described(step, mesh, rank, dtype);
        let ordered = ordered(&step.kind, mesh);
        let (collective, (_, axes)) = collective
            .zip(ordered)
            .expect("local steps are lowered to operations");
        CollectiveTask {
            collective,
            group: mesh.group_of(rank, &axes).into(),
            index: mesh.group_index(rank, &axes),
            axes: axes
                .iter()
                .map(|&axis| mesh.size(axis))
                .filter(|size| *size > 1)
                .collect(),
            dtype,
            from,
            to,
            from_shape: step.from.local_shape(mesh, rank),
            to_shape: step.to.local_shape(mesh, rank),
            record,
            path: self.path_index(&moved.path),
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
