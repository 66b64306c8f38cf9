//! The workers of one process: starting them, handing out plans, asking them things.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use burn_backend::{DType, Scalar};
use burn_dist_door::Queue;
use burn_ir::{BackendIr, TensorId};

use super::device_comm::DeviceComm;
use super::gpus::{self, Gpus};
use super::observe::Observers;
use super::serve::{Job, Reader, Run, in_own_pool};
use super::tensors::Tensors;
use super::times::{Clock, RankTimes};
use super::trace::{Trace, TraceLog, Tracer};
use super::turn::Turn;
use super::worker::{Shared, Worker};
use super::{AccountedMemory, Fault, LocalTicket, ReadTicket, SyncTicket};
use super::{bridge, bytes};
use crate::burn::data::*;
use crate::comm::{
    CommError, Communicator, FlightOptions, LocalHub, LocalOptions, Network, WindowPrint,
};
use crate::layout::{Layout, Rows};
use crate::mesh::{MeshShape, Rank, Topology};
use crate::ops::dtype::to_burn;
use crate::ops::visit::kind_of_number;
use crate::options::MeshOptions;
use crate::plan::memory::ClassBytes;
use crate::plan::task::{Plan, ReadPlan};
use crate::plan::{Regions, Storage, ValueIndex};
use burn_dist_gpu::GpuTransport;
use burn_dist_gpu::owners;

/// Parts of a mesh that its workers need and that are no options of it.
pub(crate) struct RuntimeParts {
    /// Where flight records go, if they are written.
    pub flight: Option<FlightOptions>,
    pub topology: Topology,
    /// Bounds the windows that ranks were handed and have not finished.
    pub queue: Arc<Queue>,
    /// Set when a fault stops the ranks.
    pub faulted: Arc<AtomicBool>,
}

/// A host tensor that a window uses.
#[derive(Clone)]
pub(crate) struct HostValue {
    pub value: ValueIndex,
    pub data: Arc<TensorData>,
    /// The rows that `data` has, if this process has not all.
    pub rows: Option<Rows>,
}

/// Values that one run of a plan is bound to.
#[derive(Clone)]
pub(crate) struct RunArgs {
    /// Recorded id of each value.
    pub ids: Arc<[TensorId]>,
    /// Scalars by slot.
    pub scalars: Arc<[Scalar]>,
    /// Host tensors, by ascending value.
    pub host: Arc<[HostValue]>,
    /// Tensors that were dropped without being used.
    pub forget: Arc<[TensorId]>,
    /// Seed of random operations.
    pub seed: u64,
    /// Stream of the window's first random operation.
    pub streams: u64,
    /// Number of the window.
    pub number: u64,
    /// The window, as other processes know it, if there are some.
    pub print: Option<WindowPrint>,
}

impl RunArgs {
    /// Bytes that the window keeps on the host until it has run.
    fn host_bytes(&self) -> u64 {
        let tensors: usize = self.host.iter().map(|value| value.data.bytes().len()).sum();
        (tensors + size_of_val(&*self.ids) + size_of_val(&*self.scalars)) as u64
    }

    /// Returns the host tensor that is a value of the window.
    pub(crate) fn host(&self, value: ValueIndex) -> Option<&HostValue> {
        // A batch may come as a tensor per item, and every rank looks for each of them.
        let at = self.host.binary_search_by_key(&value, |host| host.value);
        at.ok().map(|at| &self.host[at])
    }
}

