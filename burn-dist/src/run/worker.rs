//! One rank: runs the tasks of its plans, in order, on the inner backend.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use burn_backend::{Scalar, TensorData};
use burn_dist_plan::op::Op;
use burn_ir::{BackendIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;

use super::Fault;
use super::account::Account;
use super::bridge;
use super::execute::{Env, execute_recorded, from_data, into_data};
use super::gpus::Gpus;
use super::host;
use super::host_store::HostStore;
use super::queue::InFlight;
use super::random;
use super::runtime::{FaultCell, RankStats, RunArgs};
use super::seat::Seat;
use super::times::Clock;
use super::trace;
use crate::comm::{CommError, Communicator, LocalHub};
use crate::mesh::{DType, Rank};
use crate::ops::Recorded;
use crate::ops::dtype::to_burn;
use crate::ops::lower::indices;
use crate::ops::visit::{OpReader, visit_ref};
use crate::plan::memory::MemoryClass;
use crate::plan::task::{CollectiveTask, RankPlan, Slot, Task};

/// A read: the ranks that send their part of the tensor, and where to.
pub(super) struct Reader {
    pub senders: Vec<Rank>,
    pub parts: Sender<(Rank, Result<TensorData, Fault>)>,
}

/// One plan to run.
pub(super) struct Run {
    pub plan: Arc<RankPlan>,
    pub reads: Arc<[Reader]>,
    /// Planned peak of the window.
    pub peak_bytes: u64,
    pub args: RunArgs,
    /// Until all ranks have dropped it, the window is in flight.
    pub _in_flight: Arc<InFlight>,
}

/// What a worker is asked to do.
pub(super) enum Job<B: BackendIr> {
    Run(Box<Run>),
    Sync(Sender<Result<(), Fault>>),
    Local(TensorId, Sender<Result<B::Handle, Fault>>),
    Put(TensorId, B::Handle, u64),
    Stats(Sender<RankStats>),
}

/// Where a kept tensor is.
enum Place<H> {
    Device(H),
    Host(Arc<TensorData>),
}

/// What the workers of a process share.
#[derive(Clone)]
pub(super) struct Shared {
    pub fault: FaultCell,
    pub hub: Arc<LocalHub>,
}

/// A tensor that lives between windows.
struct Kept<H> {
    place: Place<H>,
    bytes: u64,
    /// Of its buffer in the account.
    key: u64,
}

pub(super) struct Worker<B: BackendIr> {
    rank: Rank,
    device: B::Device,
    seat: Seat,
    comm: Box<dyn Communicator>,
    fault: FaultCell,
    hub: Arc<LocalHub>,
    kept: FxHashMap<TensorId, Kept<B::Handle>>,
    kept_bytes: u64,
    /// By the plans.
    peak_bytes: u64,
    /// Of the buffers that really are there.
    account: Option<Box<Account>>,
    slots: Vec<Option<B::Handle>>,
    /// What is on the host of the slots.
    store: HostStore,
    /// Those of the operation that runs, if it has any.
    indices: Option<B::Handle>,
    routes: bridge::Routes<B>,
    busy: Duration,
    clock: Clock,
}

/// The slots of a rank, as the executor sees them.
struct SlotEnv<'a, B: BackendIr> {
    slots: &'a mut [Option<B::Handle>],
    scalars: &'a [Scalar],
    device: &'a B::Device,
    account: Option<&'a mut Account>,
}

