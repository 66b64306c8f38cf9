//! Named axes, ranks and their coordinates: the shape of a device mesh, as plain data.
//!
//! Mesh things are *axis*, tensor things are *dim*. A [`MeshShape`] knows no device, address or transport; it only says
//! which ranks there are, how they are numbered, and which of them form a group along some axes.

#![forbid(unsafe_code)]

mod axis;
pub mod collective;
mod dtype;
mod error;
mod groups;
pub mod link;
mod listed;
mod parallel_dims;
mod reduce;
mod role;
mod shape;
mod text;
mod texts;
pub mod topology;

pub use axis::{Axis, AxisIndex, Rank};
pub use dtype::{BoolStore, DType, Quantized};
#[doc(hidden)]
pub use error::debug_by_message;
pub use error::{MeshError, TextError};
pub use link::{Link, LinkError, Links};
#[doc(hidden)]
pub use listed::any_of;
pub use parallel_dims::{Degree, ParallelDims};
pub use reduce::ReduceOp;
pub use role::AxisRole;
pub use shape::MeshShape;
pub use topology::{Nodes, Reach, Split, Topology};
