//! One rank: runs the tasks of its plans, in order, on the inner backend.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use burn_backend::{Scalar, TensorData};
use burn_ir::{BackendIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;

use super::Fault;
use super::bridge;
use super::execute::{Env, execute, from_data, into_data};
use super::host;
use super::random;
use super::runtime::{FaultCell, RankStats, RunArgs};
use super::seat::Seat;
use super::times::Clock;
use super::trace::Place;
use crate::comm::{CommError, Communicator};
use crate::mesh::Rank;
use crate::plan::task::{CollectiveTask, RankPlan, Slot, Task};
use crate::record::visit::{OpReader, visit_ref};

/// One plan to run.
pub(super) struct Run {
    pub plan: Arc<RankPlan>,
    /// Ranks that answer each read.
    pub reads: Vec<Vec<Rank>>,
    /// Planned peak of the window.
    pub peak_bytes: u64,
    pub args: RunArgs,
    pub parts: Sender<(Rank, Result<TensorData, Fault>)>,
}

/// What a worker is asked to do.
pub(super) enum Job<B: BackendIr> {
    Run(Box<Run>),
    Sync(Sender<Result<(), Fault>>),
    Local(TensorId, Sender<Result<B::Handle, Fault>>),
    Put(TensorId, B::Handle, u64),
    Stats(Sender<RankStats>),
}

/// A tensor that lives between windows.
struct Kept<H> {
    handle: H,
    bytes: u64,
}

pub(super) struct Worker<B: BackendIr> {
    rank: Rank,
    device: B::Device,
    seat: Seat,
    comm: Box<dyn Communicator>,
    fault: FaultCell,
    in_flight: Arc<AtomicU64>,
    kept: FxHashMap<TensorId, Kept<B::Handle>>,
    kept_bytes: u64,
    peak_bytes: u64,
    slots: Vec<Option<B::Handle>>,
    groups: bridge::Groups,
    busy: Duration,
    clock: Clock,
}

/// The slots of a rank, as the executor sees them.
struct SlotEnv<'a, B: BackendIr> {
    slots: &'a mut [Option<B::Handle>],
    scalars: &'a [Scalar],
    device: &'a B::Device,
}

impl<B: BackendIr> Env<B> for SlotEnv<'_, B> {
    #[inline]
    fn take(&mut self, tensor: &TensorIr) -> B::Handle {
        let slot = &mut self.slots[tensor.id.value() as usize];
        let handle = match tensor.status {
            TensorStatus::ReadWrite => slot.take(),
            _ => slot.clone(),
        };
        handle.expect("plans write a slot before they read it")
    }

    #[inline]
    fn put(&mut self, tensor: &TensorIr, handle: B::Handle) {
        self.slots[tensor.id.value() as usize] = Some(handle);
    }

    #[inline]
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        match scalar {
            // The planner keeps `UInt` for scalar slots.
            ScalarIr::UInt(slot) => self.scalars[*slot as usize],
            literal => (*literal).into(),
        }
    }

    #[inline]
    fn device(&self) -> &B::Device {
        self.device
    }
}

impl<B: BackendIr> Worker<B> {
    pub fn new(
        rank: Rank,
        device: B::Device,
        seat: Seat,
        comm: Box<dyn Communicator>,
        fault: FaultCell,
        in_flight: Arc<AtomicU64>,
        clock: Clock,
    ) -> Self {
        Self {
            rank,
            device,
            seat,
            comm,
            fault,
            in_flight,
            kept: FxHashMap::default(),
            kept_bytes: 0,
            peak_bytes: 0,
            slots: Vec::new(),
            groups: bridge::Groups::default(),
            busy: Duration::ZERO,
            clock,
        }
    }

    /// Works until the queue is closed, in a thread pool of `threads` threads of its own (this one included), so that the kernels of one rank never wait in
    /// line behind another rank's.
    pub fn serve(mut self, queue: Receiver<Job<B>>, threads: usize) {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .use_current_thread()
            .build();
        match pool {
            Ok(_pool) => self.work(&queue),
            Err(error) => {
                tracing::warn!(rank = self.rank.0, %error, "no thread pool of its own: ranks share one");
                self.work(&queue);
            }
        }
    }

