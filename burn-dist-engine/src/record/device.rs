//! A device mesh as a Burn device.

use std::any::{TypeId, type_name};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use burn_backend::BackendTypes;
use burn_backend::backend::{DeviceId, DeviceOps, DeviceSettings};
use burn_dist_door::{Engine, Mesh, MeshDevice};
use burn_flex::Flex;
use burn_ir::BackendIr;

use super::Recorder;
use super::any::Erased;
use super::details::{Details, details, device_of, local_ranks};
use super::missing::{FindMissing, missing};
use super::on_host::batch_layout;
use crate::burn::{NAMES_BACKEND, settings as settings_of};
use crate::clock::Hardware;
use crate::comm::{Chaos, World};
use crate::layout::Rows;
use crate::mesh::{Axis, AxisRole, Link, Links, MeshError, MeshShape, Nodes, Rank, Topology};
use crate::options::{InputPolicy, MeshOptions};
use crate::plan::Regions;
use burn_dist_gpu::{GpuTransport, Reduction};

/// Returns what the door asks of ranks that compute on `B`.
fn ranks_on<B: BackendIr>() -> Engine {
    fn open<B: BackendIr>(device: &MeshDevice) -> Box<dyn burn_dist_door::Recorder> {
        Box::new(Erased(Box::new(Recorder::<B>::new(device))))
    }

    fn settings<B: BackendIr>(device: &MeshDevice) -> DeviceSettings {
        settings_of::<B>(&device_of(device, Rank(0)))
    }

    Engine {
        open: open::<B>,
        settings: settings::<B>,
    }
}

/// Registers the engine of programs whose tensors name no backend: it asks each mesh for that of its ranks.
fn register_engine() {
    fn ranks(device: &MeshDevice) -> Engine {
        let of_mesh = device.mesh().and_then(|mesh| details(mesh).ranks);
        of_mesh.unwrap_or_else(ranks_on::<Flex>)
    }

    burn_dist_door::register(Engine {
        open: |device| (ranks(device).open)(device),
        settings: |device| (ranks(device).settings)(device),
    });
}

fn register(
    shape: MeshShape,
    devices: Vec<DeviceId>,
    options: MeshOptions,
    ranks: Engine,
    missing: FindMissing,
) -> Result<DeviceMesh, MeshError> {
    register_engine();
    let details = Details::new(&shape, devices, options, Some(ranks), missing)?;
    let mesh = Mesh::new(shape, details)?;
    Ok(DeviceMesh { mesh })
}

/// A mesh of devices with named axes: what a program runs on.
///
/// The mesh ends when the last [`DeviceMesh`] and the last [`MeshDevice`] of it are dropped: its workers stop, and
/// tensors that were on it can no longer be read.
///
/// ```
/// # use burn_dist_engine as burn_dist;
/// use burn_dist::DeviceMesh;
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).axis("tp", 2).build()?;
/// assert_eq!(mesh.shape().num_ranks(), 4);
/// assert_eq!(mesh.to_string(), "fsdp=2,tp=2");
/// # Ok::<(), burn_dist_mesh::MeshError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceMesh {
    mesh: Arc<Mesh>,
}

impl DeviceMesh {
    /// Starts a mesh.
    pub fn builder() -> DeviceMeshBuilder {
        DeviceMeshBuilder::default()
    }

    /// Makes a mesh from its text form, such as `fsdp=2,tp=2`.
    ///
    /// # Errors
    /// [`MeshError`] if the text names an axis twice, one whose name says no role, a size of zero, or is not of that
    /// form.
    pub fn parse(text: &str) -> Result<Self, MeshError> {
        let shape = MeshShape::parse(text)?;
        register(
            shape,
            Vec::new(),
            MeshOptions::default(),
            ranks_on::<Flex>(),
            |_| None,
        )
    }

    /// Returns the Burn device that stands for the whole mesh.
    pub fn device(&self) -> MeshDevice {
        self.mesh.clone().into()
    }

    /// Returns the axes.
    pub fn shape(&self) -> &MeshShape {
        self.mesh.shape()
    }

    /// Returns which ranks are on one node.
    pub fn topology(&self) -> &Topology {
        &details(&self.mesh).topology
    }

