//! One rank: runs the tasks of its plans, in order, on the inner backend.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use burn_backend::{Shape, TensorData};
use burn_ir::BackendIr;

use super::bridge::{self, Started, Transfer};
use super::describe::{failed, failed_region, panic_message};
use super::fault_cell::FaultCell;
use super::job::Run;
use super::observer::TaskPart;
use super::random::Drawing;
use super::region::Regions;
use super::tensors::{SlotEnv, Tensors};
use super::turn::Turn;
use super::{Fault, host, moved, product};
use crate::comm::{CommError, Communicator, LocalHub};
use crate::mesh::{DType, Rank};
use crate::ops::Recorded;
use crate::ops::dtype::to_burn;
use crate::ops::execute::{execute_recorded, into_data};
use crate::ops::index::indexing;
use crate::plan::task::{CollectiveTask, RandomTask, RegionTask, Slot, Task, TransferTask};

/// Parts that the workers of a process share.
#[derive(Clone)]
pub(super) struct Shared {
    pub fault: FaultCell,
    pub hub: Arc<LocalHub>,
}

impl Shared {
    /// Stops all ranks because a collective of `rank` that belongs to no plan has failed.
    pub(super) fn stop(&self, rank: Rank, error: CommError) {
        let fault = Fault::Collective {
            rank,
            path: None,
            source: Arc::new(error),
        };
        self.fault.set(rank, fault);
    }
}

pub(super) struct Worker<B: BackendIr> {
    pub rank: Rank,
    pub turn: Turn,
    pub comm: Arc<dyn Communicator>,
    groups: bridge::Groups,
    pub fault: FaultCell,
    hub: Arc<LocalHub>,
    pub tensors: Tensors<B>,
    regions: Regions,
    /// By the plans.
    pub peak_bytes: u64,
    /// Bytes by which the most that the rank has held so far is above what it holds in the window that runs, all of it
    /// by the plans: as much may be kept for its next results.
    below_peak: u64,
    /// The task that runs.
    at: usize,
    /// Indices of the operation that runs, if it has any.
    indices: Option<B::Handle>,
}

/// A collective that runs, with the number of its launch.
struct Launched<'a> {
    group: u32,
    part: TaskPart,
    task: &'a CollectiveTask,
    started: Started,
}

impl<B: BackendIr> Worker<B> {
    pub(super) fn new(
        rank: Rank,
        turn: Turn,
        comm: Arc<dyn Communicator>,
        shared: Shared,
        tensors: Tensors<B>,
    ) -> Self {
        Self {
            rank,
            turn,
            comm,
            groups: bridge::Groups::default(),
            fault: shared.fault,
            hub: shared.hub,
            tensors,
            regions: Regions::default(),
            peak_bytes: 0,
            below_peak: 0,
            at: 0,
            indices: None,
        }
    }