    fn work(&mut self, queue: &Receiver<Job<B>>) {
        let seat = self.seat.clone();
        while let Ok(job) = queue.recv() {
            seat.work(|| self.job(job));
        }
        // Tensors are given back as they were made: in turn.
        seat.work(|| {
            self.slots.clear();
            self.kept.clear();
        });
    }

    fn job(&mut self, job: Job<B>) {
        match job {
            Job::Run(run) => {
                let start = Instant::now();
                self.run(&run);
                self.busy += start.elapsed();
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
            }
            Job::Sync(answer) => {
                let result = match self.fault.get() {
                    Some(fault) => Err(fault),
                    None => self.sync(),
                };
                let _ = answer.send(result);
            }
            Job::Local(id, answer) => {
                // The handle leaves this rank's stream.
                let synced = match self.seat.is_queued() {
                    true => self.sync(),
                    false => Ok(()),
                };
                let result = match (self.fault.get(), self.kept.get(&id)) {
                    (Some(fault), _) => Err(fault),
                    (None, Some(kept)) => synced.map(|()| kept.handle.clone()),
                    (None, None) => Err(Fault::unknown_tensor(id)),
                };
                let _ = answer.send(result);
            }
            Job::Put(id, handle, bytes) => self.keep(id, handle, bytes),
            Job::Stats(answer) => {
                let _ = answer.send(RankStats {
                    rank: self.rank.0,
                    resident_bytes: self.kept_bytes,
                    peak_bytes: self.peak_bytes,
                    at_rest_bytes: self.kept_bytes,
                    received: bridge::received(self.comm.as_ref()),
                    busy: self.busy,
                    times: self.clock.times(self.busy),
                });
            }
        }
    }

    fn sync(&self) -> Result<(), Fault> {
        B::sync(&self.device).map_err(|error| Fault::Op {
            rank: self.rank,
            op: "sync".into(),
            path: None,
            message: error.to_string(),
        })
    }

