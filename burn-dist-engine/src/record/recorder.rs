//! The recorder of one mesh: collects operations into windows, plans them, and hands the plans to the workers.
//!
//! Recording never blocks on a rank: only reads and syncs wait, outside the lock.

mod items;
mod waiting;
mod windows;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use burn_backend::{BackendTypes, DType};
use burn_ir::{BackendIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::{FxHashMap, FxHashSet};

use self::waiting::Items;
use super::MeshDevice;
use super::details::{details, device_of, local_ranks};
use super::early::Early;
use super::hold_note::HoldNote;
use super::log::{Log, this_thread};
use super::loose::Loose;
use super::parts::Placement;
use super::repeat::Repeats;
use crate::burn::bool_type;
use crate::burn::data::*;
use crate::comm::LocalHub;
use crate::layout::{Layout, Rows, of_batch};
use crate::mesh::{BoolStore, MeshShape, Rank, Topology};
use crate::ops::custom::CheckedFormulas;
use crate::ops::dtype::{bool_store, of_burn, of_float};
use crate::ops::{self, Recorded};
use crate::options::{InputPolicy, MeshOptions};
use crate::plan::explain::{Ask, Explanation};
use crate::plan::{CacheStats, PlanCache};
use crate::plan::{Float, PlanOptions, Redundancy, fuzz};
use crate::plan::{Origin, PlanError, ValueIndex};
use crate::run::{
    Fault, LocalTicket, ReadTicket, Runtime, RuntimeParts, StatsTicket, SyncTicket, Trace,
};
use burn_dist_door::Queue;
use burn_dist_plan::float8::Float8Store;
use burn_dist_plan::op::{Mark, Op};
use burn_dist_plan::{Role, Stage};

/// A dry run plans for every rank of a mesh of at most this size, and for the first one of larger ones, or of each
/// pipeline stage: they differ in little.
const DRY_RANKS_MAX: usize = 16;

/// A tensor that lives between windows.
enum Live {
    /// On the host: no operation has used it yet.
    Host {
        data: Arc<TensorData>,
        origin: Origin,
        part: Option<Part>,
    },
    /// On the ranks.
    Placed {
        layout: Arc<Layout>,
        /// Its role in training.
        role: Role,
        /// The kind of values it is computed from, if its layout is not decided.
        origin: Option<Origin>,
        /// The stage whose ranks have it; `None` if all do.
        stage: Option<Stage>,
        name: ValueName,
    },
}

/// The rows of a batch that are this process's data, and the layout of the whole.
struct Part {
    rows: Rows,
    layout: Arc<Layout>,
}

/// Names a value, whatever its id: the same in all processes that run the same program.
#[derive(Clone, Copy, Debug, Hash)]
enum ValueName {
    /// A value of a window.
    In(u64, ValueIndex),
    /// Put on the ranks part by part, as the tensor of this number.
    Put(u64),
}

/// The work of a recorder so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecorderStats {
    /// Windows, and how often their plan was known.
    pub cache: CacheStats,
    /// Time spent bringing windows into canonical form, looking plans up and making them.
    pub plan_time: Duration,
    /// Operations recorded.
    pub ops: u64,
    /// Work that ranks repeat, of all windows that were run.
    pub redundancy: Redundancy,
}

/// Records the program of a mesh whose ranks compute on `B`.
pub struct Recorder<B: BackendIr> {
    mesh: MeshShape,
    options: Arc<MeshOptions>,
    plan_options: PlanOptions,
    inner_device: B::Device,
    runtime: Option<Runtime<B>>,
    /// Why nothing runs any more.
    ended: Option<Fault>,
    log: Log,
    repeats: Repeats,
    /// Where windows end early; `None` if none does.
    early: Option<Early>,
    /// Bytes of data that entered since the last window.
    entered: u64,
    queue: Arc<Queue>,
    items: Items,
    live: FxHashMap<TensorId, Live>,
    cache: PlanCache,
    /// Windows that differ by where they slice; `None` on one rank, where starts are slots of all.
    loose: Option<Loose>,
    /// Custom operations whose formulas were checked.
    pub(super) formulas: CheckedFormulas,
    seed: u64,
    streams: u64,
    /// Tensors put on the ranks part by part.
    put: u64,
    /// Windows run, and the hashes of those that other processes know.
    windows: u64,
    known: FxHashSet<u64>,
    stats: RecorderStats,
    /// Set once the user was warned that ranks repeat work.
    warned: bool,
    /// The callers that hold the window open.
    holds: Vec<Arc<HoldNote>>,
    /// Set once the user was warned that a window ended all the same.
    warned_of_hold: bool,
    /// Set once the user was warned that nothing computes in float8 though units ask for it.
    warned_of_float8: bool,
    explanation: Option<Explanation>,
    /// Figures that are asked for beside it.
    asked: Ask,
}