/// Memory and traffic of one rank, in bytes of tensor contents, and its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankStats {
    /// Which.
    pub rank: u32,
    /// Tensors that live between windows.
    pub resident_bytes: u64,
    /// The most that was alive at once: by the buffers themselves if the mesh
    /// [accounts](crate::DeviceMeshBuilder::account_memory) for them, else by the plans.
    pub peak_bytes: u64,
    /// The most that was alive at once, as the plans predicted.
    pub predicted_peak_bytes: u64,
    /// Host memory that offloaded tensors take; no part of the others.
    pub host_bytes: u64,
    /// The most host memory that offloaded tensors took.
    pub host_peak_bytes: u64,
    /// The buffers, by what they are used for, if the mesh accounts for them.
    pub accounted: Option<AccountedMemory>,
    /// Parameters and optimizer state that rest in pieces, and everything else that lives between windows.
    pub at_rest_bytes: u64,
    /// Bytes received from other ranks, by kind of collective, as the communicator counted them.
    pub received: Vec<(&'static str, u64, u64)>,
    /// Time spent in tasks.
    pub busy: Duration,
    /// How that time was spent.
    pub times: RankTimes,
}

impl RankStats {
    /// Returns what it held when it held most, by class; empty unless the mesh accounts for buffers.
    pub fn peak_by_class(&self) -> BTreeMap<String, u64> {
        self.by_class(|memory| memory.peak)
    }

    /// Returns the most that it has held of each class, not all at the same time; empty unless the mesh accounts for
    /// buffers.
    pub fn most_by_class(&self) -> BTreeMap<String, u64> {
        self.by_class(|memory| memory.class_peaks)
    }

    fn by_class(&self, of: impl Fn(&AccountedMemory) -> ClassBytes) -> BTreeMap<String, u64> {
        let bytes = self.accounted.as_ref().map(of);
        let classes = bytes.iter().flat_map(ClassBytes::iter);
        classes
            .map(|(class, bytes)| (class.name().to_string(), bytes))
            .collect()
    }
}

/// Answers of the workers, not yet received.
pub struct StatsTicket {
    answers: Receiver<RankStats>,
    asked: usize,
}

impl StatsTicket {
    /// Waits for every local rank; in rank order.
    pub(crate) fn wait(self) -> Vec<RankStats> {
        let mut ranks: Vec<RankStats> = self.answers.iter().take(self.asked).collect();
        ranks.sort_by_key(|rank| rank.rank);
        ranks
    }
}

/// First fault of the mesh, shared by all its workers and tickets.
#[derive(Clone)]
pub(crate) struct FaultCell {
    first: Arc<Mutex<Option<Fault>>>,
    faulted: Arc<AtomicBool>,
    hub: Arc<LocalHub>,
}

impl FaultCell {
    pub(crate) fn new(hub: Arc<LocalHub>, faulted: Arc<AtomicBool>) -> Self {
        Self {
            first: Arc::default(),
            faulted,
            hub,
        }
    }

    /// Returns the fault that has stopped the ranks: the first one here, or one of another process.
    pub(crate) fn get(&self) -> Option<Fault> {
        if let Some(fault) = &*self.lock() {
            return Some(fault.clone());
        }
        let error = self.hub.fault()?;
        Some(self.set(Rank(0), Fault::Processes(Arc::new(error))))
    }

