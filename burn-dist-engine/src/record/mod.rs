//! Recording: `Dist<B>`, device meshes, and the recorder that the door calls.

mod annotate;
mod canonical;
mod custom;
mod device;
mod flex;
mod hold;
mod log;
mod noted;
pub mod parts;
mod ranks;
mod recorder;
mod repeat;
mod report;

pub use annotate::{from_local, from_process_local, layout_of, local_of, redistribute};
pub use burn_dist_door::{MeshDevice, MeshTensor};
pub use custom::call;
pub use device::{DeviceMesh, DeviceMeshBuilder, local_ranks};
pub use hold::Hold;
pub use hold::hold;
pub use noted::noting;
#[doc(hidden)]
pub use parts::Parts;
pub use ranks::Ranks;
pub(crate) use recorder::Recorder;
pub use report::MeshReport;
pub use report::{explained, fault, report, start_explaining, trace};

/// A backend whose tensors live on a device mesh: records the program, partitions it, and runs each rank's part on `B`.
///
/// Nests inside `Autodiff`: `Autodiff<Dist<Flex>>`. `Autodiff` records gradients as ordinary operations, which `Dist`
/// then partitions with the rest; the other order would differentiate each rank's part on its own. Fusion would go
/// inside, so that what a rank runs between two collectives is fused; but over burn-fusion 0.21 some programs on
/// several ranks give wrong values, and the backends that this crate's features name go without it.
///
/// Quantized tensors are whole on every rank; what is computed from them is split again.
pub type Dist<B> = burn_dist_door::Dist<Ranks<B>>;

/// A handle on the recorder of one mesh whose ranks compute on `B`; every tensor holds one.
pub type MeshClient<B> = burn_dist_door::MeshClient<Ranks<B>>;

/// The channel between recorded operations and the ranks of a mesh.
pub type MeshChannel<B> = burn_dist_door::MeshChannel<Ranks<B>>;
