//! The recorder of one mesh: collects operations into windows, which are [planned](super::windows) outside of its lock.
//!
//! Recording never blocks on a rank: only reads and syncs wait, outside the lock.

mod flush;

use std::ops::Range;
use std::sync::Arc;

use burn_backend::{BackendTypes, DType};
use burn_ir::{BackendIr, TensorId, TensorIr, TensorStatus};

use super::MeshDevice;
use super::closed::End;
use super::details::{details, device_of, local_ranks};
use super::early::Early;
use super::hold_note::HoldNote;
use super::items::Items;
use super::log::{Log, this_thread};
use super::on_host::{Part, batch_layout};
use super::parts::Placement;
use super::planner::{Planner, RecorderStats};
use super::repeat::Repeats;
use super::windows::Windows;
use crate::burn::bool_type;
use crate::burn::data::*;
use crate::comm::LocalHub;
use crate::layout::{Layout, Rows};
use crate::mesh::{BoolStore, MeshShape, Rank, Topology};
use crate::ops::custom::CheckedFormulas;
use crate::ops::dtype::{bool_store, of_burn, of_float};
use crate::ops::on_bytes::on_bytes;
use crate::ops::{self, Recorded};
use crate::options::{InputPolicy, MeshOptions};
use crate::plan::explain::{Ask, Explanation};
use crate::plan::{Float, Origin, PlanError, PlanOptions};
use crate::run::{
    Fault, LocalTicket, ReadTicket, Runtime, RuntimeParts, StatsTicket, SyncTicket, Trace,
};
use burn_dist_door::Queue;
use burn_dist_plan::Role;
use burn_dist_plan::float8::Float8Store;
use burn_dist_plan::op::{Mark, Op};

/// A dry run plans for every rank of a mesh of at most this size, and for the first one of larger ones, or of each
/// pipeline stage: they differ in little.
const DRY_RANKS_MAX: usize = 16;

/// Records the program of a mesh whose ranks compute on `B`.
pub struct Recorder<B: BackendIr> {
    mesh: MeshShape,
    options: Arc<MeshOptions>,
    inner_device: B::Device,
    log: Log,
    repeats: Repeats,
    /// Where windows end early; `None` if none does.
    early: Option<Early>,
    /// Bytes of data that entered since the last window.
    entered: u64,
    items: Items,
    /// Windows that have ended.
    windows: Arc<Windows<B>>,
    /// Custom operations whose formulas were checked.
    pub(super) formulas: CheckedFormulas,
    /// The callers that hold the window open.
    holds: Vec<Arc<HoldNote>>,
    /// Set once the user was warned that a window ended all the same.
    warned_of_hold: bool,
    /// Set while plans are explained.
    is_explaining: bool,
}