    fn run(&mut self, run: &Run) {
        if self.fault.get().is_none() {
            self.slots.clear();
            self.slots.resize(run.plan.num_slots as usize, None);
            if let Some(tracer) = &mut self.clock.tracer {
                tracer.begin_window();
            }
            let mut at = 0;
            let outcome = catch_unwind(AssertUnwindSafe(|| self.tasks(run, &mut at)));
            let fault = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(fault)) => Some(fault),
                Err(panic) => Some(self.describe(run, at, panic_message(panic.as_ref()))),
            };
            if let Some(tracer) = &mut self.clock.tracer {
                tracer.end_window(&run.plan);
            }
            match fault {
                None => return,
                Some(fault) => {
                    let fault = self.fault.set(fault);
                    self.comm.abort(stop(self.rank, &fault));
                }
            }
        }
        // After a fault, reads are answered with it and everything is given back.
        self.slots.clear();
        self.kept.clear();
        self.kept_bytes = 0;
        let fault = self
            .fault
            .get()
            .unwrap_or(Fault::bug("a fault without a name"));
        for senders in &run.reads {
            if senders.contains(&self.rank) {
                let _ = run.parts.send((self.rank, Err(fault.clone())));
            }
        }
    }

    fn tasks(&mut self, run: &Run, at: &mut usize) -> Result<(), Fault> {
        let args = &run.args;
        for id in args.forget.iter() {
            self.remove(*id);
        }
        // Tensors that this window does not use stay where they are; the plan counts the others.
        let mut loaded_bytes = 0;
        // Collectives under way, with the number of their launch.
        let mut launched: Vec<(u32, Place, &CollectiveTask, bridge::Started)> = Vec::new();
        for (index, task) in run.plan.tasks.iter().enumerate() {
            *at = index;
            let place = Place {
                task: index as u32,
                part: 0,
            };
            match task {
                Task::Op(op, _) => {
                    let mut env = SlotEnv::<B> {
                        slots: &mut self.slots,
                        scalars: &args.scalars,
                        device: &self.device,
                    };
                    execute::<B, _>(op, &mut env)
                        .map_err(|error| self.describe(run, index, error.to_string()))?;
                }
                Task::Load {
                    value,
                    slot,
                    take,
                    bytes,
                } => {
                    let id = args.ids[*value as usize];
                    let handle = match take {
                        true => self.remove(id),
                        false => self.kept.get(&id).map(|kept| kept.handle.clone()),
                    };
                    loaded_bytes += if *take { 0 } else { *bytes };
                    self.slots[*slot as usize] =
                        Some(handle.ok_or_else(|| Fault::unknown_tensor(id))?);
                }
                Task::Upload(task) => {
                    let data = args
                        .host
                        .iter()
                        .find(|host| host.value == task.value)
                        .ok_or(Fault::bug("a host tensor was not handed over"))?;
                    let handle = from_data::<B>(host::part(&data.data, task), &self.device);
                    self.slots[task.slot as usize] = Some(handle);
                }
                Task::Random(task) => {
                    let data = random::fill_runs(
                        args.seed,
                        args.streams + task.stream,
                        task.distribution,
                        task.dtype,
                        task.shape.clone(),
                        task.runs.iter().cloned(),
                    )
                    .map_err(|error| self.describe(run, index, error.to_string()))?;
                    self.slots[task.slot as usize] = Some(from_data::<B>(data, &self.device));
                }
                Task::Collective(task) => {
                    let started = self.start(run, place, task)?;
                    self.finish(run, place, task, started)?;
                }
                Task::Launch { group, tasks } => {
                    for (part, task) in tasks.iter().enumerate() {
                        let place = Place {
                            part: part as u32,
                            ..place
                        };
                        let started = self.start(run, place, task)?;
                        match self.seat.is_queued() {
                            // On a shared device nothing is gained by waiting later: results are promises anyway.
                            true => self.finish(run, place, task, started)?,
                            false => launched.push((*group, place, task, started)),
                        }
                    }
                }
                Task::Finish { group, to } => {
                    while let Some(index) = launched
                        .iter()
                        .position(|(g, _, task, _)| g == group && to.contains(&task.to))
                    {
                        let (_, place, task, started) = launched.remove(index);
                        self.finish(run, place, task, started)?;
                    }
                }
                Task::Store {
                    slot,
                    value,
                    take,
                    bytes,
                    shape,
                    dtype,
                } => {
                    let handle = bridge::compact::<B>(self.handle(*slot, *take)?, shape, *dtype);
                    self.keep(args.ids[*value as usize], handle, *bytes);
                }
                Task::Read {
                    slot,
                    read,
                    shape,
                    dtype,
                    take,
                } => {
                    let handle = self.handle(*slot, *take)?;
                    if run.reads[*read as usize].contains(&self.rank) {
                        let data = burn_std::future::block_on(into_data::<B>(
                            handle,
                            shape.clone().into(),
                            *dtype,
                        ))
                        .map_err(|error| Fault::Op {
                            rank: self.rank,
                            op: "read".into(),
                            path: None,
                            message: error.to_string(),
                        });
                        let _ = run.parts.send((self.rank, data));
                    }
                }
                Task::Free(slot) => self.slots[*slot as usize] = None,
                Task::Forget(value) => {
                    self.remove(args.ids[*value as usize]);
                }
            }
            if let Some(tracer) = &mut self.clock.tracer {
                tracer.end_task(index, is_shown(task));
            }
        }
        self.peak_bytes = self
            .peak_bytes
            .max((self.kept_bytes + run.peak_bytes).saturating_sub(loaded_bytes));
        Ok(())
    }

    fn start(
        &mut self,
        run: &Run,
        place: Place,
        task: &CollectiveTask,
    ) -> Result<bridge::Started, Fault> {
        let began = Instant::now();
        let input = self.handle(task.from, task.take)?;
        let path = run.plan.paths.get(task.path as usize);
        let started = bridge::start::<B>(
            task,
            input,
            self.comm.as_ref(),
            &mut self.groups,
            &self.seat,
            path,
        )
        .map_err(|error| error.into_fault(self.rank, task, path))?;
        self.clock.launched(place, began);
        Ok(started)
    }

    fn finish(
        &mut self,
        run: &Run,
        place: Place,
        task: &CollectiveTask,
        started: bridge::Started,
    ) -> Result<(), Fault> {
        let (began, info) = (Instant::now(), started.info());
        let output = started
            .wait::<B>(task, &self.seat, &self.device)
            .map_err(|error| {
                let path = run.plan.paths.get(task.path as usize);
                error.into_fault(self.rank, task, path)
            })?;
        self.slots[task.to as usize] = Some(output);
        self.clock.finished(place, began, task, &info);
        Ok(())
    }

    fn handle(&mut self, slot: Slot, take: bool) -> Result<B::Handle, Fault> {
        let entry = &mut self.slots[slot as usize];
        let handle = match take {
            true => entry.take(),
            false => entry.clone(),
        };
        handle.ok_or(Fault::bug("a slot was read before it was written"))
    }

    fn keep(&mut self, id: TensorId, handle: B::Handle, bytes: u64) {
        self.kept_bytes += bytes;
        if let Some(old) = self.kept.insert(id, Kept { handle, bytes }) {
            self.kept_bytes -= old.bytes;
        }
    }

    fn remove(&mut self, id: TensorId) -> Option<B::Handle> {
        let kept = self.kept.remove(&id)?;
        self.kept_bytes -= kept.bytes;
        Some(kept.handle)
    }

    /// Names the task that failed: operation, local shapes, module.
    fn describe(&self, run: &Run, at: usize, message: String) -> Fault {
        let (op, path) = match run.plan.tasks.get(at) {
            Some(Task::Op(op, path)) => {
                let mut shapes = Shapes::default();
                visit_ref(op, &mut shapes);
                (
                    format!("{}({})", crate::plan::op_name(op), shapes.0.join(", ")),
                    run.plan.paths.get(*path as usize).cloned(),
                )
            }
            Some(Task::Random(_)) => ("random".to_string(), None),
            Some(Task::Upload(_)) => ("upload".to_string(), None),
            Some(Task::Collective(task)) => (task.kind.name().to_string(), None),
            Some(Task::Launch { .. } | Task::Finish { .. }) => ("collectives".to_string(), None),
            _ => ("a task".to_string(), None),
        };
        Fault::Op {
            rank: self.rank,
            op,
            path,
            message,
        }
    }
}

#[derive(Default)]
struct Shapes(Vec<String>);

impl OpReader for Shapes {
    fn input(&mut self, t: &TensorIr) {
        self.0
            .push(format!("{} {:?}", t.dtype.name(), t.shape.to_vec()));
    }

    fn output(&mut self, _: &TensorIr) {}
}

/// Whether a trace shows the task itself: collectives show their parts, and what takes no time is left out.
fn is_shown(task: &Task) -> bool {
    !matches!(
        task,
        Task::Collective(_)
            | Task::Launch { .. }
            | Task::Finish { .. }
            | Task::Load { .. }
            | Task::Free(_)
            | Task::Forget(_)
    )
}

/// What the other ranks are told.
pub(super) fn stop(rank: Rank, fault: &Fault) -> CommError {
    let (what, label) = match fault {
        Fault::Op { op, path, .. } => (op.clone(), path.clone()),
        Fault::Collective { source, .. } => return source.as_ref().clone(),
        _ => ("a window".to_string(), None),
    };
    CommError::Aborted {
        rank,
        what,
        label: label.unwrap_or_else(|| "".into()),
        reason: fault.to_string(),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
        .unwrap_or_else(|| "panicked".to_string())
}