    /// Runs a plan. After a fault, reads are answered with it and everything is released.
    pub(super) fn run(&mut self, run: &Run) {
        let number = run.args.number;
        let span = tracing::debug_span!(target: "burn_dist", "window", rank = self.rank.0, window = number);
        let _window = span.enter();
        self.hub.begin_window(self.rank, number);
        if self.fault.get().is_none() {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                self.begin(run);
                self.tasks(run)
            }));
            let fault = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(fault)) => Some(fault),
                Err(panic) => Some(self.failed(run, panic_message(panic.as_ref()))),
            };
            let observers = &mut self.tensors.observers;
            observers.window_ends(&run.plan, fault.is_none());
            match fault {
                None => return,
                Some(fault) => self.fault.set(self.rank, fault),
            };
        }
        self.indices = None;
        self.comm.end_on_device();
        self.tensors.clear();
        self.tensors.observers.stopped();
        let fault = self
            .fault
            .get()
            .unwrap_or(Fault::bug("a fault without a name"));
        for read in run.reads.iter() {
            if read.senders.contains(&self.rank) {
                let _ = read.parts.send((self.rank, Err(fault.clone())));
            }
        }
    }

    fn begin(&mut self, run: &Run) {
        self.at = 0;
        self.tensors.begin(run.plan.num_slots as usize);
        for id in run.args.forget.iter() {
            self.tensors.remove(*id);
        }
        // Tensors that this window does not use stay where they are; the plan counts the others.
        let others = self.tensors.bytes_beside(&run.plan, &run.args);
        let held = others + run.peak_bytes;
        self.peak_bytes = self.peak_bytes.max(held);
        self.below_peak = self.peak_bytes - held;
        self.regions.keep_at_most(self.below_peak + run.plan.room);
        self.tensors.observers.window_begins(&run.plan);
    }

    fn tasks(&mut self, run: &Run) -> Result<(), Fault> {
        let args = &run.args;
        let mut launched: Vec<Launched<'_>> = Vec::new();
        for (index, task) in run.plan.tasks.iter().enumerate() {
            self.at = index;
            let first = TaskPart {
                task: index as u32,
                part: 0,
            };
            match task {
                Task::Op(op, _) => self.op(run, op)?,
                Task::Region(task) => self.region(run, task)?,
                Task::Load {
                    value,
                    slot,
                    take,
                    host,
                    shape,
                    dtype,
                    ..
                } => {
                    self.tensors.load(args.ids[*value as usize], *slot, *take)?;
                    if !host {
                        self.tensors.bring_back(*slot, shape, *dtype);
                    }
                }
                Task::Upload(task) => {
                    let data = args
                        .host(task.value)
                        .ok_or(Fault::bug("a host tensor was not handed over"))?;
                    let part = host::part(&data.data, data.rows.as_ref(), task);
                    self.tensors
                        .put_data(task.slot, part, &task.shape, task.dtype);
                }
                Task::Random(task) => {
                    let data = drawing(run, task).fill();
                    let data = data.map_err(|error| self.failed(run, error.to_string()))?;
                    self.tensors
                        .put_data(task.slot, data, &task.shape, task.dtype);
                }
                Task::Collective(task) => {
                    let started = self.start(run, first, task)?;
                    self.tensors.observers.holds_most();
                    self.finish(run, first, task, started)?;
                }
                Task::Launch { group, tasks } => {
                    for (part, task) in (0..).zip(tasks) {
                        let part = TaskPart { part, ..first };
                        let started = self.start(run, part, task)?;
                        // On a shared device nothing is gained by waiting later: results are promises anyway.
                        if self.turn.is_queued() && !started.overlaps() {
                            self.finish(run, part, task, started)?;
                            continue;
                        }
                        launched.push(Launched {
                            group: *group,
                            part,
                            task,
                            started,
                        });
                    }
                }
                Task::Finish { group, to } => {
                    self.tensors.observers.holds_most();
                    let is_meant = |launched: &Launched<'_>| {
                        launched.group == *group && to.contains(&launched.task.to)
                    };
                    while let Some(index) = launched.iter().position(is_meant) {
                        let of = launched.remove(index);
                        self.finish(run, of.part, of.task, of.started)?;
                    }
                }
                Task::Store {
                    slot,
                    value,
                    take,
                    bytes,
                    shape,
                    dtype,
                    host,
                } => {
                    let id = args.ids[*value as usize];
                    if *host {
                        let data = self.read_back(*slot, *take, shape, *dtype)?;
                        self.tensors.keep_on_host(id, data);
                    } else {
                        let handle = self.tensors.take(*slot, *take)?;
                        let handle = bridge::compact::<B>(handle, shape, to_burn(*dtype));
                        let class = run.plan.classes[*slot as usize];
                        self.tensors.keep(id, handle, *bytes, class, Some(*slot));
                    }
                }
                Task::ToHost(task) => {
                    let data = self.read_back(task.slot, true, &task.shape, task.dtype)?;
                    self.tensors.put_on_host(task.slot, data);
                }
                Task::FromHost(task) => {
                    self.tensors.bring_back(task.slot, &task.shape, task.dtype);
                }
                Task::Read {
                    slot,
                    read,
                    shape,
                    dtype,
                    take,
                } => {
                    let handle = self.tensors.take(*slot, *take)?;
                    let read = &run.reads[*read as usize];
                    if read.senders.contains(&self.rank) {
                        let data = self.data(handle, shape, *dtype, "read");
                        let _ = read.parts.send((self.rank, data));
                    }
                }
                Task::Send(task) => self.send(run, task)?,
                Task::Receive(task) => self.receive(run, first, task)?,
                Task::Free(slot) => self.tensors.free(*slot),
            }
            let observers = &mut self.tensors.observers;
            observers.task_ends(index, task);
            if let Some(account) = &mut observers.account {
                account.keeps(self.regions.kept_bytes());
            }
        }
        Ok(())
    }

    fn op(&mut self, run: &Run, op: &Recorded) -> Result<(), Fault> {
        self.tensors.observers.op_begins(op);
        // A kernel that panics has taken its inputs: the indices are kept for the message.
        let indexing = op.burn().and_then(indexing);
        self.indices = indexing.and_then(|at| self.tensors.peek(at.indices.id.value() as Slot));
        let mut env = SlotEnv {
            tensors: &mut self.tensors,
            scalars: &run.args.scalars,
        };
        let pool = self.regions.pool();
        if !(moved::run::<B>(op, &mut env, pool) || product::run::<B>(op, &mut env, pool)) {
            execute_recorded::<B, _>(op, &mut env)
                .map_err(|error| self.failed(run, error.to_string()))?;
        }
        self.indices = None;
        Ok(())
    }

    fn region(&mut self, run: &Run, task: &RegionTask) -> Result<(), Fault> {
        self.regions.keep_at_most(self.below_peak + task.room);
        let inputs = task.inputs.iter();
        let operands = inputs.map(|input| self.tensors.take(input.slot, input.take));
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let draws = task.draws.iter().map(|draw| {
            let pieces = drawing(run, &run.plan.draws[*draw as usize]).pieces();
            pieces.map_err(|error| self.failed(run, error.to_string()))
        });
        let draws = draws.collect::<Result<Vec<_>, _>>()?;
        let (scalars, device) = (&run.args.scalars, &self.tensors.device);
        let made = (self.regions).run::<B>(task, operands, scalars, &draws, device);
        let made = made.map_err(|error| failed_region(self.rank, &run.plan, task, &error))?;
        for (out, handle) in task.outputs.iter().zip(made) {
            self.tensors.put(out.id, &out.shape, out.dtype, handle);
        }
        Ok(())
    }

    fn start(
        &mut self,
        run: &Run,
        part: TaskPart,
        task: &CollectiveTask,
    ) -> Result<Started, Fault> {
        let began = Instant::now();
        let input = self.tensors.take(task.from, task.take)?;
        self.tensors.observers.collective_starts::<B>(task, &input);
        let path = run.plan.paths.get(task.path as usize);
        let started =
            bridge::start::<B>(task, input, self.comm.as_ref(), &mut self.groups, path)
                .map_err(|error| bridge::into_fault(error, self.rank, task.kind().name(), path))?;
        tracing::trace!(target: "burn_dist", rank = self.rank.0, call = %started.info(), "launched");
        let observers = &mut self.tensors.observers;
        observers.collective_started(part, began, Instant::now());
        Ok(started)
    }

    fn finish(
        &mut self,
        run: &Run,
        part: TaskPart,
        task: &CollectiveTask,
        started: Started,
    ) -> Result<(), Fault> {
        let (began, info) = (Instant::now(), started.info());
        let span = tracing::debug_span!(
            target: "burn_dist",
            "collective",
            rank = self.rank.0,
            kind = info.kind().name(),
            group = %info.group(),
            lane = info.lane().0,
            sequence = info.sequence(),
            bytes = info.received_bytes(),
            module = info.label(),
        );
        let _collective = span.enter();
        let output = started.wait::<B>(task, &self.turn, &self.tensors.device);
        let output = output.map_err(|error| {
            let path = run.plan.paths.get(task.path as usize);
            bridge::into_fault(error, self.rank, task.kind().name(), path)
        })?;
        self.tensors
            .put_received(part, task, output, &info, (began, Instant::now()));
        Ok(())
    }

    fn send(&mut self, run: &Run, task: &TransferTask) -> Result<(), Fault> {
        self.tensors.observers.sends(task);
        let input = self.tensors.take(task.slot, task.take)?;
        let label = run.plan.paths.get(task.path as usize);
        let transfer = Transfer {
            task,
            pair: [self.rank, task.peer],
            label,
        };
        transfer
            .send::<B>(input, self.comm.as_ref(), &mut self.groups)
            .map_err(|error| bridge::into_fault(error, self.rank, "send", label))
    }

    fn receive(&mut self, run: &Run, part: TaskPart, task: &TransferTask) -> Result<(), Fault> {
        let began = Instant::now();
        let label = run.plan.paths.get(task.path as usize);
        let transfer = Transfer {
            task,
            pair: [task.peer, self.rank],
            label,
        };
        let (comm, device) = (self.comm.as_ref(), &self.tensors.device);
        let (output, info) = transfer
            .receive::<B>(comm, &mut self.groups, &self.turn, device)
            .map_err(|error| bridge::into_fault(error, self.rank, "recv", label))?;
        let times = (began, Instant::now());
        self.tensors.put_sent(part, task, output, &info, times);
        Ok(())
    }

    /// Reads a slot back, if it is not on the host already.
    fn read_back(
        &mut self,
        slot: Slot,
        take: bool,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Arc<TensorData>, Fault> {
        if let Some(data) = self.tensors.take_from_host(slot, take) {
            return Ok(data);
        }
        let handle = self.tensors.take(slot, take)?;
        self.data(handle, shape, dtype, "offload").map(Arc::new)
    }

    /// Waits for what GPUs still bring, before the host reads: what an abort has let through is a fault here.
    pub(super) fn land(&self) -> Result<(), Fault> {
        let landed = self.comm.land();
        landed.map_err(|error| Fault::Collective {
            rank: self.rank,
            path: None,
            source: Arc::new(error),
        })
    }

    /// Reads a tensor back.
    fn data(
        &self,
        handle: B::Handle,
        shape: &[usize],
        dtype: DType,
        op: &str,
    ) -> Result<TensorData, Fault> {
        self.land()?;
        let data = into_data::<B>(handle, Shape::from(shape.to_vec()), to_burn(dtype));
        burn_std::future::block_on(data).map_err(|error| Fault::Op {
            rank: self.rank,
            op: op.into(),
            path: None,
            message: error.to_string(),
        })
    }

    /// Names the task that failed.
    fn failed(&self, run: &Run, message: String) -> Fault {
        failed::<B>(self.rank, &run.plan, self.at, self.indices.clone(), message)
    }
}

/// Returns how a rank draws its part of a random tensor.
fn drawing<'t>(run: &Run, task: &'t RandomTask) -> Drawing<'t> {
    let distribution = task.op.distribution();
    Drawing {
        seed: run.args.seed,
        stream: run.args.streams + task.stream,
        distribution: distribution.expect("the operation is random"),
        dtype: to_burn(task.dtype),
        shape: &task.shape,
        runs: &task.runs,
    }
}