impl<B: BackendIr> Recorder<B> {
    pub(crate) fn new(device: &MeshDevice) -> Self {
        let alive = device.mesh().map(|mesh| (mesh, details(mesh)));
        let (mesh, topology, options) = match alive {
            Some((mesh, details)) => (
                mesh.shape().clone(),
                details.topology.clone(),
                details.options.clone(),
            ),
            None => (
                MeshShape::new(Vec::<(String, usize)>::new()).expect("no axes: one rank"),
                Topology::single(1),
                Arc::default(),
            ),
        };
        let ranks: Vec<Rank> = match options.dry_run && mesh.num_ranks() > DRY_RANKS_MAX {
            true => match mesh.pipeline_axis() {
                Some(axis) => mesh.group_of(Rank(0), &[axis]),
                None => vec![Rank(0)],
            },
            false => local_ranks(device).map(Rank).collect(),
        };
        let devices: Vec<B::Device> = ranks.iter().map(|rank| device_of(device, *rank)).collect();
        let inner_device = devices[0].clone();
        let (regions, region_kernels) = Runtime::<B>::regions(options.regions);
        let plan_options = PlanOptions {
            defer: options.fuzz_layouts.is_none(),
            split_batches: options.input == InputPolicy::Batch,
            fuzz: options.fuzz_layouts,
            scatter_bytes_min: options.scatter_bytes_min,
            floats_missing: [Float::F16, Float::BF16]
                .into_iter()
                .filter(|float| !B::supports_dtype(&inner_device, of_float(*float)))
                .collect(),
            float8_store: Float8Store {
                dtype: match B::supports_dtype(&inner_device, DType::U8) {
                    true => of_burn(DType::U8),
                    false => of_burn(DType::F32),
                },
                turns: ops::float8::turns::<B>(&inner_device),
            },
            topology: topology.clone(),
            links: options.links.clone(),
            device_costs: options.device_costs,
            hierarchy_bytes_min: options.hierarchy_bytes_min,
            ranks: ranks.clone(),
            everyone_reads: options.world.is_some(),
            bool_store: match bool_type::<B>(&inner_device) {
                DType::Bool(store) => bool_store(store),
                DType::U8 => BoolStore::U8,
                DType::U32 => BoolStore::U32,
                _ => BoolStore::Native,
            },
            storage: Runtime::<B>::storage(),
            regions,
            region_kernels,
            is_explained: false,
            microbatches: None,
        };
        let ended = alive.is_none().then(|| Fault::ended(device));
        let queue = Queue::new(options.queue_bytes_max, options.timeout);
        let runtime = ended.is_none().then(|| {
            Runtime::new(
                &mesh,
                ranks,
                devices,
                &options,
                RuntimeParts {
                    flight: alive.and_then(|(mesh, details)| details.flight(mesh)),
                    topology,
                    queue: queue.clone(),
                    faulted: alive
                        .map(|(mesh, details)| details.over(mesh))
                        .unwrap_or_default(),
                },
            )
        });
        let planner = Planner::new(mesh.clone(), options.clone(), plan_options, runtime, ended);
        Self {
            early: (mesh.num_ranks() == 1 && !options.dry_run).then(Early::default),
            mesh,
            inner_device,
            log: Log::default(),
            repeats: Repeats::default(),
            entered: 0,
            items: Items::default(),
            windows: Windows::new(planner, queue, options.queue_bytes_max),
            formulas: CheckedFormulas::default(),
            holds: Vec::new(),
            warned_of_hold: false,
            is_explaining: false,
            options,
        }
    }

    pub(crate) fn mesh(&self) -> &MeshShape {
        &self.mesh
    }

    pub(crate) fn inner_device(&self) -> <B as BackendTypes>::Device {
        self.inner_device.clone()
    }

    /// Ends the mesh; returns the workers, to be dropped outside the lock.
    pub(crate) fn close(&mut self) -> Option<Runtime<B>> {
        let mut planner = self.windows.planner();
        let fault = planner.fault().unwrap_or(Fault::Ended {
            mesh: self.mesh.to_string(),
        });
        planner.end(fault);
        let runtime = planner.runtime.take();
        drop(planner);
        self.windows.close();
        self.forget();
        runtime
    }

    /// Returns whether nothing runs any more; then nothing is kept.
    #[inline]
    fn is_over(&mut self) -> bool {
        let is_over = self.windows.is_over();
        if is_over {
            self.forget();
        }
        is_over
    }

    /// burn-router keeps this recorder for the life of the process: nothing of size may stay in it, nor what keeps the
    /// engine of the processes alive.
    #[cold]
    fn forget(&mut self) {
        self.log = Log::default();
        self.items = Items::default();
        if self.options.world.is_some() {
            Arc::make_mut(&mut self.options).world = None;
        }
    }

    pub(crate) fn record(&mut self, mut op: Recorded) {
        if self.is_over() {
            return;
        }
        if let Some(other) = on_bytes(&op) {
            op = other;
        }
        if self.options.fuzz_layouts.is_none()
            && let Recorded::Burn(op) = &op
            && self.items.keep(op)
        {
            return;
        }
        if !self.items.is_empty() {
            for input in op.reads() {
                self.items.record(input, &mut self.log);
            }
        }
        let ends_early = self.ends_early(&op);
        self.log.push(op);
        let ops = self.log.ops().len();
        if self.repeats.is_due(ops, self.entered) && self.holds.is_empty() {
            self.close_repeated();
        } else if ops >= self.options.window_ops_max {
            self.close_full(ops);
        } else if ends_early {
            self.close_early();
        }
    }

