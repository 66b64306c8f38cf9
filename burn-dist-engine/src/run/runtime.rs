//! The workers of one process: starting them, handing out plans, asking them things.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use burn_backend::{DType, StreamId};
use burn_dist_door::Queue;
use burn_ir::{BackendIr, TensorId};

use super::device_comm::DeviceComm;
use super::fault_cell::FaultCell;
use super::gpus::{self, Gpus};
use super::job::{Job, Reader, Run, RunArgs};
use super::observe::Observers;
use super::tensors::Tensors;
use super::threads::{Threads, in_own_pool};
use super::times::Clock;
use super::trace::{Trace, TraceLog, Tracer};
use super::turn::Turn;
use super::worker::{Shared, Worker};
use super::{Fault, LocalTicket, ReadTicket, StatsTicket, SyncTicket};
use super::{bridge, bytes, region};
use crate::burn::data::*;
use crate::comm::{CommError, Communicator, FlightOptions, LocalHub, LocalOptions, Network};
use crate::layout::Layout;
use crate::mesh::{MeshShape, Rank, Topology};
use crate::ops::dtype::to_burn;
use crate::ops::visit::kind_of_number;
use crate::options::MeshOptions;
use crate::plan::task::{Plan, ReadPlan};
use crate::plan::{RegionKernels, Regions, Storage};
use burn_dist_gpu::GpuTransport;
use burn_dist_gpu::owners::{self, Asked};

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
        // The ranks of one process see for themselves; those of several ask here, and hear the answer on their threads:
        // this is called under a lock of Burn's that all meshes of a program share.
        let alone = several_processes.then(|| vec![false; mesh.num_ranks()]);
        let asked: Vec<Option<Asked>> = match (&gpus, several_processes) {
            (Some(_), true) => {
                let hosts = hosts.iter().zip(&devices);
                let asked = hosts.map(|(host, device)| ask::<B>(host.as_ref(), device));
                let asked = ranks
                    .iter()
                    .zip(asked)
                    .map(|(&rank, asked)| asked.map_err(|error| shared.stop(rank, error)).ok());
                asked.collect()
            }
            _ => ranks.iter().map(|_| None).collect(),
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
                .zip(gpus.drain(..).zip(asked))
                .map(|((((&rank, device), turn), host), (gpus, asked))| {
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
                                let in_memory = bridge::is_in_memory::<B>();
                                // Kernels of a device have threads of their own.
                                let threads = match in_memory {
                                    true => Threads::lead(),
                                    false => Threads::default(),
                                };
                                let turn = match asked.map(Asked::alone) {
                                    None => turn,
                                    Some(Ok(alone)) => turn.knowing(alone),
                                    Some(Err(error)) => {
                                        of_worker.stop(rank, error);
                                        turn
                                    }
                                };
                                let comm = match in_memory {
                                    true => host,
                                    false => {
                                        let (turn, device) = (turn.clone(), device.clone());
                                        Arc::new(DeviceComm::<B>::new(host, gpus, turn, device))
                                    }
                                };
                                let tensors = Tensors::new(device, observers);
                                Worker::new(rank, turn, comm, of_worker, tensors)
                                    .work(&threads, &queue);
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

    /// Returns how elementwise work runs, where it is to run as `asked`, and what its kernels compute: regions are on
    /// tensors in memory, and on those of CubeCL if they are asked for.
    pub(crate) fn regions(asked: Option<Regions>) -> (Regions, RegionKernels) {
        match (bridge::is_in_memory::<B>(), region::kernels::<B>()) {
            (true, _) => (asked.unwrap_or_default(), RegionKernels::ALL),
            (false, Some(kernels)) => (asked.unwrap_or(Regions::Flex), kernels),
            (false, None) => (Regions::Flex, RegionKernels::ALL),
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
            Some(worker)
                if (worker.jobs)
                    .send(Job::Local(id, StreamId::current(), answer))
                    .is_ok() =>
            {
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
        StatsTicket::pending(answers, asked)
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

/// Asks the ranks of all processes which of them have a GPU of their own, as a rank at `device`.
fn ask<B: BackendIr>(host: &dyn Communicator, device: &B::Device) -> Result<Asked, CommError> {
    let identity = gpus::identity::<B>(device).map_err(|reason| CommError::Aborted {
        rank: host.rank(),
        what: format!("asking {device:?} who it is"),
        label: "".into(),
        reason,
    })?;
    owners::ask(host, identity)
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