    /// Keeps `fault`, of `rank`, if it is the first, and stops all ranks; returns the one that is kept.
    pub(crate) fn set(&self, rank: Rank, fault: Fault) -> Fault {
        // Whoever asks meanwhile waits until all of it is known.
        let mut first = self.lock();
        if let Some(first) = &*first {
            return first.clone();
        }
        self.hub.abort(fault.for_others(rank));
        let process = self.hub.this_process();
        let record = self.hub.flight_record().map(Arc::from);
        let fault = match process.is_some() || record.is_some() {
            true => Fault::Recorded {
                fault: Arc::new(fault),
                process,
                record,
            },
            false => fault,
        };
        tracing::error!(target: "burn_dist", rank = rank.0, exit_code = fault.exit_code(), "{fault}");
        self.faulted.store(true, Ordering::Relaxed);
        first.insert(fault).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Fault>> {
        self.first.lock().unwrap_or_else(|e| e.into_inner())
    }
}

struct Handle<B: BackendIr> {
    jobs: Sender<Job<B>>,
    thread: Option<JoinHandle<()>>,
}

/// The local ranks of a mesh.
pub(crate) struct Runtime<B: BackendIr> {
    mesh: Arc<MeshShape>,
    workers: Vec<Handle<B>>,
    /// The ranks of the workers.
    ranks: Vec<Rank>,
    hub: Arc<LocalHub>,
    fault: FaultCell,
    dry_run: bool,
    trace: Option<Arc<TraceLog>>,
    /// Windows handed out and not yet finished.
    queue: Arc<Queue>,
}

impl<B: BackendIr> Runtime<B> {
    pub(crate) fn new(
        mesh: &MeshShape,
        ranks: Vec<Rank>,
        devices: Vec<B::Device>,
        options: &MeshOptions,
        parts: RuntimeParts,
    ) -> Self {
        let mesh = Arc::new(mesh.clone());
        let topology = parts.topology;
        let comm_options = LocalOptions {
            timeout: options.timeout,
            network: (!options.links.is_empty()).then(|| Network {
                mesh: (*mesh).clone(),
                topology: topology.clone(),
                links: options.links.clone(),
            }),
            chaos: options.chaos.clone(),
            flight: parts.flight,
            kind_name: kind_of_number,
            share: Some(bytes::share),
            ..LocalOptions::default()
        };
        let several_processes = options.world.is_some();
        let comms = match options.world.as_ref().filter(|_| !options.dry_run) {
            Some(world) => world.connect(mesh.num_ranks(), comm_options),
            None => LocalHub::connect(mesh.num_ranks(), comm_options),
        }
        .expect("the mesh has checked its ranks");
        let hub = comms[0].hub().clone();
        let hosts: Vec<Arc<dyn Communicator>> = comms
            .into_iter()
            .map(|comm| Arc::new(comm) as Arc<dyn Communicator>)
            .collect();
        let trace = options
            .trace
            .then(|| Arc::new(TraceLog::new(mesh.clone(), topology.clone())));
        let shared = Shared {
            fault: FaultCell::new(hub.clone(), parts.faulted),
            hub: hub.clone(),
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        // Kernels of one rank share the cores with those of the others.
        let threads = (cores / ranks.len()).max(1);
        let gpus = match options.gpu_transport {
            GpuTransport::Auto | GpuTransport::Workspace | GpuTransport::Nccl
                if !options.dry_run =>
            {
                let how = (options.gpu_transport, options.reduction);
                gpus::connect::<B>(&devices, how, options.timeout, &hosts)
            }
            _ => None,
        };
        let alone = match (&gpus, several_processes) {
            (_, false) => None,
            (None, true) => Some(vec![false; mesh.num_ranks()]),
            (Some(_), true) => Some(alone::<B>(&hosts, &devices).unwrap_or_else(|error| {
                let fault = Fault::Collective {
                    rank: ranks[0],
                    path: None,
                    source: Arc::new(error),
                };
                shared.fault.set(ranks[0], fault);
                vec![false; mesh.num_ranks()]
            })),
        };
        let first = ranks[0].0 as usize;
        let turns = |apart| {
            let alone = alone.clone();
            Turn::assign_part::<B>(&devices, apart, first, mesh.num_ranks(), alone)
        };
        let turns = turns(bridge::is_in_memory::<B>()).or_else(|error| {
            let fault = Fault::Thread {
                rank: ranks[0],
                ranks: ranks.len(),
                reason: error.to_string(),
            };
            shared.fault.set(ranks[0], fault);
            // Nothing will run: nobody has to wait for a turn.
            turns(true)
        });
        let turns = turns.expect("ranks without turns need no thread");
        let mut gpus: Vec<Option<Gpus<B>>> = match gpus {
            Some(gpus) => gpus.into_iter().map(Some).collect(),
            None => ranks.iter().map(|_| None).collect(),
        };
        let account = options.account_memory;
        let workers = match options.dry_run {
            true => Vec::new(),
            false => ranks
                .iter()
                .zip(devices)
                .zip(turns)
                .zip(hosts)
                .zip(gpus.drain(..))
                .map(|((((&rank, device), turn), host), gpus)| {
                    let (jobs, queue) = channel();
                    let of_worker = shared.clone();
                    let tracer = trace.clone().map(|log| Tracer::new(log, rank));
                    let observers = Observers {
                        account: account.then(Box::default),
                        clock: Clock::new(mesh.clone(), topology.clone()),
                        tracer,
                    };
                    let thread = std::thread::Builder::new()
                        .name(format!("rank {}", rank.0))
                        .spawn(move || {
                            in_own_pool(rank, threads, move || {
                                let comm = match bridge::is_in_memory::<B>() {
                                    true => host,
                                    false => {
                                        let (turn, device) = (turn.clone(), device.clone());
                                        Arc::new(DeviceComm::<B>::new(host, gpus, turn, device))
                                    }
                                };
                                let tensors = Tensors::new(device, observers);
                                Worker::new(rank, turn, comm, of_worker, tensors).work(&queue);
                            });
                        });
                    if let Err(error) = &thread {
                        let fault = Fault::Thread {
                            rank,
                            ranks: ranks.len(),
                            reason: error.to_string(),
                        };
                        shared.fault.set(rank, fault);
                    }
                    Handle {
                        jobs,
                        thread: thread.ok(),
                    }
                })
                .collect(),
        };
        Self {
            mesh,
            workers,
            ranks,
            hub,
            fault: shared.fault,
            dry_run: options.dry_run,
            trace,
            queue: parts.queue,
        }
    }

    /// Returns how the inner backend stores tensors.
    pub(crate) fn storage() -> Storage {
        match bridge::is_in_memory::<B>() {
            true => Storage::Buffers,
            false => Storage::Opaque,
        }
    }

    /// Returns how elementwise work runs, where it is to run as `asked`: regions are on tensors in memory.
    pub(crate) fn regions(asked: Regions) -> Regions {
        match bridge::is_in_memory::<B>() {
            true => asked,
            false => Regions::Flex,
        }
    }

    /// Returns the answer of a dry run to a read.
    fn zeros(read: &ReadPlan) -> ReadTicket {
        let elements: usize = read.shape.iter().product();
        let bytes = vec![0; elements * read.dtype.size()];
        let shape = read.shape.clone();
        ReadTicket::ready(TensorData::from_bytes_vec(
            bytes,
            shape,
            to_burn(read.dtype),
        ))
    }

    /// Hands a plan to the workers. Returns a ticket for each of its reads.
    pub(crate) fn run(&self, plan: &Plan, args: RunArgs) -> Vec<ReadTicket> {
        if self.dry_run {
            return plan.reads.iter().map(Self::zeros).collect();
        }
        let agreed = args.print.clone().and_then(|print| self.hub.window(print));
        let agreed = agreed.map(|agreed| (agreed, self.fault.clone()));
        let ticket = |read: &ReadPlan| {
            let (parts, received) = channel();
            let senders = read.senders.clone();
            let (plan, mesh) = (read.clone(), self.mesh.clone());
            let ticket = ReadTicket::pending(received, plan, mesh, agreed.clone());
            (Reader { senders, parts }, ticket)
        };
        let (readers, tickets): (Vec<_>, _) = plan.reads.iter().map(ticket).unzip();
        let reads: Arc<[Reader]> = readers.into();
        let in_flight = self.queue.enter(args.host_bytes());
        for ((worker, rank_plan), memory) in self.workers.iter().zip(&plan.ranks).zip(&plan.memory)
        {
            let run = Run {
                plan: rank_plan.clone(),
                reads: reads.clone(),
                peak_bytes: memory.peak_bytes,
                args: args.clone(),
                _in_flight: in_flight.clone(),
            };
            // A worker that has ended has left its fault behind; the read below reports it.
            let _ = worker.jobs.send(Job::Run(Box::new(run)));
        }
        tickets
    }

    pub(crate) fn sync(&self) -> SyncTicket {
        let (answer, answers) = channel();
        for worker in &self.workers {
            if worker.jobs.send(Job::Sync(answer.clone())).is_err() {
                return SyncTicket::failed(
                    self.fault.get().unwrap_or(Fault::bug("a worker has ended")),
                );
            }
        }
        SyncTicket::pending(answers, self.workers.len())
    }

    pub(crate) fn local(&self, id: TensorId, rank: Rank) -> LocalTicket<B> {
        let (answer, answers) = channel();
        let index = self.ranks.iter().position(|here| *here == rank);
        match index.and_then(|index| self.workers.get(index)) {
            None => LocalTicket::failed(Fault::ElsewhereRank { rank }),
            Some(worker) if worker.jobs.send(Job::Local(id, answer)).is_ok() => {
                LocalTicket::pending(answers)
            }
            _ => LocalTicket::failed(self.fault.get().unwrap_or(Fault::bug("a worker has ended"))),
        }
    }

    /// Hands each rank its part of a tensor that lives between windows, if it has one.
    pub(crate) fn put(
        &self,
        id: TensorId,
        parts: Vec<Option<B::Handle>>,
        layout: &Layout,
        dtype: DType,
    ) {
        for ((worker, &rank), handle) in self.workers.iter().zip(&self.ranks).zip(parts) {
            let Some(handle) = handle else { continue };
            let local = layout.local_shape(&self.mesh, rank);
            let bytes = (local.iter().product::<usize>() * dtype.size()) as u64;
            // A worker that has ended has left its fault behind; the next read reports it.
            let _ = worker.jobs.send(Job::Put(id, handle, bytes));
        }
    }

    pub(crate) fn stats(&self) -> StatsTicket {
        let (answer, answers) = channel();
        let asked = self
            .workers
            .iter()
            .filter(|worker| worker.jobs.send(Job::Stats(answer.clone())).is_ok())
            .count();
        StatsTicket { answers, asked }
    }

    /// Returns what ranks noted of the windows that have ended, if they do.
    pub(crate) fn trace(&self) -> Option<Trace> {
        self.trace.as_ref().map(|log| log.read())
    }

    /// Returns what has stopped the ranks, if anything has.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }

    /// Returns the hub that the ranks of this process share.
    pub(crate) fn hub(&self) -> &Arc<LocalHub> {
        &self.hub
    }

    /// Stops every rank with `fault`, or an earlier one; returns which.
    pub(crate) fn poison(&self, fault: Fault) -> Fault {
        let first = self.ranks.first().copied().unwrap_or(Rank(0));
        self.fault.set(first, fault)
    }
}

/// Returns of each rank of all processes whether it has a GPU of its own.
fn alone<B: BackendIr>(
    hosts: &[Arc<dyn Communicator>],
    devices: &[B::Device],
) -> Result<Vec<bool>, CommError> {
    let mut identities = Vec::new();
    for (comm, device) in hosts.iter().zip(devices) {
        let identity = gpus::identity::<B>(device);
        identities.push(identity.map_err(|reason| CommError::Aborted {
            rank: comm.rank(),
            what: format!("asking {device:?} who it is"),
            label: "".into(),
            reason,
        })?);
    }
    owners::alone(hosts, &identities)
}

impl<B: BackendIr> Drop for Runtime<B> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.hub.this_process().is_some() {
            // The other processes need not find out by waiting.
            self.hub.abort(CommError::Aborted {
                rank: self.ranks.first().copied().unwrap_or(Rank(0)),
                what: "the program".into(),
                label: "".into(),
                reason: "it panicked (its own output says where)".into(),
            });
        }
        for worker in &mut self.workers {
            let (jobs, _) = channel();
            // Closing the queue ends the worker once it has done what it was given.
            worker.jobs = jobs;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take()
                && thread.thread().id() != std::thread::current().id()
            {
                let _ = thread.join();
            }
        }
    }
}