    /// Returns whether the window may end early after an operation.
    fn ends_early(&mut self, op: &Recorded) -> bool {
        if matches!(op, Recorded::Mark(_)) {
            self.early = None;
        }
        let early = self.early.as_mut();
        early.is_some_and(|early| early.records(op, this_thread()))
            && self.holds.is_empty()
            && !self.is_explaining
    }

    /// Closes the window, for the rank to begin with it.
    fn close_early(&mut self) {
        let plan_all = || drop(self.windows.planner());
        let plans = self.early.as_mut().and_then(|early| early.ends(plan_all));
        if let Some(plans) = plans {
            let taken = self.log.take_for(&[]);
            self.flush(taken, Vec::new(), End::Early(plans));
        }
    }

    /// Notes that the calling thread waits for the ranks, which `ops` more operations are for.
    fn program_waits(&mut self, ops: usize) {
        let since = self.early.as_ref().map_or(0, Early::since_wait);
        self.repeats.closed(since.max(ops));
        self.early.take_if(|early| !early.waits(this_thread()));
    }

    /// Closes the window of a program that does not read where the program repeats.
    fn close_repeated(&mut self) {
        let entered = self.log.entered();
        let is_host = |id| entered.contains(&id);
        let (ops, dropped) = (self.log.ops(), self.log.dropped());
        let may_end = |count| self.log.may_end(count);
        let cut = self
            .repeats
            .cut(ops, dropped, self.entered, is_host, may_end);
        if let Some(count) = cut {
            let taken = self.log.take_first(count);
            self.flush(taken, Vec::new(), End::Full);
        }
    }

    /// Closes a window of `ops` operations because there may be no more.
    fn close_full(&mut self, ops: usize) {
        if ops >= MeshOptions::default().window_ops_max {
            tracing::warn!(
                target: "burn_dist",
                "a window was closed at {ops} operations: nothing was read, and nothing repeats. Activation \
                 checkpointing and the accumulation of gradients \
                 end there; `DeviceMeshBuilder::window_ops_max` allows longer ones"
            );
        }
        let taken = self.log.take_all();
        self.repeats.closed(taken.ops.len());
        self.flush(taken, Vec::new(), End::Full);
    }

    /// Keeps the window open until it is released.
    pub(crate) fn hold(&mut self, note: Arc<HoldNote>) {
        if self.holds.is_empty() {
            self.log.hold();
        }
        self.holds.push(note);
    }

    /// Lets the window end again, if no one else holds it.
    pub(crate) fn release(&mut self, note: &Arc<HoldNote>) {
        self.holds.retain(|held| !Arc::ptr_eq(held, note));
        if self.holds.is_empty() {
            self.log.release();
        }
    }