/// Returns the layout in which a batch enters.
pub(super) fn batch_layout(mesh: &MeshShape, input: InputPolicy, shape: &[usize]) -> Layout {
    match input {
        InputPolicy::Batch => of_batch(mesh, shape),
        InputPolicy::Replicate => Layout::replicated(shape),
    }
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
        Self {
            loose: (mesh.num_ranks() > 1).then(Loose::default),
            early: (mesh.num_ranks() == 1 && !options.dry_run).then(Early::default),
            mesh,
            plan_options,
            inner_device,
            runtime,
            ended,
            log: Log::default(),
            repeats: Repeats::default(),
            entered: 0,
            queue,
            items: Items::default(),
            live: FxHashMap::default(),
            cache: PlanCache::new(options.plan_cache_bytes_max),
            formulas: CheckedFormulas::default(),
            seed: 0,
            streams: 0,
            put: 0,
            windows: 0,
            known: FxHashSet::default(),
            stats: RecorderStats::default(),
            warned: false,
            holds: Vec::new(),
            warned_of_hold: false,
            warned_of_float8: false,
            explanation: None,
            asked: Ask::default(),
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
        let fault = self.fault().unwrap_or(Fault::Ended {
            mesh: self.mesh.to_string(),
        });
        self.end(fault);
        self.runtime.take()
    }

    fn end(&mut self, fault: Fault) {
        if self.ended.is_none() {
            self.ended = Some(fault);
        }
        // burn-router keeps this recorder for the life of the process: nothing of size may stay in it.
        self.log = Log::default();
        self.items = Items::default();
        self.live = FxHashMap::default();
        self.cache.clear();
        self.loose = self.loose.take().map(|_| Loose::default());
        // Nor may it keep the engine of the processes alive.
        Arc::make_mut(&mut self.options).world = None;
    }

    pub(crate) fn record(&mut self, op: Recorded) {
        if self.ended.is_some() {
            return;
        }
        let Some(op) = self.record_items(ops::on_bytes::on_bytes(op)) else {
            return;
        };
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

    /// Returns whether the window ends early after an operation.
    fn ends_early(&mut self, op: &Recorded) -> bool {
        if matches!(op, Recorded::Mark(_)) {
            self.early = None;
        }
        let early = self.early.as_mut();
        early.is_some_and(|early| early.records(op, this_thread()))
            && self.holds.is_empty()
            && self.explanation.is_none()
    }

    /// Closes the window, for the rank to begin with it.
    fn close_early(&mut self) {
        let misses = self.cache.stats().misses;
        let taken = self.log.take_for(&[]);
        self.flush(taken, Vec::new());
        if let Some(early) = &mut self.early
            && self.cache.stats().misses > misses
        {
            early.was_unknown();
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
        let live = &self.live;
        let is_host = |id| matches!(live.get(&id), Some(Live::Host { .. }));
        let (ops, dropped) = (self.log.ops(), self.log.dropped());
        let may_end = |count| self.log.may_end(count);
        let cut = self
            .repeats
            .cut(ops, dropped, self.entered, is_host, may_end);
        if let Some(count) = cut {
            let taken = self.log.take_first(count);
            self.flush(taken, Vec::new());
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
        self.flush(taken, Vec::new());
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
        &self.queue
    }

    pub(crate) fn drop_tensor(&mut self, id: TensorId) {
        if self.ended.is_none() && !self.drop_item(id) {
            self.log.drop_tensor(id);
        }
    }

    pub(crate) fn seed(&mut self, seed: u64) {
        // Operations recorded so far draw from the old seed.
        self.flush_all();
        self.seed = seed;
        self.streams = 0;
    }

    /// Takes data of the host; where its layout decides nothing else, it enters as what it is made of does.
    pub(crate) fn add_data(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        self.entered += data.bytes().len() as u64;
        self.keep_data(id, data, origin);
    }

    /// Keeps data that has entered, or was made of data that has.
    fn keep_data(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        if self.ended.is_some() {
            return;
        }
        let origin = match data.dtype() {
            DType::QFloat(_) => Origin::Constants,
            _ => origin,
        };
        if self.keeps_items() {
            self.items.unused.insert(id);
        }
        self.live.insert(
            id,
            Live::Host {
                data: Arc::new(data),
                origin,
                part: None,
            },
        );
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
        if self.ended.is_none() {
            let live = Live::Host {
                data: Arc::new(data),
                origin: Origin::Data,
                part: Some(Part {
                    rows,
                    layout: Arc::new(layout),
                }),
            };
            self.live.insert(id, live);
        }
        Ok(())
    }

    /// Returns the layout in which data enters if nothing else decides; quantized data is whole everywhere.
    fn entry_layout(&self, data: &TensorData, origin: Origin) -> Layout {
        let shape = data.shape().to_vec();
        if matches!(data.dtype(), DType::QFloat(_)) {
            return Layout::replicated(&shape);
        }
        if let Some(seed) = self.options.fuzz_layouts {
            return fuzz::layout_of_data(
                &self.mesh,
                &shape,
                of_burn(data.dtype()),
                data.bytes(),
                seed,
            );
        }
        match origin {
            Origin::Data => batch_layout(&self.mesh, self.options.input, &shape),
            Origin::Constants => Layout::replicated(&shape),
        }
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
                self.use_item(tensor.id);
                on_ranks.push(tensor);
            }
            tickets.push(ticket);
        }
        let mut pending = match on_ranks.is_empty() {
            true => Vec::new(),
            false => self.flush_for(on_ranks),
        }
        .into_iter();
        let ended = || match &self.ended {
            Some(fault) => ReadTicket::failed(fault.clone()),
            None => ReadTicket::failed(Fault::bug("a read closed no window")),
        };
        tickets
            .into_iter()
            .map(|ticket| ticket.or_else(|| pending.next()).unwrap_or_else(ended))
            .collect()
    }

    /// Returns the content of a tensor that is on the host.
    fn read_host(&mut self, tensor: &TensorIr) -> Option<ReadTicket> {
        let Live::Host {
            data, part: None, ..
        } = self.live.get(&tensor.id)?
        else {
            return None;
        };
        let data = data.clone();
        if tensor.status == TensorStatus::ReadWrite {
            self.drop_tensor(tensor.id);
        }
        Some(ReadTicket::ready(Arc::unwrap_or_clone(data)))
    }

    pub(crate) fn sync(&mut self) -> SyncTicket {
        self.flush_all();
        match (&self.ended, &self.runtime) {
            (None, Some(runtime)) => runtime.sync(),
            (Some(fault), _) => SyncTicket::failed(fault.clone()),
            (None, None) => SyncTicket::failed(Fault::bug("a mesh without workers")),
        }
    }

    /// Returns a rank's part of a placed tensor.
    pub(crate) fn local(&mut self, id: TensorId, rank: Rank) -> LocalTicket<B> {
        match (&self.ended, &self.runtime) {
            (Some(fault), _) => LocalTicket::failed(fault.clone()),
            (None, Some(runtime)) => runtime.local(id, rank),
            (None, None) => LocalTicket::failed(Fault::bug("a mesh without workers")),
        }
    }

    /// Hands the parts of a tensor to the ranks: `None` to those of other stages.
    pub(crate) fn put(
        &mut self,
        id: TensorId,
        parts: Vec<Option<B::Handle>>,
        placement: Placement,
        dtype: DType,
    ) -> Result<(), Fault> {
        if let Some(fault) = &self.ended {
            return Err(fault.clone());
        }
        let Some(runtime) = &self.runtime else {
            return Err(Fault::bug("a mesh without workers"));
        };
        runtime.put(id, parts, &placement.layout, dtype);
        self.put += 1;
        let Placement {
            layout,
            stage,
            role,
        } = placement;
        if role.parameter().is_some() {
            self.early = None;
        }
        self.live.insert(
            id,
            Live::Placed {
                layout,
                role,
                origin: None,
                stage,
                name: ValueName::Put(self.put),
            },
        );
        Ok(())
    }

    /// Returns where a tensor is. What makes it is run if it is still recorded; data of the host stays there, and is
    /// whole.
    pub(crate) fn settle(&mut self, tensor: &TensorIr) -> Result<Placement, Fault> {
        let mut tensor = tensor.clone();
        tensor.status = TensorStatus::ReadOnly;
        if !self.live.contains_key(&tensor.id) {
            self.use_item(tensor.id);
            self.flush_needed(&tensor);
        }
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        match self.live.get(&tensor.id) {
            Some(Live::Host { part: None, .. }) => Ok(Placement {
                layout: Arc::new(Layout::replicated(&tensor.shape)),
                stage: None,
                role: Role::Input,
            }),
            Some(Live::Host { part: Some(_), .. }) => {
                self.place(&tensor)?;
                self.settle(&tensor)
            }
            Some(Live::Placed {
                layout,
                role,
                stage,
                ..
            }) => Ok(Placement {
                layout: layout.clone(),
                stage: stage.clone(),
                role: role.clone(),
            }),
            None => Err(Fault::unknown_tensor(tensor.id)),
        }
    }

    /// Returns the content of a tensor that is on the host.
    pub(crate) fn host_data(&self, id: TensorId) -> Option<Arc<TensorData>> {
        match self.live.get(&id) {
            Some(Live::Host {
                data, part: None, ..
            }) => Some(data.clone()),
            _ => None,
        }
    }

    /// Returns what random numbers follow from: the seed, and how many streams were drawn from it.
    pub(crate) fn random_state(&mut self) -> (u64, u64) {
        self.flush_all();
        (self.seed, self.streams)
    }

    /// Returns what the ranks of this process share, while they run.
    pub(crate) fn hub(&self) -> Option<Arc<LocalHub>> {
        self.runtime
            .as_ref()
            .map(|runtime| Arc::clone(runtime.hub()))
    }

    /// Goes on with the random numbers of another run.
    pub(crate) fn set_random_state(&mut self, (seed, streams): (u64, u64)) {
        self.flush_all();
        (self.seed, self.streams) = (seed, streams);
    }

    /// Returns the layout that `tensor` has on the ranks, closing the window and placing it if need be.
    pub(crate) fn place(&mut self, tensor: &TensorIr) -> Result<Arc<Layout>, Fault> {
        let mut tensor = tensor.clone();
        tensor.status = TensorStatus::ReadOnly;
        self.use_item(tensor.id);
        // A read places data that no operation has used; what it would answer is not needed.
        drop(self.flush_for(vec![tensor.clone()]));
        if let Some(fault) = self.runtime.as_ref().and_then(Runtime::fault) {
            return Err(fault);
        }
        match (&self.ended, self.live.get(&tensor.id)) {
            (Some(fault), _) => Err(fault.clone()),
            (None, Some(Live::Placed { layout, .. })) => Ok(layout.clone()),
            (None, _) => Err(Fault::unknown_tensor(tensor.id)),
        }
    }

    /// Returns the path of the parameter that a tensor is, if it was placed as one.
    pub(crate) fn path_of(&self, tensor: &TensorIr) -> Option<String> {
        if let Some(Live::Placed { role, .. }) = self.live.get(&tensor.id) {
            return role.parameter().map(|spec| spec.path.clone());
        }
        let placed = |op: &&Recorded| op.makes().any(|out| out.id == tensor.id);
        match self.log.ops().iter().find(placed)?.mark()? {
            Mark::Param(spec) => Some(spec.path.clone()),
            Mark::Redistribute(_) => None,
        }
    }

    pub(crate) fn stats(&mut self) -> RecorderStats {
        RecorderStats {
            cache: self.cache.stats(),
            ..self.stats.clone()
        }
    }

    pub(crate) fn runtime_stats(&mut self) -> Option<StatsTicket> {
        self.flush_all();
        self.runtime.as_ref().map(Runtime::stats)
    }

    /// Returns what has stopped the mesh, if anything has.
    pub(crate) fn fault(&self) -> Option<Fault> {
        let of_ranks = self.runtime.as_ref().and_then(Runtime::fault);
        of_ranks.or_else(|| self.ended.clone())
    }

    /// Returns what ranks noted of the windows that have ended, if they do.
    pub(crate) fn trace(&self) -> Option<Trace> {
        self.runtime.as_ref().and_then(Runtime::trace)
    }

    /// Starts collecting what the plans of the following windows do, and what is asked beside that.
    pub(crate) fn explain(&mut self, ask: Ask) {
        self.flush_all();
        self.asked = ask;
        let explanation = Explanation::new(self.mesh.to_string());
        let explanation = explanation.with_links(&self.options.links);
        let explanation = explanation.with_float8_by(ops::float8::runs_by::<B>(&self.inner_device));
        let explanation = explanation.with_topology(&self.plan_options.topology);
        let (asked, regions) = (self.options.regions, self.plan_options.regions);
        self.explanation = Some(match asked.filter(|asked| *asked != regions) {
            Some(asked) => explanation.without_regions(asked),
            None => explanation,
        });
    }

    /// Returns what was collected since [`Self::explain`].
    pub(crate) fn explained(&mut self) -> Option<Explanation> {
        self.flush_all();
        self.explanation.take()
    }
}