    /// Returns a table of the ranks along each axis, and of the links that the axes use: inside a process, inside a
    /// node, or between nodes.
    ///
    /// ```
    /// # use burn_dist_engine as burn_dist;
    /// use burn_dist::DeviceMesh;
    /// let mesh = DeviceMesh::builder().axis("fsdp", 4).ranks_per_node(2).dry_run().build()?;
    /// assert!(mesh.table().contains("2 nodes x 2  between nodes"));
    /// # Ok::<(), burn_dist_mesh::MeshError>(())
    /// ```
    pub fn table(&self) -> String {
        let here = local_ranks(&self.device()).len();
        let shape = self.shape();
        shape.table() + &self.topology().table(shape, here)
    }

    /// Returns which rows of a batch of `rows` rows the ranks of this process hold: what it has to read for
    /// `ProcessLocal::from_process_local`. Without other processes, all of
    /// them.
    ///
    /// Rows are split over the data axes; a batch with fewer rows than the data axes have ranks is whole on every rank.
    /// A process may hold all rows where others do not: either all processes make a tensor from their rows, or none
    /// does.
    pub fn local_rows(&self, rows: usize) -> Rows {
        let shape = self.shape();
        let layout = batch_layout(shape, details(&self.mesh).options.input, &[rows]);
        Rows::held(&layout, shape, local_ranks(&self.device()))
    }
}

impl AsRef<MeshShape> for DeviceMesh {
    fn as_ref(&self) -> &MeshShape {
        self.shape()
    }
}

impl std::fmt::Display for DeviceMesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shape().fmt(f)
    }
}

/// Collects the axes and options of a mesh. `M` is what is built of them: a [`DeviceMesh`], or what stands for one.
#[derive(Clone, Debug)]
pub struct DeviceMeshBuilder<M = DeviceMesh> {
    /// Outermost first, with what was wrong with the name of one.
    axes: Vec<Result<Axis, MeshError>>,
    devices: Vec<DeviceId>,
    /// The type of the devices, if there are some.
    device_type: Option<Type>,
    options: MeshOptions,
    ranks: Engine,
    missing: FindMissing,
    /// The backend that ranks compute on, and the type of its devices.
    backend: (&'static str, Type),
    built: PhantomData<fn() -> M>,
}

/// A type, and its name.
type Type = (TypeId, &'static str);

fn type_of<T: 'static>() -> Type {
    (TypeId::of::<T>(), type_name::<T>())
}

/// Returns the name of a backend, and the type of its devices.
fn named<B: BackendIr>() -> (&'static str, Type) {
    (type_name::<B>(), type_of::<<B as BackendTypes>::Device>())
}

impl<M> Default for DeviceMeshBuilder<M> {
    fn default() -> Self {
        Self {
            axes: Vec::new(),
            devices: Vec::new(),
            device_type: None,
            options: MeshOptions::default(),
            ranks: ranks_on::<Flex>(),
            missing: |_| None,
            backend: named::<Flex>(),
            built: PhantomData,
        }
    }
}

impl<M> DeviceMeshBuilder<M> {
    /// Adds an axis, inside the ones before it. Its role follows from its name (see [`AxisRole`]).
    pub fn axis(mut self, name: impl Into<String>, size: usize) -> Self {
        self.axes.push(Axis::new(name, size));
        self
    }

    /// Adds an axis of any name, as [`Self::axis`] does, and says what it is for.
    pub fn axis_with_role(mut self, name: impl Into<String>, size: usize, role: AxisRole) -> Self {
        self.axes.push(Ok(Axis::with_role(name, size, role)));
        self
    }

    /// Takes all axes, with their roles, from `axes`.
    pub fn axes(mut self, axes: &MeshShape) -> Self {
        self.axes = axes.axes().iter().cloned().map(Ok).collect();
        self
    }

    /// Places rank `i` on `devices[i]` of the inner backend; without it, every rank runs on the inner backend's default
    /// device.
    pub fn devices<D: DeviceOps>(mut self, devices: &[D]) -> Self {
        self.devices = devices.iter().map(|device| device.to_id()).collect();
        self.device_type = Some(type_of::<D>());
        self.missing = missing::<D>;
        self
    }

    /// Sets the backend that ranks compute on, where tensors name none: Burn's CPU backend without it.
    pub fn backend<B: BackendIr>(mut self) -> Self {
        self.ranks = ranks_on::<B>();
        self.backend = named::<B>();
        self.missing = missing::<<B as BackendTypes>::Device>;
        self
    }

    /// Sets how tensors made from data enter the mesh.
    pub fn input_policy(mut self, policy: InputPolicy) -> Self {
        self.options.input = policy;
        self
    }