    /// Returns the bound on how far the program is ahead of the ranks.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        self.windows.queue()
    }

    pub(crate) fn drop_tensor(&mut self, id: TensorId) {
        if !self.is_over() && !self.items.drop(id) {
            self.log.drop_tensor(id);
        }
    }

    pub(crate) fn seed(&mut self, seed: u64) {
        // Operations recorded so far draw from the old seed.
        self.set_random_state((seed, 0));
    }

    /// Takes data of the host; where its layout decides nothing else, it enters as what it is made of does.
    pub(crate) fn add_data(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        if self.is_over() {
            return;
        }
        self.entered += data.bytes().len() as u64;
        let origin = match data.dtype() {
            DType::QFloat(_) => Origin::Constants,
            _ => origin,
        };
        self.items.add(id, data, origin, None);
    }

    /// Takes this process's rows of a tensor of `shape`, whose dim 0 is the batch.
    ///
    /// # Errors
    /// The rows that the ranks here hold, if `data` has another number of them.
    pub(crate) fn add_rows(
        &mut self,
        id: TensorId,
        data: TensorData,
        shape: &[usize],
        here: Range<u32>,
    ) -> Result<(), Rows> {
        let layout = batch_layout(&self.mesh, self.options.input, shape);
        let rows = Rows::held(&layout, &self.mesh, here);
        if data.shape().first() != Some(&rows.len()) {
            return Err(rows);
        }
        if !self.is_over() {
            let layout = Arc::new(layout);
            let part = Some(Part { rows, layout });
            self.items.add(id, data, Origin::Data, part);
        }
        Ok(())
    }

    /// Asks for the content of tensors: in one window, but for those that are on the host.
    pub(crate) fn read(&mut self, tensors: Vec<TensorIr>) -> Vec<ReadTicket> {
        let mut on_ranks = Vec::new();
        let mut tickets: Vec<Option<ReadTicket>> = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let ticket = match ops::int8::is_packed(tensor.dtype) {
                true => Some(ReadTicket::failed(Fault::Plan(Arc::new(
                    PlanError::RestsInBytes { op: "read".into() },
                )))),
                false => self.read_host(&tensor),
            };
            if ticket.is_none() {
                self.items.record(&tensor, &mut self.log);
                on_ranks.push(tensor);
            }
            tickets.push(ticket);
        }
        let mut pending = match on_ranks.is_empty() {
            true => Vec::new(),
            false => self.flush_for(on_ranks),
        }
        .into_iter();
        let ended = || {
            ReadTicket::failed(
                self.fault()
                    .unwrap_or(Fault::bug("a read closed no window")),
            )
        };
        tickets
            .into_iter()
            .map(|ticket| ticket.or_else(|| pending.next()).unwrap_or_else(ended))
            .collect()
    }

    /// Returns the content of a tensor that is on the host.
    fn read_host(&mut self, tensor: &TensorIr) -> Option<ReadTicket> {
        if tensor.status == TensorStatus::ReadWrite
            && let Some(data) = self.items.take(tensor.id)
        {
            return Some(ReadTicket::ready(data));
        }
        let data = self.host_data(tensor.id)?.clone();
        if tensor.status == TensorStatus::ReadWrite {
            self.drop_tensor(tensor.id);
        }
        Some(ReadTicket::ready(data))
    }

    pub(crate) fn sync(&mut self) -> SyncTicket {
        self.flush_all();
        let planner = self.windows.planner();
        planner
            .running()
            .map_or_else(SyncTicket::failed, Runtime::sync)
    }

    /// Returns a rank's part of a placed tensor.
    pub(crate) fn local(&mut self, id: TensorId, rank: Rank) -> LocalTicket<B> {
        let planner = self.windows.planner();
        let local = planner.running().map(|runtime| runtime.local(id, rank));
        local.unwrap_or_else(LocalTicket::failed)
    }

    /// Hands the parts of a tensor to the ranks: `None` to those of other stages.
    pub(crate) fn put(
        &mut self,
        id: TensorId,
        parts: Vec<Option<B::Handle>>,
        placement: Placement,
        dtype: DType,
    ) -> Result<(), Fault> {
        if placement.role.parameter().is_some() {
            self.early = None;
        }
        self.windows.planner().put(id, parts, placement, dtype)
    }

    /// Returns where a tensor is. What makes it is run if it is still recorded; data of the host stays there, and is
    /// whole.
    pub(crate) fn settle(&mut self, tensor: &TensorIr) -> Result<Placement, Fault> {
        let mut tensor = tensor.clone();
        tensor.status = TensorStatus::ReadOnly;
        let on_host = self.items.data(tensor.id);
        match on_host.map(|(_, part)| part.is_some()) {
            Some(false) => {}
            Some(true) => drop(self.place(&tensor)?),
            None if self.windows.planner().placement(tensor.id).is_some() => {}
            None => {
                self.items.record(&tensor, &mut self.log);
                self.flush_needed(&tensor);
            }
        }
        let planner = self.windows.planner();
        if let Some(fault) = planner.fault() {
            return Err(fault);
        }
        if self.items.data(tensor.id).is_some() {
            return Ok(Placement {
                layout: Arc::new(Layout::replicated(&tensor.shape)),
                stage: None,
                role: Role::Input,
            });
        }
        let placement = planner.placement(tensor.id);
        placement.ok_or(Fault::unknown_tensor(tensor.id))
    }

    /// Returns the content of a tensor that is on the host, whole.
    pub(crate) fn host_data(&self, id: TensorId) -> Option<&TensorData> {
        let (data, part) = self.items.data(id)?;
        part.is_none().then_some(data)
    }

    /// Returns what random numbers follow from: the seed, and how many streams were drawn from it.
    pub(crate) fn random_state(&mut self) -> (u64, u64) {
        self.flush_all();
        self.windows.planner().random_state()
    }

    /// Returns what the ranks of this process share, while they run.
    pub(crate) fn hub(&self) -> Option<Arc<LocalHub>> {
        let planner = self.windows.planner();
        let runtime = planner.runtime.as_ref();
        runtime.map(|runtime| Arc::clone(runtime.hub()))
    }

    /// Goes on with the random numbers of another run.
    pub(crate) fn set_random_state(&mut self, state: (u64, u64)) {
        self.flush_all();
        self.windows.planner().set_random_state(state);
    }

    /// Returns the layout that `tensor` has on the ranks, closing the window and placing it if need be.
    pub(crate) fn place(&mut self, tensor: &TensorIr) -> Result<Arc<Layout>, Fault> {
        let mut tensor = tensor.clone();
        tensor.status = TensorStatus::ReadOnly;
        self.items.record(&tensor, &mut self.log);
        // A read places data that no operation has used; what it would answer is not needed.
        drop(self.flush_for(vec![tensor.clone()]));
        let planner = self.windows.planner();
        if let Some(fault) = planner.fault() {
            return Err(fault);
        }
        let placement = planner.placement(tensor.id);
        let placement = placement.ok_or(Fault::unknown_tensor(tensor.id))?;
        Ok(placement.layout)
    }

    /// Returns the path of the parameter that a tensor is, if it was placed as one.
    pub(crate) fn path_of(&self, tensor: &TensorIr) -> Option<String> {
        if let Some(placement) = self.windows.planner().placement(tensor.id) {
            return placement.role.parameter().map(|spec| spec.path.clone());
        }
        let placed = |op: &&Recorded| op.makes().any(|out| out.id == tensor.id);
        match self.log.ops().iter().find(placed)?.mark()? {
            Mark::Param(spec) => Some(spec.path.clone()),
            Mark::Redistribute(_) => None,
        }
    }

    pub(crate) fn stats(&mut self) -> RecorderStats {
        self.windows.planner().stats()
    }

    pub(crate) fn runtime_stats(&mut self) -> Option<StatsTicket> {
        self.flush_all();
        let planner = self.windows.planner();
        planner.runtime.as_ref().map(Runtime::stats)
    }

    /// Returns what has stopped the mesh, if anything has.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.windows.planner().fault()
    }

    /// Returns what ranks noted of the windows that have ended, if they do.
    pub(crate) fn trace(&self) -> Option<Trace> {
        let planner = self.windows.planner();
        planner.runtime.as_ref().and_then(Runtime::trace)
    }

    /// Starts collecting what the plans of the following windows do, and what is asked beside that.
    pub(crate) fn explain(&mut self, ask: Ask) {
        self.flush_all();
        let float8_by = ops::float8::runs_by::<B>(&self.inner_device);
        self.windows.planner().explain(ask, float8_by);
        self.is_explaining = true;
    }

    /// Returns what was collected since [`Self::explain`].
    pub(crate) fn explained(&mut self) -> Option<Explanation> {
        self.flush_all();
        self.is_explaining = false;
        self.windows.planner().explained()
    }
}
