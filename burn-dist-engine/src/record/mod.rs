//! Recording: `Dist<B>`, the device mesh as a Burn device, and the client that burn-router calls.
//!
//! All contact with burn-router is in this folder.

mod annotate;
mod backend;
mod call;
mod canonical;
mod channel;
mod client;
mod custom;
mod device;
mod flex;
mod hold;
pub mod intercept;
mod log;
pub mod parts;
mod recorder;
mod repeat;
mod report;

pub use annotate::{from_local, from_process_local, redistribute};
pub use backend::Dist;
pub use channel::MeshChannel;
pub use client::MeshClient;
pub use custom::call;
pub use device::{DeviceMesh, DeviceMeshBuilder, InputPolicy, MeshDevice, MeshOptions};
pub use hold::Hold;
pub use hold::hold;
#[doc(hidden)]
pub use parts::Parts;
pub(crate) use recorder::Recorder;
pub use report::MeshReport;
pub use report::{explained, fault, report, start_explaining, trace};
