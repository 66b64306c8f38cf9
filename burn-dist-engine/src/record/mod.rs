//! Recording: `Dist`, device meshes, and the recorder that the door calls.

mod annotate;
mod any;
mod canonical;
mod closed;
mod custom;
mod details;
mod device;
mod early;
mod flex;
mod hold;
mod hold_note;
mod items;
mod log;
mod loose;
mod missing;
mod noted;
mod on_host;
pub mod parts;
mod planner;
#[cfg_attr(burn_021, path = "program_021.rs")]
mod program;
mod ranks;
mod recorder;
mod repeat;
mod report;
mod taken;
#[cfg(test)]
mod tests;
mod windows;

pub use annotate::{from_local, from_process_local, layout_of, local_of, redistribute};
pub use any::OnRanks;
pub use burn_dist_door::{MeshDevice, MeshTensor};
pub use custom::{Callable, call, has_kernel};
pub use details::local_ranks;
pub use device::{DeviceMesh, DeviceMeshBuilder};
pub use hold::Hold;
pub use hold::hold;
pub use noted::noting;
#[doc(hidden)]
pub use parts::Parts;
pub use program::Dist;
pub use ranks::Ranks;
pub(crate) use recorder::Recorder;
pub use report::MeshReport;
pub use report::{explained, fault, report, start_explaining, trace};