    /// Gives every tensor made from data a random layout (uneven, factored, partial) drawn from `seed`.
    ///
    /// Layouts may change speed and memory, never a value: any Burn program can be run under this option as a test of
    /// that promise. Partial layouts hold terms that reduce to the data bit by bit, different ones on every rank. The
    /// layout is a function of the seed and of the data, so that a seed replays exactly, in any order of threads.
    pub fn fuzz_layouts(mut self, seed: u64) -> Self {
        self.options.fuzz_layouts = Some(seed);
        self
    }

    /// Plans and explains but executes nothing: nothing is allocated, reads return zeros.
    pub fn dry_run(mut self) -> Self {
        self.options.dry_run = true;
        self
    }

    /// Sets how long a rank waits for the others before it gives up and names them.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Sets the number of operations after which a window is closed even if nothing is read: 1,048,576 by default.
    ///
    /// A window is what is planned together: activation checkpointing and the accumulation of gradients work inside
    /// one. Usually a read ends it, once a step; a program that never reads is cut where its operations repeat, between
    /// two steps. This limit is for programs that do neither.
    pub fn window_ops_max(mut self, ops: usize) -> Self {
        self.options.window_ops_max = ops.max(1);
        self
    }

    /// Sets the bytes of host data (tensors made from data) that may wait for the ranks in recorded windows: 256 MiB by
    /// default. A program that is further ahead waits for the ranks where it records; one window may be of any size.
    pub fn queue_bytes_max(mut self, bytes: u64) -> Self {
        self.options.queue_bytes_max = bytes;
        self
    }

    /// Sets the memory that plans may take which are kept for windows that come again, in bytes: 512 MiB by default.
    /// Plans that were not used for longest are dropped first; a program whose windows take turns beyond that plans
    /// each of them anew.
    pub fn plan_cache_bytes_max(mut self, bytes: usize) -> Self {
        self.options.plan_cache_bytes_max = bytes;
        self
    }

    /// Sets the local size below which partial values are all-reduced rather than reduce-scattered. Gradients that this
    /// window's optimizer uses are scattered however small they are: where they rest is a promise of the
    /// strategy (`Plan::strategy`).
    pub fn scatter_bytes_min(mut self, bytes: usize) -> Self {
        self.options.scatter_bytes_min = bytes;
        self
    }

    /// Makes collectives over `axis` take the time that they would over `link`; values stay bitwise the same. See
    /// [`crate::mesh::link`] for the formula, [`RankTimes`](crate::run::RankTimes) for what comes of it.
    pub fn link(mut self, axis: impl Into<String>, link: Link) -> Self {
        self.options.links = self.options.links.with(axis, link);
        self
    }

    /// Sets the links of all axes: none by default, and collectives take the time of copying memory.
    pub fn links(mut self, links: Links) -> Self {
        self.options.links = links;
        self
    }

    /// Says what the ranks run on: [async TP](burn_dist_plan::AsyncTp::Auto) knows by it how long products and
    /// transfers take. It delays none and changes no layout.
    pub fn hardware(mut self, hardware: &Hardware) -> Self {
        self.options.device_costs = Some(hardware.device_costs());
        self
    }

    /// Makes every rank note what it does when; `MeshBackend::trace` gives it, for a
    /// timeline.
    ///
    /// Keeps at most 262,144 events (8 MiB) per rank, the first ones.
    pub fn trace(mut self) -> Self {
        self.options.trace = true;
        self
    }

    /// Shares the ranks out among the processes of `world`, by default those started with this one
    /// ([`launch::world`](crate::launch::world())), all of which make the same mesh and run the same program. Reads are
    /// answered to all of them.
    pub fn world(mut self, world: World) -> Self {
        self.options.world = Some(world);
        self
    }

    /// Says that every `ranks` ranks, in rank order, are on one node (machine). Without, processes on one host form a
    /// node.
    ///
    /// Collectives over ranks of several nodes go through the nodes first ([`crate::plan`]); which links an axis uses
    /// is in [`DeviceMesh::table`]. Also without a cluster: a process alone plans, and with [`links`](Self::links)
    /// takes the time, as if it were many nodes. Values are bitwise those of a real cluster with such nodes.
    pub fn ranks_per_node(mut self, ranks: usize) -> Self {
        self.options.nodes = Nodes::Each(ranks);
        self
    }

