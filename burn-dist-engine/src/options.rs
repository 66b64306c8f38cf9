//! The options of a device mesh.

use std::path::PathBuf;
use std::time::Duration;

use crate::comm::{Chaos, World};
use crate::mesh::{Links, Nodes};
use crate::plan::{DeviceCosts, Regions};
use burn_dist_gpu::{GpuTransport, Reduction};

/// How tensors made from data enter the mesh, and what is computed from them.
///
/// Data stays on the host until it is used, and what is computed from data and constants alone is free like it: each
/// rank makes the part that it needs. Both take the layout that the first operation with something placed (a parameter,
/// an activation) asks for, at no cost. What this policy says holds only where that decides nothing: for a product of
/// data with a whole weight, for what the host reads, for what outlives its window. Layouts that are asked for
/// (`redistribute`, `.parallelize`) win.
///
/// Constants (`zeros`, `ones`, `full`, `arange`, random numbers) and what is computed from them alone are whole under
/// either.
///
/// # What outlives its window
/// Data that no operation has used stays on the host, as free as before. What was computed from data is placed at the
/// end of the window, as the policy says. If nothing placed was involved so far, it remains undecided: a batch whose
/// items were made in one window, by a loader's thread perhaps, and joined in a later one is split as if it were made
/// in one. A weight computed from data is placed as a batch would be, until `.parallelize` says where it lives; one
/// that is data itself, as a record's are, is whole where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum InputPolicy {
    /// Dim 0 is the batch: split over the data axes where it has at least one row per part, else whole. On a mesh with
    /// context axes (`cp`), dim 1 is the sequence, and split over these likewise.
    ///
    /// A tensor put together from items (`cat`, `stack`, assignment of rows) has the batch as its own dim 0 whatever the
    /// items look like, and each rank makes its own items alone. Views that move dims (`swap_dims`, `permute`) take the
    /// batch along; rows that a reshape makes rows no more (`unsqueeze`) are no batch.
    #[default]
    Batch,
    /// Whole on every rank.
    Replicate,
}

/// The choices of a mesh besides its axes: hardware, how batches enter, and debugging; see
/// [`DeviceMeshBuilder`](crate::DeviceMeshBuilder). How to train on it is in a `Plan`.
///
/// The mesh makes one value of them when it is built; its recorder shares it, and its runtime reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeshOptions {
    /// How tensors made from data enter the mesh.
    pub input: InputPolicy,
    /// Gives every tensor made from data a random layout from this seed; for tests, see
    /// [`DeviceMeshBuilder::fuzz_layouts`](crate::DeviceMeshBuilder::fuzz_layouts).
    pub fuzz_layouts: Option<u64>,
    /// Plans and explains, but executes nothing; reads return zeros.
    pub dry_run: bool,
    /// Operations after which a window is closed even if nothing is read.
    pub window_ops_max: usize,
    /// Bytes of host data that windows may hold which the ranks have not finished.
    pub queue_bytes_max: u64,
    /// Bytes that plans may take which are kept.
    pub plan_cache_bytes_max: usize,
    /// How long a rank waits for the others before it gives up and names them.
    pub timeout: Duration,
    /// Partial values (gradients) with fewer local bytes are all-reduced rather than reduce-scattered.
    pub scatter_bytes_min: usize,
    /// Links whose time collectives take.
    pub links: Links,
    /// Times of the devices that ranks run on, if these are known.
    pub device_costs: Option<DeviceCosts>,
    /// True if ranks note what they do when.
    pub trace: bool,
    /// The processes that share the ranks out; `None` if this one has all of them.
    pub world: Option<World>,
    /// True if this process has all ranks, whoever was started with it.
    pub alone: bool,
    /// Where nodes (machines) end.
    pub nodes: Nodes,
    /// Collectives over several nodes are composed from this many bytes on; `None`: where it takes less time.
    pub hierarchy_bytes_min: Option<u64>,
    /// How the elementwise work of ranks is to run; `None`: as suits their backend.
    pub regions: Option<Regions>,
    /// True if ranks account for the buffers that they hold.
    pub account_memory: bool,
    /// The transport between ranks that each have a GPU of their own.
    pub gpu_transport: GpuTransport,
    /// The order in which such ranks add up.
    pub reduction: Reduction,
    /// The folder for flight records; `None`: what the environment says.
    pub flight_records: Option<PathBuf>,
    /// Faults to inject, for tests.
    pub chaos: Option<Chaos>,
}

impl Default for MeshOptions {
    fn default() -> Self {
        Self {
            input: InputPolicy::Batch,
            fuzz_layouts: None,
            dry_run: false,
            window_ops_max: 1 << 20,
            queue_bytes_max: 256 << 20,
            plan_cache_bytes_max: 512 << 20,
            timeout: Duration::from_secs(30),
            scatter_bytes_min: 16 * 1024,
            links: Links::default(),
            device_costs: None,
            trace: false,
            world: None,
            alone: false,
            nodes: Nodes::default(),
            hierarchy_bytes_min: None,
            regions: None,
            account_memory: false,
            gpu_transport: GpuTransport::default(),
            reduction: Reduction::default(),
            flight_records: None,
            chaos: None,
        }
    }
}
