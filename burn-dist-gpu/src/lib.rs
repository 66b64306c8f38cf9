//! Collectives on device memory, between ranks that each have a GPU of their own.
//!
//! | folder | idea |
//! | --- | --- |
//! | [`endpoint`] | one rank's calls on tensors of any backend |
//! | [`owners`] | the ranks that have a GPU of their own |
//! | [`nccl`] | NCCL's calls and the driver's as traits; groups and lanes, launching, faults |
//! | [`peer`] | copies between GPUs of one process that read each other's memory |
//! | [`symmetric`] | copies between processes of one machine, through workspaces that all of them have mapped |
//! | [`streams`] | the order of collectives with a backend's work, on the device |
//!
//! [`GpuTransport`] and [`Reduction`] are what users choose. Calls are counted and recorded by the
//! [`Communicator`](burn_dist_comm::Communicator) of the host, which also carries faults.
//!
//! | feature | brings |
//! | --- | --- |
//! | `cuda` | NCCL and CUDA's driver, which are loaded at run time |
//! | `simulated-gpus` | GPUs and NCCL simulated by threads, for tests |

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod device;
pub mod endpoint;
mod error;
pub mod nccl;
pub mod owners;
pub mod peer;
pub mod streams;
pub mod symmetric;

pub use error::GpuError;
pub use nccl::{GpuTransport, Reduction};