impl<B: BackendIr> Env<B> for SlotEnv<'_, B> {
    #[inline]
    fn take(&mut self, tensor: &TensorIr) -> B::Handle {
        let slot = &mut self.slots[tensor.id.value() as usize];
        let handle = match tensor.status {
            TensorStatus::ReadWrite => {
                if let Some(account) = &mut self.account {
                    account.take(tensor.id.value() as Slot);
                }
                slot.take()
            }
            _ => slot.clone(),
        };
        handle.expect("plans write a slot before they read it")
    }

    #[inline]
    fn put(&mut self, tensor: &TensorIr, handle: B::Handle) {
        if let Some(account) = &mut self.account {
            let bytes = (tensor.shape.num_elements() * tensor.dtype.size()) as u64;
            account.put::<B>(tensor.id.value() as Slot, &handle, bytes);
        }
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
        (comm, gpus): (Box<dyn Communicator>, Option<Gpus<B>>),
        shared: Shared,
        clock: Clock,
        account: bool,
    ) -> Self {
        Self {
            account: account.then(Box::default),
            rank,
            device,
            seat,
            comm,
            fault: shared.fault,
            hub: shared.hub,
            kept: FxHashMap::default(),
            kept_bytes: 0,
            peak_bytes: 0,
            slots: Vec::new(),
            store: HostStore::default(),
            indices: None,
            routes: bridge::Routes::new(gpus),
            busy: Duration::ZERO,
            clock,
        }
    }

    /// Works until the queue is closed, in a thread pool of `threads` threads of its own (this one included), so that
    /// the kernels of one rank never wait in line behind another rank's.
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
            self.routes.close(self.comm.as_ref());
        });
    }

    fn job(&mut self, job: Job<B>) {
        match job {
            Job::Run(run) => {
                let start = Instant::now();
                self.run(&run);
                self.busy += start.elapsed();
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
                    (None, Some(kept)) => synced.map(|()| match &kept.place {
                        Place::Device(handle) => handle.clone(),
                        Place::Host(data) => from_data::<B>(data.as_ref().clone(), &self.device),
                    }),
                    (None, None) => Err(Fault::unknown_tensor(id)),
                };
                let _ = answer.send(result);
            }
            Job::Put(id, handle, bytes) => self.keep(id, handle, bytes, MemoryClass::Other, None),
            Job::Stats(answer) => {
                let _ = answer.send(RankStats {
                    rank: self.rank.0,
                    resident_bytes: self.kept_bytes,
                    predicted_peak_bytes: self.peak_bytes,
                    peak_bytes: match &self.account {
                        Some(account) => account.peak_bytes(),
                        None => self.peak_bytes,
                    },
                    host_bytes: self.store.bytes(),
                    host_peak_bytes: self.store.peak_bytes(),
                    accounted: self.account.as_ref().map(|account| account.memory()),
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
        let number = run.args.number;
        let span = tracing::debug_span!(target: "burn_dist", "window", rank = self.rank.0, window = number);
        let _window = span.enter();
        self.hub.begin_window(self.rank, number);
        if self.fault.get().is_none() {
            self.slots.clear();
            self.slots.resize(run.plan.num_slots as usize, None);
            if let Some(tracer) = &mut self.clock.tracer {
                tracer.begin_window();
            }
            self.store.begin(run.plan.num_slots as usize);
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
                    self.fault.set(self.rank, fault);
                }
            }
        }
        // After a fault, reads are answered with it and everything is given back.
        self.indices = None;
        self.routes.abort();
        self.slots.clear();
        self.kept.clear();
        self.kept_bytes = 0;
        self.store = HostStore::default();
        if let Some(account) = &mut self.account {
            account.clear();
        }
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

    fn tasks(&mut self, run: &Run, at: &mut usize) -> Result<(), Fault> {
        let args = &run.args;
        for id in args.forget.iter() {
            self.remove(*id);
        }
        // Tensors that this window does not use stay where they are; the plan counts the others.
        let loaded_bytes: u64 = run
            .plan
            .tasks
            .iter()
            .map(|task| self.loaded_bytes(task, args))
            .sum();
        let others = self.kept_bytes.saturating_sub(loaded_bytes);
        self.peak_bytes = self.peak_bytes.max(others + run.peak_bytes);
        if let Some(account) = &mut self.account {
            account.begin(&run.plan);
        }
        // Collectives under way, with the number of their launch.
        let mut launched: Vec<(u32, trace::Place, &CollectiveTask, bridge::Started<B>)> =
            Vec::new();
        for (index, task) in run.plan.tasks.iter().enumerate() {
            *at = index;
            let place = trace::Place {
                task: index as u32,
                part: 0,
            };
            match task {
                Task::Op(op, _) => {
                    let mut env = SlotEnv::<B> {
                        slots: &mut self.slots,
                        scalars: &args.scalars,
                        device: &self.device,
                        account: self.account.as_deref_mut(),
                    };
                    if let Some(account) = &mut env.account {
                        account.start_op(op);
                    }
                    // A kernel that panics has taken its inputs: the indices are kept for the message.
                    self.indices = op
                        .burn()
                        .and_then(indices)
                        .and_then(|(indices, _)| env.slots[indices.id.value() as usize].clone());
                    execute_recorded::<B, _>(op, &mut env)
                        .map_err(|error| self.describe(run, index, error.to_string()))?;
                    self.indices = None;
                    if let Some(account) = &mut self.account {
                        account.end_op();
                    }
                }
                Task::Load {
                    value,
                    slot,
                    take,
                    host,
                    shape,
                    dtype,
                    ..
                } => {
                    let id = args.ids[*value as usize];
                    let kept = self
                        .kept
                        .get(&id)
                        .ok_or_else(|| Fault::unknown_tensor(id))?;
                    let handle = match (&kept.place, *take) {
                        (Place::Host(data), take) => {
                            let data = data.clone();
                            self.settle();
                            if take {
                                self.remove(id);
                            }
                            self.store.put(*slot, data, take);
                            if !host {
                                self.bring_back(*slot, shape, *dtype);
                            }
                            continue;
                        }
                        (Place::Device(_), true) => {
                            let key = kept.key;
                            if let Some(account) = &mut self.account {
                                account.load(*slot, key);
                            }
                            match self.remove(id).map(|kept| kept.place) {
                                Some(Place::Device(handle)) => handle,
                                _ => return Err(Fault::unknown_tensor(id)),
                            }
                        }
                        (Place::Device(handle), false) => {
                            if let Some(account) = &mut self.account {
                                account.load(*slot, kept.key);
                            }
                            handle.clone()
                        }
                    };
                    self.slots[*slot as usize] = Some(handle);
                }
                Task::Upload(task) => {
                    let data = args
                        .host(task.value)
                        .ok_or(Fault::bug("a host tensor was not handed over"))?;
                    let part = host::part(&data.data, data.rows.as_ref(), task);
                    let handle = from_data::<B>(part, &self.device);
                    self.fill(task.slot, handle, &task.shape, task.dtype);
                }
                Task::Random(task) => {
                    let distribution = task.op.distribution();
                    let data = random::fill_runs(
                        args.seed,
                        args.streams + task.stream,
                        distribution.expect("the operation is random"),
                        to_burn(task.dtype),
                        task.shape.clone(),
                        task.runs.iter().cloned(),
                    )
                    .map_err(|error| self.describe(run, index, error.to_string()))?;
                    let handle = from_data::<B>(data, &self.device);
                    self.fill(task.slot, handle, &task.shape, task.dtype);
                }
                Task::Collective(task) => {
                    let started = self.start(run, place, task)?;
                    self.launched(std::slice::from_ref(task.as_ref()));
                    self.finish(run, place, task, started)?;
                }
                Task::Launch { group, tasks } => {
                    for (part, task) in tasks.iter().enumerate() {
                        let place = trace::Place {
                            part: part as u32,
                            ..place
                        };
                        let started = self.start(run, place, task)?;
                        match self.seat.is_queued() && !started.overlaps() {
                            // On a shared device nothing is gained by waiting later: results are promises anyway.
                            true => self.finish(run, place, task, started)?,
                            false => launched.push((*group, place, task, started)),
                        }
                    }
                    self.launched(tasks);
                }
                Task::Finish { group, to } => {
                    self.settle();
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
                    host,
                } => {
                    let id = args.ids[*value as usize];
                    if *host {
                        let data = match self.store.take(*slot, *take) {
                            Some(data) => data,
                            None => {
                                let handle = self.handle(*slot, *take)?;
                                self.data(handle, shape, *dtype, "offload")?.into()
                            }
                        };
                        self.gone(*slot, *take);
                        self.keep_on_host(id, data);
                        continue;
                    }
                    let handle =
                        bridge::compact::<B>(self.handle(*slot, *take)?, shape, to_burn(*dtype));
                    let class = run.plan.classes[*slot as usize];
                    self.keep(id, handle, *bytes, class, Some(*slot));
                    self.gone(*slot, *take);
                }
                Task::ToHost(task) => {
                    let handle = self.handle(task.slot, true)?;
                    let data = self.data(handle, &task.shape, task.dtype, "offload")?;
                    self.gone(task.slot, true);
                    self.store.put(task.slot, data.into(), true);
                }
                Task::FromHost(task) => self.bring_back(task.slot, &task.shape, task.dtype),
                Task::Read {
                    slot,
                    read,
                    shape,
                    dtype,
                    take,
                } => {
                    let handle = self.handle(*slot, *take)?;
                    self.gone(*slot, *take);
                    let read = &run.reads[*read as usize];
                    if read.senders.contains(&self.rank) {
                        let data = self.data(handle, shape, *dtype, "read");
                        let _ = read.parts.send((self.rank, data));
                    }
                }
                Task::Free(slot) => {
                    self.slots[*slot as usize] = None;
                    self.store.drop_slot(*slot);
                    self.gone(*slot, true);
                }
                Task::Forget(value) => {
                    self.settle();
                    self.remove(args.ids[*value as usize]);
                }
            }
            if let Some(tracer) = &mut self.clock.tracer {
                tracer.end_task(index, is_shown(task));
            }
        }
        if let Some(account) = &mut self.account {
            account.end(&run.plan);
        }
        Ok(())
    }

    /// Bytes of a kept tensor on the device that a task uses.
    fn loaded_bytes(&self, task: &Task, args: &RunArgs) -> u64 {
        let Task::Load { value, bytes, .. } = task else {
            return 0;
        };
        let kept = self.kept.get(&args.ids[*value as usize]);
        let on_device = kept.is_some_and(|kept| matches!(kept.place, Place::Device(_)));
        if on_device { *bytes } else { 0 }
    }

    /// Reads a tensor back.
    fn data(
        &self,
        handle: B::Handle,
        shape: &[usize],
        dtype: DType,
        op: &str,
    ) -> Result<TensorData, Fault> {
        let shape = burn_backend::Shape::from(shape.to_vec());
        burn_std::future::block_on(into_data::<B>(handle, shape, to_burn(dtype))).map_err(|error| {
            Fault::Op {
                rank: self.rank,
                op: op.into(),
                path: None,
                message: error.to_string(),
            }
        })
    }

    /// Brings a slot back from the host, if it is there.
    fn bring_back(&mut self, slot: Slot, shape: &[usize], dtype: DType) {
        match self.store.take(slot, true) {
            Some(data) => {
                let handle = from_data::<B>(Arc::unwrap_or_clone(data), &self.device);
                self.fill(slot, handle, shape, dtype);
            }
            None => self.settle(),
        }
    }

    fn keep_on_host(&mut self, id: TensorId, data: Arc<TensorData>) {
        self.store.keep(&data);
        let old = Kept {
            place: Place::Host(data),
            bytes: 0,
            key: 0,
        };
        if let Some(old) = self.kept.insert(id, old) {
            self.given_up(&old);
        }
    }

    /// Puts a tensor that no operation has made.
    fn fill(&mut self, slot: Slot, handle: B::Handle, shape: &[usize], dtype: DType) {
        if let Some(account) = &mut self.account {
            let bytes = (shape.iter().product::<usize>() * dtype.size()) as u64;
            account.put::<B>(slot, &handle, bytes);
            account.settle();
        }
        self.slots[slot as usize] = Some(handle);
    }

    /// Counts what a task holds while it runs.
    fn settle(&mut self) {
        if let Some(account) = &mut self.account {
            account.settle();
        }
    }

    /// Counts a task that gives up a slot, if it does.
    fn gone(&mut self, slot: Slot, take: bool) {
        if let Some(account) = &mut self.account {
            account.settle();
            if take {
                account.release(slot);
            }
        }
    }

    /// Counts what has been sent and what will be received.
    fn launched(&mut self, tasks: &[CollectiveTask]) {
        if let Some(account) = &mut self.account {
            account.settle();
            for task in tasks.iter().filter(|task| task.take) {
                account.release(task.from);
            }
        }
    }

    fn start(
        &mut self,
        run: &Run,
        place: trace::Place,
        task: &CollectiveTask,
    ) -> Result<bridge::Started<B>, Fault> {
        let began = Instant::now();
        let input = self.handle(task.from, task.take)?;
        if let Some(account) = &mut self.account {
            account.send(task, bridge::is_sent_as_it_is::<B>(&input));
        }
        let path = run.plan.paths.get(task.path as usize);
        let started = bridge::start::<B>(
            task,
            input,
            self.comm.as_ref(),
            &mut self.routes,
            &self.seat,
            path,
            &self.device,
        )
        .map_err(|error| error.into_fault(self.rank, task, path))?;
        tracing::trace!(target: "burn_dist", rank = self.rank.0, call = %started.info(), "launched");
        self.clock.launched(place, began);
        Ok(started)
    }

    fn finish(
        &mut self,
        run: &Run,
        place: trace::Place,
        task: &CollectiveTask,
        started: bridge::Started<B>,
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
        let output = started
            .wait(
                task,
                self.comm.as_ref(),
                &mut self.routes,
                &self.seat,
                &self.device,
            )
            .map_err(|error| {
                let path = run.plan.paths.get(task.path as usize);
                error.into_fault(self.rank, task, path)
            })?;
        if let Some(account) = &mut self.account {
            account.receive::<B>(task, &output);
        }
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

    fn keep(
        &mut self,
        id: TensorId,
        handle: B::Handle,
        bytes: u64,
        class: MemoryClass,
        slot: Option<Slot>,
    ) {
        self.kept_bytes += bytes;
        let key = match &mut self.account {
            Some(account) => account.keep::<B>(&handle, bytes, class, slot),
            None => 0,
        };
        let place = Place::Device(handle);
        if let Some(old) = self.kept.insert(id, Kept { place, bytes, key }) {
            self.given_up(&old);
        }
    }

    fn given_up(&mut self, kept: &Kept<B::Handle>) {
        self.kept_bytes -= kept.bytes;
        match (&kept.place, &mut self.account) {
            (Place::Host(data), _) => self.store.forget(data),
            (Place::Device(_), Some(account)) => account.forget(kept.key),
            (Place::Device(_), None) => {}
        }
    }

    fn remove(&mut self, id: TensorId) -> Option<Kept<B::Handle>> {
        let kept = self.kept.remove(&id)?;
        self.given_up(&kept);
        Some(kept)
    }

    /// Returns the operation and the first of its indices that is out of range, in global numbers.
    fn out_of_range(&self, plan: &RankPlan, op: &Recorded) -> Option<(String, String)> {
        let (indices, out) = indices(op.burn()?)?;
        let global = plan.indexed.get(&(out.id.value() as Slot))?;
        let data = into_data::<B>(self.indices.clone()?, indices.shape.clone(), indices.dtype);
        let data = burn_std::future::block_on(data).ok()?;
        let size = global.shape[global.dim];
        let start = global.start as i64;
        let index = data
            .iter::<i64>()
            .map(|index| index.saturating_add(start))
            .find(|index| !(0..size as i64).contains(index))?;
        let range = match size {
            0 => "it has no elements".to_string(),
            _ => format!("its indices are 0 to {}", size - 1),
        };
        let message = format!(
            "index {index} is out of range for dim {} (size {size}) of the tensor of shape {:?}: {range}",
            global.dim, global.shape
        );
        Some((global.op.clone(), message))
    }

    /// Names the task that failed: operation, local shapes, module.
    fn describe(&self, run: &Run, at: usize, message: String) -> Fault {
        let (op, path) = match run.plan.tasks.get(at) {
            Some(Task::Op(op, path)) => {
                let path_text = run.plan.paths.get(*path as usize).cloned();
                if let Some((op, message)) = self.out_of_range(&run.plan, op) {
                    return Fault::Op {
                        rank: self.rank,
                        op,
                        path: path_text,
                        message,
                    };
                }
                let mut shapes = Shapes::default();
                visit_ref(op, &mut shapes);
                (format!("{}({})", op.name(), shapes.0.join(", ")), path_text)
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
        Fault::Collective { source, .. } | Fault::Processes(source) => {
            return source.as_ref().clone();
        }
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