    /// Says where nodes end: as [`ranks_per_node`](Self::ranks_per_node), or node by node.
    pub fn nodes(mut self, nodes: Nodes) -> Self {
        self.options.nodes = nodes;
        self
    }

    /// Sets the bytes of the undivided block from which on a collective over several nodes is composed of some inside
    /// nodes and some between them: 0 always, `u64::MAX` never. By default where it takes less time, by the
    /// [links](Self::links) if they are known, else from 64 KiB on. Never another value.
    pub fn hierarchy_bytes_min(mut self, bytes: u64) -> Self {
        self.options.hierarchy_bytes_min = Some(bytes);
        self
    }

    /// Sets how ranks communicate that each have a GPU of their own: by copies or NCCL by default, as their
    /// GPUs allow. See [`GpuTransport`].
    pub fn gpu_transport(mut self, transport: GpuTransport) -> Self {
        self.options.gpu_transport = transport;
        self
    }

    /// Sets in which order such ranks add up: in order by default, with the bits of every other transport, or as NCCL
    /// likes. See [`Reduction`].
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.options.reduction = reduction;
        self
    }

    /// Sets how the elementwise work of ranks runs: see [`Regions`]. Without it, the environment variable
    /// `BURN_DIST_REGIONS` says it (`on`, `off`, `flex`); without that, it is [`Regions::On`] on Burn's CPU backend
    /// (`Flex`), and [`Regions::Flex`] on others: each operation is the backend's own.
    ///
    /// Backends without kernels of regions, which are all but `Flex` and those of CubeCL without burn-fusion, have
    /// [`Regions::Flex`] whatever is set here, and an [explanation](burn_dist_plan::explain::Explanation) says that it
    /// was asked for otherwise.
    pub fn regions(mut self, regions: Regions) -> Self {
        self.options.regions = Some(regions);
        self
    }

    /// Accounts for the buffers that each rank really holds, by what they are used for: see
    /// [`RankStats::accounted`](crate::run::RankStats::accounted).
    ///
    /// Off by default: without it, reports say what the plans say.
    pub fn account_memory(mut self, account: bool) -> Self {
        self.options.account_memory = account;
        self
    }

    /// Writes the flight record of a process into `folder` when a fault stops the mesh: what its ranks did last, for
    /// `burn-dist doctor`. The text of the fault ends with the file's name.
    ///
    /// Without it, the environment variable `BURN_DIST_FLIGHT` names the folder (`off`: none are written); without
    /// that, programs of several processes write into the system's folder for temporary files, and a single process
    /// writes nothing.
    pub fn flight_records(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.flight_records = Some(folder.into());
        self
    }

    /// Delays and reorders collectives from a seed, and kills a rank if asked to, for tests: see [`Chaos`]. Delays and
    /// orders may change speed, never a value: any program can be run under this option as a test of that promise.
    pub fn chaos(mut self, chaos: Chaos) -> Self {
        self.options.chaos = Some(chaos);
        self
    }

    /// Keeps all ranks in this process, whoever was started with it: what runs on the mesh is this process's own
    /// business.
    pub fn alone(mut self) -> Self {
        self.options.alone = true;
        self.options.world = None;
        self
    }

    /// Builds the mesh.
    ///
    /// # Errors
    /// [`MeshError`] for an axis named twice, one whose name says no role, a size of zero, two pipeline axes, a link
    /// for an axis that is not there, a number of ranks that the processes cannot share out evenly, nodes that do not
    /// hold exactly the ranks, more ranks than a process can run, a number of devices other than the product of the
    /// sizes, devices of another backend than the one that ranks compute on, a GPU that is not there, or a variable
    /// `BURN_DIST_REGIONS` that is none of its words.
    pub fn build(self) -> Result<M, MeshError>
    where
        M: From<DeviceMesh>,
    {
        let axes: Result<Vec<Axis>, MeshError> = self.axes.into_iter().collect();
        let shape = MeshShape::with_roles(axes?)?;
        self.options.links.check(&shape)?;
        let (backend, expected) = self.backend;
        let others = self.device_type.filter(|devices| devices.0 != expected.0);
        if let Some((_, devices)) = others.filter(|_| !NAMES_BACKEND) {
            return Err(MeshError::OtherDevices {
                devices: devices.to_string(),
                backend: backend.to_string(),
                expected: expected.1.to_string(),
            });
        }
        register(shape, self.devices, self.options, self.ranks, self.missing).map(M::from)
    }
}
