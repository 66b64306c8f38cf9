//! Distributed N-D parallelism for [Burn](https://burn.dev): a mesh of devices as one device.
//!
//! A [`DeviceMesh`] is a device of Burn. It records a program, partitions it over the mesh as plain data, and runs each
//! rank's part on an inner backend. Burn finds it under the name of burn-ndarray, which a program patches:
//!
//! ```toml
//! [dependencies]
//! burn-dist = { path = "../burn-dist/burn-dist" }
//!
//! [patch.crates-io]
//! burn-ndarray = { path = "../burn-dist/carriers/burn-ndarray" }
//! ```
//!
//! Burn is 0.22.1 exactly, Rust 1.95 or later.

mod device;

pub use burn_dist_engine::{Hold, InputPolicy, MeshDevice};
pub use device::{BurnDevice, DeviceMesh, DeviceMeshBuilder};
